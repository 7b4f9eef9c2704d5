"""Native bfloat16 and float16 as the truth: the same program in PyTorch's own half precision, and simulated."""

import warnings

import numpy as np
import pytest
import torch
from each import each
from fidelity.programs import PROGRAMS, Side

from roundoff import SimulationWarning, simulate

FORMATS = {torch.bfloat16: "e8m7", torch.float16: "e5m10"}
HALVES = pytest.mark.parametrize(
    "half",
    [pytest.param(torch.bfloat16, id="bfloat16"), pytest.param(torch.float16, id="float16", marks=pytest.mark.slow)],
)


def ulps_apart(native, simulated, *, elementwise):
    """The largest distance of two tensors, in units in the last place of each number, or of the largest one."""
    worst = 0.0
    for n, s in zip(native, simulated, strict=True):
        half = torch.finfo(n.dtype)
        a, b = n.detach().double(), s.detach().to(n.dtype).double()
        size = torch.maximum(a.abs(), b.abs()).nan_to_num(0, 0, 0)
        ulp = (
            torch.exp2((size if elementwise else size.amax()).clamp(min=half.smallest_normal).log2().floor()) * half.eps
        )
        same = (a == b) | (a.isnan() & b.isnan())
        worst = max(worst, float(torch.where(same, 0.0, (a - b).abs() / ulp).nan_to_num(np.inf).amax()))
    return worst


def as_arrays(decisions):
    return [np.asarray(d.detach().double() if isinstance(d, torch.Tensor) else d, dtype=np.float64) for d in decisions]


def agree(decisions, ours):
    return all(np.array_equal(a, b) for a, b in zip(as_arrays(decisions), as_arrays(ours), strict=True))


def of(program, side, **arithmetic):
    """What a program decides and computes in a simulation, which may have a word to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationWarning)
        with simulate(**arithmetic):
            return program.run(side)


@HALVES
@each("name", PROGRAMS)
def test_a_half_precision_program_is_simulated_as_it_runs(name, half):
    """The program in its own float16 or bfloat16, and its float32 left alone: every decision is the native one."""
    program, side = PROGRAMS[name], Side(half, simulated=False)
    decisions, numbers = program.run(side)
    ours, our_numbers = of(program, side, format=FORMATS[half], islands="exact")
    assert agree(decisions, ours)
    assert ulps_apart(numbers, our_numbers, elementwise=program.kind == "elementwise") <= program.ulps


def test_layer_normalization_sums_the_gradients_of_its_weight_and_bias_in_half_precision():
    """PyTorch's kernel on the CPU does; a simulation sums in float32, and rounds once."""
    draw = torch.Generator().manual_seed(0)
    x, upstream = (torch.randn(1024, 64, generator=draw).bfloat16() for _ in range(2))

    def gradients(dtype):
        weight, bias = (torch.ones(64, dtype=dtype).requires_grad_() for _ in range(2))
        torch.nn.functional.layer_norm(x.to(dtype), (64,), weight, bias).backward(upstream.to(dtype))
        return weight.grad.double(), bias.grad.double()

    exact, native = gradients(torch.float64), gradients(torch.bfloat16)
    with simulate("bf16", islands="exact"):
        ours = gradients(torch.bfloat16)
    for right, theirs, mine in zip(exact, native, ours, strict=True):
        assert (theirs - right).norm() > 4 * (mine - right).norm()


@HALVES
@each("name", PROGRAMS)
def test_a_float32_program_is_simulated_as_the_half_precision_one_runs(name, half):
    """The program in float32, everything rounded: every decision is the native one, but for those of fractions."""
    program = PROGRAMS[name]
    decisions, numbers = program.run(Side(half, simulated=False))
    ours, our_numbers = of(program, Side(half, simulated=True), format=FORMATS[half])
    assert program.own_float32 or agree(decisions, ours)
    assert ulps_apart(numbers, our_numbers, elementwise=program.kind == "elementwise") <= program.ulps


def test_there_are_programs_of_every_kind():
    assert len(PROGRAMS) >= 80
    assert len({program.kind for program in PROGRAMS.values()}) >= 15


def test_what_differs_is_seen():
    """Counting in the format, as hardware with nothing else would, is no program's native half precision."""
    program = PROGRAMS["Adam: steps are counted"]
    decisions, _ = program.run(Side(torch.bfloat16, simulated=False))
    ours, _ = of(program, Side(torch.bfloat16, simulated=True), format="e8m7", whole="rounded")
    assert not agree(decisions, ours)
    x = torch.ones(3, dtype=torch.bfloat16)
    assert ulps_apart([x], [x.float() * (1 + 2**-7)], elementwise=True) == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_that_some_processors_compute_wrongly_is_right_in_a_simulation(layout):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator).bfloat16() for size in ((2, 16, 4, 4), (8, 16, 4, 4)))
    exact = torch.conv2d(x.double(), weight.double(), stride=4)
    with simulate("bf16"):
        found = torch.conv2d(x.contiguous(memory_format=layout), weight, stride=4)
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
