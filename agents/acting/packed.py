"""A policy with its weights packed in a format, to send to actors or to deploy."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self, final

import numpy as np
import torch

from roundoff.locks import cached_property

from ...formats import Format, pack, unpack
from ..errors import RunError
from ..models.policy_layers import Activation, ConvolutionLayer, Decision, Layer, LinearLayer, PolicyLayers

_MAGIC = b"roundoff policy 1\n"
_LENGTH = struct.Struct("<I")  # Of the header.
_ALIGNED = 8  # Bytes; each part of a message begins at a multiple.


@final
@dataclass(frozen=True, eq=False)
class PackedPolicy:
    """A policy with weights that are codes of a format; biases and atoms are float32.

    Args:
        format: the format of the weights.
        layout: the policy without its weights, which are empty; ``policy`` has them.
        encoded: the result of ``Format.encode`` for each layer's weight, in order: codes, and scales if any.
    """

    format: Format
    layout: PolicyLayers
    encoded: tuple[Any, ...]

    @cached_property
    def policy(self) -> PolicyLayers:
        """The policy with its weights decoded to float32."""
        return with_numbers(self.layout, (self.format.decode(x).to(torch.float32) for x in self.encoded), "weight")

    @property
    def layers(self) -> Iterator[tuple[Layer, Any]]:
        """All layers in order, without weights, each with the codes of its weight."""
        return zip(self.layout, self.encoded, strict=True)

    @classmethod
    def of(cls, policy: PolicyLayers, fmt: Format | str) -> Self:
        """Rounds the weights of a policy to the nearest numbers of a format, and encodes them.

        Args:
            policy: float32.
            fmt: a format that float32 holds. An axis, as in ``int8_ax0``, refers to a weight (out, in), so that 0 is a
                scale for each output; blocks are along the inputs, unless the format says otherwise.

        Raises:
            FormatError: the format does not exist, or it lacks codes for the weights.
            RunError: the format is wider than float32, or a weight or bias is NaN or infinite.
        """
        fmt = Format.parse(fmt)
        if not fmt.fits_in(torch.float32):
            raise RunError(
                f"weights are packed as float32 values, which cannot represent all values of {fmt}; choose fp32"
            )
        for i, layer in enumerate(policy):
            for name, numbers in (("weights", layer.weight), ("biases", layer.bias)):
                if not bool(numbers.isfinite().all()):
                    raise RunError(
                        f"the {name} of layer {i} of the policy are not all finite: the learned policy is lost"
                    )
        encoded = tuple(fmt.encode(layer.weight) for layer in policy)
        return cls(fmt, with_numbers(policy, [torch.empty(0)] * len(encoded), "weight"), encoded)

    def to_bytes(self) -> bytes:
        """Returns the policy as one message: a header in JSON, then dense codes, scales and biases.

        Reading a message executes nothing in it; see :meth:`from_bytes`.
        """
        policy = self.layout
        blobs: list[bytes] = []
        layers = []
        for layer, encoded in self.layers:  # Shapes and settings go to the header, content to ``blobs``.
            parts = self._dense(encoded)
            blobs += [*parts, layer.bias.numpy().tobytes()]
            shapes = [list(part.shape) for part in _as_tuple(encoded)]
            zeros = [not part for part in parts]
            spatial = {"stride": layer.stride, "padding": layer.padding} if isinstance(layer, ConvolutionLayer) else {}
            layers.append({"shapes": shapes, "zeros": zeros, "activation": layer.activation, **spatial})
        if policy.atoms is not None:
            blobs.append(policy.atoms.numpy().tobytes())
        header = {
            "format": str(self.format),
            "observation_shape": list(policy.observation_shape),
            "layers": layers,
            "shared": len(policy.shared),
            "heads": [len(head) for head in policy.heads],
            "decision": policy.decision,
            "action_size": policy.action_size,
            "atoms": 0 if policy.atoms is None else len(policy.atoms),
        }
        text = json.dumps(header).encode()
        text += b" " * (-(len(_MAGIC) + _LENGTH.size + len(text)) % _ALIGNED)  # JSON ignores spaces.
        padded = (blob + b"\0" * (-len(blob) % _ALIGNED) for blob in blobs)
        return b"".join([_MAGIC, _LENGTH.pack(len(text)), text, *padded])

    @classmethod
    def from_bytes(cls, message: bytes) -> Self:
        """Reads the policy of a message.

        Raises:
            RunError: the message is not a policy, or truncated.
        """
        try:
            return cls._read(message)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError, struct.error) as error:
            raise RunError(f"this is not a packed policy, or it is incomplete ({error}): pack it again") from error

    @cached_property
    def weight_bytes(self) -> int:
        """The number of bytes of the codes and scales of all weights in a message."""
        return sum(len(part) for encoded in self.encoded for part in self._dense(encoded))

    @classmethod
    def _read(cls, message: bytes) -> Self:
        if message[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it begins otherwise")
        start = len(_MAGIC) + _LENGTH.size
        (length,) = _LENGTH.unpack_from(message, len(_MAGIC))  # Of the header in JSON.
        header = json.loads(message[start : start + length])
        rest = _Reader(message, start + length)
        fmt = Format.parse(header["format"])
        layers: list[Layer] = []
        encoded = []
        for entry in header["layers"]:
            shapes = entry["shapes"]
            # The weight: codes, and scales if any. A probe has their dtypes, which the header lacks.
            probe = fmt.encode(torch.ones([1] * len(shapes[0])))
            parts = [
                rest.numbers(shape, example.dtype, fmt.bits if i == 0 else None, absent=zero)
                for i, (shape, zero, example) in enumerate(zip(shapes, entry["zeros"], _as_tuple(probe), strict=True))
            ]
            encoded.append(parts[0] if isinstance(probe, torch.Tensor) else type(probe)(*parts))
            # The rest of the layer; only convolutions have a stride.
            bias = rest.numbers([shapes[0][0]], torch.float32)
            activation, weight = Activation(entry["activation"]), torch.empty(0)
            layers.append(
                ConvolutionLayer(weight, bias, activation, int(entry["stride"]), int(entry["padding"]))
                if "stride" in entry
                else LinearLayer(weight, bias, activation)
            )
        atoms = rest.numbers([header["atoms"]], torch.float32) if header["atoms"] else None
        rest.check_end()  # Neither truncated nor longer.
        ends = np.cumsum([header["shared"], *header["heads"]]).tolist()  # Of the shared layers, and of each head.
        if ends[-1] != len(layers):
            raise ValueError("its layers differ from its description")
        policy = PolicyLayers(
            tuple(header["observation_shape"]),
            tuple(layers[: ends[0]]),
            tuple(tuple(layers[a:b]) for a, b in pairwise(ends)),
            Decision(header["decision"]),
            header["action_size"],
            atoms,
        )
        return cls(fmt, policy, tuple(encoded))

    def _dense(self, encoded: Any) -> list[bytes]:
        """Returns dense codes, and the scales; tensors of zeros, such as zero points, become empty."""
        codes, *scales = _as_tuple(encoded)
        if codes.element_size() * 8 != self.format.bits:
            codes = pack(codes, self.format.bits)
        return [part.numpy().tobytes() if part.numpy().any() else b"" for part in (codes, *scales)]


@final
class _Reader:
    """Takes tensors out of a message, one after the other."""

    def __init__(self, message: bytes, start: int) -> None:
        self._message, self._place = message, start

    def numbers(
        self, shape: list[int], dtype: torch.dtype, bits: int | None = None, *, absent: bool = False
    ) -> torch.Tensor:
        """Numbers in their memory layout, or codes of this number of bits, packed; zeros if they are absent."""
        if absent:
            return torch.zeros(shape, dtype=dtype)
        count = torch.Size(shape).numel()
        if bits is None or bits == dtype.itemsize * 8:
            return self._bytes(count * dtype.itemsize).view(dtype).view(shape)
        codes = unpack(self._bytes(-(-count * bits // 8)), bits, count).view(shape)
        if dtype.is_signed:  # Extends the sign: packing kept only the low bits.
            codes -= (codes >> (bits - 1)) << bits
        return codes.to(dtype)

    def _bytes(self, size: int) -> torch.Tensor:
        part = np.frombuffer(self._message, np.uint8, size, self._place)
        self._place += size + -size % _ALIGNED
        return torch.from_numpy(part.copy())  # A message is read-only.

    def check_end(self) -> None:
        """Raises ValueError if something follows."""
        if self._place != len(self._message):
            raise ValueError(f"it has {len(self._message)} bytes, of which {self._place} are its own")


def with_numbers(policy: PolicyLayers, numbers: Iterable[torch.Tensor], *names: str) -> PolicyLayers:
    """Replaces tensors of a policy's layers.

    Args:
        policy: the policy.
        numbers: the tensors of each layer in order, by ``names``.
        names: ``weight``, ``bias`` or both.
    """
    tensors = iter(numbers)

    def replaced(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        parts: list[dict[str, Any]] = [{name: next(tensors) for name in names} for _ in layers]
        return tuple(replace(layer, **part) for layer, part in zip(layers, parts, strict=True))

    return replace(policy, shared=replaced(policy.shared), heads=tuple(map(replaced, policy.heads)))


def _as_tuple(encoded: Any) -> tuple[torch.Tensor, ...]:
    return (encoded,) if isinstance(encoded, torch.Tensor) else tuple(encoded)
