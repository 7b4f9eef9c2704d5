"""Policies: what is rounded where, and what is said about rules that match nothing."""

import warnings

import pytest
import torch
from torch.nn import functional as F

import roundoff
from roundoff import Policy, PolicyWarning, Rule, simulate
from roundoff.formats import FormatError
from roundoff.simulate.native import library
from roundoff.simulate.policy import places
from roundoff.simulate.policy.rules import Role


def is_of(x, fmt):
    return bool((roundoff.round(x.detach(), fmt) == x.detach()).all())


def values(n=64, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def test_later_rules_win_and_what_is_not_set_stays():
    policy = Policy(
        "e5m10", rules=(Rule("mm", format="e5m7"), Rule("mm", rounding="toward-zero"), Rule("m?", format="e5m6"))
    )
    arithmetic, matched = policy.arithmetic("mm")
    assert str(arithmetic.format) == "e5m6"
    assert arithmetic.rounding == "toward-zero"
    assert len(matched) == 3
    assert str(policy.arithmetic("add")[0].format) == "e5m10"


@pytest.mark.parametrize("name", ["add", "add_", "_foreach_add_", "_foreach_add"])
def test_a_name_means_the_in_place_and_list_versions_too(name):
    assert Rule("add", format="e5m2").matches(name, "", Role.FORWARD)
    assert not Rule("add", format="e5m2").matches("addmm", "", Role.FORWARD)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("head", "Net.head", True),
        ("Net.head", "Net.head", True),
        ("body", "Net.body.0", True),
        ("body.0", "Net.body.0", True),
        ("*.0", "Net.body.0", True),
        ("body.1", "Net.body.0", False),
        ("0", "Net.body.0", False),
        ("head", "", False),
        ("Net", "Net.body.0", True),
    ],
)
def test_a_module_is_meant_with_all_that_lies_in_it(pattern, path, expected):
    assert Rule(module=pattern, format="e5m2").matches_module(path) is expected


def test_operations_have_their_own_formats():
    x = values()
    with simulate(Policy("e5m10", rules=(Rule(["exp", "mul"], format="e5m3"), Rule("tanh", format="fp32")))):
        assert is_of(x.exp(), "e5m3")
        assert is_of(x * 1.1, "e5m3")
        sine = x.sin()
        assert is_of(sine, "e5m10")
        assert not is_of(sine, "e5m3")
        untouched = x.tanh()
    assert torch.equal(untouched, x.tanh())


def test_of_many_calls_the_latest_keep_their_modules_in_the_backward_pass(monkeypatch):
    """Half of what is known of modules is forgotten at a time, the oldest half."""
    monkeypatch.setenv(library.VARIABLE, "0")
    rule, x, found = Rule(module="Net.body.2", role="backward", format="e5m2"), values(12).view(2, 6), []
    for most in (places._MOST_CHANGES, 64):
        monkeypatch.setattr(places, "_MOST_CHANGES", most)
        net = Net()
        with simulate(Policy("e5m10").with_rules(rule)):
            for _ in range(40):
                y = net(x)
            y.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    assert torch.equal(*found)


def test_modules_have_their_own_formats_in_forward_and_backward():
    net, x = Net(), values(24).view(4, 6)
    with simulate(Policy("e5m10", rules=(Rule(module="head", format="e5m4"),))) as simulation:
        net(x).square().sum().backward()
    table = simulation.audit().table
    head = table[table["module"] == "Net.head"]
    assert {"forward", "backward"} <= set(head["role"])
    assert set(head["format"]) == {"e5m4"}
    assert set(table[table["module"] != "Net.head"]["format"]) == {"e5m10"}
    # The gradient of the head's bias is a sum of the backward pass of the head.
    assert is_of(net.head.bias.grad, "e5m4")
    assert is_of(net.head.weight.grad, "e5m4")
    assert is_of(net.body[0].weight.grad, "e5m10")
    assert not is_of(net.body[0].weight.grad, "e5m4")


def test_roles_have_their_own_formats():
    net, x = Net(), values(24).view(4, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    before = net.head.weight.detach().clone()
    rules = (Rule(role="backward", format="e5m4"), Rule(role="optimizer", format="fp32"))
    with simulate(Policy("e5m10", rules=rules)):
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
    assert is_of(loss, "e5m10")
    assert not is_of(loss, "e5m4")
    assert is_of(net.head.weight.grad, "e5m4")
    assert torch.equal(net.head.weight.detach(), torch.add(before, net.head.weight.grad, alpha=-0.1))
    assert not is_of(net.head.weight, "e5m10")


def test_parameters_and_inputs_are_seen_rounded_and_left_as_they_are():
    net, x = Net(), values(24).view(4, 6)
    kept, data = net.head.weight.detach().clone(), x.clone()
    rules = (Rule(role="parameters", format="e5m3"), Rule(role="inputs", format="e5m2"))
    with simulate(Policy("fp32", rules=rules)):
        y = net(x)
        y.sum().backward()
    assert torch.equal(net.head.weight.detach(), kept)
    assert torch.equal(x, data)
    expected = Net()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.copy_(roundoff.round(parameter, "e5m3"))
    reference = expected(roundoff.round(x, "e5m2"))
    reference.sum().backward()
    assert torch.equal(y, reference)
    assert torch.equal(net.body[0].weight.grad, expected.body[0].weight.grad)


def test_mixed_precision_is_close_to_autocast():
    """bfloat16 autocast on the CPU computes products of rounded operands, and rounds them; so does the policy."""
    net, x = Net(), values(24).view(4, 6)
    with simulate(Policy.mixed_precision("bf16")):
        product = torch.nn.functional.linear(x, net.head.weight[:, :6], net.head.bias)
        exact = product.exp()
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.nn.functional.linear(x, net.head.weight[:, :6], net.head.bias)
    assert is_of(product, "bf16")
    assert not is_of(exact, "bf16")
    torch.testing.assert_close(product, expected.float(), rtol=2**-7, atol=0)


def test_mixed_precision_keeps_master_weights_and_rounds_gradients():
    net, x = Net(), values(24).view(4, 6)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    with simulate(Policy.mixed_precision("e5m7")):
        net(x).square().mean().backward()
        assert is_of(net.body[0].weight.grad, "e5m7")
        optimizer.step()
    assert not is_of(net.body[0].weight, "e5m7")


@pytest.mark.parametrize("foreach", [True, False])
def test_storage_rounds_layers_gradients_and_whole_steps(foreach):
    net, x = Net(), values(24).view(4, 6)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, foreach=foreach)
    inside = {}
    with simulate(Policy.storage("e5m7")):
        inside["linear"] = net.body[0](x)
        inside["tanh"] = inside["linear"].tanh()
        net(x).square().mean().backward()
        optimizer.step()
    assert is_of(inside["linear"], "e5m7")
    assert not is_of(inside["tanh"], "e5m7")
    for parameter in net.parameters():
        assert is_of(parameter, "e5m7")
        assert is_of(parameter.grad, "e5m7")
        assert is_of(optimizer.state[parameter]["exp_avg_sq"], "e5m7")
    assert optimizer.state[net.head.weight]["step"] == 1


def test_storage_equals_quantizers_inserted_by_hand():
    net, by_hand, x = Net(), Net(), values(24).view(4, 6)
    with simulate(Policy.storage("e5m5")):
        y = net(x)

    def layer(linear, x):
        return roundoff.round(linear(x), "e5m5")

    expected = layer(by_hand.head, layer(by_hand.body[2], layer(by_hand.body[0], x).tanh()).tanh())
    assert torch.equal(y, expected)


def test_scalars_are_exact_unless_asked():
    x = torch.ones(3)
    with simulate("e5m10"):
        assert torch.equal(x * 65504 * (1 / 65504), torch.ones(3))
    with simulate("e5m2", scalars="rounded") as simulation:
        assert torch.equal(x * 1.1, torch.ones(3))
        assert torch.equal(torch.add(x, x, alpha=0.30), torch.full((3,), 1.25))
    with simulate("e5m2"):
        assert torch.equal(x * 1.13, torch.full((3,), 1.25))
    assert "mul" in str(simulation.audit())


def test_operands_in_a_block_format_lie_along_the_contraction():
    a, b = values(4 * 64).view(4, 64), values(64 * 3, seed=1).view(64, 3) * torch.logspace(-3, 3, 3)
    with simulate(Policy("fp32", rules=(Rule("mm", operands="mxfp8_e4m3"),))):
        product = a @ b
    rounded_b = roundoff.round(b.t().contiguous(), "mxfp8_e4m3").t()
    assert torch.equal(product, roundoff.round(a, "mxfp8_e4m3") @ rounded_b)


def test_stochastic_rounding_is_repeatable_and_unbiased():
    def program():
        x = torch.full((40_000,), 1.0)
        return x + 2.0**-5, x + 2.0**-5

    with simulate("e5m3", rounding="stochastic", seed=7) as first:
        one = program()
    with simulate("e5m3", rounding="stochastic", seed=7) as second:
        again = program()
    with simulate("e5m3", rounding="stochastic", seed=8):
        other = program()
    assert torch.equal(one[0], again[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], other[0])
    assert is_of(one[0], "e5m3")
    # a quarter of an ulp: a quarter of 40 000 coins, 8 standard deviations wide
    assert abs((one[0] > 1).sum().item() - 10_000) < 700
    first.step = second.step = 5
    with first:
        later = program()
    with second:
        assert torch.equal(program()[0], later[0])
    assert not torch.equal(later[0], one[0])


def test_stochastic_rounding_continues_in_the_middle():
    def run(steps, x):
        simulation = simulate("e5m4", rounding="stochastic", seed=1)
        for step in steps:
            simulation.step = step
            with simulation:
                x = x * 1.01
        return x

    start = values().abs()
    assert torch.equal(run(range(6), start), run(range(3, 6), run(range(3), start)))


def test_flush_to_zero_and_saturation_are_formats():
    x = torch.tensor([2.0**-15, 60000.0])
    with simulate("e5m10_nosub"):
        assert torch.equal(x * torch.tensor([0.9, 2.0]), torch.tensor([0.0, float("inf")]))
    with simulate("e5m10_saturate"):
        assert (x * 2)[1] == 65504


def test_a_rule_that_matches_nothing_is_a_warning():
    with (
        pytest.warns(PolicyWarning, match=r"operation=softmaxx.*operations that ran: mul"),
        simulate(Policy("e5m10", rules=(Rule("softmaxx", format="fp32"),))) as simulation,
    ):
        values() * 2
    assert [str(rule) for rule in simulation.unused_rules()] == ["operation=softmaxx, format=fp32"]
    with warnings.catch_warnings(), simulation:  # said once
        warnings.simplefilter("error")
        values() * 2


def test_a_rule_for_a_module_that_never_ran_is_a_warning():
    with (
        pytest.warns(PolicyWarning, match="module=haed"),
        simulate(Policy("e5m10", rules=(Rule(module="haed", format="fp32"),))),
    ):
        Net()(values(24).view(4, 6))


def test_the_audit_names_every_operation_and_its_treatment():
    with simulate("e5m10") as simulation:
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        x.t().exp().relu().argmax()
        torch.empty(3)
        torch.tensor([0.1])
    treatments = dict(zip(simulation.audit().table["operation"], simulation.audit().table["treatment"], strict=True))
    assert treatments == {
        "aten.randn.generator": "rounded",
        "aten.t.default": "unrounded: a view",
        "aten.exp.default": "rounded",
        "aten.relu.default": "exact move",
        "aten.argmax.default": "unrounded: no floating-point results",
        "aten.empty.memory_format": "unrounded: memory without values, or zeros",
        "aten.lift_fresh.default": "rounded",
    }
    with simulate(Policy("fp32", rules=(Rule("exp", format="e5m2"),))) as simulation:
        x.sin().exp()
    assert "left in the carrier" in str(simulation.audit())


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"preset": "everyop"}, "policy.preset must be every-op, storage, .*, fp8-rowwise.*, got 'everyop'"),
        ({"formt": "e5m10"}, "unknown key 'formt': allowed are accumulate, but, exact_in, finfo, format"),
        ({"rules": {"operation": "mm"}}, "policy.rules must be a list"),
        ({"rules": [{"operation": "mm"}]}, r"policy.rules\[0\]: a rule must set one of format"),
        (
            {"rules": [{"operation": "mm", "format": "e5m10"}, {"role": "fwd", "format": "e5m2"}]},
            r"rules\[1\]: role of a",
        ),
        ({"rules": [{"operation": "mm", "format": "e5m1O"}]}, r"rules\[0\]: .*e5m1O"),
        ({"rules": [{"operation": 3, "format": "e5m10"}]}, "operation of a rule must be a pattern"),
        ({"rules": [{"role": "inputs", "scalars": "exact", "format": "e5m2"}]}, "sets their format, .*nothing else"),
        ({"rules": [{"role": "gradients", "rounding": "up"}]}, "sets their format, .*nothing else"),
        ({"rules": [{"product": "output", "format": "e5m2"}]}, "product is for weights, activations, gradients"),
        ({"rules": [{"role": "inputs", "product": "output", "format": "e5m2"}]}, "product is for weights"),
        (
            {"rules": [{"role": "weights", "product": "grad", "format": "e5m2"}]},
            "product of a rule must be output, grad-input, grad-weight, got 'grad'",
        ),
        ({"granularity": "fine"}, "granularity must be kernel, primitive, got 'fine'"),
        ({"scalars": "maybe"}, "scalars must be exact, once, rounded"),
        ({"rounding": "nearest-evn"}, "did you mean 'nearest-even'"),
        (["e5m10"], "policy must be a mapping"),
    ],
)
def test_mistakes_are_named(description, message):
    with pytest.raises(FormatError, match=message):
        Policy.parse(description, "e5m10")
    with pytest.raises(FormatError, match="rules of a policy must be a list or tuple of Rule objects, got "):
        Policy("e5m10", rules=description)


@pytest.mark.parametrize(
    "policy",
    [
        Policy("e5m10"),
        Policy.storage("e5m4"),
        Policy.mixed_precision("bf16"),
        Policy.fp8("rowwise-with-gw-hp", "bf16"),
        Policy("fp32").with_rules(Rule("mm", role="gradients", product="grad-input", format="e5m2", rounding="up")),
        Policy("e5m10", rounding="stochastic", granularity="primitive", scalars="rounded", accumulate="e5m10/32"),
        Policy("e5m10").with_rules(Rule(["mm", "add*"], module="head", role=["forward", "backward"], operands="mxfp4")),
    ],
)
def test_a_policy_goes_through_plain_data_and_back(policy):
    assert Policy.parse(policy.as_json()) == policy
    assert str(policy.format) in str(policy)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise-with-gw-hp", "blockwise", "blockwise-pow2"])
def test_recipes_are_presets(recipe):
    assert (
        Policy.parse({"preset": f"fp8-{recipe}"}) == Policy.fp8(recipe) == Policy.fp8(recipe.replace("-", "_"), "fp32")
    )
    assert Policy.parse({"preset": f"fp8-{recipe}"}, "bf16") == Policy.fp8(recipe, "bf16")
    with pytest.raises(
        FormatError, match=r"recipe must be tensorwise, rowwise, rowwise-with-gw-hp, blockwise, .*, got 'columnwise'"
    ):
        Policy.fp8("columnwise")


def test_int8_is_the_integer_arithmetic_of_inference_engines():
    """On odd sizes: integers multiplied and added as such, with a scale for each token and each output channel."""
    x, layer = torch.randn(3, 7, 33, dtype=torch.float64), torch.nn.Linear(33, 13, dtype=torch.float64)
    g, leaf = torch.randn(3, 7, 13, dtype=torch.float64), x.clone().requires_grad_()
    with simulate(Policy.int8()):
        y = layer(leaf)
    y.backward(g)
    codes, scales = {}, {}
    for name, rows in (("x", x), ("w", layer.weight.detach())):
        scales[name] = rows.abs().amax(-1, keepdim=True) / 127
        codes[name] = (rows / scales[name]).round().to(torch.int64)
    expected = (codes["x"] @ codes["w"].T) * scales["x"] * scales["w"].T + layer.bias.detach()
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(y, layer(x), rtol=1e-4, atol=1e-4)
    assert torch.allclose(leaf.grad, g @ layer.weight, rtol=1e-12, atol=1e-12)
    assert Policy.parse("int8-rowwise") == Policy.parse({"preset": "int8-rowwise"}, "fp32") == Policy.int8()
    assert Policy.parse({"preset": "int8-rowwise", "but": "*head"}, "bf16") == Policy.int8("bf16", but="*head")


class Autoencoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 2)

    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.head(self.encode(x))


def modules_reached(program, pattern, **options):
    """The modules of which a rule rounded something, and the warnings."""
    simulation = simulate(Policy("fp32").with_rules(Rule(module=pattern, format="e5m7")), **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with simulation:
            program()
    texts = [str(warning.message) for warning in warned if issubclass(warning.category, PolicyWarning)]
    return sorted({plan.module for plan in simulation.plans() if plan.outcome.rounded}), texts


def test_the_root_of_modules_can_be_named():
    net, x = Autoencoder(), torch.randn(3, 4)
    reached, texts = modules_reached(lambda: net.encode(x), "encoder")
    assert reached == []
    assert "modules that ran: Sequential, Sequential.0, Sequential.1" in texts[0]
    assert "simulate(..., root=network)" in texts[0]
    reached, texts = modules_reached(lambda: net.encode(x), "encoder", root=net)
    assert reached == ["Autoencoder.encoder.0", "Autoencoder.encoder.1"]
    assert not texts
    other = torch.nn.Linear(4, 4)
    reached, _ = modules_reached(lambda: other(net.encode(x)), ["encoder.0", "Linear"], root=[net, other])
    assert reached == ["Autoencoder.encoder.0", "Linear"]
    with pytest.raises(FormatError, match=r"root must be a torch.nn.Module, or a list of them, got 'net'"):
        simulate("e5m10", root="net")


def test_a_part_that_was_called_first_is_named_again_with_the_whole():
    net, x = Autoencoder(), torch.randn(3, 4)
    reached, texts = modules_reached(lambda: (net.head(x), net(x)), "head")
    assert reached == ["Autoencoder.head"]
    assert not texts
    reached, _ = modules_reached(lambda: (net.head(x), net(x)), "head", root=net)
    assert reached == ["Autoencoder.head"]
    shared = Autoencoder()
    shared.encoder = net.encoder  # what stands in two networks is named from the first
    reached, _ = modules_reached(lambda: (net(x), shared(x)), "encoder")
    assert reached == ["Autoencoder.encoder.0", "Autoencoder.encoder.1"]


@pytest.mark.parametrize("wrap", ["whole", "part", "replicated", "checkpointed"])
def test_wrappers_have_no_part_in_names(wrap):
    net, x = Autoencoder(), torch.randn(3, 4)
    if wrap == "whole":
        called = torch.compile(net)
    elif wrap == "part":
        called = net
        net.head = torch.compile(net.head)
    elif wrap == "replicated":
        called = torch.nn.DataParallel(net)
    else:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        called = net
        net.head = checkpoint_wrapper(net.head)
    reached, texts = modules_reached(lambda: called(x), "head")
    assert reached == ["Autoencoder.head"]
    assert not texts
    reached, texts = modules_reached(lambda: called(x), "head", root=called)
    assert reached == ["Autoencoder.head"]


def test_products_that_no_rule_about_products_names_are_named():
    a, b = torch.randn(2, 8, 8), torch.randn(2, 8, 8)
    rules = Rule(["mm", "addmm"], operands="e4m3")

    def program():
        return a[0] @ b[0], torch.bmm(a, b), torch.nn.functional.conv1d(a, b)

    simulation = simulate(Policy("e5m10").with_rules(rules))
    said = pytest.warns(PolicyWarning, match="none names bmm, convolution, which also ran; .*CONTRACTIONS")
    with said, simulation:
        program()
    with simulation:
        program()  # said once
    for policy in (
        Policy("fp32").with_rules(
            rules, Rule(["bmm", "convolution"], module="nowhere*", role="backward", format="e4m3")
        ),
        Policy("fp32").with_rules(Rule(role="backward", operands="e4m3")),
        Policy.mixed_precision("e4m3"),
        Policy.storage("e4m3"),
        Policy("e4m3", accumulate="e5m10"),
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*matched nothing")
            with simulate(policy):
                program()


def test_accumulators_of_another_mode_than_results_say_so():
    """1 + 1/8 lies halfway between two numbers of e5m2, and an accumulator takes the even one in every mode."""
    a, b = torch.tensor([[1.0, 0.125]]), torch.ones(2, 1)
    said = pytest.warns(PolicyWarning, match="rounding up applies to results: an accumulator rounds its sums")
    with said, simulate("e5m2", accumulate="e5m2", rounding="up") as simulation:
        assert a @ b == 1
        a + 1
    table = simulation.audit().table.set_index("operation")["treatment"]
    assert table["aten.mm.default"] == "rounded, and accumulated to nearest-even"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for settings in ({"accumulate": "e5m2"}, {"accumulate": "quire", "rounding": "up"}):
            with simulate("e5m2", **settings) as simulation:
                a @ b
            table = simulation.audit().table.set_index("operation")["treatment"]
            assert table["aten.mm.default"] == "rounded, and accumulated"
        with simulate("e5m2", accumulate="e5m2", rounding="up"):
            a + 1


def test_products_that_no_accumulator_reaches_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    weight = torch.randn(5, 4)
    said = pytest.warns(PolicyWarning, match="the accumulator of the policy does not reach linear")
    with said, simulate("e5m10", accumulate="e5m10"):
        torch.nn.functional.linear(nested, weight)
    with simulate("e5m10", accumulate="e5m10"):
        torch.ones(3, 4, dtype=torch.long) @ torch.ones(4, 3, dtype=torch.long)
        torch.nn.functional.linear(weight, weight)


X = torch.linspace(-1, 1, 24).reshape(4, 6)
INDEX = torch.tensor([0, 2, 2, 1])
HIDDEN_SUMS = {
    "mse_loss": lambda: F.mse_loss(X, X + 1),
    "nll_loss_forward": lambda: F.nll_loss(X, INDEX),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(X.abs(), X.abs()),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(X, X + 1, reduction="sum"),
    "_log_softmax": lambda: X.log_softmax(1),
    "native_layer_norm": lambda: F.layer_norm(X, (6,)),
    "native_batch_norm": lambda: F.batch_norm(X, None, None, training=True),
    "var": X.var,
    "linalg_vector_norm": lambda: torch.linalg.vector_norm(X),
    "_foreach_norm": lambda: torch._foreach_norm([X, X]),
    "nansum": X.nansum,
    "cumsum": lambda: X.cumsum(1),
    "scatter_add": lambda: torch.zeros(4, 6).scatter_add(0, INDEX[:, None].expand(4, 6), X),
    "index_add": lambda: torch.zeros(4, 6).index_add(0, INDEX, X),
    "index_put": lambda: torch.zeros(4, 6).index_put((INDEX,), X, accumulate=True),
    "_embedding_bag_forward_only": lambda: F.embedding_bag(INDEX[None], X),
    "avg_pool2d": lambda: F.avg_pool2d(X[None, None], 2),
    "sum": (X + 1j).sum,
}
NO_SUMS = {
    "mse_loss": lambda: F.mse_loss(X, X + 1, reduction="none"),
    "index_put": lambda: torch.zeros(4, 6).index_put((INDEX,), X),
    "scatter": lambda: torch.zeros(4, 6).scatter(0, INDEX[:, None].expand(4, 6), X),
    "cumsum": lambda: INDEX.cumsum(0),
    "sum": lambda: X.sum() + X.mean(),
}


@pytest.mark.parametrize("name", HIDDEN_SUMS)
def test_sums_that_no_accumulator_reaches_are_named(name):
    said = pytest.warns(PolicyWarning, match=rf"the accumulator of the policy does not reach {name}: sums were taken")
    with said, simulate("e5m10", accumulate="e5m10") as simulation:
        HIDDEN_SUMS[name]()
    treatments = [plan.kind() for plan in simulation.plans() if plan.name == name]
    assert any(treatment.endswith("; sums in the carrier") for treatment in treatments)


@pytest.mark.parametrize("name", NO_SUMS)
def test_what_adds_up_nothing_or_is_accumulated_is_not_named(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with simulate("e5m10", accumulate="e5m10") as simulation:
            NO_SUMS[name]()
    assert not any("in the carrier" in plan.kind() for plan in simulation.plans())


def test_primitive_granularity_makes_sums_that_an_accumulator_reaches():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with simulate("e5m10", accumulate="e5m10", granularity="primitive") as simulation:
            for name in ("mse_loss", "_log_softmax", "native_layer_norm", "var", "linalg_vector_norm"):
                HIDDEN_SUMS[name]()
    assert any(plan.outcome.accumulated for plan in simulation.plans() if plan.name == "sum")


@pytest.mark.parametrize(
    ("rule", "alone"),
    [
        (Rule(role="backward", format="e5m2"), True),
        (Rule("mul", role=["forward", "optimizer"], format="e5m2"), True),
        (Rule(module="head", role="forward", format="e5m2"), False),
        (Rule("optimizer_step", format="e5m2"), False),
        (Rule("optimizer_*", format="e5m2"), False),
        (Rule("**", role="optimizer", format="e5m2"), False),
    ],
)
def test_whether_of_places_the_role_alone_matters(rule, alone):
    """A step of an optimizer as a whole is a place of its own, by whatever pattern it is meant."""
    assert Policy("e5m10", rules=(rule,)).depends_on_roles_alone is alone
