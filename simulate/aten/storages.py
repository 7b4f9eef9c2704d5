"""A set of pieces of memory that tensors lie in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from collections.abc import Callable

_PURGE_EVERY = 1 << 12


class Storages:
    """The memory of tensors, remembered without keeping it alive.

    A weak reference keeps the address from being given to other memory, so that what is found is what was added.
    """

    def __init__(self) -> None:
        self._references: dict[int, StorageWeakRef] = {}
        self._purge_at = _PURGE_EVERY
        self._told: Callable[[int, bool], None] | None = None
        self._others: Callable[[int], bool] | None = None

    def tell(self, told: Callable[[int, bool], None]) -> None:
        """Has ``told`` called with each address, now or once it is added, and True; once it is removed, False."""
        self._told = told
        for key in self._references:
            told(key, True)

    def ask(self, others: Callable[[int], bool]) -> None:
        """Has ``others`` asked, too, whether an address is one of them."""
        self._others = others

    def add(self, x: torch.Tensor) -> None:
        """Remembers the memory of ``x``."""
        reference = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
        if self._told and reference.cdata not in self._references:
            self._told(reference.cdata, True)
        self._references[reference.cdata] = reference
        if len(self._references) > self._purge_at:
            for key in [key for key, ref in list(self._references.items()) if ref.expired()]:  # type: ignore[no-untyped-call]
                self._forget(key)
            self._purge_at = 2 * len(self._references) + _PURGE_EVERY

    def remove(self, x: torch.Tensor) -> None:
        """Forgets the memory of ``x``, if it was remembered, and has others forget it."""
        if x.layout is torch.strided:
            key = x.untyped_storage()._cdata  # noqa: SLF001  what StorageWeakRef goes by
            if self._others is not None and self._told and key not in self._references:
                self._told(key, False)
            self._forget(key)

    def _forget(self, key: int) -> None:
        if self._references.pop(key, None) is not None and self._told:
            self._told(key, False)

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return bool(self._references) or self._others is not None

    def __contains__(self, x: torch.Tensor) -> bool:
        if (not self._references and self._others is None) or x.layout is not torch.strided:
            return False
        key = x.untyped_storage()._cdata  # noqa: SLF001  what StorageWeakRef goes by
        return key in self._references or (self._others is not None and self._others(key))
