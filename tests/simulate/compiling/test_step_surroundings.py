"""What is found around a step that no PyTorch class expects: optimizers, tuples and tensors of one's own."""

import pytest
import torch

import roundoff
from roundoff import FormatError, simulate


class Descent(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"])


class ShrinkingAdam(torch.optim.Adam):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.99)
        return super().step(closure)


@pytest.mark.parametrize("settings", [{}, {"rounding": "stochastic"}], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("kind", [Descent, ShrinkingAdam])
def test_an_optimizer_of_ones_own_is_compiled(kind, settings, uncompiled):
    """PyTorch wraps its step in a function that reads the hooks of all optimizers, of which a simulation adds one."""
    trained = []
    for compiled in (True, False):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2)
        optimizer = kind(layer.parameters(), lr=0.1)

        def update(x, layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()

        simulation = simulate("e5m6", **settings)
        program = roundoff.compile(update, simulation)
        for i in range(3):
            x = torch.linspace(-1, 1.3, 12).view(3, 4) + i
            optimizer.param_groups[0]["lr"] = (0.1, 0.1, 1)[i]  # an integer after the program was compiled
            if compiled:
                program(x)
            else:
                with simulation:
                    update(x)
        assert program.reason is None
        trained.append([p.detach() for p in layer.parameters()])
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)


class Pair(tuple):
    __slots__ = ()

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        raise NotImplementedError


def test_a_tuple_that_tells_no_length_is_looked_into(uncompiled):
    layer = torch.nn.Linear(4, 2)
    layer.pair = Pair((0.5, 2))
    x = torch.linspace(-1, 1.3, 12).view(3, 4)
    with simulate("e5m6"):
        expected = layer(x) * 2
    found = roundoff.compile(lambda x: layer(x) * 2, simulate("e5m6"))(x)
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0)


def test_sparse_tensors_around_a_step_are_named():
    adjacency = torch.eye(3).to_sparse()
    with pytest.raises(FormatError, match=r"adjacency is torch\.sparse_coo, and tensors around a step must be dense"):
        roundoff.compile(lambda x: torch.sparse.mm(adjacency, x), simulate("e5m6"))(torch.ones(3, 2))
    weight = torch.ones(3, requires_grad=True)
    program = roundoff.compile(lambda x: torch.autograd.grad((x * weight).sum(), weight), None)
    program(torch.ones(3))
    weight.register_hook(torch.zeros_like)
    with pytest.raises(FormatError, match="has hooks, which a program would not call"):
        program(torch.ones(3))
