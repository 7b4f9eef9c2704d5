"""Inlining without copies: the machine code that numba makes with them."""

import copy
import re

import pytest
from numba import njit, types
from numba.core import inline_closurecall
from numba.core.ccallback import CFunc
from numba.core.inline_closurecall import InlineWorker

from roundoff.formats.cpu.c_functions import inlining_without_copies


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
    """LLVM's code without the number of the compilation, which numba puts into names: the first has ``loopB2v1``."""
    return re.sub(r"B\dv\d+", "", function.inspect_llvm())


@pytest.fixture
def copies(monkeypatch):
    made = []
    original = copy.deepcopy

    def deepcopy(x, *memo):
        made.append(x)
        return original(x, *memo)

    monkeypatch.setattr(copy, "deepcopy", deepcopy)
    return made


def test_the_machine_code_is_the_same(copies):
    expected = compiled()
    with_copies = len(copies)
    with inlining_without_copies():
        found = compiled()
    assert len(copies) - with_copies < with_copies / 4
    for function in (expected, found):
        assert function.ctypes(0, 50) == loop(0, 50)
    assert code(found) == code(expected)


def test_numba_is_left_as_it_was():
    before = InlineWorker.inline_function, inline_closurecall.copy
    with pytest.raises(ZeroDivisionError), inlining_without_copies():
        compiled()
        raise ZeroDivisionError
    assert before == (InlineWorker.inline_function, inline_closurecall.copy)
