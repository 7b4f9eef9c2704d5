"""Compiled training of modules by optimizers of PyTorch's: the bits of the eager simulation, step by step."""

import pytest
import torch
from networks import NETWORKS, Convolutional, Draw, Graph, Mixture, Recurrent, Transformer, UNet
from torch import fx, optim

import roundoff
from roundoff import CompileWarning, FormatError, Policy, Rule, simulate
from roundoff.simulate.compiling.graphs.functional import functional
from roundoff.simulate.compiling.refusals import OtherBitsError

STEPS = 4


OPTIMIZERS = {
    Transformer: lambda p: optim.AdamW(p, 0.01, eps=1e-3),
    Convolutional: lambda p: optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01),
    UNet: lambda p: optim.Adam(p, 0.01, eps=1e-3, foreach=True),
    Recurrent: lambda p: optim.RMSprop(p, 0.01, eps=1e-3),
    Graph: lambda p: optim.NAdam(p, 0.01, eps=1e-3),
    Mixture: lambda p: optim.Adagrad(p, 0.01, eps=1e-3),
}


class Training:
    """Networks, each with its optimizer, trained by one step."""

    def __init__(self, kinds, dtype):
        torch.manual_seed(0)
        self.networks = [kind().to(dtype) for kind in kinds]
        self.optimizers = [
            OPTIMIZERS[kind](network.parameters()) for kind, network in zip(kinds, self.networks, strict=True)
        ]
        self.draw = Draw(1, dtype)

    def step(self, data):
        losses = []
        for network, optimizer, given in zip(self.networks, self.optimizers, data, strict=True):
            optimizer.zero_grad()
            loss = network.loss(*given)
            loss.backward()
            if isinstance(network, Recurrent):
                losses.append(torch.nn.utils.clip_grad_norm_(network.parameters(), 0.25))
            optimizer.step()
            losses.append(loss)
        return losses

    def tensors(self):
        """All that a step leaves."""
        found = []
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            found += network.buffers()
            for p in network.parameters():
                found += [p.detach(), p.grad, *optimizer.state[p].values()]
        return found

    def run(self, step, steps=STEPS):
        """After every step, all there is; at the end a random number, which tells how many were drawn."""
        torch.manual_seed(2)
        states = []
        for i in range(steps):
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = 0.01 * 0.9**i
            losses = step([network.data(self.draw) for network in self.networks])
            states.append([x.detach().clone() for x in [*losses, *self.tensors()] if x is not None])
        return [*states, [torch.rand(1)]]


def assert_same_training(kinds, make, dtype=torch.float32, steps=STEPS):
    eager, compiled = Training(kinds, dtype), Training(kinds, dtype)
    simulation, mine = make(), make()

    def eagerly(data):
        with simulation:
            return eager.step(data)

    program = roundoff.compile(compiled.step, mine)
    expected = eager.run(eagerly, steps)
    found = compiled.run(program, steps)
    assert program.reason is None
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(y, x, rtol=0, atol=0, equal_nan=True, msg=f"step {number}")
            assert torch.equal(x.signbit() & ~x.isnan(), y.signbit() & ~y.isnan())
    assert (simulation.step, simulation.draws) == (mine.step, mine.draws)


@pytest.mark.parametrize("traced", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["traced", "compiled"])
def test_rules_about_places_and_operands(traced, request):
    """Operands in blocks along what is contracted, gradients and a module in formats of their own."""
    if traced:
        request.getfixturevalue("uncompiled")
    rules = [
        Rule(role="backward", format="e5m8"),
        Rule(module="Sequential.1", format="e8m7"),
        Rule(role="optimizer", format="e8m10"),
    ]
    policy = Policy.mixed_precision("mxfp8_e4m3").with_rules(*rules)
    assert_same_training([Convolutional], lambda: simulate(policy), steps=3)


@pytest.mark.parametrize("kind", NETWORKS)
def test_graphs_of_networks(kind, uncompiled):
    assert_same_training([kind], lambda: simulate("e5m7", rounding="stochastic", seed=3), steps=3)


def lstm():
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 4, bidirectional=True)

    def step(x):
        layer.zero_grad()
        outputs, (hidden, cell) = layer(x)
        (outputs.square().mean() + hidden.sum() + cell[0].mean()).backward()
        return outputs.detach(), *(p.grad for p in layer.parameters())

    return step


@pytest.mark.parametrize(
    "policy",
    [Policy("e5m4", rounding="stochastic"), Policy("e5m7").with_rules(Rule(role="backward", format="e5m2"))],
    ids=["stochastic", "backward"],
)
def test_an_lstm_layer_is_not_computed_again_in_its_backward_pass(policy, uncompiled):
    """There it would have other random bits, and the format of the backward pass."""
    x = torch.linspace(-1, 1.3, 12).view(2, 2, 3)
    step = lstm()
    with simulate(policy):
        expected = step(x)
    program = roundoff.compile(lstm(), simulate(policy))
    torch.testing.assert_close(program(x), expected, rtol=0, atol=0)
    assert program.reason is None


@pytest.mark.parametrize(
    "policy", [Policy("fp32"), Policy("e5m6").with_rules(Rule(role="forward", format="fp32"))], ids=["all", "forward"]
)
def test_the_kernel_of_an_lstm_layer_learns_eagerly(policy):
    """The kernel has other bits where gradients are recorded, which a program does not."""
    x = torch.linspace(-1, 1.3, 12).view(2, 2, 3)
    step = lstm()
    with simulate(policy):
        expected = step(x)
    program = roundoff.compile(lstm(), simulate(policy))
    with pytest.warns(CompileWarning, match="kernel of an LSTM layer has others where gradients are recorded"):
        found = program(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_kernel_of_an_lstm_layer_that_does_not_learn_is_compiled(uncompiled):
    layer = torch.nn.LSTM(3, 4, num_layers=2)

    def step(x):
        with torch.no_grad():
            return layer(x)[0] * 2

    x = torch.linspace(-1, 1.3, 12).view(2, 2, 3)
    program = roundoff.compile(step, simulate("fp32"))
    with simulate("fp32"):
        expected = step(x)
    torch.testing.assert_close(program(x), expected, rtol=0, atol=0)
    assert program.reason is None


def encoder_in_evaluation(mask):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()

    def step(x):
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=mask) * 2

    return step


@pytest.mark.parametrize("name", ["fp32", "e5m7"])
def test_an_encoder_in_evaluation_is_one_kernel_where_it_is_one_eagerly(name):
    x = torch.linspace(-1, 1.3, 80).sin().view(2, 5, 8)
    step = encoder_in_evaluation(None)
    with simulate(name):
        expected = step(x)
    program = roundoff.compile(step, simulate(name))
    assert torch.equal(program(x), expected)
    assert program.reason is None


def test_an_encoder_that_packs_padded_sequences_is_refused():
    """Eagerly it leaves zeros in padded places, where another way would leave numbers."""
    mask = torch.arange(5) >= torch.tensor([[5], [3]])
    with pytest.raises(FormatError, match=r"cannot be traced.*NestedTensor"):
        roundoff.compile(encoder_in_evaluation(mask), simulate("fp32"))(torch.ones(2, 5, 8))


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_of_a_batch_normalisation(training):
    """The compiler is told of what the kernel writes; else it may round the statistics before they are there."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
        network[1].train(training)
        optimizer = optim.SGD(network.parameters(), 0.1, momentum=0.9)

        def step(x, network=network, optimizer=optimizer):
            optimizer.zero_grad()
            loss = network(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        simulation = simulate("e5m6", rounding="toward-zero")
        program = roundoff.compile(step, simulation)
        for i in range(3):
            x = torch.linspace(-1, 1.3, 24).view(4, 6) + i
            if compiled:
                program(x)
            else:
                with simulation:
                    step(x)
        assert program.reason is None
        found.append([x.clone() for x in network.state_dict().values()])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert (network[1].num_batches_tracked == 3) == training


def test_batch_normalisation_by_a_kernel_that_hides_its_writes_is_not_compiled():
    """No function without writes is known for cuDNN's kernel; a step with it runs eagerly."""
    x, ones = torch.ones(4, 3), torch.ones(3)
    graph = fx.Graph()
    given = [graph.placeholder(name) for name in "abcde"]
    graph.output(graph.call_function(torch.ops.aten.cudnn_batch_norm.default, (*given, True, 0.1, 1e-5)))
    with pytest.raises(OtherBitsError, match="writes to running statistics"):
        functional(fx.GraphModule(torch.nn.Module(), graph))(x, ones, ones, ones.clone(), ones.clone())


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"format": "e5m10"}, {"format": "bf16"}, {"format": "e5m7", "rounding": "stochastic"}], ids=str
)
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks(kind, settings):
    assert_same_training([kind], lambda: simulate(**settings))
