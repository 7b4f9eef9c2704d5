"""Attention and its derivative by the formula softmax(scale q k^T + mask) v, each step an operation.

Dropout inside the kernel and fewer heads of keys than of queries are left to the kernel.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _as_it_is(_name: str, x: Tensor, _axis: int) -> Tensor:
    """Returns the operand ``x`` unchanged, for a product that contracts it along an axis."""
    return x


def _attention_scores(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    see: Callable[[str, Tensor, int], Tensor] = _as_it_is,
) -> tuple[Tensor, float]:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(see("query", query, -1), see("key", key, -1).transpose(-2, -1)) * factor
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return scores, factor


def _heads_first(x: Tensor) -> Tensor:
    """Puts heads in the memory order of most attention kernels' results: batch, position, head, feature."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout or query.shape[1] != key.shape[1]:
        return NotImplemented
    scores, _ = _attention_scores(query, key, attn_mask, is_causal, scale)
    result = torch.matmul(_aten._safe_softmax.default(scores, -1), value)
    if result.shape == query.shape:  # The kernel's result has the query's strides.
        result = torch.empty_like(query).copy_(result)
    return result, _heads_first(torch.logsumexp(scores, -1))


def _efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, compute_logsumexp: bool, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    results = _attention(query, key, value, dropout, is_causal, attn_mask=bias, scale=scale)
    if results is NotImplemented:
        return results
    out, logsumexp = _heads_first(results[0]), results[1].contiguous()
    seed = torch.zeros((), dtype=torch.int64)
    return out, logsumexp if compute_logsumexp else logsumexp[..., :0], seed, seed.clone()


def _efficient_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, _logsumexp: Tensor,
    _seed: Tensor | None, _offset: Tensor | None, dropout: float, mask: list[bool], is_causal: bool = False, *,
    scale: float | None = None, see: Callable[[str, Tensor, int], Tensor] = _as_it_is,
) -> Any:  # fmt: skip
    if dropout or query.shape[1] != key.shape[1]:
        return NotImplemented
    scores, factor = _attention_scores(query, key, bias, is_causal, scale, see)
    weights = _aten._safe_softmax.default(scores, -1)  # computed again, as every such kernel does
    of_weights = torch.matmul(see("grad_out", gradient, -1), see("value", value, -1).transpose(-2, -1))
    inner = of_weights - (gradient * out).sum(-1, keepdim=True)  # The derivative of softmax.
    of_scores = weights * inner
    scaled = of_scores * factor
    of_operands = (
        torch.matmul(scaled, see("key", key, -2)),
        torch.matmul(scaled.transpose(-2, -1), see("query", query, -2)),
        torch.matmul(weights.transpose(-2, -1), see("grad_out", gradient, -2)),
    )
    of_bias = of_scores.sum_to_size(bias.shape) if mask[3] and bias is not None else None
    return (*(_heads_first(x) if wanted else None for x, wanted in zip(of_operands, mask, strict=False)), of_bias)


def _attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, **options: Any,
) -> Any:  # fmt: skip
    rest = (attn_mask, out, logsumexp, None, None, dropout, [True, True, True, False], is_causal)
    results = _efficient_attention_backward(gradient, query, key, value, *rest, **options)
    return results if results is NotImplemented else results[:3]


def _transform_bias_rescale_qkv(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
    batch, length, width = qkv.shape
    parts = (qkv + bias).view(batch, length, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4).contiguous()
    query, key, value = parts.unbind()
    return query * (1 / math.sqrt(query.shape[-1])), key.clone(), value.clone()


SEEN: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward: _efficient_attention_backward,
}
"""Formulas that take ``see``, a function from an operand to its value in a product that contracts it along an axis."""

FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten._scaled_dot_product_efficient_attention: _efficient_attention,
    _aten._scaled_dot_product_efficient_attention_backward: _efficient_attention_backward,
    _aten._transform_bias_rescale_qkv: _transform_bias_rescale_qkv,
}
