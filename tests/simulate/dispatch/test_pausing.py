"""``roundoff.exact``: what stands in its blocks is not rounded, and everything else is."""

import asyncio
import threading
import warnings

import pytest
import torch
from processes import PATIENCE

import roundoff
from roundoff import FormatError, Policy, Rule, exact, simulate

LABELS = torch.tensor([1.0] * 999 + [0.0])
MEAN = torch.tensor(0.999).item()
X = torch.tensor([1.0 + 2.0**-20])
ROUNDED = torch.ones(1)


def here():
    """Whether the code that runs now is rounded."""
    return not torch.equal(X * 1, X)


def test_a_metric_is_that_of_the_plain_program():
    with simulate("e5m3"):
        assert LABELS.mean().item() == 1.0
        with exact():
            assert LABELS.mean().item() == MEAN
        assert here()


def test_outside_of_a_simulation_it_does_nothing():
    with exact() as value:
        assert value is None
        assert not here()
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert torch.compile(of_compile, backend="eager", fullgraph=True)(torch.ones(3)).item() == 6.0


def of_compile(x):
    with exact():
        y = x * 2
    return y.sum()


def test_it_is_left_by_exceptions_and_entered_again():
    block = exact()
    with simulate("e5m3"):
        for _ in range(2):
            with pytest.raises(KeyError), block:
                with block:
                    assert not here()
                assert not here()
                raise KeyError
            assert here()


def test_simulations_inside_simulate_again():
    with simulate("e5m3"), exact():
        with simulate("e5m10"):
            assert here()
            with exact():
                assert not here()
            assert here()
        assert not here()


@exact()
def function(x):
    """Says so."""
    return x * 1


@exact
def generator():
    while True:
        sent = yield here()
        if sent:
            return sent


@exact()
async def coroutine(gate):
    before = here()
    await gate.wait()
    return before, here()


class Metrics:
    @exact
    def mean(self, x):
        return x.mean().item()


def test_functions_methods_and_generators_are_decorated():
    assert function.__name__ == "function"
    assert function.__doc__ == "Says so."
    with simulate("e5m3"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(function(X), X)
        assert Metrics().mean(LABELS) == MEAN
        values = generator()
        for _ in range(2):
            assert not next(values)
            assert here()  # while it is suspended
        with pytest.raises(StopIteration) as end:
            values.send("end")
        assert end.value.value == "end"


def test_coroutines_are_decorated():
    async def main():
        gate = asyncio.Event()
        task = asyncio.ensure_future(coroutine(gate))
        await asyncio.sleep(0)
        during = here()
        gate.set()
        return during, await task

    with simulate("e5m3"):
        assert asyncio.run(main()) == (True, (False, False))


async def asynchronous():
    yield 1


@pytest.mark.parametrize("thing", [Metrics, asynchronous, 3])
def test_what_cannot_be_decorated_is_refused(thing):
    with pytest.raises(FormatError, match=r"decorates functions, methods, generators and coroutines, got"):
        exact(thing)


def test_it_holds_for_the_thread_that_enters_it():
    found = {}
    entered, done = threading.Event(), threading.Event()

    def work():
        with simulate("e5m3"):
            with exact():
                found["exact"] = here()
                entered.set()
                done.wait(PATIENCE)
            found["behind"] = here()

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(PATIENCE)
    with simulate("e5m3"):
        found["other"] = here()
    done.set()
    thread.join()
    assert found == {"exact": False, "behind": True, "other": True}


def test_a_thread_started_inside_a_simulation_says_what_it_computes_without_warnings():
    found = []
    with simulate("e5m3"), warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=lambda: found.append(torch.equal(function(X), X)))
        thread.start()
        thread.join()
    assert found == [True]


@pytest.mark.parametrize("backward_inside", [False, True])
def test_the_backward_pass_is_rounded_where_it_is_called(backward_inside):
    w = torch.tensor([3.0], requires_grad=True)
    with simulate("e5m3"):
        with exact():
            loss = (w * X).sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
    assert torch.equal(w.grad, X if backward_inside else ROUNDED)


def test_observers_shadows_and_random_bits_know_nothing_of_it():
    def run(*, paused):
        with simulate("e4m3", rounding="stochastic", observe=True, shadow="fp64", seed=3) as simulation:
            y = torch.full((64,), 1.01) * 1.7
            if paused:
                with exact():
                    (torch.full((64,), 1e30) * 1e30).tanh()
            y = y * 1.3
        return y, simulation.report().table, simulation.shadow_report().table, simulation.draws

    (y, counts, errors, draws), (y2, counts2, errors2, draws2) = run(paused=True), run(paused=False)
    assert torch.equal(y, y2)
    assert counts.equals(counts2)
    assert errors.equals(errors2)
    assert draws == draws2 > 0


def test_a_shadow_begins_anew_with_what_was_written_in_it():
    with simulate("e5m3", shadow="fp64") as simulation:
        x = torch.full((4,), 1.0) / 3
        with exact():
            x.mul_(0.7)
            expected = x.double()
        assert torch.equal(simulation.twin(x), expected)


def test_an_optimizer_stores_what_it_computed():
    w = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([w], lr=2.0**-20)
    with simulate(Policy("fp32").with_rules(Rule(operation="optimizer_step", format="e5m3"))):
        w.grad = torch.ones(4)
        with exact():
            optimizer.step()
        assert torch.equal(w.detach(), torch.ones(4) - 2.0**-20)
        optimizer.step()
    assert torch.equal(w.detach(), torch.ones(4))


def test_compiled_steps_honour_it():
    w = torch.randn(8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def step(x):
        y = (x @ w).softmax(-1)
        with exact():
            z = y.log().mean(-1)
        z.sum().backward()
        gradient, w.grad = w.grad, None
        return y, z, z.reshape(2, 4).t().contiguous(), z + 1, gradient

    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    with simulate("e5m3") as simulation:
        eager = step(x)
    compiled = roundoff.compile(step, simulation)
    assert compiled.reason is None
    for inside in (False, True):
        with exact() if inside else simulate("e5m10"):
            got = compiled(x)
        for a, b in zip(got, eager, strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(eager[1], roundoff.round(eager[1].detach(), "e5m3"))
    assert torch.equal(eager[4], roundoff.round(eager[4], "e5m3"))
