"""First weights moved by units in the last place: to the bit, in fp32 alone, and as an arm of an experiment."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import config, outcome

from roundoff.agents import TrainConfig, train
from roundoff.agents.run.state import move_by_ulps
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.tables.against_fp32 import against_reference
from roundoff.analysis.tables.needed_table import needed_table


def moved(values, ulps=1, seed=0):
    weights = torch.tensor(values, dtype=torch.float32)
    move_by_ulps(weights, ulps, torch.Generator().manual_seed(seed))
    return weights.numpy()


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.integers(0, 99)
)
def test_each_weight_is_a_neighbour_of_what_it_was(values, seed):
    was = np.array(values, np.float32)
    found = moved(values, seed=seed)
    with np.errstate(over="ignore"):
        up, down = np.nextafter(was, np.float32(math.inf)), np.nextafter(was, np.float32(-math.inf))
    assert np.all((found == up) | (found == down) | (was == 0))
    assert np.array_equal(found[was == 0], was[was == 0])
    assert np.array_equal(np.signbit(found), np.signbit(was))


def test_both_ways_by_as_many_units_as_asked():
    found = moved([1.5] * 1000, ulps=3) - np.float32(1.5)
    assert set(found / np.float32(2**-23)) == {3, -3}
    assert 400 < (found > 0).sum() < 600
    assert moved([1e-45, -1e-45], ulps=9).tolist() == pytest.approx([0, 0], abs=2e-44)
    special = moved([math.inf, -math.inf, math.nan, 0.0, -0.0])
    assert np.array_equal(special, [math.inf, -math.inf, math.nan, 0, 0], equal_nan=True)
    assert np.signbit(special[4])


def test_a_run_begins_an_ulp_beside_and_ends_elsewhere(tmp_path):
    small = {"steps": 200, "seed_steps": 2, "eval_every": 200, "checkpoint_every": 200}
    for ulps in (0, 1):
        train(config(**small, **({"perturb": ulps} if ulps else {})), tmp_path / str(ulps), compiled=False)
    train(config(**small, perturb=1), tmp_path / "again", compiled=False)
    assert outcome(tmp_path / "1") == outcome(tmp_path / "again")
    one, other = outcome(tmp_path / "0"), outcome(tmp_path / "1")
    assert one["weights"] != other["weights"]
    assert "perturb" not in config(**small).as_json()  # its name is what it was


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"format": "e5m10"}, "perturb: 1 moves the first weights of runs in fp32"),
        ({"policy": "mixed-precision"}, "perturb: 1 is for runs that nothing rounds, got policy"),
        ({"baseline": "master_weights"}, "perturb: 1 is for runs without a baseline"),
        ({"task": "gym:CartPole-v1", "algorithm": "sb3:PPO"}, "perturb is a key of"),
    ],
)
def test_what_it_is_not_for(keys, said):
    with pytest.raises(ValueError, match=said):
        TrainConfig(perturb=1, **keys)


def test_it_is_compared_as_a_format_is(tmp_path):
    for fmt, ulps, start in (("fp32", 0, 800), ("fp32", 1, 802), ("e5m10", 0, 700)):
        for seed in range(3):
            folder = tmp_path / f"{fmt}-{ulps}-{seed}"
            folder.mkdir()
            keys = {"task": "cartpole_swingup", "format": fmt, "seed": seed} | ({"perturb": ulps} if ulps else {})
            (folder / "config.json").write_text(json.dumps({"config": keys}))
            result = {"status": "done", "return": float(start + seed), "return_std": 0.0, "step": 9, "crash": None}
            (folder / "result.json").write_text(json.dumps(result))
    experiment = read_experiment(tmp_path)
    table = against_reference(experiment).set_index("format")
    assert table["difference"].to_dict() == {"fp32": 2, "e5m10": -100}
    assert table["perturb"].to_dict() == {"fp32": 1, "e5m10": 0}
    assert list(needed_table(experiment)["exponent_bits"]) == [5]
