"""The table of marks: facts about the values in a piece of memory, by its address.

A mark belongs to a storage, so all views of it share the mark. Once a simulation runs operations in C++, the C++ part
holds the table; before, and without C++, this module does.
"""

from __future__ import annotations

from typing import Final, Protocol, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_PURGE_EVERY = 1 << 12  # new addresses


@final
class Mark:
    """The bits of the table; ``memory.h`` has the same values."""

    INTEGERS: Final = 1
    """Holds only integers: counts, steps, positions."""
    CHANGED: Final = 2
    """Holds results of few operations on integers that rounding has changed."""
    PARAMETER: Final = 4
    """Holds a registered parameter, or results of moves, casts and elementwise operations on parameters."""
    LEAF: Final = 8
    """Holds another leaf that requires a gradient, or a move or cast of one."""
    BUFFER: Final = 16
    """Holds a matrix that a module keeps in its state."""
    PERHAPS: Final = 32
    """Holds what may be a weight; see :class:`~..operands.weights.Certainty`."""
    NOISE: Final = 64
    """Holds random draws, or results of operations on random draws only."""
    ACTIVATION: Final = 128
    """Was multiplied by a product of the forward pass."""
    WEIGHTED: Final = 256
    """Was multiplied with a weight by a product of the forward pass."""
    INSIDE: Final = 512
    """Was computed in the simulation, so it is not an input."""
    DATA: Final = 1024
    """Holds a buffer that is not a weight."""
    ANGLES: Final = 2048
    """Holds angles of positions that are equal after rounding to the format."""
    MEASURE: Final = 4096
    """Holds one value, a loss or an average, with a visible digit changed by rounding."""

    WEIGHTS: Final = PARAMETER | LEAF | BUFFER | PERHAPS
    SET_BY_NATIVE: Final = INTEGERS | ACTIVATION | WEIGHTED | INSIDE


class NativeTable(Protocol):
    """The table of a simulation in C++."""

    def marks(self, address: int) -> int:
        """Returns the bits of a storage."""

    def set_marks(self, address: int, on: int, off: int) -> None:
        """Sets some bits of a storage, which must be alive, and clears others."""


@final
class Marks:
    """Remembers bits for the memory of tensors, without keeping the memory alive.

    A weak reference keeps an address from being given to other memory, so the bits found are the bits that were set.
    """

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._references: dict[int, StorageWeakRef] = {}
        self._purge_at = _PURGE_EVERY
        self._native: NativeTable | None = None
        self._used = 0

    def move_to(self, native: NativeTable) -> None:
        """Moves all marks to C++, which holds them from now on."""
        for address, bits in self._bits.items():
            if not self._references[address].expired():  # type: ignore[no-untyped-call]
                native.set_marks(address, bits, 0)
        self._bits, self._references = {}, {}
        self._native, self._used = native, self._used | Mark.SET_BY_NATIVE

    def may_have(self, bits: int) -> bool:
        """Whether some memory may have one of these bits; false if none ever had."""
        return bool(self._used & bits)

    def of(self, x: torch.Tensor) -> int:
        """Returns the bits of the memory of ``x``; 0 for sparse and other layouts."""
        if not self._used or x.layout is not torch.strided:
            return 0
        address = x.untyped_storage()._cdata  # noqa: SLF001  StorageWeakRef also uses it
        return self._bits.get(address, 0) if self._native is None else self._native.marks(address)

    def add(self, x: torch.Tensor, bits: int) -> None:
        """Sets bits of the memory of ``x``."""
        if x.layout is not torch.strided:
            return
        self._used |= bits
        storage = x.untyped_storage()
        address = storage._cdata  # noqa: SLF001  as above
        if self._native is not None:
            self._native.set_marks(address, bits, 0)
            return
        if address not in self._references:
            self._references[address] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            if len(self._references) > self._purge_at:
                self._purge()
        self._bits[address] = self._bits.get(address, 0) | bits

    def remove(self, x: torch.Tensor, bits: int) -> None:
        """Clears bits of the memory of ``x``."""
        if not self._used & bits or x.layout is not torch.strided:
            return
        address = x.untyped_storage()._cdata  # noqa: SLF001  as above
        if self._native is not None:
            self._native.set_marks(address, 0, bits)
        elif address in self._bits:
            self._bits[address] &= ~bits

    def _purge(self) -> None:
        references = list(self._references.items())  # other threads may add to it
        dead = [address for address, reference in references if reference.expired()]  # type: ignore[no-untyped-call]
        for address in dead:
            self._references.pop(address, None)
            self._bits.pop(address, None)
        self._purge_at = 2 * len(self._references) + _PURGE_EVERY
