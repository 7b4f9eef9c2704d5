"""Gradients that are scattered into memory of the graph: a compiled step reads that memory after it is written."""

import pytest
import torch
from torch._inductor import config
from torch.nn import functional

import roundoff
from roundoff import simulate

ROWS = torch.arange(31, -1, -1)
COLUMNS = torch.tensor([[2, 0, 1]]).expand(32, 3)
MASK = (torch.arange(96) % 3 > 0).view(32, 3)

# Each has a backward that scatters, writes by index, or pads.
CALLS = {
    "index": lambda z: z[ROWS],
    "gather": lambda z: z.gather(1, COLUMNS),
    "embedding": lambda z: functional.embedding(ROWS, z),
    "as_strided": lambda z: z.as_strided((30, 3), (3, 1), 3),
    "topk": lambda z: z.topk(2, 1).values,
    "unfold": lambda z: z.unfold(0, 4, 2).reshape(-1, 3),
    "index of two axes": lambda z: z[ROWS[:, None], torch.tensor([2, 0, 1])],
    "index_select": lambda z: z.index_select(0, ROWS),
    "scatter": lambda z: torch.ones(32, 3).scatter(1, COLUMNS, z),
    "index_put": lambda z: torch.ones(32, 3).index_put((ROWS,), z),
    "max": lambda z: z.max(0).values[None],
    "max_pool1d": lambda z: functional.max_pool1d(z.t()[None], 2)[0].t(),
    "select": lambda z: z[:, 1:2],
    "slice": lambda z: z[4:28],
    "diagonal": lambda z: z[:3].diagonal()[:, None],
    "take_along_dim": lambda z: z.take_along_dim(COLUMNS, 1),
    "masked_fill": lambda z: z.masked_fill(MASK, 0.0),
    "median": lambda z: z.median(0).values[None],
    "kthvalue": lambda z: z.kthvalue(2, 0).values[None],
    "sort": lambda z: z.sort(0).values,
    "cummax": lambda z: z.cummax(0).values,
    "scatter_add": lambda z: torch.ones(32, 3).scatter_add(1, COLUMNS, z),
    "index_add": lambda z: z.index_add(0, ROWS, z),
    "index_copy": lambda z: torch.ones(32, 3).index_copy(0, ROWS, z),
    "roll": lambda z: z.roll(5, 0),
    "repeat_interleave": lambda z: z.repeat_interleave(2, 0),
    "nll_loss": lambda z: functional.nll_loss(z, ROWS % 3, reduction="none")[:, None],
    "adaptive_max_pool1d": lambda z: functional.adaptive_max_pool1d(z.t()[None], 5)[0].t(),
    "interpolate": lambda z: functional.interpolate(z.t()[None], size=48, mode="nearest")[0].t(),
    "pad": lambda z: functional.pad(z[None], (1, 1, 2, 2), mode="reflect")[0],
    "fold": lambda z: functional.fold(z[:4].reshape(1, 4, 3), (2, 6), (2, 2), stride=2).reshape(-1, 3),
    "tril": lambda z: z.tril(),
    "split": lambda z: torch.cat(z.split(8, 0)[::-1]),
    "unbind": lambda z: torch.stack(z.unbind(0)[::-1]),
}
PICTURES = "index of channels"
CHANNELS = torch.tensor([1, 0, 2])


def gradient(name, x):
    leaf = x.detach().clone().requires_grad_()
    if name == PICTURES:
        z = (leaf / (leaf.var(dim=(0, 2, 3), keepdim=True) + 0.1).sqrt())[:, CHANNELS]
        (z * z.amax((2, 3), keepdim=True)).square().mean().backward()
    else:
        z = CALLS[name](leaf / leaf.square().sum(1, keepdim=True))
        (z * z.sum(1, keepdim=True)).square().mean().backward()
    return leaf.grad


def check(*names):
    """Compares one compiled step, with the gradients of all names, to the eager one."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3, 8, 8) if name == PICTURES else (32, 3) for name in names]
    given = [torch.randn(shape, generator=generator) for shape in shapes]

    def step(tensors):
        return [gradient(name, x) for name, x in zip(names, tensors, strict=True)]

    program = roundoff.compile(step, simulate("e5m10"))
    found = program(given)
    assert program.reason is None
    with simulate("e5m10"):
        expected = step(given)
    for name, a, b in zip(names, expected, found, strict=True):
        assert a.abs().max() > 0
        assert torch.equal(a, b), name


def test_gradients_behind_a_quotient():
    check("index")
    check(PICTURES)


@pytest.mark.slow
@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "one by one"])
def test_gradients_of_all_operators_behind_a_quotient(fusion):
    with config.patch(max_fusion_size=config.max_fusion_size if fusion else 1):
        names = list(CALLS)
        for name in names if fusion else ():
            check(name)
        for first in range(0, len(names), 8):
            check(*names[first : first + 8])
