"""Memory by its life: the bits of every storage that a simulation has seen, while it lives, and the most at once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

import torch

from ...formats import Format
from ..aten.wrappers import has_own_memory


class StoredNumbers:
    """One storage: its number of elements, and their format.

    Attributes:
        elements: how many elements of its tensor it has.
        format: their format in memory; None for the dtype's own.
        dtype: dtype of the tensor that it was last seen as.
        bits: bits of the storage as a whole.
        lives: whether it counts as live memory: a copy that represents another tensor in a wider dtype does not.
        is_parameter: whether a program said that it is a parameter, or a leaf that requires a gradient.
        from_outside: whether it was there before the simulation computed anything into it.
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
        """The bits of some of its elements, with their share of scales."""
        return self.bits if elements == self.elements else self.bits * elements / max(self.elements, 1)


class Memory:
    """All storages that a simulation has seen and that live, with how many bits they take.

    A storage is followed from the first operation that sees it until PyTorch frees it.

    Attributes:
        live_bits: bits of all live memory.
        peak_bits: the most that lived at once.
    """

    def __init__(self) -> None:
        self._storages: dict[int, StoredNumbers] = {}
        self._freed: deque[StoredNumbers] = deque()  # filled while anything runs, garbage collection too
        self.live_bits = self.peak_bits = 0

    def settle(self) -> None:
        """Forgets freed storages."""
        while self._freed:
            stored = self._freed.popleft()
            if self._storages.get(stored.key) is stored:
                del self._storages[stored.key]
                self.live_bits -= stored.bits if stored.lives else 0

    def find(self, x: torch.Tensor) -> StoredNumbers | None:
        """Returns the record of the storage of ``x``; None if it is unknown."""
        return self._storages.get(x.untyped_storage()._cdata)  # noqa: SLF001  the identity of a storage

    def see(self, x: torch.Tensor) -> StoredNumbers:
        """The storage of a tensor that an operation is given; a tensor from outside has the format of its dtype."""
        known = self.find(x)
        if known is None:
            known = self._new(x, lives=True, from_outside=True)
            self._write(known, x, None)
            known.is_parameter = isinstance(x, torch.nn.Parameter) or (x.requires_grad and x.is_leaf)
        return known

    def put(self, x: torch.Tensor, format: Format | None) -> StoredNumbers:
        """Notes that numbers of a format were written to ``x``; None: of its dtype."""
        known = self.find(x) or self._new(x, lives=True, from_outside=False)
        self._write(known, x, format)
        return known

    def stand_in(self, x: torch.Tensor, other: torch.Tensor) -> None:
        """Notes that ``x`` holds the values of ``other``, for one operation, and does not count as separate memory.

        If ``other`` was not known, and ``x`` was, it is the other way round: ``x`` is the result as it is left.
        """
        source, target = self.find(other), self.find(x)
        if target is None and source is not None and other.element_size() > x.element_size():
            self._write(source, other, source.format, lives=False)
            stays = self.put(x, source.format)
            stays.from_outside = False
            return
        if target is not None:  # an argument that was written to
            self._write(target, x, None if source is None else source.format)
            return
        source = self.see(other)
        made = self._new(x, lives=False, from_outside=False)
        self._write(made, x, source.format)
        made.bits, made.elements = source.bits, source.elements

    def living(self) -> list[StoredNumbers]:
        """All storages that live."""
        self.settle()
        return [stored for stored in self._storages.values() if stored.lives]

    def storages(self, tensors: Iterable[torch.Tensor]) -> list[StoredNumbers]:
        """The storages of tensors, each once."""
        found = {id(known): known for x in tensors if has_own_memory(x) for known in (self.see(x),)}
        return list(found.values())

    def _new(self, x: torch.Tensor, *, lives: bool, from_outside: bool) -> StoredNumbers:
        storage = x.untyped_storage()
        made = StoredNumbers(storage._cdata, lives=lives, from_outside=from_outside)  # noqa: SLF001  its identity
        freed = self._freed
        made.reference = weakref.ref(storage, lambda _: freed.append(made))
        self._storages[made.key] = made
        return made

    def _write(
        self, known: StoredNumbers, x: torch.Tensor, format: Format | None, *, lives: bool | None = None
    ) -> None:
        before = known.bits if known.lives else 0
        known.format, known.dtype = format, x.dtype
        known.lives = known.lives if lives is None else lives
        known.elements, known.bits = _size(x, format)
        self.live_bits += (known.bits if known.lives else 0) - before
        self.peak_bits = max(self.peak_bits, self.live_bits)


def _size(x: torch.Tensor, format: Format | None) -> tuple[int, int]:
    """Returns the number of elements in the storage of ``x``, and of bits in a format; in its shape, if it fills it."""
    size = x.untyped_storage().nbytes()
    elements = size // x.element_size()
    if format is None:
        return elements, 8 * size
    shape = tuple(x.shape) if x.numel() == elements else (elements,)
    return elements, format.stored_bits((*shape, 2) if x.dtype.is_complex else shape)
