"""Runs a script or a module inside a simulation, as ``python`` runs it."""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import os
import signal
import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NoReturn

from roundoff.errors import RoundoffError


class ScriptError(RoundoffError):
    """The script does not exist, or does not yield the requested information."""


@dataclass(frozen=True)
class Script:
    """The command after ``python``: a script or a module, and its arguments.

    Args:
        target: path of a file, or of a folder with a ``__main__.py``; or the name of a module.
        arguments: arguments of the script.
        is_module: whether ``target`` names a module, as after ``python -m``.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def file(self) -> Path:
        """The file to run, of a script.

        Raises:
            ScriptError: it does not exist.
        """
        path = Path(self.target)
        if path.is_dir():
            path /= "__main__.py"
        if not path.is_file():
            raise ScriptError(f"{path}: there is no such file")
        return Path(os.path.abspath(path))  # noqa: PTH100  messages show links unresolved, as the user gave them


def run_as_main(script: Script, simulation: AbstractContextManager[object]) -> BaseException | None:
    """Runs a script as the main program of this process, inside a simulation.

    Everything is as with ``python``: ``__name__`` is ``"__main__"``, ``sys.argv`` and ``sys.path`` are its own, and it
    stays the main module when it has ended, so that processes that it starts find it, as do its exit handlers.

    Args:
        script: the script.
        simulation: entered while the script runs, and not while the process ends.

    Returns:
        The exception that it raised, with a traceback that begins in its own code; None if it ended without one.

    Raises:
        ScriptError: the script or module does not exist.
    """
    file = None if script.is_module else script.file
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = [script.target, *script.arguments]
    if not sys.flags.safe_path:  # in the place of this program's own folder
        sys.path[0] = os.getcwd() if file is None else str(file.resolve().parent)  # noqa: PTH109  as python does
    entered = False
    try:
        with simulation:
            entered = True
            code = _code_of_module(script.target, main) if file is None else _code_of_file(file, main)
            exec(code, main.__dict__)  # noqa: S102  that is what running a script is
    except ScriptError:
        raise
    except BaseException as error:
        if not entered:  # such as a function in the policy that does not exist
            raise
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        return error.with_traceback(traceback)
    return None


def end_as_python(error: BaseException | None) -> NoReturn:
    """Ends this process as ``python`` does after a script: with its exit status, or by the signal of Ctrl-C.

    Its exception must have been shown before, by :func:`show_as_python`.

    Args:
        error: the exception of the script; None without one.
    """
    if isinstance(error, SystemExit):
        raise SystemExit(error.code)
    if isinstance(error, KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  python ends in this order
        atexit._run_exitfuncs()  # noqa: SLF001  python ends in this order
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # so that a shell that runs the command in a loop also stops
    raise SystemExit(0 if error is None else 1)


def show_as_python(error: BaseException | None) -> None:
    """Prints the traceback of a script's exception; nothing without one, or if it exits."""
    if error is not None and not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)


def _code_of_file(file: Path, main: ModuleType) -> CodeType:
    main.__file__ = str(file)
    main.__loader__ = SourceFileLoader("__main__", str(file))
    # This module's own `from __future__` is not the script's.
    return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


def _code_of_module(name: str, main: ModuleType) -> CodeType:
    """Returns the code of a module, or of the ``__main__`` of a package."""
    sys.argv[0] = "-m"  # while its packages are imported
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = _find_spec(name)
    loader = None if spec is None else spec.loader
    code = loader.get_code(name) if loader is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise ScriptError(f"there is no module {name} to run")
    main.__spec__, main.__loader__, main.__package__ = spec, loader, spec.parent
    main.__file__ = spec.origin
    sys.argv[0] = spec.origin or name
    return code  # type: ignore[no-any-return]


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    if name.startswith("."):  # relative to nothing
        return None
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise  # a package around it imports something that is missing
    except ValueError:  # as for __main__
        return None
