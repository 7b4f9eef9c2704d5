"""A word on integers that follow from numbers which rounding has changed, and on counts that have stopped.

Sizes, indices and ranks that a program computes in floating point (``ceil(n / 200)``, ``cumsum`` and ``searchsorted``)
come out differently in few bits, without an error. So the simulation remembers where the results of a few small
operations lie that rounding has changed, and speaks where such numbers become integers.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

from ...formats import FloatFormat, round
from ...formats.base.memory import in_memory
from ..aten.storages import Storages
from ..presence.entering import SimulationWarning
from ..presence.user_code import user_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...formats import Format

_CHANGING = frozenset(
    [
        "add", "cumsum", "div", "exp", "linspace", "log", "log10", "log1p", "log2", "mean", "mul", "pow", "reciprocal",
        "sqrt", "sub", "sum",
    ]
)  # fmt: skip
"""Operations, by their whole name, of whose results integers are made."""
_ALWAYS = ("cumsum", "linspace")
"""Changing operations that matter whatever they are given; the others matter if they are given counts."""

_PASSING = frozenset(
    [
        "abs", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "floor", "gather", "index", "index_select",
        "max", "maximum", "min", "minimum", "neg", "round", "sort", "stack", "trunc", "where",
    ]
)  # fmt: skip
"""Operations whose results are changed if an operand is."""

_PRODUCTS = ("baddbmm", "bmm", "mm")
_MULTIPLYING = frozenset([*_PRODUCTS, "mul"])
"""Operations that make angles of positions and frequencies."""

NOTED = _CHANGING | _PASSING | _MULTIPLYING
"""Operations of which it is noted what rounding did to their results."""

_ASKING = {"_to_copy": (0,), "searchsorted": (0, 1), "bucketize": (0, 1)}
"""Operations that make integers of numbers: the positions of these."""

_TURNING = ("cos", "sin")
"""Operations that take angles."""

ALWAYS_NOTED = frozenset(_ALWAYS)
NOTED_OF_COUNTS = _CHANGING | _MULTIPLYING
"""Operations of which that is noted where an operand counts something."""

_ENOUGH = 1 << 12
"""The number of a tensor's first elements that are compared."""

_INTEGERS = (torch.int16, torch.int32, torch.int64)

_said: set[tuple[str, int]] = set()
"""The lines that have been told."""


class NumbersBefore(NamedTuple):
    """An operation before its result is rounded."""

    result: torch.Tensor
    numbers: torch.Tensor | None
    """The result's first numbers, if rounding may change them."""
    passed_on: bool
    """Whether an operand has been changed already."""
    angles: bool
    """Whether it is made of positions that the format cannot tell apart."""


@final
class Integers:
    """Remembers numbers that were computed of counts, or by cumulative sums, and that rounding has changed.

    Args:
        is_whole: whether a tensor is known to hold whole numbers.
        are_any: whether one is, of all there are.
    """

    def __init__(self, is_whole: Callable[[torch.Tensor], bool], are_any: Callable[[], bool]) -> None:
        self._is_whole, self._are_any = is_whole, are_any
        self._changed, self._angles = Storages(), Storages()

    def tell(self, told: Callable[[int, bool], None]) -> None:
        """Has ``told`` called with the address of each piece of memory that it knows something of, and True."""
        self._changed.tell(told)
        self._angles.tell(told)

    def before(self, name: str, args: Sequence[Any], result: Any, fmt: Format) -> NumbersBefore | None:
        """Looks at what an operation has computed, before it is rounded; None: there is nothing to note."""
        of_counts = (
            (name in _CHANGING or (name in _PRODUCTS and self._are_any()))
            and any(map(self._is_count, args))
            and not computes_gradients()
        )
        changes = name in _ALWAYS or (of_counts and name in _CHANGING)
        if not changes and not of_counts and not self._changed and not self._angles:
            return None
        x = result[0] if type(result) is tuple and result else result
        if type(x) is not torch.Tensor or not x.dtype.is_floating_point or not x.numel() or not in_memory(x):
            return None
        passed_on = bool(self._changed) and any(arg in self._changed for arg in _tensors(args))
        angles = bool(self._angles) and any(arg in self._angles for arg in _tensors(args))
        angles |= of_counts and name in _MULTIPLYING and any(self._meet(arg, fmt) for arg in args)
        if not changes and not passed_on and not angles:
            return None
        return NumbersBefore(x, _first_numbers(x).clone() if changes and not passed_on else None, passed_on, angles)

    def note(self, seen: NumbersBefore) -> None:
        """Notes what rounding did to it."""
        x, numbers, passed_on, angles = seen
        if angles:
            self._angles.add(x)
        if passed_on or (numbers is not None and not torch.equal(numbers, _first_numbers(x))):
            self._changed.add(x)

    def _meet(self, x: Any, fmt: Format) -> bool:
        """Whether these are whole numbers, several of which are one number of the format."""
        if not isinstance(fmt, FloatFormat) or type(x) is not torch.Tensor or not 1 < x.numel() <= _ENOUGH:
            return False
        if not in_memory(x) or not self._is_whole(x) or float(x.abs().max()) <= 2.0 ** (fmt.significand_bits + 1):
            return False
        return len(torch.unique(round(x, fmt))) < len(torch.unique(x))

    def _is_count(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and (x.dtype in _INTEGERS or self._is_whole(x))

    def asking(self, kernel: Callable[..., Any], name: str, fmt: Format) -> Callable[..., Any]:
        """The kernel of an operation; where it makes integers of changed numbers, with a word on them, once for a line.

        Args:
            kernel: the one.
            name: of the operation.
            fmt: what was rounded to.
        """
        if name in _TURNING:
            return self._asking_of_angles(kernel, name, fmt)
        if name not in _ASKING:
            return kernel

        def ask(*args: Any, **kwargs: Any) -> Any:
            if name != "_to_copy" or kwargs.get("dtype") in _INTEGERS:
                numbers = _tensors([args[i] for i in _ASKING[name] if i < len(args)])
                if any(x in self._changed or self._is_beyond(x, fmt) for x in numbers):
                    _say(
                        f"numbers that rounding to {fmt} has changed become integers here ({name}), as sizes, indices"
                        " and ranks do: without rounding they may be others; compute them in `with roundoff.exact():`"
                    )
            return kernel(*args, **kwargs)

        return ask

    def _asking_of_angles(self, kernel: Callable[..., Any], name: str, fmt: Format) -> Callable[..., Any]:
        def turn(x: torch.Tensor, *others: Any, **kwargs: Any) -> Any:
            if self._angles and x in self._angles:
                _say(
                    f"angles are taken here ({name}) of positions that {fmt} cannot tell apart, so that neighbours have"
                    " one angle: compute them in `with roundoff.exact():`, or leave the float32 of a bfloat16 program"
                    " alone with islands='exact'"
                )
            return kernel(x, *others, **kwargs)

        return turn

    def _is_beyond(self, x: torch.Tensor, fmt: Format) -> bool:
        """Whether numbers of the format are so large that it has not all whole numbers there."""
        if not isinstance(fmt, FloatFormat) or type(x) is not torch.Tensor or self._is_whole(x) or not in_memory(x):
            return False
        first = _first_numbers(x)
        reaches_beyond = bool((first.abs() > 2.0 ** (fmt.significand_bits + 1)).any())
        return reaches_beyond and torch.equal(round(first, fmt), first)


def computes_gradients() -> bool:
    """Whether autograd computes gradients, which are data, also where one of ones is: it counts nothing."""
    return not torch.is_grad_enabled() and torch._C._current_autograd_node() is not None  # noqa: SLF001  no other access


def counted(name: str, args: Sequence[Any]) -> torch.Tensor | None:
    """What an addition is about to add a whole Python number to, as a copy; None: it does not.

    That is looked at where it is one number, or where it is overwritten, as counts are.
    """
    number = args[1] if len(args) > 1 else None
    if not (type(number) is int or (type(number) is float and number.is_integer())) or not number:
        return None
    x = args[0]
    if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point or x.requires_grad or not x.numel():
        return None
    if not in_memory(x):
        return None
    return _first_numbers(x).clone() if x.numel() == 1 or name.endswith("_") else None


def say_if_absorbed(before: torch.Tensor, args: Sequence[Any], result: torch.Tensor, fmt: Format) -> None:
    """Says, once for each line, that a count has stopped where adding has changed a number by nothing."""
    after = _first_numbers(result)
    stopped = (after == before) & after.isfinite()
    if stopped.any():
        number = before[stopped].flatten()[0].item()
        _say(
            f"{number:.9g} stays {number:.9g} when {args[1]} is added to it or taken away, in {fmt}: if it counts"
            " something, it has stopped; keep it in an integer, or count in `with roundoff.exact():`"
        )


def _say(text: str) -> None:
    level, module, place = user_level()
    if not module.startswith("roundoff.") and place not in _said:
        _said.add(place)
        warnings.warn(f"{text} (said once for each line)", SimulationWarning, stacklevel=level)


def _first_numbers(x: torch.Tensor) -> torch.Tensor:
    """Some elements of a tensor, one after the other."""
    if x.numel() <= _ENOUGH:
        return x
    return x.view(-1)[:_ENOUGH] if x.is_contiguous() else x.reshape(-1)[:_ENOUGH]


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dtype.is_floating_point:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
