"""Lists packages that only parts of roundoff need with their extras, and makes the message if one is missing."""

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
    """Makes the error with the command that installs ``package``; None if roundoff does not use it.

    Args:
        package: the name to import, of the package or a module inside it.
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
    """Makes errors of missing packages in a block of imports name the command that installs the extra.

    Raises:
        MissingExtraError: a package is missing that an extra brings.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        advice = missing(error.name or "")
        if advice:
            raise advice from error
        raise


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Does the same as :func:`from_extras`, without garbage collection, for a block of imports only.

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
        """Returns the module of each name, and its name there."""
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
        module, original = places()[name]
        with heavy_imports():
            imported = import_module(module, package)
            # A name that the module does not have is a module inside it.
            if hasattr(imported, original):
                return getattr(imported, original)
            return import_module(f"{module}.{original}", package)

    return look_up


def require(*packages: str) -> None:
    """Checks that packages are installed, without importing them.

    Raises:
        MissingExtraError: a package is not installed.
    """
    for package in packages:
        error = missing(package)
        if error and find_spec(package) is None:
            raise error
