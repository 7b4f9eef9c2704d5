"""What an update of an agent costs: products as PyTorch counts them, memory by hand, what is sent."""

import json
from pathlib import Path

import pytest
import torch
from acting_policies import perceptron
from sac_pairs import pair
from torch.utils.flop_counter import FlopCounterMode

from roundoff.agents import RunError, TrainConfig
from roundoff.agents.actors.weights import FullPolicy
from roundoff.agents.config.actor_keys import ActorKeys
from roundoff.agents.training import cost as cost_module
from roundoff.agents.training.cost import count_updates
from roundoff.formats import Format
from roundoff.simulate import Simulation

SMALL = {
    "task": "cartpole_swingup", "hidden_units": 8, "batch_size": 8, "steps": 6000, "action_repeat": 20,
    "seed_steps": 20, "replay_capacity": 300,
}  # fmt: skip


def cost(**keys):
    return count_updates(TrainConfig(**SMALL | keys)).cost


def test_products_are_those_that_pytorch_counts_in_a_plain_update():
    agent, other, replay, generator = pair(format="fp32", fixes=[])
    batch = replay.sample(8, generator)
    with FlopCounterMode(display=False) as plain:
        agent.update(batch)
    other.simulation = Simulation("fp32", cost=True)
    other.update(batch)
    table = other.simulation.cost().table
    # which PyTorch's counter leaves out: a matrix times a vector
    seldom = table[table.operation.isin(["mv", "dot", "addmv"])].macs.sum()
    assert 0 <= seldom < table.macs.sum() / 50
    assert table.macs.sum() - seldom == plain.get_total_flops() / 2
    counted = cost(format="fp32", fixes=[])
    assert counted["macs"] == table.macs.sum()
    assert counted["bops"] == counted["macs"] * 32 * 32
    assert counted["uncounted"] == []
    cells = counted["models"]["array-multiplier"]
    assert (cells["value"], cells["unit"], cells["without"]) == (counted["macs"] * (24 * 24 + 8), "cells", [])
    assert counted["products"] == [{"a": "fp32", "b": "fp32", "accumulator": "fp32", "macs": counted["macs"]}]


def sizes():
    agent, *_ = pair(format="fp32")
    weights = sum(one.flat.numel() for one in agent.optimizers.values())
    return weights, agent.networks["critic"].flat.numel()


@pytest.mark.parametrize("fmt", ["fp32", "e5m10", "e4m3"])
def test_all_that_is_kept_is_in_the_format(fmt):
    weights, critic = sizes()
    kept = cost(format=fmt, fixes=[] if fmt == "fp32" else ["hadam", "kahan_gradients"])["kept"]
    size = Format.parse(fmt).bits // 8
    assert kept["weights"] == weights * size
    assert kept["moments"] == 2 * weights * size
    assert kept["targets"] == critic * size
    assert kept["replay"] == 300 * (2 * 5 + 1 + 2) * size
    # the two steps of an optimizer's count each take four bytes, whatever the format
    assert kept["scales and steps"] <= 100


def test_storage_is_what_it_says_also_where_no_step_has_been_made():
    weights, critic = sizes()
    storage = {"weights": "mxint8", "first_moments": "e5m2", "second_moments": "e4m3", "targets": "e4m3"}
    kept = cost(format="e5m10", storage=storage)["kept"]
    networks = weights - 1  # and the temperature, which is not stored
    assert kept["moments"] == 2 * networks + 2 * 2
    assert kept["targets"] == critic
    full, rest = divmod(critic, 32)
    assert rest
    assert kept["weights"] < networks * (33 / 32) + 2 * 32 + 2
    assert kept["weights"] >= networks + full


def test_each_kind_that_is_kept_lies_in_its_own_format():
    weights, critic = sizes()
    storage = {"weights": "e4m3", "compensations": "e3m0", "first_moments": "e5m2", "second_moments": "q4.11",
               "targets": "e4m3", "target_compensations": "e2m1"}  # fmt: skip
    kept = cost(format="e5m10", storage=storage)["kept"]
    networks = weights - 1  # and the temperature, which is not stored
    assert kept["weights"] == networks + 2
    assert kept["compensations"] == networks / 2 + 2
    assert kept["moments"] == networks * (1 + 2) + 2 * 2
    assert (kept["targets"], kept["sums behind targets"]) == (critic, critic / 2)


def test_sums_behind_targets_and_master_weights_are_told_apart():
    weights, critic = sizes()
    momentum = cost(format="e5m10", fixes=["kahan_momentum"])["kept"]
    # the sum and its compensation, and a table of 15 constants in float64
    assert momentum["sums behind targets"] == 2 * 2 * critic + 15 * 8
    assert "compensations" not in momentum
    master = cost(format="e5m10", fixes=[], baseline="master_weights")["kept"]
    assert (master["weights"], master["targets"]) == (weights * 2, critic * 2)
    assert (master["master weights"], master["moments"]) == ((weights + critic) * 4, 2 * weights * 4)


def test_steps_of_master_weights_are_counted_in_full_precision():
    plain, none, master = (
        cost(fixes=[], **keys)
        for keys in (
            {"format": "fp32"},
            {"format": "e5m10"},
            {"format": "e5m10", "baseline": "master_weights"},
        )
    )
    assert master["macs"] == plain["macs"]
    assert master["elements_written"] > plain["elements_written"]  # copies to the network beside the steps themselves
    assert none["bytes_written"] < master["bytes_written"] < plain["bytes_written"]


def test_parts_that_have_their_turn_seldom_count_as_often():
    every = cost(format="fp32", fixes=[], actor_update_every=1)
    third = cost(format="fp32", fixes=[], actor_update_every=3)
    tenth = cost(format="fp32", fixes=[], actor_update_every=10)
    actor = 1.5 * (every["macs"] - third["macs"])  # of three updates one has it
    assert 0 < actor < every["macs"]
    assert tenth["macs"] == pytest.approx(every["macs"] - 0.9 * actor)
    assert third["bytes_read"] < every["bytes_read"]


def test_mixed_precision_keeps_float32_and_multiplies_in_the_format():
    counted = cost(format="e5m10", policy={"preset": "mixed-precision"}, fixes=[])
    assert counted["kept"]["weights"] == sizes()[0] * 4
    assert {(row["a"], row["b"]) for row in counted["products"]} == {("e5m10", "e5m10")}


QUICK = SMALL | {"hidden_units": 128, "batch_size": 128, "action_repeat": 8, "replay_capacity": 9000}
PAGE = Path(__file__).parents[2] / "docs" / "research" / "results-sac.md"


def occupied(tensors):
    """The bytes of the memory that tensors have, each storage once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def test_what_is_counted_of_half_precision_is_what_native_tensors_occupy(monkeypatch):
    """PyTorch's own float16 and bfloat16 have memory that can be measured; simulated numbers take 32 bits."""
    measured = {}

    def measuring(learner, replay, kept=cost_module._kept_tensors):
        found = kept(learner, replay)
        measured.update({kind: occupied(tensors) for kind, tensors in found.items()})
        return found

    monkeypatch.setattr(cost_module, "_kept_tensors", measuring)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    simulated = cost(**QUICK, format="e5m10")
    assert measured["weights"] == 2 * simulated["kept"]["weights"]
    for name in ("fp16", "bf16"):
        native = cost(**QUICK, format=name, native=True)
        assert native["kept"] == measured == simulated["kept"]
        assert {row["a"] for row in native["products"]} == {name}
        own, theirs = (one["bytes_read"] + one["bytes_written"] for one in (native, simulated))
        kept = sum(measured.values()) - measured["replay"]
        assert f"occupies {kept:,} bytes between updates" in page
        assert f"moves {own:,.0f} bytes, {own - theirs:,.0f} more than simulated" in page
        assert abs(own - theirs) < 0.001 * own


def test_what_the_cheapest_storage_keeps_is_what_the_page_says():
    found = {"second_moments": "e5m2", "weights": "e5m10", "targets": "e5m10"}
    own, plain = (cost(**QUICK, format="fp32", storage=storage)["kept"] for storage in (found, None))
    bytes_kept = [sum(kept.values()) - kept["replay"] for kept in (own, plain)]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    share = 100 * bytes_kept[0] / bytes_kept[1]
    assert f"keeps {bytes_kept[0]:,.0f} bytes, without replay, {share:.0f} % of fp32's {bytes_kept[1]:,.0f}" in page


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "td3"])
def test_other_algorithms(algorithm):
    keys = {"seed_steps": 20, "replay_capacity": 300} if algorithm != "ppo" else {"horizon": 64}
    keys |= {"target_every": 4} if algorithm == "dqn" else {}  # as many updates are counted, and not 500
    keys |= {"task": "cartpole_swingup" if algorithm == "td3" else "gym:CartPole-v1", "hidden_units": 8}
    counted = count_updates(TrainConfig(algorithm=algorithm, batch_size=8, steps=6000, format="e5m10", **keys)).cost
    assert counted["macs"] > 0
    assert {row["a"] for row in counted["products"]} >= {"e5m10"}
    assert json.loads(json.dumps(counted)) == counted


def test_what_learners_send_each_other():
    weights, _ = sizes()
    plain = cost(format="fp32", fixes=[], learners=2, environments=2)["sent"]
    packed = cost(format="fp32", fixes=[], learners=2, environments=2, communicate="e5m2")["sent"]
    assert list(plain.values()) == [weights * 4]
    assert list(packed) == ["gradients of a learner, an update"]
    assert list(packed.values()) == [weights + 3]  # a byte for each parcel says whether all is finite


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("fp32", {"engine": "onnxruntime"}),
        ("fp16", {}),
        ("e4m3", {}),
        ("int8", {"engine": "onnxruntime"}),
        ("int4", {}),
    ],
)
def test_the_messages_of_the_paper_are_as_large_as_the_page_says(name, keys):
    """D4PG's policy in ActorQ, of walker stand: 24 numbers in, three layers of 2048, 6 actions."""
    pytest.importorskip("ray")
    policy = FullPolicy.of(perceptron([24, 2048, 2048, 2048, 6]))
    size = policy.packed(ActorKeys(format=name, **keys)).nbytes
    whole = sum(x.size * 4 for x in policy.numbers)
    page = (PAGE.parents[1] / "learners.md").read_text(encoding="utf-8")
    assert f"| {name} | {size:,} | {whole / size:.2f} |" in page, f"| {name} | {size:,} | {whole / size:.2f} |"


def test_what_actors_pull():
    pytest.importorskip("ray")
    sent = {
        fmt: cost(algorithm="td3", format="fp32", fixes=[], environments=2, actors={"count": 1, "format": fmt})["sent"]
        for fmt in ("fp32", "int8")
    }
    assert {tuple(one) for one in sent.values()} == {("a pull of weights by an actor",)}
    (full,), (packed,) = (one.values() for one in sent.values())
    assert 0 < packed < full


def test_agents_of_other_libraries_are_not_counted():
    pytest.importorskip("stable_baselines3")
    with pytest.raises(RunError, match="only for agents of roundoff"):
        count_updates(TrainConfig(algorithm="sb3:PPO", task="gym:CartPole-v1", steps=600))


def test_counting_leaves_the_number_of_threads_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    cost(format="e5m10")
    assert torch.get_num_threads() == before
    assert not list(tmp_path.iterdir())
