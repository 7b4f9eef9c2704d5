"""A set of pieces of memory that tensors lie in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    import torch

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

    def __contains__(self, x: torch.Tensor) -> bool:
        return x.untyped_storage()._cdata in self._references  # noqa: SLF001  what StorageWeakRef goes by
