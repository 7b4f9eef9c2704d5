"""TD3: by the book in float64 with any fix, the same bits compiled and together, and that it learns."""

import copy
import json

import odd_goal  # noqa: F401  registers the task
import pytest
import torch
from runs import check_together, outcome, stopped_and_continued
from textbook import modules_of
from torch import nn

from roundoff.agents import FIXES, TrainConfig, train
from roundoff.agents.algorithms.d4pg.agent import D4PG
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.agents.experience.replay import Replay
from roundoff.agents.optimizers.hadam import HAdam
from roundoff.agents.optimizers.kahan_momentum import KahanEMA
from roundoff.agents.programs.compiled import CompiledUpdates, compile_acting
from roundoff.formats import Format, round

OBSERVATION, ACTION, BATCH = 5, 2, 16
CPU = torch.device("cpu")
STOCHASTIC = ["all", "stochastic_compensation", "stochastic_targets", "stochastic_moments"]
EXACT = ["all", "exact_errors"]
SMALL = {"hidden_units": 16, "last_hidden_units": 16, "batch_size": BATCH}


def make(format="fp64", **keys):
    return TD3(OBSERVATION, ACTION, TrainConfig(algorithm="td3", format=format, **{**SMALL, **keys}), CPU)


def make_batches(format, updates, seed=0):
    generator = torch.Generator().manual_seed(seed)
    replay = Replay(1, OBSERVATION, ACTION, dtype=Format.parse(format).carrier, device=CPU)
    for _ in range(updates):
        rows = torch.randn(BATCH, replay.rows.shape[1], generator=generator)
        rows[:, OBSERVATION : OBSERVATION + ACTION].tanh_()
        rows[:, -1] = torch.rand(BATCH, generator=generator) > 0.2
        yield replay.as_batch(round(rows.to(replay.rows.dtype), format))


class ByTheBook:
    """Algorithm 1 with torch.nn and torch.optim.Adam."""

    def __init__(self, agent):
        self.actor = modules_of(agent.networks["actor"].layers, 0)
        self.critics = nn.ModuleList(modules_of(agent.networks["critic"].layers, k) for k in (0, 1))
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, *self.critics]))
        options = {"lr": agent.config.lr, "eps": agent.config.adam_eps}
        self.optimizers = [torch.optim.Adam(part.parameters(), **options) for part in (self.critics, self.actor)]
        self.noise = torch.Generator()
        self.noise.set_state(agent.generators["update_noise"].get_state())
        self.updates = 0

    def update(self, batch):
        self.updates += 1
        noise = torch.randn(BATCH, ACTION, generator=self.noise, dtype=torch.float64)
        with torch.no_grad():
            smoothed = torch.tanh(self.targets[0](batch.next_observations)) + (0.2 * noise).clip(-0.5, 0.5)
            x = torch.cat((batch.next_observations, smoothed.clip(-1, 1)), dim=1)
            target = batch.rewards + 0.99 * batch.discounts * torch.min(self.targets[1](x), self.targets[2](x))
        x = batch.observations_and_actions
        self.descend(0, sum(nn.functional.mse_loss(critic(x), target) for critic in self.critics))
        if self.updates % 2 == 0:
            x = torch.cat((batch.observations, torch.tanh(self.actor(batch.observations))), dim=1)
            self.descend(1, -self.critics[0](x).mean())
            sources = nn.ModuleList([self.actor, *self.critics])
            for slow, source in zip(self.targets.parameters(), sources.parameters(), strict=True):
                slow.data.lerp_(source.data, 0.005)

    def descend(self, which, loss):
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()

    def differences(self, agent):
        actor, critic = agent.networks["actor"].layers, agent.networks["critic"].layers
        pairs = [(self.actor, actor, 0), (self.targets[0], agent.target["actor"], 0)]
        pairs += [(self.critics[k], critic, k) for k in (0, 1)]
        pairs += [(self.targets[1 + k], agent.target["critic"], k) for k in (0, 1)]
        for network, layers, k in pairs:
            other = modules_of(layers, k)
            for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
                yield float((mine - theirs).detach().abs().max())


@pytest.mark.parametrize("fixes", ["none", "all", *([name] for name in FIXES), STOCHASTIC, EXACT], ids=str)
def test_is_td3_by_the_book_in_float64_with_any_fix(fixes):
    agent = make(fixes=fixes, adam_eps=1e-6)
    book = ByTheBook(agent)
    start = agent.networks["actor"].flat.clone()
    for batch in make_batches("fp64", 10):
        agent.update(batch)
        book.update(batch)
    assert max(book.differences(agent)) < 1e-9
    assert float((agent.networks["actor"].flat - start).abs().max()) > 1e-4


def test_the_defaults_are_the_papers():
    config = TrainConfig(algorithm="td3")
    assert config.hidden_widths == [400, 300]
    assert (config.lr, config.batch_size, config.tau, config.discount) == (1e-3, 100, 0.005, 0.99)
    assert (config.policy_delay, config.policy_noise, config.noise_clip) == (2, 0.2, 0.5)
    assert (config.exploration_noise, config.seed_steps) == (0.1, 1000)


def test_each_fix_is_where_it_belongs():
    agent = make("e5m10")
    assert {type(one.optimizer) for one in agent.optimizers.values()} == {HAdam}
    assert all(one.scaler is not None for one in agent.optimizers.values())
    assert {type(average) for average in agent.averages.values()} == {KahanEMA}
    kahan = {name: one.optimizer.param_groups[0]["kahan"] for name, one in agent.optimizers.items()}
    assert kahan == {"actor": False, "critic": True}


def test_exploration_is_noise_around_the_best_action_and_is_clipped():
    agent = make(exploration_noise=0.1)
    observations = torch.randn(4000, OBSERVATION, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = agent.act(observations, deterministic=False) - agent.act(observations, deterministic=True)
    inside = agent.act(observations, deterministic=True).abs() < 0.5
    assert noise[inside].std() == pytest.approx(0.1, rel=0.05)
    assert noise[inside].mean().abs() < 0.01
    wild = make(exploration_noise=10.0).act(observations, deterministic=False)
    assert wild.abs().max() == 1.0


def test_everything_kept_is_of_the_format():
    agent = make("e5m7")
    for batch in make_batches("e5m7", 4):
        agent.update(batch)
    for name, values in agent.weights().items():
        assert torch.equal(values, round(values, "e5m7")), name


def test_traced_it_has_the_same_bits(uncompiled):
    eager, mine = (make("e5m7", loss_scale_growth_interval=2, lr=3e-2) for _ in range(2))
    mine.compiled = CompiledUpdates(mine)
    compile_acting(mine)
    for batch in make_batches("e5m7", 8):
        metrics = [agent.summarize(agent.update(batch)) for agent in (eager, mine)]
        assert metrics[0] == metrics[1]
        actions = [agent.act(batch.observations[:1], deterministic=False) for agent in (eager, mine)]
        assert torch.equal(*actions)
    assert mine.compiled is not None
    assert mine.compiled.reason is None
    for name, values in eager.weights().items():
        assert torch.equal(values, mine.weights()[name]), name


TINY = {
    "algorithm": "td3", **SMALL, "task": "gym:Goal-v0", "steps": 80, "seed_steps": 20, "eval_every": 40,
    "eval_episodes": 1, "checkpoint_every": 25,
}  # fmt: skip


def test_interrupted_or_in_a_population_it_leaves_the_same_bytes(tmp_path, uncompiled):
    configs = [TrainConfig(**TINY, format=name, reward_scale=0.125) for name in ("e5m7", "e5m10")]
    check_together(configs, tmp_path)
    stopped_and_continued(configs[0], tmp_path / "stopped", at=55)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "alone0")


@pytest.mark.parametrize("format", [pytest.param("fp32", marks=pytest.mark.slow), "e5m10"])
def test_it_learns(tmp_path, format):
    """Always doing the best is worth 20; doing nothing about 15.7."""
    keys = {"steps": 700, "seed_steps": 200, "eval_every": 700, "eval_episodes": 5, "lr": 3e-3, "discount": 0.0}
    result = train(TrainConfig(**TINY | keys, format=format), tmp_path)
    assert result.return_mean > 19.5
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    assert config["algorithm"] == "td3"


@pytest.mark.parametrize(("algorithm", "made"), [("td3", TD3), ("d4pg", D4PG)])
def test_weights_begin_within_one_over_the_root_of_the_inputs(algorithm, made):
    keys = {"algorithm": algorithm, "hidden_units": 64, "hidden_layers": 2}
    agent = made(OBSERVATION, ACTION, TrainConfig(**keys), CPU)
    for network in agent.networks.values():
        for weight, bias in zip(network.layers[0::2], network.layers[1::2], strict=True):
            bound = weight.shape[-2] ** -0.5
            assert 0.8 * bound < float(weight.abs().max()) <= bound
            assert 0 < float(bias.abs().max()) <= bound
            assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.15)
    other = made(OBSERVATION, ACTION, TrainConfig(initial_weights="orthogonal", **keys), CPU)
    middle = other.networks["actor"].layers[2][0]
    torch.testing.assert_close(middle @ middle.mT, torch.eye(64))


@pytest.mark.parametrize("algorithm", ["td3", "d4pg"])
def test_how_weights_begin_is_part_of_a_run(algorithm):
    assert TrainConfig(algorithm=algorithm).as_json()["initial_weights"] == "uniform"
