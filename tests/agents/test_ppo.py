"""PPO and A2C: by the book in float64, rollouts by brute force, the same bytes however a run is carried out."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import odd_environments  # noqa: F401  registers tasks
import odd_goal  # noqa: F401  registers tasks
import pytest
import torch
from pydantic import ValidationError
from runs import outcome
from textbook import modules_of
from torch import nn

from roundoff.agents import FIXES, RunError, TrainConfig, train
from roundoff.agents.algorithms.a2c.agent import A2C
from roundoff.agents.algorithms.policy_gradient import _summed_backwards
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience.on_policy import minibatch_of, record_rollouts
from roundoff.agents.experience.replay import batch_of
from roundoff.agents.experience.sampling import Sample
from roundoff.agents.models.policies import Categorical, DiagonalNormal
from roundoff.agents.optimizers.step_norms import half_batch_cosine
from roundoff.agents.programs.compiled import CompiledUpdates, compile_acting
from roundoff.agents.programs.population import shared_kind
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.formats import Format, round

OBSERVATION, ACTION, BATCH = 5, 3, 16
CPU = torch.device("cpu")
LEARNERS = {"ppo": PPO, "a2c": A2C}
ALL = (*FIXES, "scaled_norms")
kinds = pytest.mark.parametrize("discrete", [False, True], ids=["numbers", "one of several"])
algorithms = pytest.mark.parametrize("algorithm", ["ppo", "a2c"])


def make(algorithm="ppo", *, discrete=False, format="fp64", **keys):
    sizes = SimpleNamespace(
        observation_size=OBSERVATION, observation_shape=(OBSERVATION,), action_size=ACTION, discrete=discrete
    )
    small = {"hidden_units": 16, "environments": 2, "horizon": BATCH, "batch_size": BATCH if algorithm == "ppo" else 32}
    return LEARNERS[algorithm](sizes, TrainConfig(algorithm=algorithm, format=format, **small | keys), CPU)


def make_batches(agent, updates, *, seed=0, count=BATCH):
    """Minibatches whose old log-probabilities and values are those of a policy nearby."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        observations = torch.randn(count, OBSERVATION, generator=generator, dtype=torch.float64)
        if agent.discrete:
            actions = torch.eye(ACTION)[torch.randint(ACTION, (count,), generator=generator)].double()
        else:
            actions = 2 * torch.randn(count, ACTION, generator=generator, dtype=torch.float64)
        observations, actions = (round(x, agent.format).to(agent.dtype) for x in (observations, actions))
        with torch.no_grad():
            outputs = agent.outputs(observations)
            near = agent.policy.log_prob(outputs, actions).double()
            values = agent.values(observations).double()
        rest = torch.randn(count, 4, generator=generator, dtype=torch.float64)
        rest[:, :1] = near + 0.3 * rest[:, :1]
        rest[:, 1:2] = values + 0.3 * rest[:, 1:2]
        rest[:, 2:] *= 3
        rest = round(rest, agent.format).to(agent.dtype)
        yield minibatch_of(torch.cat((observations, actions, rest), dim=1), OBSERVATION)


class ByTheBook:
    """The loss formed of torch.distributions, its gradient by autograd, torch.nn.utils and torch.optim."""

    def __init__(self, agent):
        hidden, rest = agent.network.layers[: -4 - agent.network.log_sigma], agent.network.layers
        rest = rest[len(hidden) :]
        self.networks = nn.ModuleList(self.network(hidden, rest[2 * k : 2 * k + 2], k) for k in (0, 1))
        if not agent.discrete:
            self.networks.log_sigma = nn.Parameter(rest[4].detach().clone())
        self.config, self.discrete, self.algorithm = agent.config, agent.discrete, agent.config.algorithm
        config = self.config
        if config.optimizer == "adam":
            self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=config.lr, eps=config.adam_eps)
        else:
            options = {"alpha": config.adam_beta2, "eps": config.adam_eps}
            self.optimizer = torch.optim.RMSprop(self.networks.parameters(), lr=config.lr, **options)

    @staticmethod
    def network(hidden, head, member):
        body = modules_of([*hidden, *(x[None].expand(2, *x.shape) for x in (head[0], head[1][None]))], member)
        return nn.Sequential(*(nn.Tanh() if isinstance(one, nn.ReLU) else one for one in body))

    def distribution(self, observations):
        outputs = self.networks[0](observations)
        if self.discrete:
            return torch.distributions.OneHotCategorical(logits=outputs)
        normal = torch.distributions.Normal(outputs, self.networks.log_sigma.exp().expand_as(outputs))
        return torch.distributions.Independent(normal, 1)

    def loss(self, batch):
        config, advantages = self.config, batch.advantages[:, 0]
        if config.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        distribution = self.distribution(batch.observations)
        log_prob = distribution.log_prob(batch.actions)
        if self.algorithm == "ppo":
            ratio = torch.exp(log_prob - batch.log_probs[:, 0])
            clipped = ratio.clip(1 - config.clip, 1 + config.clip)
            objective = torch.min(ratio * advantages, clipped * advantages).mean()
        else:
            objective = (log_prob * advantages).mean()
        values = self.networks[1](batch.observations)
        error = (values - batch.returns).square()
        if self.algorithm == "ppo" and config.value_clip:
            near = batch.values + (values - batch.values).clip(-config.value_clip, config.value_clip)
            self.clipped_values = int(((near - batch.returns).square() > error).sum())
            error = torch.maximum(error, (near - batch.returns).square())
        error = error.mean()
        return -objective + config.value_weight * error - config.entropy_weight * distribution.entropy().mean()

    def update(self, batch):
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        norm = nn.utils.clip_grad_norm_(self.networks.parameters(), self.config.max_grad_norm or float("inf"))
        self.optimizer.step()
        return float(norm)

    def differences(self, agent):
        other = ByTheBook(agent).networks
        for mine, theirs in zip(self.networks.parameters(), other.parameters(), strict=True):
            yield float((mine - theirs).detach().abs().max())


@kinds
@algorithms
@pytest.mark.parametrize("fixes", ["none", list(ALL), *([name] for name in ALL)], ids=str)
def test_is_the_textbooks_in_float64_with_any_fix(algorithm, discrete, fixes):
    clip = 0.0 if discrete else 0.2
    keys = {"value_clip": clip} if algorithm == "ppo" else {}
    agent = make(algorithm, discrete=discrete, fixes=fixes, entropy_weight=0.02, lr=1e-3, max_grad_norm=1.0, **keys)
    book = ByTheBook(agent)
    start = agent.network.flat.clone()
    norms, clipped = [], []
    for batch in make_batches(agent, 8):
        agent.update(batch)
        norms.append(book.update(batch))
        clipped.append(getattr(book, "clipped_values", 0))
    assert (0 < sum(clipped) < 8 * BATCH) == (algorithm == "ppo" and not discrete)
    assert min(norms) > 1.0  # so that clipping does something
    assert max(book.differences(agent)) < 1e-9
    assert float((agent.network.flat - start).abs().max()) > 1e-4


@kinds
@algorithms
@pytest.mark.parametrize("most", [None, 1e3, 0.3])
def test_gradients_are_those_of_the_formed_loss(algorithm, discrete, most):
    agent = make(algorithm, discrete=discrete, entropy_weight=0.05, max_grad_norm=most)
    (batch,) = make_batches(agent, 1)
    book = ByTheBook(agent)
    book.update(batch)
    agent.update(batch)
    scale = agent.optimizers["actor"].scale
    assert scale == 1e4
    moved = agent.network.bound_to(agent.network.flat.grad / scale)
    layers, log_sigma = moved.layers, agent.network.log_sigma
    hidden = layers[: -4 - log_sigma]
    expected = []
    for k in (0, 1):
        gradients = [p.grad for p in book.networks[k].parameters()]
        mine = [*(x[k] for x in hidden), *layers[len(hidden) + 2 * k :][:2]]
        pairs = zip(gradients, mine, strict=True)
        expected += [(a, b.mT if a.dim() == 2 else b.reshape(a.shape)) for a, b in pairs]
    if log_sigma:
        expected.append((book.networks.log_sigma.grad, layers[-1]))
    for theirs, mine in expected:
        assert torch.allclose(theirs, mine, rtol=1e-9, atol=1e-12)


@kinds
@algorithms
def test_the_cosine_of_half_a_batch_is_that_of_the_formed_losses(algorithm, discrete):
    agent = make(algorithm, discrete=discrete, fixes="none", normalize_advantages=False, max_grad_norm=None)
    agent.watch_norms()
    (batch,) = make_batches(agent, 1)
    gradients = []
    for rows in (batch.rows, batch.rows[::2]):
        book = ByTheBook(agent)
        book.loss(minibatch_of(rows, OBSERVATION)).backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in book.networks.parameters()]))
    expected = torch.nn.functional.cosine_similarity(*gradients, dim=0)
    metrics = agent.update(batch)
    assert float(metrics["half_batch_cosine"]) == pytest.approx(float(expected), rel=1e-9)
    assert 0.3 < float(expected) < 0.999


def test_looking_at_half_a_batch_changes_no_bit():
    keys = {"format": "e5m4", "policy": {"rules": [{"rounding": "stochastic", "format": "e5m4"}]}}
    agents = [make("a2c", discrete=True, entropy_weight=0.02, **keys) for _ in range(2)]
    agents[1].watch_norms()
    for batch in make_batches(agents[0], 4, count=32):
        for agent in agents:
            agent.update(batch)
    assert torch.equal(*(agent.network.flat for agent in agents))


def test_halves_that_agree_have_a_cosine_of_one_and_random_ones_of_the_root_of_a_half():
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(4000, requires_grad=True)
    rows = torch.randn(2, 4000, generator=generator)
    for x, expected in ((rows, 0.5**0.5), (rows[:1].expand(2, -1), 1.0)):
        outputs = (x @ weight)[:, None]
        assert float(half_batch_cosine([outputs], [torch.ones(2, 1)], [weight])) == pytest.approx(expected, abs=0.02)


def test_where_the_ratio_is_clipped_the_surrogate_has_no_slope():
    agent = make()
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.0, 1.5, 1.5], dtype=torch.float64)[:, None]
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None]
    slope, metrics = agent.surrogate(ratio.log(), torch.zeros_like(ratio), advantage)
    assert torch.allclose(slope[:, 0], torch.tensor([0.5, 0.0, 1.0, -1.0, 0.0, -1.5], dtype=torch.float64))
    assert metrics["clipped"][:, 0].tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("format", ["fp64", "e5m2"])
def test_a_value_that_has_not_moved_far_keeps_its_slope(format):
    agent = make(format=format, value_clip=0.5)
    (batch,) = make_batches(agent, 1, count=400)
    with agent.constructing():
        values = batch.values + torch.linspace(-1, 1, 400).to(batch.values)[:, None]
        error = values - batch.returns
        slope = agent.value_slope(values, error, batch)
        moved = (values - batch.values).abs()
    near, towards = moved <= 0.5, (batch.returns > values) == (values > batch.values)
    assert torch.equal(slope[near], error[near])
    assert 0 < int((slope == 0).sum()) < 400
    if format == "fp64":
        assert not slope[~near & towards].any()


@pytest.mark.parametrize(("share", "enough"), [(1.4, False), (1.6, True)])
def test_the_policy_has_moved_enough_above_one_and_a_half_times_the_target(share, enough):
    ratio = 0.1  # the logarithm, of all
    agent = make(target_kl=(np.expm1(ratio) - ratio) / share)
    (batch,) = make_batches(agent, 1)
    now = agent.policy.log_prob(agent.outputs(batch.observations), batch.actions)
    batch.log_probs.copy_(now - ratio)
    assert agent.has_moved_enough(batch) == enough


def test_the_defaults_are_the_papers():
    ppo, a2c = TrainConfig(algorithm="ppo"), TrainConfig(algorithm="a2c")
    assert (ppo.horizon, ppo.epochs, ppo.batch_size, ppo.environments) == (2048, 10, 64, 1)
    assert (ppo.lr, ppo.discount, ppo.gae_lambda, ppo.clip, ppo.optimizer) == (3e-4, 0.99, 0.95, 0.2, "adam")
    assert ppo.hidden_widths == [64, 64]
    assert (ppo.normalize_observations, ppo.normalize_rewards, ppo.value_clip, ppo.target_kl) == (True, True, 0.2, None)
    assert (a2c.horizon, a2c.environments, a2c.batch_size) == (5, 16, 80)
    assert (a2c.lr, a2c.adam_beta2, a2c.adam_eps, a2c.optimizer) == (7e-4, 0.99, 1e-5, "rmsprop")
    assert (a2c.entropy_weight, a2c.value_weight, a2c.gae_lambda) == (0.01, 0.5, 1.0)
    assert TrainConfig(algorithm="a2c", environments=32).batch_size == 160


def rollout(agent, steps, environments, seed=0):
    """Transitions with episodes that end, that are cut off, and that go on."""
    generator = torch.Generator().manual_seed(seed)
    count = steps * environments
    rows = torch.randn(count, 2 * OBSERVATION + ACTION + 2, generator=generator, dtype=torch.float64)
    kind = torch.rand(count, 1, generator=generator)
    rows[:, -1:] = (kind > 0.15).double()  # else it is terminal
    return batch_of(rows, OBSERVATION, ACTION), kind < 0.3  # between them it is cut off


@pytest.mark.parametrize("fixes", ["all", ["all", "stochastic_targets"]], ids=["usual", "stochastic"])
@pytest.mark.parametrize(("lam", "environments"), [(0.95, 1), (0.95, 3), (1.0, 2), (0.0, 2)])
def test_advantages_are_those_of_brute_force(lam, environments, fixes):
    agent = make(gae_lambda=lam, environments=environments, horizon=16, batch_size=16, fixes=fixes)
    batch, last = rollout(agent, 16, environments)
    judged = agent.judge(batch, last)
    book = ByTheBook(agent)
    with torch.no_grad():
        values, following = (book.networks[1](x)[:, 0] for x in (batch.observations, batch.next_observations))
        actions = batch.observations_and_actions[:, OBSERVATION:]
        log_prob = book.distribution(batch.observations).log_prob(actions)
    assert {(bool(end), float(one)) for end, one in zip(last, batch.discounts, strict=True)} == {
        (False, 1.0), (True, 0.0), (True, 1.0),
    }  # fmt: skip
    discount = agent.config.discount
    for start in range(len(last)):
        total, weight = 0.0, 1.0
        for i in range(start, len(last), environments):
            rest = discount * batch.discounts[i] * following[i]
            total += weight * float(batch.rewards[i] + rest - values[i])
            weight *= discount * lam
            if last[i]:
                break
        assert float(judged[start, 2]) == pytest.approx(total, rel=1e-9)
        assert float(judged[start, 3]) == pytest.approx(total + float(values[start]), rel=1e-9)
    assert torch.allclose(judged[:, 0], log_prob, rtol=1e-9)
    assert torch.allclose(judged[:, 1], values, rtol=1e-9)


def test_sums_backwards_are_rounded_step_by_step():
    from roundoff.simulate import simulate

    deltas, weights = torch.full((4, 1), 2.0**-11), torch.ones(4, 1)
    deltas[-1] = 1.0
    assert float(_summed_backwards(deltas, weights, 1)[0]) == 1 + 3 * 2.0**-11
    with simulate("e5m10"):
        assert float(_summed_backwards(deltas, weights, 1)[0]) == 1.0


def test_log_probabilities_when_a_rollout_is_full_are_those_of_the_update():
    """The first ratios of an update have to be 1, exactly."""
    for discrete in (False, True):
        agent = make(discrete=discrete, format="e5m7", environments=1)
        (drawn,) = make_batches(agent, 1)
        o = drawn.observations
        batch = batch_of(torch.cat((o, drawn.actions, o, drawn.rows[:, -2:]), dim=1), OBSERVATION, ACTION)
        judged = agent.judge(batch, torch.zeros(BATCH, 1, dtype=torch.bool))
        rows = torch.cat((batch.observations_and_actions, judged), dim=1)
        metrics = agent.update(minibatch_of(rows, OBSERVATION))
        assert torch.equal(metrics["log_prob"], judged[:, :1])
        assert not metrics["clipped"].any()


class TestPolicies:
    logits = torch.tensor([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)

    def test_samples_have_their_probabilities(self):
        agent = make(discrete=True)
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
        noises = [make(discrete=True, format="e5m10", native=native).action_noise(1000) for native in (False, True)]
        assert torch.equal(noises[0], noises[1].float())
        assert torch.equal(noises[0], round(noises[0], "e5m10"))
        assert noises[0].isfinite().all()


@kinds
def test_everything_kept_is_of_the_format(discrete):
    agent = make(discrete=discrete, format="e5m7")
    for batch in make_batches(agent, 4):
        agent.update(batch)
    for name, values in agent.weights().items():
        assert name == "observations" or torch.equal(values, round(values, "e5m7")), name


@kinds
@algorithms
def test_traced_it_has_the_same_bits(algorithm, discrete, uncompiled):
    keys = {"format": "e5m7", "loss_scale_growth_interval": 2, "lr": 1e-2, "lr_schedule": "linear", "steps": 40 * BATCH}
    eager, mine = (make(algorithm, discrete=discrete, entropy_weight=0.01, **keys) for _ in range(2))
    mine.compiled = CompiledUpdates(mine)
    compile_acting(mine)
    for batch in make_batches(eager, 6, count=eager.config.batch_size):
        metrics = [agent.summarize(agent.update(batch)) for agent in (eager, mine)]
        assert metrics[0] == metrics[1]
        actions = [agent.act(batch.observations[:1], deterministic=False) for agent in (eager, mine)]
        assert torch.equal(*actions)
    assert mine.compiled is not None
    assert mine.compiled.reason is None
    for name, values in eager.weights().items():
        assert torch.equal(values, mine.weights()[name]), name


SMALL = {
    "hidden_units": 16, "steps": 240, "eval_every": 120, "eval_episodes": 1, "checkpoint_every": 7,
}  # fmt: skip
RUNS = {
    "ppo": {"algorithm": "ppo", "horizon": 20, "batch_size": 10, "epochs": 2, "task": "gym:Walk-v0"},
    "ppo, three environments": {
        "algorithm": "ppo", "environments": 3, "horizon": 8, "batch_size": 12, "epochs": 2, "task": "gym:CartPole-v1",
    },
    "a2c": {
        "algorithm": "a2c", "environments": 4, "horizon": 3, "task": "gym:Walk-v0", "normalize_observations": True,
        "normalize_rewards": True,
    },
    "ppo, near": {
        "algorithm": "ppo", "horizon": 20, "batch_size": 10, "epochs": 5, "task": "gym:Walk-v0", "target_kl": 1e-4,
    },
}  # fmt: skip


class Kill(Exception):
    pass


@pytest.mark.parametrize("name", RUNS)
def test_interrupted_anywhere_it_leaves_the_same_bytes(tmp_path, name):
    config = TrainConfig(**SMALL | RUNS[name], format="e5m10")
    assert train(config, tmp_path / "alone", compiled=False).status == "done"
    train(config, tmp_path / "again", compiled=False)
    assert outcome(tmp_path / "again") == outcome(tmp_path / "alone")
    stops = 0
    while not (tmp_path / "stopped" / "result.json").exists():
        stop = StopRequest()
        begun = []

        def stop_soon(progress, stop=stop, begun=begun):
            begun.append(progress.step)
            if progress.step >= begun[0] + 17:
                stop.make()

        try:
            train(config, tmp_path / "stopped", stop_soon, stop, compiled=False)
        except Stopped:
            stops += 1
    assert stops > 2
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "alone")


def test_killed_between_a_checkpoint_and_an_update_it_leaves_the_same_bytes(tmp_path, monkeypatch):
    config = TrainConfig(**SMALL | RUNS["ppo, three environments"])
    train(config, tmp_path / "alone", compiled=False)
    update, left = PPO.update, itertools.count()

    def killed(self, batch):
        if next(left) in (5, 11, 23):  # within an epoch
            raise Kill
        return update(self, batch)

    monkeypatch.setattr(PPO, "update", killed)
    kills = 0
    while not (tmp_path / "killed" / "result.json").exists():
        try:
            train(config, tmp_path / "killed", compiled=False)
        except Kill:
            kills += 1
    assert kills == 3
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "alone")


@pytest.mark.parametrize("environments", [1, 2, 3])
def test_every_action_of_a_rollout_is_chosen_by_the_policy_it_is_learned_from_with(tmp_path, monkeypatch, environments):
    acted, learned = [], []
    act, judge = PPO.act, PPO.judge

    def noted(self, observations, *, deterministic, **where):
        actions = act(self, observations, deterministic=deterministic, **where)
        if not deterministic:
            acted.extend([(self.updates, action) for action in actions])
        return actions

    def judged(self, rollout, last):
        drawn = acted[: len(last)]
        del acted[: len(last)]
        learned.append(len(last))
        assert {updates for updates, _ in drawn} == {self.updates}
        actions = rollout.observations_and_actions[:, self.observation_size :]
        assert torch.equal(torch.stack([action for _, action in drawn]), actions)
        return judge(self, rollout, last)

    monkeypatch.setattr(PPO, "act", noted)
    monkeypatch.setattr(PPO, "judge", judged)
    keys = {**SMALL, **RUNS["ppo, three environments"], "environments": environments, "batch_size": 4}
    train(TrainConfig(**keys), tmp_path, compiled=False)
    assert learned == [8 * environments] * (240 // (8 * environments))


def test_all_of_a_rollout_is_learned_from_in_every_epoch():
    config = TrainConfig(algorithm="ppo", horizon=12, batch_size=4, epochs=3)
    sizes = SimpleNamespace(observation_size=1, observation_dtype=np.float64, action_size=1, discrete=False)
    judge = lambda rollout, last: rollout.rewards.expand(-1, 4)  # noqa: E731
    recorder = record_rollouts(config, sizes, torch.float32, CPU, judge)
    sample = SimpleNamespace(steps=SimpleNamespace(last=np.array([False])))
    for i in range(12):
        assert list(recorder.due()) == [] or i == 0
        assert recorder.waits(12 - i)
        assert not recorder.waits(11 - i)
        recorder.add(torch.full((5,), float(i)), sample, 0)
    batches = [batch.returns[:, 0].tolist() for batch in recorder.due()]
    assert len(batches) == 9
    for epoch in range(3):
        assert sorted(itertools.chain(*batches[3 * epoch : 3 * epoch + 3])) == list(range(12))
    assert batches[:3] != batches[3:6]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithm": "ppo", "batch_size": 60}, ["must divide horizon x environments", "60", "2048 x 1 = 2048"]),
        ({"algorithm": "ppo", "horizon": 6, "batch_size": 4}, ["allowed are 1, 2, 3, 6"]),
        ({"algorithm": "ppo", "steps": 2000}, ["nothing would be learned", "2048", "2000"]),
        ({"algorithm": "ppo", "batch_size": 1}, ["normalize_advantages needs a batch_size of 2"]),
        ({"algorithm": "a2c", "batch_size": 40}, ["whole rollout at once", "= 80, got 40"]),
        ({"algorithm": "a2c", "epochs": 2}, ["epochs is a key of ppo, not of a2c"]),
        ({"algorithm": "ppo", "tau": 0.1}, ["tau is a key of", "not of ppo"]),
        ({"algorithm": "ppo", "environments": 4, "learners": 2, "horizon": 5, "batch_size": 20}, ["5 x 2 = 10"]),
        ({"algorithm": "a2c", "learners": 2, "lr_schedule": "linear"}, ["linear is for one learner"]),
        ({"algorithm": "ppo", "keep_networks": True}, ["keep_networks is for actors and critics"]),
        ({"algorithm": "ppo", "clip": 0.0}, ["greater than 0"]),
        ({"algorithm": "ppo", "target_kl": 0.0}, ["greater than 0"]),
        ({"algorithm": "a2c", "target_kl": 0.1}, ["target_kl is a key of ppo, not of a2c"]),
        (
            {"algorithm": "a2c", "learners": 2, "normalize_rewards": True},
            ["normalize_rewards: true is for one"],
        ),
        ({"algorithm": "ppo", "clip_rewards": True, "normalize_rewards": True}, ["both bound rewards"]),
        ({"algorithm": "ppo", "lr_schedule": "cosine"}, ["'constant' or 'linear'"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(keys, words):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(**keys)
    assert caught.value.error_count() == 1
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("name", ["ppo", "ppo, three environments"])
def test_what_is_no_number_is_a_crash(tmp_path, monkeypatch, name):
    update = PPO.update

    def spoiled(self, batch):
        metrics = update(self, batch)
        self.network.flat[-40:] = torch.nan
        return metrics

    monkeypatch.setattr(PPO, "update", spoiled)
    result = train(TrainConfig(**SMALL | RUNS[name]), tmp_path, compiled=False)
    assert result.status == "crashed"
    assert "non-finite action" in result.crash.reason


def planes_agent(algorithm="ppo", *, discrete=True, **keys):
    sizes = SimpleNamespace(observation_size=400, observation_shape=(4, 10, 10), action_size=ACTION, discrete=discrete)
    small = {"hidden_units": 16, "hidden_layers": 1, "environments": 2, "horizon": BATCH, "batch_size": BATCH}
    small |= {"batch_size": 32} if algorithm == "a2c" else {"task": "minatar:breakout"}
    return LEARNERS[algorithm](sizes, TrainConfig(algorithm=algorithm, **small | keys), CPU)


@algorithms
def test_from_planes_it_is_the_textbooks(algorithm):
    agent = planes_agent(algorithm, format="fp64", entropy_weight=0.02, max_grad_norm=1.0)
    shapes = [tuple(layer.shape) for layer in agent.network.layers]
    assert shapes == [(16, 4, 3, 3), (16,), (1, 1024, 16), (1, 1, 16), (1, 16, 3), (1, 1, 3), (1, 16, 1), (1, 1, 1)]
    book = ByTheBook.__new__(ByTheBook)
    book.config, book.discrete, book.algorithm = agent.config, True, algorithm
    convolution = nn.Conv2d(4, 16, 3, dtype=torch.float64)
    convolution.weight.data, convolution.bias.data = (x.clone() for x in agent.network.layers[:2])
    trunk = nn.Sequential(
        nn.Unflatten(1, (4, 10, 10)), convolution, nn.ReLU(), nn.Flatten(), *modules_of(agent.network.layers[2:4], 0),
        nn.ReLU(),
    )  # fmt: skip
    heads = [modules_of(agent.network.layers[i : i + 2], 0) for i in (4, 6)]
    book.networks = nn.ModuleList(nn.Sequential(trunk, head) for head in heads)
    options = {"lr": agent.config.lr, "eps": agent.config.adam_eps}
    kind = torch.optim.Adam if algorithm == "ppo" else torch.optim.RMSprop
    book.optimizer = kind(book.networks.parameters(), **options)
    assert float(heads[0][0].weight.detach().norm()) == pytest.approx(0.01 * 3**0.5)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        observations = (torch.rand(BATCH, 400, generator=generator) > 0.8).double()
        actions = torch.eye(ACTION)[torch.randint(ACTION, (BATCH,), generator=generator)].double()
        rest = torch.randn(BATCH, 4, generator=generator).double() - torch.tensor([1.1, 0, 0, 0])
        batch = minibatch_of(torch.cat((observations, actions, rest), dim=1), 400)
        agent.update(batch)
        book.update(batch)
    for parameter, layer in zip(convolution.parameters(), agent.network.layers, strict=False):
        assert torch.allclose(parameter, layer, rtol=0, atol=1e-9)
    for head, i in zip(heads, (4, 6), strict=True):
        assert torch.allclose(head[0].weight.T, agent.network.layers[i][0], rtol=0, atol=1e-9)


def test_rollouts_of_planes_are_kept_as_bytes_and_given_as_numbers():
    config = TrainConfig(algorithm="ppo", horizon=4, batch_size=4, epochs=1)
    sizes = SimpleNamespace(observation_size=8, observation_dtype=np.bool_, action_size=2, discrete=True)
    seen = []

    def judge(rollout, last):
        seen.append((rollout.observations, rollout.next_observations, last.flatten().tolist()))
        return rollout.rewards.expand(-1, 4)

    recorder = record_rollouts(config, sizes, torch.float32, CPU, judge)
    rows = (torch.rand(4, 8 + 2 + 8 + 2, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    for i, row in enumerate(rows):
        recorder.add(row, SimpleNamespace(steps=SimpleNamespace(last=np.array([i == 2]))), 0)
    assert recorder.state_dict()["rollout"]["planes"].dtype == torch.uint8
    (batch,) = recorder.due()
    assert torch.equal(batch.observations, rows[:, :8])
    assert torch.equal(batch.actions, rows[:, 8:10])
    assert torch.equal(seen[0][1], rows[:, 10:18])
    assert seen[0][2] == [False, False, True, False]


@pytest.mark.parametrize("format", ["fp32", "e5m2"])
def test_rollouts_of_images_hold_bytes_divided_by_255(format):
    config = TrainConfig(algorithm="ppo", horizon=3, batch_size=3, epochs=1, format=format)
    sizes = SimpleNamespace(observation_size=6, observation_dtype=np.uint8, action_size=2, discrete=True)
    recorder = record_rollouts(config, sizes, torch.float32, CPU, lambda rollout, last: rollout.rewards.expand(-1, 4))
    images = np.random.default_rng(0).integers(0, 256, (4, 1, 6), dtype=np.uint8)
    for before, after in itertools.pairwise(images):
        steps = Steps(after, np.array([0.3]), np.array([1.0]), np.array([False]), after)
        sample = Sample(0, np.array([[0.0, 1.0]]), steps, steps.rewards)
        recorder.add(recorder.rows(recorder.intake.perceive(before), sample)[0], sample, 0)
    (batch,) = recorder.due()
    want = round(torch.from_numpy(images[:3, 0]).double() / 255, Format.parse(format)).float()
    assert torch.equal(batch.observations, want)
    assert torch.equal(batch.actions, torch.tensor([[0.0, 1.0]] * 3))
    assert torch.equal(batch.returns, round(torch.tensor([[0.3]] * 3), Format.parse(format)))


def test_what_cannot_be_learned_from_is_refused_in_words():
    with pytest.raises(RunError, match="learns one of several actions from planes"):
        planes_agent(discrete=False)


def test_no_population_is_made_of_them():
    assert shared_kind(TrainConfig(algorithm="ppo", format="e5m10")) is None


def test_each_of_several_learners_of_a2c_learns_from_its_own_rollout():
    config = TrainConfig(algorithm="a2c", learners=2)
    assert (config.batch_size, config.share().batch_size, config.share().rollout) == (80, 40, 40)


def test_an_estimate_needs_no_whole_rollout():
    config = TrainConfig(algorithm="ppo", environments=8, horizon=2048, batch_size=64)
    short = config.model_copy(update=config.soon_learning())
    assert short.rollout == 64
    assert short.updates_in(16384) == config.updates_in(16384) == 2560


@pytest.mark.parametrize(("algorithm", "format"), [("ppo", "e5m10"), ("a2c", "fp32")])
def test_numbers_are_learned(tmp_path, algorithm, format):
    """Always doing the best is worth 20; doing nothing about 15.7."""
    keys = {
        "ppo": {"horizon": 32, "environments": 4, "epochs": 5, "lr": 1e-2, "steps": 2560},
        "a2c": {"environments": 8, "lr": 5e-3, "steps": 12_800},
    }[algorithm]  # fmt: skip
    keys |= {"eval_every": keys["steps"], "eval_episodes": 5, "discount": 0.0, "hidden_units": 32}
    result = train(TrainConfig(algorithm=algorithm, task="gym:Goal-v0", format=format, **keys), tmp_path)
    assert result.return_mean > 19.0
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"entropy", "critic_loss", "actor_loss_scale"} <= {name for line in logged for name in line}


CARTPOLE = {
    "algorithm": "ppo", "task": "gym:CartPole-v1", "environments": 8, "horizon": 32, "batch_size": 256, "epochs": 20,
    "gae_lambda": 0.8, "discount": 0.98, "lr": 1e-3, "lr_schedule": "linear", "steps": 50_000, "eval_every": 50_000,
}  # fmt: skip
PENDULUM = {
    "algorithm": "ppo", "task": "gym:Pendulum-v1", "environments": 4, "horizon": 256, "batch_size": 128,
    "discount": 0.9, "lr": 1e-3, "steps": 50_000, "eval_every": 50_000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "least"),
    [
        (CARTPOLE, 450),
        ({**CARTPOLE, "format": "e5m10"}, 450),
        (
            {
                "algorithm": "a2c",
                "task": "gym:CartPole-v1",
                "environments": 8,
                "lr_schedule": "linear",
                "steps": 100_000,
            },
            400,
        ),
        (PENDULUM, -500),  # an untrained policy has -1200
    ],
    ids=["ppo", "ppo in half", "a2c", "ppo, numbers"],
)
def test_it_learns_in_a_minute(tmp_path, keys, least):
    assert train(TrainConfig(**keys), tmp_path).return_mean > least


@pytest.mark.slow
def test_without_scaled_norms_half_precision_learns_nothing(tmp_path):
    """The norm of gradients is infinite at the first loss scale, and the gradients become 0."""
    keys = {**CARTPOLE, "format": "e5m10", "steps": 10_240, "eval_every": 10_240, "seed": 1}
    returns = [
        train(TrainConfig(**keys, fixes=fixes), tmp_path / str(len(fixes))).return_mean for fixes in (ALL, FIXES)
    ]
    assert returns[0] > 2 * returns[1]
