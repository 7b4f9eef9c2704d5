"""The agent that learns from pixels: DrQ by the book in float64, of its format in simulation, and what it may touch."""

import copy
import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from roundoff.agents import FIXES, TrainConfig
from roundoff.agents.algorithms.drq.agent import DrQ
from roundoff.agents.experience.augmentation import images_to_format
from roundoff.agents.experience.frame_replay import FrameReplay
from roundoff.formats import Format, round

ACTION, SIZE, BATCH = 2, 16, 4
CPU = torch.device("cpu")
TINY = {
    "observations": "pixels", "image_size": SIZE, "frames": 2, "filters": 3, "feature_size": 5, "image_shift": 2,
    "hidden_units": 8, "batch_size": BATCH, "lr": 1e-3, "log_sigma_min": -10.0, "sigma_eps": 1e-4, "tau": 0.01,
    "actor_update_every": 2, "kahan_momentum_scale": 100.0,
}  # fmt: skip


def make(format="fp64", fixes="all", **keys):
    exact = {"softplus_threshold": 30.0, "adam_eps": 1e-6} if format == "fp64" else {}
    return DrQ(ACTION, TrainConfig(format=format, fixes=fixes, **(TINY | exact | keys)), CPU)


def make_replay(agent, format="fp64", seed=0):
    generator = torch.Generator().manual_seed(seed)
    replay = FrameReplay(60, (3, SIZE, SIZE), stack=2, row_size=ACTION + 2, dtype=agent.dtype, device=CPU)
    for _ in range(3):
        replay.begin(torch.randint(256, (3, SIZE, SIZE), generator=generator, dtype=torch.uint8))
        for _ in range(8):
            row = torch.randn(ACTION + 2, generator=generator).tanh().double()
            row[-1] = 1
            image = torch.randint(256, (3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
            replay.add(round(row, format).to(agent.dtype), image)
    return replay


def train(agent, updates, format="fp64", seed=0):
    replay, generator = make_replay(agent, format), torch.Generator().manual_seed(seed)
    for _ in range(updates):
        metrics = agent.update(replay.sample(BATCH, generator))
    return metrics


def flat(agent):
    return torch.cat([value.flatten() for value in agent.weights().values()])


class Encoder(nn.Module):
    """DrQ's encoder, with weight standardization as its authors wrote it, and the paper's downscaling."""

    def __init__(self, standardize):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(6 if k == 0 else 3, 3, 3, stride=1 + (k == 0)) for k in range(4)])
        self.linear, self.norm = nn.Linear(3, 5), nn.LayerNorm(5)
        self.standardize = standardize

    def forward(self, images, detach=False):
        h = images
        for conv in self.convs:
            h = torch.relu(conv(h))
        h = h.flatten(1).detach() if detach else h.flatten(1)
        weight = self.linear.weight
        if self.standardize:
            weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) + 1e-5)
        h = functional.linear(h, weight, self.linear.bias)
        return torch.tanh(self.norm(h * (10 / h.detach().abs().amax(1, keepdim=True)).clamp(max=1)))


class Network(nn.Module):
    def __init__(self, standardize, inputs, outputs, heads):
        super().__init__()
        self.encoder = Encoder(standardize)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, outputs))
            for _ in range(heads)
        )
        self.double()

    def forward(self, images, *more, detach=False):
        x = torch.cat((self.encoder(images, detach), *more), dim=1)
        return [head(x) for head in self.heads]

    def take(self, layers, convolutional):
        """Takes over the agent's layers; returns parameters in that order."""
        layers = [layer.detach().clone() for layer in layers]
        encoder = self.encoder
        mine = [p for conv in encoder.convs for p in (conv.weight, conv.bias)] if convolutional else []
        mine += [encoder.linear.weight, encoder.linear.bias, encoder.norm.weight, encoder.norm.bias]
        for p, layer in zip(mine, layers, strict=False):
            p.data = layer
        for k, linear in enumerate([0, 2, 4]):
            for member, head in enumerate(self.heads):
                head[linear].weight.data = layers[len(mine) + 2 * k][member].mT.clone()
                head[linear].bias.data = layers[len(mine) + 2 * k + 1][member, 0].clone()
        return mine + list(self.heads.parameters())


class ByTheBook:
    """DrQ with torch.nn, torch.optim.Adam and torch.distributions."""

    def __init__(self, agent):
        standardize = agent.config.weight_standardization == "units"
        self.actor = Network(standardize, 5, 2 * ACTION, 1)
        self.critic = Network(standardize, 5 + ACTION, 1, 2)
        actor, critic = self.actor.take(agent.actor.layers, False), self.critic.take(agent.critic.layers, True)
        self.actor.encoder.convs = self.critic.encoder.convs  # tied
        self.target = copy.deepcopy(self.critic)
        self.log_temperature = agent.log_temperature.clone().requires_grad_()
        options = {"lr": 1e-3, "eps": 1e-6}
        self.optimizers = [torch.optim.Adam(p, **options) for p in (critic, actor, [self.log_temperature])]
        self.noise = torch.Generator()
        self.noise.set_state(agent.generators["update_noise"].get_state())
        self.updates = 0

    def sample(self, images, noise):
        mean, raw = self.actor(images, detach=True)[0].chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, torch.exp(-10 + 6 * (torch.tanh(raw) + 1)) + 1e-4)
        u = mean + normal.scale * noise
        log_prob = normal.log_prob(u) - 2 * (math.log(2) - u - functional.softplus(-2 * u))
        return torch.tanh(u), log_prob.sum(-1, keepdim=True)

    def value(self, images, noise, temperature):
        actions, log_prob = self.sample(images, noise)
        return torch.min(*self.target(images, actions)) - temperature * log_prob

    def update(self, images, next_images, rows):
        """``images`` and ``next_images`` are pairs of copies."""
        self.updates += 1
        action, reward, discount = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
        noise = torch.randn(3, BATCH, ACTION, generator=self.noise, dtype=torch.float64)
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            values = [self.value(copy, noise[k], temperature) for k, copy in enumerate(next_images)]
            target = sum(reward + 0.99 * discount * value for value in values) / 2
        self.descend(0, sum(functional.mse_loss(q, target) for copy in images for q in self.critic(copy, action)))
        if self.updates % 2 == 0:
            actions, log_prob = self.sample(images[0], noise[2])
            q = torch.min(*self.critic(images[0], actions, detach=True))
            self.descend(1, (temperature * log_prob - q).mean())
            self.descend(2, (self.log_temperature.exp() * (-log_prob.detach() + ACTION)).mean())
            for average, source in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                average.data.lerp_(source.data, 0.01)

    def descend(self, which, loss):
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()

    def differences(self, agent):
        for mine, layers, convolutional in (
            (self.actor, agent.actor.layers, False),
            (self.critic, agent.critic.layers, True),
            (self.target, agent.target, True),
        ):
            theirs = copy.deepcopy(mine)
            theirs.take(layers, convolutional)
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                yield float((a - b).abs().max().detach())
        yield float((self.log_temperature - agent.log_temperature).abs().detach())


@pytest.mark.parametrize(
    ("fixes", "keys"),
    [
        ("none", {}),
        ("all", {}),
        ("all", {"original_images": False}),
        ("none", {"weight_standardization": "none"}),
        *(([name], {}) for name in FIXES),
        (["all", "stochastic_targets"], {}),
        (["all", "exact_errors"], {}),
    ],
)
def test_is_drq_by_the_book_in_float64_with_any_fix(monkeypatch, fixes, keys):
    agent = make(fixes=fixes, **keys)
    reference = ByTheBook(agent)
    replay, generator = make_replay(agent), torch.Generator().manual_seed(3)
    prepare, prepared = agent.prepare, []
    monkeypatch.setattr(agent, "prepare", lambda batch: prepared.append(prepare(batch)) or prepared[-1])
    for _ in range(4):
        batch = replay.sample(BATCH, generator)
        agent.update(batch)
        copies = prepared[-1]
        original = images_to_format(batch.observations, Format.parse("fp64"), torch.float64)
        assert torch.equal(copies.images[:BATCH], original) == agent.config.original_images
        assert not torch.equal(copies.images[BATCH:], original)
        reference.update(copies.images.split(BATCH), copies.next_images.split(BATCH), batch.rows)
    assert max(reference.differences(agent)) < 1e-7


def test_the_actor_moves_no_convolution():
    agent = make()
    replay = make_replay(agent)
    batch = agent.prepare(replay.sample(BATCH, torch.Generator()))
    assert agent.noise_sizes(BATCH) == (2 * BATCH, BATCH)
    critic, actor = agent.critic.flat.clone(), agent.actor.flat.clone()
    agent.update_actor_and_temperature(batch, torch.zeros(BATCH, ACTION, dtype=torch.float64))
    assert torch.equal(agent.critic.flat, critic)
    assert not torch.equal(agent.actor.flat, actor)
    convolutions = [w.clone() for w in agent.critic.layers[:8]]
    agent.update_critic(batch, torch.zeros(2 * BATCH, ACTION, dtype=torch.float64))
    assert not any(torch.equal(a, b) for a, b in zip(agent.critic.layers[:8], convolutions, strict=True))


@pytest.mark.parametrize("format", ["e5m10", "e5m5"])
@pytest.mark.parametrize("fixes", ["all", "none"])
def test_everything_kept_is_of_the_format(format, fixes):
    agent = make(format, fixes)
    metrics = train(agent, 2, format)
    values = flat(agent)
    assert torch.equal(round(values, format).nan_to_num(7), values.nan_to_num(7))
    if fixes == "all":
        assert values.isfinite().all()
        assert math.isfinite(agent.summarize(metrics)["critic_loss"])
    else:
        assert not values.isfinite().all()  # Adam's eps is 0


@pytest.mark.parametrize("baseline", ["coercion", "loss_scaling", "master_weights", "amp", "eps"])
def test_baselines_train_from_pixels_too(baseline):
    agent = make("e5m10", "none", baseline=baseline)
    before = flat(agent)
    train(agent, 2, "e5m10")
    values = flat(agent)
    assert not torch.equal(values, before)
    if baseline in ("coercion", "master_weights"):
        assert values.isfinite().all()
    assert torch.equal(round(values, "e5m10").nan_to_num(7), values.nan_to_num(7))


def test_half_natively_and_simulated_stay_together():
    agents = [make("e5m10", native=native) for native in (False, True)]
    for agent in agents:
        train(agent, 4, "e5m10")
    simulated, native = (flat(agent).float() for agent in agents)
    assert agents[1].dtype == torch.float16
    assert (simulated - native).abs().max() < 8e-3  # two steps of Adam, of 1e-3 each, in either direction


def test_a_restored_agent_continues_identically():
    straight = make("e5m10")
    train(straight, 2, "e5m10")
    restored = make("e5m10", seed=5)
    restored.load_state_dict(copy.deepcopy(straight.state_dict()))
    for agent in (straight, restored):
        train(agent, 2, "e5m10", seed=1)
    assert torch.equal(flat(straight), flat(restored))
    images = torch.rand(3, 6, SIZE, SIZE)
    assert torch.equal(straight.act(images, deterministic=False), restored.act(images, deterministic=False))


def test_the_papers_sizes():
    agent = DrQ(1, TrainConfig(observations="pixels", hidden_units=4), CPU)
    assert [tuple(layer.shape) for layer in agent.critic.layers[0:10:2]] == [
        (32, 9, 3, 3), *[(32, 32, 3, 3)] * 3, (50, 32 * 35 * 35),
    ]  # fmt: skip
    images = torch.rand(1, 9, 84, 84)
    assert agent.act(images, deterministic=True).shape == (1, 1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"filters": 16}, ["filters is about learning from pixels", "set observations: pixels"]),
        ({"weight_standardization": "none"}, ["weight_standardization is about", "leave weight_standardization out"]),
        ({"observations": "images"}, ["'states' or 'pixels'"]),
        ({"observations": "pixels", "image_size": 14}, ["at least 15", "got 14"]),
        ({"observations": "pixels", "keep_networks": True}, ["keep_networks compares", "observations: states"]),
        ({"observations": "pixels", "replay_capacity": 3}, ["replay_capacity counts images", "= 4, got 3"]),
        ({"observations": "pixels", "weight_standardization": True}, ["'none', 'units' or 'matrix'"]),
        ({"observations": "pixels", "feature_limit": 0}, ["greater than 0"]),
    ],
)
def test_wrong_combinations_are_refused(keys, words):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(**keys)
    assert caught.value.error_count() == 1
    for word in words:
        assert word in str(caught.value)
