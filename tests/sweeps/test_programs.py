"""Sweeps of a user's own program: its keys, its arithmetic, its log, its end, and going on after a stop."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import ForkedWorkers
from processes import wait_until

import roundoff
from roundoff.agents.errors import RunError
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.current_run import part_of
from roundoff.files import parse_json
from roundoff.sweeps import SweepError, SweepFileError, plan_file, run_sweep
from roundoff.sweeps.folder.status import read_status
from roundoff.sweeps.programs.run import ProgramError, config_of, run_program
from roundoff.sweeps.workers.local import LocalProcesses

PROGRAM = """
import contextlib
import random
from collections import Counter, OrderedDict, defaultdict
from enum import Enum, IntEnum
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import roundoff


class Kind(Enum):
    PLAIN = "plain"


def train(lr: float = 0.5, steps: int = 12, kind: Kind = Kind.PLAIN, where: Path | None = None, pause=False):
    w, first = torch.zeros(3), 0
    if (state := roundoff.restore()) is not None:
        w, first = state["w"], state["step"]
    for step in range(first, steps):
        roundoff.checkpoint({"w": w, "step": step}, every=0)
        noise = torch.rand(3) + float(np.random.rand()) + random.random()
        w = w + lr * (noise - w)
        roundoff.log(step + 1, loss=(noise - w).square().sum(), mean=w.mean())
        if pause and step == steps // 2 and not (where / "half").exists():
            (where / "half").touch()
            __import__("time").sleep(60)
    return {"mean": w.mean(), "first": w[0].item()}


def given(arithmetic, seed: int, format: str):
    outside = torch.tensor(1.0) / 3
    with arithmetic:
        inside = torch.tensor(1.0) / 3
        with roundoff.exact():
            exact = torch.tensor(1.0) / 3
    return {"outside": outside, "inside": inside, "exact": exact, "seed": seed, "bits": len(format)}


def whole(x=1.0):
    return torch.tensor(1.0) / 3


def ends(how: Literal["nan", "inf", "logged", "after", "raises", "exits", "text", "missing", "overflow"] = "nan"):
    roundoff.log(3, loss=1.0)
    if how in ("logged", "after"):
        roundoff.log(4, loss=float("nan"))
    if how in ("raises", "after"):
        [][0]
    if how == "exits":
        raise SystemExit(3)
    if how == "overflow":
        loss = (torch.tensor([1000.0]) * torch.tensor([1000.0])).sum()
        roundoff.log(5, loss=loss)
        return loss
    return {"nan": float("nan"), "inf": float("inf"), "text": "well", "missing": {"loss": 1}}.get(how, 2.0)


def strange(x: torch.Tensor = None):
    return 1.0


def anything(**options):
    return 1.0


def unruly(x: int = 0):
    elsewhere, here = Path(__file__).with_name("elsewhere"), Path.cwd()
    elsewhere.mkdir(exist_ok=True)
    __import__("os").chdir(elsewhere)
    return {"first": here != elsewhere, "read": len(__import__("sys").stdin.read())}


def needs(lr: float):
    return lr


def named(base: int = 1):
    return base


def saves(what: str = "array"):
    layer = torch.nn.Linear(2, 2)
    descend = torch.optim.Adam(layer.parameters())
    if roundoff.restore() is not None:
        return 1.0
    layer(torch.ones(1, 2)).sum().backward()
    descend.step()
    schedule = torch.optim.lr_scheduler.OneCycleLR(descend, 0.1, total_steps=3)
    states = {
        "array": np.zeros(2),
        "scalar": np.float64(1.5),
        "enum": IntEnum("Number", "ONE").ONE,
        "default": defaultdict(int),
        "torch": [layer.state_dict(), descend.state_dict(), schedule.state_dict(), layer.weight],
        "plain": (1, 2.0, None, {"a"}, OrderedDict(b=True), Counter("c"), torch.Size([2]), torch.float16, b"d", 1j),
    }
    roundoff.checkpoint({"x": [states[what]]}, every=0 if what in ("torch", "plain") else 1e9)
    raise RuntimeError("stopped")


def loads(steps: int = 6, pause: Path | None = None, top: bool = True):
    layer = torch.nn.Linear(2, 2)
    descend = torch.optim.Adam(layer.parameters(), lr=0.1, eps=1e-3)
    first = 0
    if (state := roundoff.restore()) is not None:
        with contextlib.nullcontext() if top else roundoff.exact():
            layer.load_state_dict(state["layer"])
            descend.load_state_dict(state["descend"])
        first = state["step"]

    def save(step):
        roundoff.checkpoint({"layer": layer.state_dict(), "descend": descend.state_dict(), "step": step}, every=0)

    for step in range(first, steps):
        if top:
            save(step)
        loss = (layer(torch.randn(4, 2)) - 1).square().mean()
        descend.zero_grad()
        loss.backward()
        descend.step()
        roundoff.log(step + 1, loss=loss)
        if not top:
            save(step + 1)
        if pause is not None and step == 3 and not pause.exists():
            pause.touch()
            raise RuntimeError("cut")
    return loss


def counts(steps: int = 30, pause: Path | None = None, into: bool = False):
    seen, first = torch.zeros(()), 0
    if (state := roundoff.restore()) is not None:
        seen = seen.copy_(state["seen"][0]) if into else state["seen"][0]
        first = state["step"]
    for step in range(first, steps):
        roundoff.checkpoint({"seen": [seen], "step": step}, every=0)
        seen = seen + 1
        if pause is not None and step == 20 and not pause.exists():
            pause.touch()
            raise RuntimeError("cut")
    return {"seen": seen}


small = roundoff.Format.parse("e5m2")
E = "no format"
"""


@pytest.fixture
def folder(tmp_path, request):
    """With the program in a file whose name no other test has, so that each imports its own."""
    name = f"p{abs(hash(request.node.name)) % 10**8}.py"
    (tmp_path / name).write_text(PROGRAM)
    return tmp_path


def plan(folder, text, function="train", *arguments):
    (program,) = folder.glob("p*.py")
    (folder / "s.yaml").write_text(f"program: {program.name}:{function}\n{text}")
    return plan_file(folder / "s.yaml", arguments)


def only(folder, text="", function="train"):
    made = plan(folder, text, function)
    return made.runs[0].config, made.metric


def lines(path):
    return [parse_json(line) for line in path.read_bytes().splitlines()]


class Watcher:
    def __init__(self):
        self.events, self.notices = [], []

    def begin(self, *_):
        pass

    def notice(self, text):
        self.notices.append(text)

    def event(self, event, state, score):
        self.events.append((event.kind, state, score, event.reason))


def test_a_sweep_of_a_program(folder):
    made = plan(folder, "metric: mean\nbase: {lr: 1, steps: 5}\ngrid: {format: [fp32, e5m2, mxfp8_e4m3], seed: [0, 1]}")
    watcher = Watcher()
    summary = run_sweep(made, folder / "out", executor=ForkedWorkers(2), watcher=watcher)
    assert (summary.done, summary.crashed, summary.failed) == (6, 0, 0)
    status = read_status(folder / "out")
    assert [run.state for run in status.runs] == ["done"] * 6
    values = {}
    for run in made.runs:
        path = folder / "out" / "runs" / run.id
        result = json.loads((path / "result.json").read_text())
        values[run.config.format, run.config.seed] = result["values"]["mean"]
        assert result["return"] == result["values"]["mean"]
        assert result["metric"]["name"] == "mean"
        assert [record["step"] for record in lines(path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
        assert len(json.loads((path / "timing.json").read_text())["source"]) == 16
    assert len(set(values.values())) > 3
    assert roundoff.round(torch.tensor(values["e5m2", 0]), "e5m2") == values["e5m2", 0]
    marker = json.loads((folder / "out" / "sweep.json").read_text())
    assert marker["program"].endswith(":train")
    assert marker["metric"]["goal"] == "maximize"
    again = run_sweep(made, folder / "out", executor=ForkedWorkers(2), watcher=Watcher())
    assert again == summary


@pytest.mark.usefixtures("forked_interpreters")
def test_a_run_is_known_by_what_is_given_and_its_arithmetic(folder):
    ids = [run.id for run in plan(folder, "base: {lr: 1}\ngrid: {seed: [3]}").runs]
    (program,) = folder.glob("p*.py")
    assert ids == [
        run.id for run in plan(folder, "base: {lr: 1.0, threads: 1, observe: false}\ngrid: {seed: [3]}").runs
    ]
    assert ids != [run.id for run in plan(folder, "base: {lr: 1, steps: 12}\ngrid: {seed: [3]}").runs]
    assert ids != [run.id for run in plan(folder, "base: {lr: 1, observe: true}\ngrid: {seed: [3]}").runs]
    program.write_text(PROGRAM.replace("pause=False", "pause=False, more: int = 4"))
    code = f"from roundoff.sweeps import plan_file; print(plan_file({str(folder / 's.yaml')!r}).runs[0].id)"
    plan(folder, "base: {lr: 1}\ngrid: {seed: [3]}")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [told.stdout.strip()] == ids  # a parameter with a default changes no run
    assert ids[0].startswith("train-fp32-s3-")


def test_the_function_runs_in_the_simulation_or_is_given_it(folder):
    result = run_program(*only(folder, "base: {format: e5m2}", "whole"), folder / "a")
    assert result["return"] == 0.3125
    metric = "metric: inside\nbase: {format: e5m2, seed: 7}"
    values = run_program(*only(folder, metric, "given"), folder / "b")["values"]
    third = float(torch.tensor(1.0) / 3)
    assert values == {"outside": third, "inside": 0.3125, "exact": third, "seed": 7.0, "bits": 4.0}


def test_keys_of_the_arithmetic(folder):
    text = "base: {format: e8m23, rounding: toward-zero, accumulate: e5m10/32, granularity: primitive}"
    config, _ = only(folder, text)
    policy = config.settings.policy_of_run()
    assert (str(policy.rounding), str(policy.granularity)) == ("toward-zero", "primitive")
    assert policy.accumulate is not None
    assert config.as_json()["rounding"] == "toward-zero"


def test_values_are_what_the_annotations_say(folder):
    config, metric = only(folder, "metric: mean\nbase: {kind: plain, where: /tmp/x, steps: 1}")
    assert config.as_json()["kind"] == "plain"
    assert run_program(config, metric, folder / "a")["status"] == "done"


def test_a_stopped_run_goes_on_to_the_same_bytes(folder):
    config, metric = only(folder, "metric: mean\nbase: {format: e5m4, rounding: stochastic, observe: true, seed: 5}")
    whole = run_program(config, metric, folder / "whole")
    stop = StopRequest()
    original = roundoff.current_run.part_of

    class StopAt:
        def __init__(self, run, step):
            self.run, self.step = run, step

        def log(self, step, values):
            self.run.log(step, values)
            if step == self.step:
                stop.make()

        def __getattr__(self, name):
            return getattr(self.run, name)

    for step in (4, 5, 9):
        stop.made = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("roundoff.sweeps.programs.run.part_of", lambda run, at=step: original(StopAt(run, at)))
            with pytest.raises(Stopped):
                run_program(config, metric, folder / "cut", stop=stop)
        with (folder / "cut" / "metrics.jsonl").open("a") as file:
            file.write("torn")
    assert run_program(config, metric, folder / "cut") == whole
    for name in ("metrics.jsonl", "result.json", "config.json", "numerics.csv"):
        assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert not (folder / "cut" / "checkpoint.pt").exists()


@pytest.mark.usefixtures("forked_interpreters")
def test_a_killed_run_goes_on_to_the_same_bytes(folder):
    text = f"metric: mean\nbase: {{where: {folder}, steps: 8, format: e5m4}}"
    config, metric = only(folder, text + "\ngrid: {pause: [true]}")
    code = (
        "import sys; from roundoff.sweeps import plan_file; from roundoff.sweeps.programs.run import run_program\n"
        f"plan = plan_file({str(folder / 's.yaml')!r})\n"
        f"run_program(plan.runs[0].config, plan.metric, {str(folder / 'cut')!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until((folder / "half").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-c", code.replace(str(folder / "cut"), str(folder / "whole"))], check=True)
    assert len(lines(folder / "whole" / "metrics.jsonl")) == 8
    for name in ("metrics.jsonl", "result.json"):
        assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert config.task == "train"
    assert metric.name == "mean"


@pytest.mark.parametrize("top", ["true", "false"], ids=["begins with a checkpoint", "ends with one"])
def test_loading_a_state_leaves_no_trace(folder, top):
    """Loading copies numbers: counted, and drawing bits, but forgotten where the first checkpoint is the one loaded."""
    text = f"base: {{format: e5m4, rounding: stochastic, observe: true, top: {top}, pause: {folder / 'cut'}}}"
    config, metric = only(folder, text, "loads")
    with pytest.raises(ProgramError, match="cut"):
        run_program(config, metric, folder / "a")
    run_program(config, metric, folder / "a")
    run_program(config, metric, folder / "b")
    assert len(lines(folder / "a" / "metrics.jsonl")) == 7
    for name in ("metrics.jsonl", "result.json", "numerics.csv"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()


@pytest.mark.parametrize("into", ["true", "false"])
def test_a_count_stays_whole_in_a_resumed_run(folder, into):
    """In e5m3 a sum of ones that is rounded stays at 16."""
    text = f"metric: seen\nbase: {{format: e5m3, into: {into}, pause: {folder / 'cut'}}}"
    config, metric = only(folder, text, "counts")
    with pytest.raises(ProgramError, match="cut"):
        run_program(config, metric, folder / "a")
    assert run_program(config, metric, folder / "a")["values"] == {"seen": 30.0}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "score is not finite"),
        ("inf", "score is not finite"),
        ("logged", "loss is nan"),
        ("after", "loss is nan, then IndexError: list index out of range"),
    ],
)
def test_what_is_not_finite_is_a_crash_and_a_result(folder, how, reason):
    result = run_program(*only(folder, f"base: {{how: {how}}}", "ends"), folder / "a")
    assert (result["status"], result["return"]) == ("crashed", 0.0)
    assert result["crash"]["reason"].startswith(reason)
    assert result["crash"]["step"] == result["step"]


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(folder):
    config, metric = only(folder, "metric: {name: loss, goal: minimize}\nbase: {how: overflow}", "ends")
    missing = replace(config, settings=config.settings.model_copy(update={"device": "cuda:99"}))
    with pytest.raises(RunError, match="device is cuda:99, but"):
        run_program(missing, metric, folder / "a")
    assert not (folder / "a").exists()


def test_a_crash_names_the_first_operation_and_scores_what_the_metric_says(folder):
    text = "metric: {name: loss, goal: minimize, crash: 9}\nbase: {how: overflow, format: e5m10, observe: true}"
    result = run_program(*only(folder, text, "ends"), folder / "a")
    assert result["return"] == 9
    assert "overflow in mul (forward)" in result["crash"]["reason"]
    assert (folder / "a" / "numerics.csv").exists()
    config, metric = only(folder, "metric: {name: loss, goal: minimize}\nbase: {how: overflow, format: e5m10}", "ends")
    assert run_program(config, metric, folder / "b")["return"] is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "IndexError: list index out of range"),
        ("exits", "it called sys.exit(3)"),
        ("text", "must be a number, or a tensor with one, got 'well'"),
        ("missing", "returns loss; the metric is score"),
    ],
)
def test_failures_are_told_with_the_users_own_traceback(folder, how, message):
    config, metric = only(folder, f"base: {{how: {how}}}", "ends")
    with pytest.raises(ProgramError) as caught:
        run_program(config, metric, folder / "a")
    first, *rest = str(caught.value).splitlines()
    assert message in first
    assert not any("sweeps" in line for line in rest)
    if how == "raises":
        assert rest[0] == "Traceback (most recent call last):"
        assert rest[2].strip() == "[][0]"
    assert not (folder / "a" / "result.json").exists()


def test_a_failed_run_does_not_stop_the_sweep(folder):
    made = plan(folder, "grid: {how: [raises, logged, exits]}", "ends")
    watcher = Watcher()
    summary = run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=watcher)
    assert (summary.done, summary.crashed, summary.failed) == (0, 1, 2)
    failed = [reason for kind, *_, reason in watcher.events if kind == "failed"]
    assert "[][0]" in failed[0]
    assert [reason for kind, state, _, reason in watcher.events if state == "crashed"] == ["loss is nan"]


def test_what_a_run_does_to_its_process_does_not_reach_the_next(folder, monkeypatch):
    """A run changes the working directory, and reads standard input, which is at its end, not the worker's orders."""
    made = plan(folder, "metric: first\ngrid: {x: [0, 1, 2]}", "unruly")
    monkeypatch.chdir(folder)
    summary = run_sweep(made, Path("out"), executor=LocalProcesses(1), watcher=Watcher())
    assert (summary.done, summary.crashed, summary.failed) == (3, 0, 0)
    results = [json.loads(path.read_bytes()) for path in Path("out").glob("runs/*/result.json")]
    assert [one["values"] for one in results] == [{"first": 1.0, "read": 0.0}] * 3
    assert not list((folder / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("base: {lr: fast}", "train", "s.yaml:2:12: lr: must be a valid number, got 'fast'"),
        ("base: {lr: .inf}", "train", "s.yaml:2:12: lr: must be a finite number, text,"),
        ("base: {lr: 2020-01-01}", "train", "s.yaml:2:12: lr: must be"),
        ("base: {kind: fancy}", "train", "s.yaml:2:14: kind: must be 'plain'"),
        ("grid: {stepps: [1]}", "train", "s.yaml:2:8: unknown key in grid 'stepps'; did you mean 'steps'?"),
        ("grid: {fixes: [all]}", "train", "unknown key in grid 'fixes'"),
        ("base: {format: e5m1O}", "train", "s.yaml:2:16: format: unknown format 'e5m1O'"),
        ("base: {format: 'nowhere:x'}", "train", "nowhere:x: cannot be imported"),
        ("base: {rounding: sometimes}", "train", "s.yaml:2:18: rounding: policy: unknown rounding"),
        ("base: {policy: {rounding: up}, rounding: up}", "train", "rounding is in policy, and is also a key"),
        ("base: {device: cuda}", "train", "needs a parameter device"),
        ("metric: {goal: best}", "train", "s.yaml:2:9: metric.goal: must be 'maximize' or 'minimize'"),
        ("metric: [mean]", "train", "s.yaml:2:9: metric must be a name, or a mapping with the keys name, goal"),
        ("", "strange", "x is annotated with <class 'torch.Tensor'>, which YAML cannot express"),
        ("", "anything", "**options cannot be given by name"),
        ("", "needs", "needs lr, which has no default: set it in base or grid"),
        ("", "named", "the parameter base has the name of a section; rename it"),
        ("", "absent", "absent does not exist in it"),
        ("", "small", "small is no function in it"),
        ("", "a b", "must be FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("program: 3", "train", "duplicate key 'program'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(folder, text, function, message):
    with pytest.raises(SweepFileError) as caught:
        plan(folder, text, function)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:", "SyntaxError"),
        ("raise ValueError('of mine')", "ValueError: of mine"),
        ("import sys\nsys.exit(1)", "it called sys.exit(1)"),
        ("import nothing_like_it", "No module named 'nothing_like_it'"),
        ("def f(x: 'Nothing' = 1): ...", "its annotations cannot be read (name 'Nothing' is not defined)"),
    ],
)
def test_programs_that_cannot_be_imported(tmp_path, source, message):
    name = f"broken_{abs(hash(source)) % 10**8}.py"
    (tmp_path / name).write_text(source)
    (tmp_path / "s.yaml").write_text(f"program: {name}:f\n")
    with pytest.raises(SweepFileError) as caught:
        plan_file(tmp_path / "s.yaml")
    assert message in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_metric_needs_a_program(tmp_path):
    (tmp_path / "s.yaml").write_text("metric: accuracy\n")
    with pytest.raises(SweepFileError, match="metric is for programs"):
        plan_file(tmp_path / "s.yaml")


def test_a_program_in_a_module_and_in_an_included_file(folder):
    (program,) = folder.glob("p*.py")
    (folder / "shared.yaml").write_text(
        f"program: {program.stem}:train\nmetric: {{name: mean, unit: m}}\nbase: {{lr: 2}}"
    )
    (folder / "top.yaml").write_text("include: ./shared.yaml\nmetric: {crash: -1}\ngrid: {steps: [1, 2]}\n")
    made = plan_file(folder / "top.yaml", ["seed=[1, 2]", "metric.range=[0, 4]"])
    assert [run.config.arguments for run in made.runs] == [{"lr": 2.0, "steps": n} for n in (1, 1, 2, 2)]
    assert made.metric.as_json() == {
        "name": "mean", "goal": "maximize", "crash": -1.0, "unit": "m", "range": [0.0, 4.0],
    }  # fmt: skip
    with pytest.raises(SweepFileError, match="unknown key 'program'"):
        plan_file(folder / "top.yaml", ["program=x.py:f"])


def test_a_format_of_ones_own(folder):
    (program,) = folder.glob("p*.py")
    config, metric = only(folder, f"base: {{format: '{program.stem}:small'}}", "whole")
    assert config.format == f"{program.stem}:small"
    assert plan(folder, f"base: {{format: '{program.stem}:small'}}", "whole").runs[0].id.startswith("whole-p")
    assert run_program(config, metric, folder / "a")["return"] == 0.3125
    with pytest.raises(SweepFileError, match=r"must be a roundoff\.Format, is a str"):
        only(folder, f"base: {{format: '{program.stem}:E'}}", "whole")


def test_a_changed_program_is_told(folder):
    made = plan(folder, "base: {steps: 1}\nmetric: mean")
    watcher = Watcher()
    run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=watcher)
    assert watcher.notices == []
    marker = json.loads((folder / "out" / "sweep.json").read_text())
    (folder / "out" / "sweep.json").write_text(json.dumps(marker | {"source": "of before"}))
    run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=watcher)
    assert len(watcher.notices) == 1
    assert "has changed since" in watcher.notices[0]


def test_another_metric_scores_the_runs_that_have_ended(folder):
    text = "base: {steps: 1}\nmetric: "
    run_sweep(plan(folder, text + "mean"), folder / "out", executor=ForkedWorkers(1), watcher=Watcher())
    made, watcher = plan(folder, text + "{name: first, goal: minimize, crash: 5}"), Watcher()
    summary = run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=watcher)
    assert (summary.done, watcher.events) == (1, [])
    assert watcher.notices == ["1 runs that had ended are scored by first now"]
    result = json.loads((folder / "out" / "runs" / made.runs[0].id / "result.json").read_text())
    assert result["return"] == result["values"]["first"]
    assert result["metric"]["name"] == "first"
    with pytest.raises(SweepError, match=r"has returned .*, and no finite nothing, which"):
        run_sweep(plan(folder, text + "nothing"), folder / "out", executor=ForkedWorkers(1), watcher=watcher)


def test_a_process_that_a_program_forks_logs_nothing(folder):
    from roundoff.agents.run.profile import Stopwatch
    from roundoff.agents.run.reporter import Reporter
    from roundoff.runs.folder import RunDirectory
    from roundoff.simulate import Simulation
    from roundoff.sweeps.programs.recorder import ProgramRecorder

    reporter = Reporter(RunDirectory(folder), Stopwatch(), None, None)
    recorder = ProgramRecorder(reporter, "m", Simulation("fp32"), StopRequest())
    with recorder, part_of(recorder):
        roundoff.log(1, loss=1.0)
        if not (child := os.fork()):
            roundoff.log(2, loss=2.0)
            os._exit(0 if roundoff.restore() is None else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert [record["step"] for record in lines(folder / "metrics.jsonl")] == [1]


def test_a_folder_of_another_run_is_refused(folder):
    run_program(*only(folder, "base: {steps: 1}\nmetric: mean"), folder / "a")
    with pytest.raises(RunError, match="steps is 1 there and 2 here"):
        run_program(*only(folder, "base: {steps: 2}\nmetric: mean"), folder / "a")


def test_a_config_that_the_program_no_longer_takes(folder):
    config, _ = only(folder)
    with pytest.raises(SweepError, match="has no parameter gone; it has changed"):
        config_of(config.program, config.as_json() | {"gone": 1})


@pytest.mark.parametrize(
    ("what", "kind"), [("array", "numpy.ndarray"), ("scalar", "numpy.float64"), ("enum", "Number"),
                       ("default", "collections.defaultdict")],
)  # fmt: skip
def test_what_could_not_be_restored_is_refused_at_the_first_checkpoint(folder, what, kind):
    with pytest.raises(ProgramError, match=rf"state\['x'\]\[0\] is a .*{kind}; a checkpoint holds tensors"):
        run_program(*only(folder, f"base: {{what: {what}}}", "saves"), folder / "a")


@pytest.mark.parametrize("what", ["torch", "plain"])
def test_what_checkpoints_hold_comes_back(folder, what):
    config, metric = only(folder, f"base: {{what: {what}}}", "saves")
    with pytest.raises(ProgramError, match="stopped"):
        run_program(config, metric, folder / "a")
    assert run_program(config, metric, folder / "a")["return"] == 1.0


def test_outside_of_a_sweep_nothing_happens():
    roundoff.log(1, loss=torch.ones(3))
    roundoff.checkpoint(object())
    assert roundoff.restore() is None


@pytest.mark.parametrize(
    ("step", "values", "error", "message"),
    [
        (1, {"loss": "low"}, TypeError, "loss must be a number"),
        (1, {"loss": torch.ones(2)}, TypeError, r"got a Tensor of shape \(2,\)"),
        (1.5, {}, TypeError, "step must be an integer, got 1.5"),
        (-1, {}, ValueError, "step must be 0 or more"),
        (1, {"kind": 1}, ValueError, "no value can be called kind"),
    ],
)
def test_what_cannot_be_logged(folder, step, values, error, message):
    from roundoff.agents.run.profile import Stopwatch
    from roundoff.agents.run.reporter import Reporter
    from roundoff.runs.folder import RunDirectory
    from roundoff.simulate import Simulation
    from roundoff.sweeps.programs.recorder import ProgramRecorder

    with (
        ProgramRecorder(
            Reporter(RunDirectory(folder), Stopwatch(), None, None), "m", Simulation("fp32"), StopRequest()
        ) as recorder,
        part_of(recorder),
        pytest.raises(error, match=message),
    ):
        getattr(recorder, "log")(step, values)  # noqa: B009


def test_mutilated_files_are_plans_or_told_mistakes(folder):
    """A thousand files, each with a few characters changed, gone or doubled: no other error than SweepError."""
    (program,) = folder.glob("p*.py")
    text = (
        f"program: {program.name}:train\nmetric: {{name: mean, goal: minimize, crash: 9, range: [0, 1]}}\n"
        "base: {lr: 1e-3, kind: plain}\ngrid:\n  format: [fp32, e5m2, int8]\n  steps: [1, 2]\n  seed: [0, 1]\n"
        "exclude: [{format: fp32, seed: 1}]\n"
    )
    draw = random.Random(0)
    planned = 0
    for _ in range(1000):
        changed = list(text)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(changed))
            changed[at : at + draw.randint(0, 2)] = draw.choice(
                [[], list(text[at : at + 3]), [draw.choice("[]{}:,-.'\"\n x0é")]]
            )
        (folder / "m.yaml").write_text("".join(changed))
        try:
            planned += bool(plan_file(folder / "m.yaml").runs)
        except SweepError as error:
            assert str(error)
    assert planned > 50


def test_generators_are_seeded_and_restored():
    from roundoff.sweeps.programs.recorder import _generators, _set_generators, seed_generators

    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    seed_generators(3)
    first, states, second = drawn(), _generators(), drawn()
    _set_generators(states)
    assert drawn() == second
    seed_generators(3)
    assert drawn() == first
    assert Path(__file__).exists()
