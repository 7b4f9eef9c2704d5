"""Under torch.compile the families give the same bits as without."""

import warnings

import pytest
import torch
from comparing import same_bits

from roundoff.formats import Format, RandomBits, Rounding

WHOLE = ["q3.4", "int8", "uint8_ax1", "int4_g7", "int8_s0.1", "mxfp8_e4m3_b35", "mxint8_b35", "nvfp4_b35", "posit16_1"]
AS_OPERATORS = ["fp8_e4m3_row", "mxfp8_e4m3", "bfp8_16", "nvfp4", "int4_g32", "lns8_3"]


def compiled_and_not(name, *, fullgraph, backend="inductor", **how):
    fmt = Format.parse(name)

    def rounded(x):
        y = torch.empty_like(x)
        fmt.round_into(x, y, **how)
        return y * 1

    torch._dynamo.reset()
    x = torch.randn(7, 70, generator=torch.Generator().manual_seed(0))
    x[1] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its compiler
        return torch.compile(rounded, fullgraph=fullgraph, backend=backend)(x), rounded(x)


@pytest.mark.parametrize("name", WHOLE)
def test_as_one_graph(name):
    assert same_bits(*compiled_and_not(name, fullgraph=True, backend="aot_eager"))


@pytest.mark.parametrize("name", ["int8", "mxfp8_e4m3_b35", "posit16_1"])
def test_with_inductor(name):
    assert same_bits(*compiled_and_not(name, fullgraph=True))


@pytest.mark.parametrize("name", AS_OPERATORS)
def test_shorter_last_blocks_and_tables_are_operators_of_one_graph(name):
    assert same_bits(*compiled_and_not(name, fullgraph=True))


def test_stochastic():
    how = {"rounding": Rounding.STOCHASTIC, "random": RandomBits(3)}
    assert same_bits(*compiled_and_not("mxfp8_e4m3_b35", fullgraph=True, backend="aot_eager", **how))


@pytest.mark.parametrize("name", [*WHOLE, *AS_OPERATORS])
def test_no_mode_looks_at_the_numbers_of_a_tensor(name):
    """On the meta device there are none: what works there needs no synchronisation with a GPU either."""
    x = torch.empty(7, 70, device="meta")
    for rounding in Rounding:
        random = RandomBits(0) if rounding == Rounding.STOCHASTIC else None
        Format.parse(name).round_into(x, torch.empty_like(x), rounding, None, random)
