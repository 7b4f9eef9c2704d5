"""Watching a simulation: per operation, module and role, what rounding did, and where the first NaN was born."""

from __future__ import annotations

import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from roundoff.simulate.absorption import Additions, additions
from roundoff.simulate.counting import EXPONENTS, count
from roundoff.simulate.report import Birth, Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch._ops import OpOverload
    from torch.utils.hooks import RemovableHandle

    from roundoff.formats import Format

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Place(NamedTuple):
    """Where an operation ran."""

    role: str
    """``forward``, ``backward`` or ``optimizer``."""
    module: str
    """Path of the innermost ``torch.nn.Module`` at work, empty outside of modules and in the other roles."""
    operation: str
    """The ATen operation, without overload."""


@dataclass
class Tally:
    """Sums over all calls at one place."""

    calls: int = 0
    results: int = 0
    overflow: int = 0
    underflow: int = 0
    subnormal: int = 0
    infinite: int = 0
    nan: int = 0
    inexact: int = 0
    additions: int = 0
    absorbed: int = 0
    extremes: list[float] = field(default_factory=lambda: [float("inf"), 0.0])
    histogram: np.ndarray = field(default_factory=lambda: np.zeros((4, EXPONENTS), dtype=np.int64))


class Observer:
    """Counts what a simulation does; made by ``simulate(..., observe=True)``.

    Entered and left with the simulation, it follows modules and optimizers through PyTorch's global hooks.
    """

    def __init__(self, format: Format) -> None:
        self._format = format
        self._smallest_normal = float(getattr(format, "smallest_normal", 0.0))
        self._tallies: defaultdict[Place, Tally] = defaultdict(Tally)
        self._modules: list[str] = []
        self._names: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._optimizers = 0
        self._handles: list[list[RemovableHandle]] = []
        self._birth: Birth | None = None

    def enter(self) -> None:
        """Begins to follow modules and optimizers."""
        self._handles.append(
            [
                register_module_forward_pre_hook(self._module_begins),
                # also when forward raises, so that a failed call does not leave its module behind
                register_module_forward_hook(self._module_ends, always_call=True),
                register_optimizer_step_pre_hook(self._optimizer_begins),
                register_optimizer_step_post_hook(self._optimizer_ends),
            ]
        )

    def leave(self) -> None:
        """Ends what :meth:`enter` began."""
        for handle in self._handles.pop():
            handle.remove()
        if not self._handles:
            self._modules.clear()
            self._optimizers = 0

    def before(self, operation: OpOverload, args: Sequence[Any]) -> Additions | None:
        """Looks at the operands of an addition before an in-place operation overwrites them."""
        return additions(operation, args)

    def round(self, x: torch.Tensor, operation: OpOverload) -> None:
        """Rounds ``x``, a result of ``operation``, where it stands, and counts."""
        exact = x.clone()
        self._format.round_into(x, x)
        place = self._place(operation)
        tally = self._tallies[place]
        counts = count(exact, x, self._smallest_normal, tally.extremes, tally.histogram)
        tally.results += counts.results
        tally.overflow += counts.overflow
        tally.underflow += counts.underflow
        tally.subnormal += counts.subnormal
        tally.infinite += counts.infinite
        tally.nan += counts.nan
        tally.inexact += counts.inexact
        if self._birth is None and (counts.nan or counts.infinite):
            self._birth = Birth(
                place.role, place.module, place.operation, _what(counts.nan, counts.overflow), _user_line()
            )

    def after(self, operation: OpOverload, added: Additions | None, args: Sequence[Any], result: Any) -> None:
        """Closes the books on one call; ``added`` is what :meth:`before` gave."""
        tally = self._tallies[self._place(operation)]
        tally.calls += 1
        if added is not None:
            results = args[0] if result is None else result
            number, absorbed = added.count([results] if isinstance(results, torch.Tensor) else results)
            tally.additions += number
            tally.absorbed += absorbed

    def report(self) -> Report:
        """What was seen so far."""
        return Report.of(self._format, self._tallies, self._birth)

    def _place(self, operation: OpOverload) -> Place:
        name = operation.overloadpacket.__name__
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  inside the autograd engine
            return Place("backward", "", name)
        if self._optimizers:
            return Place("optimizer", "", name)
        return Place("forward", self._modules[-1] if self._modules else "", name)

    def _module_begins(self, module: torch.nn.Module, _arguments: Any) -> None:
        if module not in self._names:
            root = self._modules[-1] if self._modules else type(module).__name__
            for name, child in module.named_modules():
                self._names.setdefault(child, f"{root}.{name}" if name else root)
        self._modules.append(self._names[module])

    def _module_ends(self, _module: torch.nn.Module, _arguments: Any, _result: Any) -> None:
        self._modules.pop()

    def _optimizer_begins(self, _optimizer: Any, _args: Any, _kwargs: Mapping[str, Any]) -> None:
        self._optimizers += 1

    def _optimizer_ends(self, _optimizer: Any, _args: Any, _kwargs: Mapping[str, Any]) -> None:
        self._optimizers -= 1


def _what(nan: int, overflow: int) -> str:
    if overflow:
        return "overflow"
    return "NaN" if nan else "infinity"


def _user_line() -> str:
    """The innermost stack line that is neither PyTorch's nor ours: ``file:line in function: source``."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_NOT_THE_USERS) and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return "unknown"
