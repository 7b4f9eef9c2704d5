"""Tensors that stand for other tensors, that have no memory, or that are not dense: DTensor, nested, meta, sparse."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.two_tensor import TwoTensor

import roundoff
from roundoff import FormatError, Policy, Rule, simulate
from roundoff.simulate.aten import wrappers

MODES = (
    {"format": "e5m10"},
    {"format": "e5m10", "observe": True},
    {"format": "e5m10", "shadow": "fp64"},
    {"format": "e5m10", "granularity": "primitive"},
    {"format": "e5m10", "accumulate": "e5m10/32"},
    {"format": Policy("e5m10").with_rules(Rule(role=["parameters", "inputs"], format="e5m7"))},
    {"format": Policy.storage("e5m10")},
    {"format": "fp32", "observe": True},
)


def of_format(x, fmt="e5m10"):
    return torch.equal(x, roundoff.round(x, fmt))


@pytest.fixture(scope="module")
def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def train(simulation, mesh=None, steps=3):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 4))
    with torch.no_grad():  # gathering rounds them
        for parameter in net.parameters():
            parameter.copy_(roundoff.round(parameter, "e5m10"))
    if mesh is not None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4)
    x = torch.randn(8, 8)
    with simulation:
        for _ in range(steps):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    return [parameter if mesh is None else parameter.full_tensor() for parameter in net.parameters()]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("options", MODES, ids=lambda options: " ".join(map(str, options.values()))[:30])
def test_sharded_training_has_the_bits_of_plain_training(options, mesh):
    """The shards of FSDP2 are DTensors, whose own storage is empty."""
    expected, sharded = train(simulate(**options)), train(simulate(**options), mesh)
    assert all(map(torch.equal, expected, sharded))
    assert options["format"] == "fp32" or all(of_format(x.detach()) for x in sharded)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_collectives(mesh):
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import distribute_tensor

    x = torch.linspace(0.1, 1, 7)
    with simulate("e5m3", observe=True):
        shared = distribute_tensor(x, mesh)
        assert of_format((shared * 1.1).to_local(), "e5m3")
        assert of_format(functional.all_reduce(x, "sum", mesh) + 0, "e5m3")
        dist.all_reduce(y := x.clone())
        work = dist.all_reduce(z := x + 1, async_op=True)
        work.wait()
        gathered = [torch.empty(7)]
        dist.all_gather(gathered, x)
    assert of_format(y, "e5m3")
    assert of_format(z, "e5m3")
    assert torch.equal(gathered[0], x)  # as it was sent


def reductions(x):
    """Names of c10d's reductions, and what runs each on one process: it writes the complete sum into ``x``."""
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([x]),
        "reduce": lambda: dist.reduce(x, 0),
        "reduce, not waiting": lambda: dist.reduce(x, 0, async_op=True).wait(),
        "reduce_scatter": lambda: dist.reduce_scatter(x, [x.clone()]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, x.clone()),
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", reductions(None))
def test_what_a_reduction_leaves_is_rounded_once(name, dtype, mesh):
    x = torch.linspace(0.1, 1, 7).to(dtype)
    expected = roundoff.round(x.float(), "e5m3", rounding="down")
    with simulate("e5m3", rounding="down", observe=True) as simulation:
        reductions(x)[name]()
    assert torch.equal(x.float(), expected)
    rows = simulation.audit().table.set_index("operation")
    assert [int(count) for name, count in rows["rounded"].items() if "reduce" in name] == [1]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "receive",
    [
        lambda x, out: dist.all_gather([out], x),
        lambda x, out: dist.all_gather_into_tensor(out, x),
        lambda x, out: dist.all_to_all_single(out, x),
        lambda x, out: dist.scatter(out, [x], 0),
        lambda x, out: dist.gather(x, [out], 0),
        lambda x, out: dist.reduce_scatter(out, [x]),
    ],
    ids=["all_gather", "all_gather_into_tensor", "all_to_all", "scatter", "gather", "reduce_scatter"],
)
def test_zeros_that_a_collective_has_filled_are_data(receive, mesh):
    x = torch.linspace(0.1, 1, 7)
    with simulate("e5m3"):
        out = torch.zeros(7)  # whole numbers, of which products are left whole
        receive(x, out)
        assert of_format(out * 3, "e5m3")
        assert of_format(out + 1, "e5m3")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("islands", ["rounded", "exact"])
def test_sharded_training_in_mixed_precision(islands, mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 4))
    seen, losses = [], []
    net[1].register_forward_hook(lambda _layer, _x, y: seen.append(y.detach()))
    fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer, x = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3), torch.randn(8, 8)
    with simulate("e5m5", islands=islands):
        for _ in range(5):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.7
    assert all(y.dtype == torch.bfloat16 and of_format(y.float(), "e5m5") for y in seen)
    weight = next(net.parameters())
    assert weight.dtype == torch.float32
    assert of_format(weight.full_tensor().detach(), "e5m5") == (islands == "rounded")


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
def test_jagged_tensors_in_half_precision():
    parts = [roundoff.round(torch.randn(n, 3), "e5m7").half() for n in (2, 4)]
    weight = torch.randn(5, 3).half().requires_grad_()
    plain = torch.cat(parts).float(), weight.detach().float()
    with simulate("e5m7"):
        y = torch.nn.functional.linear(torch.nested.nested_tensor(parts, layout=torch.jagged), weight)
        torch.nested.to_padded_tensor(y, 0.0).square().sum().backward()
        wide = torch.nn.functional.linear(*plain)
    assert y.dtype == weight.grad.dtype == torch.float16
    assert torch.equal(y.values().float(), wide)
    assert of_format(weight.grad.float(), "e5m7")


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.parametrize("options", MODES, ids=lambda options: " ".join(map(str, options.values()))[:30])
def test_nested_tensors(options, layout):
    torch.manual_seed(0)
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    weight = torch.randn(5, 3, requires_grad=True)
    plain = [torch.nn.functional.linear(part, weight).detach() for part in parts]
    with simulate(**options):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        y = torch.nn.functional.linear(nested, weight)
        z = torch.nested.to_padded_tensor(y, 0.0)
        z.square().sum().backward()
        again = torch.nested.to_padded_tensor(y, 0.0)
    assert torch.equal(z, again)
    found = [row[: len(part)] for row, part in zip(z.detach(), parts, strict=True)]
    for x, exact in zip(found, plain, strict=True):
        torch.testing.assert_close(x, exact, rtol=2**-6, atol=2**-7)
        assert options["format"] == "fp32" or of_format(x)
    assert weight.grad.isfinite().all()


def test_a_wrapper_without_rules_of_its_own_is_asked_first():
    x = TwoTensor(torch.linspace(0, 1, 5), torch.linspace(1, 2, 5))
    for options in ({}, {"observe": True}, {"shadow": "fp64"}):
        with simulate("e5m3", **options):
            y = (x * 0.3).exp() + x
        assert all(of_format(part, "e5m3") for part in (y.a, y.b))
        assert not torch.equal(y.a, y.b)


class Logged(torch.Tensor):
    """A subclass with numbers of its own, that looks at operations."""

    seen = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def test_subclasses_with_numbers_of_their_own_are_rounded_themselves():
    class Plain(torch.Tensor):
        pass

    for kind in (Plain, Logged):
        with simulate("e5m3", observe=True):
            y = torch.linspace(0, 1, 5).as_subclass(kind) * 0.3
        assert of_format(y.as_subclass(torch.Tensor), "e5m3")
    assert Logged.seen


def test_a_wrapper_made_unseen_is_refused_in_words(monkeypatch):
    @torch.library.custom_op("roundoff_tests::wrapped", mutates_args=())
    def wrapped(x: torch.Tensor) -> torch.Tensor:
        return TwoTensor(x * 0.3, x * 0.7)

    with pytest.raises(FormatError, match="computed a TwoTensor, which stands for other tensors"), simulate("e5m3"):
        wrapped(torch.ones(3))
    with simulate("fp32", observe=True):
        wrapped(torch.ones(3))
    monkeypatch.setattr(wrappers, "_PLAIN", ())
    assert wrappers.has_memory(torch.ones(3))


def test_meta_tensors_are_left_alone():
    with simulate("e5m3", rounding="stochastic") as simulation:
        x = torch.ones(3, device="meta") * 0.3
        assert simulation.draws == 0
    assert x.is_meta


SPARSE_BY_HAND = Policy("e5m10").with_rules(Rule(role=["backward", "optimizer"], format="fp32"))


def step_of_sparse_embedding(simulation):
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    with simulation:
        loss = embedding(torch.tensor([1, 2, 2])).square().sum()
        loss.backward()
        optimizer.step()
    return loss.detach(), embedding.weight.detach()


def test_sparse_gradients():
    plain = step_of_sparse_embedding(simulate("fp32"))
    for options in ({"observe": True}, {"shadow": "fp64"}):
        assert all(map(torch.equal, plain, step_of_sparse_embedding(simulate("fp32", **options))))
        loss, weight = step_of_sparse_embedding(simulate(SPARSE_BY_HAND, **options))
        assert of_format(loss)
        torch.testing.assert_close(weight, plain[1], rtol=0, atol=1e-2)
    with pytest.raises(FormatError, match=r"must be dense.*sparse=False.*Rule\(role=\['backward', 'optimizer'\]"):
        step_of_sparse_embedding(simulate("e5m10"))
