"""Counts memory: the bits of every live storage that a simulation has seen, and their maximum over time."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

import torch

from ...formats import Format
from ..aten.wrappers import has_own_memory


class StoredElements:
    """The elements of one storage: their number and format.

    Attributes:
        elements: the number of elements of the tensor's dtype.
        format: their format in memory; None for the dtype's own.
        dtype: dtype of the last tensor that was seen with this storage.
        bits: bits of the whole storage.
        lives: whether it counts as live memory: a copy that represents another tensor in a wider dtype does not.
        is_parameter: whether its tensor is a parameter, or a leaf that requires a gradient.
        from_outside: whether it existed before the simulation computed anything into it.
    """

    __slots__ = (
        "bits", "dtype", "elements", "format", "from_outside", "is_parameter", "key", "lives", "reference",
    )  # fmt: skip

    def __init__(self, key: int, *, lives: bool, from_outside: bool) -> None:
        self.key = key
        self.reference: weakref.ref[torch.UntypedStorage] | None = None
        self.elements = self.bits = 0
        self.format: Format | None = None
        self.dtype = torch.float32
        self.lives = lives
        self.is_parameter = False
        self.from_outside = from_outside

    def of_part(self, elements: int) -> float:
        """Returns the bits of some of its elements, with their share of scales."""
        return self.bits if elements == self.elements else self.bits * elements / max(self.elements, 1)


class Memory:
    """The live storages that a simulation has seen, with their bits.

    A storage is followed from the first operation that sees it until PyTorch frees it.

    Attributes:
        live_bits: bits of all live memory.
        peak_bits: the maximum of ``live_bits`` so far.
    """

    def __init__(self) -> None:
        self._storages: dict[int, StoredElements] = {}
        self._freed: deque[StoredElements] = deque()  # filled at any time, also by garbage collection
        self.live_bits = self.peak_bits = 0

    def settle(self) -> None:
        """Forgets freed storages."""
        while self._freed:
            stored = self._freed.popleft()
            if self._storages.get(stored.key) is stored:  # else the address has been given to new memory
                del self._storages[stored.key]
                self.live_bits -= stored.bits if stored.lives else 0

    def find(self, x: torch.Tensor) -> StoredElements | None:
        """Returns the record of the storage of ``x``; None if it is unknown."""
        return self._storages.get(x.untyped_storage()._cdata)  # noqa: SLF001  the identity of a storage

    def see(self, x: torch.Tensor) -> StoredElements:
        """Returns the record of an operand's storage; makes one with its dtype's format for a tensor from outside."""
        stored = self.find(x)
        if stored is None:
            stored = self._new(x, lives=True, from_outside=True)
            self._write(stored, x, None)
            stored.is_parameter = isinstance(x, torch.nn.Parameter) or (x.requires_grad and x.is_leaf)
        return stored

    def put(self, x: torch.Tensor, format: Format | None) -> StoredElements:
        """Notes that values of a format were written to ``x``; None for the dtype's own format."""
        stored = self.find(x) or self._new(x, lives=True, from_outside=False)
        self._write(stored, x, format)
        return stored

    def stand_in(self, x: torch.Tensor, original: torch.Tensor) -> None:
        """Notes that ``x`` holds the values of ``original``, for one operation, and does not count as separate memory.

        If only ``x`` is known, it is the reverse: ``x`` is the narrow result that stays, and ``original`` its copy.
        """
        source, target = self.find(original), self.find(x)
        if target is None and source is not None and original.element_size() > x.element_size():
            self._write(source, original, source.format, lives=False)
            result = self.put(x, source.format)
            result.from_outside = False
            return
        if target is not None:  # an argument that was written to
            self._write(target, x, None if source is None else source.format)
            return
        source = self.see(original)
        stored = self._new(x, lives=False, from_outside=False)
        self._write(stored, x, source.format)
        stored.bits, stored.elements = source.bits, source.elements

    def living(self) -> list[StoredElements]:
        """Lists all live storages."""
        self.settle()
        return [stored for stored in self._storages.values() if stored.lives]

    def storages(self, tensors: Iterable[torch.Tensor]) -> list[StoredElements]:
        """Lists the storages of tensors, each once."""
        return list(dict.fromkeys(self.see(x) for x in tensors if has_own_memory(x)))

    def _new(self, x: torch.Tensor, *, lives: bool, from_outside: bool) -> StoredElements:
        storage = x.untyped_storage()
        stored = StoredElements(storage._cdata, lives=lives, from_outside=from_outside)  # noqa: SLF001  its identity
        freed = self._freed
        stored.reference = weakref.ref(storage, lambda _: freed.append(stored))
        self._storages[stored.key] = stored
        return stored

    def _write(
        self, stored: StoredElements, x: torch.Tensor, format: Format | None, *, lives: bool | None = None
    ) -> None:
        live_bits_before = stored.bits if stored.lives else 0
        stored.format, stored.dtype = format, x.dtype
        stored.lives = stored.lives if lives is None else lives
        stored.elements, stored.bits = _size(x, format)
        self.live_bits += (stored.bits if stored.lives else 0) - live_bits_before
        self.peak_bits = max(self.peak_bits, self.live_bits)


def _size(x: torch.Tensor, format: Format | None) -> tuple[int, int]:
    """Counts the elements in the storage of ``x``, and their bits in a format; in the shape of ``x`` if it fills it."""
    size = x.untyped_storage().nbytes()
    elements = size // x.element_size()
    if format is None:
        return elements, 8 * size
    shape = tuple(x.shape) if x.numel() == elements else (elements,)
    return elements, format.stored_bits((*shape, 2) if x.dtype.is_complex else shape)
