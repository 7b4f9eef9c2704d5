"""Facts about the arguments of ATen operations, from their schemas. PyTorch offers no other access to them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload


def schema_of(operation: OpOverload) -> Any:
    """The schema: ``arguments``, ``returns``, ``name``."""
    return operation._schema  # noqa: SLF001  the only access there is


@cache
def argument_names(operation: OpOverload) -> tuple[str, ...]:
    """The arguments of an operation, in order."""
    return tuple(argument.name for argument in schema_of(operation).arguments)


@cache
def out_names(operation: OpOverload) -> tuple[str, ...]:
    """The arguments with old values that do not matter (``out=``)."""
    return tuple(argument.name for argument in schema_of(operation).arguments if argument.is_out)


@cache
def written_arguments(operation: OpOverload) -> tuple[tuple[int, str], ...]:
    """The arguments with elements that its schema marks as written: position and name.

    Operations such as ``unsqueeze_`` have the same mark, but change only the shape of an argument.
    """
    if torch.Tag.inplace_view in operation.tags:
        return ()
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(schema_of(operation).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def returns_tensors(operation: OpOverload) -> bool:
    """Whether any of its results is a tensor, or a list of some."""
    return any("Tensor" in str(value.type) for value in schema_of(operation).returns)


@cache
def number_names(operation: OpOverload) -> tuple[str, ...]:
    """The arguments that can be numbers to compute with: not sizes, axes or probabilities."""
    return tuple(
        argument.name
        for argument in schema_of(operation).arguments
        if isinstance(argument.type, (torch.NumberType, torch.TensorType))
    )
