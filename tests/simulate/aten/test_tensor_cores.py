"""Products on tensor cores: exact ones, of what is handed over, and only where a GPU adds them in float32."""

from fractions import Fraction
from itertools import product as pairs

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from roundoff.formats import Format
from roundoff.simulate.aten import tensor_cores

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def numbers_of(dtype, count):
    """The edges of a dtype and random codes of it, all finite, float32."""
    codes = torch.randint(-(1 << 15), 1 << 15, (count,), generator=torch.Generator().manual_seed(0))
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    edges = [0, 1, 1 + info.eps, 1 - info.eps / 2, info.max, info.smallest_normal, info.smallest_normal - least, least]
    numbers = torch.cat([codes.short().view(dtype).float(), torch.tensor(edges), -torch.tensor(edges)])
    return numbers[numbers.isfinite()]


def with_products(values):
    """All pairs of numbers: their product in float32, and the exact one."""
    products = torch.outer(values, values).flatten().tolist()
    for found, (x, y) in zip(products, pairs(values.tolist(), repeat=2), strict=True):
        yield found, Fraction(x) * Fraction(y)


@pytest.mark.parametrize("name", ["e2m1", "e4m3", "fp8_e4m3", "fp8_e5m2", "e3m4"])
def test_every_product_of_two_numbers_of_a_small_format_is_a_float32_number(name):
    assert all(Fraction(found) == exact for found, exact in with_products(Format.parse(name).values().float()))


def test_products_of_float16_numbers_are_float32_numbers():
    assert all(Fraction(found) == exact for found, exact in with_products(numbers_of(torch.float16, 200)))


def test_products_of_bfloat16_numbers_are_float32_numbers_within_its_range():
    both = list(with_products(numbers_of(torch.bfloat16, 200)))
    inside = [(x, y) for x, y in both if y == 0 or Fraction(1, 2**126) <= abs(y) < 2**128]
    assert len(both) > len(inside) > len(both) / 2
    assert all(Fraction(found) == exact for found, exact in inside)


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_handing_over_in_the_dtype_changes_no_number(fmt):
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[fmt]
    values = torch.cat([Format.parse(fmt).values().float(), torch.tensor([float("inf"), float("-inf"), -0.0])])
    back = values.to(dtype).float()
    assert torch.equal(back.view(torch.int32), values.view(torch.int32))
    assert torch.tensor(float("nan")).to(dtype).isnan()


def test_which_calls():
    side = 1 << 10

    def takes(operation, *shapes, dtype=torch.float32, device="cuda", **factors):
        with FakeTensorMode():
            operands = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
            return tensor_cores.takes(operation, operands, factors)

    square = (side, side)
    assert takes(aten.mm.default, square, square)
    assert takes(aten.addmm.default, (side,), square, square)
    assert takes(aten.bmm.default, (64, 256, 256), (64, 256, 256))  # all together are worth it
    assert takes(aten.baddbmm.default, (1, 1, side), (2, *square), (2, *square))
    assert takes(aten.mm.default, (side + 1, side + 3), (side + 3, side + 5))  # any shape
    assert not takes(aten.mm.default, (side // 2, side // 2), (side // 2, side // 2))
    assert not takes(aten.mm.default, (0, side), square)
    assert not takes(aten.addmm.default, (side,), square, square, alpha=2)
    assert not takes(aten.mm.default, square, square, dtype=torch.float64)
    assert not takes(aten.mm.default, square, square, dtype=torch.float16)
    assert not takes(aten.mm.default, square, square, device="cpu")
    assert not takes(aten.mv.default, square, (side,))
    with FakeTensorMode():
        operands = [torch.empty(square, device="cuda"), torch.empty(square, device="cuda").mT]
        assert tensor_cores.takes(aten.mm.default, operands, {})
        assert not tensor_cores.takes(aten.mm.default, [operands[0], operands[1].cpu()], {})


def test_a_program_for_a_gpu_has_the_operator_in_it():
    with FakeTensorMode():
        a, b = torch.empty(2, 3, 4, device="cuda"), torch.empty(2, 5, 4, device="cuda").mT
        result = tensor_cores.product([torch.empty(5, device="cuda"), a, b], torch.float16)
    assert result.shape == (2, 3, 5)
    assert result.dtype == torch.float32
    assert result.device.type == "cuda"
    assert result.is_contiguous()


@pytest.mark.parametrize(
    ("carrier", "capability", "setting", "reason"),
    [
        (torch.float16, (9, 0), {}, None),
        (torch.bfloat16, (9, 0), {}, None),
        (torch.float16, (7, 0), {}, None),
        (torch.bfloat16, (7, 5), {}, "its tensor cores do not multiply bfloat16: compute capability (7, 5), (8, 0)"),
        (torch.float16, (6, 1), {}, "its tensor cores do not multiply float16"),
        (torch.float16, (9, 0), {"accumulation": True}, "the program allows sums in float16"),
        (torch.bfloat16, (9, 0), {"accumulation": True}, None),
        (torch.float16, (9, 4), {"hip": "6.4"}, "AMD"),
    ],
)
def test_which_gpus(monkeypatch, carrier, capability, setting, reason):
    monkeypatch.setattr(tensor_cores, "_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", setting.get("hip"))
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_accumulation
    matmul.allow_fp16_accumulation = setting.get("accumulation", False)
    try:
        found = tensor_cores.reason_against(carrier, CUDA)
    finally:
        matmul.allow_fp16_accumulation = before
    assert found is None if reason is None else reason in found
    assert "NVIDIA" in tensor_cores.reason_against(carrier, torch.device("cpu"))


def test_without_tensor_cores_it_is_the_float32_product():
    a, b, addend = torch.randn(8, 9), torch.randn(9, 7), torch.randn(7)
    assert torch.equal(tensor_cores.product([a, b], torch.float16), a @ b)
    assert torch.equal(tensor_cores.product([addend, a, b], torch.float16), torch.addmm(addend, a, b))
    assert torch.equal(tensor_cores.product([a[None], b[None]], torch.bfloat16), (a @ b)[None])


def on_gpu(x, y, dtype):
    """Each product of two numbers alone, by tensor cores: in sums whose other terms are zero."""
    a, b = (torch.zeros(16, len(values), device="cuda") for values in (x, y))
    a[0], b[0] = x.cuda(), y.cuda()
    return tensor_cores.product([a.mT, b], dtype).cpu()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_on_a_gpu_products_are_exact(dtype):
    if tensor_cores.reason_against(dtype, CUDA) is not None:
        pytest.skip(tensor_cores.reason_against(dtype, CUDA))
    values = numbers_of(dtype, 2000)
    found, exact = on_gpu(values, values, dtype).double(), values.double()[:, None] * values.double()
    inside = (exact == 0) | (exact.abs() >= 2.0**-126) & (exact.abs() < 2.0**128)
    assert torch.equal(found[inside], exact[inside])
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 1.0])
    expected = (special[:, None] * special).nan_to_num(123.0)
    assert torch.equal(on_gpu(special, special, dtype).diagonal().nan_to_num(123.0), expected.diagonal())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(256, 4096, 128), (33, 1001, 77)], ids=str)
def test_on_a_gpu_the_error_is_that_of_sums_in_float32(dtype, size):
    if tensor_cores.reason_against(dtype, CUDA) is not None:
        pytest.skip(tensor_cores.reason_against(dtype, CUDA))
    rows, terms, columns = size
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, *shape, generator=generator) for shape in ((rows, terms), (terms, columns)))
    a, b, addend = a.to(dtype).float(), b.to(dtype).float(), torch.randn(columns, generator=generator)
    exact = a.double() @ b.double() + addend
    bound = (terms + 1) * 2.0**-22 * (a.double().abs() @ b.double().abs() + addend.abs())
    for x, y in ((a, b), (a.mT.contiguous().mT, b.mT.contiguous().mT)):
        found = tensor_cores.product([addend.cuda(), x.cuda(), y.cuda()], dtype).cpu()
        assert ((found.double() - exact).abs() <= bound).all()
    whole = [x.mul(8).round() for x in (addend, a, b)]  # sums of these need no rounding
    found = tensor_cores.product([x.cuda() for x in whole], dtype).cpu()
    assert torch.equal(found, torch.baddbmm(*whole))
