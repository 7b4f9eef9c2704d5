"""Weights, activations and gradients of each product: told apart, and rounded as the rules about them say."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.formats import FormatError, RandomBits
from roundoff.simulate.operands.rounding import rotated

RECIPES = ["tensorwise", "rowwise", "rowwise-with-gw-hp", "blockwise", "blockwise-pow2"]


def numbers(*shape, seed=0, size=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * size


def along(x, axis, element="fp8_e4m3", ends="_pow2"):
    return roundoff.round(x, f"{element}_row_ax{axis % x.dim()}{ends}")


def tensor(x, element="fp8_e4m3", ends=""):
    return roundoff.round(x, f"{element}_tensor{ends}")


def tiles(x, axis, ends=""):
    """Each 128 neighbours along an axis are a row by themselves."""
    return torch.cat([along(part, axis, ends=ends) for part in x.split(128, axis)], axis)


def squares_of_tensors(w, ends=""):
    """Each square of 128 by 128 is a tensor by itself."""
    return torch.cat([torch.cat([tensor(s, ends=ends) for s in rows.split(128, 1)], 1) for rows in w.split(128)])


def blockwise(ends=""):
    return lambda x, w, g: (
        (tiles(x, 1, ends), squares_of_tensors(w, ends)),
        (tiles(g, 1, ends), squares_of_tensors(w, ends)),
        (tiles(g, 0, ends), tiles(x, 0, ends)),
    )


# What the three products of x @ w.t() are given, written out: the operands of output, grad-input and grad-weight.
EXPECTED = {
    "tensorwise": lambda x, w, g: (
        (tensor(x), tensor(w)),
        (tensor(g, "fp8_e5m2"), tensor(w)),
        (tensor(g, "fp8_e5m2"), tensor(x)),
    ),
    "rowwise": lambda x, w, g: (
        (along(x, 1), along(w, 1)),
        (along(g, 1), along(w, 0)),
        (along(g, 0), along(x, 0)),
    ),
    "rowwise-with-gw-hp": lambda x, w, g: ((along(x, 1), along(w, 1)), (along(g, 1), tensor(w, ends="_pow2")), (g, x)),
    "blockwise": blockwise(),
    "blockwise-pow2": blockwise("_pow2"),
}


def run(policy, program, *leaves, gradient, **settings):
    """The result and the gradients of the leaves."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    with simulate(policy, products="plain", **settings):
        y = program(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, gradient)


@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_product_of_a_linear_layer(recipe, bias, of_input):
    many, wide, narrow = (130, 260, 150) if recipe.startswith("blockwise") else (30, 20, 12)
    layer, x = torch.nn.Linear(wide, narrow, bias=bias), numbers(many, wide)
    g = numbers(many, narrow, size=1e-6)
    for t in (layer.weight.data, x, g):  # apart so far that a scale for all is not one for each row or column
        t.mul_(torch.logspace(0, -6, len(t))[:, None]).mul_(torch.logspace(-3, 0, t.shape[1]))
    x.requires_grad_(of_input)  # a leaf that wants a gradient, as parameters are
    with simulate(Policy.fp8(recipe), products="plain"):
        y = layer(x)
        y.backward(g)
    w = layer.weight.detach()
    of_output, of_grad_input, of_grad_weight = EXPECTED[recipe](x.detach(), w, g)
    assert torch.equal(y, F.linear(of_output[0], of_output[1], layer.bias))
    assert torch.equal(layer.weight.grad, of_grad_weight[0].t() @ of_grad_weight[1])
    assert not of_input or torch.equal(x.grad, of_grad_input[0] @ of_grad_input[1])
    assert not bias or torch.equal(layer.bias.grad, g.sum(0))


@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_behind_one_another_and_more_axes(recipe):
    """The gradient between two layers is one, the activation between them is one, wherever they lie."""
    first, second = numbers(16, 8, seed=1), numbers(4, 16, seed=2)
    x, g = numbers(3, 5, 8), numbers(3, 5, 4, size=1e-4)
    layers = [torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 4, bias=False)]
    for layer, w in zip(layers, (first, second), strict=True):
        layer.weight.data.copy_(w)
    with simulate(Policy.fp8(recipe), products="plain"):
        layers[1](layers[0](x).tanh()).backward(g)
    flat = x.view(15, 8)
    of_hidden, _, _ = EXPECTED[recipe](flat, first, flat)
    h = (of_hidden[0] @ of_hidden[1].t()).tanh()
    _, of_h, of_second = EXPECTED[recipe](h, second, g.view(15, 4))
    inner = (of_h[0] @ of_h[1]) * (1 - h * h)
    _, _, of_first = EXPECTED[recipe](flat, first, inner)
    torch.testing.assert_close(layers[1].weight.grad, of_second[0].t() @ of_second[1], rtol=1e-5, atol=0)
    torch.testing.assert_close(layers[0].weight.grad, of_first[0].t() @ of_first[1], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise-with-gw-hp"])
def test_every_product_of_a_convolution(recipe):
    conv, x, g = torch.nn.Conv2d(6, 4, 3), numbers(2, 6, 8, 8), numbers(2, 4, 6, 6, size=1e-6)
    x.requires_grad_()
    with simulate(Policy.fp8(recipe)):
        y = conv(x)
        y.backward(g)
    e5m2 = "fp8_e5m2"
    seen = {
        "tensorwise": ((tensor, tensor), lambda t: tensor(t, e5m2), tensor, lambda t: tensor(t, e5m2), tensor),
        "rowwise-with-gw-hp": (
            (lambda t: along(t, 1), lambda t: along(t, 1)),
            lambda t: along(t, 1),
            lambda t: tensor(t, ends="_pow2"),
            lambda t: t,
            lambda t: t,
        ),
    }[recipe]
    (of_x, of_w), of_g, w_back, g_back, x_back = seen
    w = conv.weight.detach()
    torch.testing.assert_close(y, F.conv2d(of_x(x.detach()), of_w(w), conv.bias))
    torch.testing.assert_close(x.grad, torch.nn.grad.conv2d_input(x.shape, w_back(w), of_g(g)), rtol=1e-5, atol=1e-10)
    of_weight = torch.nn.grad.conv2d_weight(x_back(x.detach()), w.shape, g_back(g))
    torch.testing.assert_close(conv.weight.grad, of_weight, rtol=1e-5, atol=1e-10)


@pytest.mark.filterwarnings("ignore:rules about weights found none")
def test_products_without_a_weight_keep_their_operands():
    q, k, v = (numbers(2, 4, 16, 8, seed=seed) for seed in range(3))
    g = numbers(2, 4, 16, 8, seed=9)
    for program in (F.scaled_dot_product_attention, lambda q, k, v: (q @ k.mT).softmax(-1) @ v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        plain = torch.autograd.grad(program(*leaves), leaves, g)
        # Computed inside, they are no leaves, and no weights.
        with simulate(Policy.fp8("tensorwise"), products="plain"):
            found = torch.autograd.grad(program(*[x * 1 for x in leaves]), leaves, g)
        assert all(map(torch.equal, found, plain))
    policy = Policy("fp32").with_rules(Rule(role="activations", format="fp8_e4m3_tensor"))
    with simulate(policy, products="plain"):
        assert torch.equal(torch.bmm(q[0], k[0].mT), torch.bmm(tensor(q[0]), tensor(k[0]).mT))


def test_each_role_and_product_may_have_a_format_and_a_mode():
    rules = (
        Rule("*mm", role="weights", format="e5m2", rounding="nearest-even"),
        Rule("*mm", role="activations", product="output", format="e4m3", rounding="toward-zero"),
        Rule("*mm", role="gradients", product=["grad-weight"], format="e5m1", rounding="up"),
    )
    x, w, b, g = numbers(9, 5), numbers(5, 7), numbers(7), numbers(9, 7)
    layer = torch.nn.Linear(5, 7)
    layer.weight.data, layer.bias.data = w.t().contiguous(), b
    x.requires_grad_()
    policy = Policy("fp32", rounding="down").with_rules(*rules)
    with simulate(policy, products="plain"):
        y = layer(x)
        y.backward(g)
    seen = roundoff.round(w, "e5m2")
    expected = torch.addmm(b, roundoff.round(x, "e4m3", rounding="toward-zero"), seen)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, g @ seen.t(), rtol=1e-5, atol=1e-6)
    of_weight = roundoff.round(g, "e5m1", rounding="up").t() @ x
    torch.testing.assert_close(layer.weight.grad, of_weight, rtol=1e-5, atol=1e-6)


def test_stochastic_gradients_are_drawn_anew_and_repeatable():
    stochastic = Rule(["mm", "addmm"], role="gradients", format="fp8_e5m2_tensor", rounding="stochastic")
    policy = Policy.fp8("tensorwise").with_rules(stochastic)
    x, w, g = numbers(16, 8), numbers(8, 4), numbers(16, 4)
    first, second = (run(policy, torch.mm, x, w, gradient=g, seed=3) for _ in range(2))
    other = run(policy, torch.mm, x, w, gradient=g, seed=4)
    assert all(map(torch.equal, first, second))
    assert torch.equal(first[0], other[0]), "weights and activations are rounded to nearest"
    assert not torch.equal(first[2], other[2])
    drawn = roundoff.round(g, "fp8_e5m2_tensor", rounding="stochastic", random=RandomBits(0))
    assert drawn.unique().numel() <= roundoff.round(g, "fp8_e5m2_tensor", rounding="up").unique().numel() * 2


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_changes_nothing(reentrant, recipe):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    x = numbers(10, 6)
    gradients = []
    for forward in (net, lambda x: checkpoint(net, x, use_reentrant=reentrant)):
        net.zero_grad()
        with simulate(Policy.fp8(recipe)):
            forward((x + 0).requires_grad_()).square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    assert all(map(torch.equal, *gradients))


def test_results_have_a_format_of_their_own():
    layer, x = torch.nn.Linear(8, 4), numbers(5, 8)
    with simulate(Policy.fp8("tensorwise", "bf16")):
        y = layer(x)
    expected = F.linear(tensor(x), tensor(layer.weight.detach()), layer.bias.detach())
    assert torch.equal(y, roundoff.round(expected, "bf16"))


def test_a_module_can_be_left_out():
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    x = numbers(10, 6)
    policy = Policy.fp8("tensorwise").with_rules(
        *(Rule(module="1", role=role, format="fp32") for role in ("weights", "activations", "gradients"))
    )
    with simulate(policy, products="plain", root=net):
        y = net(x)
    h = F.linear(tensor(x), tensor(net[0].weight.detach()), net[0].bias)
    assert torch.equal(y, net[1](h))


@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_of_torchao(recipe):
    config = pytest.importorskip("torchao.float8.config", reason="torchao is not installed", exc_type=ImportError)
    from torchao.float8.float8_linear import Float8Linear

    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.GELU(), torch.nn.Linear(64, 32, bias=False))
    theirs = copy.deepcopy(ours)
    recipe_of_torchao = config.Float8LinearConfig.from_recipe_name(recipe.replace("-", "_"))
    emulated = dataclasses.replace(recipe_of_torchao, emulate=True)
    for i in (0, 2):
        theirs[i] = Float8Linear.from_float(theirs[i], emulated)
    x, g = numbers(5, 48, 96), numbers(5, 48, 32, size=1e-5)
    gradients = []
    for net, policy in ((theirs, "fp32"), (ours, Policy.fp8(recipe))):
        leaf = x.clone().requires_grad_()
        with simulate(policy, products="plain"):
            y = net(leaf)
            y.backward(g)
        gradients.append([y.detach(), leaf.grad, *(p.grad for p in net.parameters())])
    assert all(map(torch.equal, *gradients))


def squares(w, side=16):
    """A matrix in NVFP4 with a scale for each square, written out."""
    top, done = w.abs().max() / (448 * 6), torch.empty_like(w)
    for i in range(0, w.shape[0], side):
        for j in range(0, w.shape[1], side):
            part = w[i : i + side, j : j + side]
            scale = (part.abs().max() / (6 * top)).to(torch.float8_e4m3fn).float() * top
            done[i : i + side, j : j + side] = roundoff.round(part / scale, "e2m1_finite") * scale
    return done


@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "mxfp4", "mxfp8_e4m3_rceil"])
def test_the_mx_recipe_rounds_all_operands_along_what_is_summed_and_no_results(fmt):
    layer, x, g = torch.nn.Linear(96, 64, bias=False), numbers(40, 96), numbers(40, 64)
    x.requires_grad_()
    with simulate(Policy.mx(fmt), products="plain"):
        y = layer(x)
        y.backward(g)
    w, of_x = layer.weight.detach(), x.detach()

    def along(x, axis):
        return roundoff.round(x.movedim(axis, -1).contiguous(), fmt).movedim(-1, axis)

    assert torch.equal(y, F.linear(along(of_x, 1), along(w, 1)))
    assert torch.equal(x.grad, along(g, 1) @ along(w, 0))
    assert torch.equal(layer.weight.grad, along(g, 0).t() @ along(of_x, 0))


def test_the_nvfp4_recipe():
    layer, x, g = torch.nn.Linear(48, 32, bias=False), numbers(64, 48), numbers(64, 32)
    x.requires_grad_()
    gradients = []
    for step in range(300):
        x.grad = layer.weight.grad = None
        with simulate(Policy.nvfp4(), products="plain") as simulation:
            simulation.step = step
            y = layer(x)
            y.backward(g)
        gradients.append((x.grad, layer.weight.grad))
    w, of_x = squares(layer.weight.detach()), x.detach()
    assert torch.equal(w, squares(layer.weight.detach().t()).t())
    torch.testing.assert_close(y, F.linear(roundoff.round(of_x, "nvfp4"), w), rtol=1e-5, atol=1e-5)
    # Rounded stochastically, gradients are right on the average; each is another one.
    of_input, of_weight = (torch.stack(of) for of in zip(*gradients, strict=True))
    assert not torch.equal(of_input[0], of_input[1])
    assert not torch.equal(of_weight[0], of_weight[1])
    error = (of_input.mean(0) - g @ w).abs().max()
    assert error < 5 * (of_input.std(0).max() / 300**0.5)
    turned = rotated(roundoff.round(rotated(of_x, 0, 16), "nvfp4_ax0"), 0, 16)  # no inverse: the same on the other side
    assert turned.shape == of_x.shape
    expected = g.t() @ of_x
    assert (of_weight.mean(0) - expected).norm() / expected.norm() < 0.15


def test_a_rotation_of_both_operands_leaves_their_product():
    a, b = numbers(7, 40).double(), numbers(40, 5).double()
    torch.testing.assert_close(rotated(a, -1, 16) @ rotated(b, -2, 16), a @ b)
    spike = torch.zeros(1, 16)
    spike[0, 3] = 1
    assert torch.equal(rotated(spike, 1, 16).abs(), torch.full((1, 16), 0.25))
    assert set(rotated(torch.eye(16), 1, 16)[:, 0].tolist()) == {-0.25, 0.25}  # signs, before Hadamard's first column
    assert torch.equal(rotated(a, -1, 64), a)  # nothing as long as that


def test_operands_are_rotated_both_or_not_at_all():
    x, g = numbers(64, 48), numbers(64, 32)
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 32, bias=False)
    half = Rule(role="activations", product="grad-weight", format="nvfp4", hadamard=16)
    both = (half, Rule(role="gradients", product="grad-weight", format="nvfp4", hadamard=16))
    found = []
    for rules in ((half,), both):
        layer.weight.grad = None
        with simulate(Policy("fp32").with_rules(*rules), products="plain"):
            layer(x).backward(g)
        found.append(layer.weight.grad)
    assert torch.equal(found[0], g.t() @ roundoff.round(x, "nvfp4_ax0"))
    seen = [roundoff.round(rotated(t, 0, 16), "nvfp4_ax0") for t in (g, x)]
    torch.testing.assert_close(found[1], seen[0].t() @ seen[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [12, True, 1])
def test_mistakes_about_rotations_are_named(size):
    with pytest.raises(FormatError, match="hadamard is for one product"):
        Rule(role="gradients", format="nvfp4", hadamard=16)
    with pytest.raises(FormatError, match=f"a power of two from 2, got {size}"):
        Rule(role="gradients", product="grad-input", format="nvfp4", hadamard=size)


@pytest.mark.parametrize("preset", [{"preset": "mx", "format": "mxfp4"}, {"preset": "nvfp4", "but": "*head"}])
def test_recipes_are_read_from_files(preset):
    policy = Policy.parse(preset)
    assert policy == (Policy.mx("mxfp4") if preset["preset"] == "mx" else Policy.nvfp4(but="*head"))
    assert Policy.parse(policy.as_json()) == policy


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "int8_row", "bfp8_16"])
def test_mixed_precision_in_a_format_with_scales_rounds_operands_alone(fmt):
    layer, x = torch.nn.Linear(32, 16, bias=False), numbers(8, 32)
    with simulate(Policy.mixed_precision(fmt), products="plain"):
        y = layer(x)
    seen = roundoff.round(x, fmt), roundoff.round(layer.weight.detach(), fmt)
    assert torch.equal(y, F.linear(*seen))


def test_bits_of_torchao_in_mxfp8():
    of_torchao = "torchao.prototype.mx_formats.mx_tensor"
    tensors = pytest.importorskip(of_torchao, reason="torchao is not installed", exc_type=ImportError)
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    sizes = torch.randint(-9, 9, (64, 3), generator=torch.Generator().manual_seed(0))
    x = numbers(64, 96) * 2.0 ** sizes.repeat_interleave(32, 1)
    for mode, suffix in ((ScaleCalculationMode.FLOOR, ""), (ScaleCalculationMode.RCEIL, "_rceil")):
        theirs = tensors.MXTensor.to_mx(x, torch.float8_e4m3fn, 32, mode).dequantize(torch.float32)
        assert torch.equal(theirs, roundoff.round(x, f"mxfp8_e4m3{suffix}"))
