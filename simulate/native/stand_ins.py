"""Describes Python functions that replace a kernel, so that C++ can run the calls where both give the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast, final

import torch

_F = TypeVar("_F", bound="Callable[..., Any]")

FORMS = ("add", "sub", "rsub", "mul", "div", "reciprocal", "sqrt", "pow", "addcmul", "addcdiv", "lerp")
"""Operations of elementwise arithmetic, without ``_foreach_`` and ``_``, in the order of ``exact.h``."""
FORMULAS = ("sum", "product", "quotient", "root", "fused", "divided", "interpolation")
"""Formulas for these operations, in the order of ``exact.h``."""


class Way(ctypes.Structure):
    """A loop for the exact results of a formula, by addresses; see ``exact.h``."""

    # The loop and its settings; whether it takes random bits; whether PyTorch's kernel would not give the same.
    _fields_ = (
        ("run", ctypes.c_void_p), ("settings", ctypes.c_void_p), ("draws", ctypes.c_int64), ("asked", ctypes.c_int64),
    )  # fmt: skip

    def fill(self, run: Callable[..., None], settings: int) -> None:
        """Fills in the loop when it has been compiled."""
        self.settings = settings
        self.run = address(run)  # last, since other threads take it as a sign that the rest is there


@final
class Exact:
    """Elementwise arithmetic with exact results that are rounded once, by float32 loops.

    Args:
        form: the name of the operation, which determines the use of its arguments; one of ``FORMS``.
        of_lists: whether it is for lists.
        in_place: whether it writes to its first argument.

    Attributes:
        ways: a loop for each formula, of only tensors; after them, where a number takes part.
    """

    def __init__(self, form: str, *, of_lists: bool, in_place: bool) -> None:
        self.form, self.of_lists, self.in_place = 1 + FORMS.index(form), of_lists, in_place
        self.ways = (Way * (2 * len(FORMULAS)))()

    def way(self, formula: str, *, has_number: bool) -> Way:
        """Returns the loop for a formula."""
        return self.ways[FORMULAS.index(formula) + len(FORMULAS) * has_number]

    @property
    def draws(self) -> bool:
        """Whether any of them takes random bits."""
        return any(way.draws for way in self.ways)


class StandsFor(NamedTuple):
    """Facts about a Python function that replaces a kernel; C++ runs the operation where both compute the same."""

    reads: bool = False
    """Whether the operation reads a number: C++ leaves to Python numbers that are not finite or were changed by
    rounding, and all that are read after one that was not finite."""
    asks: int = 0
    """The calls that C++ leaves to Python. 0: none for this reason. 1 (``isfinite`` and the like): those with an
    operand that is not finite. 2 (comparisons): those that may ask the same (x == x, abs(x) != inf) of such an operand,
    and all in a backward pass. 3 (makes a tensor of a number): in a backward pass, those with a number of 65504 or
    more. 4: all in a backward pass. ``asks_in_vain`` in ``shortcut.cpp`` decides."""
    power: bool = False
    """The operation takes powers: only square roots are computed differently."""
    roots: Mapping[torch.dtype, Callable[..., None]] | None = None
    """Square roots by these C functions of source, target, first element and the end (exclusive)."""
    converts: int = -1
    """The argument that another function than the operation converts if it is float64; -1: none."""
    exact: Exact | None = None
    """Elementwise arithmetic by other loops."""

    @property
    def runs_itself(self) -> bool:
        """Whether these notes determine the calls that C++ takes."""
        return self != StandsFor()


def standing_for(function: _F, meaning: StandsFor) -> _F:
    """Attaches facts to a function, and returns it."""
    function.stands_for = meaning  # type: ignore[attr-defined]
    return function


def meaning_of(kernel: Any) -> StandsFor | None:
    """Returns the facts attached to a function, or None."""
    meaning = getattr(kernel, "stands_for", None)
    return meaning if isinstance(meaning, StandsFor) else None


def address(function: Callable[..., Any] | None) -> int | None:
    """Returns the address of a C function's code; None without a function."""
    return None if function is None else ctypes.cast(cast("Any", function), ctypes.c_void_p).value
