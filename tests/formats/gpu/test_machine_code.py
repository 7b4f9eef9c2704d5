"""What Triton's compiler makes of the kernels for GPUs of three generations, without one."""

import re
from dataclasses import replace

import pytest
import torch

from roundoff.formats import Format, RandomBits, Rounding
from roundoff.formats.base.modes import RoundingOptions

triton = pytest.importorskip("triton")

from stub_driver import compiled_for, resources  # noqa: E402

FORMATS = [
    *("e5m10", "bf16", "fp8_e4m3", "binary8p3ue", "q4.6", "q4.6_wrap", "int8", "int8_g16", "uint8_row", "posit8_1"),
    *("lns8_3", "fp8_e8m0", "mxfp8_e4m3", "mxfp8_e4m3_ax0", "nvfp4", "nf4", "table[-2,0.25,3]_unscaled"),
    *("fp8_e4m3_tensor", "fp8_e4m3_row"),
]
SHORT = ["e5m10", "bf16", "fp8_e4m3", "mxfp8_e4m3"]
STACK = 0 if triton.__version__ < "3.8" else 8  # bytes, which the assembler of Triton 3.9 reserves for some kernels
ELEMENTWISE = {"e5m10", "bf16", "fp8_e4m3", "binary8p3ue", "q4.6"}


def kernels(capability, name, dtype, mode):
    fmt = fresh(name)
    x = torch.zeros(64, 1024, dtype=dtype)
    random = RandomBits(1, 2) if mode is Rounding.STOCHASTIC else None
    with compiled_for(capability) as driver:
        fmt._round_on_device(x, torch.empty_like(x), RoundingOptions(mode, fmt._policy(None), random))
    assert len(driver.launches) == 1
    return driver.kernels


def fresh(name):
    """A format that has seen no device yet."""
    return replace(Format.parse(name))


MODES = [Rounding.NEAREST_EVEN, Rounding.UP, Rounding.STOCHASTIC]


def one_of_two(name, mode):
    """Every day the kernels of a format are of one carrier in a mode, and of the other one in the next mode."""
    return (torch.float32, torch.float64)[(FORMATS.index(name) + MODES.index(mode)) % 2]


def in_turn(name):
    """Modes of a format every day: stochastic, and one of the others, by its place in the list."""
    return [MODES[FORMATS.index(name) % 2], Rounding.STOCHASTIC]


@pytest.mark.parametrize("name", FORMATS)
def test_the_arithmetic_is_ieee_and_stays_in_registers(name, tmp_path):
    for mode in in_turn(name):
        check_code(90, name, mode, {one_of_two(name, mode)}, tmp_path)


@pytest.mark.parametrize("capability", [80, 100])
def test_so_it_is_on_other_generations(capability, tmp_path):
    for number, name in enumerate(SHORT):
        check_code(capability, name, MODES[(number + capability) % 3], {torch.float32}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("capability", "name"), [*((90, name) for name in FORMATS), *((c, name) for c in (80, 100) for name in SHORT)]
)
def test_so_it_is_of_both_carriers_in_every_mode(capability, name, mode, tmp_path):
    both = {torch.float32, torch.float64}
    check_code(capability, name, mode, both if capability == 90 else {torch.float32}, tmp_path)


def check_code(capability, name, mode, dtypes, folder):
    for dtype in dtypes:
        (kernel,) = kernels(capability, name, dtype, mode)  # one launch
        code = kernel.asm["ptx"]
        assert f".target sm_{capability}" in code
        for inexact in (r"\bfma\.", r"\bmad\.\w+\.f", r"\.ftz", r"\.approx", r"\bdiv\.full", r"(ld|st)\.local"):
            assert not re.search(inexact, code), (inexact, mode, dtype)
        if name == "binary8p3ue":  # the maximum of 0 and NaN is 0, and NaN is to stay
            assert not re.search(r"\bmax\.f", code)
        found = resources(kernel, folder)
        assert found["LOCAL"] == 0
        assert found["STACK"] <= STACK
        if name in ELEMENTWISE:
            assert re.search(r"ld\.global\.v4\.b32|ld\.global\.v2\.b64", code)
            assert re.search(r"st\.global\.v4\.b32|st\.global\.v2\.b64", code)


@pytest.mark.parametrize("name", ["e5m10", "int8_g16", "nf4"])
def test_words_of_the_caller_compile(name):
    fmt, x = fresh(name), torch.zeros(3000)
    with compiled_for(90) as driver:
        fmt._round_on_device(
            x, x, RoundingOptions(Rounding.STOCHASTIC, fmt._policy(None), torch.zeros(3000, dtype=torch.int64))
        )
    assert ".target sm_90" in driver.kernels[0].asm["ptx"]


def test_one_kernel_serves_all_widths():
    with compiled_for(90) as driver:
        for name in ("e5m10", "e5m9", "e5m2", "e6m5", "e4m7"):
            fmt, x = fresh(name), torch.zeros(100)
            fmt._round_on_device(x, x, RoundingOptions(Rounding.NEAREST_EVEN, fmt._policy(None)))
    assert len(driver.launches) == 5
    assert len(driver.kernels) == 1


def test_one_kernel_serves_all_seeds_and_sizes():
    fmt = fresh("fp8_e5m2")
    with compiled_for(90) as driver:
        for step, size in enumerate((1, 16, 1000, 5000)):
            x = torch.zeros(size)
            fmt._round_on_device(
                x, x, RoundingOptions(Rounding.STOCHASTIC, fmt._policy(None), RandomBits(3 * step, step, 32))
            )
    assert len(driver.launches) == 4
    assert len(driver.kernels) == 1


@pytest.mark.parametrize("name", ["e5m10", "mxfp4", "int8_ax0", "nf4"])
@pytest.mark.parametrize("stride", [1, 2])
def test_later_launches_are_what_triton_would_launch(name, stride):
    """The second launch goes past Triton's own way of finding the program: the driver gets the same, but for hooks."""
    fmt, x = fresh(name), torch.zeros(40, 64)[:, ::stride]
    how, target = RoundingOptions(Rounding.STOCHASTIC, fmt._policy(None), RandomBits(1)), torch.empty(x.shape)
    with compiled_for(90) as driver:
        for _ in range(3):
            fmt._round_on_device(x, target, how)
    first, *later = [[of(part) for part in (*launch[:6], *launch[9:])] for launch in driver.launches]
    assert later == [first] * 2


def of(part):
    """Something to compare: tensors by their addresses, but for those that each rounding makes anew."""
    if isinstance(part, tuple):
        return tuple(of(item) for item in part)
    return (part.dtype, part.shape) if isinstance(part, torch.Tensor) else part


def test_an_address_that_is_no_multiple_of_16_has_its_own_kernel():
    fmt, memory = fresh("e5m10"), torch.zeros(101)
    with compiled_for(90) as driver:
        for x in (memory[:100], memory[1:], memory[:100]):
            fmt._round_on_device(x, x, RoundingOptions(Rounding.NEAREST_EVEN, fmt._policy(None)))
    assert len(driver.kernels) == 2
    assert ["ld.global.v4" in kernel.asm["ptx"] for kernel in driver.kernels] == [True, False]


def test_a_list_is_one_launch():
    memory = [torch.zeros(2000), torch.zeros(3), torch.zeros(5000)]
    with compiled_for(90) as driver:
        for tensors in (memory, memory[:2], [memory[0][1:], memory[1]]):
            fmt = fresh("e5m10")
            fmt._run_list(tensors, RoundingOptions(Rounding.NEAREST_EVEN, fmt._policy(None)), [None] * len(tensors))
    assert len(driver.launches) == 3
    assert [kernel[0] for kernel in driver.launches] == [2 + 1 + 5, 2 + 1, 2 + 1]  # programs of 1024 numbers each
    codes = [kernel.asm["ptx"] for kernel in driver.kernels]
    assert [".v4" in code for code in codes] == [True, False]  # where all addresses are multiples of 16
    assert not any(re.search(r"\bfma\.|\.ftz|(ld|st)\.local", code) for code in codes)
