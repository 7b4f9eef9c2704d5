"""The sections of sweep files, what they include, and arguments: what runs they make, and what mistakes are named."""

import copy
import json
import random
import string

import pytest

from roundoff.sweeps import SweepFileError, plan_file, plan_text
from roundoff.sweeps.language.located_yaml import parse
from roundoff.sweeps.language.plan import plan_run
from roundoff.sweeps.language.preset_files import includable_files

CASES = """
base: {format: e5m10, lr: 1e-4}
grid: {seed: [0, 1]}
cases:
  - {name: plain}
  - {name: fast, lr: 1e-3}
"""


def settings(plan, *keys):
    return [tuple(getattr(run.config, key) for key in keys) for run in plan.runs]


def complaints(text, *arguments, only=()):
    with pytest.raises(SweepFileError) as caught:
        plan_text(text, "f", arguments, only)
    assert len(str(caught.value).splitlines()) == len(caught.value.problems)
    return str(caught.value)


def test_run_ids_stay_as_they_were():
    """Run ids are those of 0.1.0; results on disk are found by them."""
    run = plan_text("base: {lr: 1e-3, tau: 0.01, fixes: [hadam]}\ngrid: {format: [e5m6], seed: [3]}", "f").runs[0]
    assert run.id == "cartpole_swingup-e5m6-s3-7b66e04327"


def test_lists_of_zip_go_together():
    plan = plan_text("zip: {task: [cartpole_swingup, walker_walk], action_repeat: [8, 2]}\ngrid: {seed: [0, 1]}", "f")
    assert settings(plan, "task", "action_repeat", "seed") == [
        ("cartpole_swingup", 8, 0), ("cartpole_swingup", 8, 1), ("walker_walk", 2, 0), ("walker_walk", 2, 1),
    ]  # fmt: skip
    assert plan.varying == ("task", "action_repeat", "seed")


def test_a_case_differs_from_the_base_and_has_a_name():
    plan = plan_text(CASES, "f")
    assert settings(plan, "seed", "lr") == [(0, 1e-4), (0, 1e-3), (1, 1e-4), (1, 1e-3)]  # as the file stands
    assert [run.case for run in plan.runs] == ["plain", "fast"] * 2


def test_draws_repeat_and_belong_to_runs_by_their_values_alone():
    tau = "tau: {uniform: [0.1, 1]}"
    text = f"random:\n  draws: 20\n  seed: 3\n  values:\n    lr: {{log_uniform: [1e-5, 1e-3]}}\n    {tau}\n"
    draws = settings(plan_text(text, "f"), "lr", "tau")
    assert draws[0] == (1.71e-5, 0.809)  # the same on every machine
    assert all(1e-5 <= lr <= 1e-3 and lr == float(f"{lr:.3g}") for lr, _ in draws)
    assert 4 <= sum(lr < 1e-4 for lr, _ in draws) <= 16  # uniform in the logarithm
    more = text.replace("draws: 20", "draws: 25").replace(tau, "batch_size: {uniform: [8, 64]}")
    more_draws = settings(plan_text(more, "f"), "lr", "batch_size")
    assert [lr for lr, _ in more_draws][:20] == [lr for lr, _ in draws]  # neither other keys nor more draws matter
    assert {type(size) for _, size in more_draws} == {int}
    assert settings(plan_text(text, "f", ["random.seed=4"]), "lr", "tau") != draws
    drawn = plan_text(text, "f").runs[0]
    assert plan_text(f"base: {{lr: {drawn.config.lr}, tau: {drawn.config.tau}}}", "f").runs[0].id == drawn.id


def test_exclusions():
    grid = "grid: {format: [fp32, fp16], fixes: [all, none], seed: [0, 1]}\n"
    plan = plan_text(grid + "exclude: [{format: fp32, fixes: none}, {format: e5m10, seed: [1, 2]}]", "f")
    assert [(f, len(fixes), seed) for f, fixes, seed in settings(plan, "format", "fixes", "seed")] == [
        ("fp32", 6, 0), ("fp32", 6, 1), ("e5m10", 6, 0), ("e5m10", 0, 0),
    ]  # fmt: skip
    assert len(plan_text(CASES + "exclude: [{case: fast, seed: 1}]", "f").runs) == 3
    # what cannot run may be excluded
    plan = plan_text(
        "grid: {native: [true, false], format: [e5m10, e5m5]}\nexclude: [{native: true, format: e5m5}]", "f"
    )
    assert len(plan.runs) == 3


def test_later_files_win_key_by_key(tmp_path):
    (tmp_path / "first.yaml").write_text(
        "name: first\nbase: {lr: 1e-3, tau: 0.1}\ngrid: {seed: [0, 1], format: [fp32]}"
    )
    (tmp_path / "second.yaml").write_text("include: first.yaml\nbase: {tau: 0.2}\nexclude: [{seed: 7}]")
    (tmp_path / "own.yaml").write_text("include: [second.yaml]\ngrid: {lr: [1, 2], seed: [5]}\nbase: {format: e5m5}")
    plan = plan_file(tmp_path / "own.yaml")
    assert plan.name == "own"
    assert settings(plan, "seed", "lr", "tau", "format") == [(5, 1.0, 0.2, "e5m5"), (5, 2.0, 0.2, "e5m5")]
    assert plan_file(tmp_path / "own.yaml", ["lr=[3]"]).runs[0].config.lr == 3.0


def test_files_that_include_each_other_are_named(tmp_path):
    (tmp_path / "a.yaml").write_text("include: b.yaml")
    (tmp_path / "b.yaml").write_text("include: [./a.yaml, missing.yaml]")
    with pytest.raises(SweepFileError) as caught:
        plan_file(tmp_path / "a.yaml")
    assert "b.yaml:1:11: files include each other in a circle" in str(caught.value)
    assert "missing.yaml: cannot be read" in str(caught.value)


def test_arguments_replace_sections_and_choose_runs():
    assert settings(plan_text(CASES, "f", ["cases=[{tau: 1}]"]), "lr", "tau", "seed") == [
        (1e-4, 1.0, 0),
        (1e-4, 1.0, 1),
    ]
    assert settings(plan_text(CASES, "f", [], ["case=fast", "seed=[1, 2]"]), "lr", "seed") == [(1e-3, 1)]
    assert settings(plan_text(CASES, "f", ["seed=7"], ["lr=1e-3"]), "lr", "seed") == [(1e-3, 7)]
    assert settings(plan_text("base: {lr: -1}", "f", ["lr=[1]"]), "lr") == [(1.0,)]  # nobody asks what was replaced
    drawn = "random: {draws: 3, seed: 0, values: {lr: {choice: [1, 2]}}}"
    assert len(plan_text(drawn, "f", ["lr=5"]).runs) == 1
    assert len(plan_text(CASES + "exclude: [{seed: 1}]", "f", ["seed=4"]).runs) == 2  # nothing is left to exclude


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("zip: {seed: [0, 1], lr: [1]}", ["f:1:25: the lists of zip", "lr has 1 values, seed has 2"]),
        ("zip: {seed: [0, 0], lr: [1, 1]}", ["f:1:17: the combination", "is given twice (f:1:14)"]),
        ("zip: {seed: [0]}\ngrid: {seed: [1]}", ["f:2:14: seed is in grid and in zip (f:1:13)"]),
        ("cases: {lr: 1}", ["f:1:8: cases must be a list"]),
        ("cases: [{name: 3, lrr: 1}]",
         ["f:1:16: cases[0].name must be text, got 3", "f:1:19: unknown key in cases[0] 'lrr'"]),
        ("cases: [{name: a}, {name: a, lr: 1}]", ["f:1:27: the case 'a' is given twice (f:1:16)"]),
        ("cases: [{lr: 1}, {lr: 1}]", ["f:1:18: the case", "is given twice (f:1:9)"]),
        ("random: {draws: 0, sed: 1, values: {lr: {normal: [0, 1]}}}",
         ["f:1:17: random.draws must be an integer from 1", "f:1:20: unknown key in random 'sed'; did you mean",
          "f:1:42: unknown key in random.values.lr 'normal'"]),
        ("random: {seed: 0, values: {lr: {choice: [1]}}}", ["f:1:9: random needs draws, an integer from 1"]),
        ("random: {draws: 1, seed: 0}", ["f:1:9: random needs values: a distribution for at least one key"]),
        ("random: {draws: 1, seed: 0, values: {lr: {choice: [1], uniform: [1, 2]}}}",
         ["f:1:42: random.values.lr must be one of uniform, log_uniform, choice, such as"]),
        ("random: {draws: 1, seed: 0, values: {lr: {log_uniform: [0, 1]}, tau: {uniform: [0.5, 2]}}}",
         ["f:1:56: random.values.lr.log_uniform must be two numbers, the lower one first, both above 0",
          "f:1:86: tau: must be less than or equal to 1, got 2"]),
        ("grid: {seed: [0]}\nexclude: [{seed: 1}]", ["f:2:11: excludes nothing: no run has seed: 1"]),
        ("grid: {seed: [0]}\nexclude: [{seed: 0}]", ["f: no run is left"]),
        ("grid: {seed: [0]}\nexclude: [{format: fp23}, {}]",
         ["f:2:20: format: unknown", "f:2:27: exclude[1] must be a mapping with at least one key"]),
        ("cases: [{name: abc}]\nexclude: [{case: abd}]", ["f:2:18: unknown case 'abd'; did you mean 'abc'?"]),
        ("include: significand-quik", ["f:1:10: unknown name in include", "'significand-quick'"]),
        ("include: {a: b}", ["f:1:10: include must be a name"]),
        ("grid: {native: [true], format: [e5m5, e5m4]}", ["f:1:17: native: true computes in a half precision"]),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(text, messages):
    found = complaints(text)
    for message in messages:
        assert message in found


def test_mistakes_of_arguments():
    assert "argument 'lr=1': lr is in cases (f:5:3)" in complaints(CASES, "lr=1")
    assert "--only lr=" in complaints(CASES, "lr=[1, 2]")
    found = complaints(CASES, "grid.sed=1", "random.draws=x", "lr.x=1", only=["seed=9", "case=slow", "see=1", "seed"])
    for message in (
        "argument 'grid.sed=1': unknown key in grid 'sed'",
        "argument 'random.draws=x': random.draws must be",
        "argument 'lr.x=1': unknown key 'lr.x'; did you mean 'lr'?",
        "argument 'case=slow': unknown case 'slow'; allowed are plain, fast",
        "argument 'see=1': unknown key 'see'",
        "argument 'seed': must have the form",
    ):
        assert message in found
    assert "argument 'seed=9': chooses nothing: no run has seed: 9" in complaints(CASES, only=["seed=9"])


def mutated(text, source):
    """A text with characters, lines or words deleted, doubled or swapped."""
    words = [
        "[",
        "}",
        ": ",
        "&a ",
        "*a",
        "!!int ",
        "|",
        "1e999",
        "é\x00",
        "zip",
        "exclude",
        "- {}",
        "null",
        "include: ",
    ]
    for _ in range(source.choice([1, 1, 2, 5])):
        at = source.randrange(len(text) + 1)
        lines = text.split("\n")
        match source.randrange(6):
            case 0:
                text = text[:at] + text[at + source.randrange(1, 9) :]
            case 1:
                text = text[:at] + source.choice(string.printable) + text[at:]
            case 2:
                text = text[:at] + source.choice(words) + text[at:]
            case 3:
                lines.insert(source.randrange(len(lines)), source.choice(lines))
                text = "\n".join(lines)
            case 4:  # one level deeper or higher
                i = source.randrange(len(lines))
                lines[i] = lines[i][2:] if source.random() < 0.5 else f"  {lines[i]}"
                text = "\n".join(lines)
            case _:
                source.shuffle(lines)
                text = "\n".join(lines)
    return text


def restructured(text, source):
    """Returns a document as JSON, with values removed, replaced, moved or wrapped."""
    document = parse(text, "f").plain()
    odd = [None, True, 0, -1, 2**70, 1e400, float("nan"), "", "e5m10", "\n", [], {}, [[]], [1, 1], {"seed": [0]}, "lr"]
    for _ in range(source.choice([1, 1, 2, 5])):
        inside = [document]
        for item in inside:
            values = item.values() if isinstance(item, dict) else item
            inside += [value for value in values if isinstance(value, (dict, list)) and value]
        chosen = source.choice(inside)
        keys = list(chosen) if isinstance(chosen, dict) else list(range(len(chosen)))
        if not keys:
            continue
        key = source.choice(keys)
        match source.randrange(4):
            case 0:
                del chosen[key]
            case 1:
                chosen[key] = copy.deepcopy(source.choice(odd))
            case 2:
                chosen[key] = [chosen[key]]
            case _:
                other = source.choice(inside)
                if isinstance(other, dict):
                    other[str(key)] = copy.deepcopy(chosen[key])
                else:
                    other.append(copy.deepcopy(chosen[key]))
    return json.dumps(document)


@pytest.mark.parametrize("many", [300, pytest.param(4000, marks=pytest.mark.slow)])
def test_mutations_are_planned_or_refused(many):
    """Never anything but a plan, or messages with places."""
    source = random.Random(0)
    texts = [path.read_text() for path in includable_files().values() if path.stem != "bits"]
    texts += [CASES, "exclude: [{seed: [1], format: fp32}]\ngrid: {seed: [0, 1], format: [fp32, e5m10]}"]
    arguments = ["seed=[0, 1]", "lr=1e-3", "random.draws=2", "exclude=[{seed: 1}]", "zip={lr: [1, 2]}", "cases=[{}]"]
    planned = 0
    for _ in range(many):
        text = source.choice([mutated, restructured])(source.choice(texts), source) or "x"
        given = [mutated(a, source) for a in source.sample(arguments, source.randrange(2))]
        only = [mutated("seed=0", source)] if source.random() < 0.1 else []
        try:
            planned += bool(plan_text(text, "f", given, only).runs)
        except SweepFileError as error:
            for problem in error.problems:
                assert problem.place.startswith(("f", "argument", str(next(iter(includable_files().values())).parent)))
                assert problem.message
        if given:
            try:
                plan_run(None, given)
            except SweepFileError as error:
                assert all(problem.place.startswith("argument") for problem in error.problems)
    assert many / 20 < planned < many * 0.9
