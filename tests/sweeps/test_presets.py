"""The presets, their table, the page about sweep files, and the schema for editors say the same."""

import json
import math
import re
from functools import cache
from itertools import product
from pathlib import Path

import jsonschema
import pytest

from roundoff.agents.config.fixes import FIXES
from roundoff.agents.programs.population import shared_kind, worth_sharing
from roundoff.searches import allocation, ask, halving
from roundoff.sweeps import plan_file, plan_text
from roundoff.sweeps.language.candidates import candidates
from roundoff.sweeps.language.located_yaml import parse
from roundoff.sweeps.language.preset_files import (
    ENDS,
    find_sweep,
    includable_files,
    preset_files,
    presets,
    subject_and_size,
)
from roundoff.sweeps.language.schema import sweep_schema

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sweeps.md").read_text(encoding="utf-8")


@cache
def plans():
    """Every preset planned, which takes seconds; no test is collected later for it."""
    return {name: plan_file(preset.file) for name, preset in presets().items()}


# Agent steps that take less than a minute on one core, as the presets have them: simple worlds, few updates for each.
IN_A_MINUTE = {
    "dqn": 50_000,
    "ppo": 65_000,
    "a2c": 100_000,
    "td3": 10_000,
    "d4pg": 10_000,
    "sb3:DQN": 40_000,
    "sb3:PPO": 60_000,
    "sb3:A2C": 80_000,
    "tianshou:C51": 20_000,
}


def minutes(config):
    rate = IN_A_MINUTE.get(config.algorithm, 5500)
    if getattr(config, "actors", None):  # they act while the learner learns
        rate = max(rate, 9000)
    return config.steps / config.action_repeat / rate


def share_that_is_run(plan):
    """The share of a plan's runs that start, at most: a bisection skips formats, and halving drops candidates."""
    if not plan.search:
        return 1
    if plan.search.looks_for == "best":
        names = list(candidates(plan.runs, plan.varying))
        seeds = len({run.config.seed for run in plan.runs})
        spent = {}
        for left, count in ask(halving(names, seeds), lambda asked: dict.fromkeys(asked[0], 0.0))[0]:
            spent |= dict.fromkeys(left, count)
        return sum(spent.values()) / (len(names) * seeds)
    if plan.search.looks_for == "cheapest":  # of five roles, of which four cost bit operations
        questions, _ = ask(
            allocation("abcd", plan.search.formats, plan.search.choose), lambda asked: [0.0] * len(asked[0])
        )
        spent = {tuple(one.items()): count for asked, count in questions for one in asked}
        return (sum(spent.values()) + 2 * len(plan.runs) - plan.search.choose) / len(plan.runs)
    each = len({plan.search.format_of(run.config) for run in plan.runs}) - 1
    return (2 + math.ceil(math.log2(each))) / (1 + each)


def ids(name):
    return {run.id for run in plans()[name].runs}


def test_every_preset_is_quick_and_as_in_the_paper_and_says_what_it_is():
    assert set(plans()) == set(preset_files())
    for name, plan in plans().items():
        subject, size = subject_and_size(name)
        assert {subject, f"{subject}-quick"} < set(plans())
        assert plan.description
        assert ("on two cores" in plan.description) == (size != "paper")
        assert ("night on two cores" in plan.description) == (size == "overnight")
        shares_memory = any(getattr(run.config, "asynchronous", False) for run in plan.runs)
        assert {run.config.device for run in plan.runs} == {"cuda" if size == "paper" and not shares_memory else "cpu"}
        assert plan.reproduces == plans()[subject].reproduces
        if size == "quick":
            most = 32 if name == "significand-quick" else 24  # `make sweep` may take somewhat longer
            assert sum(minutes(run.config) for run in plan.runs) * share_that_is_run(plan) <= most


def test_every_figure_of_the_paper_is_found_by_its_name():
    quarl = ["quarl-table4", "quarl-fig7"]
    accelerated = [f"accelerated-{name}" for name in ("fig2", "fig3", "fig8", "table2")]
    overnight = {figure for name, plan in plans().items() if name.endswith("-overnight") for figure in plan.reproduces}
    for figure, size in product([*(f"fig{number}" for number in range(1, 13)), "table7", *accelerated, *quarl], ENDS):
        found = [
            name for name, plan in plans().items() if figure in plan.reproduces and subject_and_size(name)[1] == size
        ]
        assert len(found) == (size != "overnight" or figure in overnight), figure
        name = figure + ENDS[size]
        assert find_sweep(name) == (preset_files()[found[0]] if found else Path(name))
    assert find_sweep("fig99") == Path("fig99")


def test_a_night_makes_the_point_of_the_paper():
    """Four tasks of the suite and one of Gymnasium, to be compared seed by seed, by programs that populations share."""
    for name in ("quality-overnight", "significand-overnight"):
        runs = [run.config for run in plans()[name].runs]
        assert {"cartpole_swingup", "ball_in_cup_catch", "reacher_easy", "finger_spin"} < {one.task for one in runs}
        assert {one.seed for one in runs} == set(range(16))
        assert {"fp32", "e5m10"} <= {one.format for one in runs}
        assert all(one.hidden_units == 256 and set(one.fixes) == set(FIXES) for one in runs)
        assert all(one.steps % one.eval_every == 0 for one in runs)
        for task in {one.task for one in runs}:
            simulated = [one for one in runs if one.task == task and one.format != "fp32"]
            assert len({shared_kind(one) for one in simulated}) == 1
            assert shared_kind(simulated[0])
            assert all(worth_sharing(one, one.steps // one.action_repeat) for one in simulated)
    assert ids("quality-overnight") <= ids("significand-overnight")


def test_runs_are_those_of_earlier_versions_and_shared():
    assert "cartpole_swingup-e5m10-s0-e8403e981d" in ids("significand-quick")
    assert "cartpole_swingup-e5m10-s0-b5b3164285" in ids("pixels-quick")
    assert "cartpole_swingup-e5m10-s0-20dfd3181b" in ids("leave-one-out-quick")
    assert len(ids("leave-one-out-quick") & ids("baselines-quick") & ids("ablation-quick")) == 3
    assert len(ids("significand-quick") & ids("bits-quick") & ids("exponent-bits-quick")) == 2
    assert len(ids("distances-quick") & ids("quality-quick")) == 4
    assert len(ids("paper-256")) == 60
    assert ids("paper-256") < ids("paper-256-e4m3")


def test_the_paper_sizes_are_the_papers():
    assert len(plans()["significand"].runs) == 6 * 5 * 7
    assert len(plans()["quality"].runs) == 6 * 15 * 2
    pairs = {(run.config.task, run.config.action_repeat) for run in plans()["pixels"].runs}
    assert len(pairs) == 6
    assert {("cartpole_swingup", 8), ("finger_spin", 2)} < pairs


def test_the_files_of_the_page_can_be_planned():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert [len(plan_text(block, "sweeps.md").runs) for block in blocks] == [
        9,
        33,
        6,
        4,
        10,
        11,
        11 * 5,
        10,
        3 * 2 * 8,
        12,
    ]


def test_the_schema_is_current_and_accepts_what_can_be_planned():
    schema = sweep_schema()
    committed = json.loads((DOCS / "sweep.schema.json").read_text(encoding="utf-8"))
    assert committed == schema, "run: roundoff schema > docs/sweep.schema.json"
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in includable_files().values():
        validator.validate(parse(path.read_text(), path.name).plain())
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        validator.validate(parse(block, "sweeps.md").plain())


@pytest.mark.parametrize(
    "text",
    ["grid: {formt: [fp32]}", "base: {lr: x}", "base: {fixes: hadam}", "grid: {seed: 1}", "cases: [{nam: a}]",
     "random: {values: {lr: {normal: [0, 1]}}}", "exclude: [{}]", "base: {task: cartpole}", "seed: 1"],
)  # fmt: skip
def test_the_schema_refuses_mistakes(text):
    assert not jsonschema.Draft202012Validator(sweep_schema()).is_valid(parse(text, "f").plain())
