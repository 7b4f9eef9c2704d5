"""Tensors without values that have the memory layouts of an eager step.

Kernels that sum, and functions that are computed several elements at a time, go through memory in its order: where the
tensors of a program differ in layout from the eager step's, its results have other bits. PyTorch describes the results
of a kernel, and is wrong about the order of axes for some kernels. So each is run once for every layout of its
operands, on the CPU, with zeros, and its results keep that layout. Kernels of a GPU are not run, but elementwise
kernels lay out results by the same code on all devices.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from ...aten.outputs import outputs
from ..refusals import OtherBitsError

Stride = tuple[int, ...]

_PLAIN = (int, float, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format)
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)  # noqa: SLF001  its only name
"""Views with strides that PyTorch describes wrongly: kernels also lay out results by strides of axes of length 1."""
_LARGEST = 1 << 26
"""A kernel with more numbers than these among its operands is not run; PyTorch's description has to do."""


class _Layout(NamedTuple):
    """The memory layout of a tensor, the only property that is examined."""

    size: tuple[int, ...]
    stride: Stride
    dtype: torch.dtype

    def zeros(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="cpu").zero_()

    @property
    def numbers(self) -> int:
        return 1 + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))


@final
class LayoutMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without numbers, with the strides that kernels give their results.

    Attributes:
        runs_step: whether it is the step itself that runs, with gradients recorded as in the eager one.
    """

    runs_step = True

    def __init__(self) -> None:
        super().__init__(shape_env=ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False))

    def dispatch(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operation on such tensors, and returns its results.

        Raises:
            OtherBitsError: the operation computes otherwise in a program, which records no gradients.
        """
        if self.runs_step and func is torch.ops.aten.mkldnn_rnn_layer.default and torch.is_grad_enabled():
            raise OtherBitsError("PyTorch's kernel of an LSTM layer has others where gradients are recorded")
        result = super().dispatch(func, types, args, kwargs or {})
        if func in _VIEWS:
            return self._viewed(types, args[0], result)
        if not isinstance(func, OpOverload) or func.namespace != "aten":
            return result
        if not outputs(func).results or torch.Tag.nondeterministic_seeded in func.tags:
            return result  # only results that are new and not random have a layout that the operation chooses
        # Runs the kernel on the CPU, whatever the device; what cannot be a key of the cache is left to PyTorch.
        named = {name: x for name, x in (kwargs or {}).items() if name not in ("device", "pin_memory")}
        leaves, structure = tree_flatten((tuple(args), named))
        operands = tuple(_fake_layout(x, func) if isinstance(x, torch.Tensor) else x for x in leaves)
        if not all(isinstance(x, (_Layout, *_PLAIN)) for x in operands):
            return result
        strides = _strides(func, structure, operands)
        return result if strides is None else self._with(result, strides)

    def _viewed(self, types: Sequence[type], x: Any, result: Any) -> Any:
        """A view with the strides that PyTorch's own code gives it, also along axes of one number.

        Raises:
            RuntimeError: PyTorch also refuses it: the axes cannot be viewed so.
        """
        with _disable_current_modes():
            exact = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta").view(result.shape)
        if exact.stride() == result.stride():
            return result
        place = (x, exact.shape, exact.stride(), x.storage_offset())
        return super().dispatch(torch.ops.aten.as_strided.default, types, place)

    def _with(self, result: Any, strides: Sequence[Stride | None]) -> Any:
        """Replaces results that have other strides."""
        flat, structure = tree_flatten(result)

        def laid(x: Any, stride: Stride | None) -> Any:
            if type(x) is not FakeTensor or stride is None or len(stride) != x.dim() or x.stride() == stride:
                return x
            return FakeTensor(self, torch.empty_strided(x.shape, stride, dtype=x.dtype, device="meta"), x.device)

        if len(flat) != len(strides):  # a list of a length that depends on data
            return result
        with _disable_current_modes():
            return tree_unflatten([laid(x, stride) for x, stride in zip(flat, strides, strict=True)], structure)


def _fake_layout(x: torch.Tensor, func: OpOverload) -> Any:
    """Returns the layout of a stand-in; ``NotImplemented`` where the CPU's kernel may choose another for results."""
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        return NotImplemented
    if x.device.type != "cpu" and not (x.is_cuda and torch.Tag.pointwise in func.tags):
        return NotImplemented
    size, stride = tuple(x.shape), x.stride()
    return _Layout(size, stride, x.dtype) if all(type(n) is int for n in (*size, *stride)) else NotImplemented


@lru_cache(maxsize=1 << 14)
def _strides(func: OpOverload, structure: TreeSpec, operands: tuple[Any, ...]) -> tuple[Stride | None, ...] | None:
    """The strides of all that a kernel returns; None if it cannot be run with zeros."""
    layouts = [x for x in operands if isinstance(x, _Layout)]
    if sum(layout.numbers for layout in layouts) > _LARGEST:
        return None
    with _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = tree_unflatten([x.zeros() if isinstance(x, _Layout) else x for x in operands], structure)
        try:
            results = tree_leaves(func(*args, **kwargs))
        except Exception:  # noqa: BLE001  a matrix of zeros has no inverse, and the like
            return None
    return tuple(x.stride() if isinstance(x, torch.Tensor) and x.layout is torch.strided else None for x in results)
