"""Runs from pixels, on painted images: the same bytes however interrupted, crashes as results, nothing forgotten."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from runs import outcome

from roundoff.agents import RunError, TrainConfig, train
from roundoff.agents.algorithms.drq.agent import DrQ
from roundoff.agents.environments import pixels
from roundoff.agents.experience.frame_replay import FrameReplay
from roundoff.agents.run import checkpoint
from roundoff.sweeps import plan_file, run_sweep
from roundoff.sweeps.display.progress import ProgressDisplay
from roundoff.sweeps.workers.local import LocalProcesses

SMALL = {
    "observations": "pixels", "image_size": 15, "image_shift": 1, "filters": 2, "feature_size": 4, "hidden_units": 8,
    "steps": 2000, "action_repeat": 25, "batch_size": 4, "lr": 1e-3, "seed_steps": 10, "replay_capacity": 30,
    "eval_every": 1000, "eval_episodes": 2, "checkpoint_every": 1000, "sigma_eps": 1e-4, "kahan_momentum_scale": 100.0,
    "actor_update_every": 2,
}  # fmt: skip


def config(**keys):
    return TrainConfig(**(SMALL | keys))


class Painter:
    """Stands for a renderer: an image that the positions determine."""

    def __init__(self, model, data, *, size, camera, fast):
        self._data, self._size = data, size

    def render(self):
        phases = np.concatenate((self._data.qpos, self._data.qvel)).sum() + np.arange(3 * self._size**2)
        return (127 + 127 * np.sin(phases)).astype(np.uint8).reshape(3, self._size, self._size)


@pytest.fixture
def painted(monkeypatch):
    monkeypatch.setattr(pixels, "Renderer", Painter)


class Killed(BaseException):
    """Stands for a kill: nobody catches it."""


def kill_at(patched, update):
    original, count = DrQ.update, iter(range(1, update + 1))

    def killed(agent, batch):
        if next(count) == update:
            raise Killed
        return original(agent, batch)

    patched.setattr(DrQ, "update", killed)


@pytest.mark.usefixtures("short_episodes")
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"format": "fp16", "native": True, "original_images": False},
        {"format": "e5m10", "environments": 2, "random_start": 20},
    ],
)
def test_interrupted_it_continues_to_the_same_bytes(painted, tmp_path, monkeypatch, keys):
    one = config(**keys)
    assert train(one, tmp_path / "straight").status == "done"
    for update in (50, 40):  # after the checkpoint of the 40th agent step, and in the last step
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, update)
            train(one, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run" / "checkpoint.pt")
    rings = state["replay"].get("simulators", [state["replay"]])
    assert all(ring["images_added"] > 30 / len(rings) for ring in rings)  # they were full
    size = (tmp_path / "run" / "checkpoint.pt").stat().st_size
    assert size < 30 * 3 * 15 * 15 + 250_000
    seen = []
    train(one, tmp_path / "run", seen.append)
    assert seen[0].step == 1000
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


def test_the_replay_holds_what_the_environment_gave(painted, tmp_path, monkeypatch):
    stacks, replays = [], []

    def watch(owner, name, note):
        original = getattr(owner, name)

        def watched(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            note(self, result)
            return result

        monkeypatch.setattr(owner, name, watched)

    watch(pixels.PixelEnvironment, "reset", lambda _, observation: stacks.append(observation))
    watch(pixels.PixelEnvironment, "step", lambda _, transition: stacks.append(transition.observation))
    watch(FrameReplay, "__init__", lambda replay, _: replays.append(replay))
    train(config(seed_steps=79, eval_every=2000), tmp_path)
    following = {before.tobytes(): after.tobytes() for before, after in pairwise(stacks)}
    batch = replays[0].sample(300, torch.Generator())
    assert len({observation.numpy().tobytes() for observation in batch.observations}) == len(replays[0]) > 25
    for before, after in zip(batch.observations, batch.next_observations, strict=True):
        assert following[before.numpy().tobytes()] == after.numpy().tobytes()


def test_naive_half_crashes_where_the_fixes_do_not(painted, tmp_path):
    naive = train(config(format="e5m10", fixes="none"), tmp_path / "naive")
    assert (naive.status, naive.return_mean) == ("crashed", 0)
    assert naive.crash.step == naive.step < 1000
    assert train(config(format="e5m10", steps=1000), tmp_path / "all").status == "done"
    losses = [json.loads(line) for line in (tmp_path / "all" / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite([r["critic_loss"] for r in losses if r["kind"] == "train"]).all()


def test_without_a_renderer_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    monkeypatch.setattr(pixels, "gl_context", pixels.gl_context.__wrapped__)
    with pytest.raises(RunError, match="MUJOCO_GL is disabled"):
        train(config(), tmp_path)


def test_a_worker_of_a_sweep_renders(tmp_path):
    try:
        pixels.gl_context()
    except RunError as error:
        pytest.skip(str(error))
    keys = SMALL | {"steps": 500, "eval_every": 500, "eval_episodes": 1, "fast_rendering": True}
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(json.dumps({"name": "pixels", "base": keys, "grid": {"format": ["e5m10"]}}))
    with ProgressDisplay() as display:
        assert run_sweep(plan_file(sweep), tmp_path / "out", executor=LocalProcesses(1), watcher=display).done == 1


def test_workers_render_the_same_episodes(tmp_path):
    """Evaluation and training in other processes, which paint with the renderer there is."""
    try:
        pixels.gl_context()
    except RunError as error:
        pytest.skip(str(error))
    one = config(steps=500, eval_every=500, fast_rendering=True)
    here, elsewhere = (
        train(one.model_copy(update={"environment_workers": workers}), tmp_path / str(workers)) for workers in (0, 2)
    )
    assert here == elsewhere
    assert (tmp_path / "0" / "metrics.jsonl").read_bytes() == (tmp_path / "2" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"task": "gym:Pendulum-v1"}, ["control suite", "gym:Pendulum-v1", "observations: states"]),
        ({"environments": 2, "replay_capacity": 7}, ["environments x (frames + 1) = 8", "got 7"]),
    ],
)
def test_what_has_no_images_or_no_room_for_them_is_refused(keys, words):
    with pytest.raises(ValidationError) as caught:
        config(**keys)
    for word in words:
        assert word in str(caught.value)
