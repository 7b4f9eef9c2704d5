"""Functions that stand in the place of an operation, and what they come to in the calls that C++ takes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

_F = TypeVar("_F", bound="Callable[..., Any]")


class StandsFor(NamedTuple):
    """What a function computes."""

    reads: bool = False
    """The operation reads a number: something is said of one that is not finite, or after one was not."""
    power: bool = False
    """The operation takes powers: square roots alone are computed otherwise."""
    roots: Mapping[torch.dtype, Callable[..., None]] | None = None
    """Square roots by these C functions of source, target, first element and the one behind the last."""


def standing_for(function: _F, what: StandsFor) -> _F:
    """The function, with a note of what it stands for."""
    function.stands_for = what  # type: ignore[attr-defined]
    return function


def meaning_of(kernel: Any) -> StandsFor | None:
    """What a function stands for; None if nothing is known of it."""
    found = getattr(kernel, "stands_for", None)
    return found if isinstance(found, StandsFor) else None


def address(function: Callable[..., Any] | None) -> int | None:
    """Returns the address of a C function's code; None for none."""
    return None if function is None else ctypes.cast(cast("Any", function), ctypes.c_void_p).value
