"""The compiled C++ of the shortcut, called through ctypes: loaded when a simulation is entered for the first time.

Where it cannot be, simulations run without it, with the same bits; ``ROUNDOFF_NATIVE`` decides whether to use it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch.utils._python_dispatch import _disable_current_modes

from roundoff.locks import new_lock

from ..aten.kernels import FOR_ANY_BACKEND
from .building import BuildError, built, opened

VARIABLE = "ROUNDOFF_NATIVE"
NAMESPACES = ("aten", "profiler")
"""The namespaces of plain operations: ATen's, and the one that optimizers use to name their steps for the profiler."""
_CALLBACK = ctypes.CFUNCTYPE(None)  # without arguments: Python fetches the results


class NativeWarning(UserWarning):
    """Operations of simulations run in Python, since the C++ for them could not be compiled or loaded."""


# The structures have the fields of their counterparts in the C++, in the same order; a mask has a bit for an argument.
_NUMBER, _MASK = ctypes.c_int64, ctypes.c_uint64


class LoopAddresses(ctypes.Structure):
    """A compiled loop and its parameters, by their addresses; zeros: it does not exist."""

    _fields_ = (
        ("run", ctypes.c_void_p), ("parameters", ctypes.c_void_p), ("calling", _NUMBER), ("draws", _NUMBER),
    )  # fmt: skip


class ExactArithmetic(ctypes.Structure):
    """The description of exact arithmetic; its fields are explained in ``exact.h``."""

    _fields_ = (
        ("form", _NUMBER), ("of_lists", _NUMBER), ("in_place", _NUMBER), ("ways", ctypes.c_void_p),
    )  # fmt: skip


class OperandRounding(ctypes.Structure):
    """One rounding of an operand; its fields are explained in ``products.h``."""

    _fields_ = (
        ("single", LoopAddresses), ("twofold", LoopAddresses), ("single_strided", LoopAddresses),
        ("twofold_strided", LoopAddresses), ("passes", _NUMBER), ("along", _NUMBER), ("as_forward", _NUMBER),
    )  # fmt: skip


PLACES_BY_ROLE = 2 * 3 * 4
"""In the forward or the backward pass, an operand of a role in a product; see ``products.h``."""


class SeenProducts(ctypes.Structure):
    """The roundings of a product's operands; its fields are explained in ``products.h``."""

    _fields_ = (
        ("roundings", ctypes.POINTER(OperandRounding)), ("tells", _NUMBER), ("in_backward", _NUMBER),
        ("about_weights", _NUMBER), ("matrix", _NUMBER), ("operands", _MASK), ("multiplied", _MASK),
        ("columns", _MASK), ("convolves", _NUMBER), ("separates", _NUMBER), ("always", _NUMBER),
        ("table", _NUMBER * PLACES_BY_ROLE),
    )  # fmt: skip


class Description(ctypes.Structure):
    """The description of a plain operation for the C++ code, where its fields are explained."""

    _fields_ = (
        ("single", LoopAddresses), ("twofold", LoopAddresses), ("rounds", _NUMBER), ("results", _MASK),
        ("written", _MASK), ("dtypes", _MASK), ("data", _NUMBER), ("heeds", _NUMBER),
        ("heeds_in_gradients", _NUMBER), ("counts", _NUMBER),
        ("makes_whole", _NUMBER), ("numbers_given", _MASK), ("overwrites", _MASK),
        ("counts_up", _NUMBER), ("reads", _NUMBER), ("asks", _NUMBER), ("power", _NUMBER), ("root", _NUMBER),
        ("single_root", ctypes.c_void_p), ("twofold_root", ctypes.c_void_p), ("no_integers", _NUMBER),
        ("no_single", _NUMBER), ("moves", _NUMBER), ("numbers", _MASK), ("combining", _MASK), ("windows", _MASK),
        ("types", _MASK), ("tensors", _MASK), ("one_source", _NUMBER), ("large", _NUMBER), ("product", _NUMBER),
        ("multiplications", _NUMBER), ("operands", _MASK), ("single_operand", LoopAddresses),
        ("twofold_operand", LoopAddresses), ("exact", ExactArithmetic), ("draws", _NUMBER), ("converts", _NUMBER),
        ("pieces", _NUMBER), ("following", _NUMBER), ("parameters", _NUMBER), ("made", _MASK),
        ("changed", _MASK), ("blank", _NUMBER), ("products", SeenProducts),
    )  # fmt: skip


class Counts(ctypes.Structure):
    """The counts of a plain operation's outcomes since they were last requested."""

    _fields_ = (("calls", _NUMBER), ("moved", _NUMBER), ("rounded", _NUMBER), ("left_whole", _NUMBER))


# The type of the result and of the arguments of each C function
_P, _I = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "start": (_I, [ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_char_p), _I, _MASK, _CALLBACK]),
    "classes": (None, [_P, _P, _P]),
    "tell_draws": (None, [_MASK, _P]),
    "descriptions": (_P, []),
    "free_descriptions": (None, [_P]),
    "simulation": (_P, [_P, _I, _MASK, _MASK, _I]),
    "free": (None, [_P]),
    "know": (None, [_P, _P]),
    "forget": (None, [_P]),
    "describe": (_P, [_P, _I, _I, ctypes.c_char_p, ctypes.POINTER(Description)]),
    "counted": (_P, [_P, _I, _I, ctypes.c_char_p]),
    "module": (None, [_P, _I, _I]),
    "part_begins": (None, [_P, _I, _I]),
    "part": (None, [_P, _I, _I]),
    "optimizers": (None, [_P, _I]),
    "role": (None, [_I]),
    "left": (None, [_P]),
    "here": (_I, [_P]),
    "take_counts": (None, [_P, ctypes.POINTER(Counts)]),
    "take_seen": (_I, [_P, _I]),
    "marks": (_I, [_P, _P]),
    "set_marks": (None, [_P, _P, _I, _I]),
    "hold_simulation": (None, [_P, _I]),
    "hold_thread": (None, [_I]),
    "suspendable": (None, [_I]),
    "tell_reads": (None, []),
    "computed": (_I, []),
    "computed_length": (_I, [_I]),
    "computed_tensor": (ctypes.py_object, [_I, _I]),
    "goes_on": (_I, []),
}


@final
class Library:
    """The functions of the C++, by their names without ``roundoff_``."""

    def __init__(self, path: str) -> None:
        self._loaded = ctypes.PyDLL(path)  # holds the interpreter's lock: no function waits for another thread
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._loaded, f"roundoff_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # tells type checkers that attributes are set dynamically
        raise AttributeError(name)


class _Computed(threading.local):
    """The result of an operation that C++ has computed in this thread, and leaves to Python to round."""

    result: Any = None
    error: BaseException | None = None
    waits: bool = False

    def is_readable(self) -> bool:
        """Whether C++ has computed the operation that Python must run; drops the result of an interrupted one."""
        if self.waits and (_loaded is None or not _loaded.goes_on()):
            self.result, self.error, self.waits = None, None, False
        return self.waits

    def take(self) -> Any:
        """Returns the computed result, once.

        Raises:
            KeyboardInterrupt: it arrived while C++ handed the result over.
        """
        result, error = self.result, self.error
        self.result, self.error, self.waits = None, None, False
        if error is not None:
            raise error
        return result


computed = _Computed()

_loaded: Library | None = None
_reason = ""
_suspendable = 0
_reads_are_told = False
_lock = new_lock()


def is_asked_for() -> bool:
    """Whether the user wants the library: unless ``ROUNDOFF_NATIVE`` is ``0``."""
    return os.environ.get(VARIABLE) != "0"


def library() -> Library | None:
    """Returns the library, and compiles and loads it at first; None, with one warning, if that fails."""
    if not is_asked_for():
        return None
    if _loaded is None and not _reason:
        with _lock:
            if _loaded is None and not _reason:  # else another thread has loaded it meanwhile, or failed
                _load()
    return _loaded


def reason_against_native() -> str:
    """Returns the reason why operations run in Python; empty if C++ can run them."""
    if not is_asked_for():
        return f"{VARIABLE} is 0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reason is returned
        return "" if library() else _reason


def _load() -> None:
    global _loaded, _reason  # noqa: PLW0603  one for the process, like the kernels that it registers
    try:
        with opened(built()) as name:
            loaded = Library(name)
        _begin(loaded)
    except (BuildError, OSError, AttributeError) as error:
        _reason = str(error)
        warnings.warn(
            "every operation of a simulation goes through Python, which takes about 10 us longer: the C++ for plain"
            f" operations is not available ({error}); set {VARIABLE}=0 to run without it",
            NativeWarning,
            stacklevel=2,
        )
        return
    _loaded = loaded


def _begin(loaded: Any) -> None:
    """Registers the C++ kernel with PyTorch, for all operations that can be plain."""
    # Name and overload of each operation, in two columns
    names = [name.partition(".")[::2] for name in torch._C._dispatch_get_all_op_names() if _can_be_plain(name)]  # noqa: SLF001
    count = len(names)
    columns = [(ctypes.c_char_p * count)(*(text.encode() for text in column)) for column in zip(*names, strict=True)]
    with _disable_current_modes():  # the first simulation may be entered inside of a mode that counts operations
        tensor = torch.empty(1, device="cpu")
    plain_keys = torch._C._dispatch_keys(tensor).raw_repr()  # noqa: SLF001
    loaded.classes(id(torch.Tensor), id(torch.nn.Parameter), id(tensor))
    if not loaded.start(*columns, count, plain_keys, _take_computed):
        raise BuildError("PyTorch already has kernels at their place")
    loaded.suspendable(_suspendable)  # the state from before it was loaded
    if _reads_are_told:
        loaded.tell_reads()


def _can_be_plain(name: str) -> bool:
    """Whether an operation is of ATen or of the profiler, and PyTorch does not compose it of others."""
    if name.partition("::")[0] not in NAMESPACES:
        return False
    return not has_kernel(name, "CompositeImplicitAutograd") or any(has_kernel(name, key) for key in FOR_ANY_BACKEND)


@_CALLBACK  # type: ignore[untyped-decorator]
def _take_computed() -> None:
    """Takes over the results of an operation that C++ has run and Python must round; C++ calls it."""
    loaded: Any = _loaded
    try:
        values = [_value(loaded, number) for number in range(loaded.computed())]
        computed.result = values[0] if len(values) == 1 else tuple(values) or None
    except BaseException as error:  # noqa: BLE001  C++ cannot pass it on
        computed.error = error
    computed.waits = True


def _value(loaded: Any, number: int) -> Any:
    length = loaded.computed_length(number)
    if length < -1:
        return None
    if length < 0:  # a tensor; otherwise a list of this length
        return loaded.computed_tensor(number, 0)
    return [loaded.computed_tensor(number, item) for item in range(length)]


def hold_thread(more: int) -> None:
    """Makes every operation of this thread go through Python from now on (1), or as before (-1)."""
    if _loaded is not None:
        _loaded.hold_thread(more)


def set_suspendable(count: int) -> None:
    """Sets the number of blocks in generators and coroutines: while there are any, operations go through Python."""
    global _suspendable  # noqa: PLW0603  one for the process
    if count != _suspendable:
        _suspendable = count
        if _loaded is not None:
            _loaded.suspendable(count)


def set_role(number: int) -> None:
    """Sets the role that the code of this thread declares; -1: none."""
    if _loaded is not None:
        _loaded.role(number)


def tell_reads() -> None:
    """Makes Python handle every number that a program reads from now on, after one was not finite."""
    global _reads_are_told  # noqa: PLW0603  one for the process
    if not _reads_are_told:
        _reads_are_told = True
        if _loaded is not None:
            _loaded.tell_reads()


@contextmanager
def bystander(mode: object) -> Iterator[None]:
    """Declares to C++ that a mode changes nothing, for the block."""
    loaded: Any = _loaded
    if loaded is None:
        yield
        return
    loaded.know(id(mode), None)  # no simulation belongs to it
    try:
        yield
    finally:
        loaded.forget(id(mode))
