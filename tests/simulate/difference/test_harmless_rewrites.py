"""Rewrites of functions and layers that only change roundings: none is called a bug."""

# ruff: noqa: PLW0108  a variant is computed only where it is chosen

import math

import pytest
import torch
from each import each
from rewriting import registering, with_gradients
from torch import nn
from torch.nn import functional

import roundoff

REWRITES = {}
rewrites = registering(REWRITES)


@rewrites
def cross_entropy(how=("kernel", "log_softmax", "picked", "logsumexp", "one-hot", "summed", "in float64")):
    x, y = torch.randn(16, 10, requires_grad=True), torch.randint(10, (16,))
    one_hot = functional.one_hot(y, 10).float()
    loss = {
        "kernel": lambda: functional.cross_entropy(x, y),
        "log_softmax": lambda: functional.nll_loss(x.log_softmax(1), y),
        "picked": lambda: -x.log_softmax(1)[torch.arange(16), y].mean(),
        "logsumexp": lambda: (x.logsumexp(1) - x.gather(1, y[:, None])[:, 0]).mean(),
        "one-hot": lambda: functional.cross_entropy(x, one_hot),
        "summed": lambda: functional.cross_entropy(x, y, reduction="sum") / 16,
        "in float64": lambda: functional.cross_entropy(x.double(), y).float(),
    }[how]()
    return with_gradients(loss, x)


@rewrites
def binary(how=("logits", "probabilities", "softplus", "parts")):
    x, y = torch.randn(32, requires_grad=True), (torch.rand(32) > 0.5).float()
    p = x.sigmoid()
    loss = {
        "logits": lambda: functional.binary_cross_entropy_with_logits(x, y),
        "probabilities": lambda: functional.binary_cross_entropy(p, y),
        "softplus": lambda: (functional.softplus(x) - x * y).mean(),
        "parts": lambda: -(y * p.log() + (1 - y) * (1 - p).log()).mean(),
    }[how]()
    return with_gradients(loss, x)


@rewrites
def huber(how=("kernel", "where", "clamped")):
    x, y = torch.randn(32, requires_grad=True), torch.randn(32)
    error = (x - y).abs()
    small = error.clamp(max=1)
    loss = {
        "kernel": lambda: functional.smooth_l1_loss(x, y),
        "where": lambda: torch.where(error < 1, error.square() / 2, error - 0.5).mean(),
        "clamped": lambda: (small.square() / 2 + error - small).mean(),
    }[how]()
    return with_gradients(loss, x)


@rewrites
def divergence(how=("kernel", "parts", "means")):
    p, q = torch.randn(8, 12).softmax(1), torch.randn(8, 12, requires_grad=True)
    loss = {
        "kernel": lambda: functional.kl_div(q.log_softmax(1), p, reduction="batchmean"),
        "parts": lambda: (p * (p.log() - q.log_softmax(1))).sum(1).mean(),
        "means": lambda: (p * (p / q.softmax(1)).log()).mean() * 12,
    }[how]()
    return with_gradients(loss, q)


@rewrites
def gelu(how=("kernel", "erf", "normal")):
    x = torch.randn(64, requires_grad=True)
    y = {
        "kernel": lambda: functional.gelu(x),
        "erf": lambda: 0.5 * x * (1 + (x / math.sqrt(2)).erf()),
        "normal": lambda: x * torch.special.ndtr(x),
    }[how]()
    return with_gradients(y, x)


@rewrites
def tanh_gelu(how=("kernel", "parts", "sigmoid")):
    x = torch.randn(64, requires_grad=True)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    y = {
        "kernel": lambda: functional.gelu(x, approximate="tanh"),
        "parts": lambda: 0.5 * x * (1 + inner.tanh()),
        "sigmoid": lambda: x * (2 * inner).sigmoid(),
    }[how]()
    return with_gradients(y, x)


@rewrites
def variance(how=("var", "std", "parts", "var_mean", "one pass", "in float64")):
    x = torch.randn(16, 32, requires_grad=True)
    y = {
        "var": lambda: x.var(1, unbiased=False),
        "std": lambda: x.std(1, unbiased=False) ** 2,
        "parts": lambda: (x - x.mean(1, keepdim=True)).square().mean(1),
        "var_mean": lambda: torch.var_mean(x, 1)[0] * (31 / 32),
        "one pass": lambda: x.square().mean(1) - x.mean(1) ** 2,
        "in float64": lambda: x.double().var(1, unbiased=False).float(),
    }[how]()
    return with_gradients(y, x)


@rewrites
def products(how=("matmul", "bmm", "einsum", "loop", "broadcast", "transposed", "baddbmm")):
    a, b = torch.randn(4, 6, 8, requires_grad=True), torch.randn(4, 8, 5, requires_grad=True)
    y = {
        "matmul": lambda: a @ b,
        "bmm": lambda: torch.bmm(a, b),
        "einsum": lambda: torch.einsum("bik,bkj->bij", a, b),
        "loop": lambda: torch.stack([x @ y for x, y in zip(a, b, strict=True)]),
        "broadcast": lambda: (a[..., None] * b[:, None]).sum(2),
        "transposed": lambda: (b.mT @ a.mT).mT,
        "baddbmm": lambda: torch.baddbmm(torch.zeros(()), a, b, beta=0),
    }[how]()
    return with_gradients(y.tanh(), a, b)


@rewrites
def reshaping(how=("view", "reshape", "flatten", "contiguous", "clone", "permute")):
    x, w = torch.randn(4, 6, 8), torch.randn(48, 5, requires_grad=True)
    flat = {
        "view": lambda: x.view(4, 48), "reshape": lambda: x.reshape(4, -1), "flatten": lambda: x.flatten(1),
        "contiguous": lambda: x.mT.contiguous().mT.reshape(4, 48), "clone": lambda: x.clone().view(4, 48),
        "permute": lambda: x.permute(1, 2, 0).reshape(48, 4).T,
    }[how]()  # fmt: skip
    return with_gradients((flat @ w).sigmoid(), w)


@rewrites
def images(how=("plain", "channels_last", "each image", "unfold", "padded", "in float64", "module")):
    x, w, b = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    module = nn.Conv2d(3, 4, 3, padding=1)
    module.weight, module.bias = nn.Parameter(w), nn.Parameter(b)
    y = {
        "plain": lambda: functional.conv2d(x, w, b, padding=1),
        "channels_last": lambda: functional.conv2d(x.contiguous(memory_format=torch.channels_last), w, b, padding=1),
        "each image": lambda: torch.cat([functional.conv2d(one[None], w, b, padding=1) for one in x]),
        "unfold": lambda: (w.flatten(1) @ functional.unfold(x, 3, padding=1) + b[:, None]).view(2, 4, 8, 8),
        "padded": lambda: functional.conv2d(functional.pad(x, (1, 1, 1, 1)), w, b),
        "in float64": lambda: functional.conv2d(x.double(), w.double(), b.double(), padding=1).float(),
        "module": lambda: module(x),
    }[how]()
    return y.relu().mean()


@rewrites
def pooled(how=("kernel", "mean", "view", "convolution")):
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    y = {
        "kernel": lambda: functional.avg_pool2d(x, 2),
        "mean": lambda: x.unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)),
        "view": lambda: x.view(2, 3, 4, 2, 4, 2).sum((3, 5)) / 4,
        "convolution": lambda: functional.conv2d(x, torch.full((3, 1, 2, 2), 0.25), stride=2, groups=3),
    }[how]()
    return with_gradients(y, x)


@rewrites
def normalised(how=("group", "parts", "instance", "reshaped")):
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, unbiased=False)
    y = {
        "group": lambda: functional.group_norm(x, 4),
        "parts": lambda: (x - mean) / (variance + 1e-5).sqrt(),
        "instance": lambda: functional.instance_norm(x),
        "reshaped": lambda: functional.layer_norm(x.flatten(2), (36,)).view_as(x),
    }[how]()
    return with_gradients(y.tanh(), x)


@rewrites
def root_mean_square(how=("kernel", "parts", "norm", "rsqrt")):
    x, w = torch.randn(8, 16, requires_grad=True), torch.rand(16)
    square = x.square().mean(-1, keepdim=True)
    y = {
        "kernel": lambda: functional.rms_norm(x, (16,), w, 1e-6),
        "parts": lambda: x / (square + 1e-6).sqrt() * w,
        "norm": lambda: x / (x.norm(dim=-1, keepdim=True) ** 2 / 16 + 1e-6) ** 0.5 * w,
        "rsqrt": lambda: w * (x * (square + 1e-6).rsqrt()),
    }[how]()
    return with_gradients(y.tanh(), x)


@rewrites
def distances(how=("kernel", "parts", "expanded")):
    a, b = torch.randn(8, 4), torch.randn(6, 4)
    return {
        "kernel": lambda: torch.cdist(a, b),
        "parts": lambda: (a[:, None] - b[None]).square().sum(-1).sqrt(),
        "expanded": lambda: (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).sqrt(),
    }[how]().exp().mean(1)  # fmt: skip


@rewrites
def solved(how=("solve", "inverse", "cholesky", "in float64")):
    a, b = torch.randn(8, 8), torch.randn(8, 3)
    a = a @ a.T + 8 * torch.eye(8)
    return {
        "solve": lambda: torch.linalg.solve(a, b),
        "inverse": lambda: torch.linalg.inv(a) @ b,
        "cholesky": lambda: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
        "in float64": lambda: torch.linalg.solve(a.double(), b.double()).float(),
    }[how]().tanh().sum(1)  # fmt: skip


@rewrites
def powers(how=("square", "product", "power", "kernel", "exponential")):
    x = torch.rand(32, requires_grad=True)
    y = {
        "square": lambda: x.square() * x, "product": lambda: x * x * x, "power": lambda: x**3,
        "kernel": lambda: torch.pow(x, torch.tensor(3.0)), "exponential": lambda: (3 * x.log()).exp(),
    }[how]()  # fmt: skip
    return with_gradients(y.sum().log(), x)


@rewrites
def adding(how=("out of place", "in place", "out", "lerp", "addcmul")):
    x, y, weight = torch.randn(3, 16).unbind()
    if how == "in place":
        z = x.clone()
        z += weight * (y - x)
    elif how == "out":
        z = torch.empty(16)
        torch.add(x, weight * (y - x), out=z)
    else:
        z = {
            "out of place": lambda: x + weight * (y - x),
            "lerp": lambda: torch.lerp(x, y, weight),
            "addcmul": lambda: torch.addcmul(x, weight, y - x),
        }[how]()
    return z.exp().sum()


@rewrites
def sigmoid(how=("kernel", "quotient", "tanh", "exponentials", "log")):
    x = torch.randn(32, requires_grad=True)
    y = {
        "kernel": lambda: x.sigmoid(), "quotient": lambda: 1 / (1 + (-x).exp()),
        "tanh": lambda: (1 + (x / 2).tanh()) / 2,
        "exponentials": lambda: x.exp() / (1 + x.exp()), "log": lambda: functional.logsigmoid(x).exp(),
    }[how]()  # fmt: skip
    return with_gradients(y, x)


@rewrites
def polynomial(how=("powers", "Horner", "matrix", "cumulated")):
    x, c = torch.rand(32), torch.randn(6)
    if how == "Horner":
        y = torch.zeros(32)
        for one in c.flip(0):
            y = y * x + one
        return y.sin()
    return {
        "powers": lambda: sum(one * x**k for k, one in enumerate(c)),
        "matrix": lambda: torch.vander(x, 6, increasing=True) @ c,
        "cumulated": lambda: torch.cat([torch.ones(1, 32), x.expand(5, 32)]).cumprod(0).T @ c,
    }[how]().sin()  # fmt: skip


@rewrites
def smoothed(how=("kernel", "mixture", "targets")):
    x, y = torch.randn(16, 10, requires_grad=True), torch.randint(10, (16,))
    targets = functional.one_hot(y, 10) * 0.9 + 0.01
    loss = {
        "kernel": lambda: functional.cross_entropy(x, y, label_smoothing=0.1),
        "mixture": lambda: 0.9 * functional.cross_entropy(x, y) - 0.1 * x.log_softmax(1).mean(),
        "targets": lambda: -(targets * x.log_softmax(1)).sum(1).mean(),
    }[how]()
    return with_gradients(loss, x)


@rewrites
def in_bfloat16(how=("linear", "parts", "addmm", "each row", "transposed")):
    x, w, b = (one.bfloat16() for one in (torch.randn(6, 32), torch.randn(8, 32), torch.randn(8)))
    return {
        "linear": lambda: functional.linear(x, w, b), "parts": lambda: x @ w.T + b,
        "addmm": lambda: torch.addmm(b, x, w.T), "each row": lambda: torch.stack([w @ one + b for one in x]),
        "transposed": lambda: (w @ x.T + b[:, None]).T,
    }[how]().relu().sum(1)  # fmt: skip


@rewrites
def norm_in_bfloat16(how=("kernel", "parts", "in float32")):
    x = (torch.randn(6, 32) + 1).bfloat16()
    wide = x.float()
    y = {
        "kernel": lambda: functional.layer_norm(x, (32,)),
        "parts": lambda: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
        "in float32": lambda: functional.layer_norm(wide, (32,)).bfloat16(),
    }[how]()
    return y.sigmoid().sum(1)


@rewrites
def in_float64(how=("matmul", "einsum", "halves", "sum")):
    a, b = torch.randn(2, 8, 8, dtype=torch.float64).unbind()
    return {
        "matmul": lambda: a @ b, "einsum": lambda: torch.einsum("ij,jk->ik", a, b),
        "halves": lambda: a[:, :4] @ b[:4] + a[:, 4:] @ b[4:], "sum": lambda: (a[:, :, None] * b).sum(1),
    }[how]().tanh().sum(1)  # fmt: skip


@rewrites
def filtered(how=("conv1d", "fft", "matrix", "shifts")):
    x, w = torch.randn(32), torch.randn(5)
    return {
        "conv1d": lambda: functional.conv1d(x[None, None], w.flip(0)[None, None], padding=4)[0, 0],
        "fft": lambda: torch.fft.irfft(torch.fft.rfft(x, 36) * torch.fft.rfft(w, 36), 36),
        "matrix": lambda: functional.pad(x, (4, 4)).unfold(0, 5, 1) @ w.flip(0),
        "shifts": lambda: sum(functional.pad(x, (k, 4 - k)) * w[k] for k in range(5)),
    }[how]().tanh()  # fmt: skip


@rewrites
def grouped(how=("enable_gqa", "repeated", "each group")):
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    attend = functional.scaled_dot_product_attention
    return {
        "enable_gqa": lambda: attend(q, k, v, enable_gqa=True),
        "repeated": lambda: attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)),
        "each group": lambda: torch.cat([attend(q[:, 2 * g : 2 * g + 2], k[:, [g]], v[:, [g]]) for g in range(2)], 1),
    }[how]().tanh()


@pytest.mark.filterwarnings("ignore")
@each(("name", "programs"), REWRITES.items())
def test_rewrites_of_functions_are_explained(name, programs):
    torch.manual_seed(1)
    report = roundoff.diff(*programs)
    assert report.explained, report
    assert min(report.operations) > 1
    assert len(REWRITES) >= 70
