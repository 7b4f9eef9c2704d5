"""Changes of a program that only change roundings: none is called a bug."""

import math

import pytest
import torch
from each import each
from torch.nn import functional

import roundoff


def product():
    """Two matrices, from which each program begins."""
    return torch.randn(24, 64), torch.randn(64, 16)


def weights():
    return torch.randn(16, 8), torch.randn(16), torch.randn(32, 8)


def heads():
    return torch.randn(3, 2, 4, 16, 8).unbind()


def chunked(size):
    a, b = product()
    total = torch.zeros(24, 16)
    for k in range(0, 64, size):
        total = total + a[:, k : k + size] @ b[k : k + size]
    return total.relu().sum()


def plain():
    a, b = product()
    return (a @ b).relu().sum()


def batched(parts):
    a, b = product()
    return torch.cat([one @ b for one in a.chunk(parts)]).relu().sum()


def wide():
    a, b = product()
    return (a.double() @ b.double()).float().relu().sum()


def strided():
    a, b = product()
    return (a.T.contiguous().T @ b.T.contiguous().T).relu().sum()


def columns():
    a, b = product()
    return torch.stack([a @ column for column in b.T], 1).relu().sum()


def summed(how):
    x = torch.randn(64, 32).exp()
    return {
        "all": x.sum, "rows": lambda: x.sum(1).sum(), "columns": lambda: x.sum(0).sum(),
        "flipped": lambda: x.flip(0).sum(), "loop": lambda: sum(row.sum() for row in x),
        "product": lambda: torch.ones(64) @ x @ torch.ones(32), "wide": lambda: x.double().sum().float(),
        "mean": lambda: x.mean() * x.numel(), "cumsum": lambda: x.flatten().cumsum(0)[-1],
        "einsum": lambda: torch.einsum("ij->", x),
    }[how]().log()  # fmt: skip


def linear(how):
    w, b, x = weights()
    return {
        "linear": lambda: functional.linear(x, w, b), "addmm": lambda: torch.addmm(b, x, w.T),
        "parts": lambda: x @ w.T + b, "transposed": lambda: (w @ x.T + b[:, None]).T,
        "wide matrix": lambda: torch.cat([x, torch.ones(32, 1)], 1) @ torch.cat([w, b[:, None]], 1).T,
        "einsum": lambda: torch.einsum("ni,oi->no", x, w) + b,
    }[how]().tanh().sum(1)  # fmt: skip


def softmax(how):
    x = 3 * torch.randn(16, 32)
    shifted = x - x.amax(1, keepdim=True)
    return {
        "softmax": lambda: x.softmax(1), "parts": lambda: x.exp() / x.exp().sum(1, keepdim=True),
        "shifted": lambda: shifted.exp() / shifted.exp().sum(1, keepdim=True),
        "log": lambda: x.log_softmax(1).exp(), "logsumexp": lambda: torch.exp(x - x.logsumexp(1, keepdim=True)),
        "named from the end": lambda: x.softmax(-1),
    }[how]().square().sum(1)  # fmt: skip


def normalised(how):
    x, gamma, beta = torch.randn(16, 32) + 3, torch.rand(32), torch.randn(32)
    mean = x.mean(1, keepdim=True)
    return {
        "kernel": lambda: functional.layer_norm(x, (32,), gamma, beta),
        "parts": lambda: (x - mean) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt() * gamma + beta,
        "rsqrt": lambda: (x - mean) * ((x - mean).square().mean(1, keepdim=True) + 1e-5).rsqrt() * gamma + beta,
        "one pass": lambda: (x - mean) * (x.square().mean(1, keepdim=True) - mean**2 + 1e-5).rsqrt() * gamma + beta,
    }[how]().relu().sum()  # fmt: skip


def attention(how):
    q, k, v = heads()
    scale = 1 / math.sqrt(8)
    return {
        "kernel": lambda: functional.scaled_dot_product_attention(q, k, v),
        "scores": lambda: (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v,
        "divided": lambda: (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1) @ v,
        "queries": lambda: (q * scale @ k.transpose(-1, -2)).softmax(-1) @ v,
        "each head": lambda: torch.stack(
            [(q[:, h] @ k[:, h].mT * scale).softmax(-1) @ v[:, h] for h in range(4)], 1
        ),
    }[how]().square().mean()  # fmt: skip


def order(swapped):
    x, w, v = torch.randn(16, 8), torch.randn(8, 8), torch.randn(8, 8)
    q, k = (x @ v, x @ w)[::-1] if swapped else (x @ w, x @ v)
    return (q * k).exp().mean()


def activation(how):
    x = torch.randn(16, 32, requires_grad=True)
    y = {
        "relu": x.relu, "clamp": lambda: x.clamp(min=0), "where": lambda: torch.where(x > 0, x, 0.0),
        "mask": lambda: x * (x > 0), "silu": lambda: functional.silu(x), "sigmoid": lambda: x * x.sigmoid(),
        "parts": lambda: x / (1 + (-x).exp()),
    }[how]().square().sum()  # fmt: skip
    (gradient,) = torch.autograd.grad(y, x)
    return y, gradient


def convolution(how):
    x, w = torch.randn(2, 3, 10, 10), torch.randn(4, 3, 3, 3)
    if how == "unfold":
        return (w.flatten(1) @ functional.unfold(x, 3)).view(2, 4, 8, 8).relu().sum()
    if how == "last":
        x = x.to(memory_format=torch.channels_last)
    return functional.conv2d(x, w).relu().sum()


def training(
    foreach=False, parts=1, optimizer="Adam", extra=False, print_too=False, compiled=False, tied=False, mse=False
):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    call = torch.compile(net) if compiled else net
    made = getattr(torch.optim, optimizer)(net.parameters(), lr=1e-2, foreach=foreach)
    for _ in range(3):
        x = torch.randn(32, 8)
        made.zero_grad()
        for one in x.chunk(parts):
            error = call(one) - one.sum(1, keepdim=True)
            loss = (functional.mse_loss(call(one), one.sum(1, keepdim=True)) if mse else error.square().mean()) / parts
            loss.backward()
        if extra:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1e6)
        if print_too:
            str((net[0].weight.norm().item(), loss.item()))
        made.step()
    return net[0].weight, net[3].bias


def constant(tensor):
    x = torch.randn(64)
    return (x * (torch.tensor(0.1) if tensor else 0.1)).exp().sum().log()


def read(wide):
    """A number read from a tensor is rounded; the program continues with it."""
    x = torch.randn(64).exp()
    norm = (x.double().norm().float() if wide else x.norm()).item()
    return (x / norm).square().sum().sqrt() * 3


def decided(wide):
    """A comparison, an argmax and a rounding whose outcomes depend on the last bit."""
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    y = (a.double() @ b.double()).float() if wide else a @ b
    ties = y - (a @ b)
    return torch.where(ties > 0, y, -y).sum(), (ties + 0.5).round().sum() * y


def in_place(changes):
    x, y = torch.randn(2, 16, 16).unbind()
    if changes:
        z = x.clone()
        z.mul_(y).add_(x, alpha=2).tanh_()
        return z.sum()
    return torch.tanh(x * y + 2 * x).sum()


def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        a, b = torch.randn(2, 200, 200).unbind()
        return (a @ b).sum(0).tanh()
    finally:
        torch.set_num_threads(before)


def recurrent(kernel):
    cell, kernel_of_all = torch.nn.GRUCell(4, 8), torch.nn.GRU(4, 8)
    x, h = torch.randn(5, 3, 4), torch.zeros(3, 8)
    kernel_of_all.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    if kernel:
        return kernel_of_all(x)[1][0].sum()
    for one in x:
        h = cell(one, h)
    return h.sum()


def pairs(function, first, *others):
    return {f"{function.__name__} {other}": (lambda: function(first), lambda o=other: function(o)) for other in others}


HARMLESS = {
    **{f"chunks of {size}": (plain, lambda size=size: chunked(size)) for size in (8, 32)},
    **{f"{parts} batches": (plain, lambda parts=parts: batched(parts)) for parts in (2, 5)},
    "float64": (plain, wide), "strides": (plain, strided), "columns": (plain, columns), "again": (plain, plain),
    **pairs(
        summed, "all", "rows", "columns", "flipped", "loop", "product", "wide", "mean", "cumsum", "einsum"
    ),
    **pairs(linear, "linear", "addmm", "parts", "transposed", "wide matrix", "einsum"),
    **pairs(softmax, "softmax", "parts", "shifted", "log", "logsumexp", "named from the end"),
    **pairs(normalised, "kernel", "parts", "rsqrt", "one pass"),
    **pairs(attention, "kernel", "scores", "divided", "queries", "each head"),
    **pairs(activation, "relu", "clamp", "where", "mask"),
    **pairs(activation, "silu", "sigmoid", "parts"),
    **pairs(convolution, "plain", "unfold", "last"),
    **pairs(order, False, True), **pairs(constant, False, True), **pairs(read, False, True),
    **pairs(decided, False, True), **pairs(in_place, False, True), **pairs(threads, 1, 2),
    **pairs(recurrent, False, True),
    "foreach": (training, lambda: training(foreach=True)),
    "accumulated": (training, lambda: training(parts=2)),
    "compiled": (training, lambda: training(compiled=True)),
    "no effect": (training, lambda: training(extra=True)),
    "prints": (training, lambda: training(print_too=True)),
    "loss": (training, lambda: training(mse=True)),
    "AdamW": (lambda: training(optimizer="RAdam"), lambda: training(optimizer="RAdam", foreach=True)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@each(("name", "programs"), HARMLESS.items())
def test_harmless_changes_are_explained(name, programs):
    torch.manual_seed(1)
    report = roundoff.diff(*programs)
    assert report.explained, report
    assert len(HARMLESS) >= 50
    assert (name in ("again", "no effect", "prints")) <= (not report.differences)
