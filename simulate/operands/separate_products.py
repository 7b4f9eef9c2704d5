"""Operations that compute several products of the same operands, contracted along different axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..aten.contracted_axes import LAST, OVER_POSITIONS, Contraction, of_input_gradient
from ..composites.attention import SEEN

Compute = Callable[[Sequence[Any]], Any]
See = Callable[[str, Tensor, Contraction], Tensor]
SeparateProducts = Callable[..., Any]

_aten = torch.ops.aten


def _convolution_backward(
    compute: Compute, see: See, gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Computes the gradients of input, weight and bias, each from operands rounded for its product."""
    rest = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    results: list[Tensor | None] = [None, None, None]
    if mask[0]:
        axes = of_input_gradient(transposed=transposed, groups=groups)
        factors = see("grad_output", gradient, axes["grad_output"]), x, see("weight", weight, axes["weight"])
        results[0] = compute([*factors, *rest, [True, False, False]])[0]
    if mask[1] or mask[2]:  # the bias has the gradient rounded for the weight
        seen_gradient = see("grad_output", gradient, OVER_POSITIONS)
        factors = seen_gradient, see("input", x, OVER_POSITIONS) if mask[1] else x, weight
        _, *results[1:] = compute([*factors, *rest, [False, mask[1], mask[2]]])
    return tuple(results)


def _separate_attention(formula: Callable[..., Any]) -> SeparateProducts:
    def separate(_compute: Compute, see: See, *args: Any, **kwargs: Any) -> Any:
        def see_along(name: str, x: Tensor, axis: int) -> Tensor:
            return see(name, x, LAST if axis == -1 else Contraction(axis))

        return formula(*args, **kwargs, see=see_along)

    return separate


_SEPARATE: dict[Any, SeparateProducts] = {
    _aten.convolution_backward: _convolution_backward,
    **{operation: _separate_attention(formula) for operation, formula in SEEN.items()},
}


def separate_products(operation: OpOverload) -> SeparateProducts | None:
    """Returns a function that computes an operation product by product; None if one rounding serves all of them.

    It takes ``compute(args)``, which runs the operation itself; ``see(name, x, contraction)``, which rounds an operand
    for a product; and the operation's arguments. It returns the operation's results, or
    ``NotImplemented`` for unsupported arguments.
    """
    return _SEPARATE.get(operation.overloadpacket)
