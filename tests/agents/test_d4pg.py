"""D4PG and DDPG: by the book in float64 with any fix, the same bits compiled and together, and that it learns."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import odd_goal  # noqa: F401  registers the task
import pytest
import torch
from pydantic import ValidationError
from runs import check_together, outcome, stopped_and_continued
from textbook import modules_of
from torch import nn

from roundoff.agents import FIXES, TrainConfig, train
from roundoff.agents.algorithms.d4pg.agent import D4PG, make
from roundoff.agents.algorithms.value_learner import TargetCopy
from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience.prioritized import PrioritizedReplay
from roundoff.agents.experience.replay import batch_of
from roundoff.agents.experience.sampling import Sample
from roundoff.agents.optimizers.hadam import HAdam
from roundoff.agents.optimizers.kahan_momentum import KahanEMA
from roundoff.agents.programs.compiled import CompiledUpdates, compile_acting
from roundoff.agents.programs.population import shared_kind
from roundoff.analysis import read_experiment
from roundoff.formats import round

OBSERVATION, ACTION, BATCH = 5, 2, 16
CPU = torch.device("cpu")
SMALL = {"hidden_units": 16, "hidden_layers": 2, "batch_size": BATCH, "lr": 1e-3}
SUPPORT = {"atoms": 11, "v_min": -3.0, "v_max": 4.0}
DDPG = {"atoms": 1, "n_steps": 1, "tau": 0.1, "target_every": 1}
OPTIONS = {
    "ddpg": DDPG,
    "d4pg": {**SUPPORT, "target_every": 3},
    "prioritized": {**SUPPORT, "prioritized": True, "target_every": 2},
    "ddpg prioritized": {**DDPG, "prioritized": True, "n_steps": 3},
    "wide actor": {**SUPPORT, "actor_units": 24, "actor_layers": 3, "target_every": 3},
}
options_of_all = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def config_of(format="fp64", **keys):
    return TrainConfig(algorithm="d4pg", format=format, **{**SMALL, "task": "gym:Pendulum-v1", **keys})


def agent_of(format="fp64", **keys):
    return D4PG(OBSERVATION, ACTION, config_of(format, **keys), CPU)


def make_batches(agent, updates, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        rows = torch.randn(BATCH, agent.row_size, generator=generator)
        rows[:, OBSERVATION : OBSERVATION + ACTION].tanh_()
        rows[:, 2 * OBSERVATION + ACTION + 1] = (torch.rand(BATCH, generator=generator) > 0.2).float()
        if agent.config.prioritized:
            rows[:, -1] = torch.rand(BATCH, generator=generator)
        yield batch_of(round(rows.to(agent.dtype), agent.format), OBSERVATION, ACTION)


class ByTheBook:
    """The losses of both papers, differentiated by autograd, with torch.nn and torch.optim.Adam."""

    def __init__(self, agent):
        self.config = config = agent.config
        self.actor, self.critic = (modules_of(agent.networks[name].layers, 0) for name in ("actor", "critic"))
        self.slow_actor, self.slow_critic = copy.deepcopy((self.actor, self.critic))
        options = {"lr": config.lr, "eps": config.adam_eps}
        self.optimizers = {
            network: torch.optim.Adam(network.parameters(), **options) for network in (self.actor, self.critic)
        }
        if config.atoms > 1:
            self.atoms = torch.linspace(*config.support, config.atoms, dtype=torch.float64)
        self.updates = 0

    def outputs(self, critic, observations, actions):
        return critic(torch.cat((observations, actions), dim=1))

    def update(self, batch):
        self.updates += 1
        config = self.config
        weights = batch.weights[:, 0] if config.prioritized else torch.ones(BATCH, dtype=torch.float64)
        with torch.no_grad():
            actions = torch.tanh(self.slow_actor(batch.next_observations))
            following = self.outputs(self.slow_critic, batch.next_observations, actions)
        given = self.outputs(self.critic, batch.observations, batch.actions)
        losses, self.errors = (self.squared if config.atoms == 1 else self.cross_entropy)(given, following, batch)
        self.descend(self.critic, (weights * losses).mean())
        given = self.outputs(self.critic, batch.observations, torch.tanh(self.actor(batch.observations)))
        values = given[:, 0] if config.atoms == 1 else (given.softmax(1) * self.atoms).sum(1)
        self.descend(self.actor, -values.mean())
        if self.updates % config.target_every == 0:
            for slow, source in ((self.slow_actor, self.actor), (self.slow_critic, self.critic)):
                for mine, theirs in zip(slow.parameters(), source.parameters(), strict=True):
                    mine.data.lerp_(theirs.data, config.tau)

    def squared(self, given, following, batch):
        target = batch.rewards + 0.99**self.config.n_steps * batch.discounts * following
        errors = (given - target)[:, 0]
        return errors.square(), errors.detach().abs()

    def cross_entropy(self, given, following, batch):
        """The projection by its definition: each atom takes of every moved value what the triangle around it says."""
        step = float(self.atoms[1] - self.atoms[0])
        moved = batch.rewards + 0.99**self.config.n_steps * batch.discounts * self.atoms
        distances = (moved.clamp(*self.config.support)[:, None, :] - self.atoms[None, :, None]).abs()
        target = ((1 - distances / step).clamp(0, 1) * following.softmax(1)[:, None, :]).sum(2)
        losses = nn.functional.cross_entropy(given, target, reduction="none")
        entropy = -torch.xlogy(target, target).sum(1)
        return losses, losses.detach() - entropy

    def descend(self, network, loss):
        self.optimizers[network].zero_grad()
        loss.backward()
        self.optimizers[network].step()

    def differences(self, agent):
        pairs = [(self.actor, agent.networks["actor"].layers), (self.critic, agent.networks["critic"].layers)]
        pairs += [(self.slow_actor, agent.target["actor"]), (self.slow_critic, agent.target["critic"])]
        for network, layers in pairs:
            for mine, theirs in zip(network.parameters(), modules_of(layers, 0).parameters(), strict=True):
                yield float((mine - theirs).detach().abs().max())


def check_against_the_book(**keys):
    agent = agent_of(**{"adam_eps": 1e-6, **keys})
    book = ByTheBook(agent)
    starts = {name: network.flat.clone() for name, network in agent.networks.items()}
    for batch in make_batches(agent, 8):
        metrics = agent.update(batch)
        book.update(batch)
        if agent.config.prioritized:
            torch.testing.assert_close(metrics["priority"][:, 0], book.errors.sqrt(), rtol=1e-6, atol=1e-9)
    assert max(book.differences(agent)) < 1e-9
    for name, start in starts.items():
        assert float((agent.networks[name].flat - start).abs().max()) > 1e-3, name


@options_of_all
@pytest.mark.parametrize("fixes", ["none", "all"])
def test_is_the_papers_in_float64_with_any_option(options, fixes):
    check_against_the_book(fixes=fixes, **options)


@pytest.mark.parametrize("fix", [*FIXES, "stochastic_targets"])
@pytest.mark.parametrize("options", [DDPG, {**SUPPORT, "tau": 0.1, "target_every": 2}], ids=["ddpg", "d4pg"])
def test_no_fix_changes_anything_in_float64(options, fix):
    check_against_the_book(fixes=[fix], **options)
    if fix == "stochastic_targets" and options is DDPG:
        check_against_the_book(fixes=["exact_errors"], **options)


def test_the_defaults_are_the_papers():
    config = TrainConfig(algorithm="d4pg")
    assert (config.batch_size, config.lr, config.discount, config.replay_capacity) == (256, 1e-4, 0.99, 10**6)
    assert (config.atoms, config.support, config.n_steps) == (51, (-150, 150), 5)
    assert (config.target_every, config.tau, config.prioritized, config.adam_eps) == (100, 1.0, False, 1e-8)
    assert config.hidden_widths == config.actor_widths == [512] * 3
    actor_q = TrainConfig(algorithm="d4pg", actor_units=2048)
    assert (actor_q.hidden_widths, actor_q.actor_widths) == ([512] * 3, [2048] * 3)
    assert actor_q.widths_of_all == [512] * 3 + [2048] * 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"atoms": 1, "v_max": 3.0}, "v_max is of a categorical head, and atoms is 1"),
        ({"v_min": 200.0}, "v_min must be less than v_max, got v_min 200 and v_max 150"),
        ({"format": "e3m4"}, "atoms 51 between v_min -150 and v_max 150 need numbers up to 150, but the largest of"),
        ({"exploration_noise_min": 0.0}, "exploration_noise_min is for several environments, and there is one"),
        (
            {"exploration_noise_min": 0.0, "environments": 2, "learners": 2},
            "is for several environments of each of the learners, and there is one",
        ),
        (
            {"exploration_noise_min": 0.3, "environments": 2},
            "exploration_noise_min must be at most exploration_noise, got 0.3 and 0.2",
        ),
        ({"keep_networks": True}, "this critic has a categorical head; leave it out, or set atoms: 1"),
        ({"keep_networks": True, "atoms": 1, "prioritized": True}, "this critic has priorities"),
        ({"actor_units": 0}, "greater than or equal to 1"),
        ({"task": "gym:CartPole-v1"}, "algorithm d4pg takes continuous actions"),
    ],
)
def test_wrong_keys_are_one_message(keys, message):
    with pytest.raises(ValidationError, match=message) as raised:
        config_of(**keys)
    assert raised.value.error_count() == 1


def test_each_fix_is_where_it_belongs():
    agent = agent_of("e5m10", **SUPPORT)
    assert {type(one.optimizer) for one in agent.optimizers.values()} == {HAdam}
    assert all(one.scaler is not None for one in agent.optimizers.values())
    kahan = {name: one.optimizer.param_groups[0]["kahan"] for name, one in agent.optimizers.items()}
    assert kahan == {"actor": False, "critic": True}
    assert {type(average) for average in agent.averages.values()} == {TargetCopy}  # exact in any format
    assert {type(average) for average in agent_of("e5m10", tau=0.01).averages.values()} == {KahanEMA}


# Exploration.


def noises(agent, count, first):
    observations = torch.zeros(count, OBSERVATION, dtype=agent.dtype)
    best = agent.act(observations, deterministic=True)
    drawn = [agent.act(observations, deterministic=False, first=first) - best for _ in range(3000)]
    return torch.stack(drawn).std(dim=(0, 2))


def test_exploration_is_noise_around_the_best_action_and_is_clipped():
    torch.testing.assert_close(noises(agent_of(), 2, 5), torch.full((2,), 0.2).double(), rtol=0.05, atol=0)
    wild = agent_of(exploration_noise=10.0).act(torch.zeros(99, OBSERVATION).double(), deterministic=False)
    assert wild.abs().max() == 1.0


def test_environments_have_noises_of_their_own():
    agent = agent_of(environments=5, exploration_noise_min=0.0)
    sigmas = torch.cat((noises(agent, 3, 0), noises(agent, 2, 3)))
    assert sigmas[0] == 0
    torch.testing.assert_close(sigmas[1:], torch.tensor([0.05, 0.1, 0.15, 0.2]).double(), rtol=0.05, atol=0)
    rounded = agent_of("e5m2", environments=5, exploration_noise_min=0.0, v_min=-10.0, v_max=10.0)
    assert rounded.action_noise(2, 3).shape == (2, ACTION)


def test_a_run_tells_which_environments_its_actions_are_for(tmp_path, monkeypatch):
    seen = []
    plain = D4PG.action_noise
    monkeypatch.setattr(
        D4PG, "action_noise", lambda self, count, first=0: seen.append((first, count)) or plain(self, count, first)
    )
    keys = {**TINY, "environments": 5, "exploration_noise_min": 0.0, "steps": 60}
    train(TrainConfig(**keys), tmp_path, compiled=False)
    assert set(seen) == {(0, 3), (3, 2)}
    assert all(a != b for a, b in itertools.pairwise(seen))  # the groups take turns


# Few bits.


@options_of_all
@pytest.mark.parametrize("format", ["e5m10", "e5m2"])
def test_everything_kept_is_of_the_format_and_finite(format, options):
    agent = agent_of(format, **options)
    for batch in make_batches(agent, 6):
        agent.update(batch)
    for name, values in agent.weights().items():
        assert torch.equal(values, round(values, format)), name
        assert values.isfinite().all(), name


def test_in_e5m10_gradients_are_those_of_fp32():
    """Gradients of the mean, through a softmax with values up to 150, and of the cross entropy are small numbers."""
    gradients = {}
    for format in ("fp32", "e5m10"):
        agent = agent_of(format, hidden_units=64)
        (batch,) = make_batches(agent, 1)
        scales = {name: one.scale for name, one in agent.optimizers.items()}
        agent.update(batch)
        gradients[format] = {name: agent.networks[name].flat.grad / scales[name] for name in scales}
    for name, wanted in gradients["fp32"].items():
        assert nn.functional.cosine_similarity(wanted, gradients["e5m10"][name], dim=0) > 0.9999, name
        assert float(wanted.norm() / gradients["e5m10"][name].norm()) == pytest.approx(1, rel=0.01), name


def test_a_nan_in_the_actor_is_nan_in_the_actions():
    agent = agent_of("e5m10")
    agent.networks["actor"].flat[0] = torch.nan
    assert agent.act(torch.ones(1, OBSERVATION), deterministic=False).isnan().any()


# Runs.


def test_transitions_are_of_several_steps_and_drawn_by_priority():
    config = config_of(n_steps=3, prioritized=True, seed_steps=0)
    sizes = SimpleNamespace(
        observation_size=OBSERVATION, action_size=ACTION, observation_dtype=np.float64, discrete=False
    )
    _, recorder = make(config, sizes, CPU)
    assert isinstance(recorder.intake.replay, PrioritizedReplay)
    recorder.begin(np.zeros(OBSERVATION), 0)
    nothing, over = np.zeros(1), np.array([False])
    for reward in (1.0, 10.0, 100.0):
        following = np.full((1, OBSERVATION), reward)
        steps = Steps(following, np.array([reward]), np.ones(1), over, following)
        sample = Sample(0, np.zeros((1, ACTION)), steps, nothing)
        rows = recorder.rows(torch.zeros(1, OBSERVATION).double(), sample)
        recorder.add(rows[0], sample, 0)
    (batch,) = [drawn for drawn in recorder.due() if drawn is not None][:1] or [None]
    assert float(batch.rewards[0]) == 1 + 0.99 * 10 + 0.99**2 * 100
    assert float(batch.next_observations[0, 0]) == 100


TINY = {
    "algorithm": "d4pg", **SMALL, "task": "gym:Goal-v0", "steps": 100, "seed_steps": 20, "eval_every": 50,
    "eval_episodes": 1, "checkpoint_every": 25, "target_every": 5, "n_steps": 3, "atoms": 21, "v_min": -5.0,
    "v_max": 5.0,
}  # fmt: skip
SPREAD = {"prioritized": True, "environments": 3, "exploration_noise_min": 0.0, "actor_units": 32}


@pytest.mark.parametrize(
    "options",
    [
        # Every day test_compiled_updates.py traces DDPG, with stochastic rounding.
        pytest.param(OPTIONS["ddpg"], id="ddpg", marks=pytest.mark.slow),
        pytest.param(OPTIONS["prioritized"] | OPTIONS["wide actor"], id="d4pg"),
    ],
)
def test_traced_it_has_the_same_bits(options, uncompiled):
    eager, mine = (agent_of("e5m7", loss_scale_growth_interval=2, **{**options, "lr": 3e-2}) for _ in range(2))
    mine.compiled = CompiledUpdates(mine)
    compile_acting(mine)
    for batch in make_batches(eager, 6):
        metrics = [agent.summarize(agent.update(batch)) for agent in (eager, mine)]
        assert metrics[0] == metrics[1]
        actions = [agent.act(batch.observations[:1], deterministic=False) for agent in (eager, mine)]
        assert torch.equal(*actions)
    assert mine.compiled is not None
    assert mine.compiled.reason is None
    for name, values in eager.weights().items():
        assert torch.equal(values, mine.weights()[name]), name


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"atoms": 1, "v_min": None, "v_max": None}, id="ddpg", marks=pytest.mark.slow),
        pytest.param(SPREAD, id="d4pg"),
    ],
)
def test_interrupted_or_in_a_population_it_leaves_the_same_bytes(tmp_path, uncompiled, more):
    configs = [TrainConfig(**{**TINY, **more}, format=name) for name in ("e5m7", "e5m10")]
    check_together(configs, tmp_path)
    stopped_and_continued(configs[0], tmp_path / "stopped", at=60)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "alone0")


def test_an_actor_of_odd_width_is_trained_alone():
    assert shared_kind(TrainConfig(**TINY, format="e5m10"))
    assert shared_kind(TrainConfig(**TINY, format="e5m10", actor_units=20)) is None


def test_an_observed_run_keeps_its_networks_and_is_read(tmp_path):
    more = {"observe": True, "keep_networks": True, "atoms": 1, "v_min": None, "v_max": None}
    for format in ("fp32", "e5m10"):
        assert train(TrainConfig(**{**TINY, **more}, format=format), tmp_path / format).status == "done"
        assert len(read_experiment(tmp_path / format).runs) == 1
    assert (tmp_path / "e5m10/numerics.csv").stat().st_size > 1000
    assert (tmp_path / "e5m10/snapshots/states.npz").exists()


@pytest.mark.parametrize(
    ("format", "more"),
    [
        pytest.param("fp32", {}, id="d4pg-fp32", marks=pytest.mark.slow),
        pytest.param("e5m10", {}, id="d4pg-e5m10"),
        pytest.param("e5m10", {"atoms": 1, "v_min": None, "v_max": None}, id="ddpg-e5m10", marks=pytest.mark.slow),
    ],
)
def test_it_learns(tmp_path, format, more):
    """Always doing the best is worth 20; doing nothing about 15.7."""
    keys = {
        **TINY, "steps": 700, "seed_steps": 200, "eval_every": 700, "eval_episodes": 5, "lr": 3e-3, "n_steps": 1,
        "discount": 0.0,
    }  # fmt: skip
    assert train(TrainConfig(**keys | more, format=format), tmp_path, compiled=False).return_mean > 19.0
