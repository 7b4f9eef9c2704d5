"""One look around a step: the modules, optimizers and tensors that its code can reach, and what else it depends on."""

from __future__ import annotations

from enum import Enum
from functools import partial
from numbers import Number as PythonNumber
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import torch

from roundoff.formats import FormatError
from roundoff.simulate.code_names import Libraries, methods, names_in
from roundoff.simulate.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HOW: Final = "name what the step uses: roundoff.compile(step, simulation, modules=[...], optimizers=[...])"

_MOST = 200_000
_PLAIN = (str, bytes, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, Enum, range)
_HOOKS = ("_post_accumulate_grad_hooks", "_backward_hooks")


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


@final
class Walk:
    """Looks around a step.

    Args:
        names: of attributes that the step's code uses, as far as they are known; others are added to them.
        libraries: whose code is not looked into.
        varying: keys of an optimizer's parameter groups whose numbers may be others in every call.
    """

    def __init__(self, names: set[str], libraries: Libraries, varying: Iterable[str]) -> None:
        self._names, self._libraries, self._varying = names, libraries, frozenset(varying)
        self._seen: dict[int, int] = {}
        self.found = Found([], [], {}, [], [], [], [], [], Watch())

    def visit(self, value: Any, path: str, slot: Slot | None = None) -> None:
        """Looks at a value, which is in ``slot``, if it is anywhere where something else could be put."""
        if value is None or isinstance(value, (PythonNumber, *_PLAIN)):
            self._part(path, identity(value))
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path)
            self._add_slot(slot, path)
        elif isinstance(value, tuple):
            self._tuple(value, path, slot)
        else:
            looker = self._looker(value)
            if looker is None:
                self._part(path, Same(value))
            elif self._is_new(value, path):
                self._part(path, type(value))
                looker(value, path, slot)

    def _part(self, path: str, part: Any) -> None:
        self.found.parts.append((path, part))

    def _is_new(self, value: Any, path: str) -> bool:
        number = self._seen.get(id(value))
        if number is not None:
            self._part(path, ("as before", number))
            return False
        self._seen[id(value)] = len(self._seen)
        if len(self.found.parts) > _MOST:
            raise FormatError(f"there is too much around the step to look through, at {path}; {HOW}")
        return True

    def _add_slot(self, slot: Slot | None, path: str) -> None:
        if slot is None:
            raise FormatError(f"{path} is a tensor where compile cannot put another in its place; {HOW}")
        if not self.found.slots or self.found.slots[-1] is not slot:
            self.found.slots.append(slot)

    def _tensor(self, x: torch.Tensor, path: str) -> None:
        if any(getattr(x, hooks, None) for hooks in _HOOKS):
            raise FormatError(f"{path} has hooks, which a program would not call")
        self._part(path, torch.Tensor)

    def _tuple(self, value: tuple[Any, ...], path: str, slot: Slot | None) -> None:
        self._part(path, (type(value), len(value)))
        for i, item in enumerate(value):
            self.visit(item, f"{path}[{i}]", slot)

    def _looker(self, value: Any) -> Callable[[Any, str, Slot | None], None] | None:
        """How to look into a value; None if it is a constant as it is."""
        if isinstance(value, torch.optim.Optimizer):
            return self._optimizer
        if isinstance(value, torch.nn.Module):
            return self._module
        if isinstance(value, dict):
            return self._dict
        if isinstance(value, list):
            return self._list
        if isinstance(value, FunctionType):
            return None if value.__module__ in self._libraries else self._function
        if isinstance(value, MethodType):
            return self._method
        if isinstance(value, partial):
            return self._partial
        if isinstance(value, ModuleType):
            return None if value.__name__ in self._libraries else self._attributes
        if isinstance(value, type) or not hasattr(value, "__dict__"):
            return None
        if hasattr(value, "__wrapped__"):
            return self._wrapper
        if isinstance(value, SimpleNamespace) or type(value).__module__.startswith("torch."):
            return self._all_attributes
        return None if type(value).__module__ in self._libraries else self._attributes

    def _optimizer(self, optimizer: torch.optim.Optimizer, path: str, _: Slot | None) -> None:
        self.found.optimizers.append(optimizer)
        self._class(type(optimizer), path)
        self.found.states.append(f"{path}.state")
        own = vars(optimizer)
        self.found.watch.dict(own)
        for key, value in own.items():
            if key != "param_groups":
                self.visit(value, f"{path}.{key}", Slot(f"{path}.{key}", own, key))
        groups = optimizer.param_groups
        self.found.watch.list(groups)
        for i, group in enumerate(groups):
            self._group(group, f"{path}.param_groups[{i}]")

    def _group(self, group: dict[str, Any], path: str) -> None:
        varying = [key for key, value in group.items() if key in self._varying and floats_of(value)]
        self.found.watch.part(group, [key for key in group if key not in varying], growing=False)
        for key, value in group.items():
            slot = Slot(f"{path}[{key!r}]", group, key)
            if key in varying:
                self.found.numbers.append(slot)
                self._part(slot.path, ("numbers", len(floats_of(value))))
            else:
                self._part(path, key)
                self.visit(value, slot.path, slot)
                if floats := floats_of(value):
                    self.found.settings[slot.path] = key, tuple(floats)

    def _module(self, module: torch.nn.Module, path: str, _: Slot | None) -> None:
        self.found.modules.append(module)
        self._class(type(module), path)
        self._items(vars(module), path, ".{}")

    def _all_attributes(self, value: Any, path: str, _: Slot | None) -> None:
        self._items(vars(value), path, ".{}")

    def _dict(self, value: dict[Any, Any], path: str, slot: Slot | None) -> None:
        if any(isinstance(key, torch.Tensor) for key in value):
            if slot is None:
                raise FormatError(f"{path} has tensors for keys, where compile cannot put others in their place; {HOW}")
            self.found.keyed.append(slot)
        self._items(value, path, "[{!r}]")

    def _items(self, value: dict[Any, Any], path: str, form: str) -> None:
        self.found.watch.dict(value)
        for i, (key, item) in enumerate(value.items()):
            keyed = isinstance(key, torch.Tensor)
            place = path + (f"[{i}]" if keyed else form.format(key))
            self._part(place, torch.Tensor if keyed else identity(key))
            self.visit(item, place, Slot(place, value, key))

    def _list(self, value: list[Any], path: str, _: Slot | None) -> None:
        self.found.watch.list(value)
        self._part(path, len(value))
        for i, item in enumerate(value):
            self.visit(item, f"{path}[{i}]", Slot(f"{path}[{i}]", value, i))

    def _function(self, function: FunctionType, path: str, _: Slot | None) -> None:
        code = function.__code__
        self._part(path, Same(code))
        used = names_in(code)
        self._names |= used
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if _is_filled(cell) and self._is_new(cell, name):
                self.found.watch.cell(cell)
                self.visit(cell.cell_contents, name, Slot(name, cell))
        globals_used = sorted(used & function.__globals__.keys())
        self._some(function.__globals__, globals_used, "", growing=True)
        defaults = (function.__defaults__, function.__kwdefaults__)
        self.visit(defaults, f"{path}'s defaults")

    def _method(self, method: MethodType, path: str, _: Slot | None) -> None:
        self.visit(method.__func__, path)
        self.visit(method.__self__, path.rpartition(".")[0] or "self")

    def _partial(self, value: partial[Any], path: str, _: Slot | None) -> None:
        self.visit(value.func, path)
        self.visit((value.args, value.keywords), f"{path}'s arguments")

    def _wrapper(self, value: Any, path: str, _: Slot | None) -> None:
        self.visit(value.__wrapped__, path)

    def _attributes(self, value: Any, path: str, _: Slot | None) -> None:
        own = vars(value)
        if not isinstance(value, ModuleType):
            self._class(type(value), path)
        self._some(own, sorted(self._names & own.keys()), f"{path}.", growing=False)

    def _some(self, holder: dict[str, Any], keys: list[str], prefix: str, *, growing: bool) -> None:
        self.found.watch.part(holder, keys, growing=growing)
        for key in keys:
            self._part(prefix, key)
            self.visit(holder[key], prefix + key, Slot(prefix + key, holder, key))

    def _class(self, kind: type, path: str) -> None:
        """Looks at the methods that are used."""
        for name, function in methods(kind, self._libraries):
            if (name in self._names or name in ("forward", "__call__")) and self._is_new(function, path):
                self._function(function, f"{path}.{name}", None)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  it raises if nothing was assigned yet
    except ValueError:
        return False
    return True
