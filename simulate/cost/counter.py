"""The watcher that counts the costs of a simulated program, and the comparison of a few counted steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, final
from weakref import WeakSet

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from roundoff.locks import new_lock

from ...formats import Format
from ..aten.schemas import argument_names
from ..aten.tables import WITHOUT_NUMBERS
from ..aten.wrappers import has_own_memory
from ..presence.entering import simulations_off
from ..watching.watcher import Call, Place, Watcher
from .memory import Memory, StoredElements
from .products import CountedProduct, products_in
from .report import Cost, KeptMemory, MultipliedFormats, OperationCost
from .traffic import traffic_of

_DTYPE_NAMES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8_e4m3fn", torch.float8_e5m2: "fp8_e5m2",
}  # fmt: skip


@dataclass
class _MovedBits:
    """The sums of memory traffic over all calls at one place; bits may be fractions, shares of a block's scale."""

    calls: int = 0
    read: int = 0
    read_bits: float = 0
    written: int = 0
    written_bits: float = 0
    without_formula: int = 0
    not_followed: int = 0


@final
class CostCounter(Watcher):
    """Counts products, bytes and memory of a simulation; made by ``simulate(..., cost=True)``.

    It reads the shapes and formats of tensors, never their values.
    """

    # Keeps steps from being compiled: a compiled program would run without the counter.
    sees_numbers = True

    def __init__(self) -> None:
        self._memory = Memory()
        self._moved: defaultdict[Place, _MovedBits] = defaultdict(_MovedBits)
        self._macs: Counter[tuple[Place, str, MultipliedFormats]] = Counter()
        self._modules: WeakSet[torch.nn.Module] = WeakSet()
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._steps = 0
        self._lock = new_lock()

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Treats a copy in another dtype as its original."""
        if has_own_memory(source) and has_own_memory(target):
            with self._lock:
                self._memory.settle()
                self._memory.stand_in(target, source)

    def stored(self, x: torch.Tensor, format: Format) -> None:
        """Notes the format of a tensor in memory from now on."""
        if has_own_memory(x):
            with self._lock:
                self._memory.settle()
                self._memory.put(x, None if format.native else format)

    def module_begins(self, module: torch.nn.Module) -> None:
        """Registers a module: its parameters and buffers are kept between steps."""
        self._modules.add(module)

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts a step, and registers the optimizer: its state is kept between steps."""
        with self._lock:
            self._steps += 1
            self._optimizers.add(optimizer)

    def after(self, call: Call, token: Any, result: Any) -> None:  # noqa: ARG002  there is none
        """Counts a call: bytes read and written, products, and the memory of its results."""
        if call.operation is None:
            return
        with self._lock:
            self._memory.settle()
            self._count(call, call.operation, result)

    def _count(self, call: Call, operation: OpOverload, result: Any) -> None:
        memory = self._memory
        args, kwargs = call.given
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        traffic = traffic_of(operation, args, kwargs, result)
        products = products_in(operation, args, kwargs, result)
        # Views, and memory without values, are not counted as calls.
        if not (traffic.read or traffic.written) and products == ():
            moved = _MovedBits()
        else:
            moved = self._moved[call.place]
            moved.calls += 1
            moved.not_followed += not all(map(has_own_memory, inputs))
        # Operands that no operation has made come from outside; memory that is also a result does not.
        result_ids = {id(x) for x in traffic.results}
        for x in inputs:
            if id(x) not in result_ids and has_own_memory(x):
                memory.see(x)
        for x, elements in traffic.read:  # before results are stored, which may overwrite the format of operands
            moved.read += elements
            moved.read_bits += memory.see(x).of_part(elements)
        if products is None:
            moved.without_formula += 1
        # Operands may be overwritten: their formats are read before the formats of results are stored.
        multiplied = self._multiplied(call, operation, products or (), traffic.results)
        for x in traffic.results:
            if traffic.written or memory.find(x) is None:  # memory that is only passed on keeps its format
                memory.put(x, self._format_of(call, operation, x, inputs))
        for x, elements in traffic.written:
            moved.written += elements
            moved.written_bits += memory.see(x).of_part(elements)
        for product, formats, macs in multiplied:
            self._macs[call.place, product, formats] += macs

    def restart(self) -> None:
        """Resets the counts, and keeps only live tensors with their formats in memory."""
        with self._lock:
            self._memory.settle()
            self._memory.peak_bits = self._memory.live_bits
            self._moved.clear()
            self._macs.clear()
            self._steps = 0

    def report(self, kept: Mapping[str, Iterable[torch.Tensor]] | None = None) -> Cost:
        """Returns the cost counted so far.

        Args:
            kept: the tensors kept between steps, by kind; None for the tensors of modules and optimizers.
        """
        with self._lock, simulations_off():
            operations = {
                place: OperationCost(
                    m.calls, m.read, m.read_bits / 8, m.written, m.written_bits / 8, m.without_formula, m.not_followed
                )
                for place, m in self._moved.items()
            }
            return Cost.of(operations, self._macs, self._kept_memory(kept), self._memory.peak_bits / 8, self._steps)

    def _multiplied(
        self, call: Call, operation: OpOverload, products: Iterable[CountedProduct], results: list[torch.Tensor]
    ) -> list[tuple[str, MultipliedFormats, int]]:
        """Lists each product with the formats of its operands and of its accumulator (by default the carrier's)."""
        rows = []
        for counted in products:
            named = dict(zip(argument_names(operation), call.given[0], strict=False)) | dict(call.given[1])
            a, b = (self._operand_format(call, name, counted.product, named.get(name)) for name in counted.operands)
            carrier = _dtype_name(results[0].dtype) if results else "fp32"
            formats = MultipliedFormats(*a, *b, str(call.accumulate) if call.accumulate else carrier)
            rows.append((counted.product, formats, counted.macs))
        return rows

    def _operand_format(self, call: Call, name: str, product: str, x: Any) -> tuple[str, int]:
        """Returns the format that an operation reads an operand in, and its bits: rounded for it, or as in memory."""
        rounded = {key[1]: fmt for key, fmt in call.operands.items() if key[0] == name}
        fmt = rounded.get(product) or next(iter(rounded.values()), None)  # rounded once for all products
        if fmt is None and has_own_memory(x):
            fmt = self._memory.see(x).format
        if fmt is not None and not fmt.native:
            return str(fmt), fmt.bits
        if not isinstance(x, torch.Tensor):
            return "fp32", 32
        return _dtype_name(x.dtype), 8 * x.element_size()

    def _format_of(
        self, call: Call, operation: OpOverload, x: torch.Tensor, tensors: Iterable[torch.Tensor]
    ) -> Format | None:
        """Returns the format of a result in memory; None for its dtype's own.

        It is the format of rounded results, or for copied values their format in memory, if that has fewer bits.
        """
        if not (x.dtype.is_floating_point or x.dtype.is_complex):
            return None
        zeros = operation.overloadpacket in WITHOUT_NUMBERS
        # Integers stay in the dtype, except for zeros, which a program fills with data later.
        fmt = None if call.format.native or (call.whole and not (zeros and x.dim())) else call.format
        if call.moves and not zeros:
            sources = {
                self._memory.see(source).format
                for source in tensors
                if source.dtype.is_floating_point and source is not x and has_own_memory(source)
            }
            source = next(iter(sources)) if len(sources) == 1 else None  # of several formats, none describes a copy
            widest = 8 * x.element_size() if fmt is None else fmt.bits_per_number
            if source is not None and source.bits_per_number < widest:
                return source
        return fmt

    def _kept_memory(self, kept: Mapping[str, Iterable[torch.Tensor]] | None) -> list[KeptMemory]:
        """Returns the memory kept between steps: each storage once, under its first name."""
        if kept is None:
            storages_by_kind = self._find_kept()
        else:
            storages_by_kind = {name: self._memory.storages(tensors) for name, tensors in kept.items()}
        counted: set[int] = set()  # tied weights, and parameters that are also an optimizer's, count once
        rows = []
        for name, storages in storages_by_kind.items():
            uncounted = {id(x): x for x in storages if id(x) not in counted}
            counted |= set(uncounted)
            if uncounted:
                bits = sum(x.bits for x in uncounted.values())
                rows.append(KeptMemory(name, sum(x.elements for x in uncounted.values()), bits / 8))
        return rows

    def _find_kept(self) -> dict[str, list[StoredElements]]:
        """Returns the storages of modules and optimizers, and the storages of data from outside."""
        modules, optimizers, memory = list(self._modules), list(self._optimizers), self._memory
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        state = tree_leaves([dict(optimizer.state) for optimizer in optimizers])
        parameters = [*(p for module in modules for p in module.parameters()), *(p for group in groups for p in group)]
        living = memory.living()
        return {
            "parameters": [*memory.storages(parameters), *(x for x in living if x.is_parameter)],
            "buffers": memory.storages([b for module in modules for b in module.buffers()]),
            "optimizer state": memory.storages([x for x in state if has_own_memory(x)]),
            "data from outside": [x for x in living if x.from_outside],
        }


def _dtype_name(dtype: torch.dtype) -> str:
    return _DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


class CountedSteps(NamedTuple):
    """The counts of a few steps of a program, or updates of an agent."""

    cost: dict[str, Any]
    """The content of ``Cost.as_json`` for one step."""
    begin: dict[str, torch.Tensor]
    """Learned values by kind before the first step, in float64."""
    end: dict[str, torch.Tensor]
    """Learned values by kind after the last step, in float64."""

    def led_astray(self, reference: Self) -> float:
        """Returns the deviation of the learned values from a reference's, relative to its change; of the worst kind.

        Both begin with the same values and use the same data. The result is infinite if a value is not finite.
        """
        shares = [0.0]
        for name, end in reference.end.items():
            values, distance = self.end[name], float((end - reference.begin[name]).norm())  # how far it has learned
            deviation = float((values - end).norm())
            if not math.isfinite(deviation):
                return math.inf
            if deviation > 0:
                shares.append(deviation / distance if distance > 0 else math.inf)
        return max(shares)


def learned(tensors: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copies the learned values to a float64 vector for each kind."""
    with simulations_off():
        vectors = {name: [x.detach().double().cpu().flatten() for x in kind] for name, kind in tensors.items()}
        return {name: torch.cat(kind) for name, kind in vectors.items() if kind}
