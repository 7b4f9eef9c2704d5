"""Inductor's programs on disk: in the user's own folder, checked before they are used, made by one process at a time.

Inductor keeps them in a folder of the shared temporary directory, under a name that anybody can make first, and loads
the files in it. It also loads the remains of a library after a power failure, a full disk or a copy, for ever, with
undefined effects. So the files of a folder are recorded with their checksums, and damaged ones are removed
before the compiler looks at them: it makes the missing files.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from roundoff.caches import advise, cache_folder
from roundoff.errors import FileError, FolderInUseError
from roundoff.files import directory_lock, parse_json, read_bytes, write_json

_T = TypeVar("_T")

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_RECORD = ".kept.json"
_LOCKS = "locks"
_PATIENCE = 600.0  # seconds
_ALSO_WRITTEN_WHEN_RUN = "triton"  # results of tuning, of which no process here is told

# By path within the folder: size, time of the last change in nanoseconds, checksum.
_Files = dict[str, tuple[int, int, int]]


def compiled_on_disk(compile_program: Callable[[], _T]) -> _T:
    """Returns the result of ``compile_program``, which calls inductor.

    Only one process of a user compiles at a time: waiting processes find its results on disk. A process that has waited
    for ten minutes, for example since another is stopped, warns, and compiles in a temporary folder.

    Args:
        compile_program: is called a second time if it fails because of files that were damaged meanwhile.

    Raises:
        Exception: any exception that ``compile_program`` raises.
    """
    with _locked_folder() as folder, _kept_in(folder):
        repair(folder)
        try:
            result = compile_program()
        except Exception:
            if not repair(folder):
                raise
            result = compile_program()
        with suppress(FileError):  # a full disk: files that are not written down are made anew
            _write_down(folder, _known(folder)[1])
        return result


@contextmanager
def _locked_folder() -> Iterator[Path]:
    """The folder of programs, which no other process uses within the block."""
    folder = folder_of_programs()
    with ExitStack() as lock:
        try:
            lock.enter_context(directory_lock(folder, wait=_PATIENCE))
        except FileError as error:
            held = f"another process has held {folder} for {_PATIENCE / 60:g} minutes: is it stopped?"
            advise(held if isinstance(error, FolderInUseError) else str(error))
            folder = _of_this_process()
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
            return _of_this_process()
    return folder or _of_this_process()


@cache
def _instructions() -> str:
    """A name for the processor's features, as the kernel of the system lists them; empty where it lists nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        return ""
    listed = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return f"{zlib.crc32(' '.join(sorted(listed[0])).encode()):08x}" if listed else ""


@cache
def _of_this_process() -> Path:
    """A folder that ends with the process: inductor needs one."""
    folder = tempfile.mkdtemp(prefix="roundoff-programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Lets inductor use a folder within the block, and no other one; outside it is the user's to say."""
    chosen = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)  # also of the processes that compile, which the import starts
    try:
        from torch._inductor import codecache  # noqa: PLC0415  it takes seconds to import

        headers = folder / "precompiled_headers"  # for which inductor does not ask the variable
        ours: dict[str, Any] = {"_HEADER_DIR": str(headers), "_HEADER_LOCK_DIR": str(headers / _LOCKS)}
        ours["_precompile_header"] = _precompile_header()
        theirs = {name: getattr(codecache, name) for name in ours}
        try:
            vars(codecache).update(ours)
            yield
        finally:
            vars(codecache).update(theirs)
    finally:
        if chosen is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = chosen


@cache
def _precompile_header() -> Any:
    """Inductor's function, which remembers the headers it has made, without those it has made elsewhere."""
    from torch._inductor import codecache  # noqa: PLC0415  it takes seconds to import

    return cache(codecache._precompile_header.__wrapped__)  # noqa: SLF001


def repair(folder: Path) -> bool:
    """Removes files that are not as they were written down, or were never written down; nobody else uses the folder.

    Returns:
        Whether a recorded file was damaged.
    """
    boot, known = _known(folder)
    damaged = False
    sound: _Files = {}
    for name, found in _files(folder):
        path, noted = folder / name, known.get(name)
        same_size_and_time = noted is not None and noted[:2] == found
        if same_size_and_time and boot == _boot():  # else the power may have failed before all was on the disk
            sound[name] = noted  # type: ignore[assignment]
        elif noted is not None and noted[0] == found[0] and noted[2] == _checksum(path):
            sound[name] = (*found, noted[2])
        elif noted is None and boot == _boot() and name.startswith(_ALSO_WRITTEN_WHEN_RUN):
            pass
        else:
            damaged = damaged or noted is not None
            with suppress(OSError):
                path.unlink()
    if sound != known or boot != _boot():
        with suppress(FileError):
            _write_down(folder, sound)
    return damaged


def _known(folder: Path) -> tuple[str, _Files]:
    """Returns the boot identifier and the recorded files; both are empty if the record is damaged itself."""
    try:
        content = parse_json(read_bytes(folder / _RECORD))
        files = {
            str(name): (int(size), int(time), int(check)) for name, (size, time, check) in content["files"].items()
        }
        return str(content["boot"]), files
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return "", {}


def _write_down(folder: Path, known: _Files) -> None:
    """Records all existing files; files that are ``known`` and unchanged need not be read."""
    files: _Files = {}
    for name, found in _files(folder):
        noted = known.get(name)
        with suppress(OSError):
            files[name] = noted if noted and noted[:2] == found else (*found, _checksum(folder / name))
    write_json(folder / _RECORD, {"boot": _boot(), "files": files})


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """The files with contents to keep, with size and time of the last change; links are removed."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if here == folder:
            names = [name for name in names if name not in (_RECORD, ".lock")]  # noqa: PLW2901  what os.walk gave
        folders[:] = [name for name in folders if name != _LOCKS]
        for name in names:
            path = here / name
            with suppress(OSError):
                stat = path.lstat()
                yield str(path.relative_to(folder)), (stat.st_size, stat.st_mtime_ns)


def _checksum(path: Path) -> int:
    """CRC-32: it shall find accidents, not attacks, which the folder's permissions keep out."""
    value = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            value = zlib.crc32(part, value)
    return value


def _boot() -> str:
    """Returns the boot identifier of this machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "unknown"
