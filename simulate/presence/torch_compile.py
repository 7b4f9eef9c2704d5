"""Keep ``torch.compile`` and simulations apart. Only the program itself imports dynamo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, update_wrapper
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, final

from torch._C._dynamo import eval_frame

from roundoff.locks import new_lock

_F = TypeVar("_F", bound="Callable[..., Any]")
_DYNAMO = "torch._dynamo.eval_frame"  # the module that has the stance


@cache
def _dynamo() -> Any:
    from torch._dynamo import eval_frame  # noqa: PLC0415  it takes seconds

    return eval_frame


def _wait_for_imports() -> None:
    """Waits while another thread imports dynamo: in a forked child, every import of it would wait forever."""
    for name in (_DYNAMO.rpartition(".")[0], _DYNAMO):
        if name in sys.modules:
            with suppress(ImportError):
                import_module(name)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_wait_for_imports)


def is_compiling() -> bool:
    """Whether this thread is in a function that ``torch.compile`` has been given."""
    return eval_frame.get_eval_frame_callback() not in (None, False)


def is_compiling_operator() -> bool:
    """Whether this thread is in an operator such as ``torch.cond``, which compiles its arguments."""
    utilities: Any = sys.modules.get("torch._higher_order_ops.utils")  # an import statement takes ten times as long
    return utilities is not None and bool(getattr(utilities._hop_compile_tls, "in_hop_compile", False))  # noqa: SLF001  no other access


def unseen(wrapped: _F) -> _F:
    """Returns a method that runs without dynamo's wrapper while dynamo looks at no frames.

    PyTorch wraps ``__torch_dispatch__`` so that dynamo compiles none of it, which takes longer than detaching a tensor.
    The wrapper is needed only while dynamo looks at frames, as operators such as ``torch.cond`` have it do.

    Args:
        wrapped: the method in PyTorch's wrapper.

    Returns:
        A method with a frame that dynamo skips.
    """
    plain: Any = getattr(wrapped, "__wrapped__", None)
    if plain is None:  # PyTorch 2.8 has no wrapper
        return wrapped
    callback = eval_frame.get_eval_frame_callback

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return (plain if callback() is None else wrapped)(*args, **kwargs)

    skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT  # noqa: SLF001  the only access there is
    strategy = eval_frame._FrameExecStrategy(skip, default)  # noqa: SLF001  as above
    eval_frame.set_code_exec_strategy(dispatch.__code__, strategy)
    return update_wrapper(dispatch, wrapped)  # type: ignore[return-value]


@final
class _DynamoStance:
    """The replacement for PyTorch's ``DynamoStance``, queried when a function of ``torch.compile`` is called."""

    def __init__(self, original: Any, is_inside: Callable[[], bool], recording: Callable[[], Any]) -> None:
        self.original = original
        self._is_inside, self._recording = is_inside, recording

    @property
    def stance(self) -> str:
        # A property, since PyTorch reads it at each call, and calls come from threads inside and outside.
        eager = self._is_inside() and not is_compiling_operator() and self._recording() is None
        return "force_eager" if eager else str(self.original.stance)

    @property
    def skip_guard_eval_unsafe(self) -> bool:
        return bool(self.original.skip_guard_eval_unsafe)

    @property
    def backend(self) -> Any:
        return self._recording() or self.original.backend


@final
class EagerInside:
    """Makes the functions of ``torch.compile`` run eagerly inside of simulations, unless a watcher compiles them.

    Functions that dynamo skipped because of a mode would never be compiled again, and with ``fullgraph=True`` would
    raise. Operators such as ``torch.cond``, which compile their arguments to run them operation by operation, may do
    so. A process that has not imported dynamo lacks such functions: dynamo gets its stance when it is imported.

    Args:
        is_inside: whether a simulation is entered in this thread.
        recording: the backend that a watcher of the active simulation compiles with, if any.
    """

    def __init__(self, is_inside: Callable[[], bool], recording: Callable[[], Any]) -> None:
        self._is_inside, self._recording = is_inside, recording
        self._import = _Import(self._imported)
        self._lock = new_lock()
        self._dynamo: Any = None
        self._stance: Any = None

    def begin(self) -> None:
        """Sets the stance, at the entry of the first simulation of the process."""
        waits = _DYNAMO not in sys.modules
        if waits:
            with self._lock:
                sys.meta_path.insert(0, self._import)
        if _DYNAMO in sys.modules:  # another thread may just have begun to import it, and needs the lock at the end
            dynamo = _dynamo()
            with self._lock:
                if waits:
                    self._stop_waiting()
                if self._dynamo is None:
                    self._set(dynamo)

    def end(self) -> None:
        """Restores the stance, at the end of the last simulation."""
        with self._lock:
            dynamo, self._dynamo = self._dynamo, None
            if dynamo is None:
                self._stop_waiting()
            elif dynamo._stance is self._stance:  # noqa: SLF001  no other access; else the program has set its own
                dynamo._set_stance(self._stance.original)  # noqa: SLF001  as above

    def _imported(self, dynamo: ModuleType) -> None:
        with self._lock:
            if self._import in sys.meta_path:  # else the simulations have been left meanwhile
                self._stop_waiting()
                self._set(dynamo)

    def _set(self, dynamo: Any) -> None:
        self._dynamo = dynamo
        self._stance = _DynamoStance(dynamo._stance, self._is_inside, self._recording)  # noqa: SLF001  no other access
        dynamo._set_stance(self._stance)  # noqa: SLF001  as above

    def _stop_waiting(self) -> None:
        if self._import in sys.meta_path:
            sys.meta_path.remove(self._import)


@final
class _Import(MetaPathFinder):
    """Finds dynamo by the other finders, and calls ``imported`` when it has been imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self._imported = imported

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _DYNAMO:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            # Loaders have no callback for the end of an import, so this one reports it after running the module.
            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._imported(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
