"""The ATen operations that are elementwise arithmetic, and when they need more than PyTorch's kernel and one rounding.

The kernel rounds to the carrier first, to the nearest. Rounding that again is harmless for +, -, *, / and sqrt of
numbers of the format if the mode is a nearest one and the carrier has twice the precision and two bits (Figueroa, "When
is double rounding innocuous?", 1995), as long as nothing underflows in between. In other cases the exact result
is rounded to the carrier in a way that the second rounding leaves right:

    toward zero, up, down, to odd, stochastic    in the same mode: the carrier has all numbers of the format
    to the nearest                               to odd, where the carrier has two bits more than the format

Square roots are never PyTorch's: its library for CPUs is occasionally off by a last place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from ...formats import FixedFormat, FloatFormat, Format, PositFormat, RandomBits, Rounding
from ...formats.arithmetic.patterns import LARGEST_EXPONENT, STORED_BITS
from ...formats.base.modes import NEAREST
from ..aten.schemas import argument_names, out_names
from ..aten.tables import plain_name
from ..native.stand_ins import Exact, StandsFor
from . import loops as exact_loops
from .carrier_rounding import CarrierRounding
from .formulas import Formulas
from .operators import DrawAt, is_traced, traced
from .results import CARRIERS, FormulaCall, ResultRounding, ResultRoundings, result

_SEVERAL = ("fused", "divided", "interpolation", "conversion")  # Kernels round these more than once.


def _add(self: Any, other: Any, alpha: Any = 1) -> FormulaCall:
    if alpha == 1 or alpha == -1:  # noqa: PLR1714  numbers without values have no hash
        return FormulaCall("sum", (self, other), 1.0 if alpha == 1 else -1.0)
    return FormulaCall("fused", (self, other, alpha))


def _pow(self: Any, exponent: Any) -> FormulaCall | None:
    """The exponents that PyTorch's kernel has as products, quotients and roots."""
    if not isinstance(exponent, (int, float)):
        return None
    powers = {
        2: FormulaCall("product", (self, self)),
        0.5: FormulaCall("root", (self,)),
        -1: FormulaCall("quotient", (1.0, self)),
    }
    return powers.get(exponent)


_CALLS: dict[str, tuple[tuple[str, ...], Callable[..., FormulaCall | None]]] = {
    "add": (("sum", "fused"), _add),
    "sub": (("sum", "fused"), lambda self, other, alpha=1: _add(self, other, -alpha)),
    "rsub": (("sum", "fused"), lambda self, other, alpha=1: _add(other, self, -alpha)),
    "mul": (("product",), lambda self, other: FormulaCall("product", (self, other))),
    "div": (("quotient",), lambda self, other: FormulaCall("quotient", (self, other))),
    "reciprocal": (("quotient",), lambda self: FormulaCall("quotient", (1.0, self))),
    "sqrt": (("root",), lambda self: FormulaCall("root", (self,))),
    "pow": (("product", "quotient", "root"), _pow),
    "addcmul": (
        ("fused",),
        lambda self, tensor1, tensor2, value=1: FormulaCall("fused", (self, tensor1, tensor2), value),
    ),
    "addcdiv": (
        ("divided",),
        lambda self, tensor1, tensor2, value=1: FormulaCall("divided", (self, tensor1, tensor2), value),
    ),
    "lerp": (("interpolation",), lambda self, end, weight: FormulaCall("interpolation", (self, end, weight))),
}
"""The formulas that an operation may need, and the call that it is, by name, without ``_foreach_`` and ``_``."""


def carrier_rounding(
    fmt: Format, dtype: torch.dtype, rounding: Rounding, formula: str, *, any_operands: bool = False
) -> CarrierRounding | None:
    """Returns the rounding of a formula's exact results to the carrier, before they are rounded to the format.

    Args:
        fmt: the format of the operands.
        dtype: the carrier.
        rounding: to the format.
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`; or ``"conversion"``.
        any_operands: operands are any numbers of the carrier, and kernels of several operations are not to be followed.

    Returns:
        None where PyTorch's kernel, which rounds to the nearest, will do: where that is harmless; where a kernel of
        several operations is meant to do so, to nearest-even with up to 10 significand bits, as PyTorch's own for half
        precision; and where nothing is known to be better, for formats with data-dependent values.
    """
    # A posit saturates: infinity is not one of its numbers.
    saturating = isinstance(fmt, PositFormat)
    if rounding not in NEAREST:
        return CarrierRounding(rounding, saturating)
    if fmt.native:
        return None
    precision, harmless = _rounding_twice(fmt, dtype)
    as_kernels_do = rounding is Rounding.NEAREST_EVEN and fmt.carrier is torch.float32
    if any_operands:
        harmless, as_kernels_do = harmless & {"root"}, False
    if formula in harmless or (formula in _SEVERAL and as_kernels_do):
        return CarrierRounding(Rounding.NEAREST_EVEN) if formula == "root" else None
    if precision + 2 <= STORED_BITS[dtype] + 1:  # Two bits more: rounding to odd is then harmless.
        return CarrierRounding(Rounding.TO_ODD, saturating)
    return CarrierRounding(Rounding.NEAREST_EVEN) if formula == "root" else None


@lru_cache(maxsize=1024)
def _rounding_twice(fmt: Format, dtype: torch.dtype) -> tuple[int, frozenset[str]]:
    """Bits of precision of a format, and the formulas that rounding twice, to the nearest, does not harm.

    For formats without a fixed precision (all but floats, posits and fixed point), more bits than any carrier has.
    """
    stored, largest = STORED_BITS[dtype], LARGEST_EXPONENT[dtype]
    lowest = 1 - largest - stored  # exponent of the carrier's smallest subnormal
    harmless = set()
    if isinstance(fmt, FixedFormat):
        precision = fmt.integer_bits + fmt.fraction_bits
        # Bits of exact sums and products. Quotients and roots have infinitely many, and need 2p + 2 as for floats.
        bits = {"sum": precision + 1, "product": 2 * precision} | dict.fromkeys(("quotient", "root"), 2 * precision + 2)
        harmless = {formula for formula, needed in bits.items() if needed <= stored + 1}
    elif isinstance(fmt, FloatFormat):
        precision = fmt.significand_bits + 1
        # Halfway between zero and the smallest number: results there must have all the bits that matter.
        halfway = fmt.emin - (fmt.significand_bits if fmt.subnormals else 0) - 1
        if 2 * precision + 2 <= stored + 1:
            harmless = {"sum", "root"}
            harmless |= {"quotient"} if halfway - precision >= lowest else set()
        if 2 * precision <= stored + 1 and halfway - (2 * precision - 1) >= lowest:  # Exact products.
            harmless |= {"product"}
    elif isinstance(fmt, PositFormat):
        precision = fmt.significand_bits + 1
        if 2 * precision + 2 <= stored + 1:
            harmless = {"sum", "root"}
            harmless |= {"product", "quotient"} if 2 * fmt.emax < largest else set()  # Within the carrier's range.
    else:
        precision, harmless = STORED_BITS[torch.float64] + 1, {"root"}
    return precision, frozenset(harmless)


def sum_rounding(fmt: Format, dtype: torch.dtype, rounding: Rounding, *, rounds: bool) -> CarrierRounding:
    """Returns the rounding of exact sums to the carrier, before they are rounded to the format, if they are."""
    if not rounds:
        return CarrierRounding(Rounding.NEAREST_EVEN)
    if rounding in NEAREST and _rounding_twice(fmt, dtype)[0] + 2 > STORED_BITS[dtype] + 1:
        return CarrierRounding(Rounding.NEAREST_EVEN)
    saturating = isinstance(fmt, PositFormat)
    return CarrierRounding(Rounding.TO_ODD if rounding in NEAREST else rounding, saturating)


@lru_cache(maxsize=1024)
def exact_to_nearest(fmt: Format) -> tuple[str, ...]:
    """Names the formulas that are not PyTorch's to nearest-even, and their roundings, as dependencies of a program."""
    cases = [(dtype, formula) for dtype in CARRIERS if fmt.fits_in(dtype) for formula in Formulas._fields]
    ways = [
        (*case, carrier_rounding(fmt, case[0], Rounding.NEAREST_EVEN, case[1], any_operands=any_operands))
        for any_operands in (False, True)
        for case in cases
    ]
    return tuple(f"{formula} {dtype} {carrier.mode}" for dtype, formula, carrier in ways if carrier is not None)


def kernel(
    operation: OpOverload, fmt: Format, rounding: Rounding, draw: DrawAt, *, numbers_once: bool = False
) -> Callable[..., Any] | None:
    """Returns a function for ``operation`` such that rounding its results to the format rounds the exact results once.

    Args:
        operation: an ATen operation.
        fmt: the format its results are rounded to, afterwards.
        rounding: the mode of that rounding.
        draw: gives random bits; see :func:`~roundoff.simulate.rounded_once.results.result`.
        numbers_once: whether results to the nearest are also rounded once if an operand is any Python number.

    Returns:
        A function with the operation's arguments that rounds its results to their dtype; it passes unsupported
        arguments on to the operation (integers, complex numbers, tensors of other types). None for operations that
        compute something else, and where the operation itself will do.
    """
    name = operation.overloadpacket.__name__
    formulas, make = _CALLS.get(plain_name(name), ((), None))
    if make is None or operation.namespace != "aten" or "rounding_mode" in argument_names(operation):
        return None
    ways, of_numbers = (_ways(formulas, fmt, rounding, any_operands=any_operands) for any_operands in (False, True))
    if not numbers_once:
        of_numbers = ways
    if not any(ways.values()) and not any(of_numbers.values()):
        return None
    replacement = _Kernel(operation, make, ways, of_numbers, draw)
    if out_names(operation):
        return replacement
    others = {formula for each in (ways, of_numbers) for formula, roundings in each.items() if roundings} - {"root"}
    # The C++ library knows roots and powers by themselves, and all else by a description.
    if formulas == ("root",) and all(way.is_nearest_root for way in ways["root"].values()):
        replacement.stands_for = StandsFor(roots=exact_loops.nearest_roots())
    elif plain_name(name) == "pow" and not others:
        replacement.stands_for = StandsFor(power=True)
    else:
        exact = _exact_description(name, _formula_needs(ways), _formula_needs(of_numbers))
        replacement.stands_for = StandsFor(exact=exact)
    return replacement


@lru_cache(maxsize=1024)
def _ways(
    formulas: tuple[str, ...], fmt: Format, rounding: Rounding, *, any_operands: bool
) -> Mapping[str, ResultRoundings]:
    """Returns the rounding of each formula's results to the carriers; only where PyTorch's kernel does not suffice."""
    ways: dict[str, dict[torch.dtype, ResultRounding]] = {formula: {} for formula in formulas}
    for formula, dtype in product(formulas, filter(fmt.fits_in, CARRIERS)):
        carrier = carrier_rounding(fmt, dtype, rounding, formula, any_operands=any_operands)
        if carrier is not None:
            ways[formula][dtype] = _result_rounding(formula, dtype, carrier)
    return ways


_result_rounding = cache(ResultRounding)  # All simulations share a compiled loop.


def _formula_needs(ways: Mapping[str, ResultRoundings]) -> tuple[tuple[str, bool, ResultRounding | None], ...]:
    """For each formula, whether PyTorch's kernel will not do for it, and how float32 is rounded."""
    return tuple((formula, bool(of_carriers), of_carriers.get(torch.float32)) for formula, of_carriers in ways.items())


# C++ has the address of the result, so that it is never freed. The format is not part of the key, since a user-defined
# one may be a different object in each simulation.
@cache
def _exact_description(name: str, *needs: tuple[tuple[str, bool, ResultRounding | None], ...]) -> Exact:
    """Returns the C++ description of an operation's arithmetic, without and with a number; loops once compiled."""
    description = Exact(plain_name(name), of_lists=name.startswith("_foreach_"), in_place=name.endswith("_"))
    for has_number, formulas in enumerate(needs):
        for formula, is_needed, way in formulas:
            native = description.way(formula, has_number=bool(has_number))
            native.asked = is_needed
            if way is not None and not way.is_nearest_root:
                native.draws = way.draws
                way.tell(native)
    return description


class _Kernel:
    """An operation with exact results: computes a formula by the loops of ``ways``, or ``of_numbers`` with a number.

    Covers variants in place, with ``out=`` and for lists of tensors; leaves calls without a formula to the operation.
    """

    stands_for: StandsFor  # not of those with ``out=``

    def __init__(
        self,
        operation: OpOverload,
        make: Callable[..., FormulaCall | None],
        ways: Mapping[str, ResultRoundings],
        of_numbers: Mapping[str, ResultRoundings],
        draw: DrawAt,
    ) -> None:
        self._operation, self._make, self._draw = operation, make, draw
        self._ways, self._of_numbers = ways, of_numbers
        name = operation.overloadpacket.__name__
        self._names = [name for name in argument_names(operation) if name not in out_names(operation)]
        self._in_place = name.endswith("_")
        self._out = next(iter(out_names(operation)), None)
        self._of_lists = name.startswith("_foreach_")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._of_lists:
            return self._for_lists(*args, **kwargs)
        if self._out is not None:
            return self._into_out(*args, **kwargs)
        target = args[0] if self._in_place else None
        computed = self._compute(self._make(*args, **kwargs), target)
        if computed is NotImplemented:
            return self._operation(*args, **kwargs)
        return computed if target is None else _write_result(target, computed)

    def _compute(self, call: FormulaCall | None, target: torch.Tensor | None) -> Any:
        """A tensor with the results, which may be the ``target``; ``NotImplemented`` to leave it to the operation."""
        ways = None if call is None else (self._of_numbers if call.has_number else self._ways)[call.formula]
        if call is None or not ways or (target is not None and not all(_fits(x, target) for x in call.tensors)):
            return NotImplemented
        computed = result(call, ways, self._random, target)
        if computed is NotImplemented and is_traced(call):
            return traced(call, ways, self._draw)
        return computed

    def _random(self) -> RandomBits:
        return self._draw()[0]

    def _into_out(self, *args: Any, **kwargs: Any) -> Any:
        assert self._out is not None
        out = kwargs.pop(self._out)
        computed = self._compute(self._make(*args, **kwargs), None)
        if computed is NotImplemented or computed.dtype is not out.dtype or computed.shape != out.shape:
            self._operation(*args, **kwargs, **{self._out: out})  # which resizes, and warns of it
        return out if computed is NotImplemented else out.copy_(computed)

    def _for_lists(self, *args: Any, **kwargs: Any) -> Any:
        count = len(args[0])
        values = [*args, *(kwargs[name] for name in self._names[len(args) :] if name in kwargs)]
        columns = [_column(x, count) for x in values]
        if self._out is not None or any(column is None for column in columns):
            return self._operation(*args, **kwargs)
        results = []
        for i, row in enumerate(zip(*columns, strict=True)):
            target = row[0] if self._in_place else None
            computed = self._compute(self._make(*row), target)
            if computed is NotImplemented:
                item = [_for_tensor(x, i) for x in args], {name: _for_tensor(x, i) for name, x in kwargs.items()}
                computed = (self._operation(*item[0], **item[1]) or [target])[0]
            results.append(computed if target is None else _write_result(target, computed))
        return None if self._in_place else results


def _write_result(target: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
    return target if computed is target else target.copy_(computed)


def _fits(x: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether ``x`` can be an operand of an operation on ``target`` in place without changing how that computes."""
    if x is target or (x.shape == target.shape and x.dtype is target.dtype and x.device == target.device):
        return True
    alike = x.dtype is target.dtype and x.device == target.device
    if not alike and (x.dim() or x.device.type != "cpu"):  # A tensor without axes takes part as a number.
        return False
    missing = target.dim() - x.dim()
    return missing >= 0 and all(n in (1, m) for n, m in zip(x.shape, target.shape[missing:], strict=True))


def _for_tensor(x: Any, i: int) -> Any:
    """An argument for lists, for one of the tensors."""
    if isinstance(x, (list, tuple)):
        return [x[i]]
    return x[i : i + 1] if isinstance(x, torch.Tensor) and x.dim() else x


def _column(x: Any, count: int) -> Sequence[Any] | None:
    """Returns the value of an argument for lists for each of ``count`` tensors; None if it cannot be determined."""
    if isinstance(x, (list, tuple)):
        return x if len(x) == count else None
    if isinstance(x, torch.Tensor) and x.dim():  # numbers in a tensor
        if x.shape != (count,) or type(x) not in (torch.Tensor, FakeTensor):
            return None
        return x.tolist() if type(x) is torch.Tensor and x.is_cpu else x.unbind()
    return [x] * count
