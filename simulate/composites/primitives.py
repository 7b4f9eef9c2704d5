"""Composite ATen operations, decomposed into primitive ones, so that a simulation can round each step.

An operation is primitive if hardware or a mathematical library would compute it at once and round once:

- arithmetic (add, sub, mul, div, reciprocal, remainder), comparison, selection, moves, conversions, random draws;
- elementary and special functions (exp, expm1, log, log1p, sqrt, rsqrt, pow, tanh, sigmoid, erf, hypot, sinc, xlogy,
  logaddexp, lgamma, Bessel functions, ...), computed in the carrier;
- contractions and accumulations (sum, prod, mm, bmm, convolution without bias, embedding sums, interpolation, scatter
  with addition);
- one arithmetic operation followed by a selection (leaky_relu, softshrink, threshold_backward, ...).

Left whole although they are algorithms of many steps: Fourier transforms, cumulative sums and products, linear algebra
(solvers and factorizations). Simulations name the algorithms that ran (:data:`roundoff.simulate.aten.sums.ALGORITHMS`).

Left whole although they are composite: multi_margin_loss, multilabel_margin_loss, ctc_loss, averages inside embedding
bags and scattered reductions, the GRU cell and the recurrent layers of CUDA, attention with dropout or with fewer heads
of keys, products of complex numbers, quantized and sparse operations.

Everything else is in the tables of the sibling modules, or is made of operations that are (in-place, ``out=``
and foreach variants).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..aten.kernels import is_composite
from ..aten.schemas import out_names, schema_of
from . import (
    activations,
    attention,
    batch_norm,
    lists,
    losses,
    normalisation,
    pooling,
    recurrent,
    reductions,
    scaled_products,
    transformer,
)

_aten = torch.ops.aten


def functional_variant(operation: OpOverload) -> OpOverload | None:
    """The operation that computes and returns the result that an in-place or ``out=`` operation writes."""
    schema = schema_of(operation)
    parameters = [(argument.name, str(argument.type)) for argument in schema.arguments if not argument.is_out]
    packet = getattr(_aten, schema.name.removeprefix("aten::").removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        candidate: OpOverload = getattr(packet, overload)
        arguments = schema_of(candidate).arguments
        if candidate is not operation and [(argument.name, str(argument.type)) for argument in arguments] == parameters:
            return candidate
    return None


def in_place(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Computes by ``formula`` and copies into the first argument."""

    def written(target: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = formula(target, *args, **kwargs)
        if result is NotImplemented or result.dtype != target.dtype:
            return NotImplemented  # The operation itself raises the error, or converts.
        return target.copy_(result)

    return written


def into_out(formula: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Computes by ``formula`` and copies into the keyword arguments ``names``."""

    def written(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names]
        result = formula(*args, **kwargs)
        if result is NotImplemented:
            return result
        if isinstance(targets[0], (list, tuple)):
            for target, value in zip(targets[0], result, strict=True):
                _fill(target, value)
            return None
        for target, value in zip(targets, result if isinstance(result, tuple) else (result,), strict=True):
            if value is not None:
                _fill(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return written


def _fill(target: Tensor, value: Tensor) -> None:
    if target.shape != value.shape:
        target.resize_(value.shape)
    target.copy_(value)


_SUBJECTS = (
    activations, attention, batch_norm, lists, losses, normalisation, pooling, recurrent, reductions,
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
    """The decomposition of the operation that computes the result of an in-place or ``out=`` operation."""
    base = functional_variant(operation)
    return decomposition(base) if base else None
