"""DQN and what Rainbow adds: by the book in float64 with any option, in few bits, compiled, stopped, learning."""

import copy
import itertools
import math

import numpy as np
import odd_environments  # noqa: F401  registers the tasks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from runs import check_together, outcome, stopped_and_continued
from textbook import modules_of
from torch import nn

from roundoff.agents import FIXES, TrainConfig, train
from roundoff.agents.algorithms.dqn.agent import DQN, make
from roundoff.agents.algorithms.dqn.exploration import random_actions, share_of_random_actions
from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience.n_step import NStepIntake
from roundoff.agents.experience.prioritized import PrioritizedReplay, SumTree
from roundoff.agents.experience.replay import Replay, batch_of
from roundoff.agents.experience.sampling import Sample
from roundoff.agents.programs.compiled import CompiledUpdates, compile_acting
from roundoff.formats import Format, round
from roundoff.simulate import simulate

OBSERVATION, ACTION, BATCH = 5, 3, 16
CPU = torch.device("cpu")
SMALL = {"hidden_units": 16, "hidden_layers": 2, "batch_size": BATCH, "task": "gym:CartPole-v1", "lr": 1e-3}
RAINBOW = {"atoms": 11, "double": True, "dueling": True, "n_steps": 3, "prioritized": True, "v_min": -4.0, "v_max": 4.0}


def config_of(format="fp64", **keys):
    return TrainConfig(algorithm="dqn", format=format, **{**SMALL, "target_every": 3, **keys})


def make_agent(format="fp64", shape=(OBSERVATION,), **keys):
    return DQN(shape, ACTION, config_of(format, **keys), CPU)


def make_batches(agent, updates, seed=0):
    generator = torch.Generator().manual_seed(seed)
    o, a = agent.observation_size, ACTION
    for _ in range(updates):
        rows = torch.randn(BATCH, agent.row_size, generator=generator)
        rows[:, o : o + a] = nn.functional.one_hot(torch.randint(a, (BATCH,), generator=generator), a)
        rows[:, 2 * o + a + 1] = (torch.rand(BATCH, generator=generator) > 0.2).float()
        if agent.config.prioritized:
            rows[:, -1] = torch.rand(BATCH, generator=generator)
        yield batch_of(round(rows.to(agent.dtype), agent.format), o, a)


class ByTheBook:
    """The papers' formulas with torch.nn, losses and torch.optim.Adam."""

    def __init__(self, agent):
        self.config = agent.config
        _, shared, heads = agent.network._parts(agent.network.layers)
        self.network = nn.ModuleDict({"heads": nn.ModuleList(modules_of(head, 0) for head in heads)})
        self.network["shared"] = nn.Sequential(*modules_of(shared, 0), nn.ReLU()) if shared else nn.Identity()
        self.target = copy.deepcopy(self.network)
        config = agent.config
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr, eps=config.adam_eps)
        self.atoms = torch.linspace(*config.support, config.atoms, dtype=torch.float64)
        self.updates = 0

    def outputs(self, network, x):
        values = [head(network["shared"](x)) for head in network["heads"]]
        atoms = self.config.atoms
        if len(values) == 2:
            value, advantage = values[0].view(-1, 1, atoms), values[1].view(-1, ACTION, atoms)
            return value + advantage - advantage.mean(1, keepdim=True)
        return values[0].view(-1, ACTION, atoms)

    def q(self, outputs):
        return outputs[..., 0] if self.config.atoms == 1 else (outputs.softmax(2) * self.atoms).sum(2)

    def update(self, batch):
        self.updates += 1
        config, each = self.config, torch.arange(BATCH)
        taken = batch.actions.argmax(1)
        discount = 0.99**config.n_steps
        with torch.no_grad():
            following = self.outputs(self.target, batch.next_observations)
            chooser = self.outputs(self.network, batch.next_observations) if config.double else following
            following = following[each, self.q(chooser).argmax(1)]
        chosen = self.outputs(self.network, batch.observations)[each, taken]
        if config.atoms == 1:
            target = batch.rewards + discount * batch.discounts * following
            loss = nn.HuberLoss(reduction="none") if config.loss == "huber" else nn.MSELoss(reduction="none")
            losses = loss(chosen, target)[:, 0]
        else:
            step = float(self.atoms[1] - self.atoms[0])
            moved = (batch.rewards + discount * batch.discounts * self.atoms).clamp(*config.support)
            triangles = (1 - (moved[:, None, :] - self.atoms[None, :, None]).abs() / step).clamp(0, 1)
            target = (triangles * following.softmax(1)[:, None, :]).sum(2)
            losses = nn.functional.cross_entropy(chosen, target, reduction="none")
        weights = batch.weights[:, 0] if config.prioritized else 1.0
        self.optimizer.zero_grad()
        (weights * losses).mean().backward()
        self.optimizer.step()
        if self.updates % config.target_every == 0:
            for slow, source in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.data.lerp_(source.data, config.tau)

    def differences(self, agent):
        for network, layers in ((self.network, agent.networks["critic"].layers), (self.target, agent.target)):
            _, shared, heads = agent.network._parts(layers)
            own = [network["shared"], *network["heads"]] if shared else list(network["heads"])
            for module, theirs in zip(own, ([shared] if shared else []) + heads, strict=True):
                other = modules_of(theirs, 0)
                for a, b in zip(module.parameters(), other.parameters(), strict=True):
                    yield float((a - b).detach().abs().max())


OPTIONS = [
    {},
    {"loss": "squared", "tau": 0.1, "target_every": 1},
    {"double": True, "n_steps": 3, "lr": 0.01},  # so that both networks soon choose other actions
    {"dueling": True, "hidden_layers": 1},
    {"prioritized": True, "dueling": True},
    {"atoms": 11, "v_min": -3.0, "v_max": 2.0},
    RAINBOW,
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("fixes", ["none", "all"])
def test_is_the_papers_in_float64_with_any_option(options, fixes):
    check_against_the_book(fixes=fixes, **options)


@pytest.mark.parametrize("fix", [*FIXES, "stochastic_targets"])
@pytest.mark.parametrize(
    "options", [{}, {"double": True, "dueling": True, "lr": 0.01}, RAINBOW], ids=["dqn", "double-dueling", "rainbow"]
)
def test_no_fix_changes_anything_in_float64(options, fix):
    check_against_the_book(fixes=[fix], **options)
    if fix == "stochastic_targets" and options.get("atoms", 1) == 1:
        check_against_the_book(fixes=["exact_errors"], **options)


def check_against_the_book(**keys):
    agent = make_agent(**{"adam_eps": 1e-6, **keys})
    book = ByTheBook(agent)
    start = agent.networks["critic"].flat.clone()
    for batch in make_batches(agent, 8):
        agent.update(batch)
        book.update(batch)
    assert max(book.differences(agent)) < 1e-9
    assert float((agent.networks["critic"].flat - start).abs().max()) > 1e-3


def test_the_defaults_are_the_papers_at_the_pace_of_a_small_task():
    config = TrainConfig(algorithm="dqn", task="gym:CartPole-v1")
    assert (config.batch_size, config.training_intensity, config.target_every, config.tau) == (32, 8.0, 500, 1.0)
    assert (config.exploration_start, config.exploration_end, config.exploration_steps) == (1.0, 0.1, 10_000)
    assert (config.seed_steps, config.replay_capacity, config.discount, config.loss) == (1000, 10**6, 0.99, "huber")
    assert config.adam_eps == 1e-8
    assert TrainConfig(algorithm="dqn", task="gym:CartPole-v1", atoms=51, batch_size=2048).adam_eps == 0.01 / 2048
    assert config_of(atoms=51, adam_eps=1e-5).adam_eps == 1e-5
    assert config_of(atoms=51).support == (-10, 10)


def test_weights_begin_as_those_of_layers_of_pytorch_do():
    agent = make_agent(shape=(4, 10, 10), hidden_units=64, hidden_layers=2)
    theirs = [nn.Conv2d(4, 16, 3), nn.Linear(1024, 64), nn.Linear(64, 64), nn.Linear(64, ACTION)]
    for layer, other in zip(agent.network.layers, [x for one in theirs for x in one.parameters()], strict=True):
        bound = (9 * 4 if layer.shape[0] == 16 else {64 * 1024: 1024}.get(layer.numel(), 64)) ** -0.5
        if layer.ndim > 1 and layer.numel() > 64:
            assert 0.9 * bound < float(layer.abs().max()) <= bound
            assert float(layer.std()) == pytest.approx(float(other.detach().std()), rel=0.1)
            assert abs(float(layer.mean())) < 0.1 * bound
        else:
            assert 0 < float(layer.abs().max()) <= max(bound, 1 / 6)


def test_how_weights_begin_is_no_part_of_a_run_where_it_is_not_said():
    assert "initial_weights" not in config_of().as_json()
    assert "initial_weights" in config_of(initial_weights="orthogonal").as_json()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"v_min": 0.0}, "v_min is of a categorical head, and atoms is 1; leave v_min out, or set atoms: 51"),
        ({"atoms": 51, "v_min": 3.0, "v_max": 3.0}, "v_min must be less than v_max, got v_min 3 and v_max 3"),
        ({"atoms": 51, "v_max": 1e6, "format": "e5m10"}, "need numbers up to 1e.06, but the largest of format e5m10"),
        ({"n_steps": 0}, "greater than or equal to 1"),
        ({"n_steps": 9, "discount": 0.5}, r"the last reward would count 0.5\^8 of the first one; at least 0.05"),
        ({"replay_capacity": 8}, "replay_capacity must be at least batch_size, got 8 and 16"),
        ({"keep_networks": True}, "keep_networks is for actors and critics of continuous actions"),
        ({"exploration_end": 1.5}, "less than or equal to 1"),
        ({"task": "cartpole_swingup"}, "algorithm dqn takes discrete actions, and those of cartpole_swingup are"),
    ],
)
def test_wrong_keys_are_one_message(keys, message):
    with pytest.raises(ValidationError, match=message) as raised:
        config_of(**keys)
    assert raised.value.error_count() == 1


# Actions.


def test_random_actions_are_as_many_as_asked_all_alike_and_the_same_in_every_format():
    rows = {}
    for name in ("fp32", "e4m3", "e2m1"):
        with simulate(name):
            rows[name] = random_actions(20_000, 3, 0.01, torch.Generator().manual_seed(0), torch.float32)
    assert all(torch.equal(rows["fp32"], own) for own in rows.values())
    assert rows["fp32"].sum() == pytest.approx(200, abs=5 * 200**0.5)
    often = random_actions(30_000, 3, 1.0, torch.Generator().manual_seed(0), torch.float32).sum(0)
    assert ((often - 10_000).abs() < 5 * 10_000**0.5).all()
    assert random_actions(1000, 3, 0.0, torch.Generator().manual_seed(0), torch.float32).sum() == 0


def test_the_share_falls_linearly_and_stays():
    assert [share_of_random_actions(n, 1.0, 0.2, 4) for n in range(7)] == pytest.approx(
        [1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    )
    assert share_of_random_actions(0, 1.0, 0.2, 0) == 0.2
    agent = make_agent(exploration_steps=100)
    for _ in range(3):
        agent.act(torch.zeros(8, OBSERVATION, dtype=torch.float64), deterministic=False)
    assert agent.acted == 24


@pytest.mark.parametrize("options", [{}, RAINBOW], ids=["dqn", "rainbow"])
def test_nan_in_a_q_value_is_nan_in_the_actions(options):
    agent = make_agent(exploration_end=1.0, **options)
    observations = torch.zeros(2, OBSERVATION, dtype=torch.float64)
    best = agent.act(observations, deterministic=True)
    assert best.sum() == 2
    assert sorted(best.unique().tolist()) == [0, 1]
    observations[1] = math.nan
    for deterministic in (True, False):
        actions = agent.act(observations, deterministic=deterministic)
        assert actions[0].sum() == 1
        assert actions[1].isnan().all()


# Several steps.


def sample_of(group, actions, observations, rewards, discounts, last):
    steps = Steps(observations, np.array(rewards), np.array(discounts), np.array(last), observations)
    return Sample(group, np.array(actions), steps, np.array(rewards))


@given(st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_transitions_of_several_steps_are_those_of_a_brute_force_over_episodes(n, seed):
    """Two groups of two and one environments, which alternate; saved and restored in the middle."""
    random = np.random.default_rng(seed)
    discount = 0.9

    def new_intake():
        options = {"dtype": torch.float64, "device": CPU}
        return NStepIntake(Replay(500, 2, 3, **options), n, discount, fmt=Format.parse("fp64"), **options)

    intake = new_intake()
    names = [(0, 0), (0, 1), (1, 0)]
    histories = {name: [[]] for name in names}  # of each, its episodes: (observation, action, reward, discount, next)
    now = {name: random.normal(size=2) for name in names}
    for t in range(24):
        group = t % 2
        own = [name for name in names if name[0] == group]
        actions = np.eye(3)[random.integers(3, size=len(own))]
        observations = random.normal(size=(len(own), 2))
        rewards = random.normal(size=len(own))
        last = random.random(len(own)) < 0.2
        lost = random.random(len(own)) < 0.1  # a life: the return ends, the episode does not
        discounts = np.where(last, random.integers(2, size=len(own)), np.where(lost, 0.0, 1.0))
        before = torch.from_numpy(np.stack([now[name] for name in own]))
        sample = sample_of(group, actions, observations, rewards, discounts, last)
        for i, (name, row) in enumerate(zip(own, intake.rows(before, sample), strict=True)):
            intake.remember(row, sample, i)
            histories[name][-1].append((now[name], actions[i], rewards[i], discounts[i], observations[i]))
            now[name] = observations[i]
            if last[i] or lost[i]:
                histories[name].append([])
        if t == 11:
            state = {**intake.state_dict(), "replay": intake.replay.state_dict()}
            intake = new_intake()
            intake.load_state_dict(state)
            intake.replay.load_state_dict(state["replay"])
    wanted = set()
    for episode in itertools.chain.from_iterable(histories.values()):
        ended = not any(episode is episodes[-1] for episodes in histories.values())
        for start in range(len(episode)):
            window = episode[start : start + n]
            if len(window) < n and not ended:
                continue
            total = sum(discount**k * r for k, (_, _, r, _, _) in enumerate(window))
            following = window[-1][3] * discount ** len(window)  # what the value of the last observation counts
            wanted.add((*window[0][0], *window[0][1], *window[-1][4], *np.round([total, following], 9)))
    got = set()
    for row in intake.replay.rows[: len(intake.replay)].tolist():
        got.add((*row[:-2], *np.round([row[-2], row[-1] * discount**n], 9)))
    assert got == wanted
    assert len(intake.replay) == len(wanted)


# Priorities.


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 10)), min_size=1, max_size=40), st.integers(0, 99))
@settings(max_examples=40)
def test_a_sum_tree_finds_what_cumulative_sums_do(changes, seed):
    tree = SumTree(13)
    weights = np.zeros(13)
    for place, weight in changes:
        tree.set(np.array([place]), np.array([weight]))
        weights[place] = weight
    assert tree.total == pytest.approx(weights.sum())
    if tree.total == 0:
        return
    parts = np.random.default_rng(seed).random(50) * tree.total
    found = tree.find(parts)
    assert (weights[found] > 0).all()
    sums = np.cumsum(weights)
    near = np.abs(parts[:, None] - sums).min(1) < 1e-9
    assert (near | (found == np.searchsorted(sums, parts, side="right"))).all()
    assert weights[tree.find(np.array([tree.total]))] > 0
    again = SumTree(13)
    again.set(np.arange(13), tree[:])
    assert np.array_equal(again._nodes, tree._nodes)


def prioritized(format="fp32", additions=100, exponent=0.4, capacity=8):
    fmt = Format.parse(format)
    replay = Replay(capacity, 1, 1, dtype=fmt.carrier, device=CPU)
    return PrioritizedReplay(replay, exponent, additions=additions, fmt=fmt)


def test_transitions_are_drawn_in_proportion_to_their_priorities_and_weighed_against_it():
    replay = prioritized()
    for i in range(8):
        replay.replay.add(torch.tensor([float(i), 1, 0, 0, 1]))
    generator = torch.Generator().manual_seed(0)
    replay.sample(8, generator)
    assert sorted(replay._last_places) == list(range(8))  # all alike at first
    priorities = torch.arange(8.0).roll(1)
    replay.prioritize(priorities)
    p = {int(i): max(float(x), 2.0**-149) for i, x in zip(range(8), priorities, strict=True)}
    batches = [replay.sample(64, generator) for _ in range(100)]
    drawn = torch.cat([batch.observations[:, 0] for batch in batches])
    for i in range(8):
        share = p[i] / sum(p.values())
        assert (drawn == i).double().mean() == pytest.approx(share, abs=5 * (share / 6400) ** 0.5 + 1e-9)
    exponent = 0.4 + 0.6 * 8 / 100
    batch = batches[0]
    raw = torch.tensor([(8 * p[int(i)] / sum(p.values())) ** -exponent for i in batch.observations[:, 0]])
    torch.testing.assert_close(batch.weights[:, 0], raw / raw.max())
    replay.replay.add(torch.tensor([9.0, 1, 0, 0, 1]))  # in the place of transition 0, with the largest priority so far
    assert replay._tree[0] == 7.0


def test_priorities_that_are_no_numbers_or_0_leave_a_tree_to_draw_from():
    replay = prioritized("e4m3")
    for i in range(4):
        replay.replay.add(torch.tensor([float(i), 1, 0, 0, 1]))
    replay.sample(4, torch.Generator().manual_seed(0))
    replay.prioritize(torch.tensor([math.nan, math.inf, 0.0, 1.0]))
    fmt = Format.parse("e4m3")
    assert replay._tree[:4].tolist() == [1.0, fmt.max, fmt.smallest_subnormal, 1.0]
    weights = replay.sample(64, torch.Generator().manual_seed(0)).weights
    assert torch.equal(weights, round(weights, "e4m3"))
    assert weights.isfinite().all()
    assert weights.max() == 1


def test_updates_are_as_many_as_the_training_intensity_says():
    class Sizes:
        observation_size, observation_shape, action_size, discrete = 1, (1,), 2, True
        observation_dtype = np.float64

    for intensity, wanted in ((8.0, 25), (0.1, 0), (40.0, 125), (None, 50)):
        _, recorder = make(config_of(training_intensity=intensity, seed_steps=10), Sizes(), CPU)
        recorder.intake.replay.add(torch.zeros(6, dtype=torch.float64))
        counts = []
        for recorder.transitions in range(1, 61):
            counts.append(len(list(recorder.due())))
        assert sum(counts) == wanted
        assert not any(counts[:10])
        assert max(counts) - min(counts[10:]) <= 1


# In few bits, compiled, in runs.


@pytest.mark.parametrize("options", [{}, RAINBOW], ids=["dqn", "rainbow"])
def test_everything_kept_is_of_the_format(options):
    agent = make_agent("e5m7", **options)
    for batch in make_batches(agent, 4):
        metrics = agent.update(batch)
        for name, values in {**agent.weights(), **metrics}.items():
            assert torch.equal(values, round(values, "e5m7")), name
    assert agent.network.flat.isfinite().all()


def test_the_target_network_is_copied_exactly():
    agent = make_agent("e5m5", target_every=2, lr=1e-1)
    network, target = agent.networks["critic"].flat, agent.averages["target_critic"].average
    equal = []
    for batch in make_batches(agent, 4):
        agent.update(batch)
        equal.append(torch.equal(network, target))
    assert equal == [False, True, False, True]


@pytest.mark.parametrize(
    ("shape", "options"),
    [((OBSERVATION,), {"double": True}), ((OBSERVATION,), RAINBOW), ((2, 6, 6), {"dueling": True})],
    ids=["double", "rainbow", "planes"],
)
def test_traced_it_has_the_same_bits(shape, options, uncompiled):
    eager, mine = (make_agent("e5m7", shape, loss_scale_growth_interval=2, lr=3e-2, **options) for _ in range(2))
    mine.compiled = CompiledUpdates(mine)
    compile_acting(mine)
    for batch in make_batches(eager, 8):
        metrics = [agent.summarize(agent.update(batch)) for agent in (eager, mine)]
        assert metrics[0] == metrics[1]
        actions = [agent.act(batch.observations[:3], deterministic=False) for agent in (eager, mine)]
        assert torch.equal(*actions)
    assert mine.compiled is not None
    assert mine.compiled.reason is None
    for name, values in eager.weights().items():
        assert torch.equal(values, mine.weights()[name]), name


TINY = {
    "algorithm": "dqn", **SMALL, "steps": 300, "seed_steps": 40, "eval_every": 150, "eval_episodes": 1,
    "checkpoint_every": 100, "target_every": 5, "exploration_steps": 50, "training_intensity": 8.0,
}  # fmt: skip


INTERRUPTED = TrainConfig(**TINY, **RAINBOW, format="e5m10", environments=5)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What a run leaves that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole")
    train(INTERRUPTED, directory, compiled=False)
    return outcome(directory)


@pytest.mark.parametrize("at", [60, 151, 222])
def test_interrupted_anywhere_it_leaves_the_same_bytes(tmp_path, uninterrupted, at):
    stopped_and_continued(INTERRUPTED, tmp_path, at)
    assert outcome(tmp_path) == uninterrupted


@pytest.mark.parametrize(
    "task", ["gym:CartPole-v1", pytest.param("minatar:breakout", marks=pytest.mark.slow)], ids=["states", "planes"]
)
def test_in_a_population_it_leaves_the_same_bytes(tmp_path, uncompiled, task):
    if task.startswith("minatar"):
        pytest.importorskip("minatar")
    keys = {**TINY, **RAINBOW, "task": task, "steps": 80, "eval_every": 40}
    configs = [TrainConfig(**keys, format=name) for name in ("e5m7", "e5m10")]
    check_together(configs, tmp_path)


def test_a_network_that_became_nan_ends_the_run_as_crashed(tmp_path):
    config = TrainConfig(**TINY | {"lr": 1e30}, format="e5m10", fixes="none")
    result = train(config, tmp_path, compiled=False)
    assert result.status == "crashed"
    assert "non-finite action" in result.crash.reason


LEARNS = {
    "algorithm": "dqn", "seed": 1, "hidden_units": 64, "hidden_layers": 2, "batch_size": 128, "lr": 1e-3, "tau": 0.01,
    "target_every": 1, "training_intensity": 64.0, "seed_steps": 500, "exploration_steps": 2000,
    "exploration_end": 0.05, "double": True, "n_steps": 3, "eval_episodes": 5,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("format", ["fp32", "e5m10"])
def test_it_learns_cartpole(tmp_path, format):
    """Random actions last for about 22 steps."""
    keys = {"task": "gym:CartPole-v1", "steps": 6000, "eval_every": 2000}
    result = train(TrainConfig(**LEARNS, **keys, format=format), tmp_path)
    assert result.return_mean > 80


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"atoms": 51, "v_min": -1.0, "v_max": 10.0}], ids=["dqn", "c51"])
def test_it_learns_breakout_from_planes(tmp_path, options):
    """Random actions return about 0.4."""
    pytest.importorskip("minatar")
    keys = {
        "task": "minatar:breakout", "steps": 40_000, "eval_every": 40_000, "eval_episodes": 20, "hidden_units": 128,
        "hidden_layers": 1, "batch_size": 256, "environments": 16, "training_intensity": 16.0, "seed_steps": 2000,
        "exploration_steps": 20_000, "target_every": 100, "tau": 1.0, "checkpoint_every": 10**6,
    }  # fmt: skip
    result = train(TrainConfig(**{**LEARNS, **keys, **options}), tmp_path)
    assert result.return_mean > 1.2


@pytest.mark.parametrize(("format", "fixes"), [("fp64", "none"), ("fp64", "all"), ("e5m10", "all")])
def test_norms_of_a_step(format, fixes):
    """Weights, gradients and steps by NumPy; moments after one step, which are the gradient by their decay."""
    agent, unseen = (make_agent(format, fixes=fixes, adam_beta1=0.75, adam_beta2=0.96) for _ in range(2))
    norms = agent.watch_norms()["critic"]
    (batch,) = make_batches(agent, 1)
    before = agent.networks["critic"].flat.double().numpy().copy()
    scale = agent.optimizers["critic"].scale
    metrics = agent.update(batch)
    after, gradient = (x.double().numpy() for x in (agent.networks["critic"].flat, agent.networks["critic"].flat.grad))
    first = OBSERVATION * SMALL["hidden_units"]
    norm = np.linalg.norm(gradient / scale)
    expected_norms = {
        "weights": np.linalg.norm(after), "first_layer_weights": np.linalg.norm(after[:first]),
        "steps": np.linalg.norm(after - before), "first_layer_steps": np.linalg.norm((after - before)[:first]),
        "gradients": norm, "first_layer_gradients": np.linalg.norm(gradient[:first] / scale),
    }  # fmt: skip
    _, powers = np.frexp(np.abs(gradient[(gradient != 0) & np.isfinite(gradient)]) / scale)
    kept = norms.state_dict()
    assert norms.take_exponents() == {str(power - 1): (powers == power).sum() for power in sorted(set(powers))}
    assert norms.take_exponents() == {}
    norms.load_state_dict(kept)
    assert sum(norms.take_exponents().values()) == len(powers)
    found = {name.removeprefix("critic_"): value for name, value in agent.summarize(metrics).items() if "norm" in name}
    for name, value in expected_norms.items():
        assert found.pop(f"{name}_norm") == pytest.approx(value, rel=1e-12)
    near = 1e-12 if format == "fp64" else 0.01
    assert found == pytest.approx({"first_moment_norm": norm / 4, "second_moment_norm": norm / 5}, rel=near)
    unseen.update(batch)
    assert torch.equal(agent.networks["critic"].flat, unseen.networks["critic"].flat)


def test_norms_are_not_counted():
    """What is computed for them is no part of the simulation."""
    counts = []
    for watched in (False, True):
        agent = make_agent("e5m10", fixes="all", observe=True)
        if watched:
            agent.watch_norms()
        for batch in make_batches(agent, 2):
            agent.update(batch)
        counts.append(agent.simulation.report().table)
    assert counts[0].equals(counts[1])
