"""Float64 twins of tensors, stored by memory, so that views, in-place operations and saved tensors share them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..aten.wrappers import has_own_memory

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Twins of freed memory are removed when this number of new twins, or bytes of them, has been added, and at least the
# number that was alive after the last removal: so removal costs a constant share of the work.
_NEW_TWINS = 256
_NEW_BYTES = 1 << 24


def is_followed(x: object) -> bool:
    """Whether ``x`` is a tensor of floating-point or complex numbers, with its own memory to identify it."""
    return isinstance(x, torch.Tensor) and (x.dtype.is_floating_point or x.dtype.is_complex) and has_own_memory(x)


def widen(x: torch.Tensor) -> torch.Tensor:
    """Copies ``x`` to float64 or complex128."""
    return x.to(torch.complex128 if x.dtype.is_complex else torch.float64, copy=True).resolve_conj().resolve_neg()


@dataclass(slots=True)
class _Memory:
    """The twin of a storage, as a flat tensor; a complex element takes two numbers."""

    storage: StorageWeakRef
    twin: torch.Tensor
    last_bits: torch.Tensor
    """The bits that the simulation wrote last: elements that differ were changed outside of it."""
    error: float


class Twins:
    """The float64 twins of all living tensors that were :meth:`put` here.

    Kept per storage, with a weak reference, as one flat float64 tensor: the twin of any view is the same view of it.
    The weak reference keeps the address of a freed storage from being given to another, so that no tensor inherits
    the twin of a dead one. Costs 8 bytes per element, and the element's own size for a copy of its bits, which
    reveals unreported changes (outside of the simulation, through numpy).

    Attributes:
        unseen: the number of elements that were changed outside; their twins start again from the new value.
    """

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self._new_twins = 0
        self._new_bytes = 0
        self._allowed_twins = _NEW_TWINS
        self._allowed_bytes = _NEW_BYTES
        self.unseen = 0

    def __len__(self) -> int:
        """Counts the storages that have twins, including freed storages that have not been noticed yet."""
        return len(self._memories)

    def has(self, x: torch.Tensor) -> bool:
        """Whether the twin of ``x`` may differ from ``x``."""
        return is_followed(x) and self._find(x) is not None

    def error(self, x: torch.Tensor) -> float:
        """Returns the error passed with the last :meth:`put` into the memory of ``x``; 0 without one."""
        memory = self._find(x) if is_followed(x) else None
        return memory.error if memory else 0.0

    def get(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the twin of ``x`` in float64 or complex128; it must not be written to, since it may not be a copy."""
        memory = self._find(x) if is_followed(x) else None
        if memory is None:
            return widen(x)
        if not torch.equal(_bit_patterns(x), memory.last_bits.as_strided(*_real_layout(x))):
            # The whole storage, since the elements of one view may overlap
            numbers = _first_values(x, len(memory.last_bits))
            bits = numbers.view(memory.last_bits.dtype)
            changed = bits != memory.last_bits
            self.unseen += int(changed.sum())
            memory.twin.copy_(torch.where(changed, numbers.double(), memory.twin))
            memory.last_bits.copy_(bits)
        return _view(memory.twin, x)

    def put(self, x: torch.Tensor, twin: torch.Tensor, error: float = 0.0) -> None:
        """Makes ``twin`` the twin of ``x``, which holds its new value already."""
        memory = self._find(x)
        if memory is None:
            memory = self._new(x)
        _view(memory.twin, x).copy_(twin)
        memory.last_bits.as_strided(*_real_layout(x)).copy_(_bit_patterns(x))  # bits, since NaN differs from NaN
        memory.error = error

    def clear_away(self) -> None:
        """Removes the twins of freed storages; :meth:`put` also calls this from time to time."""
        for key, memory in list(self._memories.items()):
            if memory.storage.expired():  # type: ignore[no-untyped-call]
                del self._memories[key]
        self._new_twins = self._new_bytes = 0
        self._allowed_twins = max(_NEW_TWINS, len(self._memories))
        self._allowed_bytes = max(_NEW_BYTES, sum(memory.twin.nbytes for memory in self._memories.values()))

    def _find(self, x: torch.Tensor) -> _Memory | None:
        storage = x.untyped_storage()
        memory = self._memories.get(storage._cdata)  # noqa: SLF001  the identity of a storage
        if memory is None or memory.last_bits.dtype != _BITS[_width(x)]:  # the same memory read as another dtype
            return None
        if memory.last_bits.nbytes // _width(x) * _width(x) != storage.nbytes() // _width(x) * _width(x):
            count = min(len(memory.last_bits), storage.nbytes() // _width(x))  # a storage that was resized
            new = self._new(x)
            new.twin[:count] = memory.twin[:count]
            new.last_bits[:count] = memory.last_bits[:count]
            return new
        return memory

    def _new(self, x: torch.Tensor) -> _Memory:
        storage = x.untyped_storage()
        count = storage.nbytes() // _width(x)
        numbers = _first_values(x, count)
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        memory = _Memory(reference, numbers.to(torch.float64, copy=True), numbers.view(_BITS[_width(x)]).clone(), 0.0)
        self._memories[storage._cdata] = memory  # noqa: SLF001
        self._new_twins += 1
        self._new_bytes += memory.twin.nbytes
        if self._new_twins > self._allowed_twins or self._new_bytes > self._allowed_bytes:
            self.clear_away()
        return memory


def _first_values(x: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the first numbers in the memory of ``x``; a complex element takes two."""
    real = x.dtype.to_real() if x.dtype.is_complex else x.dtype
    return torch.empty(0, dtype=real, device=x.device).set_(x.untyped_storage(), 0, (count,), (1,))


def _width(x: torch.Tensor) -> int:
    """Returns the bytes of a number in the memory of ``x``; a complex element takes two numbers."""
    return x.element_size() // 2 if x.dtype.is_complex else x.element_size()


def _real_layout(x: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Returns size, strides and offset of ``x``; of its real view if it is complex."""
    if x.dtype.is_complex:
        return (*x.shape, 2), (*(2 * step for step in x.stride()), 1), 2 * int(x.storage_offset())
    return tuple(x.shape), x.stride(), int(x.storage_offset())


def _bit_patterns(x: torch.Tensor) -> torch.Tensor:
    size, stride, offset = _real_layout(x)
    return torch.empty(0, dtype=_BITS[_width(x)], device=x.device).set_(x.untyped_storage(), offset, size, stride)


def _view(flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the view of ``flat`` that corresponds to ``x`` in its storage."""
    view = flat.as_strided(*_real_layout(x))  # `flat` begins where the storage does
    if x.dtype.is_complex:
        view = torch.view_as_complex(view)
    if x.is_conj():
        view = view.conj()
    return view._neg_view() if x.is_neg() else view  # noqa: SLF001  conj().imag is a negated view
