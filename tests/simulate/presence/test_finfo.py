"""torch.finfo inside a simulation: the format's in its thread where the policy asks for it, and PyTorch's elsewhere."""

import threading

import pytest
import torch
from processes import PATIENCE

import roundoff
from roundoff import FormatError, Policy, simulate
from roundoff.formats import Format

PLAIN = torch.finfo
FACTS = ("max", "min", "eps", "smallest_normal", "tiny", "resolution", "bits")


@pytest.mark.parametrize(("fmt", "dtype"), [("e5m10", torch.float16), ("e8m7", torch.bfloat16)])
def test_the_facts_of_a_format_that_pytorch_has(fmt, dtype):
    with simulate(fmt, finfo="format"):
        found = {fact: getattr(torch.finfo(torch.float32), fact) for fact in FACTS}
        assert torch.finfo(torch.float32).dtype == "float32"
        assert torch.finfo(torch.complex64).max == torch.finfo().max == found["max"]
        assert isinstance(torch.finfo(dtype), torch.finfo)
        assert isinstance(PLAIN(dtype), torch.finfo)
        with pytest.raises(TypeError):
            torch.finfo(torch.int32)
    assert found == {fact: getattr(torch.finfo(dtype), fact) for fact in FACTS}


@pytest.mark.parametrize("fmt", ["e5m7", "e4m3fn", "e4m6_saturate", "e3m4_nosub"])
def test_they_are_numbers_of_the_format(fmt):
    fmt = Format.parse(fmt)
    with simulate(fmt, finfo="format"):
        info = torch.finfo(torch.float32)
    numbers = fmt.values()
    assert (info.min, info.max) == (numbers[0], numbers[-1])
    assert info.eps == numbers[numbers > 1][0] - 1
    assert info.tiny == info.smallest_normal == fmt.smallest_normal


def test_who_is_told_what():
    def largest(dtype=torch.float32):
        return torch.finfo(dtype).max

    assert largest() == 2**128 - 2**104
    with simulate("e4m3"):
        assert torch.finfo is PLAIN
    seen = []
    with simulate("e4m3", finfo="format") as simulation:
        assert largest() == largest(torch.bfloat16) == 240
        thread = threading.Thread(target=lambda: seen.append(largest()))
        thread.start()
        thread.join()
        with simulate("fp32"):
            seen.append(largest())
        with simulate("e5m2", finfo="format"):
            assert largest() == 57344
        with simulate("mxfp8_e4m3", finfo="format"):  # whose eps is another one in each block
            seen.append(largest())
        with simulate("e4m3", finfo="format", islands="exact", root=[]):
            torch.ones(1).half()
            assert largest(torch.float16) == 240
            seen.append(largest())
        with pytest.raises(RuntimeError, match="inside"), simulation:
            raise RuntimeError("inside")
        assert largest() == 240
        assert roundoff.round(torch.ones(4) * 3, "int8").max() == 3  # which reads the facts of its scale
    assert seen == [largest()] * 4
    assert torch.finfo is PLAIN


def test_threads_enter_and_leave_in_any_order():
    first, second = simulate("e4m3", finfo="format"), simulate("e5m2", finfo="format")
    entered, left, seen = threading.Event(), threading.Event(), []

    def other():
        with second:
            entered.set()
            left.wait(PATIENCE)
            seen.append(torch.finfo(torch.float32).max)

    thread = threading.Thread(target=other)
    with first:
        thread.start()
        entered.wait(PATIENCE)
        assert torch.finfo(torch.float32).max == 240
    assert torch.finfo(torch.float32).max == PLAIN(torch.float32).max
    left.set()
    thread.join()
    assert seen == [57344]
    assert torch.finfo is PLAIN


@pytest.mark.parametrize(("finfo", "finite"), [("dtype", False), ("format", True)])
def test_a_row_that_is_masked_altogether(finfo, finite):
    """The smallest float32 becomes -infinity in e5m7, and the softmax of nothing else NaN; that of e5m7 not."""
    scores, mask = torch.randn(3, 4), torch.tensor([[True] * 4, [True, False] * 2, [False] * 4])
    with simulate("e5m7", finfo=finfo):
        weights = torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(-1)
    assert bool(weights[2].isfinite().all()) == finite
    assert weights[:2].isfinite().all()
    assert finite is False or weights[2].tolist() == [0.25] * 4


def test_the_setting():
    policy = Policy.parse({"format": "e5m10", "finfo": "format", "islands": "exact"})
    assert policy == Policy("e5m10", finfo="format", islands="exact")
    assert Policy.parse(policy.as_json()) == policy
    assert Policy("e5m10").as_json() == {"format": "e5m10"}
    with pytest.raises(FormatError, match="finfo must be dtype, format, got 'float'"):
        simulate("e5m10", finfo="float")
