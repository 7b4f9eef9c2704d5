"""Rendering: the images of the simulation where there is a renderer, and one clear message where there is none."""

import os
import subprocess
import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from roundoff.agents import RunError
from roundoff.agents.environments import pixels
from roundoff.agents.environments.pixels import PixelEnvironment


@cache
def reason_not_to_render():
    try:
        pixels.gl_context()
    except RunError as error:
        return str(error)
    return None


@pytest.fixture
def rendering():
    if reason_not_to_render():
        pytest.skip(reason_not_to_render())


@pytest.fixture
def no_context_yet(monkeypatch):
    """Makes this process one that has not rendered, and in which MUJOCO_GL is not set."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(pixels, "_forget_opengl", lambda: None)
    monkeypatch.setattr(pixels, "gl_context", pixels.gl_context.__wrapped__)


def make(seed=0, **keys):
    environment = PixelEnvironment("cartpole_swingup", 8, **({"size": 32, "frames": 3, "fast": True} | keys))
    environment.seed(np.random.SeedSequence(seed))
    return environment


def test_observations_are_the_last_images(rendering):
    environment = make()
    first = environment.reset()
    assert first.shape == (9, 32, 32)
    assert first.dtype == np.uint8
    assert np.array_equal(first[:3], first[3:6])
    assert np.array_equal(first[:3], first[6:])
    assert first.std() > 10
    observations = [first, *(environment.step(np.ones(1)).observation for _ in range(4))]
    for before, after in pairwise(observations):
        assert np.array_equal(after[:6], before[3:])
        assert not np.array_equal(after[6:], before[6:])


def test_images_depend_on_the_random_state_alone_whoever_else_renders(rendering):
    alone = make()
    expected = [alone.reset(), *(alone.step(np.ones(1)).observation for _ in range(2))]
    one, other = make(), make(1, size=48, fast=False)
    one.reset(), other.reset()  # with the initial seed
    state = make().random_state()
    one.set_random_state(state)
    seen = [one.reset()]
    for _ in range(2):
        other.step(-np.ones(1))
        seen.append(one.step(np.ones(1)).observation)
    assert np.array_equal(seen, expected)


def test_images_are_those_of_dm_control(rendering):
    program = """
import sys
from dm_control import suite
env = suite.load("reacher", "easy", task_kwargs={"random": 5})
env.reset()
sys.stdout.buffer.write(env.physics.render(84, 84, camera_id=0).transpose(2, 0, 1).tobytes())
"""
    backend = type(pixels.gl_context()).__module__.partition(".")[2].partition(".")[0]
    out = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"MUJOCO_GL": backend}, capture_output=True, check=False
    )
    assert out.returncode == 0, out.stderr.decode()
    environment = PixelEnvironment("reacher_easy", 1, size=84, frames=1, fast=False)
    environment._environment._env.task._random = np.random.RandomState(5)
    assert environment.reset().tobytes() == out.stdout


def test_what_the_user_sets_is_taken(no_context_yet, monkeypatch):
    tried = []
    monkeypatch.setattr(pixels, "_open", tried.append)
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    pixels.gl_context()
    assert tried == ["osmesa"]
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    with pytest.raises(RunError, match="MUJOCO_GL is disabled, but observations: pixels need a renderer"):
        pixels.gl_context()


def test_without_a_renderer_there_is_one_message_that_names_the_packages(no_context_yet, monkeypatch):
    tried = []

    def fails(backend):
        tried.append(backend)
        raise AttributeError(f"'NoneType' object has no attribute of {backend}\nand more")

    monkeypatch.setattr(pixels, "_open", fails)
    with pytest.raises(RunError) as caught:
        make()
    assert tried == ["egl", "osmesa"]
    for words in (
        "egl: 'NoneType' object has no attribute of egl; osmesa: ",
        "libegl1",
        "libosmesa6",
        "libgl1-mesa-dri",
    ):
        assert words in str(caught.value)
    assert "and more" not in str(caught.value)


def test_states_need_no_renderer():
    program = """
import os, sys
from roundoff.agents.environments.control_suite import Environment
Environment("cartpole_swingup", 8).reset()
assert not [name for name in sys.modules if name.startswith("OpenGL")], "OpenGL was imported"
assert os.environ["MUJOCO_GL"] == "nonsense"
"""
    out = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"MUJOCO_GL": "nonsense"}, capture_output=True, check=False
    )
    assert out.returncode == 0, out.stderr.decode()


def test_triton_can_be_loaded_after_the_renderer(rendering):
    """Each has an LLVM; loaded in the wrong order they end the process by a segmentation fault."""
    pytest.importorskip("triton")
    script = "from roundoff.agents.environments.pixels import gl_context; gl_context(); import triton; print('well')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == "well\n", (ended.returncode, ended.stderr)
