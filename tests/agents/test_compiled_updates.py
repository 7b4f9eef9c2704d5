"""Compiled updates: the bits of the eager agent through skipped steps and changing scales, in runs and after a stop."""

import errno
import itertools
from contextlib import closing

import pytest
import torch
from sac_pairs import RESTLESS, SMALL, differences, pair, same

from roundoff.agents import TrainConfig, train
from roundoff.agents.algorithms.arithmetic import simulation_of
from roundoff.agents.experience.replay import batch_of
from roundoff.agents.programs import compiled as compiled_updates
from roundoff.agents.programs.compiled import CompiledUpdates, compile_acting, compile_updates
from roundoff.agents.run.parts import make_learner, open_environments
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.formats import round
from roundoff.simulate.compiling.graphs import tracing as graphs
from roundoff.simulate.compiling.step import reason_against_compiling


@pytest.mark.parametrize(
    "keys",
    [
        {"format": "e5m10", **RESTLESS},
        {"format": "e5m7", "policy": {"rounding": "stochastic"}, **RESTLESS},
        {"format": "e6m9", "fixes": ["normal_fix"], "lr": 1e-3},
        {"format": "e5m4", "policy": {"rules": [{"role": "forward", "format": "e5m7"}]}, **RESTLESS},
        {"format": "e5m4", "policy": {"rules": [{"role": ["averages", "targets"], "format": "e5m7"}]}, **RESTLESS},
        # Every day test_population.py asks so of two agents together.
        *(
            pytest.param(
                {"format": "e5m4", "policy": {"rules": [{"role": roles, "format": "fp32"}]}, **RESTLESS},
                marks=pytest.mark.slow,
            )
            for roles in (["backward", "optimizer"], ["forward", "backward"])
        ),
    ],
    ids=lambda keys: f"{keys['format']}-{keys.get('fixes', 'all')}-{keys.get('policy', {}).get('rules', '')}",
)
def test_same_bits_as_the_eager_agent(keys, request, monkeypatch):
    if keys["format"] != "e5m10":  # other programs are traced; that compiling leaves bits alone, the first one shows
        request.getfixturevalue("uncompiled")
        monkeypatch.setattr(compiled_updates, "_PROGRAMS", {})
    eager, mine, replay, generator = pair(**keys)
    mine.compiled = CompiledUpdates(mine)
    scales = set()
    for update in range(30):
        batch = replay.sample(8, generator)
        if update == 20:  # a gradient that no scale makes finite, or a crash
            batch.rows[0, -2] = float("inf")
        metrics = [agent.update(batch) for agent in (eager, mine)]
        scales.add(eager.optimizers["critic"].scale)
        if update % 10 == 9 and update < 20:
            summaries = [agent.summarize(found) for agent, found in zip((eager, mine), metrics, strict=True)]
            assert all(same(summaries[0][name], summaries[1][name]) for name in summaries[0])
            assert differences(eager, mine) == []
    assert differences(eager, mine) == []
    if "initial_loss_scale" in keys:
        assert len(scales) > 3


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("algorithm", "atoms", "prioritized"),
    [
        # Every day each two of these go together once.
        pytest.param(algorithm, atoms, prioritized, marks=[] if odd else pytest.mark.slow)
        for algorithm, atoms, prioritized in itertools.product(("dqn", "d4pg"), (1, 11), (False, True))
        for odd in [(algorithm == "dqn") ^ (atoms == 1) ^ prioritized]
    ],
)
def test_what_values_tell_has_the_bits_of_the_eager_agent(algorithm, atoms, prioritized, monkeypatch):
    """Priorities and mean values are computed behind the gradient, up to which as many random bits were drawn."""
    monkeypatch.setattr(compiled_updates, "_PROGRAMS", {})
    task = "gym:CartPole-v1" if algorithm == "dqn" else SMALL["task"]
    support = {"v_min": 0.0, "v_max": 100.0} if atoms > 1 else {}
    keys = SMALL | {"algorithm": algorithm, "task": task, "atoms": atoms, "n_steps": 1}
    keys |= support | {"prioritized": prioritized}
    keys |= {"format": "e5m4", "policy": {"rounding": "stochastic"}}
    config = TrainConfig(**{name: keys[name] for name in keys if name != "tau"})
    with closing(open_environments(config, lambda: None)) as environments:
        eager, mine = (make_learner(config, environments, torch.device("cpu"))[0] for _ in range(2))
    mine.compiled = CompiledUpdates(mine)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = round(torch.randn(8, eager.row_size, generator=generator), "e5m4")
        weights = round(torch.rand(8, 1, generator=generator), "e5m4")
        both = [
            one.update(batch_of(rows.clone(), one.observation_size, one.action_size).weighed(weights))
            for one in (eager, mine)
        ]
        assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    assert {"q", *(["priority"] if prioritized else [])} <= both[0].keys()
    assert differences(eager, mine) == []


def test_actions_have_the_bits_of_the_eager_agent():
    eager, mine, replay, generator = pair(format="e5m6", sigma_eps=1e-2)
    compile_acting(mine)
    assert mine.acting is not None
    for rows, deterministic in ((1, False), (3, True), (1, False)):
        observations = replay.sample(rows, generator).observations
        actions = [agent.act(observations, deterministic=deterministic) for agent in (eager, mine)]
        assert torch.equal(*actions)
        for agent in (eager, mine):
            agent.actor.flat.mul_(2)
    assert differences(eager, mine) == []


def test_random_bits_between_roundings_are_left_to_the_eager_agent():
    _, mine, _, _ = pair(format="e5m6", policy={"rounding": "stochastic"})
    compile_acting(mine)
    assert mine.acting is None


TINY = {
    **SMALL, **RESTLESS, "format": "e5m10", "action_repeat": 20, "steps": 2000, "seed_steps": 20, "eval_every": 1000,
    "eval_episodes": 1, "checkpoint_every": 500,
}  # fmt: skip


def test_a_run_has_the_same_bytes_compiled_stopped_or_not(tmp_path):
    notices = []
    train(TrainConfig(**TINY), tmp_path / "eager", compiled=False, on_notice=notices.append)
    stop = StopRequest()

    def stop_in_the_middle(progress):
        if progress.step >= 1000:
            stop.make()

    with pytest.raises(Stopped):
        train(TrainConfig(**TINY), tmp_path / "mine", stop_in_the_middle, stop, compiled=True, on_notice=notices.append)
    train(TrainConfig(**TINY), tmp_path / "mine", compiled=True)
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "eager" / name).read_bytes()
    assert notices == ["updates run eagerly: as asked", "updates are compiled"]


def test_a_run_goes_on_when_the_compiler_fails(tmp_path, monkeypatch):
    """The actor's program fails to compile, when others have been, as with a disk that is full by then."""
    programs = []

    def compile_graph(traced):
        programs.append(traced)
        if len(programs) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return lambda inputs: traced.graph(*inputs)  # what compiling leaves of bits, others show

    config = TrainConfig(**TINY | {"steps": 800, "eval_every": 400})
    notices = []
    train(config, tmp_path / "eager", compiled=False)
    assert reason_against_compiling() is None  # which compiles something of its own, once in a process
    monkeypatch.setattr(compiled_updates, "_PROGRAMS", {})
    monkeypatch.setattr(graphs, "compile_graph", compile_graph)
    train(config, tmp_path / "mine", compiled=True, on_notice=notices.append)
    assert notices == [
        "updates are compiled",
        "updates run eagerly: PyTorch's compiler failed (No space left on device)",
    ]
    assert len(programs) == 3
    for name in ("metrics.jsonl", "result.json", "agent.pt"):
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "eager" / name).read_bytes()


@pytest.mark.parametrize(
    ("keys", "updates", "wanted", "notice"),
    [
        ({"format": "e5m10"}, 100, None, "takes more time than it saves in 100 updates"),
        ({"format": "fp32"}, 10**6, None, "little time where nothing is simulated"),
        ({"baseline": "amp", "fixes": "none"}, 10**6, True, "the baseline amp is not compiled"),
        ({"native": True, "format": "fp16"}, 10**6, True, "native half precision"),
        ({"observe": True}, 10**6, True, "an observing simulation"),
        ({"adam_beta2": 1 - 1e-15}, 10**6, True, "adam_beta2 = 0.999999999999999 is so near to 1"),
    ],
)
def test_what_is_not_compiled(keys, updates, wanted, notice):
    _, mine, _, _ = pair(**keys)
    assert notice in compile_updates(mine, updates, wanted=wanted)
    assert mine.compiled is None


def test_programs_with_other_carriers_are_not_shared(monkeypatch):
    def kind(format):
        config = TrainConfig(task="cartpole_swingup", format=format, policy={"preset": "mixed-precision"})
        return compiled_updates.kind(config, simulation_of(config))

    assert kind("e5m7") == kind("e6m7")  # on the CPU formats are data
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert kind("e5m7") != kind("e6m7")
    assert kind("e5m7") == kind("e5m6")
