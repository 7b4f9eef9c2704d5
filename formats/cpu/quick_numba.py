"""Makes numba compile in a quarter of the time, to the same machine code, by leaving out work that changes nothing.

A loop of many small functions takes seconds to compile, mostly for the following steps, which are left
out while :func:`quick_numba` is on:

- copies of inlined functions, twice, block by block, each block with all variables of the function;
- reading a function again for each inlined call of it, with all functions that it calls;
- the lifetimes of all variables after each of some twenty passes: only the last pass and generators ask for them;
- rewriting all blocks, twice, for each variable that is assigned more than once: few blocks have it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numba
from numba.core import inline_closurecall, ir, postproc, ssa, transforms
from numba.core.compiler_lock import global_compiler_lock

from roundoff.locks import known

known(global_compiler_lock._lock)  # noqa: SLF001  whoever compiles a loop takes it, and no fork knows it

_CHECKED = "0.68."
"""The numba versions with compared machine code; the functions that are replaced are not public."""


@contextmanager
def quick_numba() -> Iterator[None]:
    """Makes numba compile without work that changes nothing, for the block; no other thread compiles meanwhile.

    A version of numba that was not checked compiles as it always does.
    """
    if not numba.__version__.startswith(_CHECKED):  # Another version may need the steps left out.
        yield
        return
    with global_compiler_lock, ExitStack() as stack:  # Other threads must not compile with the replacements.
        for owner, name, instead in (
            (inline_closurecall.InlineWorker, "inline_function", _inline),
            (postproc.PostProcessor, "run", _post_process_with(postproc.PostProcessor.run)),
            (ssa, "_run_block_rewrite", _rewrite_with(ssa._run_block_rewrite, _Names())),  # noqa: SLF001
        ):
            stack.enter_context(patch.object(owner, name, instead))
        yield


class _Readings:
    """A cache of numba's untyped IR of functions; each inlined use gets its own copy, since inlining changes it.

    The loops of a process share most of their functions. The most recently used functions are kept.
    """

    MOST = 200

    def __init__(self) -> None:
        self._read: dict[Any, Any] = {}

    def of(self, worker: Any, function: Any) -> Any:
        key = function, worker.flags.error_model
        read = self._read.pop(key, None) or worker.run_untyped_passes(function)
        # Reading does this to the caller's flags, which are part of its name: also when nothing is read.
        worker.flags.enable_ssa = False
        self._read[key] = read  # At the end: the order is by the latest use.
        while len(self._read) > self.MOST:
            del self._read[next(iter(self._read))]  # The least recent one.
        copied = copy.copy(read)
        copied.blocks = _Copies(read.blocks).blocks
        return copied


_readings = _Readings()


class _Copies:
    """Copies of the blocks of a function, with one new scope, new variables and new instructions.

    Constants, functions and places in the source are shared.
    """

    def __init__(self, blocks: dict[int, Any]) -> None:
        old = next(iter(blocks.values())).scope
        self._scope = ir.Scope(old.parent, old.loc)
        self._scope.redefined.update(old.redefined)
        for name, names in old.var_redefinitions.items():
            self._scope.var_redefinitions[name] = set(names)
        self._variables = {name: ir.Var(self._scope, name, var.loc) for name, var in old.localvars._con.items()}  # noqa: SLF001
        self._scope.localvars._con.update(self._variables)  # noqa: SLF001
        self.blocks = {label: ir.Block(self._scope, block.loc) for label, block in blocks.items()}
        for label, block in blocks.items():
            self.blocks[label].body = [self._node(statement) for statement in block.body]

    def _node(self, node: Any) -> Any:
        if isinstance(node, ir.Var):
            return self._variables.get(node.name) or ir.Var(self._scope, node.name, node.loc)
        if isinstance(node, (list, tuple)):
            return type(node)([self._node(item) for item in node])
        if isinstance(node, dict):
            return {key: self._node(value) for key, value in node.items()}
        if not isinstance(node, (ir.Inst, ir.Arg, ir.Const, ir.Global, ir.FreeVar)):
            return node
        copied = copy.copy(node)
        if isinstance(node, ir.Inst):
            copied.__dict__.update({key: self._node(value) for key, value in node.__dict__.items()})
        return copied


_NO_COPIES = SimpleNamespace(deepcopy=lambda block: block, copy=copy.copy)


def _inline(self: Any, caller: Any, block: Any, place: int, function: Any, types: Any = None) -> Any:
    """Inlines a function as numba does, but without its copies: the code that it inlines is already a copy."""
    read = _readings.of(self, function)
    with patch.object(inline_closurecall, "copy", _NO_COPIES):
        return self.inline_ir(caller, block, place, read, function.__code__.co_freevars, arg_typs=types)


def _post_process_with(process_all: Any) -> Any:
    def post_process(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        """Leaves lifetimes to the passes that need them; only object mode needs ``block_entry_vars``."""
        function = self.func_ir
        if emit_dels or function.is_generator:
            process_all(self, emit_dels, extend_lifetimes)
            return
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None

    return post_process


class _Names:
    """The names of the variables of each block; rewriting a block adds no names."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, set[str]]] = {}  # by identity, with the block, so that it stays alive

    def of(self, block: Any) -> set[str]:
        if id(block) not in self._names:
            self._names[id(block)] = block, {var.name for statement in block.body for var in statement.list_vars()}
        return self._names[id(block)][1]

    def inherit(self, block: Any, older: Any) -> None:
        self._names[id(block)] = block, self.of(older)


def _rewrite_with(rewrite_all: Any, names: _Names) -> Any:
    def rewrite(blocks: dict[int, Any], states: dict[str, Any], handler: Any) -> dict[int, Any]:
        """Rewrites the blocks that have the variable; the others come back as they are."""
        having = {label: block for label, block in blocks.items() if states["varname"] in names.of(block)}
        rewritten = rewrite_all(having, states, handler)
        for label, block in rewritten.items():
            names.inherit(block, blocks[label])
        return {label: rewritten.get(label, block) for label, block in blocks.items()}

    return rewrite
