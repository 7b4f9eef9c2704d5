"""Every record of every run in one table, and what cannot be read is said."""

import json
import resource

import pandas as pd
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest

from roundoff.analysis import AnalysisError
from roundoff.analysis.runs.collect import collect

CONFIG = {"task": "walker_walk", "seed": 0, "lr": 1, "fixes": ["hadam", "normal_fix"], "policy": {}, "native": False}
EVAL = {"kind": "eval", "step": 2000, "return_mean": 1.5, "return_std": 0.5, "returns": [1.0, 2.0]}
TRAIN = {"kind": "train", "step": 1000, "episode_return": 3, "q": None, "critic_loss_scale": 1e4, "of_our_own": 7}
NUMERICS = {"kind": "numerics", "step": 2000, "weights": {"overflows": 1, "exponents": {"-3": 5}}}
DONE = {"status": "done", "return": 1.5, "return_std": 0.5, "step": 2000, "crash": None}


def add_run(folder, identity, metrics, **files):
    run = folder / "runs" / identity
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(metrics)
    for name, content in files.items():
        (run / f"{name}.json").write_text(json.dumps(content))
    return run


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "sweep"
    runs = [{"id": name, "config": CONFIG | {"seed": seed, "lr": lr}} for name, seed, lr in RUNS]
    add_run(folder, "whole", lines(TRAIN, EVAL, NUMERICS), result=DONE)
    add_run(folder, "torn", lines(TRAIN) + '{"kind": "tra')
    (folder / "sweep.json").write_text(json.dumps({"layout": 1, "name": "mine", "runs": runs}))
    return folder


RUNS = (("whole", 0, 1), ("torn", 1, 0.5), ("not begun", 2, 1))


def test_a_row_for_each_record_with_the_settings_of_its_run(sweep, tmp_path):
    rows, runs, warnings = collect([sweep], tmp_path / "all.parquet")
    assert (rows, runs) == (4, 3)
    assert [w for w in warnings if "torn" not in w] == []
    table = pq.read_table(tmp_path / "all.parquet")
    assert table.column_names[:7] == ["sweep", "run", "status", "kind", "step", "return_mean", "return_std"]
    train, evaluation, numerics, torn = table.to_pylist()
    assert {key: value for key, value in train.items() if value is not None} == {
        "sweep": "mine", "run": "whole", "status": "done", "kind": "train", "step": 1000, "episode_return": 3.0,
        "critic_loss_scale": 1e4, "of_our_own": 7.0, "config_task": "walker_walk", "config_seed": 0, "config_lr": 1.0,
        "config_fixes": '["hadam", "normal_fix"]', "config_policy": "{}", "config_native": False,
    }  # fmt: skip
    assert evaluation["returns"] == [1.0, 2.0]
    assert json.loads(numerics["numerics"]) == {"weights": NUMERICS["weights"]}
    assert (torn["run"], torn["status"], torn["config_seed"], torn["config_lr"]) == ("torn", "waiting", 1, 0.5)


def test_the_same_table_as_csv(sweep, tmp_path):
    collect([sweep], tmp_path / "all.parquet")
    assert collect([sweep], tmp_path / "all.CSV")[0] == 4
    table = pd.read_parquet(tmp_path / "all.parquet")
    table["returns"] = [None if value is None else json.dumps(list(value)) for value in table["returns"]]
    found = pd.read_csv(tmp_path / "all.CSV")
    pd.testing.assert_frame_equal(found, table, check_dtype=False)


def test_what_cannot_be_read_is_said_and_left_out(sweep, tmp_path):
    (sweep / "runs" / "stranger").mkdir()
    (sweep / "runs" / "stranger" / "result.json").write_text("{}")
    (sweep / "runs" / "figures").mkdir()  # not a run's
    damaged = add_run(sweep, "not begun", lines(EVAL) + "{]\n7\n" + lines(EVAL | {"return_mean": "much"}))
    (damaged / "result.json").write_text("{")
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    rows, runs, warnings = collect([foreign, sweep, tmp_path / "missing"], tmp_path / "all.parquet")
    assert (rows, runs) == (6, 3)
    said = "\n".join(warnings)
    for expected in (
        f"{foreign}: is not the folder of a sweep or a run; left out",
        f"{tmp_path / 'missing'}: is not the folder of a sweep or a run; left out",
        f"{sweep / 'runs' / 'stranger'}: is not in sweep.json; left out",
        "torn/metrics.jsonl:2: this line is torn (the run was killed as it wrote); left out",
        "not begun/metrics.jsonl:2: this line is damaged; left out",
        "not begun/metrics.jsonl:3: this line is damaged; left out",
        "not begun/result.json: is not JSON; left out",
        "not begun/metrics.jsonl: return_mean has other values than double; these are left out",
    ):
        assert expected in said
    assert len(warnings) == 8


RECORDS = (TRAIN, EVAL, TRAIN | {"of_our_own": 0.5, "another": None}, {"kind": "train", "step": 7, "mine": 1})


@pytest.mark.parametrize(
    "further", [lines(NUMERICS), lines(EVAL)[:-9], lines(EVAL | {"step": None}), lines(EVAL | {"note": "text"})]
)
def test_a_line_that_needs_care_changes_nothing_of_the_others(tmp_path, further):
    """Files of plain records are read as a whole; with such a line, one by one."""
    for name, content in (("plain", lines(*RECORDS)), ("with more", lines(*RECORDS) + further)):
        run = add_run(tmp_path, name, content, config={"config": CONFIG}, result=DONE)
        collect([run], tmp_path / f"{name}.parquet")
    plain, more = (pq.read_table(tmp_path / f"{name}.parquet").drop("run") for name in ("plain", "with more"))
    assert plain["of_our_own"].to_pylist() == [7.0, None, 0.5, None]
    assert {"another", "mine"} <= set(plain.column_names)
    assert more.select(plain.column_names).slice(0, len(RECORDS)).combine_chunks().equals(plain.combine_chunks())


def test_single_runs_and_mistakes(sweep, tmp_path):
    run = add_run(tmp_path, "alone", lines(EVAL), config={"config": CONFIG}, result=DONE)
    assert collect([run], tmp_path / "one.parquet")[:2] == (1, 1)
    with pytest.raises(AnalysisError, match=r"no run to collect.*\n.*not the folder of a sweep or a run"):
        collect([tmp_path], tmp_path / "none.parquet")
    (sweep / "sweep.json").write_text("[]")
    with pytest.raises(AnalysisError, match="is not the plan of a sweep"):
        collect([sweep], tmp_path / "none.parquet")
    with pytest.raises(AnalysisError, match="cannot be written"):
        collect([run], tmp_path / "nowhere" / "none.parquet")
    assert not list(tmp_path.glob("none*"))


def test_a_table_that_cannot_be_written_leaves_the_old_one(sweep, tmp_path):
    table = tmp_path / "all.parquet"
    table.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))  # as a full disk, with another reason
    try:
        with pytest.raises(AnalysisError, match=r"all.parquet: cannot be written \(.*; free space"):
            collect([sweep], table)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert table.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*"))


def test_files_of_many_runs_are_taken_apart_together(tmp_path, monkeypatch):
    """A damaged file costs those beside it nothing, and every record stays with its run."""
    calls = []
    monkeypatch.setattr(pj, "read_json", lambda *a, read=pj.read_json, **k: calls.append(1) or read(*a, **k))
    runs = [{"id": f"run{number:02}", "config": CONFIG | {"seed": number}} for number in range(30)]
    for number, run in enumerate(runs):
        add_run(tmp_path, run["id"], lines(*[TRAIN | {"q": float(number)}] * (number % 3)))
    (tmp_path / "sweep.json").write_text(json.dumps({"layout": 1, "name": "mine", "runs": runs}))

    def rows():
        rows, _, warnings = collect([tmp_path], tmp_path / "all.parquet")
        table = pd.read_parquet(tmp_path / "all.parquet")
        assert (table["q"] == table["config_seed"]).all()
        return rows, [warning.rpartition("/")[2] for warning in warnings]

    assert rows() == (30, [])
    assert len(calls) == 1
    with (tmp_path / "runs" / "run05" / "metrics.jsonl").open("a") as metrics:
        metrics.write("{]\n")
    assert rows() == (30, ["metrics.jsonl:3: this line is damaged; left out"])
