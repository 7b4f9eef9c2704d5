"""What backward products see of operands that the forward pass rounds, and a simulation that changes its policy."""

import numpy as np
import pytest
import torch

import roundoff
from roundoff import FormatError, Policy, PolicyWarning, Rule, simulate
from roundoff.simulate.aten.tables import CONTRACTIONS


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def quantized(x, bits, axis=None):
    """Symmetric integers with a scale for all numbers, or for each line along an axis; in numpy, by hand."""
    x = x.numpy()
    largest = np.abs(x).max(axis=axis, keepdims=axis is not None)
    scale = largest / (2 ** (bits - 1) - 1)
    return torch.from_numpy(scale * np.round(x * (1 / scale)))


def policy(format, backward):
    about = ("weights", "activations")
    return Policy("fp64", rules=(Rule(CONTRACTIONS, role=about, backward=backward, format=format),))


def gradients(y, leaves, g):
    return [gradient.detach() for gradient in torch.autograd.grad(y, leaves, g)]


# By name: the format, and the axes along which numbers share a scale in x (n, in) and w (in, out).
FORMATS = {"int4": (4, None, None), "int3_row": (3, 1, 0)}


@pytest.mark.parametrize("backward", ["rounded", "unrounded"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("batched", [False, True])
def test_products_of_matrices_by_hand(format, backward, batched):
    bits, of_x, of_w = FORMATS[format]
    x, w, bias, g = numbers(5, 7), numbers(7, 4), numbers(4), numbers(5, 4)
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_(), bias.clone().requires_grad_()]
    with simulate(policy(format, backward), products="plain"):
        if batched:
            y = torch.baddbmm(leaves[2].view(1, 1, 4), leaves[0][None] * 1.0, leaves[1][None])[0]
        else:
            y = torch.addmm(leaves[2], leaves[0] * 1.0, leaves[1])
        found = gradients(y, leaves, g)
    seen_x, seen_w = quantized(x, bits, of_x), quantized(w, bits, of_w)
    torch.testing.assert_close(y.detach(), seen_x @ seen_w + bias, rtol=1e-14, atol=1e-14)
    if backward == "unrounded":
        seen_x, seen_w = x, w
    for one, other in zip(found, (g @ seen_w.T, seen_x.T @ g, g.sum(0)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("backward", ["rounded", "unrounded"])
@pytest.mark.parametrize("format", ["int4", "int4_row", "mxfp4"])
def test_convolutions_see_the_numbers_of_the_forward_pass(format, backward, groups):
    def convolved(x, w):
        return torch.nn.functional.conv2d(x, w, groups=groups)

    x, w, g = numbers(2, 4, 6, 6), numbers(6, 4 // groups, 3, 3), numbers(2, 6, 4, 4)
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    with simulate(policy(format, backward), products="plain"):
        y = convolved(*leaves)
        found = gradients(y, leaves, g)
    along = "" if format == "int4" else "_ax1"  # the channels that are summed over, group by group
    parts = [roundoff.round(part.contiguous(), format + along) for part in x.chunk(groups, 1)] if along else None
    seen_x = torch.cat(parts, 1) if parts else roundoff.round(x, format)
    seen = [seen_x.requires_grad_(), roundoff.round(w, format + along).requires_grad_()]
    expected = convolved(*seen)
    assert torch.equal(y, expected)
    if backward == "unrounded":
        seen = leaves
        expected = convolved(*seen)
    for one, other in zip(found, gradients(expected, seen, g), strict=True):
        assert torch.equal(one, other)


def as_library(x):
    return roundoff.round(x, "int3", gradient="straight-through")


def test_the_library_s_fake_quantizer_gives_the_same_gradients():
    """Rounded above autograd, as libraries do; two layers, so that an activation is computed."""
    x, w, v, g = numbers(9, 6), numbers(6, 8), numbers(8, 3), numbers(9, 3)
    leaves = [w.clone().requires_grad_(), v.clone().requires_grad_()]
    with simulate(policy("int3", "rounded"), products="plain"):
        y = torch.tanh(x @ leaves[0]) @ leaves[1]
        found = gradients(y, leaves, g)
    fake = [as_library(leaf) for leaf in leaves]
    expected = as_library(torch.tanh(as_library(x) @ fake[0])) @ fake[1]
    assert torch.equal(y, expected)
    for one, other in zip(found, gradients(expected, leaves, g), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"role": "gradients"}, "backward is for weights and activations"),
        ({"role": "weights", "product": "output"}, "and without product"),
        ({"role": "weights", "backward": "never"}, "backward of a rule must be rounded, unrounded, got 'never'"),
    ],
)
def test_what_is_refused(keys, words):
    with pytest.raises(FormatError, match=words):
        Rule("mm", **{"format": "int8", "backward": "rounded", **keys})


def test_rules_are_plain_data():
    rule = Rule("mm", role="weights", backward="unrounded", format="int8")
    assert Policy.parse(Policy("fp32", rules=(rule,)).as_json()) == Policy("fp32", rules=(rule,))


def test_a_simulation_changes_its_policy_between_blocks():
    a, b = numbers(3, 4), numbers(4, 2)
    simulation = simulate(Policy("fp64"), products="plain", observe=True)
    with simulation:
        assert torch.equal(a @ b, torch.mm(a, b))
        with pytest.raises(FormatError, match="inside of its block"):
            simulation.change(policy("int3", "rounded"))
    simulation.step = 5
    simulation.change(policy("int3", "rounded"))
    with pytest.warns(PolicyWarning, match="rules about weights found none"), simulation:  # as of a new simulation
        y = a @ b
    torch.testing.assert_close(y, quantized(a, 3) @ quantized(b, 3), rtol=1e-14, atol=1e-14)
    assert simulation.step == 5
    assert simulation.report().table["results"].sum() == 3 * y.numel()  # it goes on counting
    with pytest.raises(FormatError, match="in fp64 cannot change to fp32"):
        simulation.change("fp32")
