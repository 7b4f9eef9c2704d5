"""The interface of a watcher: a simulation calls it for each operation and for each rounded tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...formats import Format, Rounding
from ..accumulation.description import Accumulation
from ..accumulation.fused_sum import FusedSum

NO_OPERANDS: Mapping[tuple[str, str], Format] = MappingProxyType({})


class Place(NamedTuple):
    """The place where an operation ran."""

    role: str
    """``forward``, ``backward`` or ``optimizer``; empty if neither the policy nor a watcher uses it."""
    module: str
    """Path of the innermost running ``torch.nn.Module``; in the backward pass, of the forward operation."""
    operation: str
    """The ATen operation, without overload."""


class Call(NamedTuple):
    """An operation that a simulation runs."""

    place: Place
    format: Format
    """The format for its results."""
    operation: OpOverload | None
    """The operation; None: the whole step of an optimizer, where watchers see only roundings."""
    args: Sequence[Any]
    """The operation's arguments, with operands rounded as the policy says."""
    kwargs: Mapping[str, Any]
    given: tuple[Sequence[Any], Mapping[str, Any]]
    """The operation's arguments as the program passed them, before operands are rounded."""
    rounding: Rounding = Rounding.NEAREST_EVEN
    """The rounding of its results."""
    accumulate: Accumulation | FusedSum | None = None
    """The accumulator of its sums; None for the carrier's."""
    operands: Mapping[tuple[str, str], Format] = NO_OPERANDS
    """The formats that its operands were rounded to, by argument and product, once it has run."""
    whole: bool = False
    """Whether its results are integers, which are not rounded."""
    moves: bool = False
    """Whether it only copies values of its operands."""


class Watcher:
    """Watches a simulation: ``simulate(format, watchers=[MyWatcher()])``.

    Each method does nothing unless a subclass overrides it. The operations of a method are not simulated. In a
    simulation that several threads share, all of them call the methods.

    Attributes:
        sees_numbers: whether it reads values of tensors, so that programs cannot be traced under it.
        sees_roundings: whether :meth:`rounded` is called, which costs a copy of every result.
        backend: compiles the functions of ``torch.compile`` in the simulation; None: they run eagerly.
    """

    sees_numbers = True
    sees_roundings = False
    backend: Callable[..., Any] | None = None

    def before(self, call: Call) -> Any:
        """Called before the operation runs, which may overwrite its operands; :meth:`after` gets the returned value."""

    def rounded(self, call: Call, exact: torch.Tensor, x: torch.Tensor) -> None:
        """Called when a result, or a part of it, was rounded in place: ``exact`` is a copy of ``x`` before rounding.

        Both are float32 or float64. If the program itself computes in a narrower dtype and the result is not rounded,
        they are equal copies in float32, and ``call.format`` is the format of that dtype, if there is one.
        """

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Called when the values of a tensor were copied to one of another dtype, for an operation or after it."""

    def stored(self, x: torch.Tensor, format: Format) -> None:
        """Called when a tensor was rounded to a format outside any operation: by ``store`` or a rule about steps."""

    def module_begins(self, module: torch.nn.Module) -> None:
        """Called when a module begins its forward pass."""

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when an optimizer has made a step."""

    def after(self, call: Call, token: Any, result: Any) -> None:
        """Called when the operation has run, with its results, and the arguments that it writes to, rounded."""
