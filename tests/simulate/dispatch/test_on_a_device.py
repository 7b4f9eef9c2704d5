"""Operations on a GPU, by stand-ins for its tensors: nothing waits, results stay there and have the bits of the CPU."""

from itertools import product

import pytest
import torch
from comparing import same_bits
from devices import is_stand_in, stand_ins
from each import each
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import roundoff

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def inputs(device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 8, 8, generator=generator)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-6, -70000.0, 3.4e38])
    odd = torch.cat((torch.randn(56, generator=generator) * 3, special)).view(8, 8)
    weight, matrix = torch.randn(5, 3, 3, 3, generator=generator), torch.randn(8, 8, generator=generator)
    return [t.to(device) for t in (x, odd, weight, matrix)]


def optimizer(**how):
    def steps(x, odd, weight, matrix):
        parameters = [torch.nn.Parameter(t.clone()) for t in (weight, matrix)]
        optimizer = torch.optim.AdamW(parameters, lr=0.01, **how)
        for _ in range(2):
            optimizer.zero_grad()
            sum((p * p).sum() for p in parameters).backward()
            optimizer.step()
        return parameters

    return steps


def backward(x, odd, weight, matrix):
    w = weight.clone().requires_grad_()
    functional.gelu(functional.conv2d(x, w)).square().mean().backward()
    return w.grad


PROGRAMS = {
    "elementwise": lambda x, odd, _, m: (odd * 1.5 + 0.1, odd / 3, odd.sigmoid(), odd.sqrt(), odd.clamp(-1, 1)),
    "fused": lambda x, odd, _, m: (torch.addcmul(odd, odd, m, value=0.3), torch.lerp(odd, m, 0.3)),
    "reduction": lambda x, odd, _, m: (x.sum(), x.mean(1), x.var(), m.amax(0), x.softmax(-1)),
    "mm": lambda x, odd, _, m: (m @ m, torch.baddbmm(x[0], x[1], x[2])),
    "conv": lambda x, odd, weight, _: functional.conv2d(x, weight, stride=2, padding=1),
    "views": lambda x, odd, _, m: (x[0, 0].t() + 1, x.permute(1, 0, 2, 3) * 2, x[..., ::2] + 1),
    "in place": lambda x, odd, _, m: (x.clone().mul_(0.7).relu_(), x.clone()[0].add_(1.3)),
    "activations": lambda x, odd, _, m: (functional.gelu(odd), functional.elu(odd), functional.softplus(odd)),
    "normalization": lambda x, odd, _, m: (
        functional.layer_norm(x, (8, 8)), functional.batch_norm(x, None, None, training=True)
    ),
    "attention": lambda x, odd, _, m: functional.scaled_dot_product_attention(x, x, x),
    "losses": lambda x, odd, _, m: (functional.smooth_l1_loss(x, x * 2), functional.mse_loss(x, x * 0.9)),
    "moves": lambda x, odd, _, m: (torch.cat((m, odd)), m.flip(0), m.masked_fill(m > 0, 0.3)),
    "lists": lambda x, odd, _, m: torch._foreach_add(torch._foreach_mul([m, odd], 0.3), [odd, m]),
    "backward": backward,
    "adam, foreach": optimizer(foreach=True),
    "adam, one by one": optimizer(foreach=False),
    "adam, fused": optimizer(fused=True),
}  # fmt: skip
POLICIES = {
    "e5m10": {},
    "e4m3": {},
    "primitive": {"granularity": "primitive"},
    "stochastic": {"rounding": "stochastic"},
    "toward-zero": {"rounding": "toward-zero"},
    "operands": {"operands": "mxfp8_e4m3"},
    "accumulate": {"accumulate": "fp16"},
}


def run(program, name, device):
    fmt = name if name.startswith("e") else "e5m10"
    tensors = inputs(device)
    with roundoff.simulate(roundoff.Policy(fmt, **POLICIES[name]), seed=3):
        return tree_leaves(program(*tensors))


# The numbers of the steps lie on the device, and the formula has factors of them in Python.
WAITS = {("adam, fused", "primitive")}
# An accumulator is asked for sums alone, and each of their steps takes a dozen operations.
SUMS = ["reduction", "mm", "conv", "normalization", "attention", "losses", "backward"]
CASES = [case for case in product(PROGRAMS, POLICIES) if case[1] != "accumulate" or case[0] in SUMS]


@pytest.mark.filterwarnings("ignore:the accumulator of the policy does not reach:roundoff.PolicyWarning")
@each(("program", "name"), [case for case in CASES if case not in WAITS])
def test_an_operation_waits_for_nothing_and_gives_the_bits_of_the_cpu(program, name, monkeypatch):
    expected = run(PROGRAMS[program], name, CPU)
    with stand_ins(monkeypatch) as device:
        tensors = inputs(CUDA)
        monkeypatch.setitem(globals(), "inputs", lambda _: tensors)
        with device.nothing_waits():
            found = run(PROGRAMS[program], name, CUDA)
        assert all(map(is_stand_in, found))
    for a, b in zip(expected, found, strict=True):
        assert same_bits(a, b)
