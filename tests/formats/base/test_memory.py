"""Rounding on the CPU needs little memory besides source and target: at most one copy of the source, in any mode."""

import pytest
import torch
from each import each
from torch.profiler import ProfilerActivity, profile

from roundoff.formats import Format, RandomBits, Rounding

N = 1_000_000
FAMILIES = [
    *("q3.4", "q8.16_wrap", "int8", "uint8_ax0", "int8_ax1", "int4_g32", "int8_g7_ax0", "int8_s0.02"),
    *("int8_p99", "uint8_ax1_p90", "int8_g32_p90", "int4_g40_ax0_p90"),
    *("mxfp8_e4m3", "mxfp4_e2m1_ax0", "mxint8_b35", "bfp8_16", "bfp12_100_ax0", "nvfp4", "nvfp4_ax0"),
    *("posit8", "posit16_1", "lns8_3", "e8m0fnu", "nf4", "ternary", "e5m10", "e5m2_ftz", "binary8p4ue"),
    *("fp8_e4m3_tensor", "fp8_e5m2_row_pow2", "fp8_e4m3_row_ax0", "fp8_e4m3_b128", "int8_row"),
]
SLACK = N // 2  # bytes: scales of blocks and groups, and pieces that fit in a cache


def extra_memory(work):
    """The most bytes that torch held at once for ``work`` beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        work()
    changes = [e for e in measured.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        held += change.nbytes()
        most = max(most, held)
    return most


@pytest.fixture(scope="module")
def matrices():
    x = torch.randn(N, generator=torch.Generator().manual_seed(0)).view(1000, -1)
    return {torch.float32: x, torch.float64: x.double()}


def test_the_measure_sees_a_copy(matrices):
    x = matrices[torch.float32]
    assert extra_memory(lambda: (x + 1) * 2) >= 2 * x.nbytes


@each("name", FAMILIES)
@each("dtype", [torch.float32, torch.float64])
def test_contiguous(name, dtype, matrices):
    x, fmt = matrices[dtype], Format.parse(name)
    y = torch.empty_like(x)
    # A percentile is found in a sorted copy.
    limit = SLACK + (x.nbytes if fmt.__dict__.get("percentile") else 0)
    for rounding in Rounding:
        random = RandomBits(0) if rounding == Rounding.STOCHASTIC else None
        assert extra_memory(lambda r=rounding, q=random: fmt.round_into(x, y, r, None, q)) <= limit, rounding


@each("name", FAMILIES)
@each("rounding", [Rounding.UP, Rounding.STOCHASTIC])
def test_transposed(name, rounding, matrices):
    x, fmt = matrices[torch.float32].t(), Format.parse(name)
    y = torch.empty_like(x)
    random = RandomBits(0) if rounding == Rounding.STOCHASTIC else None
    limit = SLACK + x.nbytes * (2 if fmt.__dict__.get("percentile") else 1)
    assert extra_memory(lambda: fmt.round_into(x, y, rounding, None, random)) <= limit


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "int8", "posit16_1", "e5m10", "fp8_e4m3", "e8m0fnu", "nf4"])
def test_given_random_bits(name, matrices):
    x = matrices[torch.float32]
    y, bits = torch.empty_like(x), torch.zeros(x.shape, dtype=torch.uint8)
    fmt = Format.parse(name)
    assert extra_memory(lambda: fmt.round_into(x, y, Rounding.STOCHASTIC, None, bits)) <= x.nbytes + SLACK
