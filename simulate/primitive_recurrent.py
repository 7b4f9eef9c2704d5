"""The fused kernels of recurrent networks, step by step: gates, cell and output of each time.

    i, f, g, o = x W^T + b + h V^T + d;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')

The layer kernel of CPUs exists for LSTM in float32; elsewhere PyTorch takes recurrent layers apart itself, down to
the fused cells of CUDA. Packed sequences are left to the kernel.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import Tensor

_aten = torch.ops.aten
_LSTM = 2  # of the modes of at::native's recurrent kernels


def _activated(gates: Tensor) -> tuple[Tensor, ...]:
    i, f, g, o = gates.chunk(4, 1)
    return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)


def _next_cell(activated: tuple[Tensor, ...], cell: Tensor) -> Tensor:
    i, f, g, _ = activated
    return f * cell + i * g


def _projected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def _unrolled(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    start: tuple[Tensor, Tensor],
    *,
    reverse: bool,
) -> list[tuple[int, tuple[Tensor, ...], Tensor, Tensor]]:
    """For each time in the order it is visited: the time, activated gates, cell and output after it."""
    hidden, cell = start
    visited = []
    for time in reversed(range(len(x))) if reverse else range(len(x)):
        gates = _projected(x[time], weights[0], biases[0]) + _projected(hidden, weights[1], biases[1])
        activated = _activated(gates)
        cell = _next_cell(activated, cell)
        hidden = activated[3] * torch.tanh(cell)
        visited.append((time, activated, cell, hidden))
    return visited


def _layer(
    x: Tensor,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    d: Tensor,
    hidden: Tensor,
    cell: Tensor,
    reverse: bool,
    sizes: Sequence[int],
    mode: int,
    *rest: Any,
) -> Any:
    _, _, has_biases, _, _, train = rest
    if mode != _LSTM or sizes or not len(x):
        return NotImplemented
    workspace = x.new_empty(0, dtype=torch.uint8)
    if train:
        # The kernel's derivative reads this without looking; it might be called where nothing is taken apart.
        with _disable_current_modes():
            workspace = _aten.mkldnn_rnn_layer.default(x, w, v, b, d, hidden, cell, reverse, sizes, mode, *rest)[3]
    biases = (b, d) if has_biases else (None, None)
    visited = _unrolled(x, (w, v), biases, (hidden, cell), reverse=reverse)
    outputs = [output for *_, output in (reversed(visited) if reverse else visited)]
    _, _, last_cell, last_hidden = visited[-1]
    return torch.stack(outputs), last_hidden.clone(), last_cell.clone(), workspace


def _gate_gradients(
    of_hidden: Tensor, of_cell: Tensor | None, last: Tensor, cell: Tensor, activated: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their activation, and of the cell before this time (``last``)."""
    i, f, g, o = activated
    y = torch.tanh(cell)
    through = _aten.tanh_backward.default(of_hidden * o, y)
    of_cell = through if of_cell is None else of_cell + through
    parts = (
        _aten.sigmoid_backward.default(of_cell * g, i),
        _aten.sigmoid_backward.default(of_cell * last, f),
        _aten.tanh_backward.default(of_cell * i, g),
        _aten.sigmoid_backward.default(of_hidden * y, o),
    )
    return torch.cat(parts, 1), of_cell * f


def _plus(total: Tensor | None, x: Tensor) -> Tensor:
    return x if total is None else total + x


def _layer_backward(
    x: Tensor,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    d: Tensor,
    hidden: Tensor,
    cell: Tensor,
    _output: Tensor,
    _last_hidden: Tensor,
    _last_cell: Tensor,
    of_output: Tensor | None,
    of_hidden: Tensor | None,
    of_cell: Tensor | None,
    reverse: bool,
    mode: int,
    *rest: Any,
) -> Any:
    _, _, has_biases, _, _, sizes, _, _ = rest
    if mode != _LSTM or sizes or not len(x):
        return NotImplemented
    visited = _unrolled(x, (w, v), (b, d) if has_biases else (None, None), (hidden, cell), reverse=reverse)
    before = [(cell, hidden), *[(c, h) for _, _, c, h in visited]]
    of_hidden = torch.zeros_like(hidden) if of_hidden is None else of_hidden
    of_gates: list[tuple[int, Tensor]] = []
    of_v: Tensor | None = None
    for (time, activated, now, _), (last, output) in reversed(list(zip(visited, before, strict=False))):
        if of_output is not None:
            of_hidden = of_hidden + of_output[time]
        gates, of_cell = _gate_gradients(of_hidden, of_cell, last, now, activated)
        of_gates.append((time, gates))
        of_v = _plus(of_v, torch.mm(gates.t(), output))
        of_hidden = torch.mm(gates, v)
    stacked = torch.stack([gates for _, gates in sorted(of_gates, key=lambda pair: pair[0])])
    flat = stacked.flatten(0, 1)
    of_bias = flat.sum(0)
    return (
        torch.mm(flat, w).view(x.shape),
        torch.mm(flat.t(), x.reshape(len(flat), -1)),
        of_v,
        of_bias,
        of_bias.clone(),
        of_hidden,
        of_cell,
    )


def _lstm_cell(
    of_input: Tensor, of_hidden: Tensor, cell: Tensor, b: Tensor | None = None, d: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = of_input + of_hidden
    if b is not None and d is not None:
        gates = of_input + b + (of_hidden + d)
    activated = _activated(gates)
    cell = _next_cell(activated, cell)
    return activated[3] * torch.tanh(cell), cell, torch.cat(activated, 1)


def _lstm_cell_backward(
    of_hidden: Tensor | None,
    of_cell: Tensor | None,
    last: Tensor,
    cell: Tensor,
    activated: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    of_hidden = torch.zeros_like(cell) if of_hidden is None else of_hidden
    gates, of_last = _gate_gradients(of_hidden, of_cell, last, cell, activated.chunk(4, 1))
    return gates, of_last, gates.sum(0) if has_bias else None


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.mkldnn_rnn_layer: _layer,
    _aten.mkldnn_rnn_layer_backward: _layer_backward,
    _aten._thnn_fused_lstm_cell: _lstm_cell,
    _aten._thnn_fused_lstm_cell_backward_impl: _lstm_cell_backward,
}
