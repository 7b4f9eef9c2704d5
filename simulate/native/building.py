"""Compiles the C++ of the shortcut, once, into a folder that belongs only to this user, with a checksum.

The compiler is the same as for PyTorch's inductor. A file is named after all of its sources; if a power failure, a
full disk or a copy has damaged it, it is compiled again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from roundoff.caches import cache_folder, folder_of_process
from roundoff.errors import FileError, FolderInUseError
from roundoff.files import directory_lock, open_to_read, read_bytes, write_bytes, write_text

SOURCE = Path(__file__).with_name("shortcut.cpp")
_INCLUDED = tuple(
    SOURCE.with_name(f"{name}.h")
    for name in ("exact", "loops", "memory", "pieces", "places", "products", "saved", "values")
)
_TORCH = Path(torch.__file__).parent
_OPTIONS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fno-math-errno")
_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-lc10")
_SECONDS = 600  # for the compiler
_OPENED = itertools.count(1)
_PATIENCE = 300.0  # seconds, while another process builds it


class BuildError(Exception):
    """The library is not available, for the reason in the text."""


def compiler() -> str | None:
    """Returns the path of the C++ compiler; None if it is missing."""
    chosen = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, [chosen] if chosen else ["g++", "clang++"])), None)


def folder_of_natives() -> Path | None:
    """Returns the folder of the library; None, with a warning, if there cannot be one."""
    return cache_folder("native")


def built() -> Path:
    """Returns the path of the library, compiled if it is missing or damaged.

    Raises:
        BuildError: the compiler is missing, or fails.
    """
    with_compiler = compiler()
    if with_compiler is None:
        raise BuildError("there is no C++ compiler")
    folder = folder_of_natives() or folder_of_process("native")
    path = folder / f"shortcut-{_key(with_compiler)}.so"
    if _is_sound(path):
        return path
    try:
        with directory_lock(folder, wait=_PATIENCE):
            if not _is_sound(path):  # another process may have compiled it meanwhile
                _compile(with_compiler, path)
    except FolderInUseError as error:
        raise BuildError(f"another process has held {folder} for {_PATIENCE / 60:g} minutes: is it stopped?") from error
    except (FileError, OSError) as error:
        raise BuildError(f"it cannot be written ({error})") from error
    return path


def _key(with_compiler: str) -> str:
    """Returns a hash of everything that determines the library: sources, options, compiler and PyTorch."""
    compiler_file = Path(with_compiler).resolve().stat()
    properties = (
        torch.__version__, torch.version.git_version, torch.compiled_with_cxx11_abi(), str(_TORCH), platform.machine(),
        with_compiler, compiler_file.st_size, compiler_file.st_mtime_ns, *_OPTIONS,
    )  # fmt: skip
    sources = b"".join(path.read_bytes() for path in (SOURCE, *_INCLUDED))
    return hashlib.sha256(repr(properties).encode() + sources).hexdigest()[:16]


def _compile(with_compiler: str, path: Path) -> None:
    sys.stderr.write("roundoff: compiling its C++ for this machine, once; this takes up to a minute\n")
    sys.stderr.flush()
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    with tempfile.TemporaryDirectory(prefix="roundoff-native-") as name:
        library = Path(name) / "shortcut.so"
        command = [
            *(with_compiler, *_OPTIONS, abi, f"-I{_TORCH / 'include'}", str(SOURCE), "-o", str(library)),
            *(f"-L{_TORCH / 'lib'}", f"-Wl,-rpath,{_TORCH / 'lib'}", *_LIBRARIES),
        ]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603  the user's compiler
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{with_compiler} does not run ({error})") from error
        if process.returncode:
            lines, end = process.stderr.splitlines(), process.stderr.strip()[-200:]
            message = next((line for line in lines if "error" in line), end)
            raise BuildError(f"{with_compiler} fails: {message}")
        content = library.read_bytes()
    write_bytes(path, content)
    write_text(_sum_of(path), hashlib.sha256(content).hexdigest())


def _sum_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_sound(path: Path) -> bool:
    """Whether the library exists and has its checksum."""
    with suppress(BuildError), opened(path):
        return True
    return False


@contextmanager
def opened(path: Path) -> Iterator[str]:
    """Returns a name for the checked file itself, so that the loader opens it even if its path is replaced meanwhile.

    Raises:
        BuildError: the library does not match its checksum.
    """
    try:
        expected, file = read_bytes(_sum_of(path)), open_to_read(path)
    except OSError as error:
        raise BuildError(f"{path} cannot be read ({error})") from error
    with file:
        if hashlib.sha256(file.read()).hexdigest().encode() != expected:
            raise BuildError(f"{path} has changed")
        # The loader returns a library that it has loaded under the same name, so this name is new each time.
        alias = f"/proc/self/fd/{'./' * next(_OPENED)}{file.fileno()}"
        yield alias if Path(alias).exists() else str(path)
