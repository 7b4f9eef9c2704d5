"""``roundoff blame program=FILE.py:FUNCTION``: a sweep's program as what is blamed."""

import math

import pytest
from forked import fork_command

from roundoff.cli import main
from roundoff.simulate.scripts.trial import TrialOutcome
from roundoff.sweeps.errors import SweepError
from roundoff.sweeps.programs.called import argument_for, config_from

PROGRAM = """
import torch

def train(scale: float = 1.0, steps: int = 3):
    total = torch.zeros(())
    for _ in range(steps):
        total = total + torch.exp(torch.tensor(-9.0)) * scale
    return {"total": total}

def apart(arithmetic, steps: int = 3):
    tenth = torch.tensor(0.1) * 3
    with arithmetic:
        inside = torch.exp(torch.tensor(-9.0))
    outside = torch.tensor(0.1) * 3
    assert tenth == outside
    return inside

"""


@pytest.fixture
def folder(tmp_path, monkeypatch, forked_interpreters):
    (tmp_path / "mine.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blame(folder, *arguments):
    return fork_command("blame", *arguments, cwd=folder)


def test_a_function_is_blamed_and_may_enter_its_arithmetic_itself(folder):
    run = blame(folder, "program=mine.py:apart", "format=e4m3", "steps=2", "--measure", "value>0.0001")
    assert run.returncode == 0, run.stderr
    assert "in e4m3: value 0, fails" in run.stderr
    assert "exp  needs " in run.stdout


def test_numbers_that_are_not_finite_are_told_by_a_trial(tmp_path):
    TrialOutcome(logged={"value": math.nan, "error": 0.1}).write(str(tmp_path / "outcome.json"))
    logged = TrialOutcome.read(tmp_path / "outcome.json").logged
    assert math.isnan(logged["value"])
    assert logged["error"] == 0.1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["program=mine.py:train"], "give a measure to reach"),
        (["program=mine.py:train", "--seeds", "2", "--measure", "total>1"], "leave out --config"),
        (["format=e4m3", "--measure", "total>1"], "is about programs"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["roundoff", "blame", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["program=mine.py:train", "wide=3"], "has no parameter wide"),
        (["program=mine.py:train", "steps=many"], "must be a valid integer, got 'many'"),
        (["program=mine.py:none"], "none"),
        (["program"], "must be key=value"),
    ],
)
def test_wrong_arguments_of_a_program_are_named(folder, arguments, said):
    with pytest.raises(SweepError, match=said):
        config_from(arguments)


def test_a_config_is_told_as_one_argument(folder):
    config = config_from(["program=mine.py:train", "format=e5m2", "scale=0.5"])
    assert (config.format, config.arguments) == ("e5m2", {"scale": 0.5})
    assert '"mine.py:train"' in argument_for(config)
