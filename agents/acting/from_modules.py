"""A network of PyTorch's own layers as a policy that can be packed and exported."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from ..errors import RunError
from ..models.policy_layers import Activation, ConvolutionLayer, Decision, Layer, LinearLayer, PolicyLayers, plain

_ACTIVATIONS = {nn.ReLU: Activation.RELU, nn.Tanh: Activation.TANH, nn.ELU: Activation.ELU}
_IMAGE_DIMENSIONS = 3
_IGNORED = (nn.Identity, nn.Dropout, nn.Flatten)
"""Layers without an effect when a policy acts; a linear layer flattens its inputs anyway."""


def policy_of(
    module: nn.Module,
    *,
    decision: Decision | str = Decision.OUTPUTS,
    mean: torch.Tensor | None = None,
    std: torch.Tensor | None = None,
    observation_shape: Sequence[int] | None = None,
) -> PolicyLayers:
    """Converts a ``torch.nn.Sequential``, perhaps with others inside, to a policy in float32.

    Args:
        module: layers ``Linear`` and ``Conv2d`` (square, without dilation and groups), each followed by at most one of
            ``ReLU``, ``Tanh`` and ``ELU`` (alpha 1); ``Flatten``, ``Dropout`` and ``Identity`` are ignored.
        decision: the rule from outputs to actions: ``outputs``, ``clip`` (to [-1, 1]), ``tanh``, or ``largest``.
        mean: the mean of observations, which is subtracted first, (n,); None for zero.
        std: the divisor of the result, (n,); None for one. Both become part of the first layer, in float64. The
            clipping of a normalizer is not reproduced.
        observation_shape: (planes, height, width) if the first layer is a convolution; otherwise it is inferred.

    Raises:
        RunError: the module has other layers, or its inputs do not fit.
    """
    layers = _layers(module)
    first, last = layers[0], layers[-1]
    if not isinstance(last, LinearLayer):
        raise RunError("the last layer of a policy is a linear one; this module ends with a convolution")
    if isinstance(first, LinearLayer):
        layers[0] = _normalized(first, mean, std)
        shape: tuple[int, ...] = (first.weight.shape[1],)
    else:
        shape = tuple(observation_shape or ())
        if mean is not None or std is not None:
            raise RunError("mean and std are of vectors; this module begins with a convolution")
        if len(shape) != _IMAGE_DIMENSIONS:
            raise RunError(f"observation_shape must be (planes, height, width), got {observation_shape!r}")
    _check_shapes(layers, shape)
    allowed = [name for name in Decision if name is not Decision.LARGEST_MEAN]  # It needs atoms.
    if decision not in allowed:
        raise RunError(f"decision must be {', '.join(allowed)}, got {decision!r}")
    return PolicyLayers(shape, (), (tuple(layers),), Decision(decision), last.weight.shape[0])


def _check_shapes(layers: Sequence[Layer], shape: tuple[int, ...]) -> None:
    """Raises RunError if a layer does not fit the output of the previous one."""
    for i, layer in enumerate(layers):
        inputs = layer.weight.shape[1]
        if isinstance(layer, ConvolutionLayer):
            sides = [(n + 2 * layer.padding - layer.weight.shape[2]) // layer.stride + 1 for n in shape[1:]]
            fits = len(shape) == _IMAGE_DIMENSIONS and shape[0] == inputs and min(sides) > 0
            following = (layer.weight.shape[0], *sides)
        else:
            fits = math.prod(shape) == inputs
            following = (layer.weight.shape[0],)
        if not fits:
            raise RunError(f"layer {i} takes {tuple(layer.weight.shape[1:])}, and is given {shape}")
        shape = following


def _layers(module: nn.Module) -> list[Layer]:
    """Returns the linear layers and convolutions, each with the activation that follows."""
    layers: list[Layer] = []
    for layer in _leaf_modules(module):
        # Subclasses count if they inherit ``forward``: others compute something else.
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
            layers.append(LinearLayer(plain(layer.weight), _bias(layer, layer.out_features), Activation.NONE))
        elif isinstance(layer, nn.Conv2d) and type(layer).forward is nn.Conv2d.forward:
            layers.append(_convolution(layer))
        elif type(layer) in _ACTIVATIONS and getattr(layer, "alpha", 1.0) == 1.0:
            if not layers or layers[-1].activation is not Activation.NONE:
                raise RunError(f"{layer} follows no linear layer or convolution: an exported layer has one activation")
            layers[-1] = replace(layers[-1], activation=_ACTIVATIONS[type(layer)])
        elif not isinstance(layer, _IGNORED):
            raise RunError(
                f"{type(layer).__name__} is no layer that can be exported: allowed are Linear, Conv2d, ReLU, Tanh, ELU"
                " with alpha 1, Flatten, Dropout and Identity, in a torch.nn.Sequential; mean and std say a normalizer"
            )
    if not layers:
        raise RunError("there is no linear layer and no convolution in the module")
    return layers


def _leaf_modules(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for part in module:
            yield from _leaf_modules(part)
    else:
        yield module


def _bias(layer: nn.Linear | nn.Conv2d, size: int) -> torch.Tensor:
    return torch.zeros(size) if layer.bias is None else plain(layer.bias)


def _convolution(layer: nn.Conv2d) -> ConvolutionLayer:
    sides = (layer.kernel_size, layer.stride, layer.padding)
    square = all(isinstance(side, tuple) and len(set(side)) == 1 for side in sides)
    if not square or set(layer.dilation) != {1} or layer.groups != 1 or layer.padding_mode != "zeros":
        raise RunError(f"{layer}: convolutions are exported that are square, of one group, with zeros around")
    stride, padding = (int(side[0]) for side in sides[1:])
    bias = _bias(layer, layer.out_channels)
    return ConvolutionLayer(plain(layer.weight), bias, Activation.NONE, stride, padding)


def _normalized(first: LinearLayer, mean: torch.Tensor | None, std: torch.Tensor | None) -> LinearLayer:
    """Returns a layer that maps x to the output of the first layer for (x - mean) / std."""
    if mean is None and std is None:
        return first
    size = first.weight.shape[1]
    shift, scale = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    for name, values, target in (("mean", mean, shift), ("std", std, scale)):
        if values is None:
            continue
        if values.numel() != size or not bool(values.isfinite().all()) or (name == "std" and bool((values <= 0).any())):
            above = " above zero" if name == "std" else ""
            raise RunError(f"{name} must be {size} finite numbers{above}, one for each observation, got {values}")
        target.copy_(values.detach().reshape(-1))
    weight = first.weight.to(torch.float64) / scale
    bias = first.bias.to(torch.float64) - weight @ shift
    return LinearLayer(plain(weight), plain(bias), first.activation)
