"""Networks of PyTorch's own layers as policies that are exported."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import roundoff
from roundoff.agents import RunError
from roundoff.agents.acting.elementary import elu
from roundoff.agents.acting.engines import OnnxRuntime, SimulatedEngine
from roundoff.agents.acting.from_modules import policy_of
from roundoff.agents.acting.packed import PackedPolicy


def sequential(seed=0):
    torch.manual_seed(seed)
    hidden = nn.Sequential(nn.Linear(7, 32), nn.ELU(), nn.Dropout())
    return nn.Sequential(
        nn.Flatten(), hidden, nn.Linear(32, 16, bias=False), nn.Tanh(), nn.Linear(16, 3), nn.Identity()
    )


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x + 1)


def engines(policy, fmt):
    packed = PackedPolicy.of(policy, fmt)
    return [engine(engine.message(packed)) for engine in (SimulatedEngine, OnnxRuntime)]


X = np.random.default_rng(0).standard_normal((200, 7)).astype(np.float32)


def test_it_acts_as_the_module():
    module, mean, std = sequential(), torch.rand(7), torch.rand(7) + 0.5
    expected = module.eval()((torch.from_numpy(X) - mean) / std).detach().numpy()
    for engine in engines(policy_of(module, mean=mean, std=std), "fp32"):
        outputs, actions = engine.outputs_and_actions(X)
        np.testing.assert_allclose(outputs, expected, atol=2e-6)
        np.testing.assert_array_equal(actions, outputs)
    (simulated, _) = engines(policy_of(module, mean=mean, std=std, decision="clip"), "fp32")
    np.testing.assert_allclose(simulated.act(X), expected.clip(-1, 1), atol=2e-6)


def test_of_planes_too():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 5))
    x = np.random.default_rng(0).random((20, 2, 6, 6)).astype(np.float32)
    expected = module(torch.from_numpy(x)).detach().numpy()
    for engine in engines(policy_of(module, observation_shape=(2, 6, 6), decision="largest"), "fp32"):
        np.testing.assert_allclose(engine.outputs_and_actions(x)[0], expected, atol=1e-6)
        np.testing.assert_array_equal(engine.act(x).argmax(1), expected.argmax(1))


def test_elu_is_rounded_once():
    x = torch.cat([-torch.logspace(-40, 3, 20001), torch.linspace(-20, 3, 20001), torch.tensor([0.0, -0.0])])
    ours, exact = elu(x), torch.nn.functional.elu(x.double())
    assert ((ours.double() - exact).abs() <= 0.5001 * 2.0**-23 * exact.abs()).all()
    special = elu(torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0]))
    assert special[0].isnan()
    assert special[1:].tolist() == [torch.inf, -1.0, 0.0]
    assert special[3].signbit()


def test_a_file_is_written(tmp_path):
    found = roundoff.export(sequential(), tmp_path / "new" / "policy.h", "int4", decision="tanh")
    assert found.path.read_text().startswith("/* A policy of a Sequential")
    assert found.weight_bytes < 32 * (7 + 16) + 48
    with pytest.raises(RunError, match=re.escape("a policy is exported as *.onnx or *.h")):
        roundoff.export(sequential(), tmp_path / "policy.bin")


def test_a_policy_of_stable_baselines():
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu", seed=0)
    module = nn.Sequential(model.policy.mlp_extractor.policy_net, model.policy.action_net)
    x = X[:, :3]
    expected, _ = model.predict(x, deterministic=True)
    (simulated, _) = engines(policy_of(module), "fp32")
    np.testing.assert_allclose(simulated.act(x).clip(-2, 2), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "keys", "message"),
    [
        (Noisy(2, 2), {}, "Noisy is no layer that can be exported"),
        (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(4, 1)), {}, r"layer 1 takes \(4,\), and is given \(3,\)"),
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Linear(9, 1)), {"observation_shape": (1, 4, 4)}, r"given \(2, 3, 3\)"),
        (nn.Sequential(nn.Conv2d(1, 2, 5), nn.Linear(9, 1)), {"observation_shape": (1, 4, 4)}, "layer 0 takes"),
        (nn.LSTM(2, 2), {}, "LSTM is no layer that can be exported: allowed are Linear"),
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), {}, "LayerNorm is no layer"),
        (nn.Sequential(nn.Linear(2, 2), nn.ELU(0.5)), {}, "ELU is no layer that can be exported.* alpha 1"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh()), {}, "an exported layer has one activation"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), {}, "follows no linear layer"),
        (nn.Sequential(), {}, "no linear layer and no convolution"),
        (nn.Conv2d(1, 1, 2), {"observation_shape": (1, 4, 4)}, "ends with a convolution"),
        (nn.Sequential(nn.Conv2d(1, 1, (2, 3)), nn.Linear(2, 2)), {}, "convolutions are exported that are square"),
        (nn.Sequential(nn.Conv2d(1, 1, 2), nn.Linear(2, 2)), {}, r"must be \(planes, height, width\), got None"),
        (nn.Linear(2, 2), {"std": torch.tensor([1.0, 0.0])}, "std must be 2 finite numbers above zero"),
        (nn.Linear(2, 2), {"mean": torch.ones(3)}, "mean must be 2 finite numbers, one for each"),
        (nn.Linear(2, 2), {"decision": "largest_mean"}, "decision must be largest, tanh, clip, outputs, got"),
    ],
)
def test_others_are_refused(module, keys, message):
    with pytest.raises(RunError, match=message):
        policy_of(module, **keys)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    module = nn.Linear(2, 2)
    module.weight.data[0, 0] = torch.nan
    with pytest.raises(RunError, match="the weights of layer 0"):
        roundoff.export(module, tmp_path / "p.h")
