"""What runs keep in memory in formats of their own: by hand, and with the same bytes everywhere."""

import json
from collections import defaultdict

import pytest
import torch
from pydantic import ValidationError
from runs import AfterSteps

import roundoff
from roundoff import Format, FormatError, RandomBits, Rounding, simulate
from roundoff.agents import SAC, Job, Quantization, TrainConfig, quantize, train, train_together
from roundoff.agents.config.storage import Storage
from roundoff.agents.models.networks import MLP, forward
from roundoff.agents.models.stored_layers import StoredLayers
from roundoff.agents.optimizers.kahan_momentum import StoredEMA
from roundoff.agents.optimizers.network_optimizer import NetworkOptimizer
from roundoff.agents.programs import compiled as compiled_updates
from roundoff.agents.programs import population
from roundoff.agents.run.stopping import Stopped
from roundoff.agents.stored import Kept
from roundoff.remedies import HAdam
from roundoff.simulate import store

pytestmark = pytest.mark.usefixtures("short_episodes")

PLAIN = ["hadam", "softplus_fix", "normal_fix", "compound_loss_scaling"]
EIGHT = {
    "weights": {"format": "mxint8", "rounding": "stochastic"},
    "activations": "e4m3fn_saturate",
    "gradients": "mxfp8_e5m2",
    "weight_gradients": "mxfp8_e4m3",
    "first_moments": {"format": "e5m2", "rounding": "stochastic"},
    "second_moments": {"format": "posit8", "rounding": "stochastic"},
    "targets": {"format": "mxint8", "rounding": "stochastic"},
}
FORMATS_KEPT = [
    ("mxint8", "stochastic"),
    ("mxfp8_e4m3", "nearest-even"),
    ("e5m2", "stochastic"),
    ("posit8", "stochastic"),
]
TINY = {
    "task": "cartpole_swingup", "hidden_units": 16, "batch_size": 16, "action_repeat": 8, "steps": 800, "lr": 1e-3,
    "seed_steps": 20, "eval_every": 400, "eval_episodes": 1, "checkpoint_every": 10_000, "format": "e5m10",
}  # fmt: skip


def config(**keys):
    return TrainConfig(**{**TINY, "fixes": PLAIN, "storage": EIGHT, **keys})


def bytes_of(folder):
    return [(folder / name).read_bytes() for name in ("metrics.jsonl", "result.json", "agent.pt")]


# What is stored


def test_store_rounds_whatever_the_arithmetic_is():
    x = torch.randn(100)
    with simulate("e4m3", seed=3) as simulation:
        simulation.step = 5
        assert torch.equal(store(x, Format.parse("e5m10")), roundoff.round(x, "e5m10"))
        drawn = [store(x, Format.parse("e5m2"), Rounding.STOCHASTIC) for _ in range(2)]
    for number, found in enumerate(drawn):
        bits = RandomBits(3, (5 << 32) + number)
        assert torch.equal(found, roundoff.round(x, "e5m2", rounding="stochastic", random=bits))
    assert torch.equal(store(x, Format.parse("e5m2")), roundoff.round(x, "e5m2"))
    with pytest.raises(FormatError, match="stochastic"):
        store(x, Format.parse("e5m2"), Rounding.STOCHASTIC)


@pytest.mark.parametrize("kept", ["activations", "gradients", "both"])
def test_a_perceptron_forward_and_backward_by_hand(kept):
    """Every operand of every product, and no other number, is one of the formats."""
    options = {"dtype": torch.float64, "device": torch.device("cpu"), "generator": torch.Generator().manual_seed(0)}
    network = MLP([3, 8, 8, 2], ensemble=2, **options)
    x, g = torch.randn(5, 3, dtype=torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)

    def a(numbers):
        return numbers if kept == "gradients" else roundoff.round(numbers, "e3m2")

    def d(numbers):
        return numbers if kept == "activations" else roundoff.round(numbers, "mxfp4_b4")

    stored = StoredLayers(
        None if kept == "gradients" else Kept(Format.parse("e3m2"), Rounding.NEAREST_EVEN),
        None if kept == "activations" else Kept(Format.parse("mxfp4_b4"), Rounding.NEAREST_EVEN),
    )
    y = forward(network.trainable, x, stored)
    found = torch.autograd.grad(y, network.trainable, g)

    u, b, v, c, w, e = network.layers
    inputs = a(x).expand(2, 5, 3)
    first = torch.relu(torch.baddbmm(b, inputs, u))
    second = torch.relu(torch.baddbmm(c, a(first), v))
    assert torch.equal(y, torch.baddbmm(e, a(second), w))
    g3 = d(g)
    g2 = d(g3 @ w.mT) * (second > 0)
    g1 = d(g2 @ v.mT) * (first > 0)
    expected = [
        one
        for h, gradient in ((inputs, g1), (a(first), g2), (a(second), g3))
        for one in (h.mT @ gradient, gradient.sum(1, keepdim=True))
    ]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("algorithm", "task"), [("sac", "cartpole_swingup"), ("td3", "cartpole_swingup"), ("dqn", "gym:CartPole-v1")]
)
def test_weights_and_states_are_numbers_of_their_formats(algorithm, task, tmp_path):
    storage = {name: EIGHT[name] for name in EIGHT if algorithm == "sac" or name not in ("activations", "gradients")}
    keys = {"algorithm": algorithm, "task": task, "storage": storage, "steps": 160, "checkpoint_every": 80}
    keys |= {"action_repeat": 1, "seed_steps": 20, "format": "fp32", "tau": 0.01}
    with pytest.raises(Stopped):
        train(config(**keys), tmp_path, stop=AfterSteps(100), compiled=False)
    learner = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]["agent"]
    of = {"moment": "e5m2", "second": "posit8"}
    for name in [name.removesuffix("_optimizer") for name in learner if name.endswith("_optimizer")]:
        if name == "temperature":
            continue
        (buffers,) = learner[f"{name}_optimizer"]["optimizer"]["state"].values()
        kept = [(learner[name], "mxint8"), *((buffers[what], format) for what, format in of.items())]
        for tensor, format in kept:
            assert torch.equal(tensor, roundoff.round(tensor, format))
            assert tensor.count_nonzero() > len(tensor) / 4
    for name in ("target", "critic_target", "actor_target"):
        if name in learner:
            assert torch.equal(learner[name], roundoff.round(learner[name], "mxint8"))


def test_an_average_in_few_bits_follows_stochastically_or_compensated():
    source = torch.rand(4000) + 1
    nearest, stochastic = (Kept(Format.parse("e5m3"), Rounding(mode)) for mode in ("nearest-even", "stochastic"))

    def average(*kept):
        with simulate("fp32", seed=1) as simulation:
            average = StoredEMA(torch.ones(4000), 0.01, *kept)
            for simulation.step in range(500):
                average.update_(source)
        return average.average

    expected = source - (source - 1) * 0.99**500
    assert torch.equal(average(nearest), torch.ones(4000))
    assert (average(stochastic) - expected).mean().abs() < 0.01
    assert 0.1 < (average(stochastic) - expected).abs().max() < 0.6
    assert (average(nearest, stochastic) - expected).abs().max() < 0.15


def test_what_is_lost_is_kept_in_formats_of_its_own():
    few, fewer = (Kept(Format.parse(name), Rounding.NEAREST_EVEN) for name in ("e5m5", "e5m2"))
    average = StoredEMA(torch.ones(300), 0.01, few, fewer)
    storage = Storage(weights="e5m5", compensations="e5m2")
    keys = {"fixes": [*PLAIN, "kahan_gradients"]}
    optimizer = NetworkOptimizer(
        torch.ones(300), config(**keys, storage=None), Format.parse("e5m10"), kahan=True, storage=storage
    )
    with simulate("e5m10"):
        for _ in range(9):
            average.update_(torch.linspace(1, 2, 300))
            optimizer.flat.grad = torch.linspace(-1, 1, 300)
            optimizer.step()
    (state,) = optimizer.optimizer.state.values()
    for lost in (average.compensation, state["compensation"]):
        assert torch.equal(lost, roundoff.round(lost, "e5m2"))
        assert lost.count_nonzero() > 200


def test_what_weights_in_few_bits_lose_is_compensated():
    """A thousand steps of an eighth of an ulp, of which each alone would be lost."""
    p = torch.ones(300, requires_grad=True)
    optimizer = HAdam([p], lr=2.0**-6, kahan=True, eps=0.0)
    optimizer.keep = Kept(Format.parse("e5m2"), Rounding.NEAREST_EVEN)
    for _ in range(100):
        p.grad = torch.full((300,), -1.0)
        optimizer.step()
        assert torch.equal(p, roundoff.round(p.detach(), "e5m2"))
    assert torch.equal(p.detach(), torch.full((300,), 2.5))  # 1 + 100/64, in steps of 1/2


@pytest.mark.parametrize("kept", ["e5m2", "e4m3fn", "e4m3fn_saturate", "posit8", "mxfp8_e4m3"])
def test_loss_scales_see_overflow_in_whatever_gradients_are_kept(kept):
    """A gradient that is too large is a step that is skipped, and halves the scale, also where the format saturates."""
    storage = Storage(weight_gradients=kept, first_moments=kept, second_moments=kept)
    flat = torch.ones(8)
    optimizer = NetworkOptimizer(flat, config(storage=None), Format.parse("e5m10"), kahan=False, storage=storage)
    with simulate("e5m10"):
        flat.grad = torch.full((8,), 1e30)
        optimizer.step()
        assert torch.equal(flat, torch.ones(8))
        assert optimizer.scale == 5000
        flat.grad = torch.full((8,), 1.0)
        optimizer.step()
    assert not torch.equal(flat, torch.ones(8))
    assert flat.isfinite().all()


# The same run


def test_formats_without_rounding_change_nothing(tmp_path):
    """In fp32 each of them leaves the bytes of a run as they are."""
    everything = dict.fromkeys(set(EIGHT) - {"targets"}, "fp32")
    train(config(format="fp32", storage=None), tmp_path / "plain", compiled=False)
    train(config(format="fp32", storage=everything), tmp_path / "stored", compiled=False)
    kept = tmp_path / "plain" / "result.json"
    result = json.loads(kept.read_text())
    assert "untrained" in result  # of runs that others are compared with, which are those that store nothing
    rewritten = {name: value for name, value in result.items() if name != "untrained"}
    kept.write_text(json.dumps(rewritten, indent=1) + "\n")
    assert bytes_of(tmp_path / "plain") == bytes_of(tmp_path / "stored")


def test_a_compiled_step_stores_what_the_eager_one_does():
    """Each of the formats and modes of a run, behind loops that the compiler writes and in front of others."""

    def step(x, moment):
        moment.mul_(0.9).add_(x, alpha=0.1)
        kept = moment
        for name, rounding in FORMATS_KEPT:
            kept = store(kept * 1.1, Format.parse(name), Rounding(rounding)) - x
        moment.copy_(store(moment, Format.parse("e5m2"), Rounding.STOCHASTIC))
        return kept, store(x, Format.parse("e4m3"))

    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(0))
    mine, theirs = torch.zeros(4, 96), torch.zeros(4, 96)
    eager, simulation = simulate("e5m10", seed=3), simulate("e5m10", seed=3)
    program = roundoff.compile(step, simulation)
    for eager.step in range(2):
        simulation.step = eager.step
        found = program(x, mine)
        with eager:
            expected = step(x, theirs)
        assert all(map(torch.equal, (*found, mine), (*expected, theirs)))
        assert simulation.draws == eager.draws
    assert program.reason is None
    assert eager.draws == 4


@pytest.mark.parametrize("traced", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["traced", "compiled"])
def test_in_a_program_in_a_population_or_interrupted_it_leaves_the_same_bytes(tmp_path, traced, request, monkeypatch):
    if traced:  # what the compiler makes of what is stored, the test above shows
        request.getfixturevalue("uncompiled")
        monkeypatch.setattr(compiled_updates, "_PROGRAMS", {})
        monkeypatch.setattr(population, "programs_of", lambda *_: defaultdict(dict))
    keys = EIGHT | {
        "gradients": "e5m2",
        "weights": "mxint8",
        "compensations": "e4m3",
        "target_compensations": "mxfp8_e4m3",
    }
    keys = {"storage": keys, "fixes": [*PLAIN, "kahan_gradients"], "hidden_layers": 1, "steps": 480, "eval_every": 240}
    runs = [config(seed=seed, **keys) for seed in range(2)]
    for i, run in enumerate(runs):
        train(run, tmp_path / f"eager{i}", compiled=False)
    with pytest.raises(Stopped):
        train(runs[0], tmp_path / "alone", stop=AfterSteps(40), compiled=True)
    train(runs[0], tmp_path / "alone", compiled=True)
    notices = []
    jobs = [Job(run, tmp_path / f"together{i}", on_notice=notices.append) for i, run in enumerate(runs)]
    outcomes = dict(train_together(jobs, compiled=True))
    assert {outcome.status for outcome in outcomes.values()} == {"done"}
    assert notices == ["updates are compiled, of 2 runs together"] * 2
    assert bytes_of(tmp_path / "alone") == bytes_of(tmp_path / "eager0")
    for i in range(2):
        assert bytes_of(tmp_path / f"together{i}") == bytes_of(tmp_path / f"eager{i}")


def test_a_policy_quantized_as_a_whole_acts_without_storage(tmp_path):
    """The policy acts as its weights do in fp32; what rounds operands alone leaves storage, and its random bits."""
    stored = EIGHT | {"activations": {"format": "e4m3", "rounding": "stochastic"}}
    train(config(storage=stored), tmp_path, compiled=False)
    run = quantize(tmp_path, [Quantization.parse(name) for name in ("fp32", "int8")])
    plain = SAC(5, 1, config(storage=None, format="fp32"), torch.device("cpu"))
    assert all(len(evaluation.returns) == 1 for evaluation in (run.original, *run.quantized.values()))
    x = torch.randn(7, 5)
    agent = SAC(5, 1, config(storage=stored), torch.device("cpu"))
    plain.actor.flat.copy_(agent.actor.flat)
    whole = agent.quantized(Quantization.parse("fp32")).act(x, deterministic=True)
    assert torch.equal(whole, plain.act(x, deterministic=True))
    assert not torch.equal(agent.act(x, deterministic=True), whole)


# What may be asked for


def test_a_config_says_no_more_than_it_was_given():
    storage = config().as_json()["storage"]
    assert storage == EIGHT
    assert config(storage=storage) == config()
    assert "storage" not in config(storage=None).as_json()
    assert config(storage={"weights": None}).storage is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"storage": "mxint8"}, "must be a mapping such as {weights: mxint8"),
        ({"storage": {}}, "must be a mapping such as {weights: mxint8"),
        ({"storage": {"weight": "mxint8"}}, "has no key 'weight'; allowed are weights, activations"),
        ({"storage": {"weights": "e5mm"}}, "e5mm"),
        ({"storage": {"weights": {"rounding": "stochastic"}}}, "must be a format, or a mapping such as"),
        ({"storage": {"weights": {"format": "e5m2", "rounding": "sideways"}}}, "rounding"),
        ({"storage": {"weights": "e5m30"}}, "storage.weights: e5m30 is not for an agent in e5m10"),
        ({"algorithm": "td3"}, "storage.activations is for sac from states; leave it out"),
        ({"storage": {"compensations": "e5m2"}}, "storage.compensations is for kahan_gradients"),
        ({"storage": {"target_compensations": "e5m2"}}, "for the losses of storage.targets; set storage.targets"),
        ({"fixes": "all"}, "leave that out of fixes, or round weights to nearest"),
        ({"baseline": "amp", "fixes": "none"}, "storage is not for runs with baseline, got baseline: amp"),
        ({"optimizer": "rmsprop"}, "storage.first_moments: rmsprop has none"),
        ({"tau": 1.0}, "storage.targets is for targets that tau moves"),
        ({"native": True}, "native"),
        ({"qat": {"format": "int8"}}, "qat"),
        ({"evaluate_in": ["int8"]}, "evaluate_in"),
    ],
)
def test_what_is_refused(keys, message):
    with pytest.raises(ValidationError) as error:
        config(**keys)
    assert message in str(error.value)
