"""Compiling without what changes nothing: the machine code that numba makes with it."""

import copy
import re
from contextlib import nullcontext

import numba
import pytest
import torch
from numba import njit, types
from numba.core import inline_closurecall, postproc, ssa
from numba.core.ccallback import CFunc

from roundoff.formats.cpu import c_functions, threads
from roundoff.formats.cpu.numbers.logarithms import _in_mode
from roundoff.formats.cpu.quick_numba import quick_numba


@njit(inline="always")
def halved(x):
    y = x
    while y > 10:
        y = y / 2 if y > 100 else y - 1
    return y


@njit(inline="always")
def summed(x, y):
    a = halved(x)
    x = halved(y)
    return a + x, a - x


def loop(first, last):
    x = y = 0.0
    for i in range(first, last):
        x, y = summed(x + i, y) if x < y else summed(y, halved(x))
        y += summed(x, x)[0]
    return x * y


def compiled():
    function = CFunc(loop, ((types.int64, types.int64), types.float64), locals={}, options={})
    function.compile()
    return function


def code(function):
    """Machine code without the number of the compilation, which numba puts into names: the first has ``loopB2v1``."""
    return re.sub(r"B\d*v\d+", "", function._library.get_asm_str())


PARTS = {
    "copies": (copy, "deepcopy"),
    "functions read": (inline_closurecall.InlineWorker, "run_untyped_passes"),
    "lifetimes": (postproc.analysis, "compute_live_variables"),
    "statements rewritten": (ssa._FixSSAVars, "on_assign"),
}


@pytest.fixture
def counted(monkeypatch):
    """How often numba does what can be left out."""
    counts = dict.fromkeys(PARTS, 0)

    def count(part, owner, name):
        original = getattr(owner, name)

        def counting(*given, **named):
            counts[part] += 1
            return original(*given, **named)

        monkeypatch.setattr(owner, name, counting)

    for part, (owner, name) in PARTS.items():
        count(part, owner, name)
    return counts


def test_the_machine_code_is_the_same(counted):
    expected = compiled()
    before = dict(counted)
    with quick_numba():
        found = compiled()
    for part, count in before.items():
        assert counted[part] - count < 0.7 * count, part
    for function in (expected, found):
        assert function.ctypes(0, 50) == loop(0, 50)
    assert code(found) == code(expected)


def test_loops_of_formats_have_it_too(monkeypatch):
    monkeypatch.setattr(c_functions, "folder_of_loops", lambda: None)
    monkeypatch.setattr(threads, "c_function", c_functions.c_function.__wrapped__)
    made = []
    for how in (nullcontext, quick_numba):
        monkeypatch.setattr(c_functions, "quick_numba", how)
        made.append(code(threads.compiled.__wrapped__(_in_mode, torch.float32).machine_code))
    assert len(made[0]) > 10_000
    assert made[0] == made[1]


def test_numba_is_left_as_it_was():
    def parts():
        return inline_closurecall.InlineWorker.inline_function, postproc.PostProcessor.run, ssa._run_block_rewrite

    before = parts()
    with pytest.raises(ZeroDivisionError), quick_numba():
        compiled()
        assert not set(before) & set(parts())
        raise ZeroDivisionError
    assert before == parts()


def test_a_numba_that_was_not_checked_compiles_as_it_does(monkeypatch):
    before = inline_closurecall.InlineWorker.inline_function
    with quick_numba():
        assert inline_closurecall.InlineWorker.inline_function is not before
    monkeypatch.setattr(numba, "__version__", "0.99.0")
    with quick_numba():
        assert inline_closurecall.InlineWorker.inline_function is before
