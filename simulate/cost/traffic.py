"""Counts the memory traffic of an operation: the tensors that it reads and writes, with their numbers of elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from ..aten.outputs import outputs, views_among, writes_of
from ..aten.schemas import argument_names, out_names
from ..aten.tables import EMPTY, WITHOUT_NUMBERS, plain_name
from ..aten.wrappers import has_own_memory

_SELECTING = {"embedding": "weight", "index": "self", "index_select": "self", "gather": "self", "take": "self",
             "masked_select": "self"}  # fmt: skip
"""Operations that read from one argument the same number of elements as they return."""

_PLACING = {"index_put": "values", "_index_put_impl": "values", "index_copy": "source", "scatter": "src",
            "scatter_add": "src", "index_add": "source"}  # fmt: skip
"""In-place operations that write the same number of elements as one argument has, if it is a tensor."""

_OVERWRITING = frozenset(
    [
        "copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential", "log_normal", "cauchy",
        "geometric", "set", "resize", "resize_as", "index_put", "_index_put_impl", "index_copy", "scatter",
        "index_fill", "fill_diagonal",
    ]
)  # fmt: skip
"""In-place operations that do not read the values that they overwrite."""


class TensorSlice(NamedTuple):
    """Some elements of a tensor."""

    tensor: torch.Tensor
    elements: int


class Traffic(NamedTuple):
    """The memory traffic of one call of an operation."""

    read: list[TensorSlice]
    written: list[TensorSlice]
    results: list[torch.Tensor]
    """The tensors that hold its computed values, or new memory: the tensors that it returns or writes to."""


class _OperationTraits(NamedTuple):
    """The properties of an operation that do not depend on its arguments."""

    name: str
    moves_data: bool
    """Whether it reads or writes values: views and new memory without values do not."""
    returns_new: bool
    viewing: tuple[bool, ...]
    written: frozenset[str]
    unread: frozenset[str]


@cache
def _traits(operation: OpOverload) -> _OperationTraits:
    traits = outputs(operation)
    packet = operation.overloadpacket
    name = plain_name(packet.__name__)
    written = frozenset(argument for _, argument in writes_of(operation))
    returns = operation._schema.returns  # noqa: SLF001  the only access there is
    viewing = views_among(operation)
    returns_new = traits.lifts or (bool(returns) and not all(viewing))
    moves_data = (returns_new and packet not in EMPTY) or bool(written) or not returns_any_tensor(operation)
    unread = frozenset(out_names(operation)) | (written if name in _OVERWRITING else frozenset())
    if packet in WITHOUT_NUMBERS or name.endswith("_like") or name.startswith("new_"):  # they read only shapes
        unread |= frozenset(argument_names(operation))
    moves_data = moves_data and not traits.lifts  # lifting returns its argument, in existing memory
    return _OperationTraits(name, moves_data, returns_new, viewing, written, unread)


def returns_any_tensor(operation: OpOverload) -> bool:
    """Whether a result is a tensor. An operation without one may also read, as ``equal`` reads two tensors."""
    return any("Tensor" in str(value.type) for value in operation._schema.returns)  # noqa: SLF001  as above


def traffic_of(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Traffic:
    """Returns the memory that a call reads and writes, each element once.

    Args:
        operation: an ATen operation.
        args: its arguments, before operands are rounded.
        kwargs: its arguments by name.
        result: its return value.
    """
    traits = _traits(operation)
    arguments = dict(zip(argument_names(operation), args, strict=False)) | dict(kwargs)
    returned = list(result) if isinstance(result, (list, tuple)) else [result]
    viewing = traits.viewing if len(traits.viewing) == len(returned) else (not traits.returns_new,) * len(returned)
    new = [x for value, views in zip(returned, viewing, strict=True) if not views for x in _tensors_in(value)]
    if traits.returns_new and not new:  # a returned argument
        new = _tensors_in(returned)
    targets = [x for name in traits.written for x in _tensors_in(arguments.get(name))]
    if not traits.moves_data:
        return Traffic([], [], [*new, *targets])
    produced = sum(x.numel() for x in new)
    read = []
    for name, value in arguments.items():
        if name not in traits.unread:
            selects = _SELECTING.get(traits.name) == name
            read += [
                TensorSlice(x, min(elements_of(x), produced) if selects else elements_of(x)) for x in _tensors_in(value)
            ]
    source = arguments.get(_PLACING.get(traits.name, ""))
    written = [TensorSlice(x, x.numel()) for x in new]
    for x in targets:
        count = source.numel() if isinstance(source, torch.Tensor) else None
        if traits.name in ("index_put", "_index_put_impl"):
            count = _count_indexed(x, arguments["indices"])
        written.append(TensorSlice(x, elements_of(x) if count is None else min(count, elements_of(x))))
    return Traffic(read, written, [*new, *targets])


def elements_of(x: torch.Tensor) -> int:
    """Counts the distinct elements of memory in a tensor: an expanded axis repeats the same elements."""
    return math.prod(size for size, step in zip(x.shape, x.stride(), strict=True) if step != 0 or size == 0)


def _count_indexed(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int | None:
    """Counts the elements of ``x`` that are written at these indices; None if a mask selects them."""
    index_tensors = [index for index in indices if index is not None]
    if not index_tensors or any(index.dtype in (torch.bool, torch.uint8) for index in index_tensors):
        return None
    positions = math.prod(torch.broadcast_shapes(*(index.shape for index in index_tensors)))  # type: ignore[no-untyped-call]
    unindexed = [size for axis, size in enumerate(x.shape) if axis >= len(indices) or indices[axis] is None]
    return positions * math.prod(unindexed)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(value) if has_own_memory(x)]
