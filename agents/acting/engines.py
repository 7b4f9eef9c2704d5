"""Engines that compute the actions of a packed policy: simulated arithmetic of any format, or ONNX Runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from torch.nn import functional

from roundoff.extras import from_extras

from ...simulate import Policy, Rule, Simulation
from ..errors import RunError
from ..models.policy_layers import Activation, ConvolutionLayer, Decision, Layer, combined
from .elementary import FUNCTIONS, exponential, tanh
from .graphs import has_integer_operators, onnx_model
from .integers import is_computed_in_integers, product
from .packed import PackedPolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


class Engine(ABC):
    """Acts as a packed policy does.

    Made of a message, which :func:`message_for` makes, perhaps in another process.

    Args:
        message: the result of ``message`` of the same class.

    Raises:
        RunError: it is not such a message.
    """

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, message: bytes) -> None: ...

    @staticmethod
    @abstractmethod
    def message(packed: PackedPolicy) -> bytes:
        """The policy as bytes for this engine; made once for many actors.

        Raises:
            RunError: this engine does not compute in the policy's format.
        """

    @abstractmethod
    def outputs_and_actions(self, observations: Floats) -> tuple[Floats, Floats]:
        """Returns the outputs of the network and the actions.

        Args:
            observations: (n, ...) of the policy's shape.

        Returns:
            (n, outputs) and (n, action); of several actions, the chosen one has a 1 and the others 0.
        """

    def act(self, observations: Floats) -> Floats:
        """Returns the actions, (n, action); see :meth:`outputs_and_actions`."""
        return self.outputs_and_actions(observations)[1]


@final
class SimulatedEngine(Engine):
    """Computes in PyTorch, with operands of products in the policy's format, to the bit.

    Weights are as packed. Activations are rounded before each product to the same format; see ``Rule``. Products
    are float32, as are biases and all else. Formats that are multiplied as integers (int8, int8_ax0, int4, ...; see
    ``is_computed_in_integers``) are computed so, in ONNX Runtime's and the C header's arithmetic: activations are
    unsigned integers of the same width with a zero point. Where numbers share a scale, all of a batch do.

    Args:
        message: a packed policy.
        accumulate: the accumulation of the products' sums, as in ``Accumulation``; None: as PyTorch adds in float32.
            Sums of integers are exact.
    """

    name = "simulated"

    def __init__(self, message: bytes, *, accumulate: str | None = None) -> None:
        self._packed = packed = PackedPolicy.from_bytes(message)
        self._simulation: Simulation | None = None
        self._integers = is_computed_in_integers(packed.format)
        self._policy = packed.layout if self._integers else packed.policy
        self._encoded = {id(layer): encoded for layer, encoded in packed.layers}
        if self._integers:  # in which their products are computed
            self._encoded = {
                name: one._replace(codes=one.codes.to(torch.float64)) for name, one in self._encoded.items()
            }
        if not self._integers:
            for layer in self._policy:
                layer.weight.requires_grad_()  # what a simulation knows weights by
            rules = [] if packed.format.native else [Rule(role="activations", format=packed.format)]
            if accumulate:
                rules.append(Rule(accumulate=accumulate))
            if rules:
                self._simulation = Simulation(Policy("fp32").with_rules(*rules), warn_unused=False)

    @staticmethod
    def message(packed: PackedPolicy) -> bytes:
        """The packed policy."""
        return packed.to_bytes()

    @torch.no_grad()
    def outputs_and_actions(self, observations: Floats) -> tuple[Floats, Floats]:
        """The outputs and actions for observations, with the tanh, ELU and exponential of ``elementary``."""
        policy = self._policy
        x = self._through(policy.shared, torch.from_numpy(np.ascontiguousarray(observations, np.float32)))
        outputs = combined([self._through(head, x) for head in policy.heads], policy.action_size)
        return outputs.numpy(), self.decided(outputs).numpy()

    def _through(self, layers: Iterable[Layer], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            if not isinstance(layer, ConvolutionLayer):
                x = x.flatten(1)
            x = self._product(x, layer)
            if layer.activation is not Activation.NONE:
                x = FUNCTIONS[layer.activation](x)
        return x

    def _product(self, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        if self._integers:
            return product(x, layer, self._encoded[id(layer)], self._packed.format.bits)
        if self._simulation is None:
            return _float_product(x, layer)
        with self._simulation:
            return _float_product(x, layer)

    def decided(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the actions, (n, action), for the outputs of the network, (n, outputs)."""
        policy = self._policy
        if policy.decision is Decision.TANH:
            return tanh(outputs)
        if policy.decision is Decision.CLIP:
            return outputs.clamp(-1, 1)
        if policy.decision is Decision.OUTPUTS:
            return outputs
        values = outputs
        if policy.atoms is not None:
            logits = outputs.reshape(len(outputs), policy.action_size, -1).to(torch.float64)
            weights = exponential(logits - logits.amax(-1, keepdim=True))
            below, above = torch.zeros_like(weights[..., 0]), torch.zeros_like(weights[..., 0])
            for weight, atom in zip(weights.unbind(-1), policy.atoms.to(torch.float64), strict=True):
                below, above = below + weight, above + weight * atom
            values = above / below
        best = functional.one_hot(values.argmax(1), policy.action_size).to(torch.float32)
        return torch.where(values.isnan().any(1, keepdim=True), torch.nan, best)


@final
class OnnxRuntime(Engine):
    """Computes with ONNX Runtime in one thread: fp32, or products of int8 with uint8 (``int8``, ``int8_ax0``).

    The bits of int8 are the same as in :class:`Simulated` but for a tanh between layers, where a last bit may differ,
    and seldom a code with it. On processors without VNNI instructions, sums of pairs of products may saturate, as ONNX
    Runtime's documentation notes on its 8-bit products.

    Args:
        message: an ONNX graph.
    """

    name = "onnxruntime"

    def __init__(self, message: bytes) -> None:
        with from_extras():
            import onnxruntime  # noqa: PLC0415  an extra
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(message, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            raise RunError(f"ONNX Runtime cannot read this policy: {str(error).partition(chr(10))[0]}") from error

    @staticmethod
    def message(packed: PackedPolicy) -> bytes:
        """The ONNX graph."""
        if not packed.format.native and not has_integer_operators(packed.format):
            raise RunError(
                f"ONNX Runtime computes policies in fp32, int8 or int8_ax0, got {packed.format}; the engine 'simulated'"
                " computes in any format"
            )
        return onnx_model(packed, fused=True)

    def outputs_and_actions(self, observations: Floats) -> tuple[Floats, Floats]:
        """The outputs and actions for observations, computed by ONNX Runtime."""
        actions, outputs = self._session.run(["actions", "outputs"], {"observations": observations})
        return outputs, actions


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (SimulatedEngine, OnnxRuntime)}
"""The engines by name."""


def message_for(engine: str, packed: PackedPolicy) -> bytes:
    """A packed policy as bytes for an engine, to be made once for many actors.

    Args:
        engine: ``simulated`` or ``onnxruntime``.
        packed: the policy.

    Raises:
        RunError: the engine does not exist, or does not compute in the policy's format.
        MissingExtraError: the engine is not installed.
    """
    return _engine(engine).message(packed)


def open_engine(engine: str, message: bytes) -> Engine:
    """Opens the engine for a message that :func:`message_for` made for it.

    Raises:
        RunError: the engine does not exist, or the message is not for it.
        MissingExtraError: the engine is not installed.
    """
    made: Any = _engine(engine)
    opened: Engine = made(message)
    return opened


def _engine(name: str) -> type[Engine]:
    if name not in ENGINES:
        raise RunError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    return ENGINES[name]


def _float_product(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    if isinstance(layer, ConvolutionLayer):
        return functional.conv2d(x, layer.weight, layer.bias, stride=layer.stride, padding=layer.padding)
    return functional.linear(x, layer.weight, layer.bias)
