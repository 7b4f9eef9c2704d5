"""Operands in a block format: blocks lie along what a product sums over, in every product of every operation."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from each import each

import roundoff
from roundoff import Policy, Rule, simulate

FORMAT = "mxfp4_e2m1"
aten = torch.ops.aten


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def along(x, axis, fmt=FORMAT):
    return roundoff.round(x, f"{fmt}_ax{axis % x.dim()}")


def over_positions(x):
    """Blocks along the batch and all positions, for each channel."""
    rows = x.transpose(0, 1)
    return roundoff.round(rows.reshape(len(rows), -1), FORMAT).view(rows.shape).transpose(0, 1)


def groupwise(x, axis, groups):
    return torch.cat([along(part, axis) for part in x.chunk(groups, axis)], axis)


def seen(program, fmt=FORMAT, **settings):
    with simulate(Policy("fp32").with_rules(Rule("*", operands=fmt)), products="plain", **settings):
        return program()


def assert_same(actual, expected):
    for x, y in zip(actual, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


A, B = numbers(64, 64), numbers(2, 64, 64, seed=1)
ENDS = torch.tensor([20, 64], dtype=torch.int32)
X, W, WT, WD = numbers(2, 32, 8, 8), numbers(48, 32, 3, 3), numbers(32, 48, 3, 3, seed=1), numbers(32, 1, 3, 3)
Q, K, V = (numbers(2, 4, 64, 32, seed=seed) for seed in (1, 2, 3))
PRODUCTS = {
    "mm": (lambda: A @ B[0], lambda: along(A, -1) @ along(B[0], 0)),
    "bmm": (lambda: torch.bmm(B, B), lambda: along(B, -1) @ along(B, -2)),
    "mv": (lambda: A @ A[0], lambda: along(A, -1) @ along(A[0], -1)),
    "addmm and gelu": (
        lambda: aten._addmm_activation(A[0], A, B[0], use_gelu=True),
        lambda: aten._addmm_activation(along(A[0], -1), along(A, -1), along(B[0], 0), use_gelu=True),
    ),
    "grouped, rows": (
        lambda: torch._grouped_mm(A, B, offs=ENDS),
        lambda: torch._grouped_mm(along(A, -1), along(B, -2), offs=ENDS),
    ),
    "grouped, columns": (
        lambda: torch._grouped_mm(B, A, offs=ENDS),
        lambda: torch._grouped_mm(along(B, -1), along(A, -2), offs=ENDS),
    ),
    "grouped, parts of the sum": (
        lambda: torch._grouped_mm(A, B[0], offs=ENDS),
        lambda: torch.stack(
            [along(A[:, s], -1) @ along(B[0][s], 0) for s in (slice(0, 20), slice(20, 64))],
        ),
    ),
    "convolution": (lambda: F.conv2d(X, W), lambda: F.conv2d(along(X, 1), along(W, 1))),
    "transposed": (lambda: F.conv_transpose2d(X, WT), lambda: F.conv_transpose2d(along(X, 1), along(WT, 0))),
    "depthwise": (
        lambda: F.conv2d(X, WD, groups=32),
        lambda: F.conv2d(along(X, 1, FORMAT + "_b1"), along(WD, 1, FORMAT + "_b1"), groups=32),
    ),
    "groups": (
        lambda: F.conv2d(X, W[:, :8], groups=4),
        lambda: F.conv2d(groupwise(X, 1, 4), along(W[:, :8], 1), groups=4),
    ),
    "transposed, groups": (
        lambda: F.conv_transpose2d(X, WT, groups=4),
        lambda: F.conv_transpose2d(groupwise(X, 1, 4), groupwise(WT, 0, 4), groups=4),
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(Q, K, V),
        lambda: F.scaled_dot_product_attention(along(Q, -1), along(K, -1), along(V, -2)),
    ),
    "attention, masked": (  # a mask is added, and not contracted
        lambda: F.scaled_dot_product_attention(Q, K, V, attn_mask=numbers(64, 64)),
        lambda: F.scaled_dot_product_attention(along(Q, -1), along(K, -1), along(V, -2), attn_mask=numbers(64, 64)),
    ),
    "bilinear": (
        lambda: F.bilinear(A, A.flip(0), numbers(5, 64, 64)),
        lambda: F.bilinear(along(A, -1), along(A.flip(0), -1), along(numbers(5, 64, 64), -1)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_lie_along_what_a_product_sums_over(name):
    program, expected = PRODUCTS[name]
    assert_same([seen(program)], [expected()])


@pytest.mark.parametrize("fmt", ["int4_g16", "bfp8_16", "nvfp4"])
def test_so_do_those_of_other_block_formats(fmt):
    assert_same([seen(lambda: A @ B[0], fmt)], [along(A, 1, fmt) @ along(B[0], 0, fmt)])
    assert_same([seen(lambda: A @ B[0], "int8_ax0")], [along(A, 0, "int8") @ along(B[0], 0, "int8")])
    by_rows = FORMAT + "_ax0"
    assert_same([seen(lambda: A @ B[0], by_rows)], [along(A, 0) @ along(B[0], 0)])


@pytest.mark.parametrize("fmt", ["fp8_e4m3_row", "int4_row"])
def test_so_do_rows(fmt):
    assert_same([seen(lambda: A @ B[0], fmt)], [along(A, 1, fmt) @ along(B[0], 0, fmt)])
    assert_same([seen(lambda: torch.bmm(B, B), fmt)], [along(B, -1, fmt) @ along(B, -2, fmt)])
    parts = [along(A[:, s], -1, fmt) @ along(B[0][s], 0, fmt) for s in (slice(0, 20), slice(20, 64))]
    assert_same([seen(PRODUCTS["grouped, parts of the sum"][0], fmt)], [torch.stack(parts)])
    grouped = F.conv2d(torch.cat([along(part, 1, fmt) for part in X.chunk(4, 1)], 1), along(W[:, :8], 1, fmt), groups=4)
    assert_same([seen(PRODUCTS["groups"][0], fmt)], [grouped])


def test_a_scale_for_the_tensor_is_one_in_every_product():
    expected = roundoff.round(A, "fp8_e4m3_tensor") @ roundoff.round(B[0], "fp8_e4m3_tensor")
    assert_same([seen(lambda: A @ B[0], "fp8_e4m3_tensor")], [expected])


def gradients_of_convolution(x, weight, g, *, transposed, groups, mask):
    options = [[1, 1], [0, 0], [1, 1], transposed, [0, 0], groups]
    return aten.convolution_backward(g, x, weight, [g.shape[1]], *options, mask)


@each("mask", list(itertools.product([True, False], repeat=3))[:-1])
@pytest.mark.parametrize(("transposed", "groups"), [(False, 1), (False, 4), (True, 1), (True, 4)])
def test_every_gradient_of_a_convolution_has_blocks_of_its_own(transposed, groups, mask):
    weight = numbers(32, 48 // groups, 3, 3) if transposed else numbers(48, 32 // groups, 3, 3)
    g = numbers(2, 48, 10, 10, seed=1) if transposed else numbers(2, 48, 6, 6, seed=1)
    options = {"transposed": transposed, "groups": groups}
    found = seen(lambda: gradients_of_convolution(X, weight, g, mask=list(mask), **options))
    of_weight = along(weight, 1) if transposed else groupwise(weight, 0, groups)
    of_input = groupwise(g, 1, groups), of_weight
    expected = [
        gradients_of_convolution(X, of_input[1], of_input[0], mask=[mask[0], False, False], **options)[0],
        *gradients_of_convolution(
            over_positions(X), weight, over_positions(g), mask=[False, mask[1], mask[2]], **options
        )[1:],
    ]
    for x, y, wanted in zip(found, expected, mask, strict=True):
        if wanted:
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": numbers(64, 64)}], ids=["", "causal", "masked"]
)
def test_every_gradient_of_attention_has_blocks_of_its_own(options):
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    g = numbers(2, 4, 64, 32, seed=9)

    def program():
        return torch.autograd.grad(F.scaled_dot_product_attention(*leaves, **options), leaves, g)

    q, k, v = along(Q, -1), along(K, -1), along(V, -1)
    mask = options.get("attn_mask", torch.zeros(64, 64))
    if options.get("is_causal"):
        mask = mask.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -torch.inf)
    weights = (q @ k.mT / 32**0.5 + mask).softmax(-1)
    out = weights @ along(V, -2)
    inner = weights * (along(g, -1) @ v.mT - (g * out).sum(-1, keepdim=True)) / 32**0.5
    expected = inner @ along(K, -2), inner.mT @ along(Q, -2), weights.mT @ along(g, -2)
    found = seen(program)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_what_attention_saves_is_no_operand():
    """The logarithm of a sum, rounded to a few bits, would change every weight of the backward pass."""
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    g = numbers(2, 4, 64, 32, seed=9)
    with simulate(Policy("fp32").with_rules(Rule(role="backward", operands="e4m3"))):
        found = torch.autograd.grad(F.scaled_dot_product_attention(*leaves), leaves, g)
    rounded = [roundoff.round(x.detach(), "e4m3").requires_grad_() for x in leaves]
    weights = (rounded[0] @ rounded[1].mT / 32**0.5).softmax(-1)
    near = torch.autograd.grad(weights @ rounded[2], rounded, roundoff.round(g, "e4m3"))
    for x, y in zip(found, near, strict=True):
        assert (x - y).norm() < 0.05 * y.norm()


def test_accumulators_reach_the_separate_products():
    policy = Policy("fp32", accumulate="e5m4").with_rules(Rule("*", operands=FORMAT))
    g = numbers(2, 48, 6, 6, seed=1)
    masks = [True, False, False], [False, True, False]
    with simulate(policy):
        found = gradients_of_convolution(X, W, g, transposed=False, groups=1, mask=[True, True, False])
    with simulate(Policy("fp32", accumulate="e5m4")):
        of_input = gradients_of_convolution(X, along(W, 0), along(g, 1), transposed=False, groups=1, mask=masks[0])
        of_weight = gradients_of_convolution(
            over_positions(X), W, over_positions(g), transposed=False, groups=1, mask=masks[1]
        )
    assert torch.equal(found[0], of_input[0])
    assert torch.equal(found[1], of_weight[1])


def test_layouts_of_images_stay():
    x, w = (t.contiguous(memory_format=torch.channels_last) for t in (X, W))
    y = seen(lambda: F.conv2d(x, w))
    assert y.stride() == F.conv2d(x, w).stride()
    torch.testing.assert_close(y, seen(lambda: F.conv2d(X, W)), rtol=1e-5, atol=1e-5)
