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
    """Computes the outputs and actions of a packed policy.

    Args:
        message: the result of ``message`` of the same class, perhaps from another process; see :func:`message_for`.

    Raises:
        RunError: the engine cannot read the message.
    """

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, message: bytes) -> None: ...

    @staticmethod
    @abstractmethod
    def message(packed: PackedPolicy) -> bytes:
        """Returns the policy as bytes for this engine; they serve many actors.

        Raises:
            RunError: this engine does not compute in the policy's format.
        """

    @abstractmethod
    def outputs_and_actions(self, observations: Floats) -> tuple[Floats, Floats]:
        """Returns the outputs of the network and the actions.

        Args:
            observations: (n, ...) of the policy's shape.

        Returns:
            (n, outputs) and (n, action); a discrete action is a row of zeros with a 1 for the chosen one.
        """

    def act(self, observations: Floats) -> Floats:
        """Returns the actions, (n, action); see :meth:`outputs_and_actions`."""
        return self.outputs_and_actions(observations)[1]


@final
class SimulatedEngine(Engine):
    """Computes in PyTorch, with operands of products in the policy's format, to the bit.

    Weights are as packed. Activations are rounded before each product to the same format; see ``Rule``. Products,
    biases and all other values are float32. Formats that are multiplied as integers (int8, int8_ax0, int4, ...; see
    ``is_computed_in_integers``) use the arithmetic of ONNX Runtime and the C header: activations are unsigned
    integers of the same width with a zero point. A scale is shared by all values of a batch.

    Args:
        message: a packed policy.
        accumulate: the accumulation of the products' sums, as in ``Accumulation``; None: PyTorch's in float32. Sums of
            integers are exact.
    """

    name = "simulated"

    def __init__(self, message: bytes, *, accumulate: str | None = None) -> None:
        self._packed = packed = PackedPolicy.from_bytes(message)
        self._simulation: Simulation | None = None
        self._integers = is_computed_in_integers(packed.format)
        self._policy = packed.layout if self._integers else packed.policy
        self._encoded = dict(zip(map(id, packed.layout), packed.encoded, strict=True))  # By the identity of a layer.
        if self._integers:
            # Here, not at each product: sums of integers are computed in float64, exactly.
            self._encoded = {key: x._replace(codes=x.codes.to(torch.float64)) for key, x in self._encoded.items()}
        else:
            for layer in self._policy:
                layer.weight.requires_grad_()  # A simulation recognizes weights by this; they are not rounded again.
            rules = [] if packed.format.native else [Rule(role="activations", format=packed.format)]
            if accumulate:
                rules.append(Rule(accumulate=accumulate))
            if rules:
                self._simulation = Simulation(Policy("fp32").with_rules(*rules), warn_unused=False)

    @staticmethod
    def message(packed: PackedPolicy) -> bytes:
        """Returns the packed policy as bytes."""
        return packed.to_bytes()

    @torch.no_grad()
    def outputs_and_actions(self, observations: Floats) -> tuple[Floats, Floats]:
        """Returns outputs and actions, computed with the tanh, ELU and exponential of ``elementary``."""
        policy = self._policy
        x = self._through(policy.shared, torch.from_numpy(np.ascontiguousarray(observations, np.float32)))
        outputs = combined([self._through(head, x) for head in policy.heads], policy.action_size)
        return outputs.numpy(), self.decided(outputs).numpy()

    def _through(self, layers: Iterable[Layer], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            if not isinstance(layer, ConvolutionLayer):
                x = x.flatten(1)  # By channel, row and column.
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
        if policy.atoms is not None:  # The values are the means of the distributions.
            logits = outputs.reshape(len(outputs), policy.action_size, -1).to(torch.float64)
            weights = exponential(logits - logits.amax(-1, keepdim=True))
            below, above = torch.zeros_like(weights[..., 0]), torch.zeros_like(weights[..., 0])
            # Atom by atom, in the order of the C header, so that the bits are the same.
            for weight, atom in zip(weights.unbind(-1), policy.atoms.to(torch.float64), strict=True):
                below, above = below + weight, above + weight * atom
            values = above / below  # Means over the atoms.
        best = functional.one_hot(values.argmax(1), policy.action_size).to(torch.float32)
        return torch.where(values.isnan().any(1, keepdim=True), torch.nan, best)  # argmax chooses NaN as the largest.


@final
class OnnxRuntime(Engine):
    """Computes with ONNX Runtime in one thread: fp32, or products of int8 with uint8 (``int8``, ``int8_ax0``).

    The bits of int8 are the same as in :class:`SimulatedEngine`, except after a tanh between layers: its last bit may
    differ, and rarely a code. On processors without VNNI instructions, sums of pairs of products may saturate; see
    ONNX Runtime's documentation on its 8-bit products.

    Args:
        message: an ONNX graph.
    """

    name = "onnxruntime"

    def __init__(self, message: bytes) -> None:
        with from_extras():
            import onnxruntime  # noqa: PLC0415  an extra
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # Errors and worse.
        try:
            self._session = onnxruntime.InferenceSession(message, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            first_line = str(error).partition("\n")[0]
            raise RunError(f"ONNX Runtime cannot read this policy: {first_line}") from error

    @staticmethod
    def message(packed: PackedPolicy) -> bytes:
        """Returns the ONNX graph."""
        if not packed.format.native and not has_integer_operators(packed.format):
            raise RunError(
                f"ONNX Runtime computes policies in fp32, int8 or int8_ax0, got {packed.format}; the engine 'simulated'"
                " computes in any format"
            )
        return onnx_model(packed, fused=True)

    def outputs_and_actions(self, observations: Floats) -> tuple[Floats, Floats]:
        """Returns outputs and actions, computed by ONNX Runtime."""
        actions, outputs = self._session.run(["actions", "outputs"], {"observations": observations})
        return outputs, actions


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (SimulatedEngine, OnnxRuntime)}
"""The engines by name."""


def message_for(engine: str, packed: PackedPolicy) -> bytes:
    """Returns a packed policy as bytes for an engine; they serve many actors.

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
    engine_class: Any = _engine(engine)
    opened: Engine = engine_class(message)
    return opened


def _engine(name: str) -> type[Engine]:
    if name not in ENGINES:
        raise RunError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    return ENGINES[name]


def _float_product(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    if isinstance(layer, ConvolutionLayer):
        return functional.conv2d(x, layer.weight, layer.bias, stride=layer.stride, padding=layer.padding)
    return functional.linear(x, layer.weight, layer.bias)
