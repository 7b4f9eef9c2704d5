"""Name numba loops by a hash of their source and its dependencies, so that cached machine code is never stale."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite.ir
import numpy as np
from numba import types

_PLAIN = (int, float, str, bytes, tuple, np.generic, types.Type, llvmlite.ir.Type)


def named_after_content(body: Any) -> Any:
    """Returns a loop under a name that ends with a hash of its code and of the code and constants it refers to.

    By it, machine code is found on disk again (:mod:`.c_functions`): also a change of a function in
    another file, such as the tail that all loops share, must give another name.

    Args:
        body: a Python function that numba can compile; it can call functions and intrinsics of numba.
    """
    content = hashlib.sha256()
    for part in _content_parts(body, set()):
        content.update(part.encode() + b"\0")
    name = f"{body.__name__}_{content.hexdigest()[:16]}"
    named = FunctionType(body.__code__, body.__globals__, name, body.__defaults__, body.__closure__)
    named.__qualname__ = name
    return named


def _content_parts(value: Any, visited: set[int]) -> Iterator[str]:
    """Text that changes with a function, its constants, and all that it refers to."""
    value = getattr(value, "py_func", getattr(value, "__wrapped__", value))  # of numba's function; of an intrinsic
    if isinstance(value, FunctionType):
        if id(value) in visited:
            return
        visited.add(id(value))
        yield from _content_parts(value.__code__, visited)
        for name in sorted(names_in(value.__code__)):
            if name in value.__globals__:
                yield name
                yield from _content_parts(value.__globals__[name], visited)
        for cell in value.__closure__ or ():
            yield from _content_parts(cell.cell_contents, visited)
    elif isinstance(value, CodeType):
        yield value.co_code.hex()
        yield " ".join(value.co_names)  # The code only has their indices: types.int32 and types.int64 look the same.
        for constant in value.co_consts:
            yield from _content_parts(constant, visited)
    elif isinstance(value, (type, ModuleType)):
        yield f"{getattr(value, '__module__', '')}.{value.__name__} {getattr(value, '_fields', '')}"
    elif isinstance(value, _PLAIN):
        yield repr(value)


@cache
def names_in(code: CodeType) -> frozenset[str]:
    """The global names, attributes and methods that a piece of code, or code inside it, refers to."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)
