"""Values that were not finite when a program read them last: a program that meets NaN often reads it, and raises."""

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

_READING = "_local_scalar_dense"
_ASKING = ("isinf", "isnan", "isneginf", "isposinf")
"""Operations that are true where a number is not finite."""
_COMPARING = ("eq", "ne")
_PRINTING = "_tensor_str.py"
"""The file of PyTorch that looks at all elements of a printed tensor."""


@final
class LastRead:
    """The lines of a program where the value that was read last was not finite.

    A number is read by ``.item()``, ``float(x)`` and ``math.isfinite(x)``; it is also read by ``isfinite``, ``isinf``,
    ``isnan`` and ``x != x``, here for tensors in the processor's memory. Printing does not count. A finite number
    that is read later at the same line replaces one that is not.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[tuple[str, int], str], str] = {}

    def __bool__(self) -> bool:
        """Whether there is such a line."""
        return bool(self._lines)

    def __str__(self) -> str:
        """Describes the value read at the first of the lines; empty without lines."""
        return next(iter(self._lines.values()), "")

    def note(self, name: str, found: str | None) -> None:
        """Notes the value that the program reads now by an operation of this name: in words, if it is not finite."""
        _, module, place = user_level()
        if module.startswith("roundoff.") or _is_printing():
            return
        self._lines.pop((place, name), None)
        if found is not None:
            native.tell_reads()
            self._lines[place, name] = f"{found} was read in {place[0]}:{place[1]}"


def noting(kernel: Callable[..., Any], name: str, watchers: Callable[[], Sequence[LastRead]]) -> Callable[..., Any]:
    """The kernel of an operation; if it reads values, or tests whether they are finite, it notes its findings.

    Args:
        kernel: the original kernel.
        name: name of the operation, without overload.
        watchers: returns the objects that note it.
    """
    if name == _READING:
        return _reading(kernel, watchers)
    return _asking(kernel, name, watchers) if name in _ASKING or name in _COMPARING else kernel


def _reading(kernel: Callable[..., Any], watchers: Callable[[], Sequence[LastRead]]) -> Callable[..., Any]:
    def read(x: torch.Tensor) -> Any:
        number = kernel(x)
        if isinstance(number, float):
            _tell(watchers, _READING, None if math.isfinite(number) else str(number))
        return number

    meaning = meaning_of(kernel)
    plain = isinstance(kernel, torch._ops.OpOverload) or (meaning is not None and meaning.reads)  # noqa: SLF001  its only name
    return standing_for(read, StandsFor(reads=plain))


def _asking(kernel: Callable[..., Any], name: str, watchers: Callable[[], Sequence[LastRead]]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        answer = kernel(*args, **kwargs)
        x = args[0]
        if name in _COMPARING:
            # isfinite is made of x == x and abs(x) != inf; NaN alone is not equal to itself.
            infinity = isinstance(args[1], float) and args[1] == math.inf
            if not infinity and args[1] is not x:
                return answer
            all_finite = (name == "ne") == infinity
        else:
            all_finite = False
        if x.dtype.is_floating_point and in_memory(x) and in_memory(answer):
            found = not bool(answer.all()) if all_finite else bool(answer.any())
            _tell(watchers, name, "a number that is not finite" if found else None)
        return answer

    meaning = meaning_of(kernel)
    if not isinstance(kernel, torch._ops.OpOverload) and not (meaning and meaning.asks):  # noqa: SLF001  its only name
        return ask
    return standing_for(ask, StandsFor(asks=2 if name in _COMPARING else 1))


def _tell(watchers: Callable[[], Sequence[LastRead]], name: str, found: str | None) -> None:
    for last in watchers():
        if found is not None or last:
            last.note(name, found)


def _is_printing() -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PRINTING):
            return True
        frame = frame.f_back
    return False
