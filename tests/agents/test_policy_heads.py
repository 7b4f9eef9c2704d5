"""Policies: what they draw and choose, and what becomes of logits that are no numbers."""

from types import SimpleNamespace

import pytest
import torch

from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.models.policies import Categorical, DiagonalNormal
from roundoff.formats import round

CPU = torch.device("cpu")


def make(format="fp64", **keys):
    sizes = SimpleNamespace(observation_size=5, observation_shape=(5,), action_size=3, discrete=True)
    return PPO(sizes, TrainConfig(algorithm="ppo", task="gym:CartPole-v1", format=format, **keys), CPU)


class TestPolicies:
    logits = torch.tensor([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)

    def test_samples_have_their_probabilities(self):
        agent = make()
        n = 60_000
        noise = agent.action_noise(n)
        actions = Categorical().sample((self.logits[:1].expand(n, 3),), noise)
        assert set(actions.sum(1).tolist()) == {1.0}
        assert torch.allclose(actions.mean(0), self.logits[0].softmax(0), atol=0.01)
        mean, log_sigma = torch.tensor([[0.5, -2.0]], dtype=torch.float64), torch.tensor([0.3, -1.0]).double()
        noise = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        drawn = DiagonalNormal(normal_fix=True).sample((mean.expand(n, 2), log_sigma), noise)
        assert torch.allclose(drawn.mean(0), mean[0], atol=0.02)
        assert torch.allclose(drawn.std(0), log_sigma.exp(), rtol=0.02)

    def test_the_best_action_is_the_likeliest(self):
        assert Categorical().best((self.logits,)).tolist() == [[0, 0, 1], [1, 0, 0]]
        mean = torch.randn(2, 3)
        assert torch.equal(DiagonalNormal(normal_fix=True).best((mean, torch.zeros(3))), mean)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_a_logit_that_is_no_number_is_no_action(self, bad):
        logits = self.logits.clone()
        logits[0, 1] = bad
        for actions in (Categorical().best((logits,)), Categorical().sample((logits,), torch.zeros(2, 3))):
            assert actions[0].isnan().all()
            assert actions[1].tolist() == [1, 0, 0]

    def test_a_probability_that_underflows_has_a_logarithm_and_no_entropy(self):
        logits = torch.tensor([[0.0, -40.0, -300.0]])
        assert Categorical().log_prob((logits,), torch.eye(3)[2:]).item() == -300.0
        assert Categorical().entropy((logits,)).item() == pytest.approx(0.0, abs=1e-6)

    def test_noise_is_of_the_format_and_the_same_in_native_half_precision(self):
        noises = [make(format="e5m10", native=native).action_noise(1000) for native in (False, True)]
        assert torch.equal(noises[0], noises[1].float())
        assert torch.equal(noises[0], round(noises[0], "e5m10"))
        assert noises[0].isfinite().all()
