"""Weights, distinguished from data by marks on their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, final

import torch
from torch._C import _functorch
from torch._ops import OpOverload
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from ..aten.outputs import outputs, writes_of
from ..aten.tables import MOVES, is_contraction, plain_name
from ..marks.table import Mark, Marks

_MATRIX = 2  # axes; vectors are biases, means and scales
_NEVER_WEIGHTS = ("embedding", "embedding_bag")
"""Operations on weights that give activations: tokens are looked up in a table."""
_DRAWING = frozenset(
    [
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "rand", "rand_like", "randint",
        "randint_like", "randn", "randn_like", "random", "uniform",
    ]
)  # fmt: skip
"""Operations that draw random numbers."""
_CASTING = ("_to_copy", "contiguous", "to")
_REPLACING = ("copy", "fill", "zero")
"""Operations, without leading ``_foreach_`` and trailing ``_``, that do not read the tensors they write to."""


class Certainty(IntEnum):
    """The certainty that a tensor is a weight; lower values are surer."""

    PARAMETER = 0
    """A registered parameter, or the result of moves, casts or elementwise work on only such."""
    LEAF = 1
    """Another leaf that requires a gradient, moved or cast; it may also be an input with a requested gradient."""
    BUFFER = 2
    """A matrix that a module keeps in its state, such as weights that are not trained."""
    PERHAPS = 3
    """A part of a weight found by index (an expert's weight), the product of two parameters (a low-rank correction), or
    a weight with noise of its shape (a noisy layer). Multiplied with a surer weight it counts as an activation (a
    token's embedding)."""


@final
class Weights:
    """Remembers which memory holds weights.

    A weight is a parameter or a matrix among the persistent buffers of a module that was called, frozen or not, or a
    leaf that requires a gradient; and values that the forward pass computes only from such: casts, views,
    concatenations, averages, elementwise work (from leaves other than parameters: moves and casts), and with random
    numbers. Values computed with data, or overwritten with data, do not count.

    Args:
        marks: the table of marks of the simulation.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def certainty(self, x: torch.Tensor) -> Certainty | None:
        """Returns the certainty that ``x`` is a weight; None if it is data."""
        self._look_at(x)
        bits = self._marks.of(x)
        return next((certainty for certainty in Certainty if bits & _mark_of(certainty)), None)  # the surest first

    def is_parameter(self, x: torch.Tensor) -> bool:
        """Whether ``x`` is a parameter, or was made only of parameters."""
        self._look_at(x)
        return bool(self._marks.of(x) & (Mark.PARAMETER | Mark.LEAF))

    def _look_at(self, x: torch.Tensor) -> None:
        """Remembers ``x`` if autograd or its class says that it is a parameter."""
        base = x if x._base is None else x._base  # noqa: SLF001  the only access there is
        # Sharded parameters are gathered into a buffer, and the leaf that autograd knows is a part of it.
        # The backward pass gets it as another tensor of the same memory.
        if isinstance(base, torch.nn.Parameter):
            self._marks.add(x, Mark.PARAMETER)
        elif base.is_leaf and (base.requires_grad or x.requires_grad):
            self._add(x, Certainty.LEAF)

    def note_module(self, module: torch.nn.Module) -> None:
        """Remembers the registered tensors of a called module: parameters, and matrices in its state."""
        for parameter in module._parameters.values():  # noqa: SLF001  parameters() also asks its children
            if parameter is not None and not is_lazy(parameter):  # else the first call creates it, after this hook
                self._add(_unwrap(parameter), Certainty.PARAMETER)
        for name, buffer in module._buffers.items():  # noqa: SLF001  as above
            plain = None if buffer is None or is_lazy(buffer) else _unwrap(buffer)
            if plain is None or self.is_known_data(plain) or not plain.is_floating_point():
                continue
            if name in module._non_persistent_buffers_set:  # noqa: SLF001  the only access there is
                self._marks.add(plain, Mark.DATA)  # the module can recompute it, such as frequencies of positions
            elif plain.dim() >= _MATRIX:
                self._add(plain, Certainty.BUFFER)

    def is_known_data(self, x: torch.Tensor) -> bool:
        """Whether ``x`` is a buffer that is not a weight."""
        return bool(self._marks.of(x) & Mark.DATA)

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Marks the copy of a weight in another dtype as a weight."""
        certainty = self.certainty(source)
        if certainty is not None:
            self._add(target, certainty)

    def note(self, operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Marks results of a forward operation on only weights as weights; unmarks tensors that it wrote data to."""
        written = [args[i] if i < len(args) else kwargs.get(name) for i, name in writes_of(operation)]
        # The values that the operation reads, as a flat list
        replaces = plain_name(operation.overloadpacket.__name__) in _REPLACING
        rest = {name: x for name, x in kwargs.items() if name != "out"} if kwargs else kwargs
        read = tree_leaves((args[1:] if replaces and writes_of(operation) else args, rest))
        if self._is_noise(operation, read):
            for x in _float_tensors([written, result]):
                self._marks.add(x, Mark.NOISE)
            return
        certainty = self._result_certainty(operation, read, result)
        if certainty is None and not written:
            return
        if certainty is None:  # data in the memory of a weight
            for x in _float_tensors(written):
                if self._marks.of(x) & Mark.BUFFER:  # a buffer that the forward pass changes
                    self._marks.add(x, Mark.DATA)
                self._marks.remove(x, Mark.WEIGHTS | Mark.NOISE)
            return
        for x in _float_tensors([written, result]):
            self._add(x, certainty)

    def _is_noise(self, operation: OpOverload, read: Iterable[Any]) -> bool:
        """Whether an operation draws random numbers, or computes only with such."""
        floats = [x for x in _float_tensors(read) if not is_lazy(x) and x.dim()]
        if draws(operation):
            # With data as its mean, "normal" draws actions, which are no noise.
            return operation.overloadpacket.__name__ != "normal" or not floats
        if not floats or not self._marks.may_have(Mark.NOISE):
            return False
        return all(self._marks.of(x) & Mark.NOISE and self.certainty(x) is None for x in floats)

    def _result_certainty(self, operation: OpOverload, read: Iterable[Any], result: Any) -> Certainty | None:
        """Returns the certainty that the results of an operation are weights; None if they are not."""
        tensors = [x for x in read if isinstance(x, torch.Tensor) and not is_lazy(x) and x.dim()]
        floats = [x for x in tensors if x.is_floating_point()]
        weights = {x: certainty for x in floats if (certainty := self.certainty(x)) is not None}
        others = [x for x in floats if x not in weights]
        if not weights or _gives_data(operation) or any(not self._marks.of(x) & Mark.NOISE for x in others):
            return None
        least_certain = max(weights.values())
        if others:  # a weight with noise
            is_noisy = least_certain != Certainty.LEAF and _keeps_shape(operation, weights, result)
            return Certainty.PERHAPS if is_noisy else None
        if _is_product(operation):
            return Certainty.PERHAPS if least_certain == Certainty.PARAMETER else None
        if least_certain == Certainty.LEAF and not _is_move(operation):
            return None
        is_indexed = any(x.dtype not in (torch.bool, torch.uint8) for x in tensors if not x.is_floating_point())
        return Certainty.PERHAPS if is_indexed else least_certain

    def _add(self, x: torch.Tensor, certainty: Certainty) -> None:
        if not self._marks.of(x) & Mark.WEIGHTS:
            self._marks.add(x, _mark_of(certainty))


def _mark_of(certainty: Certainty) -> int:
    return Mark.PARAMETER << certainty  # the marks follow in the order of certainty


@cache
def _gives_data(operation: OpOverload) -> bool:
    return plain_name(operation.overloadpacket.__name__) in _NEVER_WEIGHTS


@cache
def draws(operation: OpOverload) -> bool:
    """Whether an operation draws random numbers."""
    return plain_name(operation.overloadpacket.__name__) in _DRAWING


def _keeps_shape(operation: OpOverload, weights: Iterable[torch.Tensor], result: Any) -> bool:
    """Whether an operation works elementwise on matrices, with results of the shape of one of the weights."""
    if _is_product(operation) or _is_move(operation) or not isinstance(result, torch.Tensor):
        return False
    return result.dim() >= _MATRIX and any(x.shape == result.shape for x in weights)


@cache
def _is_move(operation: OpOverload) -> bool:
    name = plain_name(operation.overloadpacket.__name__)
    return name in MOVES or name in _CASTING or all(outputs(operation).viewing)


@cache
def _is_product(operation: OpOverload) -> bool:
    return is_contraction(operation.overloadpacket.__name__)


def _float_tensors(values: Any) -> Iterator[torch.Tensor]:
    for x in tree_leaves(values):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout is torch.strided:
            yield x


def _unwrap(x: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that functional transforms (``torch.func.grad``, ``vmap``) have wrapped."""
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return x
