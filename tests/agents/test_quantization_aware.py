"""Quantization-aware training: what is computed, from which step on, and that a run goes on with the same bytes."""

import itertools
import json
import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from pydantic import ValidationError
from runs import AfterSteps, outcome, weights

import roundoff
from roundoff import Format
from roundoff.agents import Job, Quantization, TrainConfig, quantize, train, train_together
from roundoff.agents.algorithms.arithmetic import change_to, simulation_of
from roundoff.agents.algorithms.dqn.agent import DQN
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.run.stopping import Stopped
from roundoff.sweeps import SweepError, plan_text

CPU = torch.device("cpu")
RUN = {
    "task": "gym:CartPole-v1", "steps": 128, "eval_every": 16, "eval_episodes": 2, "checkpoint_every": 10_000,
    "hidden_units": 16, "batch_size": 16, "lr": 1e-2,
}  # fmt: skip
OF = {
    "dqn": {"seed_steps": 20, "training_intensity": 16.0},
    "ppo": {"horizon": 8, "environments": 2, "epochs": 2},
}
INT3 = {"format": "int3_row", "after": 0.5}


def config(algorithm="dqn", qat=INT3, **keys):
    return TrainConfig(algorithm=algorithm, qat=qat, **(RUN | OF[algorithm] | keys))


def returns(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["returns"] for line in lines if line["kind"] == "eval"}


@pytest.fixture(scope="module", autouse=True)
def short_episodes_of_the_pole():
    """Who has learned something stands for 500 steps, which takes longer than what it learned from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gymnasium.spec("CartPole-v1"), "max_episode_steps", 50)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of whole runs, made once: by algorithm and qat."""
    made = {}

    def folder(algorithm="dqn", qat=INT3, **keys):
        key = str((algorithm, qat, keys))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run")
            train(config(algorithm, qat, **keys), made[key], compiled=False)
        return made[key]

    return folder


# What is computed


def network_by_hand(layers, x, see):
    """Two layers of a perceptron, each product of what ``see`` makes of its operands."""
    (w, b, v, c) = layers
    h = torch.relu(torch.baddbmm(b, see(x[None]), see(w, along=1)))
    return torch.baddbmm(c, see(h), see(v, along=1))[0]


def as_seen(x, along=-1):
    """What a fake quantizer makes of x, above autograd: a scale for each line along what a product sums over."""
    return roundoff.round(x, f"int3_row_ax{along % x.dim()}", gradient="straight-through")


def learner(operands, *, quantized=True):
    made = DQN((4,), 2, config(format="fp64", qat={**INT3, "operands": operands}), CPU)
    made.be_quantized(quantized=quantized)
    return made


@pytest.mark.parametrize("operands", ["both", "forward"])
def test_an_update_s_gradients_by_hand(operands):
    agent = learner(operands)
    network, x = agent.network, torch.randn(5, 4, dtype=torch.float64)
    g = torch.randn(5, 2, dtype=torch.float64)
    with agent.simulation:
        q = network.outputs(network.trainable, x)[0]
        found = torch.autograd.grad(q, network.trainable, g)
    leaves = [layer.clone().requires_grad_() for layer in network.layers]
    expected_q = network_by_hand(leaves, x, as_seen)
    assert torch.equal(q, expected_q)
    if operands == "both":
        expected = torch.autograd.grad(expected_q, leaves, g)
    else:  # unrounded operands, at the activations of the rounded forward pass
        w, b, v, _ = leaves
        h = torch.relu(torch.baddbmm(b, as_seen(x[None]), as_seen(w, along=1))).detach()
        g_h = (g @ v[0].T) * (h[0] > 0)
        expected = [x.T @ g_h, g_h.sum(0), h[0].T @ g, g.sum(0)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=1e-13, atol=1e-14)


def test_what_is_trained_is_what_acts():
    agent = learner("both")
    x = torch.randn(6, 4, dtype=torch.float64)
    by_hand = network_by_hand(agent.network.layers, x, as_seen).argmax(1)
    assert torch.equal(agent.act(x, deterministic=True).argmax(1), by_hand)
    plain = learner("both", quantized=False)
    assert torch.equal(
        plain.act(x, deterministic=True).argmax(1), network_by_hand(plain.network.layers, x, lambda y, **_: y).argmax(1)
    )


def test_policy_and_value_are_quantized_alike_alone_and_together():
    """A policy gradient computes both in one product; acting, the policy's alone: lines do not see each other."""
    sizes = SimpleNamespace(observation_size=4, observation_shape=(4,), action_size=2, discrete=True)
    agent = PPO(sizes, config("ppo", format="fp64"), CPU)
    agent.be_quantized(quantized=True)
    x = torch.randn(6, 4, dtype=torch.float64)
    with agent.simulation, torch.no_grad():
        outputs, values = agent.both(agent.network.layers, x)
        assert torch.equal(outputs[0], agent.outputs(x)[0])
        assert torch.equal(values, agent.values(x))
    assert not torch.equal(values, agent.values(x))


# When


@pytest.mark.parametrize("algorithm", OF)
def test_it_begins_at_its_part_of_the_steps(algorithm, folders):
    plain, quantized = (returns(folders(algorithm, qat)) for qat in (None, INT3))
    before = [step for step in plain if step < 64]
    assert len(before) == 3
    assert [quantized[step] for step in before] == [plain[step] for step in before]
    assert weights(folders(algorithm, None)) != weights(folders(algorithm, INT3))


def test_what_is_learned_of_the_steps_before_is_not_quantized_nor_compiled(folders, tmp_path, monkeypatch):
    told, notices = [], []
    be_quantized = DQN.be_quantized

    def tell(agent, *, quantized):
        told.append(quantized)
        be_quantized(agent, quantized=quantized)

    monkeypatch.setattr(DQN, "be_quantized", tell)
    train(config(), tmp_path, compiled=True, on_notice=notices.append)
    assert told == [False] * 64 + [True] * 65  # at the beginning, and behind each of the 128 steps with its update
    assert notices == ["updates run eagerly: qat changes their arithmetic in the middle of a run"]
    assert outcome(tmp_path) == outcome(folders())


def test_after_1_quantizes_the_last_evaluation_alone(folders):
    plain, last = (folders(qat=qat) for qat in (None, {"format": "int2_row", "after": 1}))
    assert weights(plain) == weights(last)
    before, behind = returns(plain), returns(last)
    assert before.pop(128) != behind.pop(128)
    assert before == behind


def test_evaluate_in_rounds_to_the_same_numbers_after_training(tmp_path):
    """Two ways to compute it: rules of a simulation here, products of rounded operands there."""
    for algorithm in OF:
        formats = ("int4_row", "int2_row", "mxfp4")
        length = {"steps": 48, "eval_every": 48}
        result = train(config(algorithm, None, evaluate_in=formats, **length), tmp_path / algorithm)
        for name in formats:
            qat = {"format": name, "after": 1}
            last = train(config(algorithm, qat, **length), tmp_path / f"{algorithm} {name}")
            assert last.return_mean == result.quantized[str(Format.parse(name))]


def test_a_finished_run_is_looked_at_as_it_ended(folders, tmp_path):
    length = {"steps": 256, "eval_every": 256, "eval_episodes": 4}
    run = folders("ppo", {"format": "int2_row", "after": 0.5}, **length)
    found = quantize(run, [Quantization.parse({"weights": "fp32"})])
    assert list(found.original.returns) == returns(run)[256]
    (nothing_more,) = found.quantized.values()
    assert nothing_more == found.original
    shutil.copytree(run, tmp_path / "as if there had been no qat")
    text = json.loads((run / "config.json").read_text())
    del text["config"]["qat"]
    (tmp_path / "as if there had been no qat" / "config.json").write_text(json.dumps(text))
    assert quantize(tmp_path / "as if there had been no qat", []).original != found.original


def test_policies_of_other_libraries_are_looked_at_as_they_ended(tmp_path):
    pytest.importorskip("stable_baselines3")
    keys = {"algorithm": "sb3:PPO", "task": "gym:CartPole-v1", "steps": 128, "eval_episodes": 3, "eval_every": 128}
    options = {"n_steps": 64, "batch_size": 32, "policy_kwargs": {"net_arch": [8]}}
    made = TrainConfig(
        **keys, options=options, qat={"format": "int2_row", "after": 0.5}, evaluate_in=[{"weights": "fp32"}]
    )
    train(made, tmp_path)
    found = quantize(tmp_path, [Quantization.parse({"weights": "fp32"})])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ends = [tuple(line["returns"]) for line in lines if line["kind"] in ("eval", "eval_in")]
    assert len(ends) == 2
    assert {*ends, found.original.returns, *(one.returns for one in found.quantized.values())} == {ends[0]}


def test_after_0_quantizes_all(folders):
    runs = [folders(qat={"format": "int3_row", "after": after}, steps=32) for after in (0, 1e-9)]
    assert weights(runs[0]) == weights(runs[1])
    assert returns(runs[0])[16] == returns(runs[1])[16]


def test_forward_and_both_learn_differently(folders):
    runs = [folders(qat={**INT3, "operands": operands}, steps=48) for operands in ("forward", "both")]
    assert weights(runs[0]) != weights(runs[1])


@pytest.mark.parametrize("algorithm", OF)
def test_a_run_goes_on_with_the_same_bytes_before_and_behind_it(algorithm, folders, tmp_path):
    for turns in (20, 50):
        with pytest.raises(Stopped) as stopped:
            train(config(algorithm), tmp_path, stop=AfterSteps(turns), compiled=False)
        assert (stopped.value.step < 64) == (turns == 20)
    train(config(algorithm), tmp_path, compiled=False)
    assert outcome(tmp_path) == outcome(folders(algorithm))


def test_runs_without_it_keep_their_names():
    assert "qat" not in config(qat=None).as_json()
    assert config().as_json()["qat"] == {"format": "int3_row", "operands": "both", "after": 0.5}
    assert TrainConfig(**config().as_json()) == config()


# With what else a run may have


def test_of_several_runs_each_is_trained_alone(folders, tmp_path):
    jobs = [Job(config(), tmp_path / "0"), Job(config(seed=1, steps=32), tmp_path / "1")]
    assert {number for number, _ in train_together(jobs, compiled=True)} == {0, 1}
    assert outcome(tmp_path / "0") == outcome(folders())


def test_an_observer_counts_before_and_behind_it(folders, tmp_path):
    train(config(observe=True, steps=64), tmp_path, compiled=False)
    assert returns(tmp_path) == returns(folders(steps=64))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counted = {line["step"]: line["forward"]["results"] for line in lines if line["kind"] == "numerics"}
    assert len(counted) == 4
    assert min(counted.values()) > 0


@pytest.mark.parametrize("format", ["e8m7", "fp64"])
def test_an_agent_in_any_format(format, folders):
    runs = [folders("ppo", qat, format=format, steps=32, eval_every=32) for qat in (None, INT3)]
    assert weights(runs[0]) != weights(runs[1])


@pytest.mark.usefixtures("forked_interpreters")
def test_several_learners_begin_together(tmp_path):
    keys = {"learners": 2, "environments": 4, "eval_every": 32}
    runs = {name: config("ppo", qat, **keys) for name, qat in (("plain", None), ("quantized", INT3))}
    for name, run in runs.items():
        train(run, tmp_path / name, compiled=False)
    plain, quantized = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in runs)
    before = [line for line in plain if json.loads(line)["step"] < 64]
    assert before == quantized[: len(before)]
    assert any("loss" in line for line in before)  # of updates, to which each learner has added its gradients
    assert weights(tmp_path / "plain") != weights(tmp_path / "quantized")


# Other libraries


@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="stable-baselines3 is not installed")
class TestLibraries:
    OPTIONS = {"n_steps": 32, "n_epochs": 2, "batch_size": 16, "policy_kwargs": {"net_arch": [8]}}  # noqa: RUF012

    def config(self, qat):
        return TrainConfig(
            algorithm="sb3:PPO", task="gym:CartPole-v1", steps=96, eval_every=32, eval_episodes=2, qat=qat, seed=3,
            options=self.OPTIONS,
        )  # fmt: skip

    def test_the_library_computes_so_from_that_step_on(self, tmp_path):
        """Against the library alone, in an environment that enters a simulation in the middle of a rollout."""
        from stable_baselines3 import PPO as Plain

        run = self.config({"format": "int3", "after": 0.5})
        train(run, tmp_path)
        simulation = simulation_of(run)
        change_to(simulation, run, quantized=True)

        class Entering(gymnasium.Wrapper):
            steps = 0

            def step(self, action):
                if self.steps == 48:
                    simulation.__enter__()
                self.steps += 1
                return self.env.step(action)

        model = Plain("MlpPolicy", Entering(gymnasium.make("CartPole-v1")), seed=3, device="cpu", **self.OPTIONS)
        try:
            model.learn(96)
        finally:
            simulation.__exit__(None, None, None)
        kept = torch.load(tmp_path / "agent.pt", weights_only=True)["state"]
        for name, tensor in model.policy.state_dict().items():
            assert torch.equal(kept[name], tensor), name

    def test_its_evaluations_are_quantized_from_there_on(self, tmp_path):
        kinds = {"plain": None, "half": INT3, "last": {"format": "int2_row", "after": 1}}
        for name, qat in kinds.items():
            train(self.config(qat), tmp_path / name)
        plain, half, last = (returns(tmp_path / name) for name in kinds)
        assert plain[32] == half[32] == last[32]
        assert plain[64] == last[64]
        digests = [(tmp_path / name / "agent.pt").read_bytes() for name in kinds]
        assert digests[0] == digests[2] != digests[1]


# What is refused


REFUSED = [
    ({"qat": {"format": "int99"}}, "qat: format 'int99' is out of range: width of an integer format"),
    ({"qat": {"format": "int8", "after": 2}}, "qat: after is a part of the run's steps, from 0 to 1, got 2"),
    ({"qat": {"format": "int8", "operands": "all"}}, "qat: operands must be both or forward, got 'all'"),
    ({"qat": {"format": "int8", "bits": 8}}, "qat: has no key 'bits'; allowed are format, operands, after"),
    ({"qat": "int8"}, "qat: must be a mapping with a format, such as {format: int8, after: 0.5}, got 'int8'"),
    ({"qat": {"after": 0.5}}, "qat: must be a mapping with a format"),
    ({"qat": {"format": "fp64"}}, "qat.format: fp64 is not for an agent in fp32"),
    ({"qat": {"format": "int8"}, "baseline": "amp"}, "leave qat out, or set baseline: none"),
    ({"qat": {"format": "int8"}, "native": True, "format": "bf16"}, "which qat is about, got qat: {'format': 'int8'"),
]


@pytest.mark.parametrize(("keys", "words"), REFUSED)
def test_refused_in_one_message(keys, words):
    file = {"name": "x", "base": {"algorithm": "dqn", "task": "gym:CartPole-v1", "steps": 2000, **keys}}
    with pytest.raises(SweepError) as refused:
        plan_text(json.dumps(file), "x.yaml")
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("keys", [keys for keys, _ in REFUSED])
def test_refused_by_a_config_too(keys):
    with pytest.raises(ValidationError, match="1 validation error"):
        TrainConfig(**keys)


def test_every_algorithm_has_the_key():
    from roundoff.agents.config.train_config import ALGORITHMS, LIBRARIES, config_of

    for name in itertools.chain(ALGORITHMS, LIBRARIES):
        assert config_of(name).model_fields["qat"].default is None
