"""Recursions in the operations that agents use: they stop where the theory says, and a run says so before it begins."""

import csv
import json
import math
from fractions import Fraction
from pathlib import Path
from statistics import mean

import pytest
import torch
from bench import bf16_critics
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import roundoff
from roundoff.agents import FIXES, TrainConfig, recursions
from roundoff.agents.algorithms.policy_gradient import _summed_backwards
from roundoff.agents.algorithms.value_learner import projected
from roundoff.agents.config.recursions import remarks, remarks_on
from roundoff.agents.optimizers.decisions import add_product
from roundoff.analysis.reports.writing import report
from roundoff.analysis.runs.settings import flatten
from roundoff.cli import app
from roundoff.formats import FloatFormat
from roundoff.formats.tools.recursions import least_change, reach, stop
from roundoff.remedies import Adam, HAdam, KahanEMA, PlainEMA, kahan_add_

BITS = range(1, 11)
DISCOUNTS = [0.9, 0.95, 0.99, 0.997]


def exactly(discount):
    """Returns a discount as kernels have it, and one minus that."""
    number = float(torch.tensor(discount))
    return number, float(1 - Fraction(number))


def settled(step, x, most=20_000):
    for _ in range(most):
        following = step(x)
        if torch.equal(following, x):
            return x
        x = following
    raise AssertionError(x)


def check(found, format, gain, targets, starts):
    """Every number is one of the two that the theory allows, or their neighbour: sums are computed in float32."""
    for x, target, start in zip(found.tolist(), targets, starts, strict=True):
        first, last = stop(format, gain, target, start)
        slack = 2.0**-22 * abs(x) + abs(first - last) * 1.001
        assert min(first, last) - slack <= x <= max(first, last) + slack, (target, start)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(BITS), st.sampled_from(DISCOUNTS), st.integers(0, 1000))
def test_targets(m, discount, seed):
    """r + g V, of rewards of both signs, from 0, from above and from the other side."""
    format = FloatFormat(8, m)
    number, gain = exactly(discount)
    r = roundoff.round(torch.randn(6, generator=torch.Generator().manual_seed(seed)), format)
    targets = [float(Fraction(x) / Fraction(gain)) for x in r.tolist()]
    starts = roundoff.round(torch.tensor([0, 0, 1.5, 8, -1, 0.5]) * torch.tensor(targets), format)
    with roundoff.simulate(format):
        found = settled(lambda v: add_product(r, torch.ones_like(r), v, number), starts * 1.0)
    check(found, format, gain, targets, starts.tolist())


@pytest.mark.parametrize("m", [2, 3, 5, 7])
def test_the_sum_of_advantages(m):
    """A constant delta, added up backwards over 4000 steps with gamma lambda = 0.99: delta / 0.01 exactly."""
    format = FloatFormat(8, m)
    number, gain = exactly(0.99)
    deltas, weights = torch.ones(4000, 1), torch.full((4000, 1), number)
    with roundoff.simulate(format):
        # The weight is a number of the format in an agent; here it is not, so that its gain is known.
        found = _summed_backwards(deltas, weights, 1)[0, 0]
    check(found.view(1), format, gain, [float(1 / Fraction(gain))], [1.0])


@pytest.mark.parametrize("m", [2, 3, 4, 6])
def test_averages(m):
    """Plain: two roundings of a number, so within an ulp over tau. Compensated: twice the bits and two."""
    format = FloatFormat(8, m)
    tau = 0.03125
    source = roundoff.round(torch.linspace(1, 1.9, 50), format)
    ulp = 2.0**-m
    for kind, absorbed in ((PlainEMA, ulp), (KahanEMA, 2 * least_change(m, compensated=True)[1])):
        options = {"scale": 1.0} if kind is KahanEMA else {}
        average = kind(torch.zeros(50), tau, **options)
        with roundoff.simulate(format):
            for _ in range(500):
                average.update_(source)
        away = (source - average.average).abs()
        assert (away <= absorbed / tau + 2 * ulp).all(), kind
        if absorbed / tau > 8 * ulp:  # and it does lag
            assert away.max() > min(absorbed / tau / 8, 0.3), kind


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("m", [2, 3, 4, 5])
def test_sums_of_small_changes(m, compensated):
    """Changes above the bound arrive, whatever the number; below it, they move none past the next even one."""
    format, ulp = FloatFormat(8, m), 2.0**-m
    numbers = torch.arange(1, 2 - 4 * ulp + ulp / 2, ulp)
    begin = torch.cat((numbers, -numbers)) if len(numbers) else torch.tensor([1.0, -1.0])
    most = least_change(m, compensated=compensated)[1]  # in terms of 2^E, which is 1 here
    for factor in (0.45, 2.2):
        x, lost = begin.clone(), torch.zeros_like(begin)
        with roundoff.simulate(format):
            change = (begin.sign() * most * factor) * 1.0
            for _ in range(int(6 * ulp / (most * factor)) + 4):
                if compensated:
                    kahan_add_(x, lost, change)
                else:
                    x.add_(change)
        moved = (x - begin).abs()
        assert (moved <= ulp).all() if factor < 1 else (moved >= 2 * ulp).all()


@pytest.mark.parametrize("kind", [Adam, HAdam])
@pytest.mark.parametrize("m", BITS)
def test_second_moments_decay_or_do_not(m, kind):
    """With gradients that have become 0: from 1 on, by 0.999 a step, or by its root."""
    format = FloatFormat(8, m)
    gain = exactly(0.999)[1] if kind is Adam else 1 - 0.999**0.5
    with roundoff.simulate(format):
        second = torch.linspace(1, 1.99, 40) * 1.0
        start = second.clone()
        optimizer = kind([torch.zeros(40, requires_grad=True)])
        for _ in range(2000):
            optimizer._update_second([second], [torch.zeros(40)], 0.999)
    for x, begin in zip(second.tolist(), start.tolist(), strict=True):
        first = stop(format, gain, 0.0, begin).first
        assert (x == begin) == (first == begin), begin
    if gain <= 2.0 ** -(m + 2):
        assert torch.equal(second, start)


def test_a_distribution_that_does_not_move():
    """C51: a mass at an atom of 50 with a reward of 1 should move up by half an atom, to which e5m3 adds nothing."""
    atoms = torch.arange(0, 104, 8.0)
    p = torch.zeros(1, 13)
    p[0, 6] = 1.0  # at 48: 1 + 0.99 * 48 = 48.52
    one = torch.ones(1, 1)
    exact = projected(p.double(), one.double(), one.double(), atoms.double(), 0.99, (0.0, 96.0))
    with roundoff.simulate("e5m3"):
        found = projected(p, one, one, atoms, 0.99, (0.0, 96.0))
    assert exact[0, 7] == pytest.approx(0.065)
    assert torch.equal(found, p)


# What is said


SMALL = {"lr": 1e-3, "tau": 0.01, "hidden_units": 128}


def test_a_table_of_what_each_needs_and_what_is_left():
    table = recursions(TrainConfig(format="e4m3", **SMALL))
    assert [row.what for row in table.rows] == [
        "values", "target networks", "first moments", "second moments", "weights",
    ]  # fmt: skip
    assert str(table).splitlines()[1] == (
        "values           0.01    m = 9   e4m3, to nearest   values reach 14 to 24 steps of 100"
    )
    assert [row.fits for row in table.rows] == [False, False, True, False, True]
    assert "stop up to 39 % of a weight away" in table.rows[1].left


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"format": "fp32"}, []),
        ({"format": "e5m10"}, []),
        ({"format": "posit16"}, []),
        ({"format": "bf16"}, ["discount 0.99 in e8m7, to nearest: values reach 72 to 84 steps of 100", "adam_beta2"]),
        ({"format": "bf16", "discount": 0.9}, ["adam_beta2"]),
        ({"format": "bf16", "fixes": ["all", "stochastic_targets", "stochastic_moments"]}, []),
        ({"format": "bf16", "policy": {"rules": [{"role": "targets", "format": "fp32"}]}}, ["adam_beta2"]),
        ({"format": "bf16", "policy": {"rounding": "stochastic"}}, []),
        ({"format": "bf16", "policy": {"preset": "mixed-precision"}}, []),
        ({"format": "bf16", "baseline": "master_weights"}, ["discount"]),
        ({"format": "e4m3", "fixes": ["all", "stochastic_targets", "stochastic_compensation"]}, ["adam_beta2"]),
        (
            {"format": "e4m3", "algorithm": "d4pg", "n_steps": 5, "atoms": 1},
            ["discount 0.99 over 5 steps in e4m3, to nearest: values reach 44 to 61", "adam_beta2", "lr 0.0001"],
        ),
        ({"format": "e4m3", "algorithm": "ppo"}, ["discount", "adam_beta2", "lr 0.0003"]),
        (
            {"format": "e5m10", "storage": {"targets": "e4m3", "target_compensations": "e4m3"}},
            ["tau 0.01 in e4m3, compensated: target networks stop"],
        ),
        ({"format": "e5m10", "storage": {"second_moments": "e5m2"}}, ["adam_beta2 0.999 in e5m2"]),
        ({"format": "e5m10", "storage": {"second_moments": {"format": "e5m2", "rounding": "stochastic"}}}, []),
        ({"algorithm": "sb3:SAC", "format": "e4m3", "task": "gym:Pendulum-v1"}, []),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_format_cannot_carry_is_named(keys, named):
    config = TrainConfig(**{**(SMALL if "algorithm" not in keys else {}), **keys})
    found = remarks(config)
    assert len(found) == len(named), found
    assert all(one.startswith(start) for one, start in zip(found, named, strict=True)), found
    assert remarks_on(json.loads(json.dumps(config.as_json()))) == found


def test_a_rounding_that_rounds_nothing_is_named():
    stored = {"compensations": {"format": "e5m3", "rounding": "stochastic"}, "first_moments": "e5m3"}
    *_, last = remarks(TrainConfig(format="e5m3", storage=stored))
    assert last.startswith("storage.compensations is rounded stochastically to e5m3, to which")
    assert "changes no bit" in last
    stored = {"compensations": {"format": "e5m2", "rounding": "stochastic"}}
    assert not any("no bit" in one for one in remarks(TrainConfig(format="e5m3", storage=stored)))
    assert remarks_on({"no": "config"}) == []


def test_nothing_is_said_of_users_programs():
    config = {"format": "e4m3", "task": "cartpole_swingup", "seed": 0, "discount": 0.99, "tau": 0.005, "lr": 1e-4}
    assert len(remarks_on(config)) > 2
    assert remarks_on(config | {"program": "fit.py:train"}) == []
    assert flatten({"fixes": [*FIXES]})["fixes"] == "all"
    assert flatten({"fixes": [*FIXES], "program": "fit.py:train"})["fixes"] == " ".join(FIXES)


def test_a_dry_run_a_run_and_a_report_say_it_once(tmp_path):
    said = "discount 0.9 in e4m3, to nearest: values reach 6 to 8 steps of 10; stochastic_targets avoids this"
    keys = ["task=cartpole_swingup", "format=e4m3", "discount=0.9", "steps=400", "action_repeat=8", "seed_steps=20",
            "eval_every=400", "eval_episodes=1", "hidden_units=8", "batch_size=8"]  # fmt: skip
    trained = CliRunner().invoke(app, ["train", *keys, "--out", str(tmp_path / "run")])
    assert trained.output.count(said) == 1, trained.output
    file = tmp_path / "sweep.yaml"
    file.write_text("name: said\ngrid: {seed: [0, 1], format: [fp32, e4m3]}\nbase: {steps: 400, seed_steps: 20}\n")
    planned = CliRunner().invoke(app, ["sweep", str(file), "discount=0.9", "--dry-run", "--no-estimate"])
    assert planned.output.count(f"  {said} (2 runs)\n") == 1, planned.output
    page, _ = report(tmp_path / "run")
    assert page.read_text().count(said) == 1


def test_the_figure_of_the_paper_rests_on_its_table():
    """The table is as next-fix.md says: measured values lie where predicted, but for the noise of a critic."""
    with (Path(__file__).parents[2] / "docs/figures/recursions.csv").open(encoding="utf-8") as file:
        table = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [row["m"] for row in table] == list(range(2, 11))
    for row in table:
        m = int(row["m"])
        assert [row["predicted_least"], row["predicted_most"]] == pytest.approx(
            [100 * x for x in reach(0.01, m)], rel=1e-3
        )
        assert row["lag_predicted_most"] == pytest.approx(least_change(m, compensated=True)[1] / 0.01, rel=1e-3)
        assert row["lag_nearest"] <= row["lag_predicted_most"] + 2.0 ** -(m + 1)
        assert 0.99 * row["predicted_least"] <= row["nearest"] <= 1.08 * row["predicted_most"]
        assert abs(row["stochastic"] - 100) < 5
        if m <= 4:
            assert row["lag_nearest"] > 3 * row["lag_stochastic"]


DOCS = Path(__file__).parents[2] / "docs"


def test_agents_learn_the_horizon_that_is_predicted():
    with (DOCS / "figures/horizon.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    learned = {(row["targets"], float(row["discount"]), int(row["m"])): float(row["learned"]) for row in rows}
    assert len(rows) == len(learned) == 42
    for (targets, discount, m), value in learned.items():
        horizon = 1 / (1 - discount)
        least, most = (part * horizon for part in reach(1 - discount, m))
        if targets == "nearest":
            assert least <= value <= most + 2 * 2.0 ** (math.floor(math.log2(most)) - m)
            assert value < learned["stochastic", discount, m] + 0.01
    assert abs(learned["stochastic", 0.99, 3] - 63) < 0.5
    assert all(
        learned["stochastic", discount, 10] == pytest.approx(1 / (1 - discount), rel=0.01)
        for discount in (0.9, 0.99, 0.997)
    )


def test_sac_learns_the_horizon_that_is_predicted_where_it_can_be_told():
    with (DOCS / "figures/horizon-sac.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    learned = {(row["targets"], float(row["discount"]), int(row["m"])): float(row["learned"]) for row in rows}
    assert len(rows) == len(learned) == 24
    bands = {(discount, m): reach(1 - discount, m) for _, discount, m in learned}
    inside = {
        (discount, m): least <= learned["nearest", discount, m] * (1 - discount) <= most
        for (discount, m), (least, most) in bands.items()
    }
    assert {key for key, found in inside.items() if found} == {
        (0.9, 4),
        (0.9, 5),
        (0.9, 6),
        (0.9, 7),
        (0.99, 3),
        (0.99, 4),
    }
    told = [learned[targets, 0.99, m] for targets in ("nearest", "stochastic") for m in (3, 4)]
    assert [round(value) for value in told] == [16, 32, 42, 70]
    for m in (5, 6, 7, 10):
        assert min(learned["nearest", 0.99, m], learned["stochastic", 0.99, m]) > 100
    assert abs(learned["nearest", 0.9, 10] - learned["stochastic", 0.9, 10]) < 0.1


def test_what_else_moves_the_values_of_dqn_is_as_the_page_says():
    with (DOCS / "figures/horizon-dqn.csv").open(encoding="utf-8") as file:
        values = {}
        for row in csv.DictReader(file):
            values.setdefault(row["case"], []).append(float(row["learned"]))
    page = (DOCS / "research/next-fix.md").read_text(encoding="utf-8")
    names = {"two actions in fp32": "two actions, in fp32", "one action without fixes": "one action, without fixes"}
    names["one action without fixes, optimizer in fp32"] = "one action, without fixes, the optimizer in fp32"
    for case, found in values.items():
        assert len(found) == 5
        assert f"| {names.get(case, case)} | {min(found):.1f} to {max(found):.1f} |" in page
    least, most = (100 * part for part in reach(0.01, 7))
    for case in ("one action", "one action without fixes, optimizer in fp32"):
        assert least <= min(values[case]) <= max(values[case]) <= most
    assert len(values) == 5


def test_the_page_about_critics_in_bfloat16_rests_on_its_table():
    with (DOCS / "figures/bf16-critics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    values = {}
    for row in rows:
        values.setdefault((row["target"], float(row["discount"])), []).append(float(row["value"]))
    page = (DOCS / "recursions.md").read_text(encoding="utf-8")
    for target in bf16_critics.TARGETS:
        cells = []
        for discount in (0.9, 0.99, 0.997):
            found = values[target, discount]
            assert len(found) == 5
            cells.append(f"{mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
            right = 1 / (1 - discount)
            if target in ("reward + discount * v", "reward + discount * v * not_done") and discount > 0.9:
                least, most = (right * part for part in reach(1 - discount, 7))
                assert all(least <= value <= most for value in found)
            else:
                assert all(abs(value - right) < 0.02 * right for value in found)
        name = "all in float32, no autocast" if target == "float32" else f"`{target}`"
        assert f"| {name} | {' | '.join(cells)} |" in page


def test_a_critic_under_autocast_stops_where_it_is_predicted(monkeypatch):
    """In a sixth of the steps of the table, with a discount of 0.97, of which bfloat16 leaves 27 to 30 of 33."""
    monkeypatch.setitem(bf16_critics.STEPS, 0.97, 1500)
    monkeypatch.setattr(bf16_critics, "LAST", 300)
    least, most = (part / 0.03 for part in reach(0.03, 7))
    lost = bf16_critics.learned(0.97, "reward + discount * v", 0)
    kept = bf16_critics.learned(0.97, "reward + discount * v.float()", 0)
    assert abs(kept - 1 / 0.03) < 0.5
    assert 0.98 * least < lost < 1.02 * most < kept - 1
