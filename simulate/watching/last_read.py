"""Values that were not finite when a program last read them: a program often reads a NaN, and then raises."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, final

import torch

from ...formats.base.memory import in_memory
from ..native import library as native
from ..native.stand_ins import StandsFor, meaning_of, standing_for
from ..presence.user_code import user_level

_READ_OPERATION = "_local_scalar_dense"
_FINITENESS_TESTS = ("isinf", "isnan", "isneginf", "isposinf")
"""Operations that are true for elements that are not finite."""
_COMPARISONS = ("eq", "ne")
_PRINTING_FILE = "_tensor_str.py"
"""The file of PyTorch that looks at all elements of a printed tensor."""


@final
class LastRead:
    """The lines of a program where the last value read was not finite.

    A number is read by ``.item()``, ``float(x)`` and ``math.isfinite(x)``; in the processor's memory also by
    ``isfinite``, ``isinf``, ``isnan`` and ``x != x``. Printing does not count. A line is removed when the program
    reads a finite number there.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[tuple[str, int], str], str] = {}

    def __bool__(self) -> bool:
        """Whether there is such a line."""
        return bool(self._lines)

    def __str__(self) -> str:
        """Describes the value read at the first of the lines; empty without lines."""
        return next(iter(self._lines.values()), "")

    def note(self, name: str, description: str | None) -> None:
        """Notes a value that the program reads by the named operation; ``description`` is None for a finite one."""
        _, module, location = user_level()
        if module.startswith("roundoff.") or _is_printing():
            return
        self._lines.pop((location, name), None)
        if description is not None:
            native.tell_reads()
            self._lines[location, name] = f"{description} was read in {location[0]}:{location[1]}"


def noting(kernel: Callable[..., Any], name: str, watchers: Callable[[], Sequence[LastRead]]) -> Callable[..., Any]:
    """Returns the kernel of an operation; if it reads values or tests whether they are finite, it also notes them.

    Args:
        kernel: the original kernel.
        name: name of the operation, without overload.
        watchers: returns the objects that note the values.
    """
    if name == _READ_OPERATION:
        return _wrap_read(kernel, watchers)
    return _wrap_test(kernel, name, watchers) if name in _FINITENESS_TESTS or name in _COMPARISONS else kernel


def _wrap_read(kernel: Callable[..., Any], watchers: Callable[[], Sequence[LastRead]]) -> Callable[..., Any]:
    def read(x: torch.Tensor) -> Any:
        number = kernel(x)
        if isinstance(number, float):
            _note_reading(watchers, _READ_OPERATION, None if math.isfinite(number) else str(number))
        return number

    meaning = meaning_of(kernel)
    is_plain = isinstance(kernel, torch._ops.OpOverload) or (meaning is not None and meaning.reads)  # noqa: SLF001  its only name
    return standing_for(read, StandsFor(reads=is_plain))


def _wrap_test(kernel: Callable[..., Any], name: str, watchers: Callable[[], Sequence[LastRead]]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        x = args[0]
        if name in _COMPARISONS:
            # isfinite is made of x == x and abs(x) != inf; only NaN is not equal to itself.
            compares_infinity = isinstance(args[1], float) and args[1] == math.inf
            if not compares_infinity and args[1] is not x:
                return result
            all_finite = (name == "ne") == compares_infinity  # true for every element if all are finite
        else:
            all_finite = False
        if x.dtype.is_floating_point and in_memory(x) and in_memory(result):
            is_non_finite = not bool(result.all()) if all_finite else bool(result.any())
            _note_reading(watchers, name, "a number that is not finite" if is_non_finite else None)
        return result

    meaning = meaning_of(kernel)
    if not isinstance(kernel, torch._ops.OpOverload) and not (meaning and meaning.asks):  # noqa: SLF001  its only name
        return ask
    return standing_for(ask, StandsFor(asks=2 if name in _COMPARISONS else 1))


def _note_reading(watchers: Callable[[], Sequence[LastRead]], name: str, description: str | None) -> None:
    for watcher in watchers():
        if description is not None or watcher:
            watcher.note(name, description)


def _is_printing() -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PRINTING_FILE):
            return True
        frame = frame.f_back
    return False
