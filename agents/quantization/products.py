"""Products with operands that are rounded while a policy acts, and the ranges of their inputs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Self, TypeAlias, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...formats import unsimulated
from ...simulate import is_contraction
from ..errors import RunError
from .quantization import Quantization

Ranges: TypeAlias = "list[tuple[float, float]]"
"""The smallest and largest input of each product, in the order of inference."""

# The position of the activation among the arguments; the weight follows it.
_MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "_addmm_activation": 1, "baddbmm": 1, "addbmm": 1}
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_overrideable")


@final
class QuantizedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context of one evaluation that rounds the operands of matrix products and convolutions.

    It is entered for each inference, inside of a simulation if there is one, which then gets rounded operands. Weights
    are a snapshot: ``parameters`` are rounded once.

    Args:
        quantization: the quantization of operands.
        parameters: the tensors that contain the weights, which must not change during the evaluation.
        watch: whether ``ranges`` records the smallest and largest input of each product.

    Attributes:
        ranges: by product, in the order of inference; of operands before they are rounded.
    """

    def __init__(self, quantization: Quantization, parameters: Iterable[Tensor] = (), *, watch: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ranges: Ranges = []
        self._quantization = quantization
        self._fixed = {tensor.untyped_storage().data_ptr() for tensor in parameters}
        self._weights: dict[Any, Tensor] = {}
        self._watch = watch
        self._layer = 0

    def __enter__(self) -> Self:
        """Begins an inference: the next product is its first."""
        self._layer = 0
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Rounds the operands of a product; other operations are unchanged."""
        product = _find_operands(func)
        if product is None:
            return func(*args, **(kwargs or {}))
        first, is_convolution = product
        convolution = (bool(args[6]), int(args[8])) if is_convolution else None  # transposed, groups
        x, w = args[first : first + 2]
        rounded = self._activation(x, convolution), self._weight(w, convolution)
        return func(*args[:first], *rounded, *args[first + 2 :], **(kwargs or {}))

    @unsimulated
    def _activation(self, x: Tensor, convolution: tuple[bool, int] | None) -> Tensor:
        layer, self._layer = self._layer, self._layer + 1
        if self._watch:
            low, high = (float(extreme) for extreme in x.aminmax())
            if layer < len(self.ranges):
                low, high = min(low, self.ranges[layer][0]), max(high, self.ranges[layer][1])
            self.ranges[layer : layer + 1] = [(low, high)]
        return self._quantization.activation(x, layer, convolution=convolution)

    @unsimulated
    def _weight(self, w: Tensor, convolution: tuple[bool, int] | None) -> Tensor:
        if w.untyped_storage().data_ptr() not in self._fixed:
            return self._quantization.weight(w, convolution=convolution)
        key = (w.data_ptr(), w.shape, w.stride())  # Of a view: the tensor object differs at each inference.
        if key not in self._weights:
            self._weights[key] = self._quantization.weight(w, convolution=convolution)
        return self._weights[key]


@cache
def _find_operands(operation: Any) -> tuple[int, bool] | None:
    """Returns the position of a product's activation, and whether it is a convolution; None for other operations."""
    name = operation._schema.name.removeprefix("aten::")  # noqa: SLF001  its name without overload
    if not is_contraction(name):
        return None
    if name in _CONVOLUTIONS:
        return 0, True
    if name in _MATRICES:
        return _MATRICES[name], False
    raise RunError(
        f"operands of {name} cannot be rounded one by one; quantize this policy in a float format, which rounds every"
        " operation"
    )
