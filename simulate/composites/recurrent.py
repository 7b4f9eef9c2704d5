"""The fused kernels of recurrent networks, step by step: gates, cell and output of each time.

    i, f, g, o = x W^T + b + h V^T + d;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')

The layer kernel of CPUs exists for LSTM in float32, and on some processors in half precision; elsewhere PyTorch takes
recurrent layers apart itself, down to the fused cells of CUDA. Formulas are PyTorch's for the CPU: the inputs of
all times are multiplied at once, so a layer has the same bits with a kernel and without. Packed sequences go to it.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten
_LSTM = 2  # of the modes of at::native's recurrent kernels


def _activated(gates: Tensor) -> tuple[Tensor, ...]:
    i, f, g, o = gates.chunk(4, 1)  # PyTorch's order.
    return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)


def _next_cell(activated: tuple[Tensor, ...], cell: Tensor) -> Tensor:
    i, f, g, _ = activated
    return f * cell + i * g


class _Time(NamedTuple):
    """The intermediate results of one time step that the derivative of a layer needs."""

    number: int
    activated: tuple[Tensor, ...]
    cell: Tensor
    squashed: Tensor
    """tanh of the cell."""
    hidden: Tensor


def _unrolled(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    start: tuple[Tensor, Tensor],
    *,
    reverse: bool,
) -> list[_Time]:
    """All times in the order of the visits."""
    hidden, cell = start
    visited = []
    of_inputs = torch.nn.functional.linear(x, weights[0], biases[0])
    for number in reversed(range(len(x))) if reverse else range(len(x)):
        gates = torch.nn.functional.linear(hidden, weights[1], biases[1]).add_(of_inputs[number])
        activated = _activated(gates)
        cell = _next_cell(activated, cell)
        squashed = torch.tanh(cell)
        hidden = activated[3] * squashed
        visited.append(_Time(number, activated, cell, squashed, hidden))
    return visited


_MARK = torch.tensor([0x726F756E646F6666, 0x6C73746D6C617965], dtype=torch.int64)  # "roundoff", "lstmlaye"


def _workspace(kernels: Tensor | None, visited: Sequence[_Time]) -> Tensor:
    """Returns the workspace for the backward pass: the kernels' own, which they may need, and the computed values.

    Computed again, these would be rounded differently: in the role of the backward pass, with other random bits.
    """
    if isinstance(visited[0].hidden, FakeTensor):  # a traced step: a graph has the times themselves
        workspace = visited[0].hidden.new_empty(0, dtype=torch.uint8)
        workspace.untyped_storage().times = visited  # type: ignore[attr-defined]
        return workspace
    if kernels is None or not kernels.numel() or not torch.is_grad_enabled():
        return visited[0].hidden.new_empty(0, dtype=torch.uint8)
    values = torch.stack([torch.cat([*time.activated, time.cell, time.squashed], 1) for time in visited])
    mark = _MARK.to(values.device).view(torch.uint8)
    return torch.cat([kernels.flatten(), values.flatten().view(torch.uint8), mark])


def _saved_times(workspace: Tensor, x: Tensor, output: Tensor, *, reverse: bool) -> list[_Time] | None:
    """The times as :func:`_workspace` has stored them; None if it belongs to the kernel only."""
    if isinstance(workspace, FakeTensor):
        traced = getattr(workspace.untyped_storage(), "times", None)
        return traced and [time._replace(hidden=output[time.number]) for time in traced]
    with _disable_current_modes():
        times, batch, hidden = output.shape
        mark = _MARK.view(torch.uint8)
        if len(workspace) <= len(mark) or not torch.equal(workspace[-len(mark) :].cpu(), mark):
            return None
        size = times * batch * 6 * hidden * x.element_size()
        values = workspace[-len(mark) - size : -len(mark)].clone().view(x.dtype).view(times, batch, 6 * hidden)
        numbers = reversed(range(times)) if reverse else range(times)
        return [
            _Time(number, (i, f, g, o), cell, squashed, output[number])
            for number, row in zip(numbers, values, strict=True)
            for i, f, g, o, cell, squashed in (row.chunk(6, 1),)
        ]


def _layer(
    x: Tensor, w: Tensor, v: Tensor, b: Tensor, d: Tensor, hidden: Tensor, cell: Tensor, reverse: bool,
    sizes: Sequence[int], mode: int, *rest: Any,
) -> Any:  # fmt: skip
    _, _, has_biases, _, _, train = rest
    if mode != _LSTM or sizes or not len(x):
        return NotImplemented
    biases = (b, d) if has_biases else (None, None)
    # In inference mode the kernel is given the first state with an axis for its layer, and returns the last one so.
    rows = hidden.shape[-2:]
    visited = _unrolled(x, (w, v), biases, (hidden.view(rows), cell.view(rows)), reverse=reverse)
    outputs = [time.hidden for time in (reversed(visited) if reverse else visited)]
    with _disable_current_modes():
        # The kernel's derivative reads its workspace without a check, and runs if the backward pass is not decomposed.
        arguments = (x, w, v, b, d, hidden, cell, reverse, sizes, mode, *rest)
        needs_kernel = train and not isinstance(x, FakeTensor)
        workspace = _workspace(_aten.mkldnn_rnn_layer.default(*arguments)[3] if needs_kernel else None, visited)
    last = (state.clone().view(hidden.shape) for state in (visited[-1].hidden, visited[-1].cell))
    return torch.stack(outputs), *last, workspace


def _gate_gradients(
    of_hidden: Tensor | None, of_cell: Tensor | None, last: Tensor, squashed: Tensor, activated: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their activation, and of the cell before this time (``last``)."""
    i, f, g, o = activated
    of_output = None if of_hidden is None else of_hidden * squashed
    if of_hidden is not None:
        of_cell = _sum_of_present(of_cell, _aten.tanh_backward.default(of_hidden * o, squashed))
    assert of_cell is not None
    parts = (
        _aten.sigmoid_backward.default(of_cell * g, i),
        _aten.sigmoid_backward.default(of_cell * last, f),
        _aten.tanh_backward.default(of_cell * i, g),
        torch.zeros_like(o) if of_output is None else _aten.sigmoid_backward.default(of_output, o),
    )
    return torch.cat(parts, 1), of_cell * f


def _sum_of_present(total: Tensor | None, x: Tensor | None) -> Tensor | None:
    if total is None or x is None:
        return x if total is None else total
    return total + x


def _layer_backward(
    x: Tensor, w: Tensor, v: Tensor, b: Tensor, d: Tensor, hidden: Tensor, cell: Tensor, output: Tensor,
    _last_hidden: Tensor, _last_cell: Tensor, of_output: Tensor | None, of_hidden: Tensor | None,
    of_cell: Tensor | None, reverse: bool, mode: int, *rest: Any,
) -> Any:  # fmt: skip
    _, _, has_biases, _, _, sizes, _, workspace = rest
    if mode != _LSTM or sizes or not len(x):
        return NotImplemented
    shape, rows = hidden.shape, hidden.shape[-2:]
    hidden, cell = hidden.view(rows), cell.view(rows)
    of_hidden, of_cell = (None if of is None else of.view(rows) for of in (of_hidden, of_cell))
    visited = _saved_times(workspace, x, output, reverse=reverse)
    if visited is None:  # the forward pass was the kernel's
        visited = _unrolled(x, (w, v), (b, d) if has_biases else (None, None), (hidden, cell), reverse=reverse)
    before = [(cell, hidden), *[(time.cell, time.hidden) for time in visited]]
    of_gates: list[Tensor] = [x] * len(visited)
    of_v = of_d = None
    for time, (last, hidden_before) in reversed(list(zip(visited, before, strict=False))):
        of_hidden = _sum_of_present(of_hidden, None if of_output is None else of_output[time.number])
        gates, of_cell = _gate_gradients(of_hidden, of_cell, last, time.squashed, time.activated)
        of_gates[time.number] = gates
        of_hidden = torch.mm(gates, v)
        # Autograd adds up the gradients of a weight that all times use in this order.
        of_v = _sum_of_present(of_v, torch.mm(gates.t(), hidden_before))
        of_d = _sum_of_present(of_d, gates.sum(0))
    assert of_hidden is not None
    assert of_cell is not None
    gates = torch.cat(of_gates)
    of_x = torch.mm(gates, w).view(x.shape)
    of_w, of_b = torch.mm(gates.t(), x.reshape(len(gates), -1)), gates.sum(0)
    return of_x, of_w, of_v, of_b, of_d, of_hidden.view(shape), of_cell.view(shape)


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
    of_hidden: Tensor | None, of_cell: Tensor | None, last: Tensor, cell: Tensor, activated: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    gates, of_last = _gate_gradients(of_hidden, of_cell, last, torch.tanh(cell), activated.chunk(4, 1))
    return gates, of_last, gates.sum(0) if has_bias else None


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.mkldnn_rnn_layer: _layer,
    _aten.mkldnn_rnn_layer_backward: _layer_backward,
    _aten._thnn_fused_lstm_cell: _lstm_cell,
    _aten._thnn_fused_lstm_cell_backward_impl: _lstm_cell_backward,
}
