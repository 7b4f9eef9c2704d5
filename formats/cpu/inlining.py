"""Numba's inlining without its copies, which take most of the time that compiling a loop of many small functions takes.

Numba reads a function anew for each call that it inlines. Still it copies what it has read, twice, block by block, each
block with all variables of the function: nobody uses what is copied from. The machine code is the same without.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from numba.core import inline_closurecall
from numba.core.compiler_lock import global_compiler_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_COPIES = SimpleNamespace(deepcopy=lambda block: block)


@contextmanager
def inlining_without_copies() -> Iterator[None]:
    """Makes numba inline functions as it has read them, for the block, in which no other thread compiles."""
    with global_compiler_lock, patch.object(inline_closurecall.InlineWorker, "inline_function", _inline_function):
        yield


def _inline_function(self: Any, caller: Any, block: Any, place: int, function: Any, types: Any = None) -> Any:
    """Inlines as numba does; other callers of ``inline_ir`` keep what they give to it, and need its copies."""
    read = self.run_untyped_passes(function)
    with patch.object(inline_closurecall, "copy", _NO_COPIES):
        return self.inline_ir(caller, block, place, read, function.__code__.co_freevars, arg_typs=types)
