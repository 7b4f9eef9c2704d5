"""Warnings about integers: made of rounded values, beyond the format, or counts that rounding stops.

Sizes, indices and ranks that a program computes in floating point (``ceil(n / 200)``, ``cumsum`` and ``searchsorted``)
come out differently in low precision, without an error. The simulation marks the memory of results of a few small
operations that rounding has changed, and warns where such values become integers. Each line is warned of once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch

from ...formats import Format, round
from ...formats.base.memory import in_memory
from ..marks.table import Mark, Marks
from ..presence.user_code import warn_once

_CHANGING = frozenset(
    [
        "add", "arange", "cumsum", "div", "exp", "linspace", "log", "log10", "log1p", "log2", "mean", "mul", "pow",
        "reciprocal", "sqrt", "sub", "sum",
    ]
)  # fmt: skip
"""Operations, by full name, with results that programs convert to integers."""
_ALWAYS_CHANGING = ("arange", "cumsum", "linspace")
"""Changing operations that are watched for all operands; the others are watched if an operand is a count."""

_PASSING = frozenset(
    [
        "abs", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "floor", "gather", "index", "index_select",
        "max", "maximum", "min", "minimum", "neg", "round", "sort", "stack", "trunc", "where",
    ]
)  # fmt: skip
"""Operations with results that count as changed if an operand does."""

_PRODUCTS = ("baddbmm", "bmm", "mm")
_MULTIPLYING = frozenset([*_PRODUCTS, "mul"])
"""Operations that compute angles from positions and frequencies."""

NOTED = _CHANGING | _PASSING | _MULTIPLYING
"""Operations with results that are compared before and after rounding."""

_CONVERTING = {"_to_copy": (0,), "searchsorted": (0, 1), "bucketize": (0, 1)}
"""Operations that return integers, and the positions of the arguments that these depend on."""

_ANGLE_OPERATIONS = ("cos", "sin")
"""Operations that take angles."""

ALWAYS_NOTED = frozenset(_ALWAYS_CHANGING)
NOTED_OF_COUNTS = _CHANGING | _MULTIPLYING
"""Operations with results that are compared if an operand is a count."""

_SAMPLE_SIZE = 1 << 12
"""The number of elements that are examined: the first and the last ones of a large tensor."""

_INTEGERS = (torch.int16, torch.int32, torch.int64)


class UnroundedResult(NamedTuple):
    """A result before it is rounded."""

    result: torch.Tensor
    values: torch.Tensor | None
    """A sample of its elements, if rounding may change integers made of them."""
    has_changed: bool
    """Whether an operand has been changed by rounding."""
    has_angles: bool
    """Whether an operand holds positions, or angles of positions, that the format cannot tell apart."""


@final
class Integers:
    """Marks values that were computed from counts and changed by rounding, and warns of integers made from them.

    Args:
        is_whole: Whether a tensor is known to hold only integers.
        marks: Table of marks of the simulation.
    """

    def __init__(self, is_whole: Callable[[torch.Tensor], bool], marks: Marks) -> None:
        self._is_whole, self._marks = is_whole, marks

    def before(self, name: str, args: Sequence[Any], result: Any, fmt: Format) -> UnroundedResult | None:
        """Samples a result before it is rounded; None if there is nothing to note."""
        # The cheapest questions first: most operations end here.
        may_count = name in _CHANGING or (name in _PRODUCTS and self._marks.may_have(Mark.INTEGERS))
        has_counts = may_count and any(map(self._is_count, args)) and not computes_gradients()
        may_change = name in _ALWAYS_CHANGING or (has_counts and name in _CHANGING)
        if not may_change and not has_counts and not self._marks.may_have(Mark.CHANGED | Mark.ANGLES):
            return None
        x = result[0] if type(result) is tuple and result else result  # the values of max and sort
        if type(x) is not torch.Tensor or not x.dtype.is_floating_point or not x.numel() or not in_memory(x):
            return None
        # Changes and angles pass from operands to results; products of positions and frequencies make angles.
        marks = 0
        for arg in _float_tensors(args):
            marks |= self._marks.of(arg)
        has_changed, has_angles = bool(marks & Mark.CHANGED), bool(marks & Mark.ANGLES)
        has_angles |= has_counts and name in _MULTIPLYING and any(self._collide(arg, fmt) for arg in args)
        if not may_change and not has_changed and not has_angles:
            return None
        needs_values = may_change and not (has_changed and has_angles)  # else both are known without a comparison
        return UnroundedResult(x, _sample(x).clone() if needs_values else None, has_changed, has_angles)

    def note(self, before: UnroundedResult) -> None:
        """Marks the result if rounding changed it, or made neighbours on a time axis equal."""
        x, values, has_changed, has_angles = before
        after = None if values is None else _sample(x)
        if values is not None and after is not None and not torch.equal(values, after):
            has_changed = True
            if x.dim() == 1 and x.numel() > 1:  # a time axis
                has_angles |= bool(((values.diff() != 0) & (after.diff() == 0)).any())
        if has_changed or has_angles:
            self._marks.add(x, Mark.CHANGED * has_changed | Mark.ANGLES * has_angles)

    def _collide(self, x: Any, fmt: Format) -> bool:
        """Whether ``x`` holds integers, and the format rounds two of them to the same value."""
        if type(x) is not torch.Tensor or not in_memory(x) or x.numel() < 2 or not self._is_count(x):
            return False
        values = _sample(x).double()
        return len(torch.unique(round(values, fmt))) < len(torch.unique(values))  # as for e4m3 from 17 on

    def _is_count(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and (x.dtype in _INTEGERS or self._is_whole(x))

    def warning(self, kernel: Callable[..., Any], name: str, fmt: Format) -> Callable[..., Any]:
        """Returns the kernel of an operation, with a warning if it makes integers from changed values.

        Args:
            kernel: Kernel of the operation.
            name: Name of the operation.
            fmt: Format of the results.
        """
        if name in _ANGLE_OPERATIONS:
            return self._warning_of_angles(kernel, name, fmt)
        if name not in _CONVERTING:
            return kernel

        def convert(*args: Any, **kwargs: Any) -> Any:
            if name != "_to_copy" or kwargs.get("dtype") in _INTEGERS:
                sources = _float_tensors([args[i] for i in _CONVERTING[name] if i < len(args)])
                if any(self._marks.of(x) & Mark.CHANGED or self._lacks_neighbours(x, fmt) for x in sources):
                    warn_once(
                        f"values changed by rounding to {fmt} become integers here ({name}), such as sizes, indices or"
                        " ranks, which may differ without rounding; compute them in `with roundoff.exact():`"
                    )
            return kernel(*args, **kwargs)

        return convert

    def _warning_of_angles(self, kernel: Callable[..., Any], name: str, fmt: Format) -> Callable[..., Any]:
        def turn(x: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
            if self._marks.of(x) & Mark.ANGLES:
                warn_once(
                    f"angles are computed here ({name}) from positions that {fmt} cannot distinguish, so that"
                    " neighbours get the same angle: compute them in `with roundoff.exact():`, or keep the float32 of a"
                    " bfloat16 program exact with islands='exact'"
                )
            return kernel(x, *rest, **kwargs)

        return turn

    def _lacks_neighbours(self, x: torch.Tensor, fmt: Format) -> bool:
        """Whether the format lacks an integer next to a rounded value, which is too large or saturated.

        It is true for NaN and infinities, and false for tensors that the format has not rounded, such as labels.
        """
        if type(x) is not torch.Tensor or not in_memory(x) or self._is_whole(x):
            return False
        values = _sample(x).double()
        finite = values[values.isfinite()]  # an infinity is a saturated value
        if not torch.equal(round(finite, fmt), finite):
            return False
        if finite.numel() < values.numel():
            return True
        nearest = finite.round()  # where the spacing of the format exceeds 1, a neighbour is missing
        return any(not torch.equal(round(nearest + step, fmt), nearest + step) for step in (-1, 1))


def computes_gradients() -> bool:
    """Whether autograd computes gradients, which are data even if they are integers."""
    return not torch.is_grad_enabled() and torch._C._current_autograd_node() is not None  # noqa: SLF001  no other access


def count_before_addition(name: str, args: Sequence[Any]) -> torch.Tensor | None:
    """Copies the operand of an addition of a Python integer, if the operand may be a count; else returns None.

    An operand may be a count if it has one element, or if the addition overwrites it.
    """
    number = args[1] if len(args) > 1 else None
    if not (type(number) is int or (type(number) is float and number.is_integer())) or not number:
        return None
    x = args[0]
    if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point or x.requires_grad or not x.numel():
        return None
    if not in_memory(x):
        return None
    return _sample(x).clone() if x.numel() == 1 or name.endswith("_") else None


def warn_if_absorbed(before: torch.Tensor, args: Sequence[Any], result: torch.Tensor, fmt: Format) -> None:
    """Warns that a count has stopped, where an addition has not changed a finite value."""
    after = _sample(result)
    stopped = (after == before) & after.isfinite()
    if stopped.any():
        number = before[stopped].flatten()[0].item()
        warn_once(
            f"{number:.9g} stays {number:.9g} when {args[1]} is added or subtracted, in {fmt}: if it is a counter, it"
            " has stopped; keep it in an integer, or count in `with roundoff.exact():`"
        )


def warn_if_beyond(result: Any, fmt: Format) -> None:
    """Warns that integers are left unrounded although they exceed the largest value of the format."""
    for x in _float_tensors(result if isinstance(result, (list, tuple)) else (result,)):
        if fmt.max is not None and in_memory(x) and x.numel():
            largest = float(x.abs().max())
            if largest > fmt.max:
                warn_once(
                    f"the integer {largest:.9g} is left unrounded, and the largest value of {fmt} is {fmt.max:.9g}:"
                    ' hardware keeps counts in a wider format; whole="rounded" rounds integers like data',
                    str(fmt),
                )


def unrepresented(result: Any, fmt: Format) -> int:
    """Counts the elements of integer-valued results in the CPU's memory that are not values of the format."""
    tensors = _float_tensors(result if isinstance(result, (list, tuple)) else (result,))
    return sum(int((round(x, fmt) != x).sum()) for x in tensors if in_memory(x) and x.numel())


def _sample(x: torch.Tensor) -> torch.Tensor:
    """Returns all elements of a tensor, in its shape, or the first and last ones of a large tensor, in one row."""
    if x.numel() <= _SAMPLE_SIZE:
        return x
    row = x.view(-1) if x.is_contiguous() else x.reshape(-1)  # a copy only where needed
    return torch.cat((row[: _SAMPLE_SIZE // 2], row[-_SAMPLE_SIZE // 2 :]))


def _float_tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dtype.is_floating_point:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _float_tensors(value)
