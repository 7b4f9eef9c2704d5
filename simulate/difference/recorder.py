"""Records a run: sketches and float64 twins of each operation, and the bounds of its rounding errors."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten_with_path

from ..aten.schemas import argument_names
from ..aten.tables import EMPTY
from ..presence.user_code import here, text_of
from ..shadow.shadow import Shadow, outside_autograd
from ..shadow.twins import is_followed, widen
from ..shadow.widening import draws_random, operands, outcomes, rerun_needs, tensors_in
from ..watching.first_non_finite import ForwardLines, MemoryNotes
from ..watching.watcher import Call
from .bounds import errors, rounding_bounds, unit_roundoff
from .compiled import compile_recorded, excess, run_eagerly
from .trace import MOST_OPERATIONS, RESULT, UNINITIALISED, Operation, Sketch, Trace, sketch, some_elements

_READING = "_local_scalar_dense"
# Arguments that say where results are. Results have their dtype.
_IMMATERIAL = frozenset({"device", "layout", "pin_memory", "non_blocking", "memory_format", "generator", "dtype"})


class Recorder(Shadow):
    """Records the operations of a simulation, at most ``limit``; see :class:`.trace.Trace`."""

    backend = staticmethod(compile_recorded)

    def __init__(self, limit: int = MOST_OPERATIONS) -> None:
        super().__init__()
        self._limit, self._dropped = limit, 0
        self._operations: list[Operation] = []
        self._writers: MemoryNotes[int] = MemoryNotes()
        self._lines = ForwardLines()

    @property
    def trace(self) -> Trace:
        """The operations so far."""
        return Trace(tuple(self._operations), self._dropped)

    def before(self, call: Call) -> Any:
        """Returns sketches of the operands, which the operation may overwrite, and the token of the shadow."""
        self._lines.note(call)
        reads = call.place.operation == _READING  # computes nothing, but the program may branch on its number
        if call.operation is None or not (rerun_needs(call.operation).has_outcomes or reads):
            return None
        if len(self._operations) >= self._limit:
            self._dropped += 1
            return None
        with _disable_current_modes(), outside_autograd():
            inputs = [self._sketch(x) for x in operands(call.operation, *call.given)]
        return inputs, None if reads else super().before(call)

    def after(self, call: Call, token: Any, result: Any) -> None:
        """Records an operation."""
        operation, (args, kwargs) = call.operation, call.given
        if token is None or operation is None:
            if operation is not None and operation.overloadpacket in EMPTY:
                self._writers.put(result, UNINITIALISED)
            return
        inputs, pending = token
        results, exact, twins = self.follow(call, pending, result)
        needs, overwritten = rerun_needs(operation), outcomes(operation, args, kwargs, ())
        with _disable_current_modes(), outside_autograd():
            outputs = [
                sketch(x, twin if is_followed(x) else None, unit=unit_roundoff(call, x.dtype))
                for x, twin in zip_longest(results, twins)
            ] or list(inputs)  # an operation that returns no tensor shows its operand
            # Operands that were overwritten, rounded first, or summed differently do not give the bound.
            if not (overwritten or call.operands or call.accumulate or draws_random(operation, args, kwargs)):
                outputs = _with_bounds(call, results, exact, outputs)
        named = {**dict(zip(argument_names(operation), args, strict=False)), **kwargs}
        arguments = {
            name: _plain_argument(value) for name, value in named.items()
            if value is not None and name not in _IMMATERIAL and not any(True for _ in tensors_in([value]))
        }  # fmt: skip
        for x in results:
            if x.layout is torch.strided:
                self._writers.put(x, len(self._operations))
        place, line = call.place, self._lines.of(call)
        writes = bool(overwritten) and not needs.out
        self._operations.append(
            Operation(place.operation, place.role, place.module, line, arguments, inputs, outputs, writes, needs.random)
        )

    def run_compiled(self, compiled: Any, graph: torch.fx.GraphModule, boxed: list[Any], role: str) -> Any:
        """Runs compiled code and records it as one operation; ``graph`` has its operations, for twins and bounds."""
        if len(self._operations) >= self._limit:
            self._dropped += 1
            return compiled(boxed)
        with _disable_current_modes(), outside_autograd():
            arguments = list(boxed)  # the compiled code empties its own list
            inputs = [self._sketch(x) for x in tensors_in(arguments)]
            size = max((x.norm for x in inputs if x.unit), default=0.0)
            shadow = Shadow()
            shadow._twins = self._twins  # noqa: SLF001  of the class that this one extends
            # Before the compiled code, which may overwrite arguments.
            eager, changed = run_eagerly(graph, arguments, shadow)
            result, outputs = list(compiled(boxed)), []
            # Arguments may also be results, and their memory may be used for other values once they are read.
            pairs = [(x, y) for x, y in zip(result, eager or result, strict=True) if not any(x is z for z in arguments)]
            for x, y in [*pairs, *changed]:
                if isinstance(x, torch.Tensor):
                    error = 0.0
                    if is_followed(x) and x.numel():
                        self._twins.put(x, self._twins.get(y) if eager else widen(x))
                        error = excess(x, y, self._twins.get(x), size) if eager else 0.0
                    outputs.append(self._sketch(x)._replace(source=-1, excess=error))
                    self._writers.put(x, len(self._operations))
            line = text_of(here())
            self._operations.append(
                Operation("compiled", role, "", line, {}, inputs, outputs, bool(changed), random=not eager)
            )
        return result

    def finish(self, result: Any) -> None:
        """Records the tensors and numbers that a function returned."""
        with _disable_current_modes(), outside_autograd():
            for path, value in tree_flatten_with_path(result)[0]:
                x = torch.tensor(value) if isinstance(value, int | float | complex) else value
                if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biufc":  # and no text
                    x = torch.as_tensor(np.array(x))  # a copy, whose strides are positive
                if isinstance(x, torch.Tensor):
                    name, sketches = "".join(map(str, path)), [self._sketch(x)]
                    self._operations.append(Operation(RESULT, "", name, "", {}, sketches, sketches))

    def _sketch(self, x: torch.Tensor) -> Sketch:
        writer = self._writers.of(x)
        twin = self._twins.get(x) if self._twins.has(x) else None
        return sketch(x, twin, source=-1 if writer is None else writer)


def _with_bounds(
    call: Call, results: list[torch.Tensor], exact: list[torch.Tensor], rows: list[Sketch]
) -> list[Sketch]:
    """The sketches with the bounds of some elements, and the excess; the same if bounds cannot be had."""
    if not exact or not all(is_followed(x) and x.numel() and x.is_floating_point() for x in results):
        return rows
    try:
        bounds = rounding_bounds(call, results, exact)
    except Exception:  # noqa: BLE001  whatever an operation may raise, the program goes on
        return rows
    largest = getattr(call.format, "max", None)
    quotients = (errors(x, y, largest) / z for x, y, z in zip(results, exact, bounds, strict=True))  # NaN: 0 / 0
    return [
        row._replace(bounds=some_elements(z), excess=quotient.nan_to_num(0.0, math.inf).max().item())
        for row, z, quotient in zip(rows, bounds, quotients, strict=True)
    ]


def _plain_argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain_argument(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
