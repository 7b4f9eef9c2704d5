"""The kernels for GPUs, on stand-ins without a GPU: which tensors they are for, and that they are asked for them."""

from types import SimpleNamespace

import pytest
import torch
from comparing import numbers, same_bits

from roundoff.formats import Format, FormatError, RandomBits, Rounding, round
from roundoff.formats.base import family, memory, on_device


@pytest.mark.parametrize(
    ("triton", "cuda", "capability", "there"),
    [
        (True, "12.8", (9, 0), True),
        (True, "12.8", (8, 0), True),
        (True, "12.8", (7, 5), False),
        (True, None, (9, 0), False),  # AMD's
        (False, "12.8", (9, 0), False),
    ],
)
def test_which_gpus(monkeypatch, triton, cuda, capability, there):
    monkeypatch.setattr(memory, "find_spec", lambda _: SimpleNamespace() if triton else None)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert memory._compiles_for.__wrapped__(torch.device("cuda:0")) is there


def test_tensors_of_the_cpu_have_none():
    assert not memory.has_kernels(torch.zeros(3))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["e5m10", "q4.6", "mxfp4", "int8"])
def test_rounding_finds_the_kernels(monkeypatch, name):
    pytest.importorskip("triton")
    fmt, x, asked = Format.parse(name), numbers(1, 5, 40).nan_to_num(posinf=1.0, neginf=1.0), []
    expected = round(x, fmt), round(x, fmt, rounding="stochastic", random=RandomBits(1))
    kernel = type(fmt)._round_on_device

    def counted(self, source, target, how):
        asked.append(source.shape)
        kernel(self, source, target, how)

    monkeypatch.setattr(type(fmt), "_round_on_device", counted)
    monkeypatch.setattr(family, "in_memory", lambda _: False)
    monkeypatch.setattr(family, "has_kernels", lambda _: True)
    monkeypatch.setattr(type(fmt), "_kernel_is_right", lambda *_: True)
    assert same_bits(round(x, fmt), expected[0])
    assert same_bits(round(x, fmt, rounding="stochastic", random=RandomBits(1)), expected[1])
    fmt.round_into(x, x, Rounding.NEAREST_EVEN)
    assert same_bits(x, expected[0])
    fmt.round_into(torch.empty(0), torch.empty(0))
    assert asked == [(5, 40)] * 3


def test_a_captured_graph_is_not_given_memory_that_goes(monkeypatch):
    """What is copied while a CUDA graph is captured would be copied again, from memory of somebody else's."""
    monkeypatch.setattr(on_device, "is_captured", lambda: True)
    with pytest.raises(FormatError, match="run the step once before it is captured"):
        on_device.put_on([1, 2], torch.device("cuda:0"))
    assert on_device.put_on([1, 2], torch.device("cpu")).tolist() == [1, 2]


def test_no_graph_is_captured_without_a_gpu():
    assert torch.cuda.is_available() or not on_device.is_captured()
