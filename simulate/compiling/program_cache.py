"""Inductor's programs on disk: in the user's own folder, complete, made by one process at a time.

Inductor keeps them in a folder of the shared temporary directory, under a name that anybody can make first, and loads
the files in it. It also loads the remains of a library after a power failure, a full disk or the end of the process,
for ever, with undefined effects. So a file says that a process compiles, until all that it made is on the disk. What
was made since then is removed before the next process compiles: it makes the missing files.
"""

from __future__ import annotations

import os
import platform
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from roundoff.caches import advise, cache_folder, folder_of_process
from roundoff.errors import FileError, FolderInUseError
from roundoff.files import directory_lock, sync, write_text

_T = TypeVar("_T")

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_COMPILES = ".compiles"
"""The file that is there while a process compiles; it has the machine's boot identifier."""
_LOCKS = "locks"
_PATIENCE = 600.0  # seconds
_ALSO_WRITTEN_WHEN_RUN = "triton"  # Triton adds results of tuning while a program runs, without the lock


def compiled_on_disk(compile_program: Callable[[], _T]) -> _T:
    """Returns the result of ``compile_program``, which calls inductor.

    Only one process of a user compiles at a time: waiting processes find its results on disk. A process that has waited
    for ten minutes, for example since another is stopped, warns, and compiles in a temporary folder.

    Args:
        compile_program: the function.

    Raises:
        Exception: any exception that ``compile_program`` raises.
    """
    with _locked_folder() as folder, _kept_in(folder):
        result = compile_program()
        for path in _made_since(folder / _COMPILES):
            with suppress(OSError):
                sync(path)
        (folder / _COMPILES).unlink(missing_ok=True)
        return result


@contextmanager
def _locked_folder() -> Iterator[Path]:
    """The folder of programs, marked and without remains, which no other process uses within the block."""
    folder = folder_of_programs()
    with ExitStack() as lock:
        try:
            lock.enter_context(directory_lock(folder, wait=_PATIENCE))
            _remove_remains(folder)
            write_text(folder / _COMPILES, _boot())  # fails on a full disk, where programs are cut off without a word
        except FileError as error:
            message = f"another process has held {folder} for {_PATIENCE / 60:g} minutes: is it stopped?"
            advise(message if isinstance(error, FolderInUseError) else str(error))
            folder = folder_of_process("programs")
            lock.enter_context(directory_lock(folder, wait=True))
        yield folder


def folder_of_programs() -> Path:
    """Returns the folder of programs compiled for this processor; otherwise a folder that is removed with the process.

    Inductor writes loops for the instructions of the processor that it runs on, and does not check whether the loops on
    disk were written for a different one: home folders are shared by machines.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen == default_cache_dir():  # torch itself sets it, so that its processes agree
        chosen = None
    name = f"programs-{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}-{_instructions()}"
    folder = cache_folder(name, chosen)
    if folder and chosen:
        folder /= name
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:  # a full disk
            return folder_of_process("programs")
    return folder or folder_of_process("programs")


@cache
def _instructions() -> str:
    """A name for the processor's features, as the kernel of the system lists them; empty where it lists nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        return ""
    listed = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return f"{zlib.crc32(' '.join(sorted(listed[0])).encode()):08x}" if listed else ""


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Lets inductor use only this folder within the block; outside of the block, the user's choice holds."""
    chosen = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)  # also of the processes that compile, which the import starts
    try:
        from torch._inductor import codecache  # noqa: PLC0415  it takes seconds to import

        headers = folder / "precompiled_headers"  # inductor does not ask the variable for their folder
        replacements: dict[str, Any] = {"_HEADER_DIR": str(headers), "_HEADER_LOCK_DIR": str(headers / _LOCKS)}
        replacements["_precompile_header"] = _precompile_header()
        originals = {name: getattr(codecache, name) for name in replacements}
        try:
            vars(codecache).update(replacements)
            yield
        finally:
            vars(codecache).update(originals)
    finally:
        if chosen is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = chosen


@cache
def _precompile_header() -> Any:
    """Inductor's function with a new cache: the old one may name headers that are in another folder."""
    from torch._inductor import codecache  # noqa: PLC0415  it takes seconds to import

    return cache(codecache._precompile_header.__wrapped__)  # noqa: SLF001


def _remove_remains(folder: Path) -> None:
    """Removes the files of a process that did not complete its programs; nobody else compiles into the folder."""
    mark = folder / _COMPILES
    try:
        same_boot = mark.read_text(encoding="utf-8", errors="replace") == _boot()
    except FileNotFoundError:
        return
    for path in _made_since(mark):
        if not (same_boot and path.relative_to(folder).parts[0] == _ALSO_WRITTEN_WHEN_RUN):
            with suppress(OSError):
                path.unlink()


def _made_since(mark: Path) -> Iterator[Path]:
    """The files and links in the folder of a file that are not older than it; none if it does not exist."""
    with suppress(FileNotFoundError):
        since = mark.stat().st_mtime_ns
        for place, folders, names in os.walk(mark.parent):
            folders[:] = [name for name in folders if name != _LOCKS]
            for path in (Path(place, name) for name in names if name not in (_COMPILES, ".lock")):
                with suppress(OSError):
                    if path.lstat().st_mtime_ns >= since:
                        yield path


def _boot() -> str:
    """Returns the boot identifier of this machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "unknown"
