"""The state of a run, under the same name in every command."""

import json

import pyarrow.parquet as pq

from roundoff.analysis import read_experiment
from roundoff.analysis.runs.collect import collect
from roundoff.sweeps.folder.status import read_status

CONFIG = {"task": "walker_walk", "format": "fp32", "seed": 0, "steps": 1000}
RESULT = {"status": "done", "return": 1.5, "return_std": 0.5, "step": 1000, "crash": None}
CRASH = RESULT | {"status": "crashed", "return": 0.0, "crash": {"step": 500, "reason": "the policy diverged"}}
FILES = {
    "done": {"result.json": json.dumps(RESULT)},
    "crashed": {"result.json": json.dumps(CRASH)},
    "torn": {"result.json": "{"},
    "odd": {"result.json": '{"status": "odd"}'},
    "failed": {"failed.json": '{"reason": "MemoryError"}'},
    "begun": {"metrics.jsonl": '{"kind": "eval", "step": 500, "return_mean": 1.0}\n'},
    "not-begun": None,
}


def test_a_run_is_in_the_same_state_for_every_command(tmp_path):
    for name, files in FILES.items():
        folder = tmp_path / "runs" / name
        if files is not None:
            folder.mkdir(parents=True)
            for file, content in ({"config.json": json.dumps({"config": CONFIG})} | files).items():
                (folder / file).write_text(content)
    runs = [{"id": name, "config": CONFIG} for name in FILES]
    (tmp_path / "sweep.json").write_text(json.dumps({"layout": 1, "name": "s", "description": "", "runs": runs}))
    states = {run.run: run.state for run in read_status(tmp_path).runs}
    assert set(states.values()) == {"done", "crashed", "failed", "waiting"}
    table = read_experiment(tmp_path).runs.set_index("id")
    assert table["status"].to_dict() == states
    assert (
        table.loc["torn", "reason"]
        == table.loc["odd", "reason"]
        == "result.json is damaged; delete it to repeat the run"
    )
    assert table.loc["failed", "reason"] == "MemoryError"
    (tmp_path / "runs" / "not-begun").mkdir()
    for name in FILES:  # a record each, so that each has a row
        (tmp_path / "runs" / name / "metrics.jsonl").write_text('{"kind": "eval", "step": 500}\n')
    collect([tmp_path], tmp_path / "all.parquet")
    rows = pq.read_table(tmp_path / "all.parquet", columns=["run", "status"]).to_pylist()
    assert {row["run"]: row["status"] for row in rows} == states
