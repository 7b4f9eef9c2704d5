"""Networks for planes: the shapes of the papers, and what torch.nn computes with the same numbers."""

import pytest
import torch
from torch import nn

from roundoff.agents.models.networks import MLP, forward
from roundoff.agents.models.planes import A3C_NET, DQN_NET, SMALL_NET, PlanesNetwork, convolutions_for, convolved_shape

OPTIONS = {"dtype": torch.float64, "device": torch.device("cpu")}


def network(shape, convolutions, shared, heads, seed=0):
    return PlanesNetwork(shape, convolutions, shared, heads, **OPTIONS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("shape", "large", "convolutions", "convolved"),
    [
        ((4, 10, 10), DQN_NET, SMALL_NET, (16, 8, 8)),
        ((4, 104, 80), DQN_NET, DQN_NET, (64, 12, 9)),
        ((4, 104, 80), A3C_NET, A3C_NET, (32, 12, 9)),
    ],
)
def test_convolutions_give_the_shapes_of_the_papers(shape, large, convolutions, convolved):
    assert convolutions_for(shape, large) == convolutions
    assert convolved_shape(convolutions, shape) == convolved


def test_vectors_have_no_convolutions_and_small_images_are_refused_in_words():
    assert convolutions_for((7,)) == ()
    with pytest.raises(ValueError, match="planes of 2 x 9 are too small for convolutions of windows 3 x 3"):
        network((1, 2, 9), SMALL_NET, [], [[3]])


@pytest.mark.parametrize("shared", [[], [12], [12, 10]], ids=str)
@pytest.mark.parametrize("heads", [[[5]], [[8, 1], [8, 6]]], ids=str)
@pytest.mark.parametrize("convolutions", [(), SMALL_NET, DQN_NET[1:]], ids=len)
def test_it_computes_what_torch_nn_does(shared, heads, convolutions):
    shape = (3, 9, 7) if convolutions else (11,)
    mine = network(shape, convolutions, shared, heads)
    layers = iter(mine.trainable)
    with torch.no_grad():  # biases begin as 0
        for layer in mine.layers:
            layer.add_(torch.randn(layer.shape, dtype=torch.float64) * 0.1)
    modules = []
    channels = shape[0]
    for filters, size, stride, padding in convolutions:
        one = nn.Conv2d(channels, filters, size, stride, padding, dtype=torch.float64)
        one.weight.data, one.bias.data = next(layers).detach().clone(), next(layers).detach().clone()
        channels = filters
        modules += [one, nn.ReLU()]
    modules.append(nn.Flatten())

    def linear():
        weight, bias = next(layers).detach(), next(layers).detach()
        one = nn.Linear(*weight.shape[1:], dtype=torch.float64)
        one.weight.data, one.bias.data = weight[0].mT.clone(), bias[0, 0].clone()
        return one

    for _ in shared:
        modules += [linear(), nn.ReLU()]
    trunk = nn.Sequential(*modules)
    ends = []
    for widths in heads:
        own = [part for _ in widths for part in (linear(), nn.ReLU())]
        ends.append(nn.Sequential(*own[:-1]))
    assert next(layers, None) is None
    x = torch.randn(4, torch.Size(shape).numel(), dtype=torch.float64)
    outputs = mine.outputs(mine.trainable, x)
    expected = [end(trunk(x.view(4, *shape))) for end in ends]
    for a, b in zip(outputs, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    weights = [torch.randn_like(one) for one in outputs]
    mine.compute_gradients(torch.cat(outputs, 1), torch.cat(weights, 1))
    sum((w * one).sum() for w, one in zip(weights, expected, strict=True)).backward()
    gradients = [p.grad for module in (trunk, *ends) for p in module.parameters()]
    for got, wanted in zip(mine.views(mine.flat.grad), gradients, strict=True):
        expected_gradient = wanted.mT if got.ndim == 3 and wanted.ndim == 2 else wanted
        torch.testing.assert_close(got.reshape(expected_gradient.shape), expected_gradient, rtol=0, atol=1e-11)


def test_without_convolutions_and_with_one_head_it_is_a_perceptron():
    mine = network((6,), (), [8, 8], [[3]])
    other = MLP([6, 8, 8, 3], ensemble=1, **OPTIONS, generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 6, dtype=torch.float64)
    assert torch.equal(mine.flat, other.flat)
    assert torch.equal(mine.outputs(mine.layers, x)[0], forward(other.layers, x)[0])
