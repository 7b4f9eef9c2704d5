"""``@roundoff.simulate(...)``: each call of a function runs in a simulation of its own."""

import asyncio
import warnings

import pytest
import torch

import roundoff
from roundoff import Rule
from roundoff.simulate import Policy, PolicyWarning, Watcher

X = torch.full((4,), 1.1)
COARSE = torch.ones(4)  # the nearest of e5m2


@roundoff.simulate("e5m2")
def scaled(x, factor=1.0):
    """A function of a user."""
    return x * factor


def test_a_function_is_simulated_and_stays_what_it_is():
    assert torch.equal(scaled(X), COARSE)
    assert torch.equal(scaled(X, factor=0.5), COARSE / 2)
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "A function of a user.")
    assert torch.equal(X * 1.0, X)  # outside nothing is
    with roundoff.simulate("e5m10"):
        inside, around = scaled(X), X * 1.0
    assert torch.equal(inside, COARSE)
    assert torch.equal(around, roundoff.round(X, "e5m10"))


def test_a_method_a_recursive_function_and_an_exception():
    class Model:
        @roundoff.simulate("e5m2")
        def forward(self, x, depth):
            if depth == 0:
                raise KeyError("deep")
            return self.forward(x * 1.0, depth - 1)

    with pytest.raises(KeyError, match="deep"):
        Model().forward(X, 3)
    assert torch.equal(X * 1.0, X)


def test_each_call_is_a_fresh_simulation():
    @roundoff.simulate("e5m2", rounding="stochastic", seed=3)
    def drawn(x):
        return x * 1.0

    x = X.repeat(100)
    with roundoff.simulate("e5m2", rounding="stochastic", seed=3):
        expected = x * 1.0
        later = x * 1.0
    assert torch.equal(drawn(x), expected)
    assert torch.equal(drawn(x), expected)
    assert not torch.equal(later, expected)


def test_backward_and_an_optimizer_in_it():
    weight = torch.nn.Parameter(X.clone())
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @roundoff.simulate("e5m2")
    def step():
        weight.square().sum().backward()
        optimizer.step()

    step()
    assert torch.equal(weight.detach(), roundoff.round(weight.detach(), "e5m2"))


def test_a_generator_leaves_its_caller_alone():
    @roundoff.simulate("e5m2")
    def numbers(x):
        received = yield x * 1.0
        yield received * 1.0
        return "end"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        running = numbers(X)
        assert torch.equal(next(running), COARSE)
        assert torch.equal(X * 1.0, X)
        assert torch.equal(running.send(X), COARSE)
        with pytest.raises(StopIteration) as ended:
            next(running)
    assert ended.value.value == "end"
    unfinished = numbers(X)
    next(unfinished)
    del unfinished
    assert torch.equal(X * 1.0, X)


def test_coroutines_take_turns():
    @roundoff.simulate("e5m2")
    async def coarse():
        first = X * 1.0
        await asyncio.sleep(0)
        return torch.stack([first, X * 1.0])

    @roundoff.simulate("e5m10")
    async def fine():
        await asyncio.sleep(0)
        return X * 1.0

    async def both():
        found = asyncio.gather(coarse(), fine())
        plain = X * 1.0
        return *await found, plain

    rough, smooth, plain = asyncio.run(both())
    assert torch.equal(rough, COARSE.expand(2, 4))
    assert torch.equal(smooth, roundoff.round(X, "e5m10"))
    assert torch.equal(plain, X)


def test_watchers_and_roots_are_those_of_every_call():
    seen = []

    class Names(Watcher):
        def after(self, call, token, result):
            seen.append((call.place.operation, call.place.module))

    net = torch.nn.Sequential(torch.nn.ReLU())

    @roundoff.simulate("e5m2", watchers=[Names()], root=net)
    def run():
        return net[0](X)

    run()
    run()
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_an_unused_rule_is_said_once():
    policy = Policy("e5m2", rules=[Rule("tanh", format="fp32")])

    @roundoff.simulate(policy)
    def run():
        return X * 1.0

    with pytest.warns(PolicyWarning):
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


async def endless():
    yield 1


@pytest.mark.parametrize("wrong", [endless, torch.nn.Linear, 3, None])
def test_what_cannot_be_decorated(wrong):
    with pytest.raises(roundoff.FormatError, match="decorates functions, methods, generators and coroutines, got"):
        roundoff.simulate("e5m2")(wrong)


@pytest.mark.parametrize("asked", [{"observe": True}, {"shadow": "fp64"}])
def test_reports_that_nobody_could_ask_for(asked):
    with pytest.raises(roundoff.FormatError, match=f"the report of {next(iter(asked))}: write `with"):
        roundoff.simulate("e5m2", **asked)(abs)
