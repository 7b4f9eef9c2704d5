"""A graph that writes only to inputs, at the end, and keeps the memory layout of the original graph's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map_only

from ....formats import FormatError
from ...aten.outputs import outputs
from ...aten.tables import UNMARKED_WRITES, is_contraction
from ...numbers.kernel_calls import call_kernel
from ..refusals import OtherBitsError
from .own_memory import chain_of_views

_aten = torch.ops.aten
_VIEWS = {
    _aten.unsafe_split.Tensor: _aten.split.Tensor,
    _aten.unsafe_split_with_sizes.default: _aten.split_with_sizes.default,
}
"""Views that functionalization takes for new tensors: writes to them would be lost."""


def functional(graph: GraphModule) -> Callable[..., Any]:
    """The traced graph of a step as a function that writes only to its inputs, at the end.

    Functions in place become others that return new tensors. Where their memory layout would differ from the tensor
    that was written to, or where another operation replaces the traced one, results keep the original layout.

    Raises:
        OtherBitsError: when called: a product of matrices is written where it would be computed in another order.
    """
    return torch.func.functionalize(_Replay(graph).run, remove="mutations")


@final
class _Replay(Interpreter):
    """Runs a traced graph again."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # messages of errors stay as they are

    def run_node(self, n: Node) -> Any:
        """Runs one operation."""
        target: Any = n.target
        if n.op != "call_function" or not isinstance(target, torch._ops.OpOverload):  # noqa: SLF001  the only name there is
            return super().run_node(n)
        written = [n.args[i] if i < len(n.args) else n.kwargs.get(name) for i, name in outputs(target).written]
        nodes = [x for x in tree_leaves(written) if isinstance(x, Node)]
        if any(map(self._is_foreign, nodes)):
            raise FormatError(
                f"{target} writes to memory that is not PyTorch's (a NumPy array, a buffer), as no compiled step can;"
                " pass it as an argument, torch.from_numpy(array), or write to a copy, torch.tensor(array)"
            )
        if nodes and target is not _aten.copy_.default:
            return self._writing(n, nodes)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if target in _VIEWS:
            return _VIEWS[target](*args, **kwargs)
        if target is _aten.bernoulli.p:
            # After functionalization, bernoulli_ also has this name, and its operand gives the layout of the result.
            # The result of this operation is always contiguous.
            args = (args[0].new_empty(args[0].shape), *args[1:])
        # PyTorch may have another formula for an operation where transforms of functions are at work.
        has: Any = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001  the only access there is
        if has(target.name(), "FuncTorchDynamicLayerFrontMode"):  # type: ignore[no-untyped-call]
            return call_kernel(target, args, kwargs, lambda _: None)
        result = target(*args, **kwargs)
        return _laid_as(n.meta.get("val"), result) if outputs(target).results else result  # a view has none

    def _writing(self, node: Node, written: Sequence[Node]) -> Any:
        """Runs an operation that writes to arguments, on copies of these, and moves their new contents.

        Moved tensors keep their layout; the results of a function that is not in place would lie as it chooses.
        """
        name = str(node.target.overloadpacket.__name__)  # type: ignore[union-attr]
        if is_contraction(name) and not all(self.env[x].is_contiguous() for x in written):
            raise OtherBitsError(
                f"{node.target} writes to a tensor that is not contiguous, where libraries sum in another order than in"
                " new memory"
            )
        if node.target.overloadpacket in UNMARKED_WRITES:  # type: ignore[union-attr]
            # Runs a batch normalisation, with writes to running statistics outside of its schema, as a function of
            # these. A compiler that does not know of the writes would read the statistics before them.
            if node.target is not _aten.native_batch_norm.default or len(written) != 2:
                raise OtherBitsError(f"{node.target} writes to running statistics, which the compiler would not see")
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            *results, mean, variance = _aten._native_batch_norm_legit_functional(*args, **kwargs)  # noqa: SLF001  its only name
            for x, new in zip(written, (mean, variance), strict=True):
                self.env[x].copy_(new)
            return tuple(results)
        copies = {x: (y := self.env[x]).new_empty_strided(y.shape, y.stride()).copy_(y) for x in written}
        args, kwargs = map_arg((node.args, node.kwargs), lambda x: copies.get(x, self.env[x]))
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        for x, copy in copies.items():
            self.env[x].copy_(copy)
        originals = {id(copy): self.env[x] for x, copy in copies.items()}
        return tree_map_only(torch.Tensor, lambda x: originals.get(id(x), x), result)

    def _is_foreign(self, node: Node) -> bool:
        """Whether a tensor uses memory that is not PyTorch's; a traced step has a copy of it."""
        lifted = chain_of_views(node)[0]
        if lifted.target is not _aten.lift_fresh_copy.default:
            return False
        data: Any = lifted.args[0]
        return data.op == "get_attr" and not self.fetch_attr(data.target).untyped_storage().resizable()


def _laid_as(traced: Any, result: Any) -> Any:
    """Results with the memory layout of the traced ones."""
    if isinstance(result, (list, tuple)):
        parts = [_laid_as(a, b) for a, b in zip(traced, result, strict=True)]
        return type(result)(parts) if type(result) in (list, tuple) else result
    if not isinstance(result, torch.Tensor) or result.stride() == traced.stride():
        return result
    return result.new_empty_strided(traced.shape, traced.stride()).copy_(result)
