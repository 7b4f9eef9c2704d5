"""Numbers that a step reads from tensors (``.item()``), where they follow from its arguments by a few small operations.

An optimizer counts its steps in a tensor without axes, adds 1, and reads it. Such a number is known before the program
runs: the operations that lead to it are done on the arguments themselves, by PyTorch's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, final
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from ...formats.base.operator import unwritten_like
from ..presence.entering import simulations_off
from .host_numbers import NumberError, NumberRecord, TracedNumber, number_of
from .number_tensors import tensor_of

_READ = (
    "the step reads a number from a tensor (.item()) that depends on what it computes, where a program has no numbers:"
    " decide by torch.where, and return the tensor"
)


@torch.library.custom_op("roundoff::read", mutates_args=())
def read_operator(x: torch.Tensor) -> torch.Tensor:
    """Returns a copy of ``x`` as it is where a step reads it."""
    return x.clone()


@read_operator.register_fake
def _read_fake(x: torch.Tensor) -> torch.Tensor:
    return unwritten_like(x)


class _Step(NamedTuple):
    """An operation on the way to a number; operands by position."""

    target: Any
    args: Any
    kwargs: Any


class _EarlierResult(NamedTuple):
    """Represents an earlier result."""

    position: int


class Reading(NamedTuple):
    """The computation of a number from the inputs of a graph."""

    inputs: tuple[int, ...]
    calls: tuple[_Step, ...]
    signature: str | None
    """A text that is the same for readings that do the same; None if it is not known."""

    @classmethod
    def of(cls, node: Node, constants: Any, large: int) -> Reading:
        """Returns the computation of a node's number.

        Args:
            node: a node of a graph.
            constants: the object that has the constants of the graph as attributes.
            large: the first inputs, which may be tensors of any size.

        Raises:
            NumberError: it takes more than operations on tensors of one element.
        """
        placeholders = [one for one in node.graph.nodes if one.op == "placeholder"]
        order = {placeholder: i for i, placeholder in enumerate(placeholders)}
        needed: set[Node] = set()
        pending = [node]
        while pending:
            one = pending.pop()
            if one not in needed:
                if order.get(one, large) >= large and not _is_small(one):
                    raise NumberError(_READ)
                needed.add(one)
                pending += one.all_input_nodes
        inputs = [one for one in order if one in needed]
        positions = {one: i for i, one in enumerate(inputs)}
        calls = []
        for one in node.graph.nodes:
            if one in needed and one not in positions:
                if one.op == "get_attr":
                    constant = getattr(constants, str(one.target)).detach().clone()
                    calls.append(_Step(torch.clone, (constant,), {}))
                else:
                    calls.append(
                        _Step(one.target, *map_arg((one.args, one.kwargs), lambda x: _EarlierResult(positions[x])))
                    )
                positions[one] = len(positions)
        own = any(call.target in (torch.clone, torch.ops.roundoff.number.default) for call in calls)
        return cls(tuple(order[one] for one in inputs), tuple(calls), None if own else repr(calls))

    def value(self, inputs: Sequence[torch.Tensor], number: Callable[[int], float], known: dict[Any, float]) -> float:
        """The number for these inputs, which are left as they are.

        Args:
            inputs: inputs of the graph.
            number: the Python numbers, computed before it, that it depends on, by their place.
            known: what other readings have found in this call.
        """
        if not self.calls:
            return inputs[self.inputs[0]].item()
        if self.signature is None:
            return self._computed(inputs, number)
        operands = [inputs[i] for i in self.inputs]
        key = (self.signature, *[repr(x.item()) if x.numel() == 1 else id(x) for x in operands])
        if key not in known:
            known[key] = self._computed(inputs, number)
        return known[key]

    def _computed(self, inputs: Sequence[torch.Tensor], number: Callable[[int], float]) -> float:
        known: list[Any] = [inputs[i].detach().clone() for i in self.inputs]
        for call in self.calls:
            args, kwargs = _with_known((call.args, call.kwargs), known)
            if call.target is torch.ops.roundoff.number.default:
                known.append(torch.tensor(number(*args), dtype=torch.float64))
            else:
                known.append(call.target(*args, **kwargs))
        result: float = known[-1].item()
        return result


def _with_known(x: Any, known: list[Any]) -> Any:
    if isinstance(x, _EarlierResult):
        return known[x.position]
    if isinstance(x, (tuple, list)):
        items = [_with_known(item, known) for item in x]
        return items if isinstance(x, list) else tuple(items)
    if isinstance(x, dict):
        return {key: _with_known(item, known) for key, item in x.items()}
    return x


def _is_small(node: Node) -> bool:
    if node.op == "get_attr":
        return True
    value = node.meta.get("val")
    if node.op not in ("placeholder", "call_function") or not isinstance(value, torch.Tensor) or value.numel() != 1:
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())


@final
class Readings:
    """Numbers that are read while a step is traced.

    Args:
        record: record of the operations on them.
        inputs: inputs of the graph, the tensors themselves.
        large: how many of them, in front, are not arguments of the step.
    """

    def __init__(self, record: NumberRecord, inputs: Sequence[torch.Tensor], large: int) -> None:
        self._record, self._inputs, self._large = record, inputs, large
        self.tensors: list[torch.Tensor] = []
        """The values that were read, as outputs of the graph."""
        self._values: list[float] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """For the block, ``item`` of a stand-in gives a :class:`TracedNumber`, and ``torch.tensor`` takes one."""
        before: Any = FakeTensor.item

        def item(x: FakeTensor) -> Any:
            return before(x) if x.constant is not None or not x.is_floating_point() else self._read(x)

        with ExitStack() as patches:
            patches.enter_context(patch.object(FakeTensor, "item", item, create=True))
            for name in ("tensor", "as_tensor"):
                patches.enter_context(patch.object(torch, name, _taking_numbers(getattr(torch, name))))
            yield

    def _read(self, x: torch.Tensor) -> TracedNumber:
        mode: Any = get_proxy_mode()
        slot: Any = get_proxy_slot(x, mode.tracer)
        with _disable_current_modes():
            reading = Reading.of(slot.proxy.node, mode.tracer.root, self._large)
            value = reading.value(self._inputs, self._record.at, {})
        with simulations_off():
            self.tensors.append(torch.ops.roundoff.read(x))
        self._values.append(value)
        return self._record.read(len(self._values) - 1, value)

    def take_from(self, graph: GraphModule) -> list[Reading]:
        """Takes the values read from the outputs of a graph, after all others, and describes how each number follows.

        Raises:
            NumberError: it follows otherwise than it seemed, when one piece of memory has several names.
        """
        if not self.tensors:
            return []
        (output,) = [node for node in graph.graph.nodes if node.op == "output"]
        results = list(output.args[0])
        count = len(results) - len(self.tensors)
        output.args = (tuple(results[:count]),)
        graph.recompile()
        with _disable_current_modes():
            readings = [Reading.of(node, graph, self._large) for node in results[count:]]
            values = [reading.value(self._inputs, self._record.at, {}) for reading in readings]
        if list(map(repr, values)) != list(map(repr, self._values)):
            raise NumberError(_READ)
        return readings


def _taking_numbers(make: Any) -> Any:
    """``torch.tensor``, of a number without a value too: as eagerly, it makes a tensor, and hands it over."""

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        number = number_of(data)
        if number is None:
            return make(data, *args, **kwargs)  # type: ignore[no-any-return]
        with simulations_off():
            x = tensor_of(number, kwargs.pop("dtype", None) or torch.get_default_dtype())
        if args or kwargs.pop("device", None) not in (None, x.device) or any(kwargs.values()):
            raise NumberError("a tensor with further settings is made of a number that the step reads from a tensor")
        return torch.ops.aten.lift_fresh.default(x)  # type: ignore[no-any-return]

    return tensor
