"""Threads that trace and compile at the same time, and threads that compute beside them."""

import errno
import queue
import threading

import pytest
import torch
from each import each
from torch import nn
from torch._inductor.exc import CppCompileError

import roundoff
from roundoff import CompileWarning, simulate
from roundoff.simulate.compiling import program as program_module
from roundoff.simulate.compiling.graphs import tracing


def line():
    return torch.linspace(-1, 1.3, 6)


def in_threads(*functions):
    """Runs functions in threads at once, and returns the errors that they raise."""
    failed = []

    def run(function):
        try:
            function()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_threads_trace_in_turn(uncompiled):
    """Also the first program of a process, by which it is found out whether there is a compiler."""
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU())

    def traces(number):
        for n in range(1, 4):
            step = roundoff.compile(lambda x: module(x) * torch.rand(6) * (n + 10 * number), simulate("e5m4"))  # noqa: B023
            assert step.reason is None
            step(line())

    program_module._reason_of_this_machine.cache_clear()
    assert not in_threads(*(lambda number=number: traces(number) for number in range(4)))


def test_what_other_threads_do_is_not_the_steps(uncompiled):
    """While a step is traced, another thread calls modules, makes some, and sets a seed."""
    inside, begin, failed = nn.Linear(6, 6), queue.SimpleQueue(), queue.SimpleQueue()

    def beside(other):
        begin.get()
        torch.manual_seed(7)
        with simulate("e5m4"):
            nn.Linear(6, 6)(other(line()))

    def run(other):
        failed.put(in_threads(lambda: beside(other)))

    thread = threading.Thread(target=run, args=(nn.Linear(6, 6),))
    thread.start()

    def step(x):
        begin.put(None)
        assert failed.get() == []
        return inside(x) * torch.rand(6)

    roundoff.compile(step, simulate("e5m4"))(line())
    thread.join()
    assert torch.random.default_generator is torch.default_generator


@each(
    ("error", "expected", "advised"),
    [
        (RuntimeError("graphs are out of order"), "RuntimeError: graphs are out of order", False),
        (AssertionError(), "AssertionError", False),
        (OSError(errno.EACCES, "Permission denied", "/cache"), "Permission denied: /cache", True),
        (CppCompileError(["g++"], "fatal error: Python.h: No such file"), "fatal error: Python.h", True),
    ],
)
def test_a_compiler_that_fails_is_described_as_it_fails(error, expected, advised, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr(tracing, "compile_graph", fail)
    program_module._reason_of_this_machine.cache_clear()
    try:
        with pytest.warns(CompileWarning) as warned:
            roundoff.compile(lambda x: x, simulate("e5m4"))
    finally:
        program_module._reason_of_this_machine.cache_clear()
    text = str(warned[0].message)
    assert expected in text
    assert ("g++ and the headers" in text) == advised
