"""Algorithms of other libraries as runs: what they compute, what a run of them leaves, and how it ends."""

import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from roundoff.agents import Job, RunError, TrainConfig, train, train_together
from roundoff.agents.adapters.evaluation import make_model
from roundoff.agents.adapters.run import AdaptedRun
from roundoff.agents.adapters.world import open_world
from roundoff.agents.models.planes import PlanesNetwork, convolutions_for
from roundoff.agents.run.profile import Stopwatch
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.analysis import plot, report
from roundoff.extras import MissingExtraError
from roundoff.simulate.watching.lost_numbers import nan_among_locals
from roundoff.sweeps import plan_text

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

from stable_baselines3 import DQN, PPO

SHORT = {"steps": 128, "eval_every": 64, "eval_episodes": 2, "seed": 3}
CARTPOLE = SHORT | {"task": "gym:CartPole-v1"}
PENDULUM = SHORT | {"task": "gym:Pendulum-v1"}
NET = {"policy_kwargs": {"net_arch": [16, 16]}}
ON = NET | {"n_steps": 32}
OFF = NET | {"learning_starts": 40, "batch_size": 16}
ELEVEN = {
    "A2C": ON,
    "PPO": ON | {"n_epochs": 2, "batch_size": 32},
    "TRPO": ON | {"batch_size": 32},
    "RecurrentPPO": {"n_steps": 32, "n_epochs": 1, "batch_size": 32, "policy_kwargs": {"lstm_hidden_size": 8}},
    "DQN": OFF,
    "QRDQN": OFF | {"train_freq": [2, "step"]},
    **dict.fromkeys(("DDPG", "TD3", "SAC", "TQC", "CrossQ"), OFF),
}
CONTINUOUS = ("DDPG", "TD3", "SAC", "TQC", "CrossQ")


def config(name, **more):
    task = PENDULUM if name in CONTINUOUS else CARTPOLE
    return TrainConfig(**{"algorithm": f"sb3:{name}", "options": ELEVEN[name], **task, **more})


def weights(folder):
    return torch.load(folder / "agent.pt", weights_only=True)["state"]


def digest(tensors):
    """A hash of all tensors and their names."""
    parts = [name.encode() + tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def records(folder, kind):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("name", ELEVEN)
def test_each_algorithm_ends_as_done_or_crashed_in_a_small_format(name, tmp_path):
    result = train(config(name, format="e5m10"), tmp_path)
    finite = all(bool(torch.isfinite(x).all()) for x in weights(tmp_path).values() if x.is_floating_point())
    if result.status == "done":
        assert finite
        assert result.step >= 128
    else:
        assert not finite
        assert result.crash.reason
    assert json.loads((tmp_path / "result.json").read_text())["status"] == result.status


@pytest.mark.parametrize(("name", "plain", "task"), [("PPO", PPO, "CartPole-v1"), ("DQN", DQN, "CartPole-v1")])
def test_fp32_is_the_library_alone_and_runs_repeat_bit_for_bit(name, plain, task, tmp_path):
    assert train(config(name), tmp_path / "one") == train(config(name), tmp_path / "two")
    for file in ("metrics.jsonl", "result.json", "agent.pt"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    model = plain("MlpPolicy", gymnasium.make(task), seed=3, device="cpu", **ELEVEN[name]).learn(128)
    assert digest(weights(tmp_path / "one")) == digest(model.policy.state_dict())


def test_several_environments_are_the_library_alone_too(tmp_path):
    from stable_baselines3.common.env_util import make_vec_env

    train(config("PPO", environments=2), tmp_path)
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=3), seed=3, device="cpu", **ELEVEN["PPO"]).learn(128)
    assert digest(weights(tmp_path)) == digest(model.policy.state_dict())


def test_a_run_of_a_small_format_repeats_and_holds_numbers_of_the_format(tmp_path):
    for name in ("one", "two"):
        train(config("PPO", format="e8m7"), tmp_path / name)
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() == (tmp_path / "two" / "metrics.jsonl").read_bytes()
    for tensor in weights(tmp_path / "one").values():
        assert torch.equal(tensor, tensor.to(torch.bfloat16).float())


@pytest.mark.parametrize("policy", [{}, {"rounding": "stochastic"}])
def test_evaluations_do_not_disturb_what_is_learned(policy, tmp_path):
    for every in (32, 1000):
        train(config("PPO", format="e8m7", policy=policy, eval_every=every), tmp_path / str(every))
    assert digest(weights(tmp_path / "32")) == digest(weights(tmp_path / "1000"))


def test_the_folder_is_that_of_any_run(tmp_path):
    told = []
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    result = train(config("PPO"), tmp_path, told.append)
    assert torch.equal(before[0], torch.get_rng_state())  # the library seeds the process's generators
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {
        "agent.pt", "config.json", "metrics.jsonl", "result.json", "tensorboard", "timing.json",
    }  # fmt: skip
    evaluations = records(tmp_path, "eval")
    assert [record["step"] for record in evaluations] == [64, 128]
    assert evaluations[-1]["return_mean"] == result.return_mean
    trained = records(tmp_path, "train")
    assert {"episode_return", "loss", "value_loss"} <= set(trained[-1])
    assert not any("time" in name for record in trained for name in record)
    assert told[-1].step == 128
    assert told[-1].loss_scale is None
    assert "library" in json.loads((tmp_path / "timing.json").read_text())["spent"]
    assert train(config("PPO"), tmp_path) == result  # it has ended


def test_whole_rollouts_are_taken(tmp_path):
    result = train(config("PPO", steps=100), tmp_path)
    assert result.step == 128
    assert result.updates == 4 * 2  # passes over rollouts, as the library counts
    assert [record["step"] for record in records(tmp_path, "eval")] == [64, 128]


def test_a_crash_that_nobody_raises_is_found_at_the_next_evaluation(tmp_path):
    result = train(config("DQN", format="e5m10"), tmp_path)
    assert result.crash.step == 64
    assert "the weights q_net" in result.crash.reason
    assert result.return_mean == 0


def test_what_a_library_raises_because_of_nan_is_a_crash(tmp_path, monkeypatch):
    # torch.compile, which earlier tests of the process have called, makes distributions check nothing.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    result = train(config("SAC", format="e5m10", observe=True), tmp_path)
    assert "sb3:SAC raised ValueError" in result.crash.reason
    assert "NaN in addcdiv_ (optimizer)" in result.crash.reason
    assert (tmp_path / "numerics.csv").exists()
    assert records(tmp_path, "numerics")


def test_any_other_exception_is_none(tmp_path, monkeypatch):
    def fail(self, steps):
        fine = torch.ones(3)
        raise ValueError(f"a bug at {fine.sum()}")

    monkeypatch.setattr(PPO, "learn", fail)
    with pytest.raises(ValueError, match="a bug at 3"):
        train(config("PPO"), tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_nan_is_found_where_an_exception_was_raised():
    def computes(scores):
        if np.isnan(scores).any():
            raise AssertionError("strange")

    with pytest.raises(AssertionError) as caught:
        computes(np.array([1.0, np.nan]))
    assert nan_among_locals(caught.value) == "scores in computes"
    with pytest.raises(ValueError, match="reshape") as other:
        np.ones(2).reshape(3)
    assert nan_among_locals(other.value) is None


def test_an_action_chosen_by_nan_is_none(tmp_path, monkeypatch):
    """Finite weights, outputs that overflow: argmax takes them for scores."""
    make = AdaptedRun._make

    def made(self):
        model = make(self)
        for parameter in model.network.parameters():
            torch.nn.init.constant_(parameter, 1e30)
        return model

    monkeypatch.setattr(AdaptedRun, "_make", made)
    result = train(config("DQN", options={**OFF, "gradient_steps": 0}), tmp_path)
    assert result.crash.reason == "the policy took a non-finite action in evaluation"


def test_a_stopped_run_begins_anew_and_ends_as_if_it_had_not(tmp_path):
    train(config("PPO"), tmp_path / "whole")
    stop = StopRequest()

    def when(progress):
        if progress.step > 70:
            stop.make()

    with pytest.raises(Stopped) as caught:
        train(config("PPO"), tmp_path / "stopped", when, stop)
    assert not caught.value.saved
    assert not (tmp_path / "stopped" / "checkpoint.pt").exists()
    train(config("PPO"), tmp_path / "stopped")
    for file in ("metrics.jsonl", "result.json", "agent.pt"):
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert len(list((tmp_path / "stopped" / "tensorboard").iterdir())) == 1


def test_tasks_of_the_suite(tmp_path):
    keys = {"task": "cartpole_swingup", "action_repeat": 8, "steps": 512, "eval_every": 256, "eval_episodes": 1}
    for name in ("one", "two"):
        result = train(config("PPO", **keys), tmp_path / name)
    assert result.step == 512
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() == (tmp_path / "two" / "metrics.jsonl").read_bytes()
    (episode,) = records(tmp_path / "one", "train")[:1] or [{"step": 1000}]
    assert episode["step"] % 8 == 0


def test_a_rule_for_the_optimizer_cures(tmp_path):
    policy = {"rules": [{"role": "optimizer", "format": "fp32"}]}
    assert train(config("DQN", format="e5m10", policy=policy), tmp_path).status == "done"


def test_parts_of_ours_can_be_lent(tmp_path):
    kwargs = {**NET["policy_kwargs"], "optimizer_class": "roundoff:HAdam", "optimizer_kwargs": {"eps": 1e-4}}
    lent = config("DQN", format="e5m10", options={**OFF, "policy_kwargs": kwargs})
    assert train(lent, tmp_path / "lent").status == "done"
    assert train(lent, tmp_path / "again").status == "done"
    assert digest(weights(tmp_path / "lent")) == digest(weights(tmp_path / "again"))


@pytest.mark.parametrize(
    ("shape", "units", "heads"), [((4, 10, 10), 0, [[16, 3]]), ((4, 10, 10), 8, [[3]]), ((4, 104, 80), 8, [[3]])]
)
def test_convolutions_of_ours_can_be_lent(shape, units, heads):
    from roundoff.agents.adapters.sb3 import PlanesExtractor

    ours = PlanesNetwork(
        shape, convolutions_for(shape), [units] if units else [], heads,
        dtype=torch.float32, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    space = gymnasium.spaces.Box(0, 1, shape, np.float32)
    linears = [torch.nn.Linear(*pair) for pair in pairwise([PlanesExtractor(space, units).features_dim, *heads[0]])]
    layers = [layer for linear in linears for layer in (linear, torch.nn.ReLU())][:-1]
    lent = torch.nn.Sequential(PlanesExtractor(space, units), *layers)
    for parameter, layer in zip(lent.parameters(), ours.layers, strict=True):
        value = layer if layer.ndim != 3 else layer[0].mT
        parameter.data = value.reshape(parameter.shape).clone()
    seen = torch.rand(5, *shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(lent(seen), ours.outputs(ours.layers, seen)[0])


def test_convolutions_need_planes(tmp_path):
    options = {**OFF, "policy_kwargs": {"features_extractor_class": "roundoff:PlanesExtractor"}}
    with pytest.raises(RunError, match=r"is for planes, .* got observations \(4,\)"):
        train(config("DQN", options=options), tmp_path)


def test_episodes_are_remembered_each_for_itself():
    """Episodes in lockstep have the memory that each has alone, also where one ends before others."""
    made = config("RecurrentPPO")
    model = make_model(made, lambda number: open_world(made, number, print, print, Stopwatch()))
    first, second = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    model.begin(3)
    model.act(first)
    model.go_on(np.array([True, False, True]))
    model.act(second[[0, 2]])
    for place, row in enumerate((0, 2)):
        begins, goes_on = np.array([True]), np.array([False])
        alone = model._model
        _, state = alone.predict(first[[row]], episode_start=begins, deterministic=True)
        _, state = alone.predict(second[[row]], state=state, episode_start=goes_on, deterministic=True)
        for part, found in zip(state, model._memory, strict=True):
            np.testing.assert_allclose(found[:, place], part[:, 0], rtol=1e-5)


def test_initial_weights_are_numbers_of_the_format(tmp_path):
    train(config("DQN", format="e8m7", options={**OFF, "gradient_steps": 0}), tmp_path)
    for tensor in weights(tmp_path).values():
        assert torch.equal(tensor, tensor.to(torch.bfloat16).float())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithm": "sb3:PPPO"}, ['unknown algorithm "sb3:PPPO"', 'did you mean "sb3:PPO"']),
        ({"algorithm": "sb4:PPO"}, ['unknown algorithm "sb4:PPO"', "sb3:NAME"]),
        ({"options": {"n_step": 3}}, ['unknown option of sb3:PPO "n_step"', 'did you mean "n_steps"', "gae_lambda"]),
        ({"options": {"seed": 3}}, ["options.seed is set by the run: say seed"]),
        ({"options": {"policy_kwargs": {"optimizer_class": "torch:Adm"}}}, ['unknown part "torch:Adm"']),
        ({"options": ["n_steps"]}, ["options is a mapping"]),
        ({"options": {"gamma": float("nan")}}, ["options takes finite numbers", "not JSON compliant"]),
        ({"fixes": "none"}, ["fixes is a key of", "not of sb3:PPO"]),
        ({"native": True, "format": "e5m10"}, ["native is for roundoff's own agents"]),
        ({"keep_networks": True}, ["keep_networks is for roundoff's own agents"]),
        (
            {"algorithm": "sb3:SAC", "task": "gym:Pendulum-v1", "steps": 100},
            ["nothing would be learned: sb3:SAC takes 100 steps before it learns", "options.learning_starts below 100"],
        ),
        ({"algorithm": "tianshou:DQN", "task": "gym:CartPole-v1", "steps": 1000}, ["tianshou:DQN takes 1000 steps"]),
        ({"seed": 2**40}, ["seed must be below 2^32"]),
        ({"algorithm": "sb3:DQN", "task": "gym:Pendulum-v1"}, ["sb3:DQN takes discrete actions"]),
        ({"algorithm": "sb3:SAC", "task": "gym:CartPole-v1"}, ["sb3:SAC takes continuous actions"]),
        ({"algorithm": "sac", "options": {}}, ["options is a key of sb3:NAME, tianshou:NAME"]),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(keys, words):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(**{"algorithm": "sb3:PPO", **keys})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_what_the_library_refuses_is_one_message(tmp_path):
    with pytest.raises(RunError, match=r"sb3:PPO cannot be made with options .*n_steps.*AssertionError"):
        train(config("PPO", options={"n_steps": 1}), tmp_path)


def test_configs_are_checked_without_the_library_and_pytorch():
    program = (
        "import sys; from roundoff.agents import TrainConfig\n"
        "TrainConfig(algorithm='sb3:PPO', options={'n_steps': 8})\n"
        "try: TrainConfig(algorithm='sb3:PPO', options={'n_step': 8})\n"
        "except ValueError: print('refused')\n"
        "print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("refused")
    assert not {"torch", "stable_baselines3", "sb3_contrib", "gymnasium"} & set(shown.split())


def test_configs_go_back_and_forth():
    found = config("PPO", format="fp16")
    assert TrainConfig(**found.as_json()) == found
    assert found.as_json()["options"] == ELEVEN["PPO"]


def test_runs_of_a_sweep_are_drawn_and_reported(tmp_path):
    planned = plan_text(
        "name: libraries\n"
        "base: {task: 'gym:CartPole-v1', steps: 64, eval_every: 64, eval_episodes: 2}\n"
        "grid: {format: [fp32, e5m10]}\n"
        "cases:\n"
        "  - {name: p, algorithm: 'sb3:PPO', options: {n_steps: 32, batch_size: 32, policy_kwargs: {net_arch: [4]}}}\n"
        "  - {name: dqn, algorithm: 'sb3:DQN', options: {learning_starts: 40, policy_kwargs: {net_arch: [8]}}}\n",
        "libraries.yaml",
    )
    assert len(planned.runs) == 4
    jobs = [Job(run.config, tmp_path / run.id) for run in planned.runs]
    outcomes = dict(train_together(jobs))
    assert sorted(outcome.status for outcome in outcomes.values()) == ["crashed", "done", "done", "done"]
    plot(tmp_path)
    assert (tmp_path / "training.csv").read_text().startswith("id,step,loss,")
    assert "sb3:DQN" in (tmp_path / "summary.csv").read_text()
    report(tmp_path)
    assert "sb3:DQN" in (tmp_path / "report.html").read_text()


TIANSHOU = {"C51": {}, "DQN": {"is_double": False}, "IQN": {"num_quantiles": 16}, "QRDQN": {"num_quantiles": 16},
            "Rainbow": {"num_atoms": 21}}  # fmt: skip


@pytest.mark.skipif(find_spec("tianshou") is not None, reason="tianshou is installed")
def test_a_library_that_is_missing_is_named(tmp_path):
    with pytest.raises(MissingExtraError, match=r'this needs tianshou: pip install "\.\[tianshou\]"'):
        train(
            TrainConfig(algorithm="tianshou:IQN", options={"whatever": 1, "learning_starts": 1}, **CARTPOLE),
            tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("tianshou") is None, reason="tianshou is not installed")
@pytest.mark.filterwarnings("ignore")  # its own
@pytest.mark.parametrize("name", TIANSHOU)
def test_algorithms_of_tianshou(name, tmp_path):
    options = {"hidden_sizes": [16], "learning_starts": 40, "target_update_freq": 20, "eps_training": 0.1,
               **TIANSHOU[name]}  # fmt: skip
    keys = {"algorithm": f"tianshou:{name}", "options": options, **CARTPOLE}
    for folder in ("one", "two"):
        assert train(TrainConfig(**keys), tmp_path / folder).status == "done"
    for file in ("metrics.jsonl", "agent.pt"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    train(TrainConfig(**keys | {"eval_every": 1000}), tmp_path / "seldom")
    assert digest(weights(tmp_path / "seldom")) == digest(weights(tmp_path / "one"))
    crashed = train(TrainConfig(**keys, format="e5m10"), tmp_path / "e5m10")
    assert crashed.status == "crashed"  # by Adam's eps, which is 0 there
    assert "not finite" in crashed.crash.reason or "NaN" in crashed.crash.reason


@pytest.mark.skipif(find_spec("tianshou") is None, reason="tianshou is not installed")
@pytest.mark.filterwarnings("ignore")
def test_fp32_is_tianshou_alone(tmp_path):
    from tianshou.algorithm import DQN as PlainDQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    options = {"hidden_sizes": [16], "learning_starts": 40, "target_update_freq": 20, "eps_training": 0.1}
    train(TrainConfig(algorithm="tianshou:DQN", options=options, **CARTPOLE), tmp_path)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    worlds = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    worlds.seed(3)
    space = worlds.action_space[0]
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[16])
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    algorithm = PlainDQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=20)
    collector = Collector(policy, worlds, VectorReplayBuffer(20_000, 1), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=40, random=True)
    params = OffPolicyTrainerParams(
        training_collector=collector, max_epochs=1, epoch_num_steps=88, collection_step_num_env_steps=10,
        update_step_num_gradient_steps_per_sample=0.1, show_progress=False,
    )  # fmt: skip
    algorithm.run_training(params)
    plain = {name: tensor for name, tensor in algorithm.state_dict().items() if isinstance(tensor, torch.Tensor)}
    assert digest(weights(tmp_path)) == digest(plain)
