"""Our networks as torch.nn has them: what algorithms written by the book are made of."""

from torch import nn


def modules_of(layers, member):
    """Linear layers with ReLUs between, with the numbers that one member of a network of ours has."""
    modules = []
    for weight, bias in zip(layers[0::2], layers[1::2], strict=True):
        linear = nn.Linear(*weight.shape[1:], dtype=weight.dtype)
        linear.weight.data = weight[member].detach().mT.clone()
        linear.bias.data = bias[member, 0].detach().clone()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])
