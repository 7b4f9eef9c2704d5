"""The narrow dtypes that represent every value of a format, so that tensor cores may compute a matrix product."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...formats import Format, FormatError
from ..aten.tensor_cores import reason_against
from .policy import Policy

# The first that fits. Products of float16 are always within float32's range; products of bfloat16 may leave it.
_CARRIERS = (torch.float16, torch.bfloat16)


@cache
def holds(dtype: torch.dtype, fmt: Format) -> bool:
    """Whether ``dtype`` represents every value of a format; False if the values depend on the data (shared scales)."""
    if not fmt.elementwise or fmt.native:
        return False
    with _disable_current_modes():
        try:
            numbers = fmt.values()
        except FormatError:  # it has more values than 16 bits
            return False
        return torch.equal(numbers.to(dtype).double(), numbers)


def carrier_of(*formats: Format | None) -> torch.dtype | None:
    """Returns the dtype that represents every value of all the formats: float16, else bfloat16; None if neither does.

    The format None means an unrounded operand, which may have any value.
    """
    if any(fmt is None for fmt in formats):
        return None
    return next((dtype for dtype in _CARRIERS if all(holds(dtype, fmt) for fmt in formats if fmt)), None)


def carriers_of_operands(policy: Policy) -> tuple[torch.dtype | None, ...]:
    """Returns the carriers of the formats that a policy rounds operands to, in its order; None for one without any."""
    formats = (policy.operands, *(rule.format if rule.about_operands else rule.operands for rule in policy.rules))
    return tuple(carrier_of(fmt) for fmt in formats if isinstance(fmt, Format))


def on_this_gpu(policy: Policy) -> tuple[torch.dtype, ...]:
    """Returns the carriers that products of a policy may use on this machine's GPU; empty without a GPU."""
    carriers = dict.fromkeys(dtype for dtype in carriers_of_operands(policy) if dtype is not None)
    if not carriers or not torch.cuda.is_available():
        return ()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # the program may be about to fork
        return tuple(carriers)
    device = torch.device("cuda", torch.cuda.current_device())
    return tuple(dtype for dtype in carriers if reason_against(dtype, device) is None)
