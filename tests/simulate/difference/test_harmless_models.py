"""Rewrites of models, optimizers and loops that only change roundings: none is called a bug."""

import math
import warnings

import pytest
import torch
from each import each
from rewriting import registering, with_gradients
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import roundoff

REWRITES = {}
rewrites = registering(REWRITES)


@rewrites
def batch_statistics(how=("module", "parts")):
    norm, x = nn.BatchNorm1d(6), torch.randn(16, 6) + 1
    if how == "module":
        return norm(x).tanh().sum(0), norm.running_var
    mean, variance = x.mean(0), x.var(0, unbiased=False)
    running = 0.9 * torch.ones(6) + 0.1 * x.var(0)
    return ((x - mean) * (variance + 1e-5).rsqrt()).tanh().sum(0), running


@rewrites
def causal(how=("kernel", "mask", "additive", "filled", "boolean")):
    q, k, v = torch.randn(3, 2, 4, 12, 8, requires_grad=True).unbind()
    keep = torch.ones(12, 12, dtype=torch.bool).tril()
    added = torch.zeros(12, 12).masked_fill(~keep, -math.inf)
    scores = q @ k.mT / math.sqrt(8)
    attend = functional.scaled_dot_product_attention
    y = {
        "kernel": lambda: attend(q, k, v, is_causal=True),
        "mask": lambda: attend(q, k, v, attn_mask=keep),
        "additive": lambda: (scores + added).softmax(-1) @ v,
        "filled": lambda: scores.masked_fill(~keep, -math.inf).softmax(-1) @ v,
        "boolean": lambda: torch.where(keep, scores, -torch.inf).softmax(-1) @ v,
    }[how]()
    return y.square().mean()


@rewrites
def multihead(how=("module", "functions")):
    module, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 6, 16)
    if how == "module":
        return module(x, x, x, need_weights=False)[0].tanh().sum(0)
    projected = functional.linear(x, module.in_proj_weight, module.in_proj_bias)
    q, k, v = (one.view(2, 6, 2, 8).transpose(1, 2) for one in projected.chunk(3, -1))
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 6, 16)
    return module.out_proj(y).tanh().sum(0)


@rewrites
def recurrent(how=("kernel", "cells", "gates")):
    kernel, cell, x = nn.LSTM(4, 8), nn.LSTMCell(4, 8), torch.randn(5, 3, 4)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in kernel.state_dict().items()})
    if how == "kernel":
        return kernel(x)[0].sum((0, 1))
    h, c, outputs = torch.zeros(3, 8), torch.zeros(3, 8), []
    for one in x:
        if how == "cells":
            h, c = cell(one, (h, c))
        else:
            gates = one @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs).sum((0, 1))


@rewrites
def embedded(how=("kernel", "indexed", "one-hot", "selected", "bag")):
    table, tokens = torch.randn(12, 6, requires_grad=True), torch.randint(12, (4, 5))
    y = {
        "kernel": lambda: functional.embedding(tokens, table).mean(1),
        "indexed": lambda: table[tokens].mean(1),
        "one-hot": lambda: (functional.one_hot(tokens, 12).float() @ table).mean(1),
        "selected": lambda: table.index_select(0, tokens.flatten()).view(4, 5, 6).mean(1),
        "bag": lambda: functional.embedding_bag(tokens, table, mode="mean"),
    }[how]()
    return with_gradients(y.tanh(), table)


@rewrites
def scattered(how=("index_add", "scatter_add", "one-hot", "loop", "bincount")):
    x, group = torch.randn(40), torch.randint(5, (40,))
    return {
        "index_add": lambda: torch.zeros(5).index_add(0, group, x),
        "scatter_add": lambda: torch.zeros(5).scatter_add(0, group, x),
        "one-hot": lambda: functional.one_hot(group, 5).float().T @ x,
        "loop": lambda: torch.stack([x[group == k].sum() for k in range(5)]),
        "bincount": lambda: torch.bincount(group, x, 5).float(),
    }[how]().tanh()  # fmt: skip


@rewrites
def generated(how=("whole", "with a cache", "each prefix")):
    """A causal layer over a sequence: at once, or token by token."""
    x, w = torch.randn(6, 8), torch.randn(3, 8, 8) / 3
    if how == "whole":
        q, k, v = (x @ one for one in w)
        scores = (q @ k.T).masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -math.inf)
        return (scores.softmax(-1) @ v).tanh()
    keys, values, found = torch.zeros(0, 8), torch.zeros(0, 8), []
    for t in range(6):
        given = x[: t + 1] if how == "each prefix" else x[t : t + 1]
        if how == "each prefix":
            keys, values = given @ w[1], given @ w[2]
        else:
            keys, values = torch.cat([keys, given @ w[1]]), torch.cat([values, given @ w[2]])
        found.append((x[t] @ w[0] @ keys.T).softmax(-1) @ values)
    return torch.stack(found).tanh()


@rewrites
def rotated(how=("complex", "halves", "matrix")):
    x, angle = torch.randn(6, 8), torch.arange(6.0)[:, None] / 10 ** (torch.arange(4.0) / 2)
    a, b = x.unflatten(1, (4, 2)).unbind(2)
    cos, sin = angle.cos(), angle.sin()
    turned = {
        "complex": lambda: torch.view_as_real(torch.complex(a, b) * torch.polar(torch.ones(6, 4), angle)),
        "halves": lambda: torch.stack([a * cos - b * sin, a * sin + b * cos], 2),
        "matrix": lambda: (
            torch.stack([torch.stack([cos, -sin], 2), torch.stack([sin, cos], 2)], 2)
            @ torch.stack([a, b], 2)[..., None]
        )[..., 0],
    }[how]().flatten(1)
    return (turned @ turned.T).softmax(1)


@rewrites
def padded(how=("each sequence", "one batch", "zeroed")):
    """Sequences of different lengths."""
    net, lengths = nn.Linear(4, 4), (3, 5, 2)
    parts = [torch.randn(n, 4) for n in lengths]
    if how == "each sequence":
        return torch.stack([net(x).tanh().mean(0) for x in parts])
    x = nn.utils.rnn.pad_sequence(parts, batch_first=True)
    keep = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    h = net(x).tanh()
    h = h * keep[..., None] if how == "zeroed" else h.masked_fill(~keep[..., None], 0)
    return h.sum(1) / keep.sum(1, keepdim=True)


@rewrites
def averaged(how=("lerp", "in place", "out of place", "weights")):
    """An exponential moving average of parameters."""
    values, average = torch.randn(6, 16), torch.zeros(16)
    if how == "weights":
        return (0.1 * 0.9 ** torch.arange(5.0, -1, -1) @ values).exp()
    for x in values:
        if how == "lerp":
            average.lerp_(x, 0.1)
        elif how == "in place":
            average.mul_(0.9).add_(x, alpha=0.1)
        else:
            average = average + 0.1 * (x - average)
    return average.exp()


@rewrites
def clipped(how=("kernel", "loop", "by hand")):
    torch.manual_seed(0)
    net, (x, y) = Net(), data()
    functional.mse_loss(net(x), y).backward()
    gradients = [p.grad for p in net.parameters()]
    if how == "by hand":
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        return [g * (0.1 / (norm + 1e-6)).clamp(max=1) for g in gradients]
    nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=how == "kernel")
    return gradients


@rewrites
def attention_in_bfloat16(how=("kernel", "parts", "scaled queries")):
    q, k, v = torch.randn(3, 2, 6, 8).bfloat16().unbind()
    return {
        "kernel": lambda: functional.scaled_dot_product_attention(q[None], k[None], v[None])[0],
        "parts": lambda: (q @ k.mT / math.sqrt(8)).softmax(-1) @ v,
        "scaled queries": lambda: (q * 8**-0.5 @ k.mT).softmax(-1) @ v,
    }[how]().tanh()  # fmt: skip


def data():
    x = torch.randn(24, 6)
    return x, x.sin().sum(1, keepdim=True)


class Net(nn.Module):
    """Two blocks with a skip connection."""

    def __init__(self, recomputes=False, written_out=False):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)
        self.recomputes, self.written_out = recomputes, written_out

    def block(self, h):
        if self.written_out:
            h = h - h.mean(-1, keepdim=True)
            h = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return torch.tanh(h * self.norm.weight + self.norm.bias)
        return self.norm(h).tanh()

    def forward(self, x):
        h = self.first(x)
        more = checkpoint(self.block, h, use_reentrant=False) if self.recomputes else self.block(h)
        return self.last(h + more)


@rewrites
def training(  # noqa: C901, PLR0912  one loop with its variants
    how=(
        "plain", "recomputed", "written out", "accumulated", "loader", "loader with a worker", "summed loss",
        "set to zero", "autograd.grad", "functional", "parallel data", "clone of weights", "autocast off",
        "scaled loss", "hooks", "double loss",
    ),
):  # fmt: skip
    torch.manual_seed(0)
    net = Net(recomputes=how == "recomputed", written_out=how == "written out")
    if how == "clone of weights":
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
    if how == "hooks":
        net.first.register_forward_hook(lambda module, given, result: result * 1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = data()
    batches = [(x, y)]
    if how == "accumulated":
        batches = list(zip(x.chunk(3), y.chunk(3), strict=True))
    if how in ("loader", "loader with a worker"):
        batches = list(DataLoader(TensorDataset(x, y), batch_size=24, num_workers=int(how != "loader")))
    for _ in range(2):
        optimizer.zero_grad(set_to_none=how != "set to zero")
        for given, target in batches:
            if how == "functional":
                found = torch.func.functional_call(net, dict(net.named_parameters()), (given,))
            elif how == "parallel data":
                found = torch.cat([net(part) for part in given.chunk(2)])
            elif how == "autocast off":
                with torch.autocast("cpu", enabled=False):
                    found = net(given)
            else:
                found = net(given)
            error = found.double() - target if how == "double loss" else found - target
            loss = error.square().sum() / 24 if how in ("summed loss", "accumulated") else error.square().mean()
            if how == "autograd.grad":
                for p, gradient in zip(net.parameters(), torch.autograd.grad(loss, net.parameters()), strict=True):
                    p.grad = gradient
            elif how == "scaled loss":
                (1024 * loss).backward()
                for p in net.parameters():
                    p.grad /= 1024
            else:
                loss.backward()
        optimizer.step()
    return net.first.weight, net.last.bias


@rewrites
def adam(how=("loop", "foreach", "fused", "by hand")):
    return stepped(torch.optim.Adam, how, adam_by_hand, lr=1e-2)


@rewrites
def sgd(how=("loop", "foreach", "fused", "by hand")):
    return stepped(torch.optim.SGD, how, sgd_by_hand, lr=0.1, momentum=0.9)


def stepped(kind, how, by_hand, **settings):
    torch.manual_seed(0)
    net, (x, y) = Net(), data()
    parameters = list(net.parameters())
    if how != "by hand":
        optimizer = kind(parameters, **settings, foreach=how == "foreach", fused=how == "fused")
    states = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    for step in range(1, 3):
        gradients = torch.autograd.grad(functional.mse_loss(net(x), y), parameters)
        if how == "by hand":
            with torch.no_grad():
                for p, gradient, state in zip(parameters, gradients, states, strict=True):
                    by_hand(p, gradient, *state, step)
            continue
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        optimizer.step()
    return [p.detach() for p in parameters]


def adam_by_hand(p, gradient, mean, square, step):
    mean.copy_(0.9 * mean + 0.1 * gradient)
    square.copy_(0.999 * square + 0.001 * gradient**2)
    p -= 1e-2 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)


def sgd_by_hand(p, gradient, momentum, _, step):
    momentum.copy_(gradient if step == 1 else 0.9 * momentum + gradient)
    p -= 0.1 * momentum


@rewrites
def evaluated(how=("no_grad", "inference_mode", "with gradients", "detached", "eval", "vmap", "each row", "traced")):
    torch.manual_seed(0)
    net, (x, _) = Net(), data()
    if how in ("no_grad", "inference_mode", "eval"):
        with torch.inference_mode() if how == "inference_mode" else torch.no_grad():
            return (net.eval() if how == "eval" else net)(x)
    if how == "traced":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.trace(net, x)(x).detach()
    y = {
        "with gradients": lambda: net(x), "detached": lambda: net(x).detach(), "vmap": lambda: torch.vmap(net)(x),
        "each row": lambda: torch.stack([net(one) for one in x]),
    }[how]()  # fmt: skip
    return y.detach()


@rewrites
def returns(how=("loop", "recursion", "matrix", "cumulated")):
    rewards, gamma = torch.randn(4, 12), 0.9
    if how == "matrix":
        distance = torch.arange(12)[None] - torch.arange(12)[:, None]
        return (rewards @ (gamma ** distance.clamp(min=0).float() * (distance >= 0)).T).tanh()
    if how == "cumulated":
        powers = gamma ** torch.arange(12.0)
        return ((rewards * powers).flip(1).cumsum(1).flip(1) / powers).tanh()
    if how == "loop":
        return torch.stack(
            [sum(gamma**k * rewards[:, t + k] for k in range(12 - t)) for t in range(12)], 1
        ).tanh()  # fmt: skip
    found = [torch.zeros(4)]
    for t in reversed(range(12)):
        found.append(rewards[:, t] + gamma * found[-1])
    return torch.stack(found[:0:-1], 1).tanh()


@pytest.mark.filterwarnings("ignore")
@each(("name", "programs"), REWRITES.items())
def test_rewrites_of_models_are_explained(name, programs):
    torch.manual_seed(1)
    report = roundoff.diff(*programs)
    assert report.explained, report
    assert min(report.operations) > 1
    assert len(REWRITES) >= 60
