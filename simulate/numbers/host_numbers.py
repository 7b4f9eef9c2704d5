"""Python numbers that a compiled step recomputes in every call: an optimizer's bias corrections, its learning rate.

An eager step computes them by Python operators, in float64. Here the same operators compute them before the program
runs, which gets the results as a tensor. While a step is traced, a :class:`TracedNumber` replaces each number; the
operations on it are recorded, and a decision by one becomes a condition of the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, final

import torch
from torch.utils._pytree import tree_map

from ...formats import FormatError

_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


class NumberError(FormatError):
    """An operation on a number has no counterpart in a program."""


class _Operation(NamedTuple):
    """A Python operator and its operands, by position among the recorded values."""

    function: Callable[[Any, Any], Any]
    a: int
    b: int


class _Condition(NamedTuple):
    """A comparison, and its outcome when the step was traced."""

    function: Callable[[Any, Any], bool]
    a: int
    b: int
    outcome: bool


class _Reading(NamedTuple):
    """A number that is read from a tensor, by its index among such numbers."""

    number: int


@final
class NumberRecord:
    """The arithmetic on numbers while a step is traced, and then in each call of its program.

    Values have positions: given numbers, constants, and results of operators, each after its operands.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        """The values of the numbers while the step is traced, by position."""
        self._input_positions: list[int] = []
        self._recorded: dict[_Operation | _Condition | _Reading, int] = {}  # In order; -1 for a condition.
        self._constants: dict[tuple[type, str], int] = {}
        self._used: dict[int, int] = {}  # From position to place in the program's tensor.

    def give(self, value: float) -> TracedNumber:
        """Adds a number with a new value in every call, in the order of the given numbers."""
        self._input_positions.append(len(self.values))
        return self._append(value)

    def read(self, number: int, value: float) -> TracedNumber:
        """Adds a number that is read from a tensor at this point; ``number`` is its index among such numbers."""
        self._recorded[_Reading(number)] = len(self.values)
        return self._append(value)

    def compute(self, function: Callable[[Any, Any], Any], a: object, b: object) -> TracedNumber:
        """Returns the result of an operator on two numbers, at least one of them recorded."""
        operation = _Operation(function, self._position(a), self._position(b))
        position = self._recorded.get(operation)
        if position is not None:  # An operation on the same values is computed once.
            return TracedNumber(self, position)
        result = function(self.values[operation.a], self.values[operation.b])
        if not isinstance(result, (int, float)):
            raise NumberError(f"a number that the step reads from a tensor becomes {type(result).__name__}")
        self._recorded[operation] = len(self.values)
        return self._append(result)

    def decide(self, function: Callable[[Any, Any], bool], a: object, b: object) -> bool:
        """Evaluates a comparison; its outcome must be the same in every call of the program."""
        left, right = self._position(a), self._position(b)
        outcome = bool(function(self.values[left], self.values[right]))
        self._recorded[_Condition(function, left, right, outcome)] = -1
        return outcome

    def place_of(self, number: TracedNumber) -> int:
        """Returns the number's place in the program's tensor of numbers."""
        return self._used.setdefault(number.position, len(self._used))

    @property
    def count(self) -> int:
        """The number of values that the program takes."""
        return len(self._used)

    def at(self, place: int, values: Sequence[float] | None = None) -> float:
        """Returns the number at a place of the program's tensor of numbers."""
        return (values or self.values)[list(self._used)[place]]  # Places are in the order of first use.

    def evaluate(
        self, inputs: Sequence[float], read: Callable[[int, Callable[[int], float]], float]
    ) -> list[float] | None:
        """Computes the numbers of the program in a call; returns None if a condition does not hold.

        Args:
            inputs: the values of the given numbers.
            read: returns a number read from a tensor: by its index, and the values at all positions so far.

        Raises:
            ArithmeticError: as Python would in the step itself.
        """
        values = list(self.values)  # Constants keep their values; all others are overwritten in order.
        for position, value in zip(self._input_positions, inputs, strict=True):
            values[position] = value
        for operation, position in self._recorded.items():
            if isinstance(operation, _Reading):
                values[position] = read(operation.number, lambda place: self.at(place, values))
                continue
            result = operation.function(values[operation.a], values[operation.b])
            if position >= 0:
                values[position] = result
            elif result != operation.outcome:  # type: ignore[union-attr]
                return None
        return [values[position] for position in self._used]

    def _append(self, value: float) -> TracedNumber:
        self.values.append(value)
        return TracedNumber(self, len(self.values) - 1)

    def _position(self, x: Any) -> int:
        if isinstance(x, TracedNumber):
            return x.position
        if not isinstance(x, (int, float)):
            raise NumberError(f"a number that the step reads from a tensor meets {type(x).__name__}")
        key = (type(x), repr(x))  # 1, 1.0 and True are equal, as are 0.0 and -0.0.
        if key not in self._constants:
            self._constants[key] = len(self.values)
            self.values.append(x)
        return self._constants[key]


class _Node:
    """The symbolic node that PyTorch's C++ sees in place of a number; it may not ask for the value."""

    def __init__(self, number: TracedNumber) -> None:
        self.number: Final = number

    def is_symbolic(self) -> bool:
        return True

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def guard_float(self, _file: str, _line: int) -> NoReturn:
        raise NumberError("a number that the step reads from a tensor goes where a program needs a constant")


def _make_operator(function: Callable[[Any, Any], Any], *, swapped: bool = False) -> Any:
    """Makes the method of a :class:`TracedNumber` that records an arithmetic operator, or a comparison."""
    record_call = NumberRecord.decide if function in _COMPARISONS else NumberRecord.compute

    def method(self: TracedNumber, other: object) -> Any:
        if not isinstance(other, (int, float, TracedNumber)):
            return NotImplemented
        return record_call(self.record, function, *((other, self) if swapped else (self, other)))

    return method


def _refuse(use: str) -> Any:
    def method(self: TracedNumber, *_: object) -> NoReturn:  # noqa: ARG001
        # The value of the first call would become a constant of the program.
        raise NumberError(
            f"a number that the step reads from a tensor is {use}, for which a program has no counterpart"
        )

    return method


class TracedNumber(torch.SymFloat):
    """A Python number in a step that is traced: PyTorch's operations take it as a number without a value.

    Args:
        record: record of the trace.
        position: among its values.
    """

    def __init__(self, record: NumberRecord, position: int) -> None:
        super().__init__(_Node(self))  # type: ignore[no-untyped-call]
        self.record = record
        self.position = position

    __float__ = __int__ = __index__ = __round__ = __trunc__ = _refuse("made a Python number")
    __str__ = __repr__ = __format__ = _refuse("made text")
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> TracedNumber:
        return self.record.compute(_negate, self, 0)

    def __abs__(self) -> TracedNumber:
        return self if self.record.decide(operator.ge, self, 0) else -self  # The sign becomes a condition.

    def __pos__(self) -> TracedNumber:
        return self

    def __bool__(self) -> bool:
        return self.record.decide(operator.ne, self, 0)


for _function in (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
):  # fmt: skip
    setattr(TracedNumber, f"__{_function.__name__}__", _make_operator(_function))
    setattr(TracedNumber, f"__r{_function.__name__}__", _make_operator(_function, swapped=True))
for _function in _COMPARISONS:
    setattr(TracedNumber, f"__{_function.__name__}__", _make_operator(_function))


def _negate(a: float, _: object) -> float:  # With the two operands that a record expects.
    return -a


def number_of(x: object) -> TracedNumber | None:
    """Returns the traced number of an operation's argument; PyTorch's C++ keeps only its symbolic node."""
    if isinstance(x, torch.SymFloat) and isinstance(x.node, _Node):
        return x.node.number
    return None


def recognized(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Restores the traced numbers in the arguments of an operation, for Python code that computes with them."""

    def restore(x: object) -> object:
        number = number_of(x)
        return x if number is None else number

    return tree_map(restore, (args, kwargs))  # type: ignore[no-any-return]
