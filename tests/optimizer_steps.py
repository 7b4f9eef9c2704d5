"""Parameters, gradients and steps for tests of optimizers."""

import torch


def parameters(seed=0):
    """Returns two parameters in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((3, 2), (4,))]


def gradients(seed, steps, magnitude=1.0):
    """Returns gradients of these parameters for each step."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [magnitude * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((3, 2), (4,))]
        for _ in range(steps)
    ]


def run(optimizer, params, steps, scale=1.0):
    """Takes a step for each item of ``steps``; returns all parameters as one vector."""
    for grads in steps:
        for p, g in zip(params, grads, strict=True):
            p.grad = g * scale
        optimizer.step()
    return torch.cat([p.flatten() for p in params])
