"""The processor's settings for floating-point arithmetic: a loop computes with the usual ones, whatever they are.

``torch.set_flush_denormal(True)`` makes the processor take subnormal numbers for zero, in the thread that calls it and
in those it starts from then on. A loop wrapped by :func:`in_usual_state` computes with gradual underflow and to
nearest in every thread, and leaves the settings as it found them.
"""

from __future__ import annotations

import platform
from inspect import signature
from types import FunctionType
from typing import Any, NamedTuple

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


class _Register(NamedTuple):
    """The control register of a kind of processor."""

    read: str
    """LLVM's intrinsic; x86 hands the register over in memory, Arm as a number."""
    write: str
    bits: int
    unusual: int
    """The bits that flush subnormal numbers or choose a rounding mode other than to nearest."""
    in_memory: bool
    constraints: dict[type, str]
    """The constraint of inline assembly for each kind of argument: where the argument is put."""


_REGISTERS = {
    "x86": _Register(  # MXCSR: FTZ 15, RC 13 to 14, DAZ 6 (Intel SDM, volume 1, 10.2.3)
        "llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr", 32, 0xE040, True, {ir.FloatType: "x", ir.DoubleType: "x"}
    ),
    "arm": _Register(  # FPCR: FZ 24, RMode 22 to 23 (Arm Architecture Reference Manual, C5.2.8)
        "llvm.aarch64.get.fpcr", "llvm.aarch64.set.fpcr", 64, 0x1C00000, False, {ir.FloatType: "w", ir.DoubleType: "w"}
    ),
}  # fmt: skip
_KINDS = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}
_REGISTER = _REGISTERS.get(_KINDS.get(platform.machine().lower(), ""))
_STATE = types.uint64


def _read_register(builder: Any, register: _Register, slot: Any) -> Any:
    if register.in_memory:
        function = builder.module.declare_intrinsic(register.read, fnty=ir.FunctionType(ir.VoidType(), [slot.type]))
        builder.call(function, [slot])
        return builder.load(builder.bitcast(slot, ir.IntType(register.bits).as_pointer()))
    function = builder.module.declare_intrinsic(register.read, fnty=ir.FunctionType(ir.IntType(register.bits), []))
    return builder.call(function, [])


def _write_register(builder: Any, register: _Register, slot: Any, state: Any) -> None:
    argument = state
    if register.in_memory:
        builder.store(state, builder.bitcast(slot, state.type.as_pointer()))
        argument = slot
    kind = ir.FunctionType(ir.VoidType(), [argument.type])
    builder.call(builder.module.declare_intrinsic(register.write, fnty=kind), [argument])


def _slot(builder: Any, register: _Register) -> Any:
    with builder.goto_entry_block():
        return builder.bitcast(builder.alloca(ir.IntType(register.bits)), ir.IntType(8).as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def _enter(_context: Any) -> Any:
    """Sets the usual settings, and returns the previous ones."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if _REGISTER is None:
            return ir.Constant(ir.IntType(64), 0)
        word, slot = ir.IntType(_REGISTER.bits), _slot(builder, _REGISTER)
        state = _read_register(builder, _REGISTER, slot)
        odd = builder.and_(state, ir.Constant(word, _REGISTER.unusual))
        with builder.if_then(builder.icmp_unsigned("!=", odd, ir.Constant(word, 0)), likely=False):
            _write_register(builder, _REGISTER, slot, builder.xor(state, odd))
        return builder.zext(state, ir.IntType(64)) if _REGISTER.bits < 64 else state

    return _STATE(), generate


@intrinsic  # type: ignore[untyped-decorator]
def _leave(_context: Any, _state: Any) -> Any:
    """Puts back the settings that :func:`_enter` returned, if they were not the usual ones."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        if _REGISTER is not None:
            (state,) = arguments
            word = ir.IntType(_REGISTER.bits)
            state = builder.trunc(state, word) if _REGISTER.bits < 64 else state
            odd = builder.and_(state, ir.Constant(word, _REGISTER.unusual))
            slot = _slot(builder, _REGISTER)
            with builder.if_then(builder.icmp_unsigned("!=", odd, ir.Constant(word, 0)), likely=False):
                _write_register(builder, _REGISTER, slot, state)
        return context.get_dummy_value()

    return types.void(_STATE), generate


@intrinsic  # type: ignore[untyped-decorator]
def _pinned(_context: Any, value: Any) -> Any:
    """Returns ``value`` so that the compiler does not move arithmetic with it ahead of this place."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        (argument,) = arguments
        if _REGISTER is None:
            return argument
        place = _REGISTER.constraints.get(type(argument.type), "r")
        kind = ir.FunctionType(argument.type, [argument.type])
        return builder.asm(kind, "", f"={place},0", [argument], side_effect=True)

    return value(value), generate


def in_usual_state(body: Any, error_model: str, *, in_place: bool = False) -> Any:
    """The loop ``body``, computing in the usual state.

    Args:
        body: a Python function that numba can compile, without return value.
        error_model: numba's.
        in_place: whether its argument ``target`` is ``source``. LLVM vectorises a loop over two pointers only where
            they do not overlap, so that it must know.
    """
    names = list(signature(body).parameters)
    pins = "".join(f"    {name} = _pinned({name})\n" for name in names)
    passed = ", ".join("source" if in_place and name == "target" else name for name in names)
    call = f"    state = _enter()\n{pins}    body({passed})\n    _leave(state)\n"
    source = f"def wrapped({', '.join(names)}):\n{call}"
    # Numba's own cache stores machine code next to the source file of a function.
    code = compile(source, body.__code__.co_filename, "exec").co_consts[0]
    scope = {
        "_enter": _enter,
        "_leave": _leave,
        "_pinned": _pinned,
        "body": njit(inline="always", error_model=error_model)(body),
    }
    wrapped = FunctionType(code, {**scope, "__name__": body.__module__}, body.__name__)
    wrapped.__qualname__, wrapped.__module__ = body.__qualname__, body.__module__
    return wrapped
