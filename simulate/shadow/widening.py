"""Runs an ATen operation again in float64: finds its operands, converts them, and returns its outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ..aten.collectives import communicates
from ..aten.outputs import outputs
from ..aten.schemas import argument_names, out_names, schema_of
from ..aten.tables import EMPTY, ZEROING

_aten = torch.ops.aten

# Arguments that the fused optimizers read as float32, whatever the dtype of the parameters.
_FUSED_FLOAT32 = {"state_steps", "grad_scale", "found_inf", "lr"}
# Arguments that make a random operation draw nothing, by name and value
_NOT_RANDOM = {"p": 0, "dropout_p": 0, "dropout": 0, "train": False, "training": False}

_WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip


class RerunNeeds(NamedTuple):
    """The facts about an operation that are needed to run it again."""

    name: str
    has_outcomes: bool
    """Whether the operation computes something: it is neither a view nor empty memory."""
    written: tuple[tuple[int, str], ...]
    """Arguments that are overwritten: position and name."""
    out: frozenset[str]
    """Arguments with old values that do not matter (``out=``)."""
    kept: frozenset[str]
    """Arguments that must keep their dtype."""
    lifts: bool
    """Whether the operation returns a tensor made from Python or numpy data."""
    random: bool
    communicates: bool


@cache
def rerun_needs(operation: OpOverload) -> RerunNeeds:
    """Returns the facts needed to run ``operation`` again."""
    traits = outputs(operation)
    packet = operation.overloadpacket
    # Zeros need no rounding, so `outputs` does not list the argument that such an operation writes to.
    written = ((0, "self"),) if packet in ZEROING else traits.written
    fused = schema_of(operation).name.startswith("aten::_fused_")
    return RerunNeeds(
        name=schema_of(operation).name,
        has_outcomes=(traits.results or bool(written) or traits.lifts) and packet not in EMPTY,
        written=written,
        out=frozenset(out_names(operation)),
        kept=frozenset(_FUSED_FLOAT32.intersection(argument_names(operation)) if fused else ()),
        lifts=traits.lifts,
        random=torch.Tag.nondeterministic_seeded in operation.tags,
        communicates=communicates(operation),
    )


def draws_random(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws random numbers: dropout with p = 0, for one, does not."""
    if not rerun_needs(operation).random:
        return False
    for position, argument in enumerate(schema_of(operation).arguments):
        if argument.name in _NOT_RANDOM:
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            if value is not None and value == _NOT_RANDOM[argument.name]:
                return False
    return True


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors among arguments, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def operands(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Lists the tensors that ``operation`` reads."""
    out = rerun_needs(operation).out
    return list(tensors_in((*args, *(value for name, value in kwargs.items() if name not in out))))


def outcomes(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[torch.Tensor]:
    """Lists the tensors with the values that ``operation`` computed: new results, then written arguments."""
    traits = outputs(operation)
    tensors: list[torch.Tensor] = []
    if traits.results or traits.lifts:
        values = list(result) if isinstance(result, (list, tuple)) else [result]
        viewing = traits.viewing if len(traits.viewing) == len(values) and not traits.lifts else (False,) * len(values)
        tensors += tensors_in([value for value, views in zip(values, viewing, strict=True) if not views])
    for position, name in rerun_needs(operation).written:
        tensors += tensors_in([args[position] if position < len(args) else kwargs.get(name)])
    return tensors


def run_wide(
    operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], value: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Runs ``operation`` in float64 and returns its outcomes.

    Args:
        operation: an ATen operation.
        args: its arguments.
        kwargs: its keyword arguments.
        value: returns a floating-point operand in float64; the returned tensor is not written to.

    Returns:
        The outcomes in new memory, in the order of :func:`outcomes`.
    """
    traits = rerun_needs(operation)
    arguments = argument_names(operation)
    written = {name for _, name in traits.written}
    named = [*zip(arguments, args, strict=False), *kwargs.items()]
    # Of integers, as in int / int or sqrt(int), the result would have the default dtype: they are converted.
    only_integers = not written and not any(
        x.dtype.is_floating_point or x.dtype.is_complex for x in operands(operation, args, kwargs)
    )

    def wide(argument: Any, name: str) -> Any:
        if isinstance(argument, torch.Tensor):
            if name in traits.out:  # the operation gives it shape and values
                return torch.empty(0, dtype=_WIDE.get(argument.dtype, argument.dtype), device=argument.device)
            floating = argument.dtype.is_floating_point or argument.dtype.is_complex
            if not floating and only_integers and argument.dtype is not torch.bool and argument.layout is torch.strided:
                return argument.double()
            if not floating or name in traits.kept:
                return argument.clone() if name in written else argument
            return value(argument).clone() if name in written else value(argument)
        if isinstance(argument, (list, tuple)):
            return type(argument)(wide(item, name) for item in argument)
        return _WIDE.get(argument, argument) if isinstance(argument, torch.dtype) else argument

    mapped = {name: wide(x, name) for name, x in named}
    positional = [mapped[name] for name, _ in zip(arguments, args, strict=False)]
    keywords = {name: mapped[name] for name in kwargs}
    if traits.lifts:  # the operation only hands over its operand
        return list(tensors_in(positional))
    return outcomes(operation, positional, keywords, operation(*positional, **keywords))


def create_wide(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], like: torch.Tensor) -> list[Any]:
    """Runs an operation without operands (``full``, ``linspace``) in the wide dtype for its result ``like``."""
    arguments = argument_names(operation)
    wide = _WIDE.get(like.dtype, like.dtype)
    if "dtype" not in arguments:
        return outcomes(operation, args, kwargs, operation(*args, **kwargs))
    position = arguments.index("dtype")
    if position < len(args):
        args = [*args[:position], wide, *args[position + 1 :]]
    else:
        kwargs = {**kwargs, "dtype": wide}
    return outcomes(operation, args, kwargs, operation(*args, **kwargs))
