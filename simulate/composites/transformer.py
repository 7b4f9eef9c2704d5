"""Whole attention layers and encoder layers, which PyTorch runs as one kernel when it evaluates: as when it trains.

    attention(q, k, v) = (softmax(q W_q (k W_k)^T / sqrt(d)) v W_v) W_o + b,    by torch.nn.functional's own function
    encoder layer(x) = norm_2(y + W_2 f(W_1 y)) with y = norm_1(x + attention(x, x, x)), or with the norms first

Nested tensors are padded for it. Masks become booleans, as in the kernels.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

_aten = torch.ops.aten
_OF_PAIRS, _OF_SOURCES, _OF_BOTH = 0, 1, 2  # the kinds of masks that the kernels know


@contextmanager
def _as_called_by_programs() -> Iterator[None]:
    """Makes linear layers in the block choose their products as in a program: by the tensors that need a gradient."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.no_grad():
        yield


_AUTOGRAD = (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView)


def _padded(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A nested tensor with zeros at the end of its parts, and where it has numbers; a dense one as it is."""
    if not x.is_nested:
        return x, None
    lengths = torch.tensor([len(part) for part in x.unbind()], device=x.device)
    padded = torch.nested.to_padded_tensor(x, 0.0)
    return padded, torch.arange(padded.shape[1], device=x.device) < lengths[:, None]


def _like(x: Tensor, present: Tensor | None) -> Tensor:
    return x if present is None else torch._nested_tensor_from_mask(x, present, mask_check=False)


def _attend(
    operands: tuple[Tensor, Tensor, Tensor], heads: int, weights: tuple[Tensor, Tensor, Tensor, Tensor],
    mask: Tensor | None, kind: int | None, present: Tensor | None, *, need_weights: bool = False, average: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention over operands with the batch first, all three perhaps the same."""
    query, key, value = operands
    of_sources = None if present is None else ~present
    of_pairs = None
    if mask is not None and kind == _OF_SOURCES:
        of_sources = mask.bool()
    elif mask is not None:
        of_pairs = mask.bool()
        if of_pairs.dim() == 4:
            of_pairs = of_pairs.expand(len(query), heads, -1, -1).flatten(0, 1)
    first = query.transpose(0, 1)  # The function recognises self-attention by the identity of its operands.
    second = first if key is query else key.transpose(0, 1)
    third = second if value is key else value.transpose(0, 1)
    result, averages = F.multi_head_attention_forward(
        first, second, third, query.shape[-1], heads, weights[0], weights[1], None, None, False, 0.0, weights[2],
        weights[3], training=False, key_padding_mask=of_sources, need_weights=need_weights, attn_mask=of_pairs,
        average_attn_weights=average,
    )  # fmt: skip
    return result.transpose(0, 1), averages


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, _width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    out_weight: Tensor, out_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True, average: bool = True,
    kind: int | None = None,
) -> Any:  # fmt: skip
    if query.is_nested and not (key is query and value is query):  # Only self-attention shares one mask.
        return NotImplemented
    dense, present = _padded(query)
    operands = (dense, dense, dense) if present is not None else (query, key, value)
    weights = (qkv_weight, qkv_bias, out_weight, out_bias)
    result, averages = _attend(
        operands, heads, weights, mask, kind, present, need_weights=need_weights, average=average
    )
    return _like(result.contiguous(), present), averages


def _encoder_layer(
    x: Tensor, _width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, out_weight: Tensor, out_bias: Tensor,
    gelu: bool, norm_first: bool, eps: float, *rest: Any,
) -> Any:  # fmt: skip
    first, second, inner, outer, masks = rest[:2], rest[2:4], rest[4:6], rest[6:8], rest[8:]
    mask, kind = (*masks, None, None)[:2]
    x, present = _padded(x)

    def attend(y: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, out_weight, out_bias)
        return _attend((y, y, y), heads, weights, mask, kind, present)[0]

    def feed_forward(y: Tensor) -> Tensor:
        z = F.linear(y, *inner)
        return F.linear(F.gelu(z) if gelu else z.relu(), *outer)

    def norm(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(y, y.shape[-1:], scale, shift, eps)

    if norm_first:
        x = x + attend(norm(x, *first))
        x = x + feed_forward(norm(x, *second))
    else:
        x = norm(x + attend(x), *first)
        x = norm(x + feed_forward(x), *second)
    return _like(x, present)


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten._native_multi_head_attention: _as_called_by_programs()(_multi_head_attention),
    _aten._transformer_encoder_layer_fwd: _as_called_by_programs()(_encoder_layer),
}
