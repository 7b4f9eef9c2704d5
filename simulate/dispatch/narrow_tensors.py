"""Tensors of a program's own float16 and bfloat16: an operation computes with their numbers in float32.

What it computes is rounded to the format there, once, and then stored in the dtype that the program expects, which has
every number of the format.
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
_OF_THE_DTYPE = frozenset(
    [
        "eq", "fmod", "ge", "gt", "hardshrink", "hardshrink_backward", "le", "lt", "ne", "remainder",
        "softshrink_backward",
    ]
)  # fmt: skip
"""Operations, without trailing ``_``, with kernels that convert Python numbers to the tensor's dtype: comparisons."""


class NotHeldError(FormatError):
    """A program's own dtype does not have all numbers of the format that is to be simulated in it."""


def takes_narrow(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has float16 or bfloat16 tensors among its arguments, or asks for such results."""
    return any(map(_is_narrow, args)) or (bool(kwargs) and any(map(_is_narrow, kwargs.values())))


def _is_narrow(x: Any) -> bool:
    kind = type(x)
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
    alone, optimizers = f"Rule({plan.name!r}, format='fp32')", "Rule(role='optimizer', format='fp32')"
    rules = {"": f"{alone}, or, for an optimizer such as Muon, {optimizers}", Role.OPTIMIZER: optimizers}
    enough = [str(other) for other in (torch.float16, torch.bfloat16) if holds(other, fmt)] + [str(fmt.carrier)]
    raise NotHeldError(
        f"{dtype} does not have all numbers of {fmt}, which {plan} is to compute in the program's own {dtype}: run the"
        f" program in {' or '.join(enough)} (leave out .half(), .bfloat16() and autocast, or choose another dtype for"
        f" them); or have a rule leave the operation to PyTorch, such as {rules.get(plan.role, alone)}"
    )


@final
class NarrowCall:
    """A call that takes part in a program's own float16 or bfloat16, with its arguments in float32.

    Args:
        plan: plan of the operation.
        args: its arguments.
        kwargs: its arguments by name.
        known: the dtypes of results of earlier calls; this one's are kept there.

    Attributes:
        computes: the dtypes of the floating-point tensors that the program gets: results, and tensors written to.

    Raises:
        NotHeldError: one of them cannot hold the format that the policy has for it.
    """

    def __init__(
        self,
        plan: OperationPlan,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        known: dict[Any, list[torch.dtype | None]],
    ) -> None:
        assert plan.operation is not None
        self._plan, self._operation, self._given = plan, plan.operation, (args, kwargs)
        written = [args[i] if i < len(args) else kwargs.get(name) for i, name in plan.outputs.written]
        self._written = [x for x in _flatten(written) if isinstance(x, torch.Tensor)]
        computes = plan.outputs.results and returns_tensors(plan.operation)
        self._results = _result_dtypes(plan.operation, args, kwargs, known) if computes else []
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the id of what they stand for
        self._originals: dict[int, torch.Tensor] = {}  # by the id of the copy
        self.computes = {dtype for dtype in self._results if dtype is not None}
        self.computes.update(x.dtype for x in self._written if x.dtype.is_floating_point)
        for dtype in self.computes & NARROW if plan.rounds else ():
            check_held(dtype, plan)

    def widened(self, carried: Carried | None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments in float32: exact copies of tensors; ``carried`` is called with each copy and its original."""
        args, kwargs = self._given
        wide = [_mapped(self._wide, x) for x in args]
        if plain_name(self._plan.name) in _OF_THE_DTYPE:
            wide = [self._compared(x) if type(x) in (int, float) else x for x in wide]
        names = argument_names(self._operation)
        if "half_to_float" in names[: len(wide)]:  # tells a softmax to convert, which is done
            wide[names.index("half_to_float")] = False
        wide_kwargs = {name: _mapped(self._wide, x) for name, x in kwargs.items()}
        if carried is not None:
            for original, copy in self._copies.values():
                carried(original, copy)
        return wide, wide_kwargs

    def _compared(self, number: float) -> float:
        """A Python number that is compared with values of the format: rounded to it, unless overflow would give NaN."""
        arithmetic = self._plan.arithmetic
        mode = Rounding.NEAREST_EVEN if arithmetic.rounding is Rounding.STOCHASTIC else arithmetic.rounding
        rounded = float(arithmetic.format.rounded(torch.tensor([float(number)], dtype=torch.float64), mode))
        return number if math.isnan(rounded) or not self._plan.rounds else rounded

    def _wide(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.dtype not in NARROW:
                return x
            if id(x) not in self._copies:
                copy = x.to(torch.float32)
                self._copies[id(x)] = x, copy
                self._originals[id(copy)] = x
            return self._copies[id(x)][1]
        return torch.float32 if isinstance(x, torch.dtype) and x in NARROW else x

    def wide_results(self, result: Any) -> frozenset[int]:
        """Returns the ``id`` of tensors, among results and those written to, that the program has in a wide dtype."""
        results = _flatten([result])
        wide = {id(x) for x, dtype in zip(results, self._dtypes(results), strict=True) if dtype not in NARROW}
        return frozenset((wide - self._originals.keys()) | {id(x) for x in self._written if x.dtype not in NARROW})

    def narrowed(self, result: Any, carried: Carried | None) -> Any:
        """The results as the program expects them, with values written to its own memory.

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
            if id(x) in self._originals:
                return self._originals[id(x)]
            if dtype not in NARROW or not x.dtype.is_floating_point:
                return x
            narrowed = x.to(dtype)
            if carried is not None:
                carried(x, narrowed)
            return narrowed

        return _mapped(narrow, result)

    def _dtypes(self, results: list[Any]) -> list[torch.dtype | None]:
        """The dtypes that the program expects of the results, one by one."""
        if len(self._results) == len(results):
            return self._results
        # Of operations that only write, and of lists as long as the data say.
        return [self._results[0] if self._results else _promoted(*self._given)] * len(results)


def _flatten(values: Iterable[Any]) -> list[Any]:
    """Flattens nested lists; PyTorch's trees, where any class can be a branch, take several times as long."""
    flat = []
    for x in values:
        if isinstance(x, (list, tuple)):
            flat += _flatten(x)
        else:
            flat.append(x)
    return flat


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """A value with the elements of its lists replaced."""
    if isinstance(x, list):
        return [_mapped(function, item) for item in x]
    return tuple(_mapped(function, item) for item in x) if isinstance(x, tuple) else function(x)


def _result_dtypes(
    operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], known: dict[Any, list[torch.dtype | None]]
) -> list[torch.dtype | None]:
    """The dtypes of an operation's results, one by one; None for anything other than a tensor of floats.

    They come from PyTorch's kernel, which is run once for each combination of dtypes: PyTorch's description of results
    without computing them is not always the same (the means of a layer norm with float32 weights).

    Raises:
        RuntimeError: PyTorch's own, of a kernel that does not mix these dtypes.
    """
    given = [*args, *kwargs.values()] if kwargs else args
    key = operation, tuple(map(_what_decides, _flatten(given))), tuple(kwargs)
    if key not in known:
        tensors = [x for x in _flatten(given) if isinstance(x, torch.Tensor)]
        dense = all(x.layout is torch.strided and not x.is_nested for x in tensors)
        repeatable = operation.namespace == "aten" and torch.Tag.nondeterministic_seeded not in operation.tags
        with _disable_current_modes():
            found = _dtypes_of(operation, args, kwargs, torch.clone) if dense and repeatable else None
            if isinstance(found, RuntimeError) and "same dtype" in str(found):
                raise found
            if not isinstance(found, list) and dense and not communicates(operation):
                with _quiet(), FakeTensorMode(), torch.inference_mode(mode=False):
                    found = _dtypes_of(operation, args, kwargs, _without_numbers)
        known[key] = found if isinstance(found, list) else [_promoted(args, kwargs)]
    return known[key]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps PyTorch from logging the traceback of an operation that cannot be tried without numbers."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _what_decides(x: Any) -> Any:
    """Returns the properties of an argument that can affect the dtypes of results."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.dim() == 0
    return x if x is None or isinstance(x, (bool, torch.dtype)) else type(x)


def _without_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _dtypes_of(
    operation: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stand_in: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.dtype | None] | Exception:
    """The dtypes of the results for substitutes of the given tensors; otherwise the error of the operation."""

    def given(x: Any) -> Any:
        return stand_in(x) if isinstance(x, torch.Tensor) else x

    args, kwargs = [_mapped(given, x) for x in args], {name: _mapped(given, x) for name, x in kwargs.items()}
    try:
        results = _flatten([operation(*args, **kwargs)])
    except Exception as error:  # noqa: BLE001  no kernel for this dtype, or no shape before there are numbers
        return error
    return [x.dtype if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else None for x in results]


def _promoted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype that an operation asks for; otherwise the promoted dtype of these dtypes."""
    given = _flatten([*args, *kwargs.values()])
    asked = [x for x in given if isinstance(x, torch.dtype)]
    if asked:
        return asked[-1]
    floats = [x for x in given if isinstance(x, torch.Tensor) and x.dtype.is_floating_point]
    deciding = [x.dtype for x in floats if x.dim()] or [x.dtype for x in floats]
    return reduce(torch.promote_types, deciding) if deciding else None
