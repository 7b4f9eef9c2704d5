"""Policies outside of their runs: the learner's actions, numpy's integers, ONNX Runtime's bits, messages."""

import json
import math

import numpy as np
import pytest
import torch
from acting_policies import ACTIONS, CASES, learner_of, observations_of, perceptron
from each import each

from roundoff.agents import RunError
from roundoff.agents.acting.elementary import exponential, tanh
from roundoff.agents.acting.engines import ENGINES, SimulatedEngine, message_for, open_engine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.models.policy_layers import Activation, Decision
from roundoff.formats import Format, FormatError, round

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

COUNT = 40


def simulated(policy, fmt, **keys):
    return SimulatedEngine(PackedPolicy.of(policy, fmt).to_bytes(), **keys)


def by_onnx_runtime(policy, fmt):
    return open_engine("onnxruntime", message_for("onnxruntime", PackedPolicy.of(policy, fmt)))


@pytest.mark.parametrize("case", CASES)
def test_in_float32_engines_do_what_the_learner_does(case):
    learner, observations = learner_of(case), observations_of(case, COUNT)
    wanted = learner.act(torch.from_numpy(observations), deterministic=True).numpy()
    if not CASES[case][2]:
        wanted = wanted.clip(-1, 1)  # as environments do
    assert not np.allclose(wanted, wanted[0])  # or nothing would be tested
    for engine in (simulated(learner.policy_layers(), "fp32"), by_onnx_runtime(learner.policy_layers(), "fp32")):
        np.testing.assert_allclose(engine.act(observations), wanted, atol=2e-6)


def quantized_in_numpy(x, width):
    n = np.float32(2**width - 1)
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / n or np.float32(1)
    zero = int(np.rint(np.clip(np.float32(0) - low / scale, 0, n)))
    return np.clip(np.rint(x / scale).astype(int) + zero, 0, int(n)) - zero, scale


@pytest.mark.parametrize("fmt", ["int8", "int8_ax0", "int5", "int4_ax0", "int2"])
@pytest.mark.parametrize("count", [1, 9])
def test_integers_are_multiplied_as_numpy_multiplies_them(fmt, count):
    policy, width = perceptron([7, 30, 20, 3], decision=Decision.CLIP), Format.parse(fmt).bits
    x = observations = np.random.default_rng(count).standard_normal((count, 7)).astype(np.float32)
    for layer in policy:
        weight = layer.weight.numpy()
        largest = np.abs(weight).max(axis=1) if fmt.endswith("ax0") else np.abs(weight).max()
        scale = (largest.astype(np.float64) / (2 ** (width - 1) - 1)).astype(np.float32)
        codes = np.rint(weight * (1 / scale)[..., None] if scale.ndim else weight * (1 / scale)).astype(np.int64)
        integers, own = quantized_in_numpy(x, width)
        x = (integers @ codes.T).astype(np.float32) * (own * scale) + layer.bias.numpy()
        x = np.maximum(x, 0) if layer.activation is Activation.RELU else x
    outputs, actions = simulated(policy, fmt).outputs_and_actions(observations)
    np.testing.assert_array_equal(outputs, x)
    np.testing.assert_array_equal(actions, x.clip(-1, 1))


@each("fmt", ["int8", "int8_ax0"])
@each("count", [1, 16])
@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_gives_the_bits_of_the_simulation(case, fmt, count):
    policy = learner_of(case).policy_layers()
    simulation, engine = simulated(policy, fmt), by_onnx_runtime(policy, fmt)
    exact = all(layer.activation is not Activation.TANH for layer in policy) and len(policy.heads) == 1
    for seed in range(20):
        observations = observations_of(case, count, seed)
        outputs, actions = simulation.outputs_and_actions(observations)
        theirs, their_actions = engine.outputs_and_actions(observations)
        if exact:
            np.testing.assert_array_equal(theirs, outputs)
        else:  # its tanh and its means have other last bits, and seldom a code with them
            step = max(float(layer.weight.abs().max()) for layer in policy) / 64
            np.testing.assert_allclose(theirs, outputs, atol=step)
            assert np.median(np.abs(theirs - outputs)) < 1e-6
        np.testing.assert_allclose(their_actions, actions, atol=1e-6 if exact else step)


@pytest.mark.parametrize("sizes", [[376, 300, 17], [3, 513, 129, 2]])
def test_so_it_does_with_odd_and_with_large_layers(sizes):
    policy = perceptron(sizes)
    for fmt in ("int8", "int8_ax0"):
        simulation, engine = simulated(policy, fmt), by_onnx_runtime(policy, fmt)
        for seed, size in enumerate([1, 2, 5, 1e-20, 1e20, 0, -1]):
            x = np.random.default_rng(seed).standard_normal((3, sizes[0])).astype(np.float32)
            x = np.abs(x) * np.float32(size) if size in (2, -1) else x * np.float32(size)
            np.testing.assert_array_equal(engine.outputs_and_actions(x)[0], simulation.outputs_and_actions(x)[0])


def test_so_it_does_between_two_codes():
    """The bits agree where a quotient is a tie or nearly one, and a product with the reciprocal has another code."""
    policy, others = perceptron([255, 5]), 0
    simulation, engine = simulated(policy, "int8_ax0"), by_onnx_runtime(policy, "int8_ax0")
    for seed in range(50):
        step = np.float32(np.random.default_rng(seed).uniform(0.01, 1))
        x = ((np.arange(255, dtype=np.float32) + np.float32(0.5)) * step)[None]
        x[0, 0] = 255 * step  # so that the others lie between two codes
        others += (np.rint(x / step) != np.rint(x * (np.float32(1) / step))).sum()
        for both in (x, -x, x[:, ::-1]):
            np.testing.assert_array_equal(engine.outputs_and_actions(both)[0], simulation.outputs_and_actions(both)[0])
    assert others > 0


@pytest.mark.parametrize("fmt", ["e4m3", "fp16", "e5m2", "mxfp4", "posit8", "int8_asym", "int8_g4", "q3.4"])
def test_operands_of_products_are_rounded_to_other_formats(fmt):
    policy = perceptron([8, 16, 3])
    observations = torch.randn(COUNT, 8, generator=torch.Generator().manual_seed(3))
    x = observations
    for layer in policy:
        x = round(x, fmt) @ round(layer.weight, fmt).T + layer.bias
        x = x.relu() if layer.activation is Activation.RELU else x
    np.testing.assert_allclose(simulated(policy, fmt).act(observations.numpy()), x.tanh(), atol=1e-6)


def test_sums_of_products_can_have_an_accumulator():
    policy = perceptron([8, 50, 3])
    x = observations_of("sac", COUNT)[:, [0, 1, 2, 3, 4, 0, 1, 2]]
    plain, narrow = (simulated(policy, "e4m3", accumulate=how).act(x) for how in (None, "e5m3"))
    assert not np.allclose(plain, narrow, atol=1e-3)


FORMATS = [
    "fp32", "fp16", "bf16", "e4m3", "e2m3", "int8", "int8_ax0", "int4", "int3_ax0", "int12", "int8_g8", "uint8",
    "mxfp4", "mxfp8_e4m3", "nvfp4", "e4m3_row", "posit8", "lns4_2", "q3.4",
]  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_message_says_all_of_a_policy(fmt):
    for case in ("rainbow of planes", "ppo of numbers"):
        policy = learner_of(case).policy_layers()
        packed = PackedPolicy.of(policy, fmt)
        message = packed.to_bytes()
        read = PackedPolicy.from_bytes(message)
        assert read.to_bytes() == message
        for layer, theirs in zip(policy, read.policy, strict=True):
            torch.testing.assert_close(theirs.weight, round(layer.weight, fmt), rtol=0, atol=0)
            assert torch.equal(theirs.bias, layer.bias)
            assert (theirs.activation, theirs.weight.shape) == (layer.activation, layer.weight.shape)
        assert (read.layout.decision, read.layout.action_size) == (policy.decision, ACTIONS)
        assert read.layout.observation_shape == policy.observation_shape
        weights = sum(layer.weight.numel() for layer in policy)
        assert packed.weight_bytes < len(message)
        assert packed.weight_bytes < weights * (packed.format.bits_per_number / 8 + 1)


def test_a_message_of_int8_has_a_quarter_of_the_size():
    policy = perceptron([17, 256, 256, 6])
    sizes = {fmt: len(PackedPolicy.of(policy, fmt).to_bytes()) for fmt in ("fp32", "int8", "int4")}
    assert sizes["fp32"] / sizes["int8"] > 3.8
    assert sizes["fp32"] / sizes["int4"] > 7


def test_what_is_no_message_is_refused():
    message = PackedPolicy.of(perceptron([3, 4, 2]), "int8").to_bytes()
    for damaged in (b"", b"hello", message[:-8], message + b"\0" * 8, message[:40], b"\x80" + message):
        with pytest.raises(RunError, match="not a packed policy"):
            PackedPolicy.from_bytes(damaged)
    start = message.index(b"{")
    header = json.loads(message[start : message.index(b"}]") + 200].split(b"\0")[0].rpartition(b"}")[0] + b"}")
    for key, value in {"format": "int77", "heads": [5], "decision": "guess", "layers": [{}]}.items():
        text = json.dumps({**header, key: value}).encode()
        text += b" " * (-(start + len(text)) % 8)
        changed = message[: start - 4] + len(text).to_bytes(4, "little") + text
        with pytest.raises((RunError, FormatError)):
            PackedPolicy.from_bytes(changed)
    with pytest.raises(RunError, match="cannot read this policy"):
        open_engine("onnxruntime", b"no graph")


def test_what_cannot_be_packed_or_computed_is_refused_with_one_message():
    policy = perceptron([3, 4, 2])
    with pytest.raises(RunError, match="cannot represent all values of fp64"):
        PackedPolicy.of(policy, "fp64")
    with pytest.raises(FormatError, match="int99"):
        PackedPolicy.of(policy, "int99")
    with pytest.raises(RunError, match="computes policies in fp32, int8 or int8_ax0, got int4"):
        message_for("onnxruntime", PackedPolicy.of(policy, "int4"))
    with pytest.raises(RunError, match="engine must be one of simulated, onnxruntime, got 'torch'"):
        message_for("torch", PackedPolicy.of(policy, "int8"))
    policy.heads[0][1].weight[0, 0] = math.nan
    with pytest.raises(RunError, match="weights of layer 1"):
        PackedPolicy.of(policy, "int8")
    assert list(ENGINES) == ["simulated", "onnxruntime"]


def test_policies_of_images_under_drq_are_refused():
    learner = learner_of("sac")
    config = learner.config.model_copy(update={"algorithm": "drq"})
    learner.config = config
    with pytest.raises(RunError, match="the policy of drq is more than linear layers"):
        super(type(learner), learner).policy_layers()


def test_tanh_and_exponential_are_those_of_float64():
    x = torch.cat([torch.linspace(-12, 12, 20001), torch.logspace(-30, 2, 2000), torch.tensor([0.0, -0.0, math.inf])])
    exact = torch.tanh(x.double())
    wrong = (tanh(x) != exact.float()).float().mean()
    assert wrong < 1e-3
    torch.testing.assert_close(tanh(x).double(), exact, rtol=2**-23, atol=0)
    assert tanh(torch.tensor([math.nan])).isnan().all()
    assert math.copysign(1, tanh(torch.tensor([-0.0]))) == -1
    arguments = torch.linspace(-700, 0, 10001, dtype=torch.float64)
    torch.testing.assert_close(exponential(arguments), arguments.exp(), rtol=1e-11, atol=0)
