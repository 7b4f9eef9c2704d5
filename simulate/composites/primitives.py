"""Composite ATen operations, decomposed into primitive ones, so that a simulation can round each step.

An operation is primitive if hardware or a mathematical library would compute it at once and round once:

- arithmetic (add, sub, mul, div, reciprocal, remainder), comparison, selection, moves, conversions, random draws;
- elementary and special functions (exp, expm1, log, log1p, sqrt, rsqrt, pow, tanh, sigmoid, erf, hypot, sinc, xlogy,
  logaddexp, lgamma, Bessel functions, ...), computed in the carrier;
- contractions and accumulations (sum, cumsum, prod, mm, bmm, convolution without bias, embedding sums, interpolation,
  scatter with addition, FFT) and linear algebra (solvers and factorizations);
- one arithmetic operation followed by a selection (leaky_relu, softshrink, threshold_backward, ...).

Left whole although they are composite: multi_margin_loss, multilabel_margin_loss, ctc_loss, averages inside embedding
bags and scattered reductions, the GRU cell and the recurrent layers of CUDA, attention with dropout or with fewer heads
of keys, products of complex numbers, quantized and sparse operations.

Everything else is in the tables of the modules beside this one, or is made of operations that are (in-place, ``out=``
and foreach variants).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ..aten.kernels import is_composite
from ..aten.schemas import out_names, schema_of
from . import (
    activations,
    attention,
    batch_norm,
    foreach,
    losses,
    normalisation,
    optimizers,
    pooling,
    recurrent,
    reductions,
    scaled_products,
    transformer,
)
from .variants import functional_variant, in_place, into_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

_SUBJECTS = (
    activations, attention, batch_norm, foreach, losses, normalisation, optimizers, pooling, recurrent, reductions,
    scaled_products, transformer,
)  # fmt: skip

# By packet (all overloads with the same arguments but their types) or by overload.
_FORMULAS: dict[Any, Callable[..., Any]] = {
    operation: formula for subject in _SUBJECTS for operation, formula in subject.FORMULAS.items()
}


@cache
def decomposition(operation: OpOverload) -> Callable[..., Any] | None:
    """A function that computes the same as a composite operation by more primitive ones.

    It has the operation's own signature and calls ATen operations, which may be composite themselves: run it where a
    dispatch mode sees them, ``with mode: result = decomposition(operation)(*args, **kwargs)``. Where an operation is
    composite with some arguments only (an addition with ``alpha``, a convolution with bias, a mean reduction), it
    returns ``NotImplemented`` for the others, before computing anything: the operation is primitive then.

    Args:
        operation: an overload, as ``__torch_dispatch__`` gets it.

    Returns:
        The function, or None if the operation is primitive whatever its arguments. Computed once for each operation.
    """
    names = out_names(operation)
    if names:
        formula = _of_functional_variant(operation)
        return formula and into_out(formula, names)
    formula = _FORMULAS.get(operation) or _FORMULAS.get(operation.overloadpacket)
    if formula:
        return formula
    if schema_of(operation).name.endswith("_"):
        formula = _of_functional_variant(operation)
        return formula and in_place(formula)
    if is_composite(operation):
        # Autograd takes such operations apart, except in inference mode and inside other decompositions.
        return operation.decompose
    return None


def _of_functional_variant(operation: OpOverload) -> Callable[..., Any] | None:
    """The decomposition of the operation that computes what an in-place or ``out=`` operation writes."""
    base = functional_variant(operation)
    return decomposition(base) if base else None


def composites() -> tuple[str, ...]:
    """The composite operations there are formulas for, sorted: ``"aten.gelu: activations"`` and so on."""
    return tuple(
        sorted(
            f"{operation}: {subject.__name__.rpartition('.')[2]}"
            for subject in _SUBJECTS
            for operation in subject.FORMULAS
        )
    )
