"""One inspection of a step: the modules, optimizers and tensors that its code can reach, and its other dependencies."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from numbers import Number as PythonNumber
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final, final
from weakref import ReferenceType

import torch

from ....formats import FormatError
from ....formats.cpu.content_names import names_in
from ...dispatch.simulation import Simulation
from ..slots import Slot, Slots, items_of
from .found import NUMBERS, Attributes, ByIdentity, ContainerWatch, Findings, check_hooks, identity

HOW: Final = "name what the step uses: roundoff.compile(step, simulation, modules=[...], optimizers=[...])"

_MOST = 200_000  # parts of the structure around a step
_CONSTANT = (
    type(None), PythonNumber, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
    Enum, range,
)  # fmt: skip
_ALWAYS = {*sys.stdlib_module_names, "torch", "numpy", "roundoff"} - {"__main__"}
_SPECIAL = (
    "call getitem len iter next enter exit getattr contains bool int float index neg pos abs add radd iadd sub rsub"
    " isub mul rmul imul truediv rtruediv pow rpow matmul rmatmul"
)
_CALLED = {"forward", *(f"__{name}__" for name in _SPECIAL.split())}  # methods that are called without a name
_INSTALLED = ("site-packages", "dist-packages")


@final
class Libraries:
    """Python modules with code that is not inspected: modules of Python, PyTorch, and installed packages.

    Args:
        module: The module of the step; its package does not count as a library, wherever it is installed.
    """

    def __init__(self, module: str | None) -> None:
        self._is_library: dict[str, bool] = {} if module is None else {module.partition(".")[0]: False}

    def __contains__(self, module: object) -> bool:
        if not isinstance(module, str):
            return True
        root = module.partition(".")[0]
        if root not in self._is_library:
            file = getattr(sys.modules.get(root), "__file__", None) or ""
            self._is_library[root] = root in _ALWAYS or any(folder in file for folder in _INSTALLED)
        return self._is_library[root]


def methods(kind: type, libraries: Libraries) -> Iterator[tuple[str, FunctionType]]:
    """The functions of a class and its bases, by name: methods, properties; none of libraries."""
    for base in kind.__mro__:
        if base.__module__ not in libraries:
            for name, value in vars(base).items():
                for function in _functions(value):
                    yield name, function


def _functions(value: Any) -> list[FunctionType]:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    parts = [value]
    if isinstance(value, property):
        parts = [value.fget, value.fset]
    elif isinstance(value, functools.cached_property):
        parts = [value.func]
    return [part for part in parts if isinstance(part, FunctionType)]


@final
class Walk:
    """Looks around a step.

    Args:
        names: names of attributes that the step's code uses, as far as they are known; others are added to them.
        libraries: modules with code that is not inspected.
        varying: keys of an optimizer's parameter groups with numbers that may differ in every call.
    """

    def __init__(self, names: set[str], libraries: Libraries, varying: Iterable[str]) -> None:
        self._names, self._libraries, self._varying = names, libraries, frozenset(varying)
        self._visited: dict[int, int] = {}
        self._classes: set[int] = set()
        self._kinds: dict[type, Any] = {  # in this order: the first type of a value counts
            torch.optim.Optimizer: self._optimizer, torch.nn.Module: self._module,
            SimpleNamespace: self._all_attributes, dict: self._dict,
            list: self._list, set: self._set, MethodType: self._method, partial: self._partial,
            Simulation: self._simulation, type: self._type,
        }  # fmt: skip
        self.findings = Findings(Slots(torch.Tensor), Slots(NUMBERS), {}, [], [], [], [], [], ContainerWatch())

    def visit(self, value: Any, path: str, slot: Slot | None = None) -> None:
        """Inspects a value; ``slot`` is its place, None if nothing else can be put there."""
        if isinstance(value, _CONSTANT):
            self._part(path, identity(value))
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path)
            if slot is None:
                raise FormatError(f"{path} is a tensor where compile cannot put another in its place; {HOW}")
            self.findings.tensors.add(slot)
        elif isinstance(value, ReferenceType) and isinstance(value(), torch.Tensor):
            self._part(path, ReferenceType)  # to a stand-in while the step is traced: layers such as LSTM renew theirs
        elif isinstance(value, tuple):
            items = tuple.__getitem__(value, slice(None))  # a subclass may define other lengths and items
            self._part(path, (type(value), len(items)))
            for i, item in enumerate(items):
                self.visit(item, f"{path}[{i}]", slot)
        else:
            looker = self._looker(value)
            if looker is None:
                self._part(path, ByIdentity(value))
            elif self._is_new(value, path):
                self._part(path, type(value))
                looker(value, path, slot)

    def _part(self, path: str, part: Any) -> None:
        self.findings.parts.append((path, part))

    def _is_new(self, value: Any, path: str) -> bool:
        number = self._visited.get(id(value))
        if number is not None:  # its second place is part of the structure; a cycle also ends here
            self._part(path, ("as before", number))
            return False
        self._visited[id(value)] = len(self._visited)
        if len(self.findings.parts) > _MOST:
            raise FormatError(f"there is too much around the step to look through, at {path}; {HOW}")
        return True

    def _tensor(self, x: torch.Tensor, path: str) -> None:
        check_hooks([x], path)
        if x.layout is not torch.strided:
            raise FormatError(f"{path} is {x.layout}, and tensors around a step must be dense")
        self._part(path, torch.Tensor)

    def _looker(self, value: Any) -> Callable[[Any, str, Slot | None], None] | None:
        """Returns the function that looks into a value; None if the value is a constant as it is."""
        for kind, looker in self._kinds.items():
            if isinstance(value, kind):
                return looker  # type: ignore[no-any-return]
        if isinstance(value, FunctionType):
            return None if value.__module__ in self._libraries else self._function
        if not hasattr(value, "__dict__"):
            return None
        if hasattr(value, "__wrapped__"):
            return self._wrapper
        module = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
        if module.startswith("torch.") and not isinstance(value, ModuleType):  # code of PyTorch may use any attribute
            return self._all_attributes
        return None if module in self._libraries else self._attributes

    def _optimizer(self, optimizer: torch.optim.Optimizer, path: str, _: Slot | None) -> None:
        self.findings.optimizers.append(optimizer)
        self._class(type(optimizer), path)
        self.findings.states.append(f"{path}.state")
        attributes = vars(optimizer)
        self.findings.watch.dict(attributes)
        for key, value in attributes.items():
            if key != "param_groups":  # their numbers may be inputs of a program: see _group
                self.visit(value, f"{path}.{key}", Slot(f"{path}.{key}", attributes, key))
        groups = optimizer.param_groups
        self.findings.watch.list(groups)
        for i, group in enumerate(groups):
            self._group(group, f"{path}.param_groups[{i}]")

    def _group(self, group: dict[str, Any], path: str) -> None:
        varying = [key for key, value in group.items() if key in self._varying and items_of(value, NUMBERS)]
        self.findings.watch.part(group, [key for key in group if key not in varying], growing=False)
        for key, value in group.items():
            slot = Slot(f"{path}[{key!r}]", group, key)
            if key in varying:
                self.findings.numbers.add(slot)
                self._part(slot.path, ("numbers", len(items_of(value, NUMBERS))))
            else:
                self._part(path, key)
                self.visit(value, slot.path, slot)
                if floats := items_of(value, NUMBERS):
                    self.findings.settings[slot.path] = key, tuple(floats)

    def _module(self, module: torch.nn.Module, path: str, _: Slot | None) -> None:
        self.findings.modules.append(module)
        self._class(type(module), path)
        self._items(vars(module), path, ".{}")

    def _all_attributes(self, value: Any, path: str, _: Slot | None) -> None:
        self._items(vars(value), path, ".{}")

    def _dict(self, value: dict[Any, Any], path: str, slot: Slot | None) -> None:
        if any(isinstance(key, torch.Tensor) for key in value):  # such as an optimizer's state
            if slot is None:
                raise FormatError(f"{path} has tensors for keys, where compile cannot put others in their place; {HOW}")
            self.findings.keyed.append(slot)
        self._items(value, path, "[{!r}]")

    def _items(self, value: dict[Any, Any], path: str, form: str) -> None:
        self.findings.watch.dict(value)
        for i, (key, item) in enumerate(value.items()):
            keyed = isinstance(key, torch.Tensor)  # such keys are replaced, so their position names them
            place = path + (f"[{i}]" if keyed else form.format(key))
            self._part(place, torch.Tensor if keyed else identity(key))
            self.visit(item, place, Slot(place, value, key))

    def _list(self, value: list[Any], path: str, _: Slot | None) -> None:
        self.findings.watch.list(value)
        self._part(path, len(value))
        for i, item in enumerate(value):
            self.visit(item, f"{path}[{i}]", Slot(f"{path}[{i}]", value, i))

    def _set(self, value: set[Any], path: str, _: Slot | None) -> None:
        self.findings.watch.set(value)
        self._part(
            path, frozenset([identity(item) if isinstance(item, _CONSTANT) else ByIdentity(item) for item in value])
        )

    def _function(self, function: FunctionType, path: str, _: Slot | None) -> None:
        code = function.__code__
        self._part(path, ByIdentity(code))
        used = names_in(code)
        self._names |= used
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if _is_filled(cell) and self._is_new(cell, name):
                self.findings.watch.cell(cell)
                self.visit(cell.cell_contents, name, Slot(name, cell))
        # A library's wrapper, such as PyTorch's around an optimizer's step, closes over the function that it wraps.
        if function.__globals__.get("__name__") not in self._libraries:
            globals_used = sorted(used & function.__globals__.keys())
            self._keys(function.__globals__, globals_used, "", growing=True)
        self.visit((function.__defaults__, function.__kwdefaults__), f"{path}'s defaults")

    def _simulation(self, simulation: Simulation, path: str, _: Slot | None) -> None:
        self.findings.watch.part(vars(simulation), ["changes"], growing=True)
        self._part(path, (ByIdentity(simulation), simulation.changes))

    def _method(self, method: MethodType, path: str, _: Slot | None) -> None:
        self.visit(method.__func__, path)
        self.visit(method.__self__, path.rpartition(".")[0] or "self")

    def _partial(self, value: partial[Any], path: str, _: Slot | None) -> None:
        self.visit(value.func, path)
        self.visit((value.args, value.keywords), f"{path}'s arguments")

    def _wrapper(self, value: Any, path: str, _: Slot | None) -> None:
        self.visit(value.__wrapped__, path)

    def _attributes(self, value: Any, path: str, _: Slot | None) -> None:
        attributes = vars(value)
        if not isinstance(value, ModuleType):
            self._class(type(value), path)
        self._keys(attributes, sorted(self._names & attributes.keys()), f"{path}.", growing=False)

    def _keys(self, holder: Any, keys: list[str], prefix: str, *, growing: bool) -> None:
        self.findings.watch.part(holder, keys, growing=growing)
        for key in keys:
            self._part(prefix, key)
            self.visit(holder[key], prefix + key, Slot(prefix + key, holder, key))

    def _type(self, kind: type, path: str, _: Slot | None) -> None:
        self._part(path, ByIdentity(kind))
        self._class(kind, path)

    def _class(self, kind: type, path: str) -> None:
        """Inspects the attributes and methods that are used."""
        for base in kind.__mro__:
            if base.__module__ not in self._libraries and id(base) not in self._classes:
                self._classes.add(id(base))
                used = sorted((self._names | _CALLED) & vars(base).keys())
                self._keys(Attributes(base), used, f"{path}.", growing=True)
        for name, function in methods(kind, self._libraries):
            # PyTorch's code, which is not inspected, calls the first two.
            if (name in self._names or name in _CALLED) and self._is_new(function, path):
                self._function(function, f"{path}.{name}", None)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  it raises if nothing was assigned yet
    except ValueError:
        return False
    return True
