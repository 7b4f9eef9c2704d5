"""The ATen operations that produce integers: from their arguments only, or from integers.

Counts, steps, positions and indices are integers that programs keep in floating-point tensors. PyTorch's own
half-precision programs keep them in float32 (``torch.optim``'s ``step``, ``ids.float()``, ``arange``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from .moves import moves_of
from .schemas import out_names, schema_of
from .tables import plain_name

IsWhole = Callable[[torch.Tensor], bool]
Asked = Callable[[Sequence[Any], Mapping[str, Any], IsWhole], bool]

_KEEPING = frozenset(
    [
        "abs", "add", "addcmul", "bincount", "ceil", "clamp", "clamp_max", "clamp_min", "cumprod", "cumsum", "floor",
        "floor_divide", "fmod", "index_add", "mul", "nansum", "neg", "positive", "prod", "remainder", "round", "rsub",
        "scatter_add", "sgn", "sign", "square", "sub", "sum", "trunc",
    ]
)  # fmt: skip
"""Operations that compute integers from integers. Products of matrices are not among them: hardware has
units of the format for them."""

_ROUNDING_DIVISION = ("div", "divide", "true_divide")
"""Divisions that give integers with a ``rounding_mode``."""

_REDUCING_SCATTERS = ("scatter", "scatter_reduce", "index_reduce")
_WHOLE_REDUCTIONS = ("add", "sum", "multiply", "prod", "amax", "amin")

_COUNTING = frozenset(
    ["histc", "poisson", "binomial", "geometric", "random", "randint", "randint_like", "randperm", "_amp_update_scale"]
)
"""Operations with integer results for any arguments; and the scale of a GradScaler, a power of two."""

_LARGEST = 1 << 24
"""Larger Python numbers, such as the -1e9 of a mask, do not count: float32 does not represent all integers there."""

_CONSTANT = frozenset(
    ["zeros", "zeros_like", "new_zeros", "zero", "ones", "ones_like", "new_ones", "scalar_tensor", "eye", "arange"]
)
"""Operations that make integers where the given numbers are integers."""
_UNITS = frozenset(["ones", "ones_like", "new_ones", "eye"])
"""Operations that make only ones and zeros, which every dtype has."""
_FILLING = frozenset(["full", "full_like", "new_full", "fill"])
"""Operations that count from where they begin: with zeros and ones, or a single number. Other constants are data."""

MAKING = _KEEPING | _COUNTING | _CONSTANT | _FILLING
"""The names, without trailing ``_``, of operations that produce integers."""

_CASTS = frozenset(["_to_copy", "copy", "convert_element_type"])
_LIFTS = frozenset(["lift_fresh", "lift", "lift_fresh_copy"])

_BYTES = (torch.uint8, torch.int8)
"""Images and quantized data come as bytes: floating-point tensors made of them are data."""

AUXILIARY = {"nll_loss_forward": (1,), "nll_loss2d_forward": (1,)}
"""Results, by position, that a kernel hands to its derivative: the number of targets, or the sum of their weights."""

STEPS = "state_steps"
"""The argument of fused optimizers that counts their steps; some kernels are declared to write there."""


class MakesWholeNumbers(NamedTuple):
    """Whether a call of an operation produces integers."""

    are_made: Asked
    """The test, called with the arguments, keyword arguments, and a test whether a tensor holds integers."""
    of_first: bool
    """Whether they are made from integers in its first argument, among others."""
    of_units: bool
    """Whether they are ones and zeros, which float16 and bfloat16 have as float32 does."""


@cache
def making_of(operation: OpOverload) -> MakesWholeNumbers | None:
    """Returns how the calls of an operation produce integers; None if no call is known to."""
    test = _make_test(operation)
    if test is None:
        return None
    name = plain_name(operation.overloadpacket.__name__)
    first = schema_of(operation).arguments[:1]  # Some operations take no arguments.
    of_first = bool(first) and "Tensor" in str(first[0].type) and first[0].name not in _CHOOSING
    return MakesWholeNumbers(test, of_first and name not in MAKING - _KEEPING | _CASTS | _LIFTS, name in _UNITS)


@cache
def numbers_given(operation: OpOverload) -> tuple[tuple[int, ...], bool] | None:
    """The only arguments that decide whether an operation produces integers: Python's numbers, by position.

    And whether one of them fills a size or tensor that is the argument before. None: other arguments also matter.
    """
    name = plain_name(operation.overloadpacket.__name__)
    if name in _FILLING:
        number = 2 if name == "new_full" else 1  # new_full(self, size, value), full(size, value), fill(self, value)
        is_number = "Tensor" not in str(schema_of(operation).arguments[number].type)
        return ((number,), True) if is_number else None
    if name not in _CONSTANT:
        return None
    places = _places_of_numbers(operation, numbers_alone=True)
    tensors = any("Tensor" in str(schema_of(operation).arguments[position].type) for position, _ in places)
    return None if tensors else (tuple(position for position, _ in places), False)


def _make_test(operation: OpOverload) -> Asked | None:
    name = plain_name(operation.overloadpacket.__name__)
    test: Asked | None = None
    if name in _COUNTING:
        test = lambda *_: True  # noqa: E731  one of several
    elif name in _LIFTS:
        test = _of_lifted
    elif name in _CASTS:
        source = 1 if name == "copy" else 0  # copy(self, src)

        def test(args: Sequence[Any], _kwargs: Mapping[str, Any], is_whole: IsWhole) -> bool:
            return holds(args[source], is_whole)

    elif operation.overloadpacket is torch.ops.aten.reciprocal:
        test = _of_power_of_two
    elif name in _CONSTANT:
        test = _all_of(operation, numbers_alone=True)
    elif name in _FILLING:
        number = 2 if name == "new_full" else 1

        def test(args: Sequence[Any], _kwargs: Mapping[str, Any], is_whole: IsWhole) -> bool:
            value, size = args[number], args[number - 1]
            # Without axes in its size, or in a template tensor, it is a single number; other constants are data.
            return holds(value, is_whole) and (
                not (size.dim() if isinstance(size, torch.Tensor) else size) or value in (0, 1, -1)
            )

    elif name in _KEEPING or name in _REDUCING_SCATTERS or name in _ROUNDING_DIVISION or moves_of(operation):
        test = _all_of(operation)
    return test


def _of_lifted(args: Sequence[Any], _kwargs: Mapping[str, Any], _is_whole: IsWhole) -> bool:
    """Whether a tensor that was made of one Python number holds a whole one: ``torch.tensor(1.0)``."""
    x = args[0]
    if x.dim() or not x.dtype.is_floating_point or x.is_meta:
        return False
    constant = getattr(x, "constant", x)  # Of a fake tensor, while a program is traced.
    return constant is not None and float(constant).is_integer()


def _of_power_of_two(args: Sequence[Any], _kwargs: Mapping[str, Any], is_whole: IsWhole) -> bool:
    """Whether the reciprocal of a tensor without axes, such as the scale of a GradScaler, is exact."""
    x = args[0]
    return is_whole(x) and not (x.dim() or x.is_meta or hasattr(x, "constant")) and math.frexp(abs(float(x)))[0] == 0.5


def holds(value: Any, is_whole: IsWhole) -> bool:
    """Whether an argument holds only integers.

    Args:
        value: a tensor, a number, or a list of them.
        is_whole: test whether a floating-point tensor holds integers.
    """
    if isinstance(value, torch.Tensor):
        dtype = value.dtype
        if dtype.is_floating_point:  # Only a mark shows whether it holds integers.
            return is_whole(value)
        return not dtype.is_complex and dtype not in _BYTES
    if isinstance(value, (list, tuple)):
        return bool(value) and all(holds(item, is_whole) for item in value)
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= _LARGEST
    return value is None or (isinstance(value, int) and abs(value) <= _LARGEST)


_BOUNDING = frozenset(["clamp", "clamp_min", "clamp_max"])
"""A count stays one where it is kept away from zero: ``mask.sum().clamp(min=1e-9)``."""

_CHOOSING = frozenset(["index", "indices", "mask", "condition", "repeats", "end"])
_MODES = ("reduce", "rounding_mode")
_NUMBERS = ("number", "Scalar", "float")


def _all_of(operation: OpOverload, *, numbers_alone: bool = False) -> Asked:
    """Whether all values that enter the results are integers: elements of tensors, and Python's numbers."""
    plain = plain_name(operation.overloadpacket.__name__)
    places = _places_of_numbers(operation, numbers_alone=numbers_alone)
    arguments = enumerate(schema_of(operation).arguments)
    modes = [(position, argument.name) for position, argument in arguments if argument.name in _MODES]
    mode = modes[-1] if modes else None
    # A plain division, which has the mode None, gives fractions.
    allowed = ("floor", "trunc") if plain in _ROUNDING_DIVISION else (None, *_WHOLE_REDUCTIONS)

    def are_whole(args: Sequence[Any], kwargs: Mapping[str, Any], is_whole: IsWhole) -> bool:
        count = len(args)
        if mode is not None and (args[mode[0]] if mode[0] < count else kwargs.get(mode[1])) not in allowed:
            return False
        return all(holds(args[i] if i < count else kwargs.get(name), is_whole) for i, name in places)

    return are_whole if mode is not None or plain not in _ROUNDING_DIVISION else lambda *_: False


def _places_of_numbers(operation: OpOverload, *, numbers_alone: bool) -> list[tuple[int, str]]:
    """The arguments with values that enter the results: position and name."""
    overwritten, plain = out_names(operation), plain_name(operation.overloadpacket.__name__)
    return [
        (position, argument.name)
        for position, argument in enumerate(schema_of(operation).arguments)
        if argument.name not in (*_MODES, *overwritten, *_CHOOSING)
        and _holds_numbers(str(argument.type), argument.name, plain, numbers_alone)
    ]


def _holds_numbers(kind: str, name: str, plain: str, numbers_alone: bool) -> bool:
    """Whether numbers of this argument come into the results."""
    if "Tensor" in kind:
        return not numbers_alone or name == "value"  # fill_ by a tensor
    return any(word in kind for word in _NUMBERS) and plain not in _BOUNDING
