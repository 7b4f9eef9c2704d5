"""A packed policy as an ONNX graph, written directly: in float32, or with products of integers."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch

from roundoff.extras import from_extras

from ...formats import Format
from ..models.policy_layers import Activation, ConvolutionLayer, Decision, Layer
from .integers import is_computed_in_integers
from .packed import PackedPolicy

OPSET, IR_VERSION = 21, 10  # Of ONNX 1.16.
MICROSOFT = "com.microsoft"


def has_integer_operators(fmt: Format) -> bool:
    """Whether ONNX has products of integers of this format: 8 bits."""
    return is_computed_in_integers(fmt) and fmt.bits == 8


def onnx_model(packed: PackedPolicy, *, fused: bool = False, version: str = "") -> bytes:
    """Returns the bytes of an ONNX file that computes the policy's actions.

    Its input is ``observations``, (n, ...) float32. Its outputs are ``actions``, (n, action) float32, one-hot for
    discrete actions, and ``outputs`` of the network, (n, outputs) float32. Weights of ``int8`` and ``int8_ax0`` stay
    integers: activations are quantized by the smallest and largest of all in a batch. Any other weights are decoded to
    float32 in the file, and are multiplied in float32.

    Args:
        packed: the policy.
        fused: whether to use ``DynamicQuantizeMatMul`` of ONNX Runtime, which loads in a third of the time, instead of
            only operators of ONNX. The results are the same bits.
        version: the version of the program, which the file records.

    Raises:
        MissingExtraError: onnx is not installed.
    """
    with from_extras():
        import onnx  # noqa: PLC0415  an extra
    policy = packed.layout if has_integer_operators(packed.format) else packed.policy
    graph = _Graph(packed, fused=fused)
    # Shared layers, then the layers of each head; ``planes`` is whether a result still has planes.
    x = "observations"
    encoded = iter(packed.encoded)
    planes = len(policy.observation_shape) > 1
    for layer in policy.shared:
        x, planes = graph.layer(x, layer, next(encoded), planes=planes)
    outputs = []
    for head in policy.heads:
        y, flat = x, planes
        for layer in head:
            y, flat = graph.layer(y, layer, next(encoded), planes=flat)
        outputs.append(y)
    graph.combine(outputs)
    graph.decide()
    helper, proto = onnx.helper, onnx.TensorProto
    size = policy.action_size
    width = size * (1 if policy.atoms is None else len(policy.atoms))
    onnx_graph = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observations", proto.FLOAT, ["n", *policy.observation_shape])],
        [
            helper.make_tensor_value_info("actions", proto.FLOAT, ["n", size]),  # First: the result that most use.
            helper.make_tensor_value_info("outputs", proto.FLOAT, ["n", width]),
        ],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(MICROSOFT, 1)] if fused else [])]
    model = helper.make_model(
        onnx_graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="roundoff", producer_version=version
    )
    helper.set_model_props(model, {"format": str(packed.format)})
    result: bytes = model.SerializeToString()
    return result


@final
class _Graph:
    """Nodes and constants of a graph as it grows."""

    def __init__(self, packed: PackedPolicy, *, fused: bool) -> None:
        import onnx  # noqa: PLC0415  an extra

        self._onnx = onnx
        self._policy, self._fused = packed.layout, fused
        self._integers = has_integer_operators(packed.format)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Adds a node, and returns the name of its output."""
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: torch.Tensor | np.ndarray[Any, Any]) -> str:
        """Adds a constant, and returns its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def layer(self, x: str, layer: Layer, encoded: Any, *, planes: bool) -> tuple[str, bool]:
        """Adds a layer; returns its output, and whether that still has planes."""
        convolution = isinstance(layer, ConvolutionLayer)
        if planes and not convolution:
            x = self.node("Flatten", [x])
        y = self._integer_product(x, layer, encoded) if self._integers else self._float_product(x, layer)
        if layer.activation is not Activation.NONE:
            y = self.node(layer.activation.capitalize(), [y])
        return y, convolution

    def combine(self, heads: list[str]) -> None:
        """Adds the nodes that combine the outputs of the heads, in the order of ``combined``."""
        if len(heads) == 1:
            self.node("Identity", heads, "outputs")
            return
        rows = self.constant(np.array([0, self._policy.action_size, -1], np.int64))  # 0 keeps n, -1 is the rest.
        axis = self.constant(np.array([1], np.int64))
        advantages = self.node("Reshape", [heads[1], rows])
        difference = self.node("Sub", [advantages, self.node("ReduceMean", [advantages, axis], keepdims=1)])
        total = self.node("Add", [self.node("Unsqueeze", [heads[0], axis]), difference])
        self.node("Flatten", [total], "outputs")

    def decide(self) -> None:
        """Adds the nodes that turn outputs into actions."""
        policy, values = self._policy, "outputs"
        if policy.decision is Decision.TANH:
            self.node("Tanh", [values], "actions")
            return
        if policy.decision is Decision.OUTPUTS:
            self.node("Identity", [values], "actions")
            return
        if policy.decision is Decision.CLIP:
            ends = [self.constant(np.array(end, np.float32)) for end in (-1, 1)]
            self.node("Clip", [values, *ends], "actions")
            return
        if policy.atoms is not None:
            rows = self.constant(np.array([0, policy.action_size, -1], np.int64))
            probabilities = self.node("Softmax", [self.node("Reshape", [values, rows])], axis=2)
            values = self.node("MatMul", [probabilities, self.constant(policy.atoms)])
        best = self.node("ArgMax", [values], axis=1, keepdims=0)
        depth = self.constant(np.array(policy.action_size, np.int64))
        self.node("OneHot", [best, depth, self.constant(np.array([0, 1], np.float32))], "actions", axis=1)

    def _float_product(self, x: str, layer: Layer) -> str:
        weight, bias = self.constant(layer.weight), self.constant(layer.bias)
        if isinstance(layer, ConvolutionLayer):
            return self.node("Conv", [x, weight, bias], **_convolution_attributes(layer, layer.weight.shape))
        return self.node("Gemm", [x, weight, bias], transB=1)  # Weights are (out, in).

    def _integer_product(self, x: str, layer: Layer, encoded: Any) -> str:
        """Adds the operations of ``integers.product``, in their order."""
        codes, scale, bias = encoded.codes.numpy(), encoded.scale.numpy(), layer.bias.numpy()
        if isinstance(layer, ConvolutionLayer):
            scale = scale.reshape(-1, 1, 1) if scale.ndim else scale
            bias = bias.reshape(-1, 1, 1)
        else:
            codes = np.ascontiguousarray(codes.T)  # MatMulInteger has no transB.
        # Bytes from 0 to 255: where a processor has no VNNI, ONNX Runtime's sums of signed weights saturate at 16 bits.
        codes, zero = (codes.astype(np.int16) + _ZERO_POINT).astype(np.uint8), np.array(_ZERO_POINT, np.uint8)
        weight_name, scale_name, bias_name = (self.constant(value) for value in (codes, scale, bias))
        if self._fused and not isinstance(layer, ConvolutionLayer):
            zeros = self.constant(np.full(scale.shape, zero))
            inputs = [x, weight_name, scale_name, zeros, bias_name]
            return self.node("DynamicQuantizeMatMul", inputs, domain=MICROSOFT)
        # Quantize the activations; ``node`` is for operators with one output.
        quantized = [f"{part}_{len(self.nodes)}" for part in ("codes", "scale", "zero_point")]
        self.nodes.append(self._onnx.helper.make_node("DynamicQuantizeLinear", [x], quantized))
        inputs = [quantized[0], weight_name, quantized[2], self.constant(zero)]
        if isinstance(layer, ConvolutionLayer):
            sums = self.node("ConvInteger", inputs, **_convolution_attributes(layer, codes.shape))
        else:
            sums = self.node("MatMulInteger", inputs)
        # Scale the exact sums, and add the bias.
        floats = self.node("Cast", [sums], to=self._onnx.TensorProto.FLOAT)
        scaled = self.node("Mul", [floats, self.node("Mul", [quantized[1], scale_name])])
        return self.node("Add", [scaled, bias_name])


_ZERO_POINT = 128
"""The byte of a weight of zero."""


def _convolution_attributes(layer: ConvolutionLayer, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"kernel_shape": list(shape[2:]), "strides": [layer.stride] * 2, "pads": [layer.padding] * 4}
