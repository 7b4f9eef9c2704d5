"""What is found around a step: places that hold tensors and numbers, and constants."""

from __future__ import annotations

from numbers import Number as PythonNumber
from types import CellType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roundoff.simulate.watch import Watch


class Slot(NamedTuple):
    """A place in which something can be put: a key of a dict or list, or a variable that a closure holds."""

    path: str
    holder: Any
    key: Any = None

    @property
    def value(self) -> Any:
        """What is there."""
        return self.holder.cell_contents if isinstance(self.holder, CellType) else self.holder[self.key]

    def put(self, value: object) -> None:
        """Puts something else there."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value


class Found(NamedTuple):
    """What one look has found, in an order that depends on the structure alone."""

    slots: list[Slot]
    """Where tensors are, or tuples with tensors in them."""
    numbers: list[Slot]
    """Where numbers are that may be others in every call, or tuples of them."""
    settings: dict[str, tuple[str, tuple[float, ...]]]
    """The other numbers of an optimizer's parameter groups: the key of each, and its values."""
    keyed: list[Slot]
    """Where dicts are whose keys are tensors."""
    states: list[str]
    """Where optimizers have their state."""
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    parts: list[tuple[str, Any]]
    """Constants and structure, each with where it is."""
    watch: Watch


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors that the value of a slot is, or that are in its tuples."""
    if isinstance(value, tuple):
        return [x for item in value for x in tensors_of(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def floats_of(value: Any) -> list[float]:
    """The floats, likewise; numbers without values among them."""
    if isinstance(value, tuple):
        return [x for item in value for x in floats_of(item)]
    return [value] if isinstance(value, (float, torch.SymFloat)) else []  # type: ignore[list-item]


def filled(value: Any, kind: Any, news: Iterator[Any]) -> Any:
    """The value of a slot with the next of ``news`` for each that is of a kind."""
    if isinstance(value, tuple):
        items = [filled(item, kind, news) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return next(news) if isinstance(value, kind) else value


class Same:
    """An object that is a constant: equal to itself alone."""

    __slots__ = ("what",)

    def __init__(self, what: object) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.what is self.what

    def __hash__(self) -> int:
        return id(self.what)

    def __repr__(self) -> str:
        return f"another {type(self.what).__name__}"


def identity(constant: Any) -> Any:
    """What two constants must have in common to be the same to a program: 0.0 and -0.0 or 1, 1.0 and True are not."""
    return type(constant), repr(constant) if isinstance(constant, PythonNumber) else constant
