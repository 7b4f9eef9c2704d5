"""``roundoff.sweep``: a function of any kind, from Python, as a table."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from processes import PATIENCE

import roundoff
from roundoff.sweeps import SweepError, SweepFileError

ERROR = {"name": "error", "goal": "minimize", "crash": 1}


def third(x: float = 1.0):
    found = torch.tensor(x) / 3
    return {"error": (found - x / 3).abs(), "found": found}


def test_a_function_of_a_test(tmp_path):
    grid = {"format": ["fp32", roundoff.Format.parse("fp8_e5m2")], "x": np.array([1.0, 2.0]), "seed": range(2)}
    table = roundoff.sweep(third, grid, metric=ERROR, out=tmp_path / "out")
    assert len(table) == 8
    assert set(table["status"]) == {"done"}
    assert set(table[table["format"] == "e5m2"]["value_found"]) == {0.3125, 0.625}
    assert roundoff.sweep(third, grid, metric=ERROR, out=tmp_path / "out").equals(table)  # nothing is repeated


def test_ranges_as_in_sweep_files(tmp_path):
    table = roundoff.sweep(third, {"format": {"e5mX": "2..4"}, "seed": "0..1"}, metric="found", out=tmp_path / "out")
    assert sorted(set(table["format"])) == ["e5m2", "e5m3", "e5m4"]
    assert len(table) == 6


def test_a_function_within_a_function(tmp_path):
    def train(y=2):
        return y

    assert roundoff.sweep(train, {"y": [1, 5]}, out=tmp_path / "out")["score"].tolist() == [1.0, 5.0]
    with pytest.raises(SweepError, match="is in no file that other processes could import; use workers=1"):
        roundoff.sweep(train, {"y": [1]}, out=tmp_path / "more", workers=2)


def test_what_fails_is_told_and_the_others_are_run(tmp_path, capsys):
    def train(y=2):
        return [0, 7.0][y]

    with pytest.raises(SweepError, match=r"1 runs failed: IndexError: list index out of range"):
        roundoff.sweep(train, {"y": [5, 1]}, out=tmp_path / "out")
    told = capsys.readouterr().out
    assert told.count("return [0, 7.0][y]") == 1
    assert "[2/2] train-fp32-s0-" in told
    assert roundoff.sweep(train, {"y": [1]}, out=tmp_path / "out")["score"].dropna().tolist() == [7.0]


@pytest.mark.parametrize(
    ("train", "grid", "error", "message"),
    [
        (lambda x: x, {"x": [1]}, SweepError, "takes a function with a name"),
        (third, {"x": [object()]}, SweepError, "cannot be written into a sweep file"),
        (third, {"z": [1]}, SweepFileError, "roundoff.sweep: unknown key in grid 'z'"),
        (third, {"x": []}, SweepFileError, "grid.x must be a list of at least one value"),
        ("nothing.py:f", {"seed": [1]}, SweepError, "there is no file"),
    ],
)
def test_mistakes(tmp_path, train, grid, error, message):
    with pytest.raises(error, match=message):
        roundoff.sweep(train, grid, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("forked_interpreters")
def test_two_processes_share_the_runs_of_one_folder(tmp_path):
    script = tmp_path / "shared.py"
    script.write_text(
        "import time, roundoff\ndef train(seed: int):\n    print('runs', seed); time.sleep(0.5); return seed\n"
        f"print('sum', roundoff.sweep(train, {{'seed': '0..5'}}, out={str(tmp_path / 'out')!r})['score'].sum())\n"
    )
    both = [subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE)[0].splitlines() for process in both]
    assert [lines[-1] for lines in told] == ["sum 15.0"] * 2
    ran = sorted(line for lines in told for line in lines if line.startswith("runs"))
    assert ran == [f"runs {seed}" for seed in range(6)]


def test_a_script_with_workers_and_its_guard(tmp_path, request):
    lines = (
        "import roundoff", "def train(y: float = 2):", "    return y", "GUARD",
        f"    table = roundoff.sweep(train, {{'y': [1, 2]}}, out={str(tmp_path / 'out')!r}, workers=2)",
        "    print(table['score'].tolist())",
    )  # fmt: skip
    script = tmp_path / "script.py"
    script.write_text("\n".join(lines).replace("GUARD", "if __name__ == '__main__':"))
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "[1.0, 2.0]"
    request.getfixturevalue("forked_interpreters")  # this one starts no workers
    script.write_text("\n".join(lines).replace("GUARD", "if True:"))
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "call it under if __name__ == '__main__':" in told.stderr
