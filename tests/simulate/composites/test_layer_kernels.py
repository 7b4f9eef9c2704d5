"""Kernels of whole layers: recurrent ones count as what PyTorch does without them, attention as when it trains."""

import pytest
import torch
from torch import nn

import roundoff
from roundoff import Policy, Rule, simulate

TIMES, BATCH, INPUTS, HIDDEN = 12, 3, 8, 16
BY_ROLE = Policy("e5m10").with_rules(Rule(role="backward", format="e5m6"))
MX = Policy("fp32").with_rules(Rule(["mm", "addmm", "bmm"], operands="mxfp8_e4m3"))
CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}
FORMATS = {
    "e5m10": {"format": "e5m10"},
    "e5m2": {"format": "e5m2"},
    "by role": {"format": BY_ROLE},
    "mx": {"format": MX},
    "accumulated": {"format": "e5m10", "accumulate": "e5m10"},
    "primitive": {"format": "e5m10", "granularity": "primitive"},
}


def numbers(*shape, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return roundoff.round(x, "e5m2")


def recurrent(kind, **options):
    torch.manual_seed(1)
    return getattr(nn, kind)(INPUTS, HIDDEN, **options)


def by_cells(kind, layer, suffix="_l0", *, reverse=False):
    cell = CELLS[kind](INPUTS, HIDDEN, bias=layer.bias)
    weights = {name.removesuffix(suffix): value for name, value in layer.state_dict().items() if name.endswith(suffix)}
    cell.load_state_dict(weights)

    def run(x):
        hidden = torch.zeros(BATCH, HIDDEN)
        state = (hidden, torch.zeros(BATCH, HIDDEN)) if kind == "LSTM" else hidden
        outputs = []
        for row in reversed(x) if reverse else x:
            state = cell(row, state)
            outputs.append(state[0] if kind == "LSTM" else state)
        return torch.stack(outputs[::-1] if reverse else outputs), state, list(cell.parameters())

    return run


def with_gradients(run, simulation, *, of_states=True):
    x = numbers(TIMES, BATCH, INPUTS).requires_grad_()
    weights = [numbers(TIMES, BATCH, HIDDEN, seed=2), numbers(BATCH, HIDDEN, seed=3), numbers(BATCH, HIDDEN, seed=4)]
    with simulation:
        output, state, parameters = run(x)
        results = [output, *(state if isinstance(state, tuple) else (state,))]
        results = [y.reshape(weight.shape) for y, weight in zip(results, weights, strict=False)]
        used = results if of_states else results[:1]
        gradients = torch.autograd.grad(used, [x, *parameters], weights[: len(used)])
    return [y.detach() for y in results], gradients


def layers(layer):
    return lambda x: (*layer(x), list(layer.parameters()))


def without_kernel(layer):
    """The layer as PyTorch computes it where it has no kernel for it."""

    def run(x):
        with torch.backends.mkldnn.flags(enabled=False):
            return layers(layer)(x)

    return run


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("name", [*FORMATS, "toward zero"])
@pytest.mark.parametrize("options", [{}, {"bias": False}], ids=["", "no bias"])
def test_a_layer_of_lstm_has_the_same_bits_with_and_without_a_kernel(name, options):
    layer, how = recurrent("LSTM", **options), FORMATS.get(name, {"format": "e5m10", "rounding": "toward-zero"})
    for of_states in (True, False):
        expected = with_gradients(without_kernel(layer), simulate(**how), of_states=of_states)
        simulation = simulate(**how)
        actual = with_gradients(layers(layer), simulation, of_states=of_states)
        for x, y in zip([*actual[0], *actual[1]], [*expected[0], *expected[1]], strict=True):
            assert torch.equal(x, y)
    kernels = {plan.name for plan in simulation.plans() if plan.outcome.taken_apart}
    assert {"mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"} <= kernels


@pytest.mark.parametrize("rounding", ["nearest-even", "toward-zero"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}], ids=["", "deep"])
def test_a_half_precision_lstm_has_the_bits_of_a_float32_one(options, rounding):
    """Most processors have a kernel for float32 alone."""
    layer, found = recurrent("LSTM", **options), []
    for p in layer.parameters():
        p.data = roundoff.round(p.data, "e5m7")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        layer.to(dtype).zero_grad()
        x = numbers(TIMES, BATCH, INPUTS).to(dtype).requires_grad_()
        with simulate("e5m7", rounding=rounding):
            y, states = layer(x)
            torch.autograd.backward([y, *states], [torch.ones_like(out) for out in (y, *states)])
        found.append([t.detach().float() for t in (y, *states, x.grad, *(p.grad for p in layer.parameters()))])
    for half in found[1:]:
        assert all(map(torch.equal, half, found[0]))


@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_layers_are_cells_to_float32_accuracy(kind):
    """PyTorch multiplies all times by the input weights at once, whose last bits may differ."""
    layer = recurrent(kind)
    expected = with_gradients(by_cells(kind, layer), simulate("e5m10"))
    actual = with_gradients(layers(layer), simulate("e5m10"))
    for x, y in zip([*actual[0], *actual[1]], [*expected[0], *expected[1]], strict=True):
        torch.testing.assert_close(x, y, rtol=2**-7, atol=2**-9)
        assert torch.equal(x, roundoff.round(x, "e5m10"))


def test_both_directions_and_layers():
    layer = recurrent("LSTM", bidirectional=True)
    x = numbers(TIMES, BATCH, INPUTS)
    cells = [by_cells("LSTM", layer), by_cells("LSTM", layer, "_l0_reverse", reverse=True)]
    with torch.no_grad(), simulate("e5m6"):
        assert torch.equal(layer(x)[0], torch.cat([run(x)[0] for run in cells], -1))
    deep = recurrent("LSTM", num_layers=2, batch_first=True, dropout=0.5)
    for mode in (deep.train(), deep.eval()):
        with simulate("e5m6"):
            output, _ = mode(numbers(BATCH, TIMES, INPUTS))
            output.sum().backward()
        assert torch.equal(output.detach(), roundoff.round(output.detach(), "e5m6"))
        assert all(torch.equal(p.grad, roundoff.round(p.grad, "e5m6")) for p in deep.parameters())


def test_stochastic_layers_are_repeatable_and_keep_what_they_computed():
    layer = recurrent("LSTM")

    def once():
        return with_gradients(layers(layer), simulate("e5m3", rounding="stochastic", seed=3))

    first, second = once(), once()
    assert all(map(torch.equal, [*first[0], *first[1]], [*second[0], *second[1]]))
    forward = simulate("e5m3", rounding="stochastic", seed=3)
    x = numbers(TIMES, BATCH, INPUTS)
    with forward:
        layer(x)
    draws = forward.draws
    with simulate("e5m3", rounding="stochastic", seed=3) as both:
        layer(x)[0].sum().backward()
    assert both.draws > draws  # gradients were rounded
    assert {h.name for h in both.plans() if h.role == ""} >= {"sigmoid_backward", "tanh_backward"}
    forward_only = sum(h.outcome.calls for h in forward.plans() if h.name == "sigmoid")
    assert sum(h.outcome.calls for h in both.plans() if h.name == "sigmoid") == forward_only  # not computed again


@pytest.mark.parametrize("inside", ["forward", "backward"])
def test_one_pass_alone_may_be_simulated(inside):
    layer, x = recurrent("LSTM"), numbers(TIMES, BATCH, INPUTS)
    plain = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    with simulate("e5m10" if inside == "forward" else "fp32"):
        y = layer(x)[0].square().sum()
    with simulate("e5m10" if inside == "backward" else "fp32"):
        gradients = torch.autograd.grad(y, list(layer.parameters()))
    for found, exact in zip(gradients, plain, strict=True):
        torch.testing.assert_close(found, exact, rtol=0.05, atol=0.02)


def test_a_rule_about_the_kernel_itself_leaves_it_whole():
    layer, x = recurrent("LSTM"), numbers(TIMES, BATCH, INPUTS)
    with torch.no_grad():
        plain = layer(x)[0]
        with simulate(Policy("fp32").with_rules(Rule("mkldnn_rnn_layer", format="e5m3"))):
            assert torch.equal(layer(x)[0], roundoff.round(plain, "e5m3"))


PADDING = torch.zeros(4, 10, dtype=torch.bool).index_fill(1, torch.arange(6, 10), value=True) & torch.tensor(
    [[True], [False], [True], [False]]
)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(10)
MASKS = {"": {}, "padded": {"src_key_padding_mask": PADDING}, "causal": {"mask": CAUSAL}}
MASKS["both"] = {"src_key_padding_mask": PADDING, "mask": CAUSAL.isinf()}


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=["", "norm first"])
def test_encoders_evaluate_as_they_train(options, masks):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, **options)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)
    x, there = numbers(4, 10, 32), ~PADDING if "padding" in str(MASKS[masks]) else torch.ones(4, 10, dtype=torch.bool)
    for fmt in ("e5m10", "e5m3", MX, BY_ROLE):
        with simulate(fmt) as simulation:
            trained = encoder.train()(x, **MASKS[masks]).detach()
            with torch.no_grad():
                evaluated = encoder.eval()(x, **MASKS[masks])
        assert torch.equal(trained[there], evaluated[there])
        assert "_transformer_encoder_layer_fwd" in {h.name for h in simulation.plans() if h.outcome.taken_apart}
    for kwargs in ({"granularity": "primitive"}, {"shadow": "fp64"}, {"observe": True}, {"accumulate": "e5m10/32"}):
        with torch.no_grad(), simulate("e5m10", **kwargs):
            evaluated = encoder(x, **MASKS[masks])
        assert torch.equal(evaluated, roundoff.round(evaluated, "e5m10"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weights", [{"need_weights": False}, {}, {"average_attn_weights": False}], ids=str)
@pytest.mark.parametrize("nested", [False, True], ids=["dense", "nested"])
def test_attention_evaluates_as_it_trains(weights, nested):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    parts = [numbers(5, 16, seed=1), numbers(3, 16, seed=2)]
    x = torch.nested.to_padded_tensor(torch.nested.nested_tensor(parts), 0.0)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with simulate("e5m6"):
        expected, expected_weights = attention.train()(x, x, x, key_padding_mask=padding, **weights)
    with torch.no_grad():
        attention.eval()
        with simulate("e5m6"):
            operand = torch.nested.nested_tensor(parts) if nested else x
            masks = {} if nested else {"key_padding_mask": padding}
            result, found_weights = attention(operand, operand, operand, **masks, **weights)
        whole = attention(operand, operand, operand, **masks, **weights)[0]
    assert result.is_nested == whole.is_nested
    assert nested or result.stride() == whole.stride()
    dense = torch.nested.to_padded_tensor(result, 0.0) if nested else result
    assert torch.equal(dense[~padding], expected.detach()[~padding])
    assert (found_weights is None) == (expected_weights is None)
    assert found_weights is None or torch.equal(found_weights, expected_weights.detach())


@pytest.mark.filterwarnings("ignore")
def test_watched_in_fp32_they_are_left_whole():
    torch.manual_seed(0)
    layer, x = recurrent("LSTM"), numbers(TIMES, BATCH, INPUTS)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()

    def program():
        results = [layer(x)[0]]
        results += torch.autograd.grad(results[0].sum(), list(layer.parameters()))
        with torch.no_grad():
            results += [encoder(numbers(4, 10, 32)), encoder(numbers(4, 10, 32), src_key_padding_mask=PADDING)]
        return results

    plain = program()
    only_softmax = Policy("fp32").with_rules(Rule("exp", format="e5m2"))
    for options in ({"format": "fp32", "observe": True}, {"format": only_softmax}):
        with simulate(**options) as simulation:
            if "observe" not in options:
                torch.ones(1).exp()  # so that the rule matches something
            watched = program()
        assert all(map(torch.equal, plain, watched))
        assert "mkldnn_rnn_layer" not in {h.name for h in simulation.plans() if h.outcome.taken_apart}
