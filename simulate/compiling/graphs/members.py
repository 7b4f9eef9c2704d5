"""From the graph of one member's step to the graph of all members' steps at once: every tensor with one more axis.

Operations on single elements, moves and reductions get the axis in front; matrix products of all members are one
batched product; roundings take each member's format. Whatever else there is, is computed member by member. The bits of
a member are the same as in a separate program: none of the kernels called here sums in another order for more members.
On CUDA, reductions do, and are computed member by member.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map

from ....formats import BlockFloatFormat, Format, MXFormat, Rounding
from ...aten.tables import POINTWISE
from .member_products import MATRIX_PRODUCTS, multiply

_aten = torch.ops.aten


@final
@dataclass(frozen=True)
class _Stacked:
    """A tensor of every member: (members, ...)."""

    tensor: torch.Tensor

    @property
    def rank(self) -> int:
        """The number of axes of one member's tensor."""
        return self.tensor.dim() - 1

    @property
    def members(self) -> int:
        return len(self.tensor)

    def with_rank(self, rank: int) -> torch.Tensor:
        """The tensor with axes of length 1 after the members', as broadcasting would put them in front."""
        t = self.tensor
        return t.view(len(t), *[1] * (rank - self.rank), *t.shape[1:]) if rank > self.rank else t


def stack_members(graph: GraphModule, inputs: Sequence[torch.Tensor]) -> GraphModule:
    """The graph of all members.

    Args:
        graph: graph of one member; it ends by writing to inputs, and every input is a member's own.
        inputs: stand-ins for the inputs of the new graph, (members, ...).
    """

    def run(*stacked_inputs: torch.Tensor) -> list[torch.Tensor]:
        values: dict[Node, Any] = {}  # a tensor that is not _Stacked is the same for all members
        waiting = iter(stacked_inputs)
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = _Stacked(next(waiting))
            elif node.op == "output":
                results = tree_flatten(torch.fx.node.map_arg(node.args[0], values.__getitem__))[0]
                return [_for_members(result, len(stacked_inputs[0])) for result in results if result is not None]
            elif node.op == "get_attr":  # a constant tensor, shared by all members
                values[node] = getattr(graph, node.target)
            else:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = _call_members(node, args, kwargs)
        raise AssertionError("a graph ends with its output")

    stacked = make_fx(run)(*inputs)
    stacked.graph.eliminate_dead_code()
    stacked.recompile()
    return stacked


def _is_leaf(x: object) -> bool:
    return isinstance(x, (_Stacked, torch.Tensor))


def _for_members(x: Any, members: int) -> torch.Tensor:
    """Returns the tensors of all members, (members, ...); expands a tensor that all members share."""
    tensor: torch.Tensor = x.tensor if isinstance(x, _Stacked) else x.expand(members, *x.shape)
    return tensor


def _call_members(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an operation for all members: at once where each member keeps its bits, else one by one."""
    stacked = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, _Stacked)]
    target: Any = node.target
    if not stacked or target is operator.getitem:  # one of the results of a call, which are already stacked
        return target(*args, **kwargs)
    name = target.overloadpacket.__name__
    if target in MATRIX_PRODUCTS and not kwargs:
        members = stacked[0].members
        product = multiply(node, [x if x is None else _for_members(x, members) for x in args])
        return _one_by_one(target, members, args, kwargs) if product is None else _Stacked(product)
    # CUDA's kernels divide a reduction among threads by its total size, so more members would change the order of sums.
    separate = name in _REDUCING and stacked[0].tensor.is_cuda
    if target in _OVERLOAD_RULES and not separate:
        return _result(_OVERLOAD_RULES[target](target, stacked[0].members, *args, **kwargs))
    if name in POINTWISE:
        return _Stacked(_pointwise(node, target, args, kwargs))
    if name in _RULES and not separate:
        return _result(_RULES[name](target, stacked[0].members, *args, **kwargs))
    return _one_by_one(target, stacked[0].members, args, kwargs)


def _round_members(target: Any, members: int, x: _Stacked, format: str, rounding: str, *rest: Any) -> Any:
    """Rounds the tensors of all members at once where no block has elements of several rows, else one by one."""
    fmt = Format.parse(format)
    blocks_of_rows = isinstance(fmt, (MXFormat, BlockFloatFormat)) and fmt.open_block is not None and x.rank > 0
    # Every member draws its own random bits.
    if rounding != Rounding.STOCHASTIC and (fmt.elementwise or blocks_of_rows):
        return _Stacked(target(x.tensor, format, rounding, *rest))
    return _one_by_one(target, members, (x, format, rounding, *rest), {})


def _result(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_result(part) for part in x]
    return _Stacked(x) if isinstance(x, torch.Tensor) else x


def _pointwise(node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    operands = [x for x in args if _is_leaf(x)]
    rank = max(x.rank if isinstance(x, _Stacked) else x.dim() for x in operands)
    numbers = [x.meta["val"] for x in node.args if isinstance(x, Node) and x.meta["val"].dtype is not torch.bool]
    # A tensor without axes does not decide the type of a result; with the members' axis it would.
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    dtype = elementwise_dtypes(*numbers, type_promotion_kind=kind)[1] if len(numbers) > 1 else None

    def aligned(x: Any) -> Any:
        if not _is_leaf(x):
            return x
        t = x.with_rank(rank) if isinstance(x, _Stacked) else x
        return t.to(dtype) if dtype is not None and t.dtype not in (dtype, torch.bool) else t

    result: torch.Tensor = target(*map(aligned, args), **{key: aligned(value) for key, value in kwargs.items()})
    return result


def _one_by_one(target: Any, members: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call_member(i: int) -> Any:
        def pick(x: Any) -> Any:
            # A copy, for its place in memory: see member_products.py.
            return x.tensor.select(0, i).clone() if isinstance(x, _Stacked) else x

        return target(*tree_map(pick, args), **tree_map(pick, kwargs))

    results = [call_member(i) for i in range(members)]
    if isinstance(results[0], torch.Tensor):
        return _Stacked(torch.stack(results))
    return [_Stacked(torch.stack(parts)) for parts in zip(*results, strict=True)]


def _axis(d: int, rank: int) -> int:
    """An axis of a member, after the axis of the members."""
    return (d + rank if d < 0 else d) + 1


def _along(target: Any, _members: int, x: _Stacked, dim: int = 0, *rest: Any, **kwargs: Any) -> Any:
    """Calls an operation with an axis as its first parameter."""
    return target(x.tensor, _axis(dim, x.rank), *rest, **kwargs)


def _split(target: Any, _members: int, x: _Stacked, sizes: Any, dim: int = 0) -> Any:
    return target(x.tensor, sizes, _axis(dim, x.rank))


def _argmax(_target: Any, members: int, x: _Stacked, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Returns the place of the maximum along an axis, or over all of a member's tensor."""
    if dim is None:
        return x.tensor.reshape(members, -1).argmax(1)
    return x.tensor.argmax(_axis(dim, x.rank), keepdim)


def _reduction(target: Any, _members: int, x: _Stacked, dims: Any = None, *rest: Any, **kwargs: Any) -> torch.Tensor:
    """Reduces each member's tensor over ``dims``, or over all of its axes."""
    axes = [_axis(d, x.rank) for d in dims] if dims else list(range(1, x.rank + 1))
    if not axes:  # a member's tensor is one element; an empty list would also reduce the axis of members
        return target(x.tensor.unsqueeze(1), [1], *rest, **kwargs)  # type: ignore[no-any-return]
    return target(x.tensor, axes, *rest, **kwargs)  # type: ignore[no-any-return]


_OVER_ALL = {_aten.sum.default: _aten.sum.dim_IntList, _aten.mean.default: _aten.mean.dim}


def _sum(target: Any, members: int, x: _Stacked, *rest: Any, **kwargs: Any) -> Any:
    """``sum`` and ``mean``."""
    if torch.get_num_threads() > 1:  # threads share one long sum, and so change its order, but not many short ones
        return _one_by_one(target, members, (x, *rest), kwargs)
    if target in _OVER_ALL:
        return _reduction(_OVER_ALL[target], members, x, None, False, **kwargs)
    return _reduction(target, members, x, *rest, **kwargs)


def _view(target: Any, members: int, x: _Stacked, shape: Any) -> torch.Tensor:
    if isinstance(shape, torch.dtype):
        return target(x.tensor, shape)  # type: ignore[no-any-return]
    return x.tensor.reshape(members, *shape)  # a copy where the axis of members prevents a view


def _expand(_target: Any, members: int, x: _Stacked, shape: Sequence[int], **_: Any) -> torch.Tensor:
    return x.with_rank(len(shape)).expand(members, *shape)


def _permute(_target: Any, _members: int, x: _Stacked, dims: Sequence[int]) -> torch.Tensor:
    return x.tensor.permute(0, *(_axis(d, x.rank) for d in dims))


def _unsqueeze(_target: Any, _members: int, x: _Stacked, dim: int) -> torch.Tensor:
    return x.tensor.unsqueeze(_axis(dim, x.rank + 1))


def _cat(target: Any, members: int, tensors: Sequence[Any], dim: int = 0) -> torch.Tensor:
    parts = [_for_members(x, members) for x in tensors]
    result: torch.Tensor = target(parts, _axis(dim, parts[0].dim() - 1))
    return result


def _at_index(target: Any, members: int, x: Any, dim: int, *operands: Any) -> torch.Tensor:
    """``gather`` and ``scatter``."""
    stacked, *rest = [_for_members(operand, members) if _is_leaf(operand) else operand for operand in (x, *operands)]
    result: torch.Tensor = target(stacked, _axis(dim, stacked.dim() - 1), *rest)
    return result


def _scattered(target: Any, members: int, x: Any, source: Any, dim: int = 0, *rest: Any) -> torch.Tensor:
    """``select_scatter`` and ``slice_scatter``."""
    stacked = _for_members(x, members)
    result: torch.Tensor = target(stacked, _for_members(source, members), _axis(dim, stacked.dim() - 1), *rest)
    return result


def _round_float(target: Any, members: int, x: Any, parameters: Any, by_addition: bool) -> torch.Tensor:
    result: torch.Tensor = target(_for_members(x, members), _for_members(parameters, members), by_addition)
    return result


def _write_members(target: Any, members: int, x: _Stacked, source: Any) -> None:
    target(x.tensor, _for_members(source, members))


_RULES: dict[str, Callable[..., Any]] = {
    "view": _view, "_unsafe_view": _view, "expand": _expand, "permute": _permute, "unsqueeze": _unsqueeze,
    "slice": _along, "select": _along, "split": _split, "split_with_sizes": _split,
    "cat": _cat, "gather": _at_index, "scatter": _at_index,
    "select_scatter": _scattered, "slice_scatter": _scattered,
    "amax": _reduction, "amin": _reduction, "sum": _sum, "mean": _sum,
    "round_float": _round_float, "copy_": _write_members,
}  # fmt: skip

_REDUCING = {"amax", "amin", "argmax", "max", "mean", "min", "sum"}

_OVERLOAD_RULES: dict[Any, Callable[..., Any]] = {
    _aten.min.dim: _along, _aten.max.dim: _along, _aten.argmax.default: _argmax,
    torch.ops.roundoff.round.default: _round_members,
}  # fmt: skip
