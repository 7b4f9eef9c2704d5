"""The products that a simulation hands to tensor cores, and in which dtype; by a stand-in for them on the CPU."""

import pytest
import torch
from each import each

import roundoff
from roundoff import FormatError, Policy, Rule, simulate
from roundoff.formats import Format
from roundoff.simulate.aten import tensor_cores
from roundoff.simulate.policy import carriers

HALF, BRAIN = torch.float16, torch.bfloat16


@pytest.fixture
def taken(monkeypatch):
    """The dtypes of the products that tensor cores compute: as they would be with an accumulator of any width."""
    dtypes = []

    def multiplied(a, b):
        assert a.dtype == b.dtype
        dtypes.append(a.dtype)
        return (a.double() @ b.double()).float()

    monkeypatch.setenv("ROUNDOFF_NATIVE", "0")  # which knows the processor's memory for no GPU's
    monkeypatch.setattr(tensor_cores, "_DEVICE", "cpu")
    monkeypatch.setattr(tensor_cores, "_MULTIPLICATIONS", 1)
    monkeypatch.setattr(tensor_cores, "reason_against", lambda *_: None)
    monkeypatch.setattr(tensor_cores, "_multiplied", multiplied)
    return dtypes


def drawn(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@each(
    ("formats", "carrier"),
    [
        *(((name,), HALF) for name in ("e5m10", "fp16", "e5m9", "e4m10", "e5m10_saturate", "e5m10_ftz", "e2m1")),
        *(((name,), HALF) for name in ("e4m3", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fnuz", "q2.5")),
        *(((name,), BRAIN) for name in ("e8m7", "bf16", "e8m2", "posit8")),
        *(((name,), None) for name in ("e6m9", "tf32", "fp24", "fp32", "fp64", "e11m3", "posit16")),
        *(((name,), None) for name in ("mxfp8_e4m3", "int8", "fp8_e4m3_tensor", "fp8_e4m3_row_pow2", "nf4")),
        (("e4m3", "e5m2"), HALF),
        (("e8m2", "e4m3"), BRAIN),
        (("e8m2", "e5m10"), None),  # one dtype must hold both
        (("e5m10", None), None),  # an operand that may be any number
        ((None, None), None),
    ],
)
def test_the_format_chooses_the_carrier(formats, carrier):
    parsed = [fmt if fmt is None else Format.parse(fmt) for fmt in formats]
    assert carriers.carrier_of(*parsed) == carrier
    for fmt in parsed if carrier else ():
        numbers = fmt.values()
        assert torch.equal(numbers.to(carrier).double(), numbers)


FP8 = (Rule(role=("weights", "activations"), format="e4m3"), Rule(role="gradients", format="e5m2"))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy.mixed_precision("e5m10"), HALF),
        (Policy.mixed_precision("e8m7"), BRAIN),
        (Policy.mixed_precision("e6m9"), None),
        (Policy.mixed_precision("mxfp8_e4m3"), None),
        (Policy("e5m10", operands="e4m3"), HALF),
        (Policy("fp32", operands="e4m3"), HALF),  # float32 results of rounded operands
        (Policy("e5m10"), None),  # what comes from outside may be any number
        (Policy("e5m10", rules=FP8), HALF),
        (Policy("e5m10", rules=FP8[:1]), None),  # not the gradients
        (Policy("e5m10", rules=(Rule(role="weights", format="e4m3"),)), None),
        (Policy("e5m10", operands="e8m2", rules=FP8), BRAIN),  # the last rounding counts
        (Policy("e5m10", operands="e4m3", granularity="primitive"), None),
        (Policy("e5m10", operands="e4m3", accumulate="e5m10/32"), None),
        (Policy.fp8("rowwise"), None),
        (Policy.fp8("tensorwise"), None),
    ],
    ids=range(15),
)
def test_the_policy_chooses_the_products(taken, policy, expected):
    """Forward and backward of a layer."""

    def step(products):
        layer = torch.nn.Linear(24, 10)
        x, w, bias = (x.mul(4).round() for x in drawn((16, 24), (10, 24), (10,)))  # whose sums need no rounding
        layer.load_state_dict({"weight": w + 2.0**-12, "bias": bias})
        x = (x + 2.0**-12).requires_grad_()
        with simulate(policy, products=products):
            y = layer(x)
            y.backward(y.detach().clamp(-4, 4).round())
        return [y, x.grad, layer.weight.grad, layer.bias.grad]

    plain = step("plain")
    assert not taken
    narrow = step("fast")
    forward_only = policy.rules == FP8[:1]
    assert taken == ([] if expected is None else [expected] * 3) or (forward_only and taken == [HALF])
    assert all(torch.equal(a, b) for a, b in zip(plain, narrow, strict=True))


def test_every_kind_of_product_has_the_numbers_of_the_plain_one(taken):
    a, b, c = (x.mul(2).round() for x in drawn((3, 8, 12), (3, 12, 5), (3, 8, 5)))
    calls = {
        "mm": lambda: torch.mm(a[0], b[0]),
        "transposed": lambda: torch.mm(b[0].mT, a[0].mT),
        "strided": lambda: torch.mm(a[0, ::2], b[0, :, ::2]),
        "addmm": lambda: torch.addmm(c[0], a[0], b[0]),
        "row": lambda: torch.addmm(c[0, 0], a[0], b[0]),
        "bmm": lambda: torch.bmm(a, b),
        "baddbmm": lambda: torch.baddbmm(c[:1, :1], a, b),
        "linear": lambda: torch.nn.functional.linear(a, b[0].mT, c[0, 0]),
    }
    for name, call in calls.items():
        taken.clear()
        with simulate(Policy("e5m10", operands="e5m10")):
            found = call()
        assert taken == [HALF], name
        with simulate(Policy("e5m10", operands="e5m10"), products="plain"):
            expected = call()
        assert torch.equal(found, expected), name
        assert found.stride() == expected.stride(), name
    taken.clear()
    with simulate(Policy("e5m10", operands="e5m10")):
        torch.addmm(c[0], a[0], b[0], beta=2)
        torch.mv(a[0], b[0, :, 0])
        torch.mm(a[0].double(), b[0].double())
        torch.nn.functional.conv1d(a, b.mT[:, :, :8].mT)
    assert not taken


def test_numbers_that_no_rule_has_rounded_are_not_lost(taken):
    """In e5m10 alone the first product of weights from outside sees all of their bits."""
    a, b = torch.tensor([[1 + 2.0**-20, 1]]), torch.tensor([[1.0], [-1.0]])
    with simulate("e5m10"):
        assert a @ b == 2.0**-20
    with simulate(Policy("fp32", rules=(Rule(role="weights", format="e5m10"),))):
        assert a @ b.requires_grad_() == 2.0**-20
    assert not taken


def test_special_numbers(taken):
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([[inf, 1.0, 0.0], [nan, 0.0, 0.0], [2.0**-24, 70000.0, -0.0], [inf, -inf, 0.0]])
    b = torch.tensor([[1.0], [1.0], [2.0]])
    with simulate(Policy("fp32", operands="e5m10")):
        found = a @ b
    assert taken == [HALF]
    assert found[0] == inf
    assert found[1].isnan()
    assert found[2] == inf  # 70000 is too large for e5m10
    assert found[3].isnan()
    with simulate(Policy("fp32", operands="e5m10")):
        assert a[2:3, :1] @ b[:1] == 2.0**-24  # subnormal in float16


@pytest.mark.parametrize("watched", [{"observe": True}, {"shadow": "fp64"}], ids=str)
def test_watched_simulations_do_the_same(taken, watched):
    a, b = drawn((8, 8), (8, 8))
    with simulate(Policy.mixed_precision("e5m7")):
        expected = a @ b
    with simulate(Policy.mixed_precision("e5m7"), **watched):
        assert torch.equal(a @ b, expected)
    assert taken == [HALF, HALF]


def test_a_compiled_step_does_the_same(taken):
    policy = Policy("e5m10", operands="e4m3")
    a, b, c = drawn((16, 24), (24, 8), (8,))

    def step(a, b, c):
        return torch.addmm(c, a, b).relu() @ b.mT

    with simulate(policy):
        expected = step(a, b, c)
    assert taken == [HALF, HALF]
    found = roundoff.compile(step, simulate(policy))(a, b, c)
    assert taken[2:] == [HALF, HALF]
    assert torch.equal(found, expected)


def test_the_simulation_names_them(monkeypatch):
    policy = Policy("e5m10", operands="e4m3").with_rules(Rule("bmm", operands="e8m7"))
    assert "GPU" not in repr(simulate(policy))  # there is none here, or it has not been asked
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    simulation = simulate(policy)
    assert simulation.narrow_products == (HALF, BRAIN)
    assert repr(simulation).endswith(", on this GPU in float16 or bfloat16)")
    for other in (simulate(policy, products="plain"), simulate("e5m10"), simulate(Policy("fp32"))):
        assert other.narrow_products == ()
        assert "GPU" not in repr(other)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(tensor_cores, "_capability", lambda _: (7, 5))
    assert simulation.narrow_products == (HALF,)
    assert repr(simulation).endswith(", on this GPU in float16)")
    with pytest.raises(FormatError, match='products must be "fast" or "plain"'):
        simulate(policy, products="narrow")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("fmt", ["e5m10", "e8m7", "e4m3"])
def test_on_a_gpu_results_differ_by_the_sum_alone(fmt):
    a, b = (x.cuda() for x in drawn((1024, 1024), (1024, 1024)))
    policy = Policy("fp32", operands=fmt)
    with simulate(policy, products="plain"):
        plain = a @ b
    simulation = simulate(policy)
    with simulation:
        narrow = a @ b
    assert simulation.narrow_products, repr(simulation)
    rounded = [roundoff.round(x, fmt).double() for x in (a, b)]
    bound = 1024 * 2.0**-22 * (rounded[0].abs() @ rounded[1].abs())
    for found in (plain, narrow):
        assert ((found.double() - rounded[0] @ rounded[1]).abs() <= bound).all()
    whole = [x.mul(2).round() for x in (a, b)]
    with simulate(policy):
        assert torch.equal(whole[0] @ whole[1], (whole[0].double() @ whole[1].double()).float())
