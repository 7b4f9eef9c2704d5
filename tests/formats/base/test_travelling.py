"""Formats travel: pickled, copied, saved, inside policies and modules, before and after they have rounded."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import roundoff
from roundoff import Policy, Rule
from roundoff.formats import Format, RandomBits
from roundoff.formats.tools.table import neighbours

FAMILIES = ["fp32", "e5m10", "bf16", "e4m3b10_saturate", "e5m2_ftz", "binary8p4ue", "e8m0fnu", "qtorch_e5m10", "q3.4",
            "int8", "int8_s0.1", "mxfp8_e4m3", "fp8_e4m3_row", "bfp8_16", "nvfp4", "posit16", "lns8_3", "nf4",
            "table[-1,0.5]"]  # fmt: skip


def used(name):
    """A format that has rounded, in every mode it has."""
    fmt = Format.parse(name)
    x = torch.randn(8, 16)
    roundoff.round(x, fmt)
    if not name.startswith("qtorch"):
        roundoff.round(x, fmt, rounding="up")
        roundoff.round(x, fmt, rounding="stochastic", random=RandomBits(0))
    return fmt


@pytest.mark.parametrize("name", FAMILIES)
def test_used_formats_are_pickled_and_copied(name):
    fmt = used(name)
    x = torch.randn(8, 16)
    for other in (pickle.loads(pickle.dumps(fmt)), copy.copy(fmt), copy.deepcopy(fmt), copy.deepcopy([fmt])[0]):
        assert other == fmt
        assert hash(other) == hash(fmt)
        assert str(other) == str(fmt)
        assert torch.equal(roundoff.round(x, other).nan_to_num(), roundoff.round(x, fmt).nan_to_num())
    for other in neighbours(fmt):
        assert pickle.loads(pickle.dumps(other)) == other


class Quantized(torch.nn.Linear):
    def __init__(self, name):
        super().__init__(4, 4)
        self.format = used(name)

    def forward(self, x):
        return super().forward(roundoff.round(x, self.format, gradient="straight-through"))


@pytest.mark.parametrize("name", ["e5m10", "int8", "nf4_b4"])
def test_modules_and_policies_that_hold_formats(name, tmp_path):
    module, x = Quantized(name), torch.randn(3, 4)
    expected = module(x)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    torch.save(module, tmp_path / "module.pt")
    assert torch.equal(torch.load(tmp_path / "module.pt", weights_only=False)(x), expected)
    policy = Policy("fp32").with_rules(Rule(role="parameters", format=used(name)))
    with roundoff.simulate(policy):
        module(x)
    for other in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert other == policy


def test_another_process_reads_them():
    formats = [used(name) for name in FAMILIES]
    program = "import pickle, sys; print(*pickle.load(sys.stdin.buffer))"
    run = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(formats), check=True, capture_output=True)
    assert run.stdout.decode().split() == [str(fmt) for fmt in formats]
