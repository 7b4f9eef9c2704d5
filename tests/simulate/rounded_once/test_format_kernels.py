"""Operations whose definition names the dtype, against PyTorch's own half precision, and against exact rounding."""

import math

import torch
from comparing import same_bits
from each import each

import roundoff
from roundoff import simulate
from roundoff.formats import Rounding

NATIVE = {"e8m7": torch.bfloat16, "e5m10": torch.float16}
RANGES = ((0.0, 1.0), (-2.0, -1.0), (-1.0, 0.0), (-1.0, 1.0), (1.0, 2.0), (-0.5, 0.25))
COUNT = 50_000


def draws(low, high, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.empty(COUNT, dtype=dtype).uniform_(low, high)


def inside(fmt, high):
    """The largest value of a format below ``high``."""
    below = torch.tensor(math.nextafter(high, -math.inf), dtype=torch.float64)
    return roundoff.round(below, fmt, rounding="down").item()


@each(("name", "bounds"), [(name, bounds) for name in NATIVE for bounds in RANGES])
def test_uniform_draws_are_the_native_ones_below_the_end(name, bounds):
    """PyTorch replaces draws that rounding takes to the open end by the lower end; a simulation by the neighbour."""
    dtype, (low, high) = NATIVE[name], bounds
    native, exact = draws(low, high, dtype).float(), draws(low, high)
    reached = exact.to(dtype) == high
    assert reached.any() or high == 0
    assert (native[reached] == low).all()
    for carrier in (torch.float32, dtype):
        with simulate(name):
            drawn = draws(low, high, carrier).float()
        assert same_bits(drawn[~reached], native[~reached])
        assert (drawn[reached] == inside(name, high)).all()


ELEMENTWISE = ("e4m3", "e5m2", "fp8_e4m3", "e4m3fnuz", "q3.4", "posit8", "lns8_3", "e8m0fnu")


@each(("name", "rounding"), [(name, str(mode)) for name in ELEMENTWISE for mode in Rounding])
def test_uniform_draws_are_rounded_in_the_mode_and_stay_in_their_range(name, rounding):
    for low, high in RANGES if name != "e8m0fnu" else ((0.0, 1.0), (1.0, 2.0)):
        exact = draws(low, high)
        with simulate(name, rounding=rounding, seed=3):
            drawn = draws(low, high)
        neighbour = inside(name, high)
        assert low <= drawn.min() <= drawn.max() <= neighbour
        below = exact <= neighbour
        if rounding != "stochastic":
            assert same_bits(drawn[below], roundoff.round(exact[below], name, rounding=rounding))
        assert (drawn[~below] == neighbour).all()


@each("name", ["mxfp4", "mxfp8_e4m3", "mxint8", "nf4", "bfp8_16", "int4", "uint8", "nvfp4", "quarl8"])
def test_uniform_draws_with_a_shared_scale_stay_below_the_end(name):
    for low, high in (*RANGES, (0.0, 0.75), (0.0, 1.5)):
        with simulate(name):
            drawn = draws(low, high)
        assert drawn.max() < high
        exact = roundoff.round(draws(low, high), name)
        others = (drawn - exact).abs()[exact < high]
        assert (others > 0.01).sum() <= COUNT / 1000  # where a value that was moved had set the scale


def test_a_range_without_values_of_the_format_is_rounded():
    with simulate("e4m3"):
        assert (draws(0.97, 1.0) == 1).all()
        assert (draws(0.0, 1e-9) == 0).all()
    with simulate("e5m10"):  # the range ends beyond the largest value
        drawn = draws(0.0, 1e6)
    assert drawn.max() == 65504


@each(("name", "inputs"), [(name, n) for name in ("e4m3", "e5m2", "mxfp4", "e8m7") for n in (64, 100, 256)])
def test_initial_weights_have_the_deviation_that_rounding_gives(name, inputs):
    layers = []
    for fmt in ("fp32", name):
        torch.manual_seed(0)
        with simulate(fmt):
            layers.append(torch.nn.Linear(inputs, 256).weight.detach())
    nearest = roundoff.round(layers[0], name)
    assert abs(layers[1].std() / nearest.std() - 1) < 0.02
    assert (layers[1].abs() < nearest.abs()).float().mean() < 0.04


def test_other_ways_to_draw_uniformly():
    def drawn():
        torch.manual_seed(0)
        return [
            torch.rand(COUNT), torch.rand_like(torch.empty(COUNT)), torch.rand(COUNT, out=torch.empty(COUNT)),
            torch.rand(COUNT, generator=torch.Generator().manual_seed(1)), torch.rand(COUNT, dtype=torch.float64),
            torch.view_as_real(torch.rand(COUNT, dtype=torch.complex64)), torch.nn.init.uniform_(torch.empty(COUNT)),
            torch.empty(2, COUNT).mT.uniform_(),
        ]  # fmt: skip

    exact = drawn()
    with simulate("e5m2"):
        found = drawn()
    for x, y in zip(exact, found, strict=True):
        assert torch.equal(y, roundoff.round(x, "e5m2").clamp(max=0.875))


def test_random_decisions():
    """Masks have fp32's bits, and a draw is less than p as often as rounding to the nearest says."""
    x = torch.ones(COUNT)
    masks = []
    for name in ("fp32", "e4m3"):
        torch.manual_seed(0)
        with simulate(name):
            masks.append([torch.nn.functional.dropout(x, 0.3) != 0, x.mul(0.3).bernoulli(), x.clone().bernoulli_(0.3)])
    assert same_bits(masks[0][0], masks[1][0])
    assert same_bits(masks[0][2], masks[1][2])
    torch.manual_seed(0)
    with simulate("e4m3"):
        chosen = torch.rand(COUNT) < 0.5
    assert abs(chosen.float().mean() - (0.5 - 1 / 64)) < 0.01  # a 32nd of the draws below 0.5 are rounded to it


@each("rounding", ["nearest-even", "stochastic"])
def test_compiled_steps_draw_as_eager_ones(rounding):
    def step(x):
        return x * torch.rand(6) + torch.empty(6).uniform_(-2, -1)

    results = []
    for compiles in (False, True):
        simulation = simulate("e5m1", rounding=rounding, seed=1)
        run = roundoff.compile(step, simulation) if compiles else step
        torch.manual_seed(0)
        for _ in range(40):
            with simulation:
                results.append(run(torch.ones(6)))
    assert same_bits(torch.stack(results[:40]), torch.stack(results[40:]))
