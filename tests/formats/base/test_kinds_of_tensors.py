"""Every kind of tensor that PyTorch has: the bits of a plain contiguous one, and the input as it was."""

import subprocess
import sys

import pytest
import torch
from comparing import same_bits
from each import each

import roundoff
from roundoff.formats import Format, FormatError, RandomBits

FAMILIES = [
    *("fp32", "e5m10", "bf16", "fp8_e4m3", "e4m3fnuz", "e5m2_ftz", "binary8p4ue", "e8m0fnu", "qtorch_e5m10"),
    *("q3.4", "q3.4_wrap", "int8", "uint8_ax0", "int4_g3", "int8_s0.1", "int8_p90", "posit16", "lns8_3", "ternary"),
    *("mxfp8_e4m3", "mxint8_ax0_b3", "bfp8_16", "nvfp4", "nf4", "fp8_e4m3_tensor", "fp8_e4m3_row"),
    *("quarl4", "quarl16"),
]
WITHOUT_CODES = ("qtorch", "quarl")
MODES = [{}, {"rounding": "up"}, {"rounding": "stochastic", "random": RandomBits(3)}]


class Plain(torch.Tensor):
    """A subclass with memory of its own."""


class Wrapper(torch.Tensor):
    """A subclass without memory, which does to its inner tensor what is done to it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def inner(x):
            return x.inner if isinstance(x, Wrapper) else x

        result = func(*map(inner, args), **{name: inner(x) for name, x in (kwargs or {}).items()})
        return cls(result) if isinstance(result, torch.Tensor) else result


class Stubborn(Wrapper):
    """A subclass that knows a few operations only."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return super().__torch_dispatch__(func, types, args, kwargs) if "detach" in str(func) else NotImplemented


def numbers(dtype, shape=(6, 8)):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=dtype, generator=generator)
    return x * torch.exp2(torch.randint(-4, 5, shape, generator=generator))


def inference(x):
    with torch.inference_mode():
        return x.clone()


def conjugate_imaginary(x):
    return torch.complex(torch.ones_like(x), -x).conj().imag


KINDS = {
    "plain": lambda x: x,
    "zero-dimensional": lambda x: x[2, 3],
    "one element": lambda x: x[2:3, 3:4],
    "empty": lambda x: x[:0],
    "empty in the last axis": lambda x: x[:, :0],
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, ::2],
    "offset": lambda x: x[2:],
    "view of views": lambda x: x.view(2, 3, 8)[1].t()[::3].unsqueeze(1),
    "permuted": lambda x: x.view(2, 3, 4, 2).permute(0, 3, 1, 2),
    "flipped": lambda x: x.flip(0),
    "expanded": lambda x: x[:1].expand(6, 8),
    "expanded number": lambda x: x[0, 0].expand(6, 8),
    "overlapping": lambda x: x.as_strided((6, 8), (2, 1)),
    "negative view": lambda x: torch._neg_view(-x),
    "negative view, transposed": lambda x: torch._neg_view(-x).t(),
    "negative view, columns": lambda x: torch._neg_view(-x)[:, 1::2],
    "negative number": lambda x: torch._neg_view(-x)[1, 1],
    "imaginary part of a conjugate": conjugate_imaginary,
    "one imaginary part of a conjugate": lambda x: conjugate_imaginary(x[1, 1]),
    "known to be zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "parameter": torch.nn.Parameter,
    "leaf": lambda x: x.clone().requires_grad_(),
    "not a leaf": lambda x: x.clone().requires_grad_() * 1,
    "inference tensor": inference,
    "shared memory": lambda x: x.clone().share_memory_(),
    "subclass": lambda x: x.as_subclass(Plain),
    "wrapper subclass": Wrapper,
}


def plain(x):
    """What a tensor says, in memory of its own."""
    return (x.inner if isinstance(x, Wrapper) else x).detach().clone(memory_format=torch.contiguous_format).as_subclass(
        torch.Tensor
    )  # fmt: skip


def usable(fmt, x):
    axis = getattr(fmt, "axis", None)
    return not (x.dim() == 0 and axis not in (None, 0, -1))


@each("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_as_a_plain_tensor(kind, dtype):
    x = KINDS[kind](numbers(dtype))
    before, flags = plain(x), (x.is_neg(), x.stride(), x.requires_grad)
    for name in FAMILIES:
        fmt = Format.parse(name)
        for how in MODES:
            if name.startswith("qtorch") and (how or dtype == torch.float64):
                continue
            expected = roundoff.round(before, fmt, **how)
            assert same_bits(plain(roundoff.round(x, fmt, **how)), expected), (name, how)
            assert same_bits(plain(roundoff.round(x, fmt, **how, gradient="straight-through")), expected), (name, how)
    assert same_bits(plain(x), before)
    assert (x.is_neg(), x.stride(), x.requires_grad) == flags


def parts(codes):
    return codes if isinstance(codes, tuple) else (codes,)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "wrapper" not in kind and "empty" not in kind])
def test_encodes_as_a_plain_tensor(kind):
    x = KINDS[kind](numbers(torch.float32))
    before = plain(x)
    for name in FAMILIES:
        fmt = Format.parse(name)
        if not name.startswith(WITHOUT_CODES):
            for mine, expected in zip(parts(fmt.encode(x)), parts(fmt.encode(before)), strict=True):
                assert torch.equal(mine, expected), name


def test_rows_of_formats_and_written_targets():
    x = numbers(torch.float32)
    assert same_bits(roundoff.round(torch._neg_view(-x), ["e5m2"] * 6), roundoff.round(x, "e5m2"))
    assert same_bits(
        roundoff.round(torch._neg_view(-x), ["e5m2"], rounding="up"), roundoff.round(x, "e5m2", rounding="up")
    )
    for name in ("e5m2", "int8", "mxfp4"):
        target = torch._neg_view(torch.zeros_like(x))
        Format.parse(name).round_into(x, target)
        assert target.is_neg()
        assert same_bits(target.resolve_neg(), roundoff.round(x, name))
        y = torch._neg_view(-x)
        Format.parse(name).round_into(y, y)
        assert same_bits(y.resolve_neg(), roundoff.round(x, name))


def test_given_random_bits_of_every_stride():
    x = numbers(torch.float32)
    bits = torch.randint(0, 256, x.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for name in ("e5m2", "q3.4", "int8_s0.1"):
        how = {"rounding": "stochastic"}
        expected = roundoff.round(x, name, random=bits, **how)
        assert same_bits(roundoff.round(x.t(), name, random=bits.t(), **how), expected.t())
        assert same_bits(roundoff.round(x, name, random=bits.t().contiguous().t(), **how), expected)


@pytest.mark.parametrize("name", ["e5m10", "int8", "lns8_3"])
def test_what_has_no_memory_is_refused_in_words(name):
    freed = numbers(torch.float32)
    freed.untyped_storage().resize_(0)
    with pytest.raises(FormatError, match=r"shape \(6, 8\) has no memory: its storage was freed"):
        roundoff.round(freed, name)
    with pytest.raises(FormatError, match=r"a tensor of class Stubborn cannot be rounded: .* roundoff::round"):
        roundoff.round(Stubborn(numbers(torch.float32)), name)


def test_a_simulation_around_a_rounding_leaves_it_alone():
    x = numbers(torch.float32)
    for name in FAMILIES:
        fmt = Format.parse(name)
        for how in MODES[:1] if name.startswith("qtorch") else MODES:
            with roundoff.simulate("e5m2"):
                inside = roundoff.round(x, fmt, **how)
                codes = () if name.startswith(WITHOUT_CODES) else parts(fmt.encode(x))
            assert same_bits(inside, roundoff.round(x, fmt, **how)), name
            for mine, expected in zip(codes, parts(fmt.encode(x)) if codes else (), strict=True):
                assert torch.equal(mine, expected), name


def test_the_default_dtype_does_not_matter():
    x = numbers(torch.float32)
    expected = {name: parts(Format.parse(name).encode(x)) for name in FAMILIES if not name.startswith(WITHOUT_CODES)}
    torch.set_default_dtype(torch.float64)
    try:
        for name, codes in expected.items():
            for mine, theirs in zip(parts(Format.parse(name).encode(x)), codes, strict=True):
                assert torch.equal(mine, theirs), name
    finally:
        torch.set_default_dtype(torch.float32)


FIRST_USED = ["nf4", "lns8_3", "lns12_5", "mxfp4", "nvfp4", "posit8_1", "q4.6", "fp8_e8m0", "int8", "e4m3"]
IN_A_FORK_EACH = """
import os, sys, torch, roundoff
x = torch.linspace(-3, 3, 50)
with roundoff.simulate('bf16'):  # imports what no fork then has to
    x + x

def all_of(name):
    fmt = roundoff.Format.parse(name)
    facts = fmt.max, fmt.smallest, fmt.eps, fmt.bounds(torch.float32)
    return roundoff.round(x, fmt).tolist(), roundoff.round(x, fmt, rounding='up').tolist(), facts

for name in sys.argv[1:]:
    if not os.fork():
        with roundoff.simulate('e4m1'):
            inside = all_of(name)
        print(str(inside) == str(all_of(name)), all_of(name), roundoff.Format.parse(name).values().tolist(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_format_that_is_first_used_inside_a_simulation():
    """A format's tables and facts are its own affair: the simulation does not round them, then or for ever."""
    command = [sys.executable, "-c", IN_A_FORK_EACH, *FIRST_USED]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for name, line in zip(FIRST_USED, lines, strict=True):
        fmt = Format.parse(name)
        x = torch.linspace(-3, 3, 50)
        facts = fmt.max, fmt.smallest, fmt.eps, fmt.bounds(torch.float32)
        usual = roundoff.round(x, fmt).tolist(), roundoff.round(x, fmt, rounding="up").tolist(), facts
        assert line == f"True {usual} {fmt.values().tolist()}", name
