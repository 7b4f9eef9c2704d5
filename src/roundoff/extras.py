"""Packages that only parts of roundoff need: which extra brings each, and one message where it is missing."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from roundoff.errors import RoundoffError

EXTRAS = {
    "sweep": ("pydantic", "yaml", "rich", "pyarrow", "tensorboard", "matplotlib", "scipy", "PIL", "typing_extensions"),
    "rl": ("dm_control", "dm_env", "mujoco", "gymnasium"),
    "sb3": ("stable_baselines3", "sb3_contrib"),
    "tianshou": ("tianshou",),
    "qtorch": ("qtorch", "ninja"),
    "ray": ("ray",),
    "deploy": ("onnx", "onnxruntime"),
}
"""Packages of each extra, by the names to import; ``pyproject.toml`` says which versions."""

INSTALL = 'pip install ".[{}]"'
"""The command that installs an extra: in a clone, until there is a release."""


class MissingExtraError(RoundoffError, ImportError):
    """A package is not installed that an extra of roundoff brings; the message has the command that installs it."""


UNDER_GPL = {"minatar": "minatar", "ale_py": "ale-py"}
"""Packages under the GPL, which no extra brings: by the name to import, the name to install."""

TRACKERS = ("wandb", "mlflow")
"""Packages that log sweeps, which no extra brings."""


def missing(package: str) -> MissingExtraError | None:
    """The error that says how to install ``package``; None if roundoff does not use it.

    Args:
        package: the name to import; a module inside it will do.
    """
    top = package.partition(".")[0]
    if top in TRACKERS:
        return MissingExtraError(f"this needs {top}: pip install {top}", name=top)
    if top in UNDER_GPL:
        command = f"pip install {UNDER_GPL[top]}"
        return MissingExtraError(
            f"this needs {top}, which is under the GPL and no part of roundoff: {command}", name=top
        )
    extra = next((extra for extra, packages in EXTRAS.items() if top in packages), None)
    return MissingExtraError(f"this needs {top}: {INSTALL.format(extra)}", name=top) if extra else None


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


def lazy_names(package: str) -> Callable[[str], Any]:
    """Makes the ``__getattr__`` of a package that imports each name when it is first used.

    The package writes the names once, as imports for type checkers: the block ``if TYPE_CHECKING`` of its source.

    Args:
        package: the name of the package, its ``__name__``.
    """

    @cache
    def places() -> dict[str, tuple[str, str]]:
        """The module of each name, and its name there."""
        source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
        blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
        imports = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
        return {
            alias.asname or alias.name: ("." * line.level + (line.module or ""), alias.name)
            for line in imports
            for alias in line.names
        }

    def look_up(name: str) -> Any:
        if name == "__all__":  # of a package that writes none: all names are public
            return sorted(places())
        if name.startswith("__") or name not in places():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, called = places()[name]
        with heavy_imports():
            found = import_module(module, package)
            # A name that the module does not have is a module inside it.
            return getattr(found, called) if hasattr(found, called) else import_module(f"{module}.{called}", package)

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
