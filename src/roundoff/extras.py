"""Packages that only parts of roundoff need: which extra brings each, and one message where it is missing."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from roundoff.errors import RoundoffError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EXTRAS = {
    "sweep": ("pydantic", "yaml", "rich", "pyarrow", "tensorboard", "matplotlib", "scipy", "PIL", "typing_extensions"),
    "rl": ("dm_control", "dm_env", "mujoco", "gymnasium"),
    "sb3": ("stable_baselines3", "sb3_contrib"),
    "tianshou": ("tianshou",),
    "qtorch": ("qtorch", "ninja"),
    "ray": ("ray",),
    "deploy": ("onnx", "onnxruntime"),
}
"""What each extra brings, by the names to import; ``pyproject.toml`` says which versions."""


class MissingExtraError(RoundoffError, ImportError):
    """A package is not installed that an extra of roundoff brings; the message has the command that installs it."""


UNDER_GPL = {"minatar": "minatar", "ale_py": "ale-py"}
"""What no extra brings, since its licence is the GPL: by the name to import, the name to install."""

TRACKERS = {"wandb": "wandb", "mlflow": "mlflow"}
"""Packages that a sweep may log itself to, which no extra brings alone: by the name to import, the name to install."""


def missing(package: str) -> MissingExtraError | None:
    """The error that says how to install ``package``; None if roundoff does not use it.

    Args:
        package: the name to import; a module inside it will do.
    """
    top = package.partition(".")[0]
    if top in TRACKERS:
        return MissingExtraError(f"this needs {top}: pip install {TRACKERS[top]}", name=top)
    if top in UNDER_GPL:
        command = f"pip install {UNDER_GPL[top]}"
        return MissingExtraError(
            f"this needs {top}, which is under the GPL and no part of roundoff: {command}", name=top
        )
    extra = next((extra for extra, packages in EXTRAS.items() if top in packages), None)
    return MissingExtraError(f'this needs {top}: pip install "roundoff[{extra}]"', name=top) if extra else None


@contextmanager
def from_extras() -> Iterator[None]:
    """For a block of imports: where a package of an extra is missing, the error says how to install it.

    Raises:
        MissingExtraError: a package is missing that an extra brings.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        told = missing(error.name or "")
        if told:
            raise told from error
        raise


@contextmanager
def heavy_imports() -> Iterator[None]:
    """For a block of nothing but imports, as :func:`from_extras`; Python does not look for garbage meanwhile.

    Imports make a quarter of a million objects, and hardly any garbage.

    Raises:
        MissingExtraError: a package is missing that an extra brings.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with from_extras():
            yield
    finally:
        if collecting:
            gc.enable()


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are imported when they are first used, by :func:`heavy_imports`.

    Args:
        package: its name.
        places: the module of each name, inside the package or as ``roundoff....``; behind a colon, what the name is
            called there, if it is called otherwise; ``module:`` is the module itself.
    """

    def look_up(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, colon, called = places[name].partition(":")
        with heavy_imports():
            found = import_module(module if module.startswith("roundoff.") else f"{package}.{module}")
            return found if colon and not called else getattr(found, called or name)

    return look_up


def require(*packages: str) -> None:
    """Checks that packages are installed, without importing them.

    Raises:
        MissingExtraError: one is not.
    """
    for package in packages:
        told = missing(package)
        if told and find_spec(package) is None:
            raise told
