"""A packed policy as a C header: its weights as they are packed, and loops that act, without dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, final

import numpy as np
import torch

from ...formats import FloatFormat, Format, round
from ..errors import RunError
from ..models.planes import Convolution, convolved_shape
from ..models.policy_layers import Activation, ConvolutionLayer, Decision, Layer
from . import elementary
from .integers import is_computed_in_integers
from .packed import PackedPolicy

_WIDTH = 118  # Columns of a line of numbers.
_BYTE, _HALF = 8, 4  # Bits.
_BUFFERS = 4  # The input and output of a layer, the input of all heads, and the outputs of the first head.
_MOST_INPUTS = 1 << 16  # Sums of products of 8 bits stay below 2^31.


def _exported_functions() -> dict[str, str]:
    """Reads the functions of exported headers, by name, from ``policy.c``."""
    series = {"TANH": elementary.TANH_SERIES, "ELU": elementary.ELU_SERIES}
    constants = {
        "HALVINGS": elementary.HALVINGS,
        "SHRINK": 2.0**-elementary.HALVINGS,
        "TERMS": elementary.TERMS,
        "SMALLEST_EXPONENT": elementary.SMALLEST_EXPONENT,
        "SMALL": elementary.SMALL,
        "LARGE": elementary.LARGE,
        **{f"{name}_{i}": x.hex() for name, numbers in series.items() for i, x in enumerate(numbers)},
    }
    text = Template(Path(__file__).with_name("policy.c").read_text(encoding="utf-8")).substitute(constants)
    # A line ``//// NAME`` begins each function.
    return dict(part.split("\n", 1) for part in text.split("//// ")[1:])


_PARTS = _exported_functions()


def c_header(packed: PackedPolicy, about: str = "") -> str:
    """Returns a policy in C99, to include in one source file, and to call by one thread at a time.

    It declares ``POLICY_OBSERVATIONS``, ``POLICY_OUTPUTS`` and ``POLICY_ACTIONS``, ``policy_outputs(observation,
    outputs)``, and ``policy_act``, which returns the number of a discrete action, and otherwise fills ``action``. It
    needs only its constants and static buffers, and no library. Its results have the bits of the engine
    ``simulated``, for floats with ``accumulate="fp32*fp32"``: products are rounded and added one by one.

    Args:
        packed: the policy, in fp32, in a format that is multiplied as integers (int8, int8_ax0, int4, ...), or in a
            float format of at most 8 bits with a sign (e4m3, e2m1, ...).
        about: a line that describes the policy.

    Raises:
        RunError: the format is not supported, or a layer has too many inputs.
    """
    return _Header(packed, about).text()


class _Kind(NamedTuple):
    """The C types, expressions and functions for the weights of a format."""

    code: str
    """The type of an element that contains codes."""
    weight: str
    """The expression for weight ``i`` of ``w``."""
    input: str
    sum: str
    rounding: str
    """The function that rounds inputs."""


_FLOAT = _Kind("float", "((w)[i])", "float", "float", _PARTS["PLAIN_INPUTS"])
_INTEGERS = _Kind("int8_t", "((w)[i])", "int16_t", "int32_t", _PARTS["INTEGER_INPUTS"])
_TABLE = _Kind("uint8_t", "policy_number((w)[i])", "float", "float", _PARTS["FLOAT_INPUTS"])
_CODE_IN_HALF = "((w)[(i) / 2] >> ((i) % 2 * 4) & 15)"  # Two codes in a byte, the first in the low half.


def _stored_kind(fmt: Format) -> _Kind:
    halves = fmt.bits <= _HALF
    if is_computed_in_integers(fmt):
        if not halves:
            return _INTEGERS
        top, mask = 1 << (fmt.bits - 1), (1 << fmt.bits) - 1
        # (code ^ top) - top extends the sign.
        return _INTEGERS._replace(code="uint8_t", weight=f"((int)((({_CODE_IN_HALF} & {mask}) ^ {top})) - {top})")
    if fmt.native:
        return _FLOAT
    if isinstance(fmt, FloatFormat) and fmt.bits <= _BYTE and fmt.signed:
        return _TABLE._replace(weight=f"policy_number({_CODE_IN_HALF})") if halves else _TABLE
    raise RunError(
        f"a C header holds weights of fp32, of integers with a scale (int8, int8_ax0, int4, ...) or of floats with a"
        f" sign and at most 8 bits (e4m3, e2m1, ...), got {fmt}"
    )


@final
class _Header:
    """Collects the pieces of a header, layer by layer."""

    def __init__(self, packed: PackedPolicy, about: str) -> None:
        self._packed, self._about = packed, about
        self._format, self._policy = packed.format, packed.layout
        self._kind = _stored_kind(packed.format)
        self._data: list[str] = []
        self._calls: list[str] = []
        self._functions: set[str] = set()  # Of ``_PARTS``.
        self._largest = [0] * _BUFFERS  # Values in each buffer.
        self._most_inputs = 0

    def text(self) -> str:
        """Returns the whole header."""
        policy, decision = self._policy, self._policy.decision
        # The layers: their constants in ``_data``, the calls of their functions in ``_calls``.
        encoded = iter(self._packed.encoded)
        place, shape = "observation", policy.observation_shape
        for layer in policy.shared:
            place, shape = self._layer(layer, next(encoded), place, shape, place)
        shared, shared_shape = place, shape
        ends: list[str] = []
        for head in policy.heads:
            place, shape = shared, shared_shape
            for layer in head:
                place, shape = self._layer(layer, next(encoded), place, shape, shared, *ends)
            ends.append(place)
        if len(ends) == 1:
            self._calls.append(f"for (int i = 0; i < POLICY_OUTPUTS; i++)\n        outputs[i] = {ends[0]}[i];")
        else:
            self._functions.add("DUELING")
            self._calls.append(f"policy_combine({', '.join(ends)}, outputs);")
        if decision is Decision.TANH:
            self._functions.add("TANH")
        if policy.atoms is not None:
            self._floats("policy_atoms", policy.atoms)
        if policy.atoms is not None or self._functions & {"TANH", "ELU"}:
            self._functions.add("EXPONENTIAL")
        # Only the functions that the policy calls, each before its first use.
        activations = [_PARTS[name] for name in ("RELU", "EXPONENTIAL", "TANH", "ELU") if name in self._functions]
        products = [_PARTS[name] for name in ("PRODUCTS", "CONVOLUTION", "DUELING") if name in self._functions]
        functions = [*activations, self._kind.rounding, _PARTS["RESULT"], *products]
        calls = "\n".join(f"    {call}" for call in self._calls)
        outputs = (
            "/* What the network gives for POLICY_OBSERVATIONS numbers: POLICY_OUTPUTS numbers. */\n"
            f"static void policy_outputs(const float *observation, float *outputs)\n{{\n{calls}\n}}\n"
        )
        sizes = math.prod(policy.observation_shape), math.prod(shape), policy.action_size
        beginning = [self._comment(), _PARTS["BEGINNING"], self._declarations(*sizes)]
        return "\n".join(
            [*beginning, *self._data, *functions, outputs, _PARTS[f"ACT_{decision.name}"], _PARTS["ENDING"]]
        )

    def _layer(
        self, layer: Layer, encoded: Any, source: str, shape: tuple[int, ...], *reserved: str
    ) -> tuple[str, tuple[int, ...]]:
        """Writes a layer; returns the buffer of its results, and their shape. ``reserved`` buffers do not change."""
        number = sum(line.startswith("static const policy_code") for line in self._data)
        buffers = [f"policy_buffer_{i}" for i in range(_BUFFERS)]
        target = next(buffer for buffer in buffers if buffer not in (source, *reserved))
        codes, *scales = (encoded,) if isinstance(encoded, torch.Tensor) else encoded
        # Its constants.
        self._weights(f"policy_weights_{number}", codes)
        scale = scales[0] if is_computed_in_integers(self._format) else torch.ones(())
        self._floats(f"policy_scales_{number}", scale.reshape(-1))
        self._floats(f"policy_bias_{number}", layer.bias)
        data = f"policy_weights_{number}, policy_scales_{number}, {int(scale.dim() > 0)}, policy_bias_{number}"
        # The call of its function, with the shape of the results.
        inputs = math.prod(shape)
        if isinstance(layer, ConvolutionLayer):
            filters, planes, size = codes.shape[0], *shape[:1], codes.shape[2]
            convolution = Convolution(filters, size, layer.stride, layer.padding)
            result: tuple[int, ...] = convolved_shape([convolution], shape)
            self._functions.add("CONVOLUTION")
            sides = f"{planes}, {shape[1]}, {shape[2]}, {target}, {filters}, {result[1]}, {result[2]}"
            self._calls.append(
                f"policy_convolution({source}, {sides}, {size}, {layer.stride}, {layer.padding}, {data});"
            )
            summed = codes[0].numel()
        else:
            result = (codes.shape[0],)
            self._functions.add("PRODUCTS")
            self._calls.append(f"policy_linear({source}, {inputs}, {target}, {result[0]}, {data});")
            summed = inputs
        if summed >= _MOST_INPUTS:
            raise RunError(f"layer {number} adds {summed} products, and a C header can add less than {_MOST_INPUTS}")
        count = math.prod(result)
        if layer.activation is not Activation.NONE:
            self._functions.add(layer.activation.name)
            self._calls.append(f"policy_{layer.activation}({target}, {count});")
        # The sizes of the static buffers.
        place = buffers.index(target)
        self._largest[place] = max(self._largest[place], count)
        self._most_inputs = max(self._most_inputs, inputs)
        return target, result

    def _weights(self, name: str, codes: torch.Tensor) -> None:
        flat = codes.reshape(-1)
        if self._kind is _FLOAT:  # Codes of fp32 are its bits.
            self._floats(name, flat.view(torch.float32) if flat.dtype == torch.uint32 else flat, "policy_code")
            return
        integers = flat.numpy().astype(np.int64)
        if self._format.bits <= _HALF:
            padded = np.pad(integers & 15, (0, len(integers) % 2))
            integers = padded[0::2] | padded[1::2] << 4
        self._array("policy_code", name, [str(i) for i in integers.tolist()])

    def _floats(self, name: str, numbers: torch.Tensor, kind: str = "float") -> None:
        self._array(kind, name, [_c_float(x) for x in numbers.tolist()])

    def _array(self, kind: str, name: str, items: Sequence[str]) -> None:
        per_line = max(1, _WIDTH // (max(map(len, items)) + 2))
        lines = (", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line))
        self._data.append(f"static const {kind} {name}[{len(items)}] = {{\n" + ",\n".join(lines) + "\n};\n")

    def _declarations(self, observations: int, outputs: int, actions: int) -> str:
        kind, fmt = self._kind, self._format
        lines = [
            f"#define POLICY_OBSERVATIONS {observations}",
            f"#define POLICY_OUTPUTS {outputs}",
            f"#define POLICY_ACTIONS {actions}",
            f"#define POLICY_WEIGHT(w, i) {kind.weight}",
            "",
            f"typedef {kind.code} policy_code;",
            f"typedef {kind.input} policy_input;",
            f"typedef {kind.sum} policy_sum;",
            "",
            f"static policy_input policy_inputs[{self._most_inputs}];",
            *(f"static float policy_buffer_{i}[{size}];" for i, size in enumerate(self._largest) if size),
            "",
        ]
        if is_computed_in_integers(fmt):
            lines.insert(3, f"#define POLICY_STEPS {2**fmt.bits - 1}.0f")
        if isinstance(fmt, FloatFormat) and not fmt.native:
            self._add_table(fmt, lines)
        return "\n".join(lines)

    def _add_table(self, fmt: FloatFormat, lines: list[str]) -> None:
        """Writes the magnitudes of the format, with the result of overflow, and the largest float32 rounded to each."""
        sign = 1 << (fmt.bits - 1)
        numbers = sorted({abs(x) for x in fmt.values().tolist() if math.isfinite(x)})
        by_code = fmt.decode(torch.arange(sign), torch.float32).tolist()
        beyond = float(round(torch.tensor([torch.finfo(torch.float32).max]), fmt))
        magnitudes = numbers if beyond == numbers[-1] else [*numbers, beyond]
        # The bound is the middle between two neighbors, or the float32 below it if the middle is rounded up. After the
        # largest number, the middle is where overflow begins.
        following = [*numbers[1:], 2 * numbers[-1] - numbers[-2]]
        middles = torch.tensor([(a + b) / 2 for a, b in zip(numbers, following, strict=True)])
        up = round(middles, fmt) != torch.tensor(numbers)
        bounds = torch.where(up, torch.nextafter(middles, torch.zeros(())), middles).tolist()
        arrays = {"policy_magnitudes": magnitudes, "policy_bounds": bounds, "policy_numbers": by_code}
        self._data[:0] = [
            f"static const float {name}[{len(items)}] = {{\n{', '.join(map(_c_float, items))}\n}};\n"
            for name, items in arrays.items()
        ]
        self._data.insert(
            3,
            "static float policy_number(int code)\n{\n"
            f"    return code & {sign} ? -policy_numbers[code & {sign - 1}] : policy_numbers[code];\n}}\n",
        )
        lines.insert(3, f"#define POLICY_MAGNITUDES {len(magnitudes)}")

    def _comment(self) -> str:
        buffers = self._most_inputs * {"float": 4, "int16_t": 2}[self._kind.input] + 4 * sum(self._largest)
        about = self._about.replace("*/", "* /").replace("\n", " ")
        return (
            f"/* {about + '; ' if about else ''}weights in {self._format}, {self._packed.weight_bytes} bytes,"
            f" and {buffers} bytes of buffers.\n"
            "   C99; include it in one source file; one thread at a time. By roundoff export. */"
        )


def _c_float(x: float) -> str:
    if math.isnan(x):  # Expressions, since C99 has no literals for NaN and infinity.
        return "(0.0f / 0.0f)"
    if math.isinf(x):
        return "(1.0f / 0.0f)" if x > 0 else "(-1.0f / 0.0f)"
    return f"{x.hex()}f"
