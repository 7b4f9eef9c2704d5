"""Memory that kernels leave unwritten, filled with NaN: what takes offsets writes all of its results."""

import pytest
import torch
from each import each
from torch.nn import functional

from roundoff import Policy, simulate

TOKENS, EXPERTS = 1001, 4


@pytest.fixture(params=[False, True], ids=["as it comes", "of NaN"])
def memory(request):
    """What new memory holds; PyTorch's deterministic mode fills it with NaN, that of kernels' results, too."""
    torch.use_deterministic_algorithms(request.param, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def experts(ends_of):
    """A mixture of experts as transformers computes it: the tokens of each expert lie between its offsets."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, EXPERTS, (TOKENS,), generator=generator).sort().values
    x = torch.randn(TOKENS, 8, generator=generator)
    weight = torch.randn(EXPERTS, 8, 8, generator=generator, requires_grad=True)
    y = functional.grouped_mm(x, weight, offs=ends_of(ids).to(torch.int32))
    y.square().sum().backward()
    return y.detach(), weight.grad


ENDS = {
    "histc": lambda ids: torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0),
    "one hot": lambda ids: functional.one_hot(ids, EXPERTS).float().sum(0).cumsum(0),
    "bincount": lambda ids: torch.bincount(ids, weights=torch.ones(len(ids))).cumsum(0),
    "scatter": lambda ids: torch.zeros(EXPERTS).scatter_add_(0, ids, torch.ones(len(ids))).cumsum(0),
}


def lengths():
    return torch.tensor([300, 0, 301, 400]).float().cumsum(0).long()


def bags():
    table = torch.randn(50, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths()[:-1]])
    y = functional.embedding_bag(torch.arange(TOKENS) % 50, table, offsets, mode="sum")
    y.sum().backward()
    return y.detach(), table.grad


def segments():
    x = torch.randn(TOKENS, 3, generator=torch.Generator().manual_seed(2), requires_grad=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths()])
    y = torch.segment_reduce(x, "sum", offsets=offsets, axis=0)
    y.sum().backward()
    return y.detach(), x.grad


def jagged():
    x = torch.randn(TOKENS, 8, generator=torch.Generator().manual_seed(3))
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(4), requires_grad=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths()])
    y = functional.linear(torch.nested.nested_tensor_from_jagged(x, offsets), weight).values()
    y.square().sum().backward()
    return y.detach(), weight.grad


def circular():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(5), requires_grad=True)
    weight = torch.randn(2, 3, 3, 3, generator=torch.Generator().manual_seed(6), requires_grad=True)
    y = functional.conv2d(functional.pad(x, (1, 1, 1, 1), mode="circular"), weight)
    y.square().sum().backward()
    return y.detach(), x.grad, weight.grad


PROGRAMS = {**{name: lambda ends=ends: experts(ends) for name, ends in ENDS.items()},
            "bags": bags, "segments": segments, "jagged": jagged}  # fmt: skip
_seen = {}


@pytest.mark.usefixtures("memory")
@each("fmt", ["fp32", "e8m7", "e5m3"])
@each("name", PROGRAMS)
def test_all_is_written(name, fmt):
    with simulate(fmt):
        results = PROGRAMS[name]()
    assert all(bool(x.isfinite().all()) for x in results)
    for x, before in zip(results, _seen.setdefault((name, fmt), results), strict=True):  # whatever the memory held
        assert torch.equal(x, before)


@pytest.mark.usefixtures("memory")
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of quantized tensors, once
@pytest.mark.parametrize("fmt", ["int8", "fp8_e4m3_row", "mxfp8_e4m3"])
def test_what_is_not_written_yet_has_no_say_in_a_scale(fmt):
    """Circular padding copies columns whose corners it writes afterwards."""
    with simulate(fmt):
        results = circular()
        later = torch.empty(3).copy_(torch.tensor([1.0, 2.0, 3.0])) + torch.empty_like(results[0])[0, 0, 0, :3] * 0
        torch.empty(3, dtype=torch.qint8)  # has no zeros
    assert all(bool(x.isfinite().all()) for x in (*results, later))
    for x, before in zip(results, _seen.setdefault(("circular", fmt), results), strict=True):
        assert torch.equal(x, before)


@pytest.mark.parametrize("memory", [True], indirect=True)
@pytest.mark.usefixtures("memory")
def test_offsets_that_are_rounded_leave_rows_unwritten():
    """What the mode is for: this is how a simulation that rounds counts looks."""
    with simulate(Policy("e8m7", whole="rounded")):  # in which 1001 is 1000
        y, _ = experts(ENDS["one hot"])
    assert y.isnan().any()
