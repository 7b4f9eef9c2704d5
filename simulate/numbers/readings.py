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
    """Returns a copy of ``x`` at the point where a step reads it."""
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
    """The operand of a step that is the result of an earlier one."""

    position: int


class Reading(NamedTuple):
    """The computation of a number from the inputs of a graph."""

    inputs: tuple[int, ...]
    calls: tuple[_Step, ...]
    signature: str | None
    """A text that is equal for equal computations; None if the result also depends on other values."""

    @classmethod
    def of(cls, node: Node, constants: Any, large: int) -> Reading:
        """Returns the computation of a node's number.

        Args:
            node: a node of a graph.
            constants: the object that has the constants of the graph as attributes.
            large: the number of inputs, in front, that may be tensors of any size.

        Raises:
            NumberError: it takes more than operations on tensors of one element.
        """
        # Collects the nodes that the number depends on
        placeholders = [current for current in node.graph.nodes if current.op == "placeholder"]
        order = {placeholder: i for i, placeholder in enumerate(placeholders)}
        needed: set[Node] = set()
        pending = [node]
        while pending:
            current = pending.pop()
            if current not in needed:
                if order.get(current, large) >= large and not _is_small(current):  # Not small, and not in front.
                    raise NumberError(_READ)
                needed.add(current)
                pending += current.all_input_nodes
        # Makes them steps, with operands by position
        inputs = [current for current in order if current in needed]
        positions = {current: i for i, current in enumerate(inputs)}
        calls = []
        for current in node.graph.nodes:
            if current in needed and current not in positions:
                if current.op == "get_attr":
                    constant = getattr(constants, str(current.target)).detach().clone()
                    calls.append(_Step(torch.clone, (constant,), {}))
                else:
                    operands = map_arg((current.args, current.kwargs), lambda x: _EarlierResult(positions[x]))
                    calls.append(_Step(current.target, *operands))
                positions[current] = len(positions)
        # Constants, and numbers that are computed in the call, are not part of the text.
        depends_on_call = any(call.target in (torch.clone, torch.ops.roundoff.number.default) for call in calls)
        return cls(tuple(order[current] for current in inputs), tuple(calls), None if depends_on_call else repr(calls))

    def value(self, inputs: Sequence[torch.Tensor], number: Callable[[int], float], cache: dict[Any, float]) -> float:
        """Computes the number for these inputs, which stay unchanged.

        Args:
            inputs: inputs of the graph.
            number: the Python numbers, computed before it, that it depends on, by their place.
            cache: the results of other readings in this call, by signature and inputs.
        """
        if not self.calls:
            return inputs[self.inputs[0]].item()
        if self.signature is None:
            return self._compute(inputs, number)
        operands = [inputs[i] for i in self.inputs]
        key = (self.signature, *[repr(x.item()) if x.numel() == 1 else id(x) for x in operands])
        if key not in cache:
            cache[key] = self._compute(inputs, number)
        return cache[key]

    def _compute(self, inputs: Sequence[torch.Tensor], number: Callable[[int], float]) -> float:
        results: list[Any] = [inputs[i].detach().clone() for i in self.inputs]  # Steps may work in place.
        for call in self.calls:
            args, kwargs = _with_results((call.args, call.kwargs), results)
            if call.target is torch.ops.roundoff.number.default:
                results.append(torch.tensor(number(*args), dtype=torch.float64))
            else:
                results.append(call.target(*args, **kwargs))
        result: float = results[-1].item()
        return result


def _with_results(x: Any, results: list[Any]) -> Any:
    if isinstance(x, _EarlierResult):
        return results[x.position]
    if isinstance(x, (tuple, list)):
        items = [_with_results(item, results) for item in x]
        return items if isinstance(x, list) else tuple(items)
    if isinstance(x, dict):
        return {key: _with_results(item, results) for key, item in x.items()}
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
        large: the number of inputs, in front, that are not arguments of the step.
    """

    def __init__(self, record: NumberRecord, inputs: Sequence[torch.Tensor], large: int) -> None:
        self._record, self._inputs, self._large = record, inputs, large
        self.tensors: list[torch.Tensor] = []
        """The values that were read, as outputs of the graph."""
        self._values: list[float] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Makes ``item`` of a fake tensor return a :class:`TracedNumber` in the block; ``torch.tensor`` accepts one."""
        original_item: Any = FakeTensor.item

        def item(x: FakeTensor) -> Any:
            return original_item(x) if x.constant is not None or not x.is_floating_point() else self._read(x)

        with ExitStack() as patches:
            patches.enter_context(patch.object(FakeTensor, "item", item, create=True))  # Inherited, so far.
            for name in ("tensor", "as_tensor"):
                patches.enter_context(patch.object(torch, name, _accept_numbers(getattr(torch, name))))
            yield

    def _read(self, x: torch.Tensor) -> TracedNumber:
        mode: Any = get_proxy_mode()
        slot: Any = get_proxy_slot(x, mode.tracer)
        with _disable_current_modes():
            reading = Reading.of(slot.proxy.node, mode.tracer.root, self._large)
            value = reading.value(self._inputs, self._record.at, {})
        with simulations_off():
            self.tensors.append(torch.ops.roundoff.read(x))  # A copy: x may be overwritten later.
        self._values.append(value)
        return self._record.read(len(self._values) - 1, value)

    def take_from(self, graph: GraphModule) -> list[Reading]:
        """Takes the values read from the outputs of a graph, after all others, and describes how each number follows.

        Raises:
            NumberError: a number differs from the one read, since one piece of memory has several names.
        """
        if not self.tensors:
            return []
        (output,) = [node for node in graph.graph.nodes if node.op == "output"]
        results = list(output.args[0])
        result_count = len(results) - len(self.tensors)
        output.args = (tuple(results[:result_count]),)
        graph.recompile()
        with _disable_current_modes():
            readings = [Reading.of(node, graph, self._large) for node in results[result_count:]]
            values = [reading.value(self._inputs, self._record.at, {}) for reading in readings]
        if list(map(repr, values)) != list(map(repr, self._values)):  # By text, NaN is equal to NaN.
            raise NumberError(_READ)
        return readings


def _accept_numbers(make: Any) -> Any:
    """Makes ``torch.tensor`` also accept a traced number; it then returns a tensor like the eager function."""

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
