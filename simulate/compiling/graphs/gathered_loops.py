"""The loops of a program in few C++ files: the compiler reads PyTorch's headers once for all loops of a file.

Inductor has a file compiled for each loop. This takes a second, more than half of it for PyTorch's headers, even
when they are precompiled. So the loops of a program are compiled together: in one file for each compiling
process, and with some loops in each. Every loop stays a separate function, with the same instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import CppPythonBindingsCodeCache, LambdaFuture

_LOOPS_OF_A_FILE = 4  # at least: as much work as the headers and more, so that further processes gain

_NAME = CppPythonBindingsCodeCache.entry_function
_HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>"
_LOOP = re.compile(rf'\s*{re.escape(_HEADER)}\s*(extern "C"\s+void\s+){_NAME}(?=\()')

# Inductor's binding of a file to Python: what comes before the function of a loop, the function, a table of functions.
_BINDING = re.compile(
    rf"(?P<before>.*)(?P<function>static PyObject\* {_NAME}_py\(.*)"
    r"(?P<table>static PyMethodDef py_methods\[\] = \{\s*)"
    rf'(?P<row>\{{\s*"{_NAME}",[^}}]*\b{_NAME}_py\b[^}}]*\}},)(?P<after>.*)',
    re.DOTALL,
)


class _Loop(NamedTuple):
    source: str
    binding: re.Match[str]
    """Inductor's binding of the single loop to Python."""


@final
class _Gathered:
    """Loops of a program that are compiled together as soon as one of them is wanted."""

    def __init__(self) -> None:
        self._waiting: list[_Loop] = []
        self._functions: list[Callable[[], Any]] = []

    def add(self, loop: _Loop) -> LambdaFuture:
        """The function of a loop, loaded at its first use."""
        place = len(self._functions) + len(self._waiting)
        self._waiting.append(loop)
        return LambdaFuture(lambda: self._function(place))

    def _function(self, place: int) -> Any:
        if self._waiting:
            # Several processes compile all waiting loops at once
            loops, self._waiting = self._waiting, []
            files = min(get_compile_threads(), -(-len(loops) // _LOOPS_OF_A_FILE))
            modules = [_module_of(loops[i::files]) for i in range(files)]
            for i in range(len(loops)):
                self._functions.append(_attribute_of(modules[i % files], f"{_NAME}_{i // files}"))
        return self._functions[place]()


def _attribute_of(module: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(module(), name)


def _module_of(loops: Sequence[_Loop]) -> Callable[[], Any]:
    """Begins to compile loops as one file; the returned function waits for it, and loads it as a module."""
    sources, functions, rows = [_HEADER], [], []
    for i, (source, binding) in enumerate(loops):
        name = f"{_NAME}_{i}"
        sources.append(_LOOP.sub(rf"\g<1>{name}", source))
        functions.append(re.sub(rf"\b{_NAME}(?=_py\(|\()", name, binding["function"]))
        rows.append(binding["row"].replace(_NAME, name))
    shared = loops[0].binding
    text = [*sources, shared["before"], *functions, shared["table"], *rows, shared["after"]]
    load: Callable[..., Callable[[], Any]] = CppPythonBindingsCodeCache.load_async
    return load("\n".join(text), "cpu", submit_fn=AsyncCompile.submit)


def _loop_of(argtypes: Sequence[str], source: str) -> _Loop | None:
    """The loop of a source; None if it is more than the header and a function, or is bound in a way we do not know."""
    cache = CppPythonBindingsCodeCache
    begins = _LOOP.match(source)
    is_single = source.rstrip().endswith("\n}") and source.count("\n}") == 1
    named_once = len(re.findall(rf"\b{_NAME}\b", source)) == 1
    parsed = ", ".join(f"parse_arg<{kind.replace('const ', '')}>(args, {n})" for n, kind in enumerate(argtypes))
    binding = _BINDING.fullmatch(
        cache.suffix_template.format(
            arg_len=len(argtypes),
            call_entry_func=cache.call_entry_function.format(parsed),
            entry_func=_NAME,
            extra_parse_arg="",
        )
    )
    return _Loop(source, binding) if begins and is_single and named_once and binding else None


@contextmanager
def gathered_loops() -> Iterator[None]:
    """For the block, inductor has the C++ loops of a program compiled together; it loads one program in it."""
    gathered, original = _Gathered(), AsyncCompile.cpp_pybinding

    def cpp_pybinding(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
        loop = _loop_of(argtypes, source_code) if get_compile_threads() > 1 else None
        return original(self, argtypes, source_code) if loop is None else gathered.add(loop)

    AsyncCompile.cpp_pybinding = cpp_pybinding  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = original  # type: ignore[method-assign]
