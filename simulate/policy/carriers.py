"""The narrow dtypes that hold every number of a format: a matrix product may be handed to tensor cores in them."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...formats import Format, FormatError
from ..aten.tensor_cores import reason_against
from .policy import Policy

# The first that fits. Products of float16 are always within float32's range; those of bfloat16 may leave it.
_CARRIERS = (torch.float16, torch.bfloat16)


@cache
def holds(dtype: torch.dtype, fmt: Format) -> bool:
    """Whether every number of a format is one of ``dtype``; False where the data decide which numbers it has."""
    if not fmt.elementwise or fmt.native:
        return False
    with _disable_current_modes():
        try:
            numbers = fmt.values()
        except FormatError:  # more than there are codes of 16 bits
            return False
        return torch.equal(numbers.to(dtype).double(), numbers)


def carrier_of(*formats: Format | None) -> torch.dtype | None:
    """The dtype that holds every number of all the formats: float16, else bfloat16; None if neither does.

    None represents an operand that was not rounded to a format, and may be any number.
    """
    if any(fmt is None for fmt in formats):
        return None
    return next((dtype for dtype in _CARRIERS if all(holds(dtype, fmt) for fmt in formats if fmt)), None)


def carriers_of_operands(policy: Policy) -> tuple[torch.dtype | None, ...]:
    """The carriers of the formats that a policy rounds operands to, in its order; None for one without a carrier."""
    named = (policy.operands, *(rule.format if rule.about_operands else rule.operands for rule in policy.rules))
    return tuple(carrier_of(fmt) for fmt in named if isinstance(fmt, Format))


def on_this_gpu(policy: Policy) -> tuple[torch.dtype, ...]:
    """The carriers that products of a policy may take on the GPU of this machine; empty without a GPU."""
    found = dict.fromkeys(dtype for dtype in carriers_of_operands(policy) if dtype is not None)
    if not found or not torch.cuda.is_available():
        return ()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # the program may be about to fork
        return tuple(found)
    device = torch.device("cuda", torch.cuda.current_device())
    return tuple(dtype for dtype in found if reason_against(dtype, device) is None)
