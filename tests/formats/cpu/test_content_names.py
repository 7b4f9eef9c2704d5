"""Machine code kept on disk goes by the content of all functions that a loop is made of."""

import types

import numba
import numpy as np
import torch
from numba import njit

from roundoff.formats.cpu.content_names import named_after_content
from roundoff.formats.cpu.numbers.grids import _column_loop
from roundoff.formats.cpu.widths import specialised

SOURCE = """
@njit(inline="always")
def inner(x):
    return x {operator} types.{kind}(CAST(STEP))


def outer(x):
    return inner(x) + 1


def loop(x):
    return [outer(x) for _ in range(3)]
"""


def loop(operator="+", step=2, kind="int64", cast=np.uint32):
    module = {"njit": njit, "types": numba.types, "CAST": cast, "STEP": step, "__name__": "somewhere"}
    exec(SOURCE.format(operator=operator, kind=kind), module)
    return module["loop"]


def test_a_change_anywhere_gives_another_name():
    loops = [loop(), loop("-"), loop(step=3), loop(step=np.uint32(2)), loop(kind="int32"), loop(cast=np.uint64)]
    names = [named_after_content(f).__qualname__ for f in loops]
    assert len(set(names)) == 6
    assert named_after_content(loop()).__qualname__ == names[0]
    assert named_after_content(lambda x: 2 * x)(5) == 10


def test_what_a_real_loop_is_made_of_counts(monkeypatch):
    columns = specialised(_column_loop, torch.float32)
    name = named_after_content(columns).__qualname__
    assert name.startswith("_column_loop32_")
    from roundoff.formats.cpu.tail import round_shifted

    tail_of = specialised(round_shifted, torch.float32)
    changed = types.FunctionType(
        tail_of.py_func.__code__.replace(co_consts=(*tail_of.py_func.__code__.co_consts, 7)), {}
    )
    monkeypatch.setattr(tail_of, "py_func", changed)
    assert named_after_content(columns).__qualname__ != name
