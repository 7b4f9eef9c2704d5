"""The code in which a simulation is at work: generators, coroutines, threads, and functions of torch.compile."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.machinery import PathFinder
from types import SimpleNamespace

import pytest
import torch
from torch.utils import _python_dispatch

import roundoff
from roundoff import FormatError, Policy, Rule, Simulation, simulate
from roundoff.simulate import SimulationWarning
from roundoff.simulate.presence import torch_compile

EXACT = (torch.ones(1) / 3).item()
THIRDS = {roundoff.round(torch.tensor(EXACT), fmt).item(): fmt for fmt in ("e5m3", "e4m2")} | {EXACT: "exact"}


def here():
    """The format that this code computes in."""
    return THIRDS[(torch.ones(1) / 3).item()]


def values(fmt):
    with simulate(fmt):
        while True:
            yield here()


@pytest.mark.filterwarnings("ignore::roundoff.simulate.SimulationWarning")
def test_a_suspended_generator_leaves_its_callers_arithmetic_alone():
    first, second = values("e5m3"), values("e4m2")
    assert [next(first), here(), next(second), here(), next(first), next(second)] == [
        "e5m3", "exact", "e4m2", "exact", "e5m3", "e4m2",
    ]  # fmt: skip
    first.close()  # entered before, left before
    assert [next(second), here()] == ["e4m2", "exact"]
    with simulate("e5m3"):
        assert [here(), next(second), here()] == ["e5m3", "e4m2", "e5m3"]
        second.close()
        assert here() == "e5m3"
    assert here() == "exact"


def test_a_suspended_generator_says_so_once():
    generator = values("e5m3")
    next(generator)
    with pytest.warns(SimulationWarning, match=r"the generator values .* suspended inside.*contextlib.contextmanager"):
        here()
    assert here() == "exact"
    generator.close()


def test_generators_that_are_context_managers_enter_for_their_caller():
    @contextlib.contextmanager
    def simulated():
        with simulate("e5m3"):
            yield

    class Simulated:
        def __enter__(self):
            self.stack = contextlib.ExitStack()
            self.stack.enter_context(simulated())

        def __exit__(self, *_reason):
            self.stack.close()

    def generator(enter):
        with enter():
            yield here()
            yield here()

    for enter in (simulated, Simulated):
        with enter():
            assert here() == "e5m3"
        assert here() == "exact"
        suspended = generator(enter)
        assert next(suspended) == "e5m3"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulationWarning)
            assert here() == "exact"
        assert next(suspended) == "e5m3"
        suspended.close()
    with contextlib.ExitStack() as stack:
        stack.enter_context(simulate("e5m3"))
        assert here() == "e5m3"
    assert here() == "exact"


@pytest.fixture
def _simulated():
    with simulate("e5m3"):
        yield


@pytest.mark.usefixtures("_simulated")
def test_a_fixture_enters_for_its_test():
    assert here() == "e5m3"


def test_tasks_keep_their_own_formats():
    shared = simulate("e5m3")

    async def inner():
        await asyncio.sleep(0)
        return here()

    async def task(entered, log):
        with entered:
            for _ in range(3):
                log.append(here())
                await asyncio.sleep(0)
            log.append(await inner())

    @contextlib.asynccontextmanager
    async def simulated(fmt):
        with simulate(fmt):
            yield

    async def nested(log):
        async with simulated("e4m2"), contextlib.AsyncExitStack() as stack:
            log.append(here())
            await asyncio.sleep(0)
            log.append(here())
            await stack.enter_async_context(simulated("e5m3"))
            await asyncio.sleep(0)
            log.append(here())

    async def numbers():
        with simulate("e4m2"):
            for _ in range(2):
                yield here()

    async def main():
        logs = [[] for _ in range(4)]
        tasks = asyncio.gather(
            task(simulate("e4m2"), logs[0]), task(shared, logs[1]), task(shared, logs[2]), nested(logs[3])
        )
        outside = []
        while not tasks.done():
            outside.append(here())
            await asyncio.sleep(0)
        await tasks
        return logs, outside, [await inner() async for _ in numbers()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationWarning)  # of the asynchronous generator
        logs, outside, between = asyncio.run(main())
    assert logs == [["e4m2"] * 4, ["e5m3"] * 4, ["e5m3"] * 4, ["e4m2", "e4m2", "e5m3"]]
    assert set(outside) == set(between) == {"exact"}
    assert here() == "exact"
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_optimizers_step_outside_of_a_suspended_simulation():
    policy = Policy("fp32").with_rules(Rule("optimizer_step", format="e5m3"))

    def generator():
        with simulate(policy):
            yield

    weight = torch.nn.Parameter(torch.tensor([1 / 3]))
    weight.grad = torch.zeros(1)
    suspended = generator()
    next(suspended)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationWarning)
        torch.optim.SGD([weight], lr=1.0).step()
    assert weight.item() == torch.tensor(1 / 3).item()
    suspended.close()


def test_a_thread_started_inside_says_that_it_is_not_simulated():
    results = []
    with simulate("e5m3") as simulation:
        with pytest.warns(SimulationWarning, match=r"the thread .* was started inside Simulation.*enter it in"):
            run(lambda: results.append(here()))
        run(lambda: results.append(here()))  # said once

        def entering():
            with simulation:
                results.append(here())

        run(entering)
    with simulate("e5m3"):
        run(lambda: torch.arange(3).view(3, 1))  # computes nothing

        def plain():
            with simulate("fp32"):
                results.append(here())

        run(plain)
    run(lambda: results.append(here()))
    assert results == ["exact", "exact", "e5m3", "exact", "exact"]


def run(function):
    """Runs a function in a thread; its warnings are those of this one."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def train(simulation, steps=6):
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    optimizer = torch.optim.Adam(net.parameters(), eps=1e-3)
    for step in range(steps):
        simulation.step = step
        with simulation:
            optimizer.zero_grad()
            net(torch.randn(16, 8, generator=generator)).square().mean().backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("options", [{"rounding": "stochastic"}, {"observe": True}], ids=str)
def test_threads_may_share_a_simulation(options):
    policy = Policy("e5m7").with_rules(Rule(role="optimizer", format="e5m10"), Rule(module="2", format="e5m9"))
    alone = simulate(policy, **options)
    expected = train(alone)
    shared = simulate(policy, **options)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: train(shared), range(8)))
    assert all(torch.equal(result, expected) for result in results)
    assert not shared.presence.is_inside()
    if "observe" in options:
        one, eight = alone.report().table, shared.report().table
        for column in ("calls", "results", "inexact"):
            assert (8 * one[column] == eight[column]).all()


def test_what_another_thread_entered_cannot_be_left():
    simulation = simulate("e5m3")

    def leave():
        with pytest.raises(FormatError, match="by the thread that entered it"):
            simulation.__exit__(None, None, None)

    with simulation:
        run(leave)


def flags():
    return tuple(_python_dispatch.is_in_torch_dispatch_mode(include_infra_modes=flag) for flag in (True, False))


def test_pytorch_knows_of_no_mode_after_the_last_one():
    assert flags() == (False, False), "an earlier test has left PyTorch's flags set"
    first, second = values("e5m3"), values("e4m2")
    next(first), next(second)
    first.close()
    assert flags() == (True, True)
    second.close()
    assert flags() == (False, False)

    entered = threading.Barrier(2), threading.Event()

    def inside(waits):
        with simulate("e5m3"):
            entered[0].wait()
            if waits:
                entered[1].wait()
        entered[1].set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(inside, (False, True)))
    assert flags() == (False, False)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_functions_of_torch_compile_run_eagerly_inside_and_are_compiled_outside(fullgraph):
    graphs = []

    def backend(graph, _example):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: (x * 0.1 + 1).sin(), backend=backend, fullgraph=fullgraph)
    x = torch.linspace(0, 1, 8)
    with simulate("e5m3"):
        inside = compiled(x)
    assert torch.equal(inside, roundoff.round(inside, "e5m3"))
    assert not graphs
    compiled(x)
    assert len(graphs) == 1  # a function that was skipped inside of a mode would never be compiled
    with simulate("e5m3"):
        assert torch.equal(compiled(x), inside)


def test_a_simulation_inside_a_compiled_function():
    def function(x):
        with Simulation("e5m3"):
            torch._dynamo.graph_break()
            return x * 0.1 + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what dynamo cannot trace
        result = torch.compile(function, backend="eager")(torch.linspace(0, 1, 8))
    assert torch.equal(result, roundoff.round(result, "e5m3"))


def test_dynamo_is_imported_by_what_needs_it_and_then_runs_eagerly():
    """Importing dynamo takes longer than PyTorch: a process without it enters and computes without it."""
    program = """
import sys, torch, roundoff
graphs, found = [], list(sys.meta_path)
with roundoff.simulate("e5m3"):
    torch.ones(1) / 3
assert sys.meta_path == found
with roundoff.simulate("e5m3"):
    expected = (torch.ones(1) / 3).item()
    assert "torch._dynamo" not in sys.modules
    third = torch.compile(lambda x: x / 3, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    assert "torch._dynamo" in sys.modules
    assert (third(torch.ones(1)).item(), graphs) == (expected, [])
assert third(torch.ones(1)) == torch.ones(1) / 3 and len(graphs) == 1
assert sys.meta_path == found
with roundoff.simulate("e5m3"):
    assert (third(torch.ones(1)).item(), len(graphs)) == (expected, 1)
assert type(torch._dynamo.eval_frame._stance).__name__ == "DynamoStance"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


DYNAMO = """
_stance = "found"
def _set_stance(stance):
    global _stance
    _stance = stance
"""


@pytest.fixture
def eager_inside(tmp_path, monkeypatch):
    """What sets the stance of dynamo, with another module in the place of dynamo that is not imported yet."""
    (tmp_path / "dynamo_of_a_test.py").write_text(DYNAMO)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_compile, "_DYNAMO", "dynamo_of_a_test")
    monkeypatch.setattr(torch_compile, "_dynamo", lambda: import_module("dynamo_of_a_test"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    found = list(sys.meta_path)
    yield torch_compile.EagerInside(lambda: True, lambda: None)
    assert sys.meta_path == found
    sys.modules.pop("dynamo_of_a_test", None)


def stance():
    return getattr(import_module("dynamo_of_a_test")._stance, "stance", "found")


def test_the_stance_is_set_while_a_simulation_is_entered_whenever_dynamo_is_imported(eager_inside):
    eager_inside.begin()
    eager_inside.end()
    assert "dynamo_of_a_test" not in sys.modules
    eager_inside.begin()
    assert stance() == "force_eager"  # imported inside
    eager_inside.end()
    assert stance() == "found"
    eager_inside.begin()
    assert stance() == "force_eager"  # imported before
    eager_inside.end()
    assert stance() == "found"


def test_other_finders_may_find_dynamo(eager_inside):
    path = sys.path.pop(0)  # where the fixture has put it

    class Finder:
        find_spec = staticmethod(lambda name, _path, target=None: PathFinder.find_spec(name, [path], target))

    sys.meta_path.append(Finder)
    eager_inside.begin()
    assert stance() == "force_eager"
    eager_inside.end()
    assert sys.meta_path.pop() is Finder


def test_dynamo_may_be_imported_by_another_thread_while_the_simulation_is_entered(eager_inside, monkeypatch):
    class Finders(list):
        def insert(self, place, finder):
            import_module("dynamo_of_a_test")
            super().insert(place, finder)

    monkeypatch.setattr(sys, "meta_path", Finders(sys.meta_path))
    found = list(sys.meta_path)
    eager_inside.begin()
    assert (stance(), sys.meta_path) == ("force_eager", found)
    eager_inside.end()
    assert stance() == "found"


def test_a_stance_that_the_program_sets_inside_stays(eager_inside):
    eager_inside.begin()
    import_module("dynamo_of_a_test")._set_stance("of the program")
    eager_inside.end()
    assert import_module("dynamo_of_a_test")._stance == "of the program"


def test_dynamo_that_is_imported_while_the_simulation_is_left_keeps_its_own_stance(eager_inside, tmp_path):
    inside, left = threading.Event(), threading.Event()
    (tmp_path / "dynamo_of_a_test.py").write_text(
        "import events_of_a_test as e; e.inside.set(); e.left.wait()" + DYNAMO
    )
    sys.modules["events_of_a_test"] = SimpleNamespace(inside=inside, left=left)
    eager_inside.begin()
    importing = threading.Thread(target=stance)
    importing.start()
    inside.wait()
    eager_inside.end()
    left.set()
    importing.join()
    del sys.modules["events_of_a_test"]
    assert stance() == "found"
