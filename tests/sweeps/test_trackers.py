"""A sweep that logs itself to W&B or MLflow: to modules that stand in for them, and to the packages where they are."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import roundoff
from roundoff.extras import MissingExtraError
from roundoff.sweeps import SweepError, SweepFileError, plan_text

PROGRAM = """
import roundoff

def train(lr: float = 0.1, shape: dict = {"width": 3}):
    for step in range(3):
        roundoff.log(step, loss=lr / (step + 1))
    if lr > 1:
        roundoff.log(3, loss=float("inf"))
    return {"error": lr, "size": 7}
"""
SWEEP = """
program: train.py:train
metric: {name: error, goal: minimize, crash: 9}
log_to: %s
grid: {seed: [0, 1], lr: [0.1, 2.0]}
"""


class Account:
    """What stands in for both packages: it remembers what it was told, as plain data, and refuses what it is to."""

    def __init__(self):
        self.runs, self.experiments, self.refused, self.closed = [], {}, set(), 0
        self.has_key = True

    def refuse(self, name):
        if name in self.refused:
            raise ConnectionError("no server answers\nand more")


class Wandb(Account):
    Settings = staticmethod(lambda **settings: settings)

    def login(self):
        if not self.has_key:
            raise ValueError("No API key configured")

    def init(self, *, project, group, name, config, tags, reinit, settings):
        assert reinit == "create_new"
        assert settings == {"silent": True, "console": "off"}
        self.refuse(name)
        run = {"project": project, "group": group, "name": name, "config": config, "tags": tags, "rows": [], "end": {}}
        self.runs.append(run)
        return SimpleNamespace(
            define_metric=lambda name, step_metric: None, log=run["rows"].append, finish=self.finish,
            summary=SimpleNamespace(update=run["end"].update),
        )  # fmt: skip

    def finish(self):
        self.closed += 1


class Mlflow(Account):
    def __init__(self):
        super().__init__()
        self.entities = SimpleNamespace(
            Param=lambda key, value: (key, value), Metric=lambda key, value, time, step: (key, value, step)
        )
        self.tracking = SimpleNamespace(MlflowClient=lambda: self)

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        self.experiments[name] = f"id of {name}"
        return self.experiments[name]

    def create_run(self, experiment, run_name, tags):
        run = {"experiment": experiment, "name": run_name, "tags": tags, "params": [], "metrics": []}
        self.runs.append(run)
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs) - 1))

    def log_batch(self, run, params=(), metrics=()):
        self.refuse(self.runs[run]["name"])
        self.runs[run]["params"] += params
        self.runs[run]["metrics"] += metrics

    def delete_run(self, run):
        self.runs[run]["name"] = "deleted"

    def set_terminated(self, run, status):
        self.runs[run]["status"] = status


@pytest.fixture(params=[Wandb, Mlflow], ids=["wandb", "mlflow"])
def tracker(request, monkeypatch):
    """A package that is not there, under its name."""
    return put_in_place(request.param(), monkeypatch)


def put_in_place(account, monkeypatch):
    name = type(account).__name__.lower()
    modules = {name: account}
    if name == "mlflow":
        modules |= {"mlflow.tracking": account.tracking, "mlflow.entities": account.entities}
    for module, stands_in in modules.items():
        monkeypatch.setitem(sys.modules, module, stands_in)
    account.name, account.__spec__ = name, SimpleNamespace()  # which find_spec looks at
    return account


def train(lr: float = 0.1, sizes: dict | None = None):
    for step in range(3):
        roundoff.log(step, loss=lr / (step + 1))
    if lr > 1:
        roundoff.log(3, loss=float("inf"))
    return {"error": lr, "size": 7}


def swept(folder, log_to, *, lr=(0.5, 2.0)):
    metric = {"name": "error", "goal": "minimize", "crash": 9}
    grid = {"seed": [0, 1], "lr": lr}
    return roundoff.sweep(train, grid, metric=metric, out=folder, log_to=log_to, base={"sizes": {"a": 1}})


def test_each_run_is_logged_once_with_its_settings_curves_and_end(tracker, tmp_path):
    table = swept(tmp_path / "out", {"name": tracker.name, "project": "bits"})
    swept(tmp_path / "out", {"name": tracker.name, "project": "bits"})
    assert sorted(run["name"] for run in tracker.runs) == sorted(table["run"])
    done, crashed = tracker.runs[:2]
    if tracker.name == "wandb":
        assert {run["project"] for run in tracker.runs} == {"bits"}
        assert {run["group"] for run in tracker.runs} == {"train"}
        assert [run["tags"] for run in tracker.runs] == [["done"], ["crashed"]] * 2
        assert done["config"]["lr"] == 0.5
        assert done["config"]["sizes.a"] == 1
        assert done["rows"] == [{"step": step, "log/loss": 0.5 / (step + 1)} for step in range(3)]
        assert crashed["rows"][-1] == {"step": 3}
        assert done["end"] == {"status": "done", "score": 0.5, "steps": 2.0, "error": 0.5, "size": 7.0}
        assert crashed["end"]["score"] == 9
        assert "loss is inf" in crashed["end"]["reason"]
        assert tracker.closed == 4
    else:
        assert tracker.experiments == {"bits": "id of bits"}
        assert {run["experiment"] for run in tracker.runs} == {"id of bits"}
        assert {run["tags"]["sweep"] for run in tracker.runs} == {"train"}
        assert [run["status"] for run in tracker.runs] == ["FINISHED", "FAILED"] * 2
        assert {("lr", "0.5"), ("sizes.a", "1"), ("format", "fp32")} <= set(done["params"])
        assert done["metrics"][:3] == [("log/loss", 0.5 / (step + 1), step) for step in range(3)]
        end = {"score": 0.5, "steps": 2.0, "error": 0.5, "size": 7.0}
        assert done["metrics"][3:] == [(name, x, 2) for name, x in end.items()]
        assert "loss is inf" in crashed["tags"]["reason"]


def test_no_run_depends_on_it(tracker, tmp_path):
    tables = [swept(tmp_path / str(log_to), log_to) for log_to in (None, tracker.name)]
    assert list(tables[0]["run"]) == list(tables[1]["run"])
    for run in tables[0]["run"]:
        for name in ("metrics.jsonl", "result.json", "config.json"):
            assert (tmp_path / "None/runs" / run / name).read_bytes() == (
                tmp_path / tracker.name / "runs" / run / name
            ).read_bytes()


def test_what_had_ended_before_is_logged_when_the_key_is_added(tracker, tmp_path):
    swept(tmp_path / "out", None)
    assert not tracker.runs
    swept(tmp_path / "out", tracker.name, lr=(0.5, 2.0, 0.25))
    assert len(tracker.runs) == 6


def test_a_run_that_is_refused_is_told_and_logged_the_next_time(tracker, tmp_path, capsys):
    run = swept(tmp_path / "out", None)["run"][2]
    tracker.refused = {run}
    swept(tmp_path / "out", tracker.name)
    told = f"{run} is not logged yet: log_to: {tracker.name} says: ConnectionError: no server answers\n"
    assert capsys.readouterr().out.count(told) == 1
    tracker.refused = set()
    assert run not in {logged["name"] for logged in tracker.runs}
    swept(tmp_path / "out", tracker.name)
    names = [logged["name"] for logged in tracker.runs if logged["name"] != "deleted"]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 4


def test_a_curve_longer_than_what_is_told_at_once(monkeypatch, tmp_path):
    tracker = put_in_place(Mlflow(), monkeypatch)

    def long():
        for step in range(1234):
            roundoff.log(step, loss=step)
        return 1

    roundoff.sweep(long, {"format": ["fp32"]}, out=tmp_path / "out", log_to="mlflow")
    losses = [metric for metric in tracker.runs[0]["metrics"] if metric[0] == "log/loss"]
    assert losses == [("log/loss", float(step), step) for step in range(1234)]


def test_a_tracker_that_cannot_be_used_is_said_before_anything_is_run(monkeypatch, tmp_path):
    put_in_place(Wandb(), monkeypatch).has_key = False
    with pytest.raises(SweepError, match=r"^log_to: wandb says: ValueError: No API key configured$"):
        swept(tmp_path / "out", "wandb")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_said_before_anything_is_run(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=f"^this needs {name}: pip install {name}$"):
        swept(tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("log_to", "message"),
    [
        ("neptune", "log_to.name: must be 'wandb' or 'mlflow', got 'neptune'"),
        ("{name: wandb, team: us}", "log_to must be the name of a tracker, or a mapping with the keys name, project"),
        ("3", "log_to must be the name of a tracker, or a mapping with the keys name, project, got 3"),
        ("tensorboard", "each run has a log for TensorBoard in any case: leave it out"),
        ("{project: bits}", "log_to.name: field required"),
    ],
)
def test_mistakes_are_told_with_their_place(log_to, message):
    with pytest.raises(SweepFileError) as told:
        plan_text(f"log_to: {log_to}\ngrid: {{seed: [0, 1]}}", "a.yaml")
    assert message in str(told.value)
    assert str(told.value).startswith("a.yaml:1:")


def test_the_key_is_the_same_for_agents_and_an_argument_completes_it():
    plan = plan_text("log_to: wandb\ngrid: {seed: [0, 1]}", "a.yaml", ["log_to.project=bits"])
    assert (plan.log_to.name, plan.log_to.project) == ("wandb", "bits")
    assert plan.runs == plan_text("grid: {seed: [0, 1]}", "a.yaml").runs


REAL = {
    "wandb": ("wandb", {"WANDB_MODE": "offline"}),
    "mlflow": ("mlflow", {"MLFLOW_ALLOW_FILE_STORE": "true"}),
}


@pytest.mark.parametrize("name", REAL)
def test_the_package_itself_in_a_sweep_of_processes(name, tmp_path):
    """Offline, from the command line, with runs in processes of their own."""
    if not find_spec(name):
        pytest.skip(f"{name} is not installed")
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "own.yaml").write_text(SWEEP % f"{{name: {name}, project: bits}}")
    store = {"MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri()} | REAL[name][1]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "roundoff", "sweep", "own.yaml", "--workers", "1"],
            cwd=tmp_path, env=os.environ | store, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        assert "not logged" not in done.stdout
    runs = {path.name for path in (tmp_path / "results/own/runs").iterdir()}
    assert len(runs) == 4
    if name == "wandb":
        logs = [*tmp_path.glob("wandb/offline-run-*/*.wandb")]
        content = b"".join(map(Path.read_bytes, logs))
        assert len(logs) == 4
        assert all(run.encode() in content for run in runs)
        assert b"log/loss" in content
    else:
        found = {path.read_text(): path.parents[1] for path in tmp_path.glob("mlruns/*/*/tags/mlflow.runName")}
        assert set(found) == runs
        for run, folder in found.items():
            lr = json.loads((tmp_path / "results/own/runs" / run / "config.json").read_text())["config"]["lr"]
            rows = [line.split() for line in (folder / "metrics/log/loss").read_text().splitlines()]
            assert (folder / "params/lr").read_text() == str(lr)
            assert [int(row[2]) for row in rows] == [0, 1, 2]
            assert [float(row[1]) for row in rows] == [lr, lr / 2, lr / 3]
