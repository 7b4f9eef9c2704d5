"""``torch.finfo`` as described by a simulation: in threads with an active simulation and a policy that asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch

from roundoff.locks import new_lock

from ...formats import Format


@final
@dataclass(frozen=True)
class FormatInfo:
    """The answer of ``torch.finfo`` for a format in place of a dtype.

    Attributes:
        bits: storage size of one value.
        eps: the distance from 1 to the next larger number.
        max: the largest finite number.
        min: the smallest finite number.
        smallest_normal: the smallest number of full precision above zero.
        tiny: equal to ``smallest_normal``.
        resolution: 10^-d, d the decimal digits that every number of full precision keeps.
        dtype: name of the requested dtype, which holds the values of the format.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    tiny: float
    resolution: float
    dtype: str

    @staticmethod
    def of(fmt: Format, dtype: torch.dtype) -> FormatInfo | None:
        """Returns the facts of a format; None if it lacks some, because its values depend on the data."""
        low, high, eps, normal = fmt.min, fmt.max, fmt.eps, fmt.smallest_normal
        if low is None or high is None or eps is None or normal is None:
            return None
        resolution = 10.0 ** -math.floor(-math.log10(eps))
        return FormatInfo(fmt.bits, eps, high, low, normal, normal, resolution, str(dtype).removeprefix("torch."))


class _Kind(type):
    """Makes the class that replaces ``torch.finfo`` answer like the original."""

    plain: Any
    answer: Callable[[torch.dtype], FormatInfo | None]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        info = cls.plain(*args, **kwargs)  # raises for other dtypes than of floating point
        return cls.answer(getattr(torch, info.dtype)) or info

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (FormatInfo, cls.plain))


@final
class FinfoAnswers:
    """Replaces ``torch.finfo`` by a class while a simulation with a policy that asks for it is entered.

    It answers as PyTorch does in threads without such a simulation, and in modules that imported ``finfo`` by name.

    Args:
        answer: the answer of the simulation that is active in the code of this thread; None for PyTorch's answer.
    """

    def __init__(self, answer: Callable[[torch.dtype], FormatInfo | None]) -> None:
        self._answer = answer
        self._lock = new_lock()
        self._count = 0
        self._kind: Any = None

    def enter(self) -> None:
        """Counts a simulation with such a policy that is entered; the first one replaces ``torch.finfo``."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._kind = _Kind("finfo", (), {"plain": torch.finfo, "answer": staticmethod(self._answer)})
                torch.finfo = self._kind  # type: ignore[misc]

    def leave(self) -> None:
        """Counts a simulation with such a policy that is left; the last one restores ``torch.finfo``."""
        with self._lock:
            self._count -= 1
            current: Any = torch.finfo
            if self._count == 0 and current is self._kind:  # else others have put something in its place
                torch.finfo = current.plain  # type: ignore[misc]
