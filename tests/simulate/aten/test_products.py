"""Large matrix products by oneDNN: as exact as float32 is, the same eagerly and compiled, and nowhere else."""

import sys

import pytest
import torch

import roundoff
from roundoff import FormatError, Policy, Rule, simulate

products = sys.modules["roundoff.simulate.aten.products"]
aten = torch.ops.aten
onednn = pytest.mark.skipif(products.reason_against() is not None, reason=str(products.reason_against()))

LAYOUTS = {
    "nn": lambda a, b: (a, b),
    "nt": lambda a, b: (a, b.mT.contiguous().mT),
    "tn": lambda a, b: (a.mT.contiguous().mT, b),
}


def drawn(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def product(addend, a, b):
    return torch.ops.roundoff.product(addend, a, b)


@pytest.fixture
def taken(monkeypatch):
    """The shapes of the products that oneDNN computes."""
    shapes = []
    compute = products._permitted

    def permitted(addend, a, b):
        shapes.append((tuple(a.shape), tuple(b.shape)))
        return compute(addend, a, b)

    monkeypatch.setattr(products, "_permitted", permitted)
    return shapes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1024, 64, 64), (64, 4096, 64), (256, 256, 256), (40, 1000, 130)], ids=str)
def test_the_error_is_that_of_sums_in_float32(size, layout):
    rows, terms, columns = size
    a, b, addend = drawn((2, rows, terms), (2, terms, columns), (2, 1, columns))
    a[:, :, terms // 2 :] = -a[:, :, : terms // 2]
    b[:, terms // 2 :] = b[:, : terms // 2] * (1 + 2.0**-12)  # what remains is 2^-12 of what is added
    a, b = LAYOUTS[layout](a, b)
    exact = torch.baddbmm(addend.double(), a.double(), b.double())
    bound = (terms + 1) * 2.0**-24 * (a.double().abs() @ b.double().abs() + addend.double().abs())
    assert ((product(addend, a, b).double() - exact).abs() <= bound).all()
    assert ((product(addend[0], a[0], b[0]).double() - exact[0]).abs() <= bound[0]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_that_need_no_rounding_have_the_same_bits(layout):
    a, b, addend = (x.mul(100).round() for x in drawn((2, 128, 600), (2, 600, 96), (2, 1, 96), seed=1))
    a, b = LAYOUTS[layout](a, b)
    assert torch.equal(product(None, a, b), a @ b)
    assert torch.equal(product(addend, a, b), torch.baddbmm(addend, a, b))
    assert torch.equal(product(None, a[0], b[0]), a[0] @ b[0])
    assert torch.equal(product(addend[0, 0], a[0], b[0]), torch.addmm(addend[0, 0], a[0], b[0]))


def test_special_numbers():
    a, b = torch.zeros(256, 256), torch.eye(256)
    a[0, 0], a[1, 1], a[2, 2], a[3, 3], a[4, 4] = float("nan"), float("inf"), 2.0**-149, 3 * 2.0**-130, 3e38
    b[4, 4] = 2
    expected = a @ b
    assert expected[2, 2] == 2.0**-149
    assert expected[4, 4].isinf()
    for found in (product(None, a, b), product(None, a[None], b[None])[0]):
        assert torch.equal(found.nan_to_num(123.0), expected.nan_to_num(123.0))
    tiny = torch.full((256, 256), 2.0**-70)
    assert (product(None, tiny, tiny) == 2.0**-132).all()  # the sum is subnormal, and so is every step to it


@onednn
def test_only_large_products_of_float32_matrices(taken):
    def ran(operation, *operands, **factors):
        taken.clear()
        products.kernel(operation)(*operands, **factors)
        return bool(taken)

    a, b, column = torch.ones(256, 256), torch.ones(256, 256), torch.ones(256)
    assert ran(aten.mm.default, a, b)
    assert ran(aten.addmm.default, column, a, b)
    assert ran(aten.bmm.default, a[None], b[None])
    assert ran(aten.baddbmm.default, a[None, :1], a.expand(2, 256, 256), b.expand(2, 256, 256))
    assert not ran(aten.addmm.default, column, a, b, alpha=2)
    assert not ran(aten.mm.default, a.double(), b.double())
    assert not ran(aten.mm.default, a[:128, :128], b[:128, :128])
    assert not ran(aten.bmm.default, torch.ones(64, 128, 128), torch.ones(64, 128, 128))  # many small ones are small
    wide = torch.ones(1024, 1024)
    assert not ran(aten.mm.default, wide, wide[:, :1])
    assert ran(aten.bmm.default, wide[None], wide[None, :, :1])
    assert not ran(aten.bmm.default, wide[None, :, :1], wide[None, :1])
    assert products.kernel(aten.mv.default) is aten.mv.default


@onednn
def test_the_permission_is_taken_back_and_a_setting_of_the_program_left_alone(monkeypatch):
    a = torch.ones(256, 256)
    products._permission.fp32_precision = "ieee"
    try:
        product(None, a, a)
        assert products._permission.fp32_precision == "ieee"
        assert "itself" in products.reason_against.__wrapped__()
    finally:
        products._permission.fp32_precision = "none"
    product(None, a, a)
    assert products._permission.fp32_precision == "none"
    with pytest.raises(RuntimeError):
        product(None, a, a[:100])
    assert products._permission.fp32_precision == "none"
    monkeypatch.setattr(products, "reason_against", lambda: "another machine")
    monkeypatch.setattr(products, "_permitted", None)
    assert (product(None, a, a) == 256).all()


@pytest.mark.parametrize(
    ("name", "capability", "kept", "reason"),
    [
        ("Intel(R) Xeon(R)", "AVX512", True, "not AMD"),
        ("AMD EPYC", "AVX2", True, "without AVX-512"),
        ("AMD EPYC", "AVX512", False, "bfloat16"),
        ("AMD EPYC", "AVX512", True, None),
    ],
)
def test_which_machines(monkeypatch, name, capability, kept, reason):
    def permitted(addend, a, b):
        return torch.matmul(a, b) if kept else torch.matmul(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(products, "_permitted", permitted)
    found = products.reason_against.__wrapped__()
    assert found is None if reason is None else reason in found


@onednn
def test_which_simulations(taken):
    a, b = drawn((256, 256), (256, 256))

    def ran(*args, **settings):
        taken.clear()
        with simulate(*args, **settings):
            result = a @ b
        return result, bool(taken)

    result, fast = ran("e5m6")
    assert fast
    assert torch.equal(result, roundoff.round(product(None, a, b), "e5m6"))
    for watched in ({"observe": True}, {"shadow": "fp64"}):
        same, fast = ran("e5m6", **watched)
        assert fast
        assert torch.equal(same, result)
    plain, fast = ran("e5m6", products="plain")
    assert not fast
    assert torch.equal(plain, roundoff.round(a @ b, "e5m6"))
    for exact in ("fp32", Policy("e5m6").with_rules(Rule("mm", format="fp32"))):
        plain, fast = ran(exact)
        assert not fast
        assert torch.equal(plain, a @ b)
    assert not ran("e5m6", granularity="primitive")[1]
    assert not ran("e5m6", accumulate="e5m6/32")[1]
    assert "products=fast" in repr(simulate("e5m6"))
    with pytest.raises(FormatError, match="products"):
        simulate("e5m6", products="fastest")


def step(w, bias, x):
    """Forward and backward of two networks, as an agent has them."""
    leaf = w.detach().requires_grad_()
    h = torch.baddbmm(bias, x.expand(2, 256, 300), leaf[:, :300]).relu_()
    y = torch.baddbmm(bias, h, leaf[:, 300:])
    (gradient,) = torch.autograd.grad(y, leaf, y.detach() * 0.01)
    w.sub_(gradient * 0.01)
    return y.amax(), x @ x.mT


@onednn
def test_compiled_steps_have_the_same_bits(taken):
    eager, mine = (simulate("e5m10") for _ in range(2))
    program = roundoff.compile(step, mine)
    theirs, ours = ([x / 10 for x in drawn((2, 556, 256), (2, 1, 256), (256, 300))] for _ in range(2))
    for _ in range(2):
        with eager:
            expected = step(*theirs)
        eagerly = sorted(taken)
        taken.clear()
        found = program(*ours)
        assert sorted(taken) == eagerly
        assert len(taken) == 6
        taken.clear()
        assert found[0].isfinite()
        assert all(torch.equal(a, b) for a, b in zip((*expected, *theirs), (*found, *ours), strict=True))
