"""C++ loops of a program that are compiled in few files: how many, which, and that each is the one it was."""

import re

import pytest
from comparing import numbers, same_bits
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppPythonBindingsCodeCache

import roundoff
from roundoff.simulate.compiling.graphs import gathered_loops
from roundoff.simulate.compiling.graphs.gathered_loops import gathered_loops as gathering
from roundoff.simulate.compiling.step import reason_against_compiling

LOOP = '\n#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C"  void  kernel(float* out)\n{\n    out[0] = 1;\n}\n'
HELPED = LOOP.replace('extern "C"', 'static int other()\n{\n    return 1;\n}\nextern "C"')


def seven_loops(x, y):
    """Loops between products, which are called; each has another number in it."""
    found = [x * 1.1 - y]
    for i in range(6):
        found.append((found[-1] @ y) * (0.1 * i) + x)
    return found


def test_a_program_has_its_loops_in_few_files(monkeypatch):
    assert reason_against_compiling() is None  # which compiles something, once in a process
    files = []
    load = CppPythonBindingsCodeCache.load_async

    def load_async(source, *arguments, **options):
        files.append(len(re.findall(r'extern "C"\s+void\s+kernel', source)))
        return load(source, *arguments, **options)

    monkeypatch.setattr(CppPythonBindingsCodeCache, "load_async", load_async)
    monkeypatch.setattr(gathered_loops, "get_compile_threads", lambda: 3)
    x, y = (numbers(seed, 31 * 31).nan_to_num(1.0, 1.0, 1.0).clamp(-2, 2).view(31, 31) for seed in range(2))
    expected, found = seven_loops(x, y), roundoff.compile(seven_loops, None)(x, y)
    assert all(map(same_bits, expected, found))
    assert files == [4, 3]


@pytest.mark.parametrize(
    ("source", "threads", "gathered"), [(LOOP, 2, True), (LOOP, 1, False), (HELPED, 2, False)], ids=range(3)
)
def test_what_cannot_be_gathered_is_left_to_inductor(source, threads, gathered, monkeypatch):
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: "its own")
    monkeypatch.setattr(gathered_loops, "get_compile_threads", lambda: threads)
    with gathering():
        assert (AsyncCompile().cpp_pybinding(["float*"], source) != "its own") == gathered
    assert AsyncCompile().cpp_pybinding(["float*"], source) == "its own"


def test_a_binding_that_is_not_as_we_know_it_is_left_to_inductor(monkeypatch):
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: "its own")
    template = CppPythonBindingsCodeCache.suffix_template.replace("py_methods", "methods")
    monkeypatch.setattr(CppPythonBindingsCodeCache, "suffix_template", template)
    with gathering():
        assert AsyncCompile().cpp_pybinding(["float*"], LOOP) == "its own"
