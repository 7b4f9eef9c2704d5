"""Tensors of a program's own float16 and bfloat16: an operation computes with float32 copies of them.

Its results are rounded to the format in float32, once, and then stored in the dtype that the program expects, which
represents every value of the format.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ...formats import FormatError, Rounding
from ..aten.collectives import communicates
from ..aten.schemas import argument_names, returns_tensors
from ..aten.tables import plain_name
from ..policy.carriers import holds
from ..policy.rules import Role
from .plan import OperationPlan

Carried = Callable[[torch.Tensor, torch.Tensor], None]

NARROW = frozenset((torch.float16, torch.bfloat16))
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_COMPARISONS = frozenset(
    [
        "eq", "fmod", "ge", "gt", "hardshrink", "hardshrink_backward", "le", "lt", "ne", "remainder",
        "softshrink_backward",
    ]
)  # fmt: skip
"""Operations, without trailing ``_``, with kernels that convert Python numbers to the tensor's dtype: comparisons."""


class NotHeldError(FormatError):
    """A program's own dtype lacks values of the format that is to be simulated in it."""


def takes_narrow(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has float16 or bfloat16 tensors among its arguments, or asks for such results."""
    return any(map(_is_narrow, args)) or (bool(kwargs) and any(map(_is_narrow, kwargs.values())))


def _is_narrow(x: Any) -> bool:
    kind = type(x)  # the usual types first: this runs for every argument of every operation
    if kind in _PLAIN or isinstance(x, torch.Tensor):
        return x.dtype in NARROW
    if kind in (list, tuple):
        return any(isinstance(item, torch.Tensor) and item.dtype in NARROW for item in x)
    return kind is torch.dtype and x in NARROW


def check_held(dtype: torch.dtype, plan: OperationPlan) -> None:
    """Raises NotHeldError if tensors of ``dtype`` cannot hold the results of an operation."""
    fmt = plan.arithmetic.format
    if holds(dtype, fmt):
        return
    one_rule, optimizers = f"Rule({plan.name!r}, format='fp32')", "Rule(role='optimizer', format='fp32')"
    rules = {"": f"{one_rule}, or, for an optimizer such as Muon, {optimizers}", Role.OPTIMIZER: optimizers}
    dtypes = [str(other) for other in (torch.float16, torch.bfloat16) if holds(other, fmt)] + [str(fmt.carrier)]
    raise NotHeldError(
        f"{dtype} does not have all numbers of {fmt}, which {plan} is to compute in the program's own {dtype}: run the"
        f" program in {' or '.join(dtypes)} (leave out .half(), .bfloat16() and autocast, or choose another dtype for"
        f" them); or have a rule leave the operation to PyTorch, such as {rules.get(plan.role, one_rule)}"
    )


@final
class NarrowCall:
    """A call that takes part in a program's own float16 or bfloat16, with its arguments in float32.

    Args:
        plan: plan of the operation.
        args: its arguments.
        kwargs: its arguments by name.
        cache: The dtypes of results of earlier calls; this call adds its own.

    Attributes:
        computes: the dtypes of the floating-point tensors that the program gets: results, and tensors written to.

    Raises:
        NotHeldError: one of them cannot hold the format that the policy has for it.
    """

    def __init__(
        self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any],
        cache: dict[Any, list[torch.dtype | None]],
    ) -> None:  # fmt: skip
        assert plan.operation is not None
        self._plan, self._operation, self._arguments = plan, plan.operation, (args, kwargs)
        written = [args[i] if i < len(args) else kwargs.get(name) for i, name in plan.outputs.written]
        self._written = [x for x in _flatten(written) if isinstance(x, torch.Tensor)]
        computes = plan.outputs.results and returns_tensors(plan.operation)
        self._results = _result_dtypes(plan.operation, args, kwargs, cache) if computes else []
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # (original, copy) by the id of the original
        self._originals: dict[int, torch.Tensor] = {}  # by the id of the copy
        self.computes = {dtype for dtype in self._results if dtype is not None}
        self.computes.update(x.dtype for x in self._written if x.dtype.is_floating_point)
        for dtype in self.computes & NARROW if plan.rounds else ():
            check_held(dtype, plan)

    def widened(self, carried: Carried | None) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments with exact float32 copies; calls ``carried`` with each original and its copy."""
        args, kwargs = self._arguments
        wide = [_map_nested(self._widen, x) for x in args]
        if plain_name(self._plan.name) in _COMPARISONS:
            wide = [self._round_compared(x) if type(x) in (int, float) else x for x in wide]
        names = argument_names(self._operation)
        if "half_to_float" in names[: len(wide)]:  # asks a softmax for a conversion, which has been done
            wide[names.index("half_to_float")] = False
        wide_kwargs = {name: _map_nested(self._widen, x) for name, x in kwargs.items()}
        if carried is not None:
            for original, copy in self._copies.values():
                carried(original, copy)
        return wide, wide_kwargs

    def _round_compared(self, number: float) -> float:
        """Rounds a Python number that is compared with values of the format, unless overflow would give NaN."""
        arithmetic = self._plan.arithmetic
        mode = Rounding.NEAREST_EVEN if arithmetic.rounding is Rounding.STOCHASTIC else arithmetic.rounding
        rounded = float(arithmetic.format.rounded(torch.tensor([float(number)], dtype=torch.float64), mode))
        return number if math.isnan(rounded) or not self._plan.rounds else rounded

    def _widen(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.dtype not in NARROW:
                return x
            if id(x) not in self._copies:  # an argument given twice stays the same tensor twice
                copy = x.to(torch.float32)
                self._copies[id(x)] = x, copy
                self._originals[id(copy)] = x
            return self._copies[id(x)][1]
        return torch.float32 if isinstance(x, torch.dtype) and x in NARROW else x

    def wide_results(self, result: Any) -> frozenset[int]:
        """Returns the ``id`` of tensors, among results and those written to, that the program has in a wide dtype."""
        results = _flatten([result])
        wide = {id(x) for x, dtype in zip(results, self._dtypes(results), strict=True) if dtype not in NARROW}
        # Results in the memory of a narrow argument (in place) are rounded, results in a wide argument's are not.
        return frozenset((wide - self._originals.keys()) | {id(x) for x in self._written if x.dtype not in NARROW})

    def narrowed(self, result: Any, carried: Carried | None) -> Any:
        """Returns the results in the dtypes that the program expects, and copies written values to its own memory.

        Args:
            result: result of the operation with arguments in float32.
            carried: called with each tensor that was copied, and its copy.
        """
        for x in self._written:
            if id(x) in self._copies:
                copy = self._copies[id(x)][1]
                x.copy_(copy)
                if carried is not None:
                    carried(copy, x)
        dtypes = iter(self._dtypes(_flatten([result])))

        def narrow(x: Any) -> Any:
            dtype = next(dtypes)
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) in self._originals:  # an operation in place returns the tensor that it was given
                return self._originals[id(x)]
            if dtype not in NARROW or not x.dtype.is_floating_point:
                return x
            narrowed = x.to(dtype)
            if carried is not None:
                carried(x, narrowed)
            return narrowed

        return _map_nested(narrow, result)

    def _dtypes(self, results: list[Any]) -> list[torch.dtype | None]:
        """Returns the dtypes that the program expects of the results, one by one."""
        if len(self._results) == len(results):
            return self._results
        # Operations that only write, or return lists of a length that depends on the data
        return [self._results[0] if self._results else _promoted(*self._arguments)] * len(results)


def _flatten(values: Iterable[Any]) -> list[Any]:
    """Flattens nested lists; PyTorch's trees, where any class can be a branch, take several times as long."""
    flat = []
    for x in values:
        if isinstance(x, (list, tuple)):
            flat += _flatten(x)
        else:
            flat.append(x)
    return flat


def _map_nested(function: Callable[[Any], Any], x: Any) -> Any:
    """Applies a function to a value, or to the elements of nested lists and tuples."""
    if isinstance(x, list):
        return [_map_nested(function, item) for item in x]
    return tuple(_map_nested(function, item) for item in x) if isinstance(x, tuple) else function(x)


def _result_dtypes(
    operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], cache: dict[Any, list[torch.dtype | None]]
) -> list[torch.dtype | None]:
    """Returns the dtypes of an operation's results, one by one; None for anything other than a tensor of floats.

    They come from PyTorch's kernel, which is run once for each combination of dtypes: PyTorch's description of results
    without computing them is not always the same (the means of a layer norm with float32 weights).

    Raises:
        RuntimeError: PyTorch's own, of a kernel that does not mix these dtypes.
    """
    arguments = [*args, *kwargs.values()] if kwargs else args
    key = operation, tuple(map(_dtype_key, _flatten(arguments))), tuple(kwargs)
    if key not in cache:
        tensors = [x for x in _flatten(arguments) if isinstance(x, torch.Tensor)]
        dense = all(x.layout is torch.strided and not x.is_nested for x in tensors)
        repeatable = operation.namespace == "aten" and torch.Tag.nondeterministic_seeded not in operation.tags
        # The real kernel, on copies; PyTorch's description only for random operations and where the kernel fails.
        with _disable_current_modes():
            dtypes = _dtypes_of(operation, args, kwargs, torch.clone) if dense and repeatable else None
            if isinstance(dtypes, RuntimeError) and "same dtype" in str(dtypes):  # it also fails without a simulation
                raise dtypes
            if not isinstance(dtypes, list) and dense and not communicates(operation):
                with _muted_log(), FakeTensorMode(), torch.inference_mode(mode=False):
                    dtypes = _dtypes_of(operation, args, kwargs, _unwritten)
        cache[key] = dtypes if isinstance(dtypes, list) else [_promoted(args, kwargs)]
    return cache[key]


@contextmanager
def _muted_log() -> Iterator[None]:
    """Keeps PyTorch from logging the traceback of an operation that fails without data."""
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def _dtype_key(x: Any) -> Any:
    """Returns the properties of an argument that the dtypes of results may depend on."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.dim() == 0  # tensors without axes decide the dtype only where all are such
    return x if x is None or isinstance(x, (bool, torch.dtype)) else type(x)


def _unwritten(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _dtypes_of(
    operation: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stand_in: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.dtype | None] | Exception:
    """Returns the dtypes of the results for substitutes of the tensors, or the error of the operation."""

    def substitute(x: Any) -> Any:
        return stand_in(x) if isinstance(x, torch.Tensor) else x

    args = [_map_nested(substitute, x) for x in args]
    kwargs = {name: _map_nested(substitute, x) for name, x in kwargs.items()}
    try:
        results = _flatten([operation(*args, **kwargs)])
    except Exception as error:  # noqa: BLE001  no kernel for this dtype, or a shape that depends on data
        return error
    return [x.dtype if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else None for x in results]


def _promoted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """Returns the dtype among the arguments, if any; otherwise the promoted dtype of the tensors."""
    arguments = _flatten([*args, *kwargs.values()])
    requested = [x for x in arguments if isinstance(x, torch.dtype)]
    if requested:
        return requested[-1]
    floats = [x for x in arguments if isinstance(x, torch.Tensor) and x.dtype.is_floating_point]
    deciding = [x.dtype for x in floats if x.dim()] or [x.dtype for x in floats]
    return reduce(torch.promote_types, deciding) if deciding else None
