"""Injected bugs, each of a kind that users report: the comparison names the line, and rounding does not explain it."""

import math

import torch
from each import each
from torch.nn import functional

import roundoff


def blocks(x, transposed=False, axis=1, tail=0):
    """Quantizes blocks of 8 to integers with a scale each, and multiplies the scales back."""
    parts = x.unflatten(axis, (-1, 8))
    scales = parts.abs().amax(axis + 1, keepdim=True) / 7
    if transposed:
        scales = scales.reshape(scales.shape[1], scales.shape[0]).T.reshape(scales.shape)
    y = (parts / scales * 1024).round() * scales / 1024  # bug
    y = y.flatten(axis, axis + 1)
    out = torch.zeros_like(x)
    out[:, : x.shape[1] - tail] = y[:, : x.shape[1] - tail]  # bug
    return out @ x.T


def block_axis(axis):
    x = torch.randn(32, 32)
    parts = x.unflatten(axis, (-1, 8))
    scales = parts.abs().amax(axis + 1, keepdim=True)  # bug
    return (parts / scales).flatten(axis, axis + 1).square().sum()


def epsilon(eps):
    x = torch.randn(8, 16)
    variance = x.var(-1, keepdim=True, unbiased=False)
    if eps:
        variance = variance + eps  # bug
    return ((x - x.mean(-1, keepdim=True)) * variance.rsqrt()).tanh()


def double_scaling(twice):
    q, k, v = torch.randn(3, 4, 16, 8).unbind()
    scores = q @ k.transpose(1, 2) / math.sqrt(8)
    if twice:
        scores = scores / math.sqrt(8)  # bug
    return scores.softmax(-1) @ v


def statistics(stale):
    x = torch.randn(64, 8)
    mean = x.mean(0)
    x = x + 0.25
    if not stale:
        mean = x.mean(0)  # bug
    return (x - mean).square().mean()


def gamma_and_beta(swapped):
    x, gamma, beta = torch.randn(16, 8), torch.randn(8), torch.randn(8)
    if swapped:
        gamma, beta = beta, gamma
    return functional.layer_norm(x, (8,), gamma, beta).relu().sum()  # bug


def mask(diagonal):
    scores = torch.randn(4, 16, 16)
    keep = torch.ones(16, 16).tril(diagonal)  # bug
    return scores.masked_fill(keep == 0, -1e9).softmax(-1).sum(1)


def mask_by_comparison(strict):
    places = torch.arange(16)
    keep = places[:, None] > places if strict else places[:, None] >= places  # bug
    return torch.randn(4, 16, 16).masked_fill(~keep, -1e9).softmax(-1).sum(1)


def accumulation(narrow):
    a, b = torch.randn(16, 256), torch.randn(256, 8)
    product = (a.bfloat16() @ b.bfloat16()).float() if narrow else a @ b  # bug
    return product.tanh().sum()


def running_sum(narrow):
    x = torch.rand(64, 8)
    total = torch.zeros(8, dtype=torch.bfloat16 if narrow else torch.float32)
    for row in x:
        total = total + row.to(total.dtype)  # bug
    return total.float().log().sum()


def reduction(axis):
    x = torch.randn(16, 16)
    return x.exp().mean(axis).log().sum()  # bug


def dropout(wrong):
    x = torch.randn(16, 16)
    keep = (torch.rand(16, 16) > 0.25).float()
    return (x * keep / (0.25 if wrong else 0.75)).square().mean()  # bug


def operands(swapped):
    a, b = torch.randn(2, 8, 8).unbind()
    product = b @ a if swapped else a @ b  # bug
    return product.tanh().sum(1)


def transpose(missing):
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    return (x @ (weight if missing else weight.T)).relu().sum()  # bug


def sign(wrong):
    x, target = torch.randn(16), torch.randn(16)
    error = x + target if wrong else x - target  # bug
    return error.square().mean()


def running_mean(stale):
    norm = torch.nn.BatchNorm1d(8)
    for _ in range(3):
        x = torch.randn(32, 8)
        norm.eval() if stale else norm.train()
        norm(x)  # bug
    norm.eval()
    return norm(torch.ones(4, 8)).sum(1)  # bug


def softmax(axis):
    return torch.randn(16, 16).softmax(axis).mean(0)  # bug


def bias(forgotten):
    x, weight, shift = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6)
    return functional.linear(x, weight, None if forgotten else shift).relu().sum(1)  # bug


def division(integer):
    total, count = torch.arange(20), 3
    mean = total // count if integer else total / count  # bug
    return mean.float().square().sum()


def cast(wrong):
    x = 10 * torch.randn(64)
    x = x.to(torch.int64).float() if wrong else x * 1.0  # bug
    return x.square().mean()


def training(detached=False, rate=0.01, zero=True, decay=0.0):
    torch.manual_seed(0)
    first, last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=rate, momentum=0.9, weight_decay=decay)
    for _ in range(3):
        x = torch.randn(32, 8)
        hidden = first(x).tanh()
        if detached:
            hidden = hidden.detach()
        loss = (last(hidden) - x.sum(1, keepdim=True)).square().mean()  # bug: the first gradient that is missing
        if zero:
            optimizer.zero_grad()
        loss.backward()  # bug
        optimizer.step()  # bug
    return loss


def off_by_one(shift):
    x = torch.randn(20)
    return (x[1 - shift : 17 - shift] * x[4:20]).sum()  # bug


def heads(wrong):
    x = torch.randn(2, 16, 32)
    split = x.view(2, 4, 16, 8) if wrong else x.view(2, 16, 4, 8).transpose(1, 2)
    return (split @ split.transpose(-1, -2)).softmax(-1).sum((0, 1))  # bug


def bits(wrong):
    """A kernel of our own with a wrong element, seen against float64."""
    return Kernel.apply(torch.randn(64), wrong).square().sum()  # bug


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, wrong):
        y = x.exp()
        if wrong:
            y[63] = y[62]  # bug
        return y


def unseeded(seed):
    return torch.randn(8, generator=torch.Generator().manual_seed(seed)).exp().sum()  # bug


BUGS = {
    "transposed scales": (lambda: blocks(torch.randn(32, 32)), lambda: blocks(torch.randn(32, 32), transposed=True)),
    "tail of a block": (lambda: blocks(torch.randn(32, 32)), lambda: blocks(torch.randn(32, 32), tail=1)),
    "block axis": (lambda: block_axis(1), lambda: block_axis(0)),
    "missing epsilon": (lambda: epsilon(1e-5), lambda: epsilon(0)),
    "double scaling": (lambda: double_scaling(False), lambda: double_scaling(True)),
    "stale statistics": (lambda: statistics(False), lambda: statistics(True)),
    "gamma and beta": (lambda: gamma_and_beta(False), lambda: gamma_and_beta(True)),
    "mask": (lambda: mask(0), lambda: mask(1)),
    "mask by comparison": (lambda: mask_by_comparison(False), lambda: mask_by_comparison(True)),
    "bf16 product": (lambda: accumulation(False), lambda: accumulation(True)),
    "bf16 sum": (lambda: running_sum(False), lambda: running_sum(True)),
    "reduction axis": (lambda: reduction(0), lambda: reduction(1)),
    "dropout scale": (lambda: dropout(False), lambda: dropout(True)),
    "swapped operands": (lambda: operands(False), lambda: operands(True)),
    "missing transpose": (lambda: transpose(False), lambda: transpose(True)),
    "sign": (lambda: sign(False), lambda: sign(True)),
    "running mean": (lambda: running_mean(False), lambda: running_mean(True)),
    "softmax axis": (lambda: softmax(0), lambda: softmax(1)),
    "bias": (lambda: bias(False), lambda: bias(True)),
    "integer division": (lambda: division(False), lambda: division(True)),
    "cast": (lambda: cast(False), lambda: cast(True)),
    "detached": (training, lambda: training(detached=True)),
    "rate": (training, lambda: training(rate=0.011)),
    "gradients not zeroed": (training, lambda: training(zero=False)),
    "weight decay": (training, lambda: training(decay=1e-4)),
    "window": (lambda: off_by_one(0), lambda: off_by_one(1)),
    "heads": (lambda: heads(False), lambda: heads(True)),
    "kernel": (lambda: bits(False), lambda: bits(True)),
    "seed": (lambda: unseeded(0), lambda: unseeded(1)),
}


@each(("name", "programs"), BUGS.items())
def test_bugs_are_named(name, programs):
    torch.manual_seed(1)
    report = roundoff.diff(*programs)
    wrong = [row for row in report.differences if row.verdict == "not explained"]
    assert wrong, report
    assert "# bug" in wrong[0].first + wrong[0].second, report
    assert not report.explained
