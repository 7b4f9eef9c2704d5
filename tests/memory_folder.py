"""The folder for files of all tests: in memory, where the machine has a folder there.

A run of all tests makes and removes 30,000 files. On a disk each waits for the file system, which takes a minute.
"""

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 2**30  # bytes; all tests at once have taken an eighth of it
PYTEST_HAS = "PYTEST_DEBUG_TEMPROOT"


def use_memory(memory=MEMORY):
    """Has pytest make the folders of tests in memory, in this process and its children.

    What others keep in the system's temporary folder stays there, such as headers that PyTorch has compiled. Nothing
    changes where the user has named a folder, and where ``memory`` is missing, is too small (a container of Docker has
    64 MiB), or holds no programs: tests load some that they have compiled.
    """
    if "TMPDIR" in os.environ or PYTEST_HAS in os.environ or not memory.is_dir():
        return
    state = os.statvfs(memory)
    if state.f_bavail * state.f_frsize >= ROOM and not state.f_flag & os.ST_NOEXEC and os.access(memory, os.W_OK):
        os.environ[PYTEST_HAS] = str(memory)


def folder_of_tests():
    """The folder in which pytest makes one for each user."""
    return Path(os.environ.get(PYTEST_HAS) or tempfile.gettempdir())
