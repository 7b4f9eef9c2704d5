"""A small process that ends the Ray processes of a killed learner: ``python guardian.py SOCKET FOLDER``.

Ray's own processes end with their parent, except two that first wait a minute for another, and their folder remains.
The guardian records the processes. When the learner's end of the pipe closes, it kills them and removes the folder.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

_LOOK = 0.5  # Seconds between searches for new processes.


def main() -> None:
    """Waits for the end of the learner."""
    pipe, folder = int(sys.argv[1]), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    births: dict[int, str] = {}
    while not select.select([pipe], [], [], _LOOK)[0]:
        births |= _belonging_to(folder)
    for pid, birth in births.items():
        if _birth(pid) == birth:  # Else another process has the id now.
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _belonging_to(folder: str) -> dict[int, str]:
    """Returns the processes with the folder in their command, and their descendants, with their start times."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands[int(path.parent.name)] = path.read_bytes()
    births: dict[int, str] = {}
    waiting = [pid for pid, command in commands.items() if f"{folder}/".encode() in command]
    while waiting:
        pid = waiting.pop()
        born = _birth(pid)
        if born and pid not in births:
            births[pid] = born
            with suppress(OSError):
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return births


def _birth(pid: int) -> str:
    """Returns the start time of a process, in clock ticks since boot; empty if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


if __name__ == "__main__":
    main()
