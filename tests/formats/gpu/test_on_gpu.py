"""The kernels where they belong. Skipped without a GPU."""

import pytest
import torch
from comparing import numbers, same_bits

from roundoff.formats import Format, RandomBits, Rounding, round

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
NAMES = ("e5m10", "bf16", "fp8_e4m3", "e11m30", "binary8p3ue", "q4.6_wrap", "posit8_1", "lns8_3", "fp8_e8m0", "nf4")
SCALED = ("int8", "int8_ax0", "uint8_row", "mxfp8_e4m3", "mxfp4_ax0", "nvfp4", "fp8_e4m3_tensor", "fp8_e4m3_b128")


@pytest.mark.parametrize("name", [*NAMES, *SCALED])
def test_the_bits_of_the_cpu(name):
    fmt = Format.parse(name)
    for dtype in (torch.float32, torch.float64):
        if not fmt.fits_in(dtype):
            continue
        x = numbers(1, 40, 129).to(dtype)
        if name in SCALED:
            x[20:] = x[20:].nan_to_num(posinf=1.0, neginf=1.0)
        for mode in Rounding:
            random = RandomBits(3, 4) if mode is Rounding.STOCHASTIC else None
            for view in (x, x.t(), x[:, ::3], x[1]):
                there = view.cuda() if view.is_contiguous() else x.cuda().as_strided(
                    view.shape, view.stride(), view.storage_offset()
                )  # fmt: skip
                expected = round(view, fmt, rounding=mode, random=random)
                for _ in range(2):  # the second launch takes the short way
                    found = round(there, fmt, rounding=mode, random=random)
                    assert found.is_cuda
                    assert same_bits(found.cpu(), expected), (dtype, mode, view.shape)


def test_large_tensors_and_in_place():
    x = torch.randn(3_000_017)
    there, fmt = x.cuda(), Format.parse("e5m10")
    fmt.round_into(there, there)
    assert same_bits(there.cpu(), fmt.rounded(x))


def test_nothing_waits_for_the_device():
    x = torch.randn(1000, device="cuda")
    target = torch.empty_like(x)
    for name in NAMES + SCALED:
        Format.parse(name).round_into(x, target)  # its kernel is tried, which waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        for name in NAMES + SCALED:
            Format.parse(name).round_into(x, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_cuda_graph_can_hold_roundings():
    x, fmt = torch.randn(1000, device="cuda"), Format.parse("e5m3")
    target = torch.empty_like(x)
    fmt.round_into(x, target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fmt.round_into(x, target)
    x.copy_(torch.randn(1000))
    graph.replay()
    assert same_bits(target.cpu(), fmt.rounded(x.cpu()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu():
    x = torch.randn(1000)
    assert same_bits(round(x.to("cuda:1"), "e5m10").cpu(), round(x, "e5m10"))
