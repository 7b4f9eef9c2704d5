"""One source for both carriers: the copies compute with their own widths, and are kept on disk one by one."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from numba import njit, types
from numpy import float32, float64, uint32, uint64

from roundoff.formats.cpu.arguments import Double, Doubles, Int, Mode, Numbers, Patterns, Real, Words, c_types
from roundoff.formats.cpu.content_names import named_after_content
from roundoff.formats.cpu.threads import compiled
from roundoff.formats.cpu.widths import (
    MAGNITUDE,
    STORED,
    ByWidth,
    KernelPart,
    bits_of,
    float_of,
    left,
    right,
    specialised,
    unsigned,
)

LIMIT = ByWidth(float32(2.0), float64(8.0))
element = KernelPart()


@njit(inline="always")
def half_significand(x):
    """Cuts the lower half of what is stored."""
    cut = unsigned(STORED >> unsigned(1))
    return float_of(left(right(unsigned(bits_of(x) & MAGNITUDE), cut), cut))


def loop(source: "Numbers", target: "Numbers", n: "Int"):
    for i in range(n):
        target[i] = min(half_significand(source[i]), LIMIT)


def plugged(source: "Numbers", target: "Numbers", n: "Int"):
    for i in range(n):
        target[i] = element(source[i])


@njit(inline="always")
def doubled(x):
    return x + x


DTYPES = (torch.float32, torch.float64)


def run(body, dtype, *, in_place=False):
    source = torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(1)) * 4
    target = torch.zeros_like(source)
    compiled(body, dtype, in_place=in_place)(source.data_ptr(), target.data_ptr(), 1000)
    return source, target


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_loop_computes_with_the_width_of_its_carrier(dtype):
    source, target = run(loop, dtype)
    word, cut, limit = (np.uint32, 11, 2.0) if dtype == torch.float32 else (np.uint64, 26, 8.0)
    cut_off = source.abs().numpy().view(word) >> word(cut) << word(cut)
    expected = torch.from_numpy(cut_off.view(source.numpy().dtype)).clamp(max=limit)
    assert target.equal(expected)
    source, target = run(loop, dtype, in_place=True)
    assert source.equal(expected)
    assert not target.any()


def test_a_copy_is_made_once_and_named_after_all_it_is_made_of():
    copies = [specialised(loop, dtype) for dtype in DTYPES]
    assert copies == [specialised(loop, dtype) for dtype in DTYPES]
    assert [copy.__name__ for copy in copies] == ["loop32", "loop64"]
    assert len({named_after_content(f).__name__.rpartition("_")[2] for f in (loop, *copies)}) == 3


def test_what_does_not_depend_on_the_width_stays_what_it_is():
    for function in (doubled, named_after_content):
        assert specialised(function, torch.float32) is function


def test_annotations_say_what_the_arguments_are():
    def body(a: "Numbers", b: "Patterns", c: "Mode", d: "Words", e: "Real", f: "Double", g: "Int", h: "Doubles"): ...

    pointers = [types.CPointer(kind) for kind in (types.float64, types.uint64, types.int64, types.uint32)]
    expected = (*pointers, types.float64, types.float64, types.int64, types.CPointer(types.float64))
    assert c_types(body, torch.float64) == expected
    assert c_types(loop, torch.float32) == (types.CPointer(types.float32),) * 2 + (types.int64,)


def test_parts_are_filled_in():
    source, target = run(specialised(plugged, torch.float32, element=doubled), torch.float32)
    assert target.equal(2 * source)
    source, target = run(specialised(plugged, torch.float64, element=half_significand), torch.float64)
    assert (target.view(torch.int64) & ((1 << 26) - 1)).eq(0).all()
    with pytest.raises(KeyError, match="element"):
        specialised(plugged, torch.float32)


@pytest.mark.parametrize(("word", "dtype"), [(uint32, torch.float32), (uint64, torch.float64)])
def test_the_names_mean_what_they_say(word, dtype):
    numpy_number = float32 if word is uint32 else float64
    names = specialised(loop, dtype).__globals__["half_significand"].py_func.__globals__
    assert names["unsigned"] is word
    assert int(names["MAGNITUDE"]) == int(np.array(-0.0, numpy_number).view(word)) - 1
    assert int(names["STORED"]) == np.finfo(numpy_number).nmant


PROGRAM = """
import sys
import torch
from numba.core.ccallback import CFunc
from roundoff.formats.cpu.threads import compiled
from roundoff.formats.cpu.widths import specialised
import loops
CFunc._compile_uncached, original = lambda self: print("compiled") or original(self), CFunc._compile_uncached
for dtype in (torch.float32, torch.float64):
    compiled(specialised(loops.loop, dtype), dtype)
print(*sys.modules.keys() & {"numba.np.arraymath", "scipy.linalg"})
"""


def test_a_second_process_finds_both_copies_on_disk(tmp_path):
    (tmp_path / "loops.py").write_text(
        "from roundoff.formats.cpu.widths import real\n\n\n"
        "def loop(x: 'Numbers', y: 'Numbers', n: 'Int'):\n    y[0] = real(x[0] * x[1])\n"
    )
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }

    def process():
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()

    assert sorted(process()) == ["compiled", "compiled", "numba.np.arraymath", "scipy.linalg"]
    assert process() == []  # nor is imported what compiles
