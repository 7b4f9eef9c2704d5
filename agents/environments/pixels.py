"""Control tasks with images as observations: the DeepMind control suite, its renderer, the last images stacked."""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError
from .control_suite import Environment
from .episodes import Transition

# Camera 0 shows every task completely, except these; DrQ has the same cameras.
_CAMERAS = {"quadruped": 2}


@final
class PixelEnvironment:
    """One task of the suite, seen through a camera; actions and rewards are the same as in ``Environment``.

    An observation is the newest image and the images of the agent steps before it, old to new:
    (3 frames, size, size), uint8. At the beginning of an episode the first image replaces earlier ones.

    Args:
        task: ``<domain>_<task>``.
        action_repeat: how often each action is repeated; an image is rendered after the last repeat.
        size: height and width of an image.
        frames: images of an observation.
        fast: see :class:`~roundoff.agents.environments.pixels.Renderer`.

    Attributes:
        action_size: the number of elements in an action.
        discrete: False.
        observation_size: the number of elements in an observation, 9 size^2 for three frames.
        observation_shape: (3 frames, size, size).
        frames: images of an observation.
        observation_dtype: the dtype of an observation.

    Raises:
        RunError: the task does not exist, or the renderer is missing.
    """

    def __init__(self, task: str, action_repeat: int, *, size: int, frames: int, fast: bool) -> None:
        self._environment = Environment(task, action_repeat)
        self.action_size = self._environment.action_size
        self.discrete = False
        self.observation_size = 3 * frames * size * size
        self.observation_shape: tuple[int, ...] = (3 * frames, size, size)
        self.observation_dtype: type[np.generic] = np.uint8
        self.frames = frames
        self._size, self._fast = size, fast
        self._camera = _CAMERAS.get(task.partition("_")[0], 0)
        self._images: deque[NDArray[np.uint8]] = deque(maxlen=frames)
        self._rendered_model: Any = None
        self._render()  # A missing renderer is an error now, not after the seed steps.

    def seed(self, sequence: np.random.SeedSequence) -> None:
        """Seeds the random generator; takes effect at the next reset."""
        self._environment.seed(sequence)

    def reset(self) -> NDArray[np.uint8]:
        """Begins an episode and returns its first observation."""
        self._environment.reset()
        self._images.extend([self._render()] * (self._images.maxlen or 0))
        return self._observation()

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats an action; see ``Environment.step``."""
        transition = self._environment.step(action)
        self._images.append(self._render())
        return Transition(self._observation(), transition.reward, transition.discount, transition.last)

    def random_state(self) -> dict[str, Any]:
        """Returns the state of the random generator as plain values; meaningful between episodes."""
        return self._environment.random_state()

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state that :meth:`random_state` returned."""
        self._environment.set_random_state(state)

    def _render(self) -> NDArray[np.uint8]:
        model, data = self._environment.physics()
        if self._rendered_model is not model:  # Some tasks rebuild their model at a reset.
            self._renderer = Renderer(model, data, size=self._size, camera=self._camera, fast=self._fast)
            self._rendered_model = model
        return self._renderer.render()

    def _observation(self) -> NDArray[np.uint8]:
        return np.concatenate(self._images)


# In the order of trials; each is a module of MuJoCo.
_AUTOMATIC = ("egl", "osmesa")
_ALLOWED = (*_AUTOMATIC, "glfw")

_PACKAGES = (
    "on Debian and Ubuntu install the packages libegl1, libegl-mesa0 and libgl1-mesa-dri (EGL; with an NVIDIA driver"
    " libegl1 is enough), or libosmesa6 (OSMesa); learning from states needs none"
)


@final
class Renderer:
    """Renders the view of a fixed camera of a model.

    Args:
        model: a ``mujoco.MjModel``; its settings for image quality are changed.
        data: its ``mujoco.MjData``.
        size: height and width in pixels.
        camera: number of the camera.
        fast: without shadows, reflections and smoothed edges.

    Raises:
        RunError: this machine cannot render.
    """

    def __init__(self, model: Any, data: Any, *, size: int, camera: int, fast: bool) -> None:
        self._context = gl_context()
        import mujoco  # noqa: PLC0415  a state environment may be the first to import it, with rendering disabled

        self._mujoco: Any = mujoco
        self._model, self._data = model, data
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        if fast:
            model.vis.quality.offsamples = 0
        self._resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        self._scene = mujoco.MjvScene(model, maxgeom=max(1000, 2 * model.ngeom))
        if fast:
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = camera
        self._option, self._perturbation = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), dtype=np.uint8)

    def render(self) -> NDArray[np.uint8]:
        """Returns the current image: (3, size, size), red, green, blue; the first row is the top."""
        mujoco = self._mujoco
        # Each time, since another renderer in this process may have changed the context.
        self._context.make_current()
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        mujoco.mjv_updateScene(
            self._model, self._data, self._option, self._perturbation, self._camera,
            mujoco.mjtCatBit.mjCAT_ALL.value, self._scene,
        )  # fmt: skip
        mujoco.mjr_render(self._viewport, self._scene, self._resources)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._resources)
        return np.ascontiguousarray(self._pixels[::-1].transpose(2, 0, 1))  # OpenGL's first row is the bottom.


@cache
def gl_context() -> Any:
    """Returns the OpenGL context of this process, made current; all renderers share it.

    The environment variable ``MUJOCO_GL`` selects ``egl``, ``osmesa`` or ``glfw``. Without it, the first of EGL and
    OSMesa that works is used. ``MUJOCO_EGL_DEVICE_ID`` selects the GPU of EGL.

    Raises:
        RunError: no backend works, or the selected one does not; the message names the packages to install.
    """
    selected = os.environ.get("MUJOCO_GL", "").strip().lower()
    if selected and selected not in _ALLOWED:
        raise RunError(
            f"MUJOCO_GL is {selected}, but observations: pixels need a renderer: set it to {', '.join(_ALLOWED)},"
            " or unset it to have one chosen"
        )
    reasons = []
    for backend in (selected,) if selected else _AUTOMATIC:
        try:
            return _open(backend)
        except Exception as error:  # noqa: BLE001  missing libraries show as nearly anything: AttributeError, OSError
            reasons.append(f"{backend}: {str(error).partition(chr(10))[0] or type(error).__name__}")
            _forget_opengl()
    raise RunError(
        f"no renderer works on this machine, which observations: pixels need ({'; '.join(reasons)}); {_PACKAGES}"
    )


def _open(backend: str) -> Any:
    # Triton and Mesa each contain an LLVM: a process that loads Triton after Mesa ends by a segmentation fault.
    with suppress(ImportError):
        import_module("triton._C.libtriton")
    context = import_module(f"mujoco.{backend}").GLContext(640, 480)
    context.make_current()
    # Runs before the exit handlers of the library, which were registered earlier.
    atexit.register(context.free)
    return context


def _forget_opengl() -> None:
    """Lets the next backend import PyOpenGL again, which selects a platform when it is imported."""
    os.environ.pop("PYOPENGL_PLATFORM", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "OpenGL"]:
        del sys.modules[name]
