"""Everything that is written is readable again, whatever names, numbers and texts a program comes up with."""

import json
import math
import shutil
import warnings
import zipfile
from collections import OrderedDict
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_runs import write_run, write_sweep

from roundoff.agents.errors import FileError, RunError
from roundoff.agents.run import checkpoint
from roundoff.agents.run.restored import take_over
from roundoff.analysis import AnalysisError, against, plot, read_experiment, report, table
from roundoff.analysis.runs.collect import collect
from roundoff.files import encodable, json_text, parse_json
from roundoff.runs.folder import RunDirectory
from roundoff.sweeps import plan_file
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.folder.status import read_status
from roundoff.sweeps.programs.run import ProgramError, run_program
from roundoff.sweeps.subjects.program import Program

PROGRAM = """
from typing import Any

import roundoff

WANTED = []


def train(y: Any = 0, seed: int = 0):
    wanted = WANTED.pop(0)
    for step, values in wanted["logged"]:
        roundoff.log(step, **values)
    if wanted["state"] is not None:
        roundoff.checkpoint(wanted["state"], every=0)
    if wanted["raised"] is not None:
        raise ValueError(wanted["raised"])
    return wanted["returned"]
"""
NAMES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["\ud800", "a $\\foo$ b", "$", "=1+1", "-x", "\x1b[2J", "\u202e", "id", "step", "kind", "return",
                     "task", "format", "seed", "value_x", "x" * 5000, "", "\n", "\0", 'a,b"c', "<b>", "numerics"]),
)  # fmt: skip
NUMBERS = st.one_of(
    st.floats(), st.integers(-(2**70), 2**70), st.booleans(), st.sampled_from([1e308, -1e308, 5e-324, 2**63, -0.0])
)
KEYS = st.one_of(NAMES, st.integers(0, 9))
PLAIN = st.one_of(st.none(), st.integers(), NUMBERS, NAMES)
GIVEN = st.one_of(
    NUMBERS.filter(math.isfinite), st.text(max_size=9).filter(lambda text: text == encodable(text)),
    st.lists(st.integers(), max_size=2), st.none(),
)  # fmt: skip
STEPS = st.one_of(st.integers(0, 50), st.integers(2**62, 2**63 - 1))
LOGGED = st.dictionaries(NAMES.filter(lambda name: name not in ("kind", "step", "id")), NUMBERS, max_size=3)
RUNS = st.fixed_dictionaries(
    {
        "logged": st.lists(st.tuples(STEPS, LOGGED), max_size=3),
        "state": st.none() | st.dictionaries(NAMES, PLAIN | st.lists(PLAIN, max_size=2), max_size=2),
        "raised": st.none() | NAMES,
        "returned": st.dictionaries(KEYS, NUMBERS, max_size=3).map(lambda values: {"score": 1.0, **values}),
    }
)
WORST = {
    "logged": [
        (
            2**63 - 1,
            {"\ud800": 1.0, "a $\\foo$ b": 2.0, "": 3.0, "=1+1": math.inf, "n" * 3000: 5, "x": 1, "y": True, "role": 2},
        ),
        (1, {}),
    ],
    "state": {"\ud800": 2**70},
    "raised": None,
    "returned": {"score": 2**70, "\ud800": 3.0, 5: 6, "$x": 1, "inf": math.inf, "id": 1, "": 2},
}
NO_MORE = {"suppress_health_check": list(HealthCheck), "deadline": None, "database": None}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The folder of a program, and what it is told to do, run by run."""
    folder = tmp_path_factory.mktemp("readable")
    (folder / "readable_program.py").write_text(PROGRAM)
    return folder, Program.named("readable_program.py:train", folder).load().__globals__["WANTED"]


def written(program, wanted, given):
    """A new folder of a sweep whose runs have done what was wanted, and its plan."""
    folder, told = program
    shutil.rmtree(folder / "out", ignore_errors=True)
    cases = [{"y": one, "seed": number} for number, one in enumerate(given)]
    sweep = {"name": "s", "program": "readable_program.py:train", "cases": cases, "grid": {"format": ["fp32", "e5m10"]}}
    (folder / "s.yaml").write_text(json.dumps(sweep))
    made, store = plan_file(folder / "s.yaml"), SweepDirectory(folder / "out")
    store.claim(made)
    for number, run in enumerate(made.runs):
        told[:] = [wanted[number % len(wanted)]]
        try:
            run_program(run.config, made.metric, store.run_path(run))
        except ProgramError as error:
            store.record_failure(run, str(error))
    return folder / "out", made, store


def read(out, made, store):
    """Everything that reads a folder, but for what draws; returns what it warns of."""
    store.claim(made)
    for run in made.runs:
        RunDirectory(store.run_path(run)).check(run.config)
        assert store.damage(run) == ""
        if (store.run_path(run) / "checkpoint.pt").exists():
            checkpoint.load(store.run_path(run) / "checkpoint.pt")
    status = read_status(out)
    assert {one.state for one in status.runs} <= {"done", "crashed", "failed"}
    said = [*status.warnings, *read_experiment(out).warnings]
    for name in ("records.parquet", "records.csv"):
        records, runs, warned = collect([out], out / name)
        said += warned
        assert runs == len(made.runs)
        assert records == sum(len(path.read_bytes().splitlines()) for path in out.glob("runs/*/metrics.jsonl"))
    with warnings.catch_warnings(record=True) as caught:
        table(out)
    with suppress(AnalysisError):  # none has ended
        against(out)
    return said + [str(one.message) for one in caught if one.category is UserWarning]


@settings(max_examples=15, **NO_MORE)
@given(st.lists(RUNS, min_size=1, max_size=3), st.lists(GIVEN, min_size=1, max_size=3, unique_by=repr))
def test_what_a_program_writes_is_readable(program, wanted, given):
    assert read(*written(program, wanted, given)) == []


def test_the_worst_is_readable_and_drawn(program):
    out, made, store = written(program, [WORST], [2**64 - 1, "text", -1.5])
    assert read(out, made, store) == []
    plot(out, types=["svg"], figures=["degradation", "curves", "training", "heatmap"])
    report(out)


@given(st.recursive(PLAIN.filter(lambda x: not (isinstance(x, float) and not math.isfinite(x))),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)))  # fmt: skip
def test_json_is_readable(value):
    found = parse_json(json_text(value).encode())
    assert json_text(found) == json_text(value)


@settings(**NO_MORE)
@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_a_checkpoint_with_damaged_contents_and_right_checksums_is_one_message(tmp_path_factory, place, bits):
    folder = tmp_path_factory.getbasetemp()
    state = {"x": torch.ones(3), "deep": [OrderedDict(a=1), {"b": (1.5, "t", None)}], "n": 2**70}
    checkpoint.save(folder / "whole.pt", state)
    with zipfile.ZipFile(folder / "whole.pt") as archive, zipfile.ZipFile(folder / "damaged.pt", "w") as damaged:
        for part in archive.infolist():
            content = bytearray(archive.read(part))
            if part.filename.endswith("data.pkl"):
                content[place % len(content)] ^= bits
            damaged.writestr(part, bytes(content))
    with suppress(FileError):
        checkpoint.load(folder / "damaged.pt")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ["sparse", "meta", "int8", "quantized", "complex", "float64", "text", "none"])
def test_weights_of_another_kind_are_refused(kind):
    x = torch.ones(2, 2)
    strange = {
        "sparse": x.to_sparse,
        "meta": lambda: x.to("meta"),
        "int8": lambda: x.to(torch.int8),
        "quantized": lambda: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8),
        "complex": lambda: x.to(torch.complex64),
        "float64": x.double,
        "text": lambda: "text",
        "none": lambda: None,
    }[kind]()
    with pytest.raises(RunError, match=r"x is .* there, and should be float32 \(2, 2\)"):
        take_over({"x": strange}, {"x": torch.zeros(2, 2)}, "agent.pt")


def test_numbers_that_no_table_holds_end_no_command(tmp_path):
    """In files of others, or of versions that let them be written."""
    runs = [write_run(tmp_path, fmt, seed, 0.9) for fmt in ("fp32", "e5m10") for seed in range(4)]
    for number, config in enumerate([{"seed": 2**63}, {"y": 2**64}, {"y": "text"}, {"y": [1, 2]}, {"y": 0.5}]):
        runs[number]["config"] |= config
    del runs[5]["config"]["seed"]
    result = tmp_path / "runs" / runs[6]["id"] / "result.json"
    crash = {"status": "crashed", "crash": {"step": 2**65, "reason": "?"}}
    result.write_text(json.dumps(json.loads(result.read_text()) | crash))
    with (tmp_path / "runs" / runs[7]["id"] / "metrics.jsonl").open("a") as file:
        for record in (
            {"kind": "log", "step": 2**63, "x": 1}, {"kind": "log", "step": 10**400, "x": 1},
            {"kind": "numerics", "step": 5, "forward": {"exponents": {"3": 10**400}}},
        ):  # fmt: skip
            file.write(json.dumps(record) + "\n")
    write_sweep(tmp_path, runs)
    assert {run.state for run in read_status(tmp_path).runs} == {"done", "crashed"}
    for name in ("records.parquet", "records.csv"):
        assert collect([tmp_path], tmp_path / name)[1] == len(runs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(table(tmp_path)) == len(runs) - 1
    said = [str(one.message) for one in caught if one.category is UserWarning]
    assert sum("its seed is not a 64-bit integer; the run is left out" in one for one in said) == 1
    assert sum("is not the result of a run; left out" in one for one in said) == 1
    assert sum("this line is damaged; left out" in one for one in said) == 3
    with suppress(AnalysisError):  # conditions have nothing in common
        against(tmp_path)
    plot(tmp_path, types=["svg"], figures=["training"])
    report(tmp_path)
