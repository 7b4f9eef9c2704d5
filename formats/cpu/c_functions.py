"""Numba loops as C functions: compiled once, kept on disk, and compiled again if the kept file is damaged.

An entry is one file: a checksum and the output of the numba compiler. Numba's own cache trusts its files: a file torn
by a power failure, a full disk or a copy stops it for ever, or gives the process invalid machine code. And it
does nothing at all where it finds no place to write.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, final

import llvmlite
import numba
from numba import types
from numba.core import serialize
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys

from roundoff.caches import advise, cache_folder
from roundoff.errors import FileError
from roundoff.files import read_bytes, write_bytes

from .content_names import named_after_content
from .quick_numba import quick_numba

_C_TYPES = {
    types.int64: ctypes.c_int64,
    types.uint32: ctypes.c_uint32,
    types.uint64: ctypes.c_uint64,
    types.float32: ctypes.c_float,
    types.float64: ctypes.c_double,
}
_SUM = hashlib.sha256
_SUM_BYTES = _SUM().digest_size


def folder_of_loops() -> Path | None:
    """Returns the folder of compiled loops; None, with a warning, if they cannot be kept."""
    return cache_folder("loops", os.environ.get("NUMBA_CACHE_DIR"))


@cache
def c_function(body: Any, arguments: tuple[Any, ...], error_model: str = "python") -> Callable[..., None]:
    """The loop ``body`` as a C function, called through ctypes, which releases the interpreter lock.

    Args:
        body: the loop, in the Python that numba understands; returns nothing.
        arguments: numba's types of its arguments. Pointers are passed as integers.
        error_model: ``numpy`` divides by zero as IEEE says, ``python`` raises; as in ``numba.cfunc``.
    """
    named = named_after_content(body)
    machine_code: Any = CFunc(named, (arguments, types.void), locals={}, options={"error_model": error_model})
    folder = folder_of_loops()
    if folder:
        machine_code._cache = _LoopCache(folder, f"{named.__qualname__} {error_model}")  # noqa: SLF001  it looks there first
    with quick_numba():
        machine_code.compile()
    kinds: list[Any] = [_C_TYPES.get(kind, ctypes.c_void_p) for kind in arguments]
    function = ctypes.CFUNCTYPE(None, *kinds)(machine_code.address)
    function.machine_code = machine_code  # type: ignore[attr-defined]  # keeps it alive
    return function


@final
class _LoopCache:
    """The cache of one loop, with the interface that :class:`numba.core.ccallback.CFunc` expects."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled loop; None if the cache lacks it. A damaged entry is removed."""
        # Enough for loops of numbers; ``refresh`` would import all of numba, which only compiling needs.
        rtsys.initialize(target_context)
        path = self._path(signature, target_context.codegen())
        try:
            content = read_bytes(path)
        except OSError:  # usually that there is none
            return None
        loop = content[_SUM_BYTES:]
        try:
            if _SUM(loop).digest() == content[:_SUM_BYTES]:
                return CompileResult._rebuild(target_context, *pickle.loads(loop))  # noqa: S301, SLF001  our folder
        except Exception:  # noqa: BLE001, S110  of a numba that keeps something else: compiled anew, like a torn one
            pass
        with suppress(OSError):  # another process was faster, or it will be written over
            path.unlink()
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keeps a compiled loop, if there is a place for it."""
        path = self._path(signature, compiled.codegen)
        loop: bytes = serialize.dumps(compiled._reduce())  # noqa: SLF001
        try:
            write_bytes(path, _SUM(loop).digest() + loop)
        except FileError as error:  # a full disk
            advise(str((error.__cause__ and getattr(error.__cause__, "strerror", None)) or error))

    def _path(self, signature: Any, codegen: Any) -> Path:
        # The machine it is for, and who has compiled it.
        about = (codegen.magic_tuple(), numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
        key = _SUM(repr((self._name, str(signature), *about)).encode()).hexdigest()
        return self._folder / f"{self._name.partition(' ')[0]}.{key[:16]}"
