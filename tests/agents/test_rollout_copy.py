"""Rollouts by a copy of the policy in another arithmetic: in the learner's own nothing changes; weights by the book."""

import json
import math
from types import SimpleNamespace
from typing import get_args

import odd_goal  # noqa: F401  registers tasks
import pytest
import torch
from each import each
from runs import outcome, stopped_and_continued

from roundoff import importance_weights, mismatch
from roundoff.agents import TrainConfig, train
from roundoff.agents.algorithms.a2c.agent import A2C
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.algorithms.rollout_copy import RolloutCopy
from roundoff.agents.config.on_policy_keys import Rollouts
from roundoff.agents.experience.on_policy import minibatch_of
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.agents.rollout_mismatch import Correction
from roundoff.formats import round

CPU = torch.device("cpu")
CARTPOLE = {
    "algorithm": "a2c", "task": "gym:CartPole-v1", "hidden_units": 16, "environments": 2, "horizon": 20,
    "batch_size": 40, "steps": 400, "eval_every": 200, "eval_episodes": 2, "checkpoint_every": 100,
}  # fmt: skip
GOAL = {
    "algorithm": "ppo", "task": "gym:Goal-v0", "hidden_units": 16, "horizon": 40, "batch_size": 20, "epochs": 2,
    "steps": 240, "eval_every": 120, "eval_episodes": 1, "checkpoint_every": 100,
}  # fmt: skip
BREAKOUT = {
    "algorithm": "a2c", "task": "minatar:breakout", "hidden_units": 16, "environments": 2, "horizon": 20,
    "batch_size": 40, "steps": 200, "eval_every": 200, "eval_episodes": 1,
}  # fmt: skip
OBSERVATION, ACTION, STEPS, ENVIRONMENTS = 5, 3, 12, 2
PLANES = (4, 10, 10)


def make(*, discrete=True, algorithm=A2C, shape=(OBSERVATION,), **keys):
    name = algorithm.__name__.lower()
    sizes = SimpleNamespace(
        observation_size=math.prod(shape), observation_shape=shape, action_size=ACTION, discrete=discrete
    )
    count = STEPS * ENVIRONMENTS
    given = {"hidden_units": 16, "environments": ENVIRONMENTS, "horizon": STEPS, "batch_size": count}
    agent = algorithm(sizes, TrainConfig(algorithm=name, **given | keys), CPU)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(agent.network.flat.shape, generator=generator).to(agent.dtype)  # a policy that has an opinion
    agent.network.flat.add_(round(0.5 * noise, agent.format))
    return agent


def random_rollout(agent, width=OBSERVATION):
    generator = torch.Generator().manual_seed(0)
    n = STEPS * ENVIRONMENTS
    observations = round(torch.randn(n, width, generator=generator).to(agent.dtype), agent.format)
    last = torch.rand(n, 1, generator=generator) < 0.2
    actions = agent.act(observations, deterministic=False)
    return observations, actions, last


@each("keys", [CARTPOLE, GOAL | {"format": "e5m10"}])
def test_in_the_arithmetic_of_the_learner_no_bit_changes(tmp_path_factory, keys):
    assert_no_bit_changes(tmp_path_factory, keys)


def test_in_the_arithmetic_of_the_learner_no_bit_changes_for_planes(tmp_path_factory):
    pytest.importorskip("minatar")
    for keys in (BREAKOUT, BREAKOUT | {"format": "e5m10"}):
        assert_no_bit_changes(tmp_path_factory, keys)


def assert_no_bit_changes(tmp_path_factory, keys):
    place = tmp_path_factory.mktemp("runs")
    own = {"format": keys.get("format", "fp32")}
    for name, more in (("plain", {}), ("copied", {"rollouts": own})):
        train(TrainConfig(**keys, **more), place / name, compiled=False)
    plain, copied = (outcome(place / name) for name in ("plain", "copied"))
    assert plain["weights"] == copied["weights"]
    records = [json.loads(line) for line in copied["metrics.jsonl"].splitlines()]
    # What is left is how the learner rounds its log-probabilities; the copy's are those of what its network gives.
    found = [r["rollout_k3_kl"] for r in records if "rollout_k3_kl" in r]
    assert len(found) > 2
    assert max(found) < (1e-5 if "format" in keys else 1e-12)


@each(("discrete", "shape"), [(True, (OBSERVATION,)), (False, (OBSERVATION,)), (True, PLANES)])
@each("quantization", ["e5m2", "int8", {"weights": "e4m3"}])
def test_weights_and_distances_are_those_of_each_sequence_by_itself(discrete, shape, quantization):
    for correction in ("token", "token-truncate", "token-mask", "sequence", "sequence-truncate", "sequence-mask"):
        keys = {"format": quantization, "correction": correction, "threshold": 1.2, "least": 0.7}
        agent = make(discrete=discrete, shape=shape, rollouts=keys)
        observations, actions, last = random_rollout(agent, math.prod(shape))
        with torch.no_grad():
            log_prob = agent.policy.log_prob(agent.outputs(observations), actions)
            weights = agent.rollouts.judge(observations, actions, log_prob, last)
        copy = agent.quantized(agent.rollouts._quantization)
        with torch.no_grad(), copy.simulation or torch.no_grad(), copy.products or torch.no_grad():
            outputs = copy.outputs(agent.rollouts._quantization.number(observations))
        own = agent.policy.log_prob(tuple(one.double() for one in outputs), actions.double())
        shift = 100.0  # densities may be above 1, and what is called with them takes probabilities
        expected = torch.full_like(weights, math.nan)
        for environment in range(ENVIRONMENTS):
            places = list(range(environment, STEPS * ENVIRONMENTS, ENVIRONMENTS))
            while places:
                length = next((i for i, place in enumerate(places) if last[place]), len(places) - 1) + 1
                sequence, places = places[:length], places[length:]
                both = (log_prob[sequence, 0].double() - shift, own[sequence, 0] - shift)
                limits = {"threshold": 1.2, "least": 0.7}
                expected[sequence, 0] = importance_weights(*both, correction=correction, **limits).float()
        assert torch.equal(weights, expected)
        assert len(weights.unique()) > 1
        found = mismatch(log_prob[None, :, 0].double() - shift, own[None, :, 0] - shift)
        told = {f"rollout_{x}": getattr(found, x) for x in ("kl", "k3_kl", "outside")}
        told["rollout_ess"] = found.ess_token
        assert agent.rollouts.distances == pytest.approx(told, rel=1e-9)
        assert found.k3_kl > 0


@each("algorithm", [A2C, PPO])
def test_the_gradient_is_that_of_the_weighed_surrogate(algorithm):
    keys = {"format": "e5m2", "correction": "token"}
    plain = {"format": "fp64", "fixes": "none", "max_grad_norm": None, "entropy_weight": 0.1}
    agent = make(algorithm=algorithm, rollouts=keys, **plain, **({"value_clip": 0.0} if algorithm is PPO else {}))
    generator = torch.Generator().manual_seed(2)
    n = STEPS * ENVIRONMENTS
    observations, actions, _ = random_rollout(agent)
    weights = torch.rand(n, 1, generator=generator, dtype=torch.float64) * 2
    with torch.no_grad():
        old = agent.policy.log_prob(agent.outputs(observations), actions)
    judged = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    rows = torch.cat((observations, actions, weights, old, judged), dim=1)
    assert rows.shape[1] == agent.row_size
    batch = agent.unpacked(rows)
    assert torch.equal(batch.weights, weights)
    assert torch.equal(batch.actions, actions)
    outputs, values = agent.both(agent.network.trainable, observations)
    log_prob = agent.policy.log_prob(outputs, actions)
    advantages = batch.advantages
    if agent.config.normalize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (log_prob - old.detach()).exp() if algorithm is PPO else log_prob  # 1 at first: nothing is clipped
    entropy = agent.policy.entropy(outputs).mean()
    loss = -(weights * ratio * advantages).mean() + 0.5 * (values - batch.returns).square().mean() - 0.1 * entropy
    expected = torch.autograd.grad(loss, list(agent.network.trainable))
    agent.update(batch)
    for mine, theirs in zip(agent.network.bound_to(agent.network.flat.grad).layers, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def test_it_goes_on_in_the_middle_of_a_rollout(tmp_path):
    keys = CARTPOLE | {"rollouts": {"format": "int8", "correction": "sequence-mask"}, "checkpoint_every": 110}
    train(TrainConfig(**keys), tmp_path / "whole", compiled=False)
    stopped_and_continued(TrainConfig(**keys), tmp_path / "parts", at=230)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


@pytest.mark.usefixtures("uncompiled")
def test_programs_take_the_weights_as_data():
    keys = {"format": "e5m4", "rollouts": {"format": "e5m2", "correction": "token"}, "fixes": "all"}
    eager, traced = (make(**keys) for _ in range(2))
    traced.compiled = CompiledUpdates(traced)
    assert traced.compiled.reason is None
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        rows = round(torch.rand(STEPS * ENVIRONMENTS, eager.row_size, generator=generator), eager.format)
        for agent in (eager, traced):
            agent.update(minibatch_of(rows, OBSERVATION, weighed=True))
    traced._write_back()
    assert torch.equal(eager.network.flat, traced.network.flat)


def test_what_acts_is_the_copy():
    agent = make(rollouts={"format": "e5m2"})
    observations = torch.randn(200, OBSERVATION, generator=torch.Generator().manual_seed(4))
    generator = agent.generators["act_noise"]
    before = generator.get_state()
    chosen = agent.act(observations, deterministic=False)
    generator.set_state(before)
    noise = agent.action_noise(200)
    copy = agent.quantized(RolloutCopy(agent, agent.config.rollouts)._quantization)
    with torch.no_grad(), copy.simulation:
        theirs = copy.sample_actions(round(observations, "e5m2"), noise)
    assert torch.equal(chosen, theirs)
    with torch.no_grad():
        assert not torch.equal(chosen, agent.sample_actions(observations, noise))


@each(
    ("given", "said"),
    [
        ({"rollouts": "int8"}, "should be a valid dictionary"),
        ({"rollouts": {}}, "rollouts.format is missing, got {}"),
        ({"rollouts": {"format": None}}, "rollouts.format: a quantization is a format such as"),
        ({"rollouts": {1: 2}}, "the keys of rollouts are names"),
        ({"rollouts": {"format": "int8", "corection": "none"}}, "rollouts has no key corection; allowed are format,"),
        ({"rollouts": {"format": "int7x"}}, "rollouts.format: "),
        ({"rollouts": {"format": "int8", "correction": "tokens"}}, "rollouts.correction must be 'none', 'token'"),
        ({"rollouts": {"format": "int8", "threshold": -1.0}}, "rollouts.threshold must be greater than 0, got -1.0"),
        ({"rollouts": {"format": "int8", "least": 3.0}}, "rollouts.least must be less than rollouts.threshold"),
        ({"rollouts": {"format": "fp64"}}, "rollouts.format: fp64 does not fit"),
        ({"rollouts": {"format": "int8"}, "format": "bf16", "native": True}, "native: true simulates nothing"),
        ({"rollouts": {"format": "int8"}, "algorithm": "dqn"}, "rollouts is a key of"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(given, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(".", r"\.")):
        TrainConfig(**{"algorithm": "a2c", "task": "gym:CartPole-v1"} | given)


def test_corrections_are_those_that_there_are_functions_of():
    assert get_args(Rollouts.model_fields["correction"].annotation) == get_args(Correction)


def test_a_config_without_it_is_known_by_the_name_it_had():
    assert "rollouts" not in TrainConfig(algorithm="ppo").as_json()
    given = TrainConfig(algorithm="ppo", rollouts={"format": "int8"})
    assert TrainConfig(**json.loads(json.dumps(given.as_json()))) == given
