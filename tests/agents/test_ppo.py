"""PPO and A2C: by the book in float64, rollouts by brute force, the same bits traced."""

from types import SimpleNamespace

import numpy as np
import odd_environments  # noqa: F401  registers tasks
import odd_goal  # noqa: F401  registers tasks
import pytest
import torch
from comparing import same_bits
from pydantic import ValidationError
from textbook import modules_of
from torch import nn

from roundoff.agents import FIXES, RunError, TrainConfig
from roundoff.agents.algorithms.a2c.agent import A2C
from roundoff.agents.algorithms.policy_gradient import _summed_backwards
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.experience.on_policy import minibatch_of
from roundoff.agents.experience.replay import batch_of
from roundoff.agents.optimizers.step_norms import half_batch_cosine
from roundoff.agents.programs.compiled import CompiledUpdates, compile_acting
from roundoff.agents.programs.population import shared_kind
from roundoff.formats import round

OBSERVATION, ACTION, BATCH = 5, 3, 16
CPU = torch.device("cpu")
LEARNERS = {"ppo": PPO, "a2c": A2C}
ALL = (*FIXES, "scaled_norms", "exact_errors")
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
    rounded = make(format="e5m4", gae_lambda=lam, environments=environments, horizon=16, batch_size=16, fixes=fixes)
    judged = rounded.judge(batch_of(round(batch.rows.float(), "e5m4"), OBSERVATION, ACTION), last)
    assert judged.dtype == torch.float32
    assert same_bits(judged, round(judged, "e5m4"))


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


def test_what_cannot_be_learned_from_is_refused_in_words():
    with pytest.raises(RunError, match="learns one of several actions from planes"):
        planes_agent(discrete=False)


def test_no_population_is_made_of_them():
    assert shared_kind(TrainConfig(algorithm="ppo", format="e5m10")) is None


def test_each_of_several_learners_of_a2c_learns_from_its_own_rollout():
    config = TrainConfig(algorithm="a2c", learners=2)
    assert (config.batch_size, config.share().batch_size, config.share().rollout) == (80, 40, 40)
