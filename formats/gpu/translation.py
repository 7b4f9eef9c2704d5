"""The functions that numba compiles for the CPU, translated to Triton: each rounding is written once.

A function of :mod:`..cpu` that rounds a number is free of branches, and casts every intermediate result. So it reads
the same in both languages, with a few exceptions: a choice is ``tl.where``, a division of float32 numbers must request
correct rounding, an element at an address is loaded. :func:`in_triton` rewrites the syntax trees of a function and of
all functions it calls accordingly. Kernels themselves are Python functions of this package, written for Triton; they
are translated likewise, so that the names of :mod:`..cpu.widths` mean the same in kernels as in loops.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from functools import cache, reduce
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from ..cpu.widths import ByWidth, KernelPart
from . import intrinsics
from .places import NUMBERS

_LITERALS = (bool, int, float, np.generic)
_TYPES = (np.uint32, np.uint64, np.int32, np.int64, np.float32, np.float64)
_OF_PYTHON = {"abs": "tl.abs", "min": "tl.minimum", "max": "tl.maximum"}
_OF_NUMPY = {"np.floor": intrinsics.floor, "np.rint": intrinsics.rint}


def in_triton(function: Any, dtype: torch.dtype, *, interpreted: bool = False, **parts: Any) -> Any:
    """A function as Triton's, with the meanings of names for one carrier; the same object each time.

    Args:
        function: a Python function in the common part of numba's and Triton's languages, also after ``njit``; or a
            kernel, written for Triton.
        dtype: float32 or float64, the carrier.
        interpreted: whether Triton's interpreter runs it, on tensors in the CPU's memory.
        parts: the values of :class:`~roundoff.formats.cpu.widths.KernelPart` names, here and in called functions.

    Raises:
        KeyError: a part is missing.
    """
    return _translated(getattr(function, "py_func", function), dtype, interpreted, tuple(sorted(parts.items())))


@cache
def _translated(plain: Any, dtype: torch.dtype, interpreted: bool, parts: tuple[tuple[str, Any], ...]) -> Any:
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(plain))).body[0]
    rewriter = _Rewriter(plain, dtype, interpreted, parts)
    tree = rewriter.visit(tree)
    name = f"{plain.__name__.strip('_')}_{8 * dtype.itemsize}"
    tree.name, tree.decorator_list, tree.returns = name, [], None  # Triton adds its own decorator.
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    filled = ", ".join(f"{part}={value.__module__}.{value.__qualname__}" for part, value in parts)
    file = f"<{plain.__module__}.{name} in Triton{' interpreted' * interpreted}: {filled}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # Triton reads the source
    scope: dict[str, Any] = {"__name__": plain.__module__, "tl": tl, **rewriter.scope}
    exec(compile(text, file, "exec"), scope)  # noqa: S102  our own text
    translated = scope[name]
    if interpreted:
        return InterpretedFunction(translated)
    varying = [name for name in NUMBERS if name in plain.__code__.co_varnames[: plain.__code__.co_argcount]]
    return triton.jit(translated, do_not_specialize=varying)


class _Rewriter(ast.NodeTransformer):
    """Rewrites a function, and collects the values of its names in ``scope``."""

    def __init__(self, plain: FunctionType, dtype: torch.dtype, interpreted: bool, parts: Any) -> None:
        self.scope: dict[str, Any] = {}
        self._globals = plain.__globals__
        self._dtype, self._interpreted, self._parts = dtype, interpreted, dict(parts)
        self._local = set(plain.__code__.co_varnames)

    def _meaning(self, name: str) -> Any:
        value = self._globals[name]
        if isinstance(value, KernelPart):
            return self._parts[name]
        if isinstance(value, ByWidth):
            return value.narrow if self._dtype == torch.float32 else value.wide
        return value

    def _callable(self, name: str, value: Any) -> ast.Name:
        """A name for a function or class in the new scope."""
        value = intrinsics.STANDS_FOR.get(value, value)
        if hasattr(value, "py_func") or (isinstance(value, FunctionType) and value.__module__.startswith("roundoff.")):
            value = in_triton(value, self._dtype, interpreted=self._interpreted, **self._parts)
        while self.scope.setdefault(name, value) is not value:  # Another module has another function of this name.
            name += "_"
        return ast.Name(name, ast.Load())

    def _constant(self, node: ast.expr) -> Any:
        """The value of an expression without local names; None if it has any, or is not a number."""
        names: dict[str, Any] = {}
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                if part.id in self._local or part.id not in self._globals:
                    return None
                names[part.id] = self._meaning(part.id)
                if not isinstance(names[part.id], (*_LITERALS, ModuleType)) and names[part.id] not in _TYPES:
                    return None
            elif isinstance(part, ast.Attribute) and part.attr not in ("inf", "nan"):
                return None
        value = eval(compile(ast.Expression(ast.fix_missing_locations(node)), "<constant>", "eval"), names)  # noqa: S307
        return value if isinstance(value, _LITERALS) else None

    def visit(self, node: ast.AST) -> Any:
        """A constant is computed now: Triton would take a float for float32, whatever it is cast to."""
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            value = self._constant(node)
            if value is not None:
                return ast.parse(_typed_literal(value), mode="eval").body
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self._local or node.id not in self._globals:
            return node
        value = self._meaning(node.id)
        if isinstance(value, tuple):
            items = [self.visit(ast.parse(_typed_literal(item), mode="eval").body) for item in value]
            return ast.Tuple(items, ast.Load())
        return node if value is tl or isinstance(value, ModuleType) else self._callable(node.id, value)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Kernels say which arguments are constants; loops annotate theirs for readers, and for C."""
        if not (isinstance(node.annotation, ast.Attribute) and node.annotation.attr in ("constexpr", "int64")):
            node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        value: Any = node.value
        return self.generic_visit(ast.Assign([node.target], value, lineno=0))  # Numba's types mean nothing to Triton.

    def visit_Expr(self, node: ast.Expr) -> Any:
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # A docstring.

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        chosen: Any = self.generic_visit(node)
        if isinstance(chosen.test, ast.Constant):  # The other branch may not compile.
            return chosen.body if chosen.test.value else chosen.orelse
        return ast.Call(ast.parse("tl.where", mode="eval").body, [chosen.test, chosen.body, chosen.orelse], [])

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        # Tensors have no ``and`` and ``or``. A constant either decides the result or can be left out.
        operator, deciding = (ast.BitAnd(), False) if isinstance(node.op, ast.And) else (ast.BitOr(), True)
        parts = [self.visit(value) for value in node.values]
        if any(isinstance(part, ast.Constant) and part.value is deciding for part in parts):
            return ast.Constant(deciding)
        parts = [part for part in parts if not isinstance(part, ast.Constant)]
        return reduce(lambda left, right: ast.BinOp(left, operator, right), parts)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        visited: Any = self.generic_visit(node)
        if isinstance(visited.op, ast.Div) and self._globals is not vars(intrinsics):
            typed = visited.right if isinstance(visited.left, ast.Constant) else visited.left
            return ast.Call(self._callable("quotient", intrinsics.quotient), [visited.left, visited.right, typed], [])
        return visited

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        visited: Any = self.generic_visit(node)
        if isinstance(visited.slice, (ast.Tuple, ast.Slice)) or self._globals is vars(intrinsics):  # [:, None]
            return visited
        return ast.Call(self._callable("item", intrinsics.item), [visited.value, visited.slice], [])

    def visit_Call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        if name in _OF_PYTHON:
            node.func = ast.parse(_OF_PYTHON[name], mode="eval").body
        elif name in _OF_NUMPY:
            arguments = [self.visit(argument) for argument in node.args]
            return ast.Call(self._callable(name.removeprefix("np."), _OF_NUMPY[name]), arguments, [])
        return self.generic_visit(node)


def _typed_literal(value: Any) -> str:
    return f"tl.full((), {_literal(value)}, tl.{value.dtype})" if isinstance(value, np.generic) else _literal(value)


def _literal(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    return f"float('{plain}')" if plain != plain or plain in (float("inf"), -float("inf")) else repr(plain)  # noqa: PLR0124
