"""Python processes that a script starts: they run from the start, outside of the simulation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from multiprocessing import util
from pathlib import Path
from textwrap import shorten
from typing import Any, Self, final

_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?$")
_ROUNDOFF = ("roundoff", "-mroundoff")
_COMPILER = "inductor"
"""Part of the paths of the programs of torch.compile, which compute nothing."""
_SPAWNED = "--multiprocessing-fork"
_LONGEST = 120
"""The characters of a command line that are shown at most."""
_EVENTS = ("subprocess.Popen", "os.posix_spawn", "os.exec")


@final
class PythonChildren:
    """Records the Python processes that are started within the block, except for forks and runs of roundoff.

    Python never removes audit hooks: the hook of this object stays, and is inactive after the block.

    Attributes:
        commands: the command line of each, shortened.
    """

    def __init__(self) -> None:
        self.commands: list[str] = []
        self._is_active = False
        self._spawnv: Callable[..., Any] = util.spawnv_passfds

    def __enter__(self) -> Self:
        self._is_active = True
        sys.addaudithook(self._on_event)
        util.spawnv_passfds = self._spawn  # type: ignore[assignment]  # it calls no audit hook
        return self

    def __exit__(self, *_: object) -> None:
        self._is_active = False
        util.spawnv_passfds = self._spawnv

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Popen may call os.posix_spawn; from Python 3.13 on it mostly does.
        by_subprocess = event == "os.posix_spawn" and sys._getframe(1).f_globals.get("__name__") == "subprocess"  # noqa: SLF001  the only access there is
        if self._is_active and event in _EVENTS and not by_subprocess:
            self._add_command(arguments[0], arguments[1])

    def _spawn(self, path: Any, arguments: Sequence[Any], *rest: Any) -> Any:
        if _SPAWNED in map(_as_text, arguments):  # else a helper of multiprocessing
            self._add_command(path, arguments)
        return self._spawnv(path, arguments, *rest)

    def _add_command(self, executable: Any, arguments: Any) -> None:
        command = [arguments] if isinstance(arguments, (str, bytes)) else list(arguments or ())
        words = [_as_text(word) for word in command]
        program = _as_text(executable) if executable is not None else words[0] if words else ""
        simulated_or_none = any(word in _ROUNDOFF or _COMPILER in word for word in words[1:])
        if _PYTHON.search(Path(program).name) and not simulated_or_none:
            self.commands.append(shorten(" ".join([program, *words[1:]]), _LONGEST, placeholder=" ..."))

    def __str__(self) -> str:
        """Returns a line about the started processes; empty without any."""
        if not self.commands:
            return ""
        count = len(self.commands)
        first = self.commands[0]
        processes = f"a Python process ({first})" if count == 1 else f"{count} Python processes ({first}, ...)"
        return (
            f"the script started {processes}, in which nothing is simulated: put roundoff behind what starts them,"
            " as in torchrun -m roundoff run --format e5m10 train.py"
        )


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
