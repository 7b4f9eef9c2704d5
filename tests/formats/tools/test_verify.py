"""The conformance run: it passes here, and it sees a wrong answer."""

import pytest
import torch

from roundoff.formats import FloatFormat, Format, FormatError
from roundoff.formats.tools.verify import verify


def test_every_family_passes():
    report = verify(quick=True)
    assert report.passed, str(report)
    text = str(report)
    assert "every result is right to the bit" in text
    assert sum(check.cases for check in report.checks) > 1_000_000


def test_a_wrong_answer_is_seen(monkeypatch):
    original = FloatFormat._round_plain

    def wrong(self, source, target, *how, **more):
        original(self, source, target, *how, **more)
        target[target == 1.0] = 1.125

    monkeypatch.setattr(FloatFormat, "_round_plain", wrong)
    report = verify(["fp8_e4m3"], quick=True)
    assert not report.passed
    assert "1.0 -> 1.125, not 1.0" in str(report)
    assert "SOME RESULTS ARE WRONG" in str(report)


def test_bad_arguments_are_named():
    with pytest.raises(FormatError, match="unknown format 'fp99'"):
        verify(["fp99"])
    with pytest.raises(FormatError, match="no device 'cuda:77'"):
        verify(["fp16"], "cuda:77")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_gives_the_same_bits():
    report = verify(device="cuda")
    assert report.passed, str(report)


def test_native_names_are_plain():
    assert str(FloatFormat(8, 23, subnormals=False)) == "e8m23_nosub"
    assert Format.parse("e8m23_nosub") == FloatFormat(8, 23, subnormals=False)
    assert str(FloatFormat(11, 52)) == "fp64"
