"""Operations whose definition names the dtype, against PyTorch's own half precision, and against exact rounding."""

import math

import pytest
import torch
from comparing import same_bits
from each import each
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff import Policy, Rule, simulate
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


INFINITE = [math.inf, -math.inf, math.nan, 1.0]
OF_ONE_SIZE = ("e5m7", "e4m3", "fp8_e4m3", "e2m1", "e4m3fnuz", "q3.4", "posit8", "e5m10", "e8m7")


def both_carriers(name):
    return (torch.float32, NATIVE[name]) if name in NATIVE else (torch.float32,)


def test_nan_to_num_gives_the_largest_value_of_the_format():
    @each("name", OF_ONE_SIZE)
    def check(name):
        fmt = roundoff.Format.parse(name)
        if name in NATIVE:
            assert torch.tensor(INFINITE, dtype=NATIVE[name]).nan_to_num().tolist() == [fmt.max, -fmt.max, 0, 1]
        for dtype in both_carriers(name):
            x, y, z = (torch.tensor(INFINITE, dtype=dtype) for _ in range(3))
            with simulate(name):
                assert x.nan_to_num().tolist() == [fmt.max, fmt.min, 0, 1]
                x.nan_to_num_()
                torch.nan_to_num(y, out=y)
                given = z.nan_to_num(nan=0.3, posinf=1.3)
            assert x.tolist() == y.tolist() == [fmt.max, fmt.min, 0, 1]
            expected = roundoff.round(torch.tensor([1.3, 0.3]), name).tolist()
            assert given.tolist() == [expected[0], fmt.min, expected[1], 1]

    check()
    with simulate("e5m3"):
        assert torch.view_as_real(torch.tensor([complex(math.inf, math.nan)]).nan_to_num()).tolist() == [[61440, 0]]
        assert torch.arange(3).nan_to_num().tolist() == [0, 1, 2]
        compiled = roundoff.compile(lambda x: x.nan_to_num() * 0.5, simulate("e5m3"))
        assert compiled(torch.tensor(INFINITE)).tolist() == [30720, -30720, 0, 0.5]


@each("name", NATIVE)
def test_nextafter_gives_the_native_neighbour(name):
    x = torch.arange(1 << 16).to(torch.int16).view(NATIVE[name])
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    for toward in (y, torch.zeros(()).to(x), torch.full((), -math.inf).to(x), torch.full((), math.inf).to(x), x):
        native = torch.nextafter(x, toward)
        for dtype in both_carriers(name):
            written = x.to(dtype)
            with simulate(name):
                assert same_bits(torch.nextafter(x.to(dtype), toward.to(dtype)), native.to(dtype))
                assert same_bits(written.nextafter_(toward.to(dtype)), native.to(dtype))


@each("name", ("e4m3", "fp8_e4m3", "e4m3_ftz", "q3.4", "posit8", "lns8_3"))
def test_nextafter_steps_through_all_values(name):
    values = roundoff.Format.parse(name).values().float()
    with simulate(name):
        assert same_bits(torch.nextafter(values[:-1], values[-1]) + 0, values[1:])
        assert same_bits(torch.nextafter(values[1:], values[0]) + 0, values[:-1])
        between = torch.nextafter(torch.tensor([1.01]), torch.tensor([1.02]))  # both are 1
    assert between == 1


@each("name", NATIVE)
def test_random_integers_are_the_native_ones(name):
    for dtype in both_carriers(name):
        torch.manual_seed(0)
        native = torch.empty(COUNT, dtype=NATIVE[name]).random_()
        torch.manual_seed(0)
        with simulate(name):
            drawn = torch.empty(COUNT, dtype=dtype).random_()
            assert torch.empty(COUNT, dtype=dtype).random_(3, None).max() == native.max()
            assert torch.empty(COUNT, dtype=dtype).random_(5).max() == 4
            assert torch.empty(COUNT, dtype=torch.int64).random_().max() > 1 << 24
        assert torch.equal(drawn.float(), native.float())
    with simulate("e4m3"):
        assert torch.empty(COUNT).random_().max() == 16
    with simulate("q3.4"):
        assert torch.empty(COUNT).random_().max() == 7


def test_draws_of_gamma_and_dirichlet_stay_between_their_ends():
    for name in ("e5m10", "e4m3"):
        with simulate(name):
            gamma = torch._standard_gamma(torch.full((COUNT,), 1e-2))  # distributions call these
            parts = torch._sample_dirichlet(torch.full((COUNT, 2), 1e-2))
        assert gamma.min() > 0
        assert 0 < parts.min() <= parts.max() < 1


def gradient(function, x, name=None, **how):
    x = x.clone().requires_grad_()
    if name is None:
        function(x).sum().backward()
    else:
        with simulate(name, **how):
            function(x).sum().backward()
    return x.grad


def test_the_sentinel_of_logcumsumexp_is_within_the_format():
    torch.manual_seed(0)
    x = torch.randn(48).mul(8).round().div(4)
    signs = torch.randn(48).sign()

    def loss(x):
        return x.logcumsumexp(0) * signs.to(x.dtype)

    for name, dtype in NATIVE.items():
        native = gradient(loss, x.to(dtype)).float()
        with simulate(name, observe=True) as simulation:
            found = gradient(loss, x)
        assert (found - native).abs().max() <= 0.02 * native.abs().max()  # sums inside are in float32
        assert simulation.report().birth is None
    exact = gradient(loss, x)
    for name in ("fp8_e4m3", "float8_e4m3fnuz", "float8_e5m2fnuz", "e5m2", "e4m3"):
        found = gradient(loss, x, name)
        assert found.isfinite().all()
        assert torch.cosine_similarity(found, exact, 0) > 0.75
    with simulate("e5m2"):  # the program's own number is data
        assert torch.where(x > 0, x, torch.finfo(x.dtype).min).min() == -math.inf


INDEX = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 0]]).expand(4, 8)
COMPARING = {
    "max": lambda w: w.max(), "min": lambda w: w.min(), "amax": lambda w: w.amax(1), "amin": lambda w: w.amin((0, 1)),
    "aminmax": lambda w: sum(w.aminmax(dim=0)), "aminmax of all": lambda w: sum(w.aminmax()),
    "max of an axis": lambda w: w.max(1).values, "median": lambda w: w.median(), "nanmedian": lambda w: w.nanmedian(),
    "median of an axis": lambda w: w.median(1).values, "kthvalue": lambda w: w.kthvalue(2).values,
    "norm": lambda w: w.norm(math.inf), "vector_norm": lambda w: torch.linalg.vector_norm(w, math.inf, dim=1),
    "smallest": lambda w: torch.linalg.vector_norm(w, -math.inf), "dist": lambda w: torch.dist(w, 0 * w, math.inf),
    "scatter_reduce": lambda w: torch.zeros_like(w).scatter_reduce(1, INDEX, w, "amax", include_self=False),
    "scatter_reduce of self": lambda w: w.scatter_reduce(1, INDEX, w, "amin"),
    "clamp": lambda w: w.clamp(-0.5, 0.5),
    "max_pool": lambda w: torch.nn.functional.max_pool1d(w[None], 2), "logsumexp": lambda w: w.logsumexp(1),
    "foreach": lambda w: torch._foreach_max([w])[0], "renorm": lambda w: w.renorm(math.inf, 0, 0.5),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_derivatives_see_operands_of_the_format():
    """A program in the real format has weights of the format."""
    torch.manual_seed(0)
    weights = torch.randn(4, 8)
    weights[:, 3] = weights[:, 5] * (1 + 1e-5)  # equal where they are rounded

    @each(("name", "function"), [(name, function) for name in NATIVE for function in COMPARING])
    def natively(name, function):
        f = COMPARING[function]
        native = gradient(f, weights.to(NATIVE[name])).float()
        assert native.any()
        tolerance = 2**-6 if function in ("logsumexp", "renorm") else 0
        torch.testing.assert_close(gradient(f, weights, name), native, rtol=tolerance, atol=tolerance)

    natively()


@each("far", [10.0, 100.0, 10_000.0])
def test_derivatives_of_logarithms_of_sums_see_the_operand_of_the_format(far):
    """Autograd takes the exponential of the difference from the result, in which rounding the operand counts."""
    weights = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) + far
    for function in (
        lambda w: w.logsumexp(1),
        lambda w: w.logcumsumexp(1),
        lambda w: w.logsumexp((0, 1), keepdim=True),
    ):
        for name, dtype in NATIVE.items():
            native, found = gradient(function, weights.to(dtype)).float(), gradient(function, weights, name)
            assert 0.5 < found.sum() / native.sum() < 2
            assert found.max() < 2 * native.max()

    def step(x):
        y = x.detach().requires_grad_()
        (y.logsumexp(1).sum() + y.logcumsumexp(0).sum()).backward()
        return y.grad

    with simulate("e5m7"):
        eager = step(weights)
        assert torch.func.grad(lambda w: w.logsumexp((0, 1)))(weights).isfinite().all()
        assert gradient(lambda w: checkpoint(torch.logsumexp, w, 1, use_reentrant=False), weights).isfinite().all()
    assert same_bits(roundoff.compile(step, simulate("e5m7"))(weights), eager)


NOT_NATIVE = {
    "index_reduce": lambda w: torch.zeros_like(w).index_reduce(0, torch.tensor([0, 0, 1, 1]), w, "amax"),
    "segment_reduce": lambda w: torch.segment_reduce(w[0], "max", lengths=torch.tensor([3, 5])),
    "cummax": lambda w: w.cummax(1).values, "mode": lambda w: w.mode().values,
    "cdist": lambda w: torch.cdist(w[:, :4], w[:, 4:], p=math.inf), "pdist": lambda w: torch.pdist(w, math.inf),
}  # fmt: skip
PER_ELEMENT = ("index_reduce", "scatter_reduce", "scatter_reduce of self")  # which find nothing near a result


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_derivatives_find_an_operand_in_any_arithmetic():
    torch.manual_seed(0)
    weights = torch.randn(4, 8)
    settings = [
        ("e4m3", {}), ("e4m3", {"rounding": "down"}), ("e8m7", {"granularity": "primitive"}), ("posit8", {}),
        ("e4m3", {"rounding": "stochastic"}), ("mxfp4", {}), ("mxfp8_e4m3", {}), ("int8", {}), ("nf4", {}),
    ]  # fmt: skip

    @each(("how", "function"), [(how, name) for how in settings for name in COMPARING | NOT_NATIVE])
    def check(how, function):
        name, options = how
        shared = not roundoff.Format.parse(name).elementwise or options.get("rounding") == "stochastic"
        if shared and function in PER_ELEMENT:
            return
        found = gradient((COMPARING | NOT_NATIVE)[function], weights, name, **options)
        assert found.isfinite().all()
        assert found.any()

    check()


def test_derivatives_compare_with_what_the_forward_pass_rounded():
    """Whatever a policy does in the backward pass, which may see float16 tensors, or be compiled."""
    weights = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    forward = Policy("fp32").with_rules(Rule(role="forward", format="e5m2"))
    for function in COMPARING.values():
        found = gradient(function, weights, forward)
        assert found.isfinite().all()
        assert found.any()
        half = gradient(function, weights.half(), "e5m2")
        assert half.isfinite().all()
        assert half.any()

    def step(x):
        y = x.detach().requires_grad_()
        (y.amax(1).sum() + y.max() + torch.linalg.vector_norm(y, math.inf)).backward()
        return y.grad

    with simulate("e5m2"):
        eager = step(weights)
    assert same_bits(roundoff.compile(step, simulate("e5m2"))(weights), eager)


def test_a_program_of_ones_own_compares_what_it_has():
    class Compare(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return (x == y).to(grad.dtype), None

    x = torch.tensor([0.1], requires_grad=True)
    with simulate("e5m2"):
        assert not (x == roundoff.round(x.detach(), "e5m2")).any()
        Compare.apply(x, roundoff.round(x.detach(), "e5m2")).sum().backward()
    assert x.grad == 0
