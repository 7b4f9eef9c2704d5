"""Rounding inside torch.func, on fake tensors, in traced programs, and on DTensors."""

import os
from functools import partial

import pytest
import torch
import torch.autograd.forward_ad as fa
from comparing import same_bits
from each import each
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import roundoff
from roundoff.formats import Format, FormatError, RandomBits

FAMILIES = ["e5m10", "e8m0fnu", "q3.4", "int8", "int8_ax0", "int8_s0.1", "mxfp8_e4m3", "nvfp4", "nf4", "posit16",
            "lns8_3", "ternary", "fp8_e4m3_tensor"]  # fmt: skip
MODES = [{}, {"rounding": "up"}, {"rounding": "stochastic", "random": RandomBits(3)}]


@pytest.fixture
def x():
    return torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(0)).abs() + 0.01


def stacked(function, x, dim=0):
    return torch.stack([function(part) for part in x.unbind(dim)])


@pytest.mark.parametrize("how", MODES, ids=lambda how: how.get("rounding", "nearest"))
@each("name", FAMILIES)
def test_vmap_rounds_each_sample_as_if_alone(name, how, x):
    for function in (roundoff.round, partial(roundoff.round, gradient="straight-through")):

        def rounded(part, function=function):
            return function(part, name, **how)

        for dim in range(3):
            assert same_bits(torch.vmap(rounded, in_dims=dim)(x), stacked(rounded, x, dim))
        twice = torch.vmap(torch.vmap(rounded))(x)
        assert same_bits(twice, stacked(lambda part: stacked(rounded, part), x))


@pytest.mark.parametrize("name", ["e5m10", "int8"])
def test_vmap_takes_random_bits_of_each_sample(name, x):
    bits = torch.randint(0, 256, x.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    def rounded(part, random):
        return roundoff.round(part, name, rounding="stochastic", random=random, gradient="straight-through")

    expected = torch.stack([rounded(*pair) for pair in zip(x, bits, strict=True)])
    assert same_bits(torch.vmap(rounded)(x, bits), expected)
    same = torch.vmap(rounded, in_dims=(0, None))(x, bits[0])
    assert same_bits(same, torch.stack([rounded(part, bits[0]) for part in x]))
    assert same_bits(torch.vmap(rounded, in_dims=(None, 0))(x[0], bits), torch.stack([rounded(x[0], b) for b in bits]))


@pytest.mark.parametrize("name", FAMILIES)
def test_derivatives_are_those_of_the_identity_and_of_a_constant(name, x):
    x, direction = x[0], torch.full_like(x[0], 3.0)

    def straight(y):
        return roundoff.round(y, name, gradient="straight-through")

    def flat(y):
        return roundoff.round(y, name)

    expected = flat(x)
    assert torch.equal(torch.func.grad(lambda y: (2 * straight(y)).sum())(x), torch.full_like(x, 2.0))
    assert torch.equal(torch.func.grad(lambda y: (y * flat(y)).sum())(x), expected)
    for function, derivative in ((straight, 3.0), (flat, 0.0)):
        value, tangent = torch.func.jvp(function, (x,), (direction,))
        assert same_bits(value, expected)
        assert torch.equal(tangent, torch.full_like(x, derivative))
        with fa.dual_level():
            value, tangent = fa.unpack_dual(function(fa.make_dual(x, direction)))
            assert same_bits(value, expected)
            assert tangent is None if derivative == 0 else torch.equal(tangent, direction)
    row = x[0, :5]
    assert torch.equal(torch.func.jacrev(straight)(row), torch.eye(5))
    assert torch.equal(torch.func.jacfwd(straight)(row), torch.eye(5))
    assert torch.equal(torch.func.hessian(lambda y: straight(y).square().sum())(row), 2 * torch.eye(5))
    per_sample = torch.vmap(torch.func.grad(lambda y: straight(y).square().sum()))(x)
    assert torch.equal(per_sample, 2 * stacked(straight, x))


def test_clipped_derivatives():
    x = torch.tensor([0.5, 500.0, -500.0, torch.nan, torch.inf])

    def clipped(y):
        return roundoff.round(y, "fp8_e4m3", gradient="clipped")

    passed = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    assert torch.equal(torch.func.vjp(clipped, x)[1](torch.ones(5))[0], passed)
    assert torch.equal(torch.func.jvp(clipped, (x,), (torch.ones(5),))[1], passed)
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda y: clipped(y).sum()))(x.view(5, 1)).view(5), passed)


@pytest.mark.parametrize("name", FAMILIES)
def test_fake_tensors_have_a_shape(name, x):
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        for function in (roundoff.round, partial(roundoff.round, gradient="straight-through")):
            result = function(fake, name)
            assert (result.shape, result.stride(), result.dtype) == (x.shape, x.stride(), x.dtype)
    assert not roundoff.round(x, name).isnan().any()  # no table was made of fake numbers


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", ["e5m10", "int8", "lns8_3"])
def test_a_traced_program_rounds_what_it_is_called_with(name, mode, x):
    program = make_fx(lambda y: roundoff.round(y * 2, name) + 1, tracing_mode=mode)(x)
    other = x * 1.7 + 3
    assert same_bits(program(other), roundoff.round(other * 2, name) + 1)
    functional = make_fx(torch.func.functionalize(lambda y: roundoff.round(y * 2, name)))(x)
    assert same_bits(functional(other), roundoff.round(other * 2, name))


@pytest.fixture
def mesh():
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_dtensors(mesh, x):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    for name in FAMILIES:
        elementwise = Format.parse(name).elementwise
        for placement in (Shard(0), Shard(2), Replicate()):
            for how in MODES:
                y = roundoff.round(distribute_tensor(x, mesh, [placement]), name, **how)
                assert isinstance(y, DTensor)
                assert same_bits(y.full_tensor(), roundoff.round(x, name, **how))
                gathered = not elementwise or "random" in how
                assert y.placements == ((Replicate(),) if gathered else (placement,)), (name, how)
    total = DTensor.from_local(x, mesh, [Partial()])
    assert same_bits(roundoff.round(total, "e5m2").full_tensor(), roundoff.round(x, "e5m2"))
    parameter = torch.nn.Parameter(distribute_tensor(x, mesh, [Shard(0)]))
    roundoff.round(parameter, "e5m10", gradient="straight-through").sum().backward()
    assert torch.equal(parameter.grad.full_tensor(), torch.ones_like(x))
    with pytest.raises(FormatError, match="plain tensors, got one of class DTensor"):
        roundoff.round(total, "e5m2", backend="qtorch")


def _on_two(rank, path):
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    for name in ("e5m10", "int8", "mxfp8_e4m3"):
        for how in MODES:
            for dim in (0, 1):
                y = roundoff.round(distribute_tensor(x, mesh, [Shard(dim)]), name, **how)
                assert same_bits(y.full_tensor(), roundoff.round(x, name, **how))
    total = roundoff.round(DTensor.from_local(x, mesh, [Partial()]), "e5m2").full_tensor()
    assert same_bits(total, roundoff.round(2 * x, "e5m2"))  # the sum is rounded, not its summands
    dist.destroy_process_group()


@pytest.mark.slow
def test_dtensors_on_two_processes(tmp_path):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(_on_two, (str(tmp_path / "store"),), nprocs=2)
