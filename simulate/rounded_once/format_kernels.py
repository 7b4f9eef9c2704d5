"""Kernels that have to know the format of their results: to round their results is not enough.

PyTorch's kernels and derivatives read ``numeric_limits``: the largest value, the neighbour of a value, the integers
that a dtype counts, the open end of a range of random values. A kernel of the carrier would read float32's.

Some derivatives look for the elements of an operand that are equal to the result: of maxima, minima, medians and
largest norms. A result is of the format. An operand from outside of the simulation, such as an initial weight, is not,
and nothing would be equal: the gradient would be NaN or zero. So these comparisons see operands in the format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...formats import Format, QtorchFormat, Rounding, round
from ...formats.families.floats import FP32
from ..aten.tables import plain_name
from ..native.stand_ins import StandsFor, standing_for

Kernel = Callable[..., Any]
Rounder = Callable[[torch.Tensor, Format, Rounding], torch.Tensor]

_aten = torch.ops.aten

_COMPARING = (
    "Amax", "Amin", "Aminmax", "Dist", "ForeachMax", "ForeachNorm", "IndexReduce", "LinalgVectorNorm", "Max", "Median",
    "Min", "Nanmedian", "Norm", "Renorm", "ScatterReduce",
)  # fmt: skip
"""Operations with derivatives that compare, as autograd names them."""


class Adapted(NamedTuple):
    """An operation to adapt, and the arithmetic of its results."""

    operation: OpOverload
    kernel: Kernel
    """The kernel that computes it so far."""
    format: Format
    rounding: Rounding
    rounded: Rounder
    """Rounds a tensor, also while a program is traced."""

    def operand(self, x: torch.Tensor) -> torch.Tensor:
        """An operand as a value of the format; where results are rounded stochastically, to the nearest."""
        mode = Rounding.NEAREST_EVEN if self.rounding is Rounding.STOCHASTIC else self.rounding
        return x if self.format == FP32 else self.rounded(x, self.format, mode)


def compares_with_results(operation: OpOverload) -> bool:
    """Whether derivatives compare operands with results by the operation."""
    return operation.overloadpacket in (
        _aten.eq, _aten.exp, _aten._cdist_backward, _aten._pdist_backward, _aten._segment_reduce_backward,  # noqa: SLF001  their names
    )  # fmt: skip


def of_the_format(adapted: Adapted) -> Kernel:
    """The kernel of an operation with the facts of the format in the place of the dtype's.

    Formats of qtorch have one way to round, and keep PyTorch's kernel.
    """
    adapt = _ADAPTED.get(plain_name(adapted.operation.overloadpacket.__name__))
    return adapted.kernel if adapt is None or isinstance(adapted.format, QtorchFormat) else adapt(adapted)


def _below_end(adapted: Adapted) -> Kernel:
    """Draws from a range without its upper end: values that rounding could take there become the neighbour inside.

    Rounding down gives the neighbour. The other draws are rounded in the policy's mode; all draws are, if no value of
    the format is in the range. Draws are finite.
    """
    fmt = adapted.format

    def drawn_below_end(*args: Any, **kwargs: Any) -> torch.Tensor:
        drawn: torch.Tensor = adapted.kernel(*args, **kwargs)
        # Only uniform_ has a tensor and numbers: (self, from, to).
        numbers = [x for x in args if isinstance(x, float)]
        low = kwargs.get("from", numbers[0] if numbers else 0.0)
        high = kwargs.get("to", numbers[1] if len(numbers) > 1 else 1.0)
        x = torch.view_as_real(drawn) if drawn.is_complex() else drawn  # Both parts, in place.
        wide = x.to(torch.float32) if x.itemsize == 2 else x  # float16 and bfloat16
        inside = round(wide, fmt, rounding=Rounding.DOWN)
        leaves = (round(wide, fmt, rounding=Rounding.UP) >= high) & (inside >= low) & (inside < high)
        x.copy_(torch.where(leaves, inside, wide))
        return drawn

    return drawn_below_end


def _above_zero(adapted: Adapted) -> Kernel:
    """Draws values above zero: none is less than the smallest value of the format."""
    smallest = adapted.format.smallest
    if smallest is None:
        return adapted.kernel

    def drawn_above_zero(*args: Any, **kwargs: Any) -> torch.Tensor:
        drawn: torch.Tensor = adapted.kernel(*args, **kwargs)
        return drawn.clamp_(min=smallest)

    return drawn_above_zero


def _integers_that_count(adapted: Adapted) -> Kernel:
    """Draws integers up to the last that the format represents with all before it, if no other end is given."""
    fmt, operation = adapted.format, adapted.operation
    if fmt.eps is None or fmt.max is None:
        return adapted.kernel
    end = int(min(2 / fmt.eps, fmt.max)) + 1  # With m bits, all integers up to 2^(m + 1).
    to = {"default": "to", "out": "to_out"}.get(operation._overloadname)  # noqa: SLF001  its only name
    up_to = getattr(operation.overloadpacket, to) if to else None

    def drawn_integers(x: torch.Tensor, *numbers: Any, **kwargs: Any) -> torch.Tensor:
        if x.is_floating_point() and up_to is not None:
            return up_to(x, end, **kwargs)  # type: ignore[no-any-return]
        if x.is_floating_point() and len(numbers) == 2 and numbers[1] is None:
            numbers = (numbers[0], end)
        return adapted.kernel(x, *numbers, **kwargs)  # type: ignore[no-any-return]

    return drawn_integers


def _nan_to_num(adapted: Adapted) -> Kernel:
    """Replaces infinities by the format's largest and smallest value, and NaN by zero, if no other values are given."""

    def finite(
        x: torch.Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None, **out: Any
    ) -> Any:
        low, high = adapted.format.bounds(x.dtype.to_real()) or (None, None)
        return adapted.kernel(x, nan, high if posinf is None else posinf, low if neginf is None else neginf, **out)

    return finite


def _neighbour(adapted: Adapted) -> Kernel:
    """The next value of the format toward another; NaN for NaN. The result of overflow follows the largest value."""
    fmt, smallest = adapted.format, adapted.format.smallest
    if not fmt.elementwise or smallest is None:
        return adapted.kernel

    def neighbour(x: torch.Tensor, toward: torch.Tensor, **out: Any) -> Any:
        start, end = adapted.operand(x), adapted.operand(toward)
        near = torch.nextafter(start, end)  # The carrier's neighbour; up or down from it is the format's.
        up, down = (adapted.rounded(near, fmt, mode) for mode in (Rounding.UP, Rounding.DOWN))
        value = torch.where(end > start, up, torch.where(end < start, down, near))
        # Some formats have no subnormal values, and posits do not round to zero.
        value = torch.where((start == 0) & (end != 0), torch.full_like(value, smallest).copysign(end), value)
        value = torch.where((value == start) & (start.abs() == smallest) & (end != start), start * 0, value)
        return adapted.kernel(x, toward, **out).copy_(value)  # Checks arguments, and makes the result.

    return neighbour


def _sentinel(adapted: Adapted) -> Kernel:
    """Makes a tensor of a Python number; if autograd makes one of the dtype's lowest number, it is within the format.

    The derivative of ``logcumsumexp`` fills in this number where there is nothing to add, and subtracts from it. Half
    of the format's lowest value leaves room for that: in some formats an overflow is NaN.
    """

    def sentinel(number: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        bounds = adapted.format.bounds(torch.float32 if dtype.itemsize == 2 else dtype)
        lowest = dtype.is_floating_point and number == torch.finfo(dtype).min
        if lowest and bounds and torch._C._current_autograd_node() is not None:  # noqa: SLF001  no other access
            number = bounds[0] / 2
        return adapted.kernel(number, **kwargs)

    return standing_for(sentinel, StandsFor(asks=3))


def _equal_as_rounded(adapted: Adapted) -> Kernel:
    """Whether elements are equal; in a derivative that compares an operand with a result, as values of the format.

    If nothing is equal along an axis that was reduced, the nearest elements are: where a scale is shared, or results
    are rounded stochastically, an operand rounded by itself may differ from the result. NaN equals nothing.
    """

    def equal(x: Any, other: Any, **out: Any) -> Any:
        node = torch._C._current_autograd_node()  # noqa: SLF001  no other access
        if node is None or out or node.name().partition("Backward")[0] not in _COMPARING:
            return adapted.kernel(x, other, **out)
        if not all(value.is_floating_point() for value in (x, other) if isinstance(value, torch.Tensor)):
            return adapted.kernel(x, other)
        if not isinstance(other, torch.Tensor):
            return adapted.kernel(adapted.operand(x), other)
        x, other = adapted.operand(x), adapted.operand(other)
        are_equal = adapted.kernel(x, other)
        operand, result = (x, other) if x.numel() >= other.numel() else (other, x)  # The result was reduced.
        sizes = (1,) * (operand.dim() - result.dim()) + tuple(result.shape)
        reduced = [axis for axis, size in enumerate(sizes) if size < operand.shape[axis]]
        if not reduced:
            return are_equal
        distances = (operand - result).abs()
        nearest = distances == distances.amin(reduced, keepdim=True)
        return are_equal | (nearest & ~are_equal.any(reduced, keepdim=True))

    return standing_for(equal, StandsFor(asks=2))


def _exp_as_rounded(adapted: Adapted) -> Kernel:
    """Exponentials; in the derivative of ``logsumexp``, of differences between the result and the rounded operand."""

    def exponential(x: torch.Tensor, **out: Any) -> Any:
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001  no other access
        name = "" if node is None else node.name().partition("Backward")[0]
        if name in ("Logsumexp", "Logcumsumexp"):
            operand = _saved_operand(node)
            if operand is not None:
                x = x + (adapted.operand(operand.to(x.dtype)) - operand)  # x is the operand less the result.
            elif name == "Logsumexp":  # no value of the format is above the result
                x = x.clamp(max=0)
        return adapted.kernel(x, **out)

    return standing_for(exponential, StandsFor(asks=4))


def _saved_operand(node: Any) -> torch.Tensor | None:
    """The operand that a node of autograd keeps; None inside ``torch.func``, and in checkpoints, which give it once."""
    try:
        operand: torch.Tensor = node._saved_self  # noqa: SLF001  its name
    except RuntimeError:
        return None
    return None if torch._C._functorch.is_functorch_wrapped_tensor(operand) else operand.detach()  # noqa: SLF001


def _of_largest_distances(adapted: Adapted) -> Kernel:
    """The gradient of distances; its kernel compares the largest differences with distances that are not rounded."""

    def gradient(*args: Any, **out: Any) -> Any:
        *operands, p, distances = args
        if p == math.inf:
            pairs = len(operands) == 3  # a gradient, and two sets of points
            distances = _aten._cdist_forward(*operands[1:], p, None) if pairs else _aten._pdist_forward(operands[1], p)  # noqa: SLF001
        return adapted.kernel(*operands, p, distances, **out)

    return gradient


def _of_segments(adapted: Adapted) -> Kernel:
    """The gradient of reductions of segments; its kernel compares operands with the largest or smallest of them."""

    def gradient(grad: torch.Tensor, output: torch.Tensor, data: torch.Tensor, reduce: str, **options: Any) -> Any:
        if reduce in ("max", "min"):
            data = adapted.operand(data)
            output = _aten.segment_reduce(data, reduce, unsafe=True, **options)
        return adapted.kernel(grad, output, data, reduce, **options)

    return gradient


_ADAPTED: dict[str, Callable[[Adapted], Kernel]] = {
    "rand": _below_end,
    "rand_like": _below_end,
    "uniform": _below_end,
    "exponential": _above_zero,
    "_standard_gamma": _above_zero,
    "_sample_dirichlet": lambda adapted: _below_end(adapted._replace(kernel=_above_zero(adapted))),
    "random": _integers_that_count,
    "nan_to_num": _nan_to_num,
    "nextafter": _neighbour,
    "scalar_tensor": _sentinel,
    "eq": _equal_as_rounded,
    "exp": _exp_as_rounded,
    "_cdist_backward": _of_largest_distances,
    "_pdist_backward": _of_largest_distances,
    "_segment_reduce_backward": _of_segments,
}
"""Operations, without trailing ``_``."""
