"""The ATen operations that are contractions or sums, and how each becomes products of matrices or sums of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ..aten.schemas import written_arguments
from . import convolutions
from .arithmetic import RoundedSums, ShapesUnfitError, gapless
from .exact_sums import ExactSums
from .fused_sums import FusedSums

_aten = torch.ops.aten


class NamedCall(NamedTuple):
    """One call of an operation, its arguments by name."""

    named: dict[str, Any]
    written: list[torch.Tensor]
    """The tensors to be overwritten: ``out=``, or the in-place argument."""
    dtype: torch.dtype | None
    """The dtype of all the numbers, None if they differ."""


class Handler(NamedTuple):
    """The implementation of an operation, and its arguments."""

    compute: Callable[..., Any]
    """Takes the arithmetic and the operation's arguments by name; returns new tensors."""
    positions: tuple[tuple[str, Any], ...]
    """Name and default of each argument."""
    written: tuple[str, ...]
    """The overwritten arguments."""
    in_place: bool
    """The overwritten one is an operand."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NamedCall:
        """The arguments by name, as the operation's schema has them."""
        named = {
            name: args[i] if i < len(args) else kwargs.get(name, default)
            for i, (name, default) in enumerate(self.positions)
        }
        written = [named[name] for name in self.written]
        if not self.in_place:  # ``out=`` is not an operand.
            for name in self.written:
                del named[name]
        tensors = [value for value in named.values() if isinstance(value, torch.Tensor)]
        dtypes = {tensor.dtype for tensor in tensors if tensor is not named.get("offs")}  # offs are integers.
        if named.get("dtype") is not None:
            dtypes = {named["dtype"]}
        dense = all(tensor.layout is torch.strided and not tensor.is_nested for tensor in tensors)
        dtype = dtypes.pop() if len(dtypes) == 1 and dense else None
        return NamedCall(named, written, dtype if all(tensor.dtype == dtype for tensor in written) else None)

    def run(self, arithmetic: RoundedSums | ExactSums | FusedSums, call: NamedCall) -> Any:
        """Runs the operation; returns its results."""
        prepared, named = arithmetic.prepare(call.named)
        result = self.compute(prepared, **named)
        if not call.written:
            return result
        results = result if isinstance(result, tuple) else (result,)
        for target, value in zip(call.written, results, strict=True):
            if value is None:  # A gradient that the output mask leaves out.
                continue
            if not self.in_place and target.shape != value.shape:
                target.resize_(value.shape)
            target.copy_(value)
        return tuple(call.written) if isinstance(result, tuple) else call.written[0]


def _add_scaled(
    arithmetic: RoundedSums, product: torch.Tensor, addend: torch.Tensor, beta: complex, alpha: complex
) -> torch.Tensor:
    """``beta * addend + alpha * product``, one rounded addition, scaled in the carrier; no addend if beta is 0."""
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return arithmetic.add(product, addend if beta == 1 else addend * beta)


def _mm(arithmetic: RoundedSums, self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return gapless(arithmetic.contract(self[None], mat2[None])[0])


def _bmm(arithmetic: RoundedSums, self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return gapless(arithmetic.contract(self, mat2))


def _mv(arithmetic: RoundedSums, self: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
    return _mm(arithmetic, self, vec[:, None])[:, 0]


def _dot(arithmetic: RoundedSums, self: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return _mm(arithmetic, self[None], tensor[:, None])[0, 0].clone()  # Not a view.


def _vdot(arithmetic: RoundedSums, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return _dot(arithmetic, self, other)  # carriers are real


def _addmm(
    arithmetic: RoundedSums, self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, beta: complex, alpha: complex
) -> torch.Tensor:
    return _add_scaled(arithmetic, _mm(arithmetic, mat1, mat2), self, beta, alpha)


def _addmv(
    arithmetic: RoundedSums, self: torch.Tensor, mat: torch.Tensor, vec: torch.Tensor, beta: complex, alpha: complex
) -> torch.Tensor:
    return _add_scaled(arithmetic, _mv(arithmetic, mat, vec), self, beta, alpha)


def _baddbmm(
    arithmetic: RoundedSums, self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, beta: complex,
    alpha: complex,
) -> torch.Tensor:  # fmt: skip
    return _add_scaled(arithmetic, _bmm(arithmetic, batch1, batch2), self, beta, alpha)


def _addbmm(
    arithmetic: RoundedSums, self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, beta: complex,
    alpha: complex,
) -> torch.Tensor:  # fmt: skip
    if batch1.dim() != 3 or batch2.dim() != 3 or batch1.shape[0] != batch2.shape[0]:
        raise ShapesUnfitError
    # One sum over batch and k, batch by batch.
    a = batch1.transpose(0, 1).flatten(1)
    return _add_scaled(arithmetic, _mm(arithmetic, a, batch2.flatten(0, 1)), self, beta, alpha)


def _linear(
    arithmetic: RoundedSums,
    input: torch.Tensor,  # noqa: A002  the name in the schema
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    if input.dim() == 0 or weight.dim() not in (1, 2) or input.shape[-1] != weight.shape[-1]:
        raise ShapesUnfitError
    matrix = weight if weight.dim() == 2 else weight[None]
    # Without elements, -1 would be ambiguous.
    rows = input.reshape(-1, input.shape[-1]) if input.shape[-1] else input.new_zeros(prod(input.shape[:-1]), 0)
    result = _mm(arithmetic, rows, matrix.mT).view(*input.shape[:-1], matrix.shape[0])
    result = result if weight.dim() == 2 else result[..., 0]
    return result if bias is None else arithmetic.add(result, bias)


def _matmul(arithmetic: RoundedSums, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if self.dim() == 0 or other.dim() == 0:
        raise ShapesUnfitError
    a = self if self.dim() > 1 else self[None]
    b = other if other.dim() > 1 else other[:, None]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    shape = (*batch, a.shape[-2], b.shape[-1])
    a, b = (x.expand(*batch, *x.shape[-2:]).reshape(prod(batch), *x.shape[-2:]) for x in (a, b))
    result = arithmetic.contract(a, b).reshape(shape)
    result = result if other.dim() > 1 else result[..., 0]
    return gapless(result if self.dim() > 1 else result.squeeze(-1 if other.dim() == 1 else -2))


def _grouped_mm(
    arithmetic: RoundedSums, self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor | None,
    bias: torch.Tensor | None, out_dtype: torch.dtype | None,
) -> torch.Tensor:  # fmt: skip
    """Groups of rows (or columns) with a matrix each, or parts of the sum; groups end where ``offs`` says."""
    if bias is not None or out_dtype not in (None, self.dtype) or (offs is None) != (self.dim() == mat2.dim() == 3):
        raise ShapesUnfitError
    if offs is None:
        return _bmm(arithmetic, self, mat2)
    ends = offs.tolist()
    cuts = list(pairwise([0, *ends]))
    if self.dim() == 2 and mat2.dim() == 2:  # Parts of the sum.
        return torch.stack([_mm(arithmetic, self[:, start:end], mat2[start:end]) for start, end in cuts])
    if self.dim() == 2:  # Groups of rows; zeros follow the last.
        parts = [_mm(arithmetic, self[start:end], mat2[i]) for i, (start, end) in enumerate(cuts)]
        parts.append(self.new_zeros(len(self) - ends[-1], mat2.shape[-1]))
        return torch.cat(parts)
    parts = [_mm(arithmetic, self[i], mat2[:, start:end]) for i, (start, end) in enumerate(cuts)]
    parts.append(self.new_zeros(self.shape[1], mat2.shape[1] - ends[-1]))
    return torch.cat(parts, 1)


def _sum(
    arithmetic: RoundedSums, self: torch.Tensor, dtype: torch.dtype | None, dim: Sequence[int] | None = None,
    keepdim: bool = False,
) -> torch.Tensor:  # fmt: skip
    x = self if dtype is None else self.to(dtype)
    rank = x.dim()
    if not all(-max(rank, 1) <= d < max(rank, 1) for d in dim or ()):
        raise ShapesUnfitError
    summed = sorted({d % rank for d in dim}) if dim and rank else list(range(rank))  # No dimensions: all.
    if dim and len(summed) != len(dim) and rank:  # A dimension was given twice.
        raise ShapesUnfitError
    remaining = [d for d in range(rank) if d not in summed]
    terms = prod(x.shape[d] for d in summed)
    columns = x.permute([*summed, *remaining]).reshape(terms, prod(x.shape[d] for d in remaining))
    result = arithmetic.total(columns)
    shape = [1 if d in summed else size for d, size in enumerate(x.shape) if keepdim or d not in summed]
    return result.view(shape)


def _mean(
    arithmetic: RoundedSums, self: torch.Tensor, dtype: torch.dtype | None, dim: Sequence[int] | None = None,
    keepdim: bool = False,
) -> torch.Tensor:  # fmt: skip
    total = _sum(arithmetic, self, dtype, dim, keepdim)
    return total / prod(self.shape[d] for d in (dim or range(self.dim())) if self.dim())


_COMPUTE: dict[Any, Callable[..., Any]] = {
    _aten.mm: _mm, _aten.bmm: _bmm, _aten.mv: _mv, _aten.dot: _dot, _aten.vdot: _vdot,
    _aten.addmm: _addmm, _aten.addmm_: _addmm, _aten.addmv: _addmv, _aten.addmv_: _addmv,
    _aten.baddbmm: _baddbmm, _aten.baddbmm_: _baddbmm, _aten.addbmm: _addbmm, _aten.addbmm_: _addbmm,
    _aten.linear: _linear, _aten.matmul: _matmul, _aten.sum: _sum, _aten.mean: _mean,
    _aten.convolution: convolutions.forward, _aten.convolution_backward: convolutions.backward,
    _aten._grouped_mm: _grouped_mm,  # noqa: SLF001  its name
}  # fmt: skip


def is_plain_sum(func: OpOverload) -> bool:
    """Whether an operation only adds elements, which no matrix unit does."""
    return func.overloadpacket in (_aten.sum, _aten.mean)


# Overloads with another result dtype than the operands', sums of Python lists, and of named dimensions.
_OTHER_OVERLOADS = ("dtype", "int", "float", "complex", "bool", "dim_DimnameList", "DimnameList_out", "names_dim")


@cache
def handler(func: OpOverload) -> Handler | None:
    """Returns the handler of an operation; None if the operation is not known."""
    compute = _COMPUTE.get(func.overloadpacket)
    if compute is None:
        return None
    schema = func._schema  # noqa: SLF001  the only access there is
    needed = [argument.name for argument in schema.arguments if not argument.has_default_value()]
    if schema.overload_name in _OTHER_OVERLOADS or "out_dtype" in needed:
        return None
    written = tuple(name for _, name in written_arguments(func))
    positions = tuple((argument.name, argument.default_value) for argument in schema.arguments)
    return Handler(compute, positions, written, in_place="self" in written)
