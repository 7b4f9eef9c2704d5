"""Ranges of numbers and formats, and whole numbers with an exponent; each mistake is one message with its place."""

import jsonschema
import pytest

from roundoff.sweeps import SweepFileError, plan_text
from roundoff.sweeps.language.located_yaml import parse
from roundoff.sweeps.language.plan import plan_run
from roundoff.sweeps.language.schema import sweep_schema

E5 = [f"e5m{width}" for width in range(1, 11)]


def values(text, key, *arguments, only=()):
    return [getattr(run.config, key) for run in plan_text(text, "a.yaml", arguments, only).runs]


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("grid: {seed: 0..9}", "seed", list(range(10))),
        ("grid:\n  seed: [7, 0..2, 9]", "seed", [7, 0, 1, 2, 9]),
        ("grid: {seed: 3..3}", "seed", [3]),
        ("grid: {format: {e5mX: 1..10}}", "format", E5),
        ("grid: {format: [fp32, {e5mX: 1..10}, {eXm7: 8..8}]}", "format", ["fp32", *E5, "e8m7"]),
        ("zip: {seed: 0..2, steps: [1e4, 20000, 3.5e4]}", "steps", [10_000, 20_000, 35_000]),
        ("grid: {seed: 0..9}\nexclude: [{seed: 0..7}]", "seed", [8, 9]),
        ("grid: {format: [{e5mX: 1..10}]}\nexclude: [{format: {e5mX: 2..10}}]", "format", ["e5m1"]),
        ("base: {steps: 1e4}", "steps", [10_000]),
        ("cases: [{steps: 1e4}, {steps: 2e4}]", "steps", [10_000, 20_000]),
        ("base: {lr: 1e-3}", "lr", [1e-3]),
        ("random: {draws: 3, seed: 0, values: {batch_size: {uniform: [1e3, 1e3]}}}", "batch_size", None),
    ],
)
def test_what_is_written_shorter(text, key, expected):
    if expected is None:  # bounds are whole numbers, too; these two are equal, which is another mistake
        with pytest.raises(SweepFileError, match="the lower one first"):
            values(text, key)
        return
    found = values(text, key)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert jsonschema.Draft202012Validator(sweep_schema()).is_valid(parse(text, "a.yaml").plain())


def test_draws_between_whole_numbers_with_exponents():
    text = "random: {{draws: 5, seed: 0, values: {{batch_size: {{log_uniform: [{}]}}}}}}"
    assert values(text.format("1e2, 1e4"), "batch_size") == values(text.format("100, 10000"), "batch_size")


def test_arguments():
    base = "base: {task: cartpole_swingup}"
    assert values(base, "seed", "seed=0..3") == [0, 1, 2, 3]
    assert values(base, "seed", "seed=[0..1, 5]") == [0, 1, 5]
    assert values(base, "seed", "grid.seed=0..3", only=["seed=2..7"]) == [2, 3]
    assert values(base, "format", "format={e5mX: 1..10}") == E5
    assert values(base, "steps", "steps=1e4") == [10_000]
    assert plan_run(None, ["steps=1e4"]) == plan_run(None, ["steps=10000"])


def test_the_same_runs_as_written_out():
    short = plan_text("grid: {format: {e5mX: 1..3}, seed: 0..1}\nbase: {steps: 1e4}", "a.yaml")
    long = plan_text("grid: {format: [e5m1, e5m2, e5m3], seed: [0, 1]}\nbase: {steps: 10000}", "a.yaml")
    assert short.runs == long.runs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {seed: 9..0}", "a.yaml:1:14: seed: the range 9..0 holds no number; the smaller one comes first"),
        ("grid:\n  seed: [1, 0..100000]", "a.yaml:2:13: seed: the range 0..100000 holds more than 100000 numbers"),
        ("base: {seed: 0..9}", "a.yaml:1:14: seed: must be a valid integer"),
        ("grid: {lr: 0..9}", "a.yaml:1:12: grid.lr must be a list of at least one value, got '0..9'"),
        ("grid: {lr: [0..9]}", "a.yaml:1:13: lr: must be a valid number"),
        ("grid: {steps: [1.5e0]}", "a.yaml:1:16: steps: must be a valid integer"),
        ("grid: {steps: [1e300]}", "a.yaml:1:16: steps: must be a valid integer"),
        ("base: {steps: -1e3}", "a.yaml:1:15: steps: must be greater than or equal to 1, got -1000"),
        ("grid: {seed: [0..3, 2]}", "a.yaml:1:21: seed: the value 2 is given twice (a.yaml:1:15)"),
        ("grid: {format: {e5m: 1..3}}", "a.yaml:1:16: format: 'e5m' must have one X, for the numbers"),
        ("grid: {format: {e5mX: 1}}", "a.yaml:1:23: format: e5mX must have a range of integers, such as 1..10"),
        ("grid: {format: {e5mX: 9..1}}", "a.yaml:1:23: format: the range 9..1 holds no number"),
        ("grid: {format: {e5mX: 52..53}}", "a.yaml:1:23: format: "),
        ("exclude: [{seed: 3..1}]\ngrid: {seed: [0]}", "a.yaml:1:18: seed: the range 3..1 holds no number"),
        ("grid: {sedd: 0..3}", "a.yaml:1:8: unknown key in grid 'sedd'"),
    ],
)
def test_a_mistake_is_one_message_with_its_place(text, message):
    with pytest.raises(SweepFileError) as found:
        plan_text(text, "a.yaml")
    assert str(found.value).startswith(message), found.value
    assert len(found.value.problems) == 1


def test_a_mistake_in_an_argument():
    for arguments, only in ((["seed=3..1"], []), ([], ["seed=3..1"])):
        with pytest.raises(SweepFileError) as found:
            plan_text("base: {}", "a.yaml", arguments, only)
        assert str(found.value) == (
            "argument 'seed=3..1': seed: the range 3..1 holds no number; the smaller one comes first"
        )


def test_the_schema_refuses_other_ranges():
    validator = jsonschema.Draft202012Validator(sweep_schema())
    for text in ("grid: {seed: 0-9}", "grid: {lr: 0..9}", "base: {seed: 0..9}", "grid: {format: {e5m: 1..3}}"):
        assert not validator.is_valid(parse(text, "a.yaml").plain()), text


def test_parameters_of_a_program(tmp_path):
    (tmp_path / "shortened.py").write_text(
        "def train(depth: int, label: str = 'a', rate: float = 0.1):\n    return rate\n"
    )
    text = "program: shortened.py:train\ngrid: {depth: 1..3, label: [1..3], format: {mxfp8_e4mX: 3..3}, rate: [1e1]}\n"
    runs = plan_text(text, str(tmp_path / "a.yaml")).runs
    assert [run.config.arguments for run in runs] == [
        {"depth": depth, "label": "1..3", "rate": 10.0} for depth in (1, 2, 3)
    ]
