"""Machine code on disk: whatever becomes of it, loops are compiled anew, and compute the same."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from numba import carray, types

from roundoff import caches
from roundoff.caches import CacheWarning
from roundoff.formats.cpu import c_functions
from roundoff.formats.cpu import threads as native_loops
from roundoff.formats.cpu.numbers import floats_nearest as nearest_loops
from roundoff.formats.cpu.numbers import logarithms as logarithmic_kernels
from roundoff.formats.cpu.widths import specialised
from roundoff.simulate.watching import absorption, counting

WORDS = types.CPointer(types.int64)


def loop(numbers, count, step):
    values = carray(numbers, count)
    for i in range(count):
        values[i] = step * values[i] + 1


def result(function):
    memory = (ctypes.c_int64 * 3)(1, 2, 3)
    function(ctypes.addressof(memory), 3, 10)
    return list(memory)


def fresh():
    """The loop as a process sees it that has not met it before."""
    return c_functions.c_function.__wrapped__(loop, (WORDS, types.int64, types.int64))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    caches.advise.cache_clear()
    yield tmp_path / "roundoff"
    caches.advise.cache_clear()


@pytest.fixture
def compilations(monkeypatch):
    """Counts them."""
    counted = []
    original = c_functions.CFunc._compile_uncached

    def counting(self):
        counted.append(self._pyfunc.__name__)
        return original(self)

    monkeypatch.setattr(c_functions.CFunc, "_compile_uncached", counting)
    return counted


def test_it_is_compiled_once_and_then_read(folder, compilations):
    assert result(fresh()) == result(fresh()) == [11, 21, 31]
    assert len(compilations) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("damage", ["empty", "half", "zeros", "a bit", "foreign", "folder"])
def test_a_damaged_entry_is_compiled_anew_and_replaced(folder, compilations, damage):
    fresh()
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    content = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "a bit": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        "foreign": c_functions._SUM(b"cos\nnothing\n.").digest() + b"cos\nnothing\n.",
    }
    path.unlink()
    if damage == "folder":
        path.mkdir()
        with pytest.warns(CacheWarning, match="directory"):
            assert result(fresh()) == [11, 21, 31]
        return
    path.write_bytes(content[damage])
    assert [result(fresh()) for _ in range(2)] == [[11, 21, 31]] * 2
    assert len(compilations) == 2
    assert len(list(folder.iterdir())) == 1


def test_a_full_disk_costs_one_line_of_advice(folder, compilations, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(CacheWarning, match=r"cannot be kept \(No space left on device\)") as said:
        assert [result(fresh()) for _ in range(2)] == [[11, 21, 31]] * 2
    assert len(compilations) == 2
    assert len(said) == 1
    assert not list(folder.iterdir())


def test_what_another_machine_has_compiled_is_not_used(folder, compilations, monkeypatch):
    fresh()
    monkeypatch.setattr(c_functions.llvmlite, "__version__", "0")
    fresh()
    assert len(compilations) == len(list(folder.iterdir())) == 2


def test_all_that_compile_loops_do_it_here(folder):
    """The loops of floats, of the other families, of counters, and of absorbed additions."""
    c_functions.c_function.cache_clear()
    chain = specialised(nearest_loops.nearest, torch.float32, **nearest_loops.CHAIN._asdict())
    native_loops.compiled.__wrapped__(chain, torch.float32)
    native_loops.compiled.__wrapped__(logarithmic_kernels._nearest_loop, torch.float32)
    counting._carrier.__wrapped__(torch.float32)
    absorption._compiled.__wrapped__(torch.float32)
    names = {path.name.rpartition("_")[0] for path in folder.iterdir()}
    assert names == {"nearest32", "_nearest_loop", "_count_numbers32", "_count_absorbed"}


PROGRAM = """
import tempfile; tempfile.tempdir = "/proc"
import torch, roundoff
print(roundoff.round(torch.tensor([0.1]), "e5m2").item())
"""


def test_it_rounds_where_nothing_can_be_written():
    """The package is installed as on a cluster: read-only, without a home or a temporary directory of one's own."""
    chosen = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in chosen} | {"HOME": "/proc"}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert float(ended.stdout) == 0.09375
    assert ended.stderr.count("CacheWarning") == 1
    assert "<string>:4: CacheWarning" in ended.stderr
