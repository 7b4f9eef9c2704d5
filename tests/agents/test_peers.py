"""Our algorithms and Stable-Baselines3's move weights alike, given the same rollout and the same batches."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.dqn.agent import DQN
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.experience.on_policy import minibatch_of
from roundoff.agents.experience.replay import batch_of

pytest.importorskip("stable_baselines3")

import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure

CPU = torch.device("cpu")
TASK = "CartPole-v1"
NET = {"net_arch": [16, 16]}


def like_ours(linears, tensor):
    """Weights (in, out) and biases of layers of PyTorch, as one or several networks' of ours."""
    return [
        torch.stack([getattr(one, name).detach().t() for one in linears]).reshape(layer.shape)
        for name, layer in zip(("weight", "bias"), tensor, strict=True)
    ]


def close(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target_kl", [None, 1e-6])
def test_ppo_learns_from_a_rollout_as_theirs_does(target_kl):
    steps, environments = 32, 8
    theirs = stable_baselines3.PPO(
        "MlpPolicy", make_vec_env(TASK, environments, seed=0), n_steps=steps, batch_size=256, n_epochs=4, seed=0,
        gamma=0.98, gae_lambda=0.8, learning_rate=1e-3, ent_coef=0.01, policy_kwargs=NET,
        target_kl=target_kl,
    )  # fmt: skip
    sizes = SimpleNamespace(observation_size=4, observation_shape=(4,), action_size=2, discrete=True)
    keys = {"horizon": steps, "environments": environments, "batch_size": 256, "epochs": 4, "hidden_units": 16}
    keys |= {"discount": 0.98, "gae_lambda": 0.8, "lr": 1e-3, "entropy_weight": 0.01, "fixes": "none"}
    keys |= {"target_kl": target_kl}
    ours = PPO(sizes, TrainConfig(algorithm="ppo", task=f"gym:{TASK}", **keys), CPU)

    def as_ours():
        policy, parts = theirs.policy, theirs.policy.mlp_extractor
        hidden = [(parts.policy_net[i], parts.value_net[i]) for i in (0, 2)]
        both = [*hidden, (policy.action_net,), (policy.value_net,)]
        pairs = zip(both, zip(*[iter(ours.network.layers)] * 2, strict=True), strict=True)
        return [one for linears, layers in pairs for one in like_ours(linears, layers)]

    for mine, other in zip(ours.network.layers, as_ours(), strict=True):
        mine.copy_(other)
    _, callback = theirs._setup_learn(10**6)
    theirs.set_logger(configure(None, []))
    theirs.collect_rollouts(theirs.env, callback, theirs.rollout_buffer, steps)
    kept = theirs.rollout_buffer
    ends = np.concatenate((kept.episode_starts[1:], theirs._last_episode_starts[None]))
    assert ends.any()
    seen = torch.from_numpy(np.concatenate((kept.observations, theirs._last_obs[None])))
    actions = torch.eye(2)[torch.from_numpy(kept.actions[..., 0]).long()]
    numbers = torch.from_numpy(np.stack((kept.rewards, 1 - ends), axis=-1)).float()  # no time is up so soon
    rows = torch.cat((seen[:-1], actions, seen[1:], numbers), dim=2).reshape(steps * environments, -1)
    rollout = batch_of(rows, 4, 2)
    judged = ours.judge(rollout, torch.from_numpy(ends).bool().reshape(-1, 1))
    found = (kept.log_probs, kept.values, kept.advantages, kept.returns)
    close(judged.T, [torch.from_numpy(x).reshape(-1) for x in found])
    batch = minibatch_of(torch.cat((rollout.observations_and_actions, judged), dim=1), 4)
    for _ in range(4):
        if target_kl and ours.has_moved_enough(batch):
            break
        ours.update(batch)
    assert (ours.updates < 4) == (target_kl is not None)
    before = [layer.clone() for layer in as_ours()]
    theirs.train()
    assert max(float((a - b).abs().max()) for a, b in zip(before, as_ours(), strict=True)) > 5e-4
    close(ours.network.layers, as_ours())


def test_dqn_learns_from_batches_as_theirs_does(monkeypatch):
    theirs = stable_baselines3.DQN(
        "MlpPolicy", gymnasium.make(TASK), batch_size=32, seed=0, learning_rate=1e-3, gamma=0.9, policy_kwargs=NET,
        learning_starts=500, max_grad_norm=1e9,
    )  # fmt: skip
    theirs.learn(400)  # random actions alone
    theirs.set_logger(configure(None, []))
    keys = {"hidden_units": 16, "hidden_layers": 2, "batch_size": 32, "lr": 1e-3, "discount": 0.9, "fixes": "none"}
    ours = DQN((4,), 2, TrainConfig(algorithm="dqn", task=f"gym:{TASK}", **keys, target_every=10**6), CPU)

    def as_ours(network):
        linears = [network.q_net[i] for i in (0, 2, 4)]
        pairs = zip(linears, zip(*[iter(ours.network.layers)] * 2, strict=True), strict=True)
        return [one for linear, layers in pairs for one in like_ours([linear], layers)]

    for layers in (ours.network.layers, ours.target):
        for mine, other in zip(layers, as_ours(theirs.q_net), strict=True):
            mine.copy_(other)
    draw, ends = theirs.replay_buffer.sample, 0.0

    def sample(size, env=None):
        nonlocal ends
        found = draw(size, env=env)
        ends += float(found.dones.sum())
        actions = torch.eye(2)[found.actions[:, 0]]
        parts = (found.observations, actions, found.next_observations, found.rewards, 1 - found.dones)
        ours.update(batch_of(torch.cat(parts, dim=1), 4, 2))
        return found

    monkeypatch.setattr(theirs.replay_buffer, "sample", sample)
    before = as_ours(theirs.q_net)
    theirs.train(gradient_steps=20, batch_size=32)
    assert ends
    assert max(float((a - b).abs().max()) for a, b in zip(before, ours.network.layers, strict=True)) > 1e-3
    close(ours.network.layers, as_ours(theirs.q_net))
