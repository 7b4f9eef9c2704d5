"""A set of pieces of memory that tensors lie in."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_PURGE_EVERY = 1 << 12


class Storages:
    """The memory of tensors, remembered without keeping it alive.

    A weak reference keeps the address from being given to other memory, so that what is found is what was added.
    """

    def __init__(self) -> None:
        self._references: dict[int, StorageWeakRef] = {}
        self._purge_at = _PURGE_EVERY

    def add(self, x: torch.Tensor) -> None:
        """Remembers the memory of ``x``."""
        reference = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
        self._references[reference.cdata] = reference
        if len(self._references) > self._purge_at:
            self._references = {key: ref for key, ref in self._references.items() if not ref.expired()}  # type: ignore[no-untyped-call]
            self._purge_at = 2 * len(self._references) + _PURGE_EVERY

    def remove(self, x: torch.Tensor) -> None:
        """Forgets the memory of ``x``, if it was remembered."""
        if x.layout is torch.strided:
            self._references.pop(x.untyped_storage()._cdata, None)  # noqa: SLF001  what StorageWeakRef goes by

    def __bool__(self) -> bool:
        return bool(self._references)

    def __contains__(self, x: torch.Tensor) -> bool:
        if not self._references or x.layout is not torch.strided:
            return False
        return x.untyped_storage()._cdata in self._references  # noqa: SLF001  what StorageWeakRef goes by
