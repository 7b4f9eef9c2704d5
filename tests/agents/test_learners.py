"""Several learners of one run: what travels between them, what their steps come to, and one that is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch
from processes import PATIENCE, TRAINING, alive, children, wait_until
from pydantic import ValidationError

from roundoff.agents import Job, RunError, TrainConfig, train, train_together
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.agents.config.fixes import FIXES
from roundoff.agents.experience.replay import Replay
from roundoff.agents.learners.asynchronous import AsynchronousGroup
from roundoff.agents.learners.central import CentralStore
from roundoff.agents.learners.group import LearnerGroup
from roundoff.agents.learners.parcels import Parcel
from roundoff.agents.optimizers.network_optimizer import NetworkOptimizer
from roundoff.agents.run import checkpoint
from roundoff.formats import Format, round

CPU = torch.device("cpu")
TINY = {
    "algorithm": "td3", "task": "gym:Pendulum-v1", "environments": 4, "steps": 600, "eval_every": 300,
    "eval_episodes": 1, "checkpoint_every": 100, "hidden_units": 8, "last_hidden_units": 8, "batch_size": 8,
    "seed_steps": 60, "learners": 2, "format": "e5m10", "communicate": "e5m2",
}  # fmt: skip


# What travels


@pytest.mark.parametrize(
    "name",
    [
        None,
        "fp32",
        "fp16",
        "bf16",
        "e5m2",
        "e4m3",
        "e2m1",
        "e3m2",
        "mxfp4",
        "nvfp4",
        "int8",
        "int4",
        "posit8",
        "lns8_3",
        "q3.4",
    ],
)
def test_a_parcel_holds_the_rounded_numbers_in_as_few_bytes_as_they_need(name):
    fmt = Format.parse(name) if name else None
    x = torch.randn(1024, generator=torch.Generator().manual_seed(0)) * 3
    x[5] = -0.0
    parcel = Parcel.of(x, fmt)
    got = parcel.opened(parcel.content)
    want = round(x, fmt) if fmt else x
    assert torch.equal(got, want)
    assert parcel.content.dtype == torch.uint8
    size = x.nbytes if fmt is None else 1 + 1024 * fmt.bits_per_number / 8
    assert size <= len(parcel.content) <= size + 8  # a scale of the whole tensor, and where it begins


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["e5m2", "e4m3", "int8", "q3.4", "mxfp4"])
def test_one_number_that_is_not_finite_arrives_as_nan_in_every_format(name, bad):
    x = torch.ones(40)
    x[7] = bad
    parcel = Parcel.of(x, Format.parse(name))
    assert torch.isnan(parcel.opened(parcel.content)).all()
    assert torch.equal(Parcel.of(x).opened(Parcel.of(x).content).nan_to_num(5.0), x.nan_to_num(5.0))


# Sums of gradients


class Meeting:
    """Threads in place of processes."""

    def __init__(self, count):
        self.barrier, self.gradients, self.count = threading.Barrier(count), [None] * count, count

    def group(self, rank, communicate=None):
        group = LearnerGroup.__new__(LearnerGroup)
        group.rank, group.count = rank, self.count
        fmt = Format.parse(communicate) if communicate else None

        def all_of(gradient):
            parcel = Parcel.of(gradient.clone(), fmt)
            self.gradients[rank] = parcel.opened(parcel.content)
            self.barrier.wait()
            everybody = [one.clone() for one in self.gradients]
            self.barrier.wait()
            return everybody

        group._all_of = all_of
        return group

    def run(self, functions):
        failures = []

        def guarded(function):
            try:
                function()
            except Exception as error:  # noqa: BLE001  raised again below
                failures.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


def learner(batch_size, **keys):
    keys = {
        "format": "fp64",
        "fixes": "none",
        "policy_noise": 0.0,
        "hidden_units": 8,
        "last_hidden_units": 8,
        "lr": 1e-2,
    } | keys
    config = TrainConfig(algorithm="td3", task="gym:Pendulum-v1", batch_size=batch_size, **keys)
    return TD3(3, 1, config, CPU)


def batches(updates, size, dtype):
    random = torch.Generator().manual_seed(3)
    replay = Replay(1, 3, 1, dtype=dtype, device=CPU)
    return [
        replay.as_batch(torch.randn(size, 9, generator=random, dtype=torch.float64).to(dtype)) for _ in range(updates)
    ]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("fixes", ["none", FIXES])
def test_learners_with_a_batch_each_are_one_learner_with_all_of_it(count, fixes):
    one = learner(12, fixes=fixes)
    several = [learner(12 // count, fixes=fixes) for _ in range(count)]
    meeting = Meeting(count)
    for rank, other in enumerate(several):
        meeting.group(rank).join(other.optimizers, 0)
    given = batches(6, 12, one.dtype)
    for batch in given:
        one.update(batch)

    def learn(rank):
        own = several[rank]
        replay = Replay(1, 3, 1, dtype=own.dtype, device=CPU)
        for batch in given:
            own.update(replay.as_batch(batch.rows[rank::count].clone()))

    meeting.run([lambda rank=rank: learn(rank) for rank in range(count)])
    for name, tensor in one.weights().items():
        for other in several:
            torch.testing.assert_close(other.weights()[name], tensor, rtol=1e-6, atol=1e-9)
            assert torch.equal(other.weights()[name], several[0].weights()[name])
    before = learner(12).weights()
    assert all(not torch.equal(tensor, before[name]) for name, tensor in one.weights().items())


@pytest.mark.parametrize("communicate", [None, "e5m2"])
def test_learners_skip_a_step_together(communicate):
    """One has a gradient that is not finite; all halve their loss scale, and none moves."""
    keys = {"format": "e5m10", "fixes": FIXES, "initial_loss_scale": 4.0}
    several = [learner(4, **keys) for _ in range(2)]
    meeting = Meeting(2)
    for rank, other in enumerate(several):
        meeting.group(rank, communicate).join(other.optimizers, 0)
    before = several[0].weights()["critic"].clone()

    def learn(rank):
        critic = several[rank].optimizers["critic"]
        critic.flat.grad.fill_(torch.inf if rank else 0.5)
        with several[rank].constructing():
            critic.step()

    meeting.run([lambda: learn(0), lambda: learn(1)])
    for other in several:
        assert torch.equal(other.weights()["critic"], before)
        assert other.optimizers["critic"].scale == 2.0


# Central parameters


def optimizer_of(flat, fixes=(), **keys):
    config = TrainConfig(
        algorithm="td3", task="gym:Pendulum-v1", format="fp64", fixes=list(fixes) or "none", lr=1e-2, **keys
    )
    return NetworkOptimizer(flat, config, Format.parse("fp64"), kahan=True)


def parameters():
    flat = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    flat.grad = torch.zeros_like(flat)
    return flat


def gradients(steps):
    return torch.randn(steps, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def shared(flat, memory, rank=0, count=1, fixes=(), **options):
    optimizer = optimizer_of(flat, fixes)
    group = AsynchronousGroup(memory, rank, count, **options)
    group.join({"only": optimizer}, 0)
    return optimizer, group


@pytest.fixture
def memory():
    file = os.memfd_create("test")
    yield file
    os.close(file)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("fixes", [(), ("hadam",), ("hadam", "kahan_gradients"), ("hadam", "compound_loss_scaling")])
def test_one_asynchronous_learner_takes_the_optimizers_steps_to_the_bit(fixes, optimizer, memory):
    plain, central = parameters(), parameters()
    one = optimizer_of(plain, fixes, optimizer=optimizer)
    other = optimizer_of(central, fixes, optimizer=optimizer)
    AsynchronousGroup(memory, 0, 1).join({"only": other}, 0)
    for gradient in gradients(30):
        for each in (one, other):
            each.flat.grad.copy_(gradient * each.scale)
            each.step()
        assert torch.equal(plain, central)


@pytest.mark.parametrize("fixes", [(), ("hadam",)])
@pytest.mark.parametrize("every", [1, 4])
def test_multi_step_adam_of_one_learner_is_adam(fixes, every, memory):
    """To the bit, if it exchanges after every step; then the sums of steps are rounded in another order."""
    plain, central = parameters(), parameters()
    one, other = optimizer_of(plain, fixes), optimizer_of(central, fixes)
    from roundoff.agents.learners.asynchronous import MultiStepAdam

    several, tensors = MultiStepAdam(other), one.tensors
    for i, gradient in enumerate(gradients(40)):
        plain.grad.copy_(gradient)
        central.grad.copy_(gradient)
        one.step()
        several.step()
        if i % every == every - 1:
            several.exchange()
            for mine, theirs in zip(several.tensors, (plain, tensors["moment"], tensors["second"]), strict=True):
                if every == 1:
                    assert torch.equal(mine, theirs)
                else:
                    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_the_sum_of_steps_is_the_papers():
    """Appendix B, written out: two learners, three steps each, one after the other."""
    beta1, beta2, lr, eps, n = 0.9, 0.999, 1e-2, 1e-8, 3
    theta, m, v = parameters(), torch.zeros(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    file = os.memfd_create("test")
    flats = [parameters(), parameters()]
    learners = [shared(flats[rank], file, rank, 2, every=n)[0] for rank in range(2)]
    given = gradients(12).view(2, 2, n, 50)  # round, learner, step
    own = [{"theta": theta.clone(), "m": m.clone(), "v": v.clone(), "t": 0} for _ in range(2)]
    for one_round in given:
        for rank, steps in enumerate(one_round):
            mine = own[rank]
            a_g = a_g2 = a_s = torch.zeros(50, dtype=torch.float64)
            for g in steps:
                flats[rank].grad.copy_(g)
                learners[rank].step()
                mine["t"] += 1
                mine["m"] = beta1 * mine["m"] + (1 - beta1) * g
                mine["v"] = beta2 * mine["v"] + (1 - beta2) * g * g
                root = (mine["v"] / (1 - beta2 ** mine["t"])).sqrt()
                s = lr / (1 - beta1 ** mine["t"]) * mine["m"] / (root + eps)
                a_g, a_g2, a_s = beta1 * a_g + g, beta2 * a_g2 + g * g, a_s + s
            theta, m, v = theta - a_s, beta1**n * m + (1 - beta1) * a_g, beta2**n * v + (1 - beta2) * a_g2
            mine.update(theta=theta, m=m, v=v)
            torch.testing.assert_close(flats[rank], theta, rtol=1e-10, atol=1e-12)
    os.close(file)


def test_learners_in_lockstep_are_one_after_the_other(memory):
    """Chunk by chunk, with gradients that were computed before the others' steps."""
    plain = parameters()
    one = optimizer_of(plain)
    flats = [parameters(), parameters()]
    groups = [shared(flats[rank], memory, rank, 2, chunks=3, lockstep=True) for rank in range(2)]
    given = gradients(20).view(10, 2, 50)

    def learn(rank):
        for gradient in given[:, rank]:
            flats[rank].grad.copy_(gradient)
            groups[rank][0].step()

    Meeting(2).run([lambda: learn(0), lambda: learn(1)])
    for gradient in given.reshape(20, 50):
        plain.grad.copy_(gradient)
        one.step()
    assert torch.equal(flats[1], plain)
    groups[0][1].pull()
    assert torch.equal(flats[0], plain)


@pytest.mark.usefixtures("forked_interpreters")
def test_a_gradient_that_came_with_another_loss_scale_is_multiplied_by_the_quotient(memory):
    fixes, plain, flats = ("hadam", "compound_loss_scaling"), parameters(), [parameters(), parameters()]
    one = optimizer_of(plain, fixes)
    (first, _), (second, _) = (shared(flats[rank], memory, rank, 2, fixes) for rank in range(2))
    (gradient,) = gradients(1)
    for lost in (one, first):
        lost.flat.grad.fill_(torch.inf)
        lost.step()  # halves the scale
    assert one.scale == second.scale / 2
    for each in (one, second):
        each.flat.grad.copy_(gradient * each.scale)
        each.step()
    assert torch.equal(flats[1], plain)
    assert second.scale == one.scale


def test_a_process_that_is_killed_leaves_every_chunk_whole(memory):
    """Two others write numbers that are all alike, and are killed as they do."""
    chunk = torch.zeros(200_000)
    store = CentralStore(memory, [[chunk]], leads=True)
    script = """
import sys, torch
from roundoff.agents.learners.central import CentralStore
chunk = torch.zeros(200_000)
store = CentralStore(int(sys.argv[1]), [[chunk]], leads=False)
print("ready", flush=True)
while True:
    with store.held(0):
        assert (chunk == chunk[0]).all()
        chunk += 1
"""
    for _ in range(2):
        others = [
            subprocess.Popen([sys.executable, "-c", script, str(memory)], pass_fds=(memory,), stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for other in others:
            assert other.stdout.readline() == b"ready\n"
        before = float(chunk[0])
        for other in others:
            wait_until(lambda before=before: store.pull() or chunk[0] > before + 5)
            other.kill()
            other.communicate()
        store.pull()  # which waits for nobody who is dead
        assert (chunk == chunk[0]).all()
        assert chunk[0] > before


# Runs


def script(config, folder, *file):
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, json.dumps(config), str(folder), *map(str, file)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "agent.pt", "result.json")}


@pytest.mark.usefixtures("forked_interpreters")
def test_learners_that_are_killed_and_go_on_leave_the_same_bytes(tmp_path):
    keys = TINY | {"steps": 320, "eval_every": 160, "checkpoint_every": 80}
    train(TrainConfig(**keys), tmp_path / "whole", compiled=False)
    assert not (tmp_path / "whole" / "learners").exists()
    broken = tmp_path / "broken"
    for victim in ("follower", "leader"):
        killed = tmp_path / victim
        process = script(keys, broken, killed)
        before = len(list(broken.glob("checkpoint.pt"))) and (broken / "checkpoint.pt").stat().st_mtime_ns
        wait_until(
            lambda before=before: (
                (broken / "checkpoint.pt").exists() and (broken / "checkpoint.pt").stat().st_mtime_ns != before
            )
        )
        (follower,) = children(process.pid)
        os.kill(follower if victim == "follower" else process.pid, signal.SIGKILL)
        killed.touch()
        _, said = process.communicate()
        assert process.returncode != 0
        if victim == "follower":
            assert "learner 2 of 2" in said
            assert "was killed by SIGKILL" in said
        wait_until(lambda follower=follower: not alive(follower))
    train(TrainConfig(**keys), broken, compiled=False)
    assert files(broken) == files(tmp_path / "whole")


@pytest.mark.usefixtures("forked_interpreters")
def test_runs_of_several_learners_are_trained_one_after_the_other(tmp_path):
    keys = TINY | {"steps": 100, "eval_every": 100, "communicate": None}
    jobs = [Job(TrainConfig(**keys, seed=seed), tmp_path / str(seed)) for seed in range(2)]
    assert [(number, result.status) for number, result in train_together(jobs)] == [(0, "done"), (1, "done")]


@pytest.mark.usefixtures("forked_interpreters")
def test_asynchronous_learners_go_on_without_one_that_is_killed(tmp_path):
    keys = TINY | {"asynchronous": True, "communicate": None}
    folder = tmp_path / "run"
    process = script(keys, folder)
    wait_until(lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size)
    for follower in children(process.pid):
        os.kill(follower, signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 0, said
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "eval"][-1] == 600
    assert json.loads((folder / "result.json").read_text())["status"] == "done"


@pytest.mark.usefixtures("forked_interpreters")
def test_asynchronous_learners_end_when_their_leader_is_killed_and_go_on_from_its_checkpoint(tmp_path):
    keys = TINY | {"asynchronous": True, "communicate": None, "steps": 1_000_000, "eval_every": 1_000_000}
    saved = tmp_path / "run" / "checkpoint.pt"
    steps = []
    for _ in range(2):
        process = script(keys, tmp_path / "run")
        wait_until(lambda: saved.exists() and checkpoint.load(saved)["step"] > max(steps, default=0))
        followers = children(process.pid)
        assert followers
        process.kill()
        process.communicate(timeout=PATIENCE)  # the others hold its stderr until they end
        steps.append(checkpoint.load(saved)["step"])
        wait_until(lambda followers=followers: not any(alive(follower) for follower in followers))
    first, second = steps
    assert first < second


@pytest.mark.usefixtures("forked_interpreters")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_learner_that_dies_before_it_has_met_the_others_is_no_endless_wait(tmp_path, asynchronous):
    keys = TINY | {"asynchronous": asynchronous, "steps": 200, "eval_every": 200}
    keys |= {"communicate": None} if asynchronous else {}
    process = script(keys, tmp_path / "run")
    (follower,) = wait_until(partial(children, process.pid))
    os.kill(follower, signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode == 0) == asynchronous, said  # who waits for nobody goes on alone
    assert ("learner 2 of 2" in said) != asynchronous


FAILING = """
import sys
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

class Failing(PendulumEnv):
    def step(self, action):
        if any("follower" in word for word in sys.argv):
            raise ValueError("the pole is broken")
        return super().step(action)

gymnasium.register("Failing-v0", Failing, max_episode_steps=50)
"""


@pytest.mark.usefixtures("forked_interpreters")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_environment_that_fails_in_one_learner_ends_all_with_its_message(tmp_path, monkeypatch, asynchronous):
    (tmp_path / "failing_pendulum.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    keys = TINY | {"task": "gym:failing_pendulum:Failing-v0", "steps": 20_000, "asynchronous": asynchronous}
    keys |= {"environment_workers": 0, "checkpoint_every": 10_000, "eval_every": 20_000}
    config = TrainConfig(**keys | ({"communicate": None} if asynchronous else {}))
    with pytest.raises(RunError, match="the pole is broken"):
        train(config, tmp_path / "run", compiled=False, allow_imports=["failing_pendulum"])


def test_the_crash_of_any_learner_is_that_of_the_run(tmp_path, monkeypatch):
    """The leader's learner never sees what the other one crashes of."""
    keys = TINY | {"lr": 1e4, "fixes": "none", "steps": 3000, "eval_every": 3000, "communicate": None}
    result = train(TrainConfig(**keys), tmp_path / "run", compiled=False)
    assert result.status == "crashed"
    assert "non-finite action" in result.crash.reason


def test_each_learner_has_its_share():
    whole = TrainConfig(
        algorithm="dqn", environments=6, environment_workers=5, learners=3, steps=100, seed_steps=10, eval_episodes=5,
        exploration_steps=30, replay_capacity=90,
    )  # fmt: skip
    share = whole.share()
    kept = ("environments", "environment_workers", "steps", "seed_steps", "exploration_steps", "replay_capacity")
    assert [getattr(share, key) for key in kept] == [2, 2, 34, 4, 10, 30]
    alone = whole.model_copy(update={"learners": 1})
    assert alone.share() == alone


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learners": 3}, "learners is 3, and each has the same number of the 4 environments; allowed are divisors"),
        ({"learners": 1}, "communicate: e5m2 is for several learners"),
        ({"communicate": "e5m99"}, "e5m99"),
        ({"asynchronous": True}, "asynchronous learners share memory: leave it out"),
        ({"device": "cuda:1"}, "each of the 2 learners has its own GPU, got device: cuda:1"),
        ({"communicate_every": 2}, "is for asynchronous learners"),
        (
            {"communicate": None, "asynchronous": True, "communicate_every": 2},
            "no compound_loss_scaling and no kahan",
        ),
        (
            {"communicate": None, "asynchronous": True, "communicate_every": 2, "optimizer": "rmsprop"},
            "the steps of adam",
        ),
        ({"communicate": None, "asynchronous": True, "baseline": "amp"}, "asynchronous learners have no baseline amp"),
    ],
)
def test_what_does_not_go_together_is_refused(keys, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**TINY | keys)
