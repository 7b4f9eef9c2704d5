"""Running any PyTorch computation in a number format: the mode that rounds every result."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from roundoff.formats import Format, FormatError
from roundoff.formats.rounding import is_dense
from roundoff.simulate.treatment import treatment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from torch._ops import OpOverload

    from roundoff.simulate.observer import Observer
    from roundoff.simulate.report import Report

_CARRIERS = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_SINGLE = (torch.float32, torch.complex64)


class _ThisThread(threading.local):
    """Whether a simulation is at work on an operation, in this thread."""

    rounding = False


_this_thread = _ThisThread()


class Simulation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that :func:`simulate` makes; entered with ``with``, and entered again at will.

    Attributes:
        format: the format results are rounded to.
    """

    def __init__(self, format: Format | str, *, observe: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.format = Format.parse(format)
        self._observer: Observer | None = None
        if observe:
            from roundoff.simulate.observer import Observer  # noqa: PLC0415  pandas costs half a second

            self._observer = Observer(self.format)
        self._rounds = observe or str(self.format) != "fp32"
        self._entered: list[bool] = []

    def __enter__(self) -> Self:
        """Starts rounding in this thread; simulations entered before it pause until it is left."""
        # fp32 alone costs nothing; inside another simulation it must be there to pause that one.
        needed = self._rounds or any(isinstance(mode, Simulation) for mode in _get_current_dispatch_mode_stack())
        self._entered.append(needed)
        if self._observer:
            self._observer.enter()
        if needed:
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops rounding, also when an exception leaves the block."""
        if self._entered.pop():
            super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        if self._observer:
            self._observer.leave()

    def report(self) -> Report:
        """What an observing simulation has seen so far.

        Raises:
            FormatError: it does not observe.
        """
        if self._observer is None:
            raise FormatError("this simulation does not observe; make it with simulate(format, observe=True)")
        return self._observer.report()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs one ATen operation and rounds what it computed."""
        # The innermost simulation is asked first, and what it calls comes to the outer ones: those pass it on.
        if _this_thread.rounding:
            return func(*args, **kwargs) if kwargs else func(*args)
        _this_thread.rounding = True
        try:
            before = self._observer.before(func, args) if self._observer else None
            result = func(*args, **kwargs) if kwargs else func(*args)
            if self._rounds:
                self._round_results(func, args, kwargs, result)
            if self._observer:
                self._observer.after(func, before, args, result)
            return result
        finally:
            _this_thread.rounding = False

    def _round_results(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] | None, result: Any
    ) -> None:
        how = treatment(func)
        if how.results:
            if isinstance(result, torch.Tensor):
                self._round(result, func)
            elif isinstance(result, (tuple, list)):
                # A single returned list (foreach operations) has one entry in `viewing` for all its tensors.
                viewing = how.viewing if len(how.viewing) == len(result) else (False,) * len(result)
                for value, shares_memory in zip(result, viewing, strict=True):
                    if not shares_memory:
                        self._round_all(value, func)
        for position, name in how.written:
            value = args[position] if position < len(args) else kwargs.get(name) if kwargs else None
            self._round_all(value, func)
        if how.lifts and result.untyped_storage().resizable():
            # torch.tensor(0.1) made new memory; torch.from_numpy(a) shares the caller's, which is not ours to change.
            self._round(result, func)

    def _round_all(self, value: Any, operation: OpOverload) -> None:
        """Rounds a tensor, or every tensor of a list; anything else is none of our business."""
        if isinstance(value, torch.Tensor):
            self._round(value, operation)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._round_all(item, operation)

    def _round(self, x: torch.Tensor, operation: OpOverload) -> None:
        """Rounds ``x`` where it stands."""
        dtype = x.dtype
        if not (dtype.is_floating_point or dtype.is_complex) or x._is_zerotensor():  # noqa: SLF001  the only test there is
            return  # a zero tensor (a gradient known to vanish) is all zeros, and has no memory
        self._check(x, operation)
        if dtype.is_complex:
            parts = torch.view_as_real(x.resolve_conj().clone())
            self._round_dense(parts, operation)
            x.copy_(torch.view_as_complex(parts))
        elif is_dense(x):
            self._round_dense(x, operation)
        else:
            rounded = x.clone(memory_format=torch.contiguous_format)
            self._round_dense(rounded, operation)
            x.copy_(rounded)

    def _round_dense(self, x: torch.Tensor, operation: OpOverload) -> None:
        if self._observer:
            self._observer.round(x, operation)
        else:
            self.format.round_into(x, x)

    def _check(self, x: torch.Tensor, operation: OpOverload) -> None:
        dtype = x.dtype
        if dtype in _SINGLE and self.format.carrier is torch.float64:
            raise FormatError(
                f"{self.format} cannot be simulated exactly in float32 (results would be rounded twice), but"
                f" {operation} computed {dtype}: run the program in float64, for example model.double()"
            )
        if dtype not in _CARRIERS:
            raise FormatError(
                f"inside a simulation tensors must be float32 or float64, but {operation} computed {dtype}:"
                " the simulation narrows them itself, so leave out .half(), .bfloat16() and autocast"
            )
        if x.layout is not torch.strided:
            raise FormatError(f"inside a simulation tensors must be dense, but {operation} computed {x.layout}")


def simulate(format: Format | str, *, observe: bool = False) -> Simulation:
    """Rounds every floating-point result of every PyTorch operation in a ``with`` block to ``format``.

    ``with simulate("e5m10"): loss = model(x).sum(); loss.backward(); optimizer.step()`` runs unmodified code as
    hardware with that format would: forward, backward, optimizer, in-place, ``out=`` and foreach operations. Values
    live in their float32 or float64 tensors (the carrier). Granularity is the kernel: each ATen operation computes
    in its carrier and its results are rounded once, to nearest-even, as PyTorch's own half-precision kernels do; sums
    and products are accumulated in the carrier, and Python scalars stay exact. See :func:`roundoff.round` for
    infinities, NaN, signed zero, overflow and underflow; real and imaginary parts are rounded each on its own.

    Views are left alone, as is what came from outside (parameters, data) until an operation computes with it; use
    ``roundoff.round`` to start from values of the format. Backward must be called inside the block to be rounded.
    Simulations nest: the innermost wins. ``simulate("fp32")`` runs the program as it is, bit for bit, whatever its
    dtypes.

    Args:
        format: a format or its name. Formats with more than 10 significand bits need a float64 program.
        observe: count, per operation, module and role, what rounding does; see :meth:`Simulation.report`.

    Returns:
        A context manager, which may be entered again.

    Raises:
        FormatError: there is no such format; inside the block, an operation computed a tensor that cannot carry the
            format (float32 for a wide format), half-precision, or sparse numbers.
    """
    return Simulation(format, observe=observe)
