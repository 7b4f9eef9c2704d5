"""A user's program: the function that a sweep file names, and its source code."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, final

from roundoff.origin import commit_of

from ..errors import SweepError
from ..user_code import describe_error
from .flags import with_flags


@final
@dataclass(frozen=True)
class Program:
    """A function of a file, or of a module.

    Importing it executes the file, as ``import`` does; ``sys.path`` then begins with its folder, as it does for
    ``python train.py``. A process imports a file once, and does not see later edits.

    Args:
        text: ``train.py:train``, where the file is found relative to ``folder``, or ``package.module:train``, where the
            module is looked for in ``folder`` first.
        folder: the folder of the sweep file.
        loaded: the function itself, if it need not be imported.
    """

    text: str
    folder: str
    loaded: Callable[..., Any] | None = None

    @classmethod
    def named(cls, text: str, folder: str | Path) -> Program:
        """Returns the program that a sweep file in ``folder`` names by ``text``.

        Raises:
            SweepError: it is not a valid name.
        """
        place, colon, function = text.rpartition(":")
        if place.endswith(".py"):
            place = os.path.normpath(place)  # ./train.py and train.py are one program
        elif not all(part.isidentifier() for part in place.split(".")):
            colon = ""
        if not colon or not function.isidentifier():
            raise SweepError(f"must be FILE.py:FUNCTION or MODULE:FUNCTION, such as train.py:train, got {text!r}")
        return cls(f"{place}:{function}", str(Path(folder).absolute()))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Program:
        """Returns the program of a function, wherever it is defined.

        Raises:
            SweepError: it lacks a name.
        """
        name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "")
        if not callable(function) or not str(name).isidentifier():
            raise SweepError(f"roundoff.sweep takes a function with a name, got {function!r}")
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and str(file).endswith(".py"):  # a notebook has no file, and a compiled module no source
            path = Path(file).absolute()
            return cls(f"{path.name}:{name}", str(path.parent), function)
        return cls(f"{module}:{name}", str(Path.cwd()), function)

    def importable(self) -> Program:
        """Returns the program in a form that other processes can import.

        Raises:
            SweepError: no file defines the function under its name.
        """
        if self.loaded is None:
            return self
        if not self.place.endswith(".py") or self.loaded.__qualname__ != self.function:
            raise SweepError(f"{self.text} is in no file that other processes could import; use workers=1")
        return Program(self.text, self.folder)

    @property
    def function(self) -> str:
        """The function's name."""
        return self.text.rpartition(":")[2]

    @property
    def place(self) -> str:
        """The file or the module."""
        return self.text.rpartition(":")[0]

    def load(self) -> Callable[..., Any]:
        """Imports the function, once. A function that reads flags gets them as its parameters (:mod:`.flags`).

        Raises:
            SweepError: it cannot be imported, in one line with the place; or its flags cannot be keys.
        """
        return self.loaded if self.loaded is not None else _function(self)

    def file(self) -> Path:
        """The file that defines it; imports it."""
        if self.loaded is not None:
            return Path(self.folder) / self.place
        return Path(str(_module(self).__file__))

    def source(self) -> str:
        """Returns a hash (SHA-256, 16 hexadecimal digits) of its file and of modules imported from the same folder."""
        return _source(self)

    def origin(self) -> dict[str, str]:
        """Returns ``source``, and ``program_commit``, the commit checked out in the program's folder, if any."""
        commit = _commit(self.file())
        return {"source": self.source(), **({"program_commit": commit} if commit else {})}


@functools.cache
def _function(program: Program) -> Callable[..., Any]:
    function = getattr(_module(program), program.function, None)
    if not callable(function):
        problem = "is no function" if function is not None else "does not exist"
        raise SweepError(f"{program.place} was imported, but {program.function} {problem} in it")
    return with_flags(program.text, function)


@functools.cache
def _module(program: Program) -> ModuleType:
    try:
        return _import(program)
    except SweepError:
        raise
    except (Exception, SystemExit) as error:
        raise SweepError(f"{program.place} cannot be imported: {describe_error(error)}") from error


def _import(program: Program) -> ModuleType:
    if not program.place.endswith(".py"):
        _put_first_on_path(program.folder)
        return import_module(program.place)
    path = Path(program.folder) / program.place
    if not path.is_file():
        raise SweepError(f"there is no file {path}")
    _put_first_on_path(str(path.parent))
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and Path(str(getattr(loaded, "__file__", ""))).absolute() == path:
        return loaded
    if loaded is not None or not name.isidentifier():  # of another file, such as random.py
        name = f"program_{hashlib.sha256(str(path).encode()).hexdigest()[:10]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _put_first_on_path(folder: str) -> None:
    """Puts a folder first on the search path of modules."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


_commit = functools.cache(commit_of)


@functools.cache  # computed once, after the import, so that later imports do not change it
def _source(program: Program) -> str:
    if program.loaded is not None and not program.place.endswith(".py"):
        try:
            text = inspect.getsource(program.loaded).encode()
        except (OSError, TypeError):  # typed into an interpreter that does not keep the text
            text = getattr(getattr(program.loaded, "__code__", None), "co_code", b"")
        return _digest({program.function: text})
    module = _module(program) if program.loaded is None else sys.modules[program.loaded.__module__]
    package = module.__name__.partition(".")[0]
    folder = program.file().parent
    parts: dict[str, bytes] = {}
    for name, imported in sys.modules.copy().items():
        file = getattr(imported, "__file__", None)
        if not file or not str(file).endswith(".py"):
            continue
        path = Path(file)
        in_folder = path.is_relative_to(folder) and not path.is_relative_to(sys.prefix)
        if imported is module or in_folder or ("." in module.__name__ and name.partition(".")[0] == package):
            parts[os.path.relpath(path, folder)] = path.read_bytes()
    return _digest(parts)


def _digest(parts: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(parts.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
