"""What counts as a weight, wherever it comes from: each program has the bits of the plain layer that it amounts to."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from roundoff import Policy, PolicyWarning, Rule, simulate

RECIPE = Policy.fp8("rowwise")
INPUTS = Policy("fp32").with_rules(Rule(role="inputs", format="e4m3"))
PARAMETERS = Policy("fp32").with_rules(Rule(role="parameters", format="e4m3"))


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def layer():
    torch.manual_seed(0)
    return nn.Linear(32, 16, bias=False)


def simulated(program, policy=RECIPE):
    with simulate(policy, products="plain"):
        return program()


def frozen(x):
    return layer().requires_grad_(False)(x)


def copied(x):
    return copy.deepcopy(layer()).requires_grad_(False)(x)


def buffered(x):
    module = nn.Module()
    module.register_buffer("w", layer().weight.detach())
    module.forward = lambda x: F.linear(x, module.w)
    return module(x)


def averaged(x):
    average = torch.optim.swa_utils.AveragedModel(layer())
    average.update_parameters(layer())
    return average(x)


def low_rank(x):
    w, a, b = layer(), nn.Parameter(torch.zeros(4, 32)), nn.Parameter(torch.zeros(16, 4))
    return F.linear(x, w.weight + b @ a)


def in_inference(x):
    with torch.inference_mode():
        return layer()(x).clone()


def without_gradients(x):
    with torch.no_grad():
        return layer()(x)


def called_with_tensors(x):
    w = layer()
    return torch.func.functional_call(w, {"weight": w.weight.detach().clone()}, (x,))


def loaded(x):
    w = nn.Linear(32, 16, bias=False).requires_grad_(False)
    w.weight.data.copy_(layer().weight.detach().clone())
    return w(x)


def pruned(x):
    w = layer()
    prune.random_unstructured(w, "weight", amount=1)
    w.weight_mask.fill_(1)
    return w(x)


class Noisy(nn.Module):
    """A noisy layer as in Rainbow, its noise drawn at each call; here without effect, so that bits can be compared."""

    def __init__(self, *, fresh):
        super().__init__()
        self.mean, self.scale, self.fresh = layer().weight, nn.Parameter(torch.zeros(16, 32)), fresh
        self.register_buffer("noise", torch.zeros(16, 32), persistent=not fresh)

    def forward(self, x):
        ends, starts = (torch.randn(size) for size in (16, 32))
        drawn = torch.outer(*(end.sign() * end.abs().sqrt() for end in (ends, starts)))
        if not self.fresh:
            self.noise.copy_(drawn)
            drawn = self.noise
        return F.linear(x, self.mean + self.scale * drawn)


SAME_AS_A_LAYER = {
    "frozen": frozen,
    "inference": in_inference,
    "no_grad": without_gradients,
    "a copy": copied,
    "a buffer": buffered,
    "an average": averaged,
    "elementwise": lambda x: F.linear(x, layer().weight * 1.0),
    "a cast there and back": lambda x: F.linear(x, layer().weight.double().float()),
    "parts": lambda x: F.linear(x, torch.cat(layer().weight.chunk(4))),
    "stacked": lambda x: torch.bmm(x[None], torch.stack([layer().weight]).mT)[0],
    "by index": lambda x: torch.bmm(x[None], layer().weight[None][torch.tensor([0])].mT)[0],
    "low rank": low_rank,
    "functional": called_with_tensors,
    "loaded into a frozen layer": loaded,
    "pruned": pruned,
    "noisy": Noisy(fresh=True),
    "noisy, its noise kept": Noisy(fresh=False),
    "noisy behind a hidden layer": lambda x: Noisy(fresh=True)(nn.Identity()(x) * 1.0),
}


@pytest.mark.parametrize("name", SAME_AS_A_LAYER)
def test_a_weight_is_one_wherever_it_comes_from(name):
    x = numbers(8, 32)
    expected = simulated(lambda: layer()(x))
    assert not torch.equal(expected, layer()(x))
    assert torch.equal(simulated(lambda: SAME_AS_A_LAYER[name](x)), expected)


@pytest.mark.parametrize("grad", [True, False])
def test_autocast_and_half_precision_multiply_rounded_weights(grad):
    x = numbers(8, 32)
    w = layer().requires_grad_(grad)
    half = copy.deepcopy(w).bfloat16()
    expected = simulated(lambda: half(x.bfloat16()), Policy.fp8("rowwise", "bf16"))
    assert not torch.equal(expected, half(x.bfloat16()))

    def autocast():
        with torch.autocast("cpu", torch.bfloat16):
            return w(x)

    assert torch.equal(simulated(autocast, Policy.fp8("rowwise", "bf16")), expected)


def gradients(network, policy, x, **options):
    network.zero_grad()
    with simulate(policy, products="plain", **options):
        network(x)[0].square().sum().backward()
    return [p.grad for p in network.parameters()]


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_an_lstm_multiplies_rounded_weights(recipe):
    torch.manual_seed(0)
    lstm, cell, x = nn.LSTM(8, 4), nn.LSTMCell(8, 4), numbers(1, 3, 8)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, name).copy_(getattr(lstm, name + "_l0"))
    policy = Policy.fp8(recipe)
    found, expected = gradients(lstm, policy, x), gradients(cell, policy, x[0])
    assert not torch.equal(found[0], gradients(lstm, Policy("fp32"), x)[0])
    # A cell's first state is multiplied in one product, without its gradient; all else is the layer's.
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_lstm_in_inference_mode_gives_what_it_gives_elsewhere(mode):
    torch.manual_seed(0)
    lstm, x = nn.LSTM(3, 16, num_layers=2, bidirectional=True), numbers(4, 5, 3)

    def run(policy):
        with mode(), simulate(policy, products="plain"):
            y, (h, c) = lstm(x)
            return y.clone(), h.clone(), c.clone()

    for policy in ("e8m7", PARAMETERS, Policy.mixed_precision("e5m10")):
        with simulate(policy, products="plain"):
            y, (h, c) = lstm(x)
        assert all(map(torch.equal, run(policy), (y, h, c)))


def test_every_parameter_of_an_lstm_is_seen_rounded():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(32, 16), numbers(4, 2, 32)
    rounded = copy.deepcopy(lstm)
    with torch.no_grad():
        for p in rounded.parameters():
            p.copy_(torch.from_numpy(p.numpy()))  # untouched if the next line does nothing
            p.copy_(simulated(lambda p=p: p.detach().clone() * 1, "e4m3"))
    torch.testing.assert_close(simulated(lambda: lstm(x)[0], PARAMETERS), rounded(x)[0])
    torch.testing.assert_close(simulated(lambda: lstm.requires_grad_(False)(x)[0], PARAMETERS), rounded(x)[0])


def test_half_precision_gradients_of_a_layer_kernel_are_no_island():
    """The kernel returns float32 gradients of what it computed in bfloat16, and reads a workspace of its own."""
    torch.manual_seed(0)
    shapes = (64, 3), (64, 16), (64,), (64,)
    leaves = [(torch.randn(shape) * 0.2).bfloat16() for shape in shapes]
    x, state = numbers(8, 5, 3).bfloat16(), torch.zeros(1, 5, 16, dtype=torch.bfloat16)

    def run(**options):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        with simulate("e8m7", **options):
            y = torch.ops.aten.mkldnn_rnn_layer.default(
                x, *given, state, state, False, [], 2, 16, 1, True, False, False, True
            )[0]
            y.float().sum().backward()
        return [p.grad for p in given]

    for ours, theirs in zip(run(islands="exact"), run(), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours.isnan().any()


TOKENS = torch.tensor([3, 1, 4, 1, 5])
ACTIVATIONS = {
    "an embedding": lambda e, w: F.linear(F.embedding(TOKENS, e), w),
    "rows of a table": lambda e, w: F.linear(e[TOKENS], w),
    "a table's rows after elementwise work": lambda e, w: F.linear(F.layer_norm(e[TOKENS] * 2, (32,)), w),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_looked_up_and_multiplied_with_a_parameter_is_an_activation(name):
    policy = Policy("fp32").with_rules(Rule(role="weights", format="e4m3"))
    e, w = nn.Parameter(numbers(9, 32)), layer().weight
    rounded = simulated(lambda: w.detach().clone(), Policy("e4m3"))
    assert torch.equal(simulated(lambda: ACTIVATIONS[name](e, w), policy), ACTIVATIONS[name](e, rounded))


@pytest.mark.filterwarnings("ignore:rules about weights found none")
def test_memory_that_data_are_written_to_holds_no_weight():
    module = nn.Module()
    module.register_buffer("cache", numbers(4, 32))

    def forward(x):
        module.cache.copy_(x * 2)
        return x @ module.cache.T

    module.forward = forward
    x = numbers(4, 32, seed=1)
    assert torch.equal(simulated(lambda: module(x)), x @ (x * 2).T)
    assert torch.equal(simulated(lambda: module(x)), x @ (x * 2).T)


VIEWS = {
    "a part": lambda x: x[8:16],
    "a chunk": lambda x: x.chunk(4)[0],
    "a shape": lambda x: x.view(2, 32, 32),
    "flattened": lambda x: x.view(64, 1, 32).flatten(1),
    "rows": lambda x: torch.stack([x[0], x[1]]),
    "a batch": lambda x: next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 8)))[0],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_input_is_an_input(name):
    x, w = numbers(64, 32), layer()
    rounded = simulated(x.clone, Policy("e4m3"))

    def program(x):
        x.view(-1)  # looking at an input another way leaves it one
        return w(VIEWS[name](x))

    assert torch.equal(simulated(lambda: program(x), INPUTS), program(rounded))


def test_what_was_written_inside_is_no_input():
    x = numbers(64, 32)

    def program(x):
        x.mul_(1.5)
        return x[:8] + 0

    assert torch.equal(simulated(lambda: program(x.clone()), INPUTS), program(simulated(lambda: x * 1, INPUTS)))


def test_the_audit_says_what_operands_were_rounded_to():
    net, x = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)), numbers(8, 32)
    with simulate(Policy.fp8("tensorwise", "bf16")) as simulation:
        net(x).square().sum().backward()
    table = simulation.audit().table.set_index(["operation", "role"])
    e4m3, e5m2 = "e4m3fn_tensor", "e5m2_tensor"
    assert set(table.loc[("aten.addmm.default", "forward"), "operands"]) == {
        f"output: activations {e4m3}, weights {e4m3}"
    }
    backward = set(table.loc[("aten.mm.default", "backward"), "operands"])
    assert (
        f"grad-input: gradients {e5m2}, weights {e4m3}; grad-weight: activations {e4m3}, gradients {e5m2}" in backward
    )
    assert table.loc[("aten.relu.default", "forward"), "operands"] == ""


def test_products_that_a_recipe_did_not_reach_are_named():
    x, w = numbers(8, 32), layer().weight.detach()
    with pytest.warns(PolicyWarning, match=r"found no weight in mm \(outside of modules\): a weight is a parameter"):
        simulated(lambda: (layer()(x), x @ w.T))
    with pytest.warns(PolicyWarning, match=r"found none in mm \(outside of modules\)"):
        simulated(lambda: x @ w.T)


def test_complex_operands_that_a_recipe_leaves_are_named():
    x = torch.complex(numbers(8, 32), numbers(8, 32))
    policy = Policy("fp32").with_rules(Rule(role="weights", format="e4m3"))
    complex_numbers = r"operands of complex numbers are not rounded, .*: in mm$"
    with (
        pytest.warns(PolicyWarning, match="found no weight"),
        pytest.warns(PolicyWarning, match=complex_numbers),
    ):
        simulated(lambda: (layer()(numbers(8, 32)), x @ x.T), policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with simulate(policy, products="plain") as simulation:
            layer()(numbers(8, 32)), x @ x.T
    assert "complex unrounded" in str(simulation.audit())


def test_nothing_is_said_of_attention_and_of_frequencies_of_positions():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(32, 96)
            self.register_buffer("frequencies", numbers(1, 16), persistent=False)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            angles = torch.arange(len(x)).float()[:, None] @ self.frequencies
            scores = q @ k.T + angles.sum()
            return scores.softmax(-1) @ v

    with warnings.catch_warnings():
        warnings.simplefilter("error", PolicyWarning)
        with simulate(RECIPE):
            Attention()(numbers(8, 32))


def test_modules_can_be_left_out_of_a_recipe():
    class Network(nn.Sequential):
        pass

    torch.manual_seed(0)
    net, x = Network(nn.Linear(32, 16), nn.Linear(16, 4)), numbers(8, 32)
    found = simulated(lambda: net(x), Policy.fp8("rowwise", but="1"))
    assert torch.equal(found, net[1](simulated(lambda: net[0](x))))
    parsed = Policy.parse({"preset": "fp8-rowwise", "but": ["1"]})
    assert parsed == Policy.fp8("rowwise", but="1") == Policy.parse(parsed.as_json())


@pytest.mark.parametrize("pattern", ["*norm*", "*self_attn", "*linear1"])
def test_rules_about_modules_hold_where_pytorch_has_a_kernel_for_all_of_them(pattern):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), 2).eval()
    x = numbers(1, 8, 32)
    policy = Policy("fp32").with_rules(Rule(module=pattern, format="e4m3"))
    expected = simulated(lambda: encoder(x), policy)
    assert not torch.equal(expected, encoder(x))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(simulated(lambda: encoder(x).clone(), policy), expected)
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_engine_has_its_weights_in_the_format():
    x, w, engine = numbers(8, 32).bfloat16(), layer(), Policy.engine("bf16")
    native = copy.deepcopy(w).bfloat16()
    with torch.no_grad():
        assert torch.equal(simulated(lambda: w(x.float()), engine), native(x).float())
    assert not torch.equal(simulated(lambda: w(x.float()), Policy("bf16")), native(x).float())
    assert Policy.parse({"preset": "engine", "format": "bf16"}) == engine


def test_rules_about_what_runs_outside_of_modules():
    x, w = numbers(8, 32), layer()
    policy = Policy("fp32").with_rules(Rule(module="", format="e4m3"))
    y = w(x)
    with simulate("e4m3"):
        expected = y * 3
    assert torch.equal(simulated(lambda: w(x) * 3, policy), expected)


@pytest.mark.parametrize("policy", [RECIPE, INPUTS, PARAMETERS], ids=["fp8", "inputs", "parameters"])
def test_modules_that_make_their_parameters_when_called(policy):
    x, net = numbers(8, 32), nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(16, bias=False)).eval()
    first = simulated(lambda: net(x), policy)
    assert torch.equal(simulated(lambda: net(x), policy), first)
    assert not torch.equal(first, net(x))
