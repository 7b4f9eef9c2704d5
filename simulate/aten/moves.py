"""Decides whether a call of an ATen operation is an exact move, which only passes its operands' numbers on.

The answer depends on the call, not only on the operation: ``index_put`` moves, and with ``accumulate=True`` it adds;
``masked_fill`` moves with 0, and with -1e9 it brings a number in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from .schemas import schema_of
from .tables import MOVES, OF_THE_CARRIER, SIGNED, plain_name

# Arguments with numbers that do not enter the results: they select, or are compared.
_CHOOSING = {"index", "indices", "mask", "condition", "repeats", "max_values", "min_indices"}
_COMPARED = {"threshold", "threshold_backward"}
_COMPARED_ARGUMENTS = {"threshold"}
# With these the results are computed: sums, products.
_COMBINING = {"accumulate", "reduce"}
# Beyond the edges there are infinities, and a window with gaps may contain nothing else.
_WINDOWS = {"dilation"}


_Places = tuple[tuple[int, str], ...]
_dtype = attrgetter("dtype")


class Moves(NamedTuple):
    """The arguments that decide whether a call of an operation is an exact move, by position and name."""

    numbers: _Places
    """Python numbers that come into the results: they must be zero."""
    tensors: _Places
    """Tensors with values that do: they must be of one type."""
    combining: _Places
    windows: _Places
    types: _Places
    signed: bool
    asks_more: bool
    """Whether more decides than types of tensors."""
    always: bool
    """Whether nothing does."""
    single: bool
    """Whether only one tensor, the first argument, has values that enter the results."""
    pair: tuple[int, ...] | None
    """The positions of two tensors; only their types decide."""
    several: int | None
    """The position of a list of tensors; only their types decide."""

    def these(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the call with these arguments is one; of tensors only types are looked at."""
        if self.always:
            return True
        if self.pair and len(args) > self.pair[1]:
            return args[self.pair[0]].dtype is args[self.pair[1]].dtype
        if self.several is not None and len(args) > self.several:
            return len(set(map(_dtype, args[self.several]))) <= 1
        return (not self.asks_more or self._only_move(args, kwargs)) and self._are_of_one_type(args, kwargs)

    def _only_move(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether no argument makes the call compute, or bring numbers in."""
        for i, name in self.numbers:
            if not is_zero(args[i] if i < len(args) else kwargs.get(name)):
                return False
        for i, name in self.combining:
            if args[i] if i < len(args) else kwargs.get(name):
                return False
        for i, name in self.types:  # A dtype converts.
            if (args[i] if i < len(args) else kwargs.get(name)) is not None:
                return False
        for i, name in self.windows:
            if any(step != 1 for step in _as_sequence(args[i] if i < len(args) else kwargs.get(name))):
                return False
        return True

    def _are_of_one_type(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the tensors with values that enter the results need no conversion."""
        if self.single:
            return not (self.signed and args and args[0].dtype.is_complex)
        values = [args[i] if i < len(args) else kwargs.get(name) for i, name in self.tensors]
        dtypes = {x.dtype for value in values for x in _as_sequence(value) if isinstance(x, torch.Tensor)}
        return len(dtypes) <= 1 and not (self.signed and any(dtype.is_complex for dtype in dtypes))


@cache
def moves_of(operation: OpOverload) -> Moves | None:
    """Returns the calls of an operation that are exact moves; None if no call is."""
    name = plain_name(operation.overloadpacket.__name__)
    if name not in MOVES:
        return None
    places: dict[str, list[tuple[int, str]]] = {kind: [] for kind in Moves._fields[:5]}  # The fields of type _Places.
    for position, argument in enumerate(schema_of(operation).arguments):
        kind, place = str(argument.type), (position, argument.name)
        # A sign, or a number that is compared, does not enter the results.
        compared = (name in _COMPARED and argument.name in _COMPARED_ARGUMENTS) or name == "copysign"
        if argument.name in _COMBINING:
            places["combining"].append(place)
        elif argument.name in _WINDOWS:
            places["windows"].append(place)
        elif argument.name == "dtype":
            places["types"].append(place)
        elif "number" in kind or "Scalar" in kind:
            if not compared:
                places["numbers"].append(place)
        elif "Tensor" in kind and argument.name not in _CHOOSING:
            places["tensors"].append(place)
    kinds = [str(schema_of(operation).arguments[i].type) for i, _ in places["tensors"]]
    asks_more = any(arguments for kind, arguments in places.items() if kind != "tensors")
    simple = not asks_more and name not in SIGNED
    return Moves(
        **{kind: tuple(arguments) for kind, arguments in places.items()},
        signed=name in SIGNED,
        asks_more=asks_more,
        always=simple and kinds == ["Tensor"],
        single=kinds == ["Tensor"] and places["tensors"][0][0] == 0,
        pair=tuple(i for i, _ in places["tensors"]) if simple and kinds == ["Tensor", "Tensor"] else None,
        several=places["tensors"][0][0] if simple and kinds == ["List[Tensor]"] else None,
    )


def is_exact_in_carrier(operation: OpOverload | None) -> bool:
    """Whether the kernel of the operation has nothing to round: rounding its results is the only rounding."""
    if operation is None:
        return False
    moves = moves_of(operation)
    if moves is not None:
        return not moves.combining
    return plain_name(operation.overloadpacket.__name__) in OF_THE_CARRIER


def is_move(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call passes on numbers that it is given, or zeros, and computes none: up to signs.

    Of values of a format it makes values of the format, so that rounding them changes nothing; where signs change
    (:data:`SIGNED`), in formats that hold every number with both signs.

    Args:
        operation: an ATen operation.
        args: its arguments; of tensors only types are looked at, so that they may represent others.
        kwargs: its arguments by name.
    """
    moves = moves_of(operation)
    return moves is not None and moves.these(args, kwargs)


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [] if value is None else [value]


def is_zero(number: Any) -> bool:
    """Zero in every format: -0.0 is not."""
    if number is None:  # the default of padding
        return True
    if isinstance(number, (list, tuple)):
        return all(map(is_zero, number))
    return bool(number == 0) and not (isinstance(number, float) and math.copysign(1.0, number) < 0)
