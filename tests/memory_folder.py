"""The folder for temporary files of all tests: in memory, where the machine has a folder there.

A run of all tests makes and removes 30,000 files. On a disk each waits for the file system, which takes a minute.
"""

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 2**30  # bytes; all tests at once have taken an eighth of it


def use_memory(memory=MEMORY):
    """Makes a folder in memory the one for temporary files, for this process and its children.

    Nothing changes where ``TMPDIR`` is set, and where ``memory`` is missing, is too small (a container of Docker has
    64 MiB), or holds no programs: tests load some that they have compiled.
    """
    if "TMPDIR" in os.environ or not memory.is_dir():
        return
    state = os.statvfs(memory)
    if state.f_bavail * state.f_frsize < ROOM or state.f_flag & os.ST_NOEXEC:
        return
    folder = memory / f"roundoff-tests-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return
    if folder.lstat().st_uid == os.getuid():
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
