"""Computes results of elementwise arithmetic on any tensors, rounded once from the exact result to the carrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from fractions import Fraction
from functools import lru_cache
from math import copysign, isqrt, ulp
from typing import Any, NamedTuple, final

import torch

from ...formats import Overflow, RandomBits, Rounding
from ...formats.base.on_device import number_on
from ...formats.base.random_words import random_words
from ...formats.families.floats import FP64
from ...formats.rounding import is_dense
from ...formats.tools.reference import round_exactly
from ..native.stand_ins import Way as NativeWay
from . import loops as exact_loops
from . import tensors as exact_tensors
from .carrier_rounding import CarrierRounding

ResultRoundings = Mapping[torch.dtype, "ResultRounding"]
Draw = Callable[[], RandomBits]

CARRIERS = (torch.float32, torch.float64)

# Tensors of other types (fake, functional) have no memory that a loop could read.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ROOT_BITS = 128  # of a square root, before it is rounded to 53 bits with a random word of 32


@final
class ResultRounding:
    """The rounding of a formula's results to a carrier.

    Args:
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`.
        dtype: the carrier.
        carrier: the rounding of exact results to the dtype.
    """

    def __init__(self, formula: str, dtype: torch.dtype, carrier: CarrierRounding) -> None:
        self.formula, self.dtype, self.carrier = formula, dtype, carrier
        self.draws = carrier.mode is Rounding.STOCHASTIC
        self.is_nearest_root = formula == "root" and carrier.mode is Rounding.NEAREST_EVEN
        self._loops: list[exact_loops.RoundedOnceLoop] = []
        self._native_ways: list[NativeWay] = []

    @property
    def loop(self) -> exact_loops.RoundedOnceLoop:
        """The loop that computes results on the CPU; compiled at first use, and then also passed to C++."""
        if not self._loops:
            # Two threads may each append a loop; the first one is used.
            self._loops.append(exact_loops.RoundedOnceLoop(self.formula, self.dtype, self.carrier))
            for way in list(self._native_ways):
                way.fill(self._loops[0].function, self._loops[0].settings)
        return self._loops[0]

    def tell(self, way: NativeWay) -> None:
        """Passes the loop to C++ as soon as it is compiled, possibly by another thread."""
        self._native_ways.append(way)
        if self._loops:
            way.fill(self._loops[0].function, self._loops[0].settings)


class FormulaCall(NamedTuple):
    """One elementwise computation."""

    formula: str
    """A field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`."""
    operands: tuple[Any, ...]
    """Tensors and Python numbers, in the formula's order."""
    factor: Any = 1.0
    """The formula's ``v``: a Python number; or a tensor without dimensions, on another device, of one."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The operands that are tensors."""
        return [x for x in self.operands if isinstance(x, torch.Tensor)]

    @property
    def has_number(self) -> bool:
        """Whether an operand is a Python number, or the factor is one other than 1 and -1."""
        if not all(isinstance(x, torch.Tensor) for x in self.operands):
            return True
        v = self.factor
        return not isinstance(v, torch.Tensor) and not (type(v) in (int, float) and abs(v) == 1)

    def layout(self) -> torch.Tensor:
        """Returns a tensor with the shape, dtype, strides and device of the result; raises the errors of PyTorch."""
        first, *others = [x for x in self.tensors if x.dim()] or self.tensors
        same_layout = first.dtype in CARRIERS and is_dense(first) and _keeps_its_strides(first)
        for x in others:
            same_layout = same_layout and x.shape == first.shape and x.stride() == first.stride()
            same_layout = same_layout and x.dtype is first.dtype and x.device == first.device
        return first if same_layout else self._by_pytorch()

    def _by_pytorch(self) -> torch.Tensor:
        x, *rest = self.operands
        a = rest[0] if rest else x
        first_is_number = not isinstance(x, torch.Tensor)
        has_three_tensors = len(rest) > 1 and isinstance(rest[1], torch.Tensor)
        if self.formula == "interpolation":
            return torch.lerp(x, *rest)
        if has_three_tensors:
            return torch.addcmul(x, *rest) if self.formula == "fused" else torch.addcdiv(x, *rest)
        if self.formula == "root":
            return torch.sqrt(x)
        if self.formula == "product":
            return torch.mul(x, a)
        if self.formula == "quotient":
            return torch.reciprocal(a) if first_is_number else torch.div(x, a)
        operation: Callable[..., torch.Tensor] = torch.add
        if isinstance(self.factor, float) and self.factor < 0:
            operation = torch.rsub if first_is_number else torch.sub  # which PyTorch refuses where one is boolean
        return operation(a, x) if first_is_number else operation(x, a)


def _keeps_its_strides(x: torch.Tensor) -> bool:
    """Whether results always have the strides of ``x``; PyTorch may change the strides of axes of length one."""
    if 1 not in x.shape and 0 not in x.shape:
        return True
    step, steps = 1, []
    for length in reversed(x.shape):
        steps.append(step)
        step *= length
    return step > 0 and x.stride() == tuple(reversed(steps))


def result(call: FormulaCall, ways: ResultRoundings, draw: Draw, target: torch.Tensor | None = None) -> Any:
    """Computes the results of a call, rounded once to their dtype.

    Args:
        call: the computation.
        ways: the roundings of results, for each dtype that is rounded once.
        draw: returns the random bits for stochastic rounding.
        target: the operand that the results will overwrite; PyTorch has accepted all operands for that.

    Returns:
        A tensor, which may be ``target``. ``NotImplemented``, before random bits are drawn, if the operands are not
        real floats in memory, or ``ways`` lacks the dtype.
    """
    if any(type(x) not in _PLAIN or x._is_zerotensor() or x.is_meta for x in call.tensors):  # noqa: SLF001  no other test
        return NotImplemented
    if any(x.dtype.is_complex if isinstance(x, torch.Tensor) else isinstance(x, complex) for x in call.operands):
        return NotImplemented
    like = call.layout() if target is None else target
    way = ways.get(like.dtype)
    if way is None:
        return NotImplemented
    random = draw() if way.draws else None
    return _on_cpu(call, like, way, random) if like.device.type == "cpu" else _on_device(call, like, way, random)


@lru_cache(maxsize=256)
def _number_tensor(x: float, _sign: float, dtype: torch.dtype) -> torch.Tensor:  # 0.0 and -0.0 are one key
    return torch.tensor(x, dtype=dtype, device="cpu")


def _on_cpu(call: FormulaCall, like: torch.Tensor, way: ResultRounding, random: RandomBits | None) -> torch.Tensor:
    target = work = torch.empty_like(like)
    if not target.is_contiguous() and (random is not None or like.dtype is torch.float64 or not is_dense(target)):
        work = torch.empty(like.shape, dtype=like.dtype)  # in row-major order
    operands = [_operand(x, work) for x in call.operands]
    if way.is_nearest_root:
        exact_loops.nearest_root(operands[0], work)
    else:
        tensor_mask = sum(1 << i for i, x in enumerate(operands) if x.dim() == work.dim())
        addresses = [x.data_ptr() for x in (*operands, *operands[:1] * (3 - len(operands)))]
        factor = _in_carrier(call.factor, like.dtype)
        way.loop(addresses, tensor_mask, factor, work, work.numel(), random)
        if like.dtype is torch.float64:
            fill_in(call.formula, operands, factor, work, way.carrier, random)
    return work if work is target else target.copy_(work)


def _operand(x: torch.Tensor | float, target: torch.Tensor) -> torch.Tensor:
    """Converts an operand to the target's dtype, shape and layout; a single number for all elements has no axes."""
    if not isinstance(x, torch.Tensor):
        return _number_tensor(float(x), copysign(1.0, x), target.dtype)
    if x.is_neg() or x.dtype is not target.dtype:
        x = x.resolve_neg().to(target.dtype)
    if x.dim() == 0 or (x.shape == target.shape and x.stride() == target.stride()):
        return x
    return torch.empty_like(target).copy_(x)


def _in_carrier(x: Any, dtype: torch.dtype) -> Any:
    """Rounds a number to the carrier, as kernels do."""
    if isinstance(x, torch.Tensor):
        return x.to(dtype).double()
    return float(x) if dtype is torch.float64 else c_float(x).value


def _convert_to(x: torch.Tensor | float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return x.to(device, dtype, non_blocking=True) if isinstance(x, torch.Tensor) else number_on(float(x), dtype, device)


def _on_device(call: FormulaCall, like: torch.Tensor, way: ResultRounding, random: RandomBits | None) -> torch.Tensor:
    """Computes the results by tensor operations, on devices other than the CPU."""
    dtype, device = like.dtype, like.device
    operands = [_convert_to(x, dtype, device).expand(like.shape) for x in call.operands]
    if way.is_nearest_root:
        return operands[0].sqrt()  # correctly rounded on GPUs
    factor = _in_carrier(call.factor, dtype)
    computed = exact_tensors.compute(call.formula, operands, factor, dtype, way.carrier, random)
    if dtype is torch.float64:
        fill_in(call.formula, operands, factor, computed, way.carrier, random)
    return torch.empty_like(like).copy_(computed)


def fill_in(
    formula: str,
    operands: Sequence[torch.Tensor],
    factor: float,
    results: torch.Tensor,
    carrier: CarrierRounding,
    random: RandomBits | None,
) -> None:
    """Computes the results marked ``UNSAFE``, which have finite operands, exactly; this takes some 20 us for each.

    Args:
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`.
        operands: float64, of the shape of the results, or without axes.
        factor: the formula's ``v``.
        results: float64, contiguous.
        carrier: the rounding of the exact results to the carrier.
        random: the random bits of stochastic rounding, the same as for the other results.
    """
    flat = results.view(-1)
    positions = (flat.view(torch.int64) == exact_loops.UNSAFE).nonzero()[:, 0]
    if not positions.numel():
        return
    words = [None] * len(positions) if random is None else random_words(random, flat)[positions].tolist()
    selected = [x.expand(results.shape).reshape(-1)[positions].tolist() for x in operands]
    numbers = [
        _rounded(formula, row, float(factor), carrier, word) for *row, word in zip(*selected, words, strict=True)
    ]
    flat[positions] = torch.tensor(numbers, dtype=torch.float64, device=flat.device)


def _rounded(formula: str, row: Sequence[float], factor: float, carrier: CarrierRounding, word: int | None) -> float:
    exact = _exact_value(formula, [Fraction(x) for x in row], Fraction(factor))
    if exact:
        rounded = round_exactly(exact, FP64, carrier.mode, Overflow.SATURATE if carrier.saturating else None, word)
        return rounded or (copysign(ulp(0.0), exact) if carrier.saturating else rounded)
    # The zero that a formula gives: from its operations where they add only zeros, otherwise from a difference
    sign = -1.0 if carrier.mode is Rounding.DOWN else 1.0
    if formula in ("fused", "divided") and row[0] == 0:
        product_zero = copysign(0.0, copysign(1.0, factor) * copysign(1.0, row[1]) * copysign(1.0, row[2]))
        return sign * (sign * row[0] + sign * product_zero)
    return sign * 0.0


def _exact_value(formula: str, operands: Sequence[Fraction], factor: Fraction) -> Fraction:
    x, a, b = [*operands, Fraction(0), Fraction(0)][:3]
    if formula == "root":
        # The square root, truncated; half a unit represents the truncated part
        scale = 1 << 2 * (_ROOT_BITS + max(0, x.denominator.bit_length() - x.numerator.bit_length()))
        scaled = x * scale  # an integer: denominators are powers of two, and the scale is larger
        root = isqrt(int(scaled))
        remainder = Fraction(int(root * root != scaled), 2)
        return (root + remainder) / isqrt(scale)
    if formula in ("quotient", "divided"):
        return x / a if formula == "quotient" else x + factor * a / b
    sums = {"sum": x + factor * a, "product": x * a, "fused": x + factor * a * b, "interpolation": x + b * (a - x)}
    return sums[formula]
