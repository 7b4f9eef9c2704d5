"""The comparison of two traces: operations that correspond, and a verdict on each difference.

The float64 twins decide: two programs that compute the same have equal twins, however they round. A difference of
twins is a difference of the mathematics, unless it comes from a decision, such as a comparison or an argmax, between
values that differ by rounding, or from constants that are rounded differently.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from .trace import RESULT, UNINITIALISED, Sketch, Trace

# Errors in float64 are 2^-29 of the errors in float32; the factor is a margin for their growth.
_TWINS, _FLOOR = 1000 * 2.0**-29, 1e-11
_FEW = 4.0  # units of roundoff by which constants may differ
_COARSER = 32  # the ratio of the errors of two runs from which a narrow dtype is reported
_FLOAT32 = 2.0**-24
_NARROW = ("float16", "bfloat16", "float8", "float4")
_DECIDING = ("round", "floor", "ceil", "trunc", "sign", "sgn", "frac", "remainder", "fmod", "heaviside", "sort", "topk")
_READS = (RESULT, "_local_scalar_dense")
_RUNS = ("first", "second")


class Verdict(StrEnum):
    """The cause of a difference."""

    ROUNDING = "explained by rounding"
    """The operands are equal, or the results differ by no more than the rounding bounds of the operation."""
    AMPLIFIED = "amplified"
    """Both results are right for their operands; operands that differ by rounding make them differ by more."""
    NOT_EXPLAINED = "not explained"


class _State(IntEnum):
    """The relation of two results that correspond."""

    SAME = 0  # the twins are equal
    NEAR = 1  # the twins differ as constants do that were rounded differently, or follow from such a difference
    DECIDED = 2  # they follow from a decision that rounding has changed
    WRONG = 3  # they follow from a difference that is not explained


class Difference(NamedTuple):
    """A difference of two runs, at an operation of one or both; lines are empty in a run that lacks it.

    ``difference``, of the results, and ``bound``, the sum of both rounding bounds, are relative to the largest element;
    ``amplification`` is the difference divided by the largest of the operands; NaN if unknown. ``at`` has the numbers
    of the operation in both traces, -1 where it is missing.
    """

    verdict: Verdict
    operation: str
    module: str
    first: str
    second: str
    reason: str
    difference: float = math.nan
    bound: float = math.nan
    amplification: float = math.nan
    at: tuple[int, int] = (-1, -1)


def _equal(a: Sketch, b: Sketch, factor: float = _TWINS, floor: float = _FLOOR) -> bool:
    """Whether the twins of two tensors are equal, but for errors of float64; integers and masks exactly."""
    if bool(a.unit) != bool(b.unit) or math.prod(a.shape) != math.prod(b.shape):
        return False
    allowed = factor * (a.error + b.error) + floor * max(a.norm, b.norm) if a.unit else 0.0
    return abs(a.projection - b.projection) <= 4 * allowed and abs(a.norm - b.norm) <= allowed


def _near(a: Sketch, b: Sketch) -> bool:
    """Whether two tensors differ by no more than a different rounding of their values explains."""
    return a.bits == b.bits or _equal(a, b, _FEW, _FEW * max(a.unit, b.unit))


def _distance(a: Sketch, b: Sketch) -> float:
    """The difference of two results, relative to the largest element, about."""
    if a.bits == b.bits or not a.norm + b.norm:
        return float(a.bits != b.bits)
    largest = max(map(abs, (*a.values, *b.values)), default=0.0) or math.inf
    largest_difference = max((abs(x - y) for x, y in zip(a.values, b.values, strict=False)), default=0.0)
    # Where no element is among those that differ, the marks show about how much the tensors differ.
    return largest_difference / largest or abs(a.value_projection - b.value_projection) / max(a.norm, b.norm)


def _are_close(x: Any, y: Any) -> bool:
    """Whether arguments differ as numbers do that the program has read from rounded tensors."""
    return isinstance(x, float) and isinstance(y, float) and math.isclose(x, y, rel_tol=1e-4)


class Comparison:
    """Two traces, side by side.

    Attributes:
        partners: for each run, the numbers of its operations, and the corresponding ones of the other run.
        differences: the first difference that is explained by rounding, the most amplified one, and all others.
    """

    def __init__(self, *traces: Trace) -> None:
        self._runs = [trace.operations for trace in traces]
        self.partners: list[dict[int, int]] = [{}, {}]
        self._state: list[dict[int, _State]] = [{}, {}]
        self._pair()
        self._certain: dict[Any, Difference] = {}
        self._suspected: dict[Any, Difference] = {}
        for i, j in sorted(self.partners[0].items()):
            state = self._state[0].get(i)
            if state is None:
                state = self._state[0][i] = self._state[1][j] = self._judge(i, j)
            if state <= _State.NEAR:
                self._compare_roundings(i, j)
        for run in (0, 1):
            for k, operation in enumerate(self._runs[run]):
                if (excess := max((x.excess for x in operation.outputs), default=0.0)) > 1:
                    pair = self.partners[run].get(k, -1)
                    reason = f"in the {_RUNS[run]} run the error is {excess:.2g} times the rounding bound"
                    self._note(self._row(Verdict.NOT_EXPLAINED, *((pair, k) if run else (k, pair)), reason))
        # A changed operation is harmless where all that it leads to has the same values in both runs.
        ends = [self._ends(run) for run in (0, 1)]
        leading = [self._before(run, ends[run], lambda k, run=run: not self._is_same(run, k)) for run in (0, 1)]  # type: ignore[misc]
        for run in (0, 1):
            for k in ends[run]:
                only, state = self._origin(run, k)
                if only and state < _State.DECIDED:
                    self._suspect_region(*(([], only) if run else (only, [])))
        matters = [row for row in self._suspected.values() if any(row.at[run] in leading[run] for run in (0, 1))]
        self.differences = sorted([*self._certain.values(), *matters], key=self._order)

    def _pair(self) -> None:
        """Pairs operations with equal results; others by the structure of the program around those."""
        (a, b), (there, back) = self._runs, self.partners
        unused: dict[Any, list[int]] = defaultdict(list)
        for j, operation in enumerate(b):
            unused[operation.name, operation.shapes].append(j)
        for i, operation in enumerate(a):
            candidates = unused[operation.name, operation.shapes]
            equal = (j for j in candidates if all(map(_equal, operation.outputs, b[j].outputs)))
            if (partner := next(equal, None)) is not None:
                there[i], back[partner] = partner, i
                self._state[0][i] = self._state[1][partner] = _State.SAME
                candidates.remove(partner)
        # Pairs are equal keys; the others are equal if name, role, module and shapes are.
        keys: list[Any] = [i if i in there else (*x[:3], x.shapes) for i, x in enumerate(a)]
        others: list[Any] = [back.get(j, (*x[:3], x.shapes)) for j, x in enumerate(b)]
        for i, j, size in SequenceMatcher(None, keys, others, autojunk=False).get_matching_blocks():
            for k in range(size):
                there[i + k], back[j + k] = j + k, i + k

    def _before(self, run: int, starts: Iterable[int], through: Callable[[int], bool]) -> set[int]:
        """The operations that lead to some, with those, as long as ``through`` holds."""
        visited, waiting = set[int](), list(starts)
        while waiting:
            k = waiting.pop()
            if k >= 0 and k not in visited and through(k):
                visited.add(k)
                waiting += [x.source for x in self._runs[run][k].inputs]
        return visited

    def _origin(self, run: int, number: int) -> tuple[list[int], _State]:
        """The operations without partner that lead to a value, and the worst state of those before."""
        only = self._before(run, [number], lambda k: k not in self.partners[run])
        before = [number, *(x.source for k in only for x in self._runs[run][k].inputs)]
        return sorted(only), max(self._state[run].get(k, _State.SAME) for k in before)

    def _is_same(self, run: int, number: int) -> bool:
        return self._state[run].get(number) is _State.SAME

    def _judge(self, i: int, j: int) -> _State:
        """The relation of two corresponding operations with twins that are not equal; notes a new difference."""
        a, b = self._runs[0][i], self._runs[1][j]
        if all(map(_near, a.outputs, b.outputs)):
            return _State.NEAR
        states = [_State.SAME, *map(self._operand, a.inputs, b.inputs)]
        worst = max(state for state in states if state is not None)
        if worst >= _State.DECIDED:
            return worst
        if None in states:
            return self._suspect_operand(i, j, states.index(None) - 1)
        arguments = [(name, a.arguments.get(name), b.arguments.get(name)) for name in {**a.arguments, **b.arguments}]
        changed = [(name, x, y) for name, x, y in arguments if x != y]
        if any(not _are_close(x, y) for _, x, y in changed):
            return self._suspect(i, j, ", ".join(f"{name} is {x} and {y}" for name, x, y in changed))
        if changed or worst is _State.NEAR:
            return _State.NEAR
        return self._judge_alone(i, j)

    def _judge_alone(self, i: int, j: int) -> _State:
        """The relation of operations with different results of the same operands and arguments."""
        a, b = self._runs[0][i], self._runs[1][j]
        if len(a.inputs) != len(b.inputs):
            return self._suspect(i, j, f"{len(a.inputs)} operands and {len(b.inputs)}")
        decides = a.name.rstrip("_") in _DECIDING or not all(x.unit for x in a.outputs)
        if decides and any(x.bits != y.bits for x, y in zip(a.inputs, b.inputs, strict=True)):
            self._note(self._row(Verdict.AMPLIFIED, i, j, "a decision between values that differ by rounding"))
            return _State.DECIDED
        return self._suspect(i, j, "other random numbers" if a.random else "equal operands and other results")

    def _operand(self, x: Sketch, y: Sketch) -> _State | None:
        """The relation of two operands; None if nothing that is known explains their difference."""
        if _equal(x, y) or x.source == y.source == UNINITIALISED:
            return _State.SAME
        if self.partners[0].get(x.source) == y.source and not self._is_same(0, x.source):
            return self._state[0][x.source]
        inherited = max(self._origin(0, x.source)[1], self._origin(1, y.source)[1])
        return inherited if inherited >= _State.DECIDED else _State.NEAR if _near(x, y) else None

    def _compare_roundings(self, i: int, j: int) -> None:
        """Reports a dtype that makes one run less exact, and differences by rounding."""
        a, b = self._runs[0][i], self._runs[1][j]
        for x, y in zip(a.outputs, b.outputs, strict=True):
            low, high = sorted((x.error, y.error))
            narrow = high > _COARSER * max(low, _FLOAT32 * max(x.norm, y.norm))
            narrow &= x.dtype == y.dtype or a.writes or a.name in _READS
            if narrow and self._reports_narrow(int(y.error > x.error), i, j):
                continue
            if x.bits != y.bits and x.unit:
                reads = a.name in _READS  # which compute nothing
                # Memory that is not initialised does not count, which random numbers are drawn into.
                operands = [pair for pair in zip(a.inputs, b.inputs, strict=False) if pair[0].source != UNINITIALISED]
                distance = 0.0 if reads else max((_distance(*pair) for pair in operands), default=0.0)
                bounds = [p + q for p, q in zip(x.bounds, y.bounds, strict=False)]
                within = [abs(p - q) <= both for p, q, both in zip(x.values, y.values, bounds, strict=False)]
                small = high <= _COARSER * max(x.unit * x.norm, y.unit * y.norm)
                explained = small if reads else not distance or (bool(within) and all(within))
                verdict = Verdict.ROUNDING if explained else Verdict.AMPLIFIED
                reason = "operations before round differently" if reads else "equal operands"
                row = self._row(verdict, i, j, f"operands differ by {distance:.2g}" if distance else reason)
                largest = max(map(abs, (*x.values, *y.values)), default=0.0) or math.inf
                factor = row.difference / distance if distance else math.nan
                row = row._replace(bound=max(bounds, default=math.nan) / largest, amplification=factor)
                worst = self._certain.setdefault((verdict,), row)
                if verdict is Verdict.AMPLIFIED and factor > worst.amplification:
                    self._certain[verdict,] = row

    def _reports_narrow(self, run: int, i: int, j: int) -> bool:
        """Whether something that leads to an operation is narrow only in this run; reports the first of it."""
        trace, partners, other = self._runs[run], self.partners[run], self._runs[1 - run]

        def differs(k: int) -> bool:
            dtypes = [[x.dtype for x in operation.outputs] for operation in (trace[k], other[partners.get(k, 0)])]
            return k == (i, j)[run] or k not in partners or dtypes[0] != dtypes[1]

        before = self._before(run, [(i, j)[run]], differs)
        narrow = [k for k in before if any(x.error and x.dtype.startswith(_NARROW) for x in trace[k].outputs)]
        if narrow:
            k = min(narrow)
            pair = partners.get(k, -1)
            reason = f"only the {_RUNS[run]} run rounds to {trace[k].outputs[0].dtype}"
            self._note(self._row(Verdict.NOT_EXPLAINED, *((pair, k) if run else (k, pair)), reason))
        return bool(narrow)

    def _ends(self, run: int) -> list[int]:
        """Operations that end a run with results that the other run does not have.

        A run ends in values that are returned or read, and in memory that is changed and not read again; without any
        of these, in all results that are not read. A counter, to which only integers lead, does not count.
        """
        trace, other = self._runs[run], self._runs[1 - run]
        used = {x.source for operation in trace for x in operation.inputs}
        last = [k for k in range(len(trace)) if k not in used]
        floats = [any(x.unit for x in (*operation.inputs, *operation.outputs)) for operation in trace]
        ends = [
            k for k in last
            if (trace[k].writes and (floats[k] or any(floats[n] for n in self._before(run, [k], lambda _: True))))
            or (trace[k].name in _READS and k in self.partners[run])
        ] or last  # fmt: skip
        by_size: dict[Any, list[Sketch]] = defaultdict(list)  # Only tensors of one size can be near.
        for k, operation in enumerate(other):
            for x in [] if self._is_same(1 - run, k) else operation.outputs:
                by_size[math.prod(x.shape)].append(x)
        lost = [
            k for k in ends if not all(any(_near(x, y) for y in by_size[math.prod(x.shape)]) for x in trace[k].outputs)
        ]
        return [k for k in lost if not self._is_same(run, k)]

    def _row(self, verdict: Verdict, i: int, j: int, reason: str) -> Difference:
        operations = [trace[k] if k >= 0 else None for trace, k in zip(self._runs, (i, j), strict=True)]
        name = " -> ".join(dict.fromkeys(x.name for x in operations if x))
        both = [x.outputs for x in operations if x and self.partners[0].get(i) == j]
        size = max(map(_distance, *both), default=math.nan) if len(both) == 2 else math.nan
        first, second = (x.line if x else "" for x in operations)
        module = next(x.module for x in operations if x)
        return Difference(verdict, name, module, first, second, reason, size, at=(i, j))

    def _note(self, row: Difference) -> None:
        self._certain.setdefault(row[:6], row)

    def _suspect(self, i: int, j: int, reason: str) -> _State:
        """Notes a difference that is not explained, once for each place; it counts if it leads to an end."""
        row = self._row(Verdict.NOT_EXPLAINED, i, j, reason)
        self._suspected.setdefault(row[:6], row)
        return _State.WRONG

    def _suspect_operand(self, i: int, j: int, number: int) -> _State:
        """Notes an operand that comes from operations of only one run, or from another place."""
        x, y = self._runs[0][i].inputs[number], self._runs[1][j].inputs[number]
        only = [self._origin(0, x.source)[0], self._origin(1, y.source)[0]]
        if any(only):
            return self._suspect_region(*only)
        origin = "that no operation has made" if x.source < 0 and y.source < 0 else "from another place"
        return self._suspect(i, j, f"operand {number + 1} has other values, {origin}")

    def _suspect_region(self, *only: list[int]) -> _State:
        """Notes a part of the program with different operations in the two runs."""
        names = [
            ", ".join(dict.fromkeys(trace[k].name for k in part)) or "nothing"
            for trace, part in zip(self._runs, only, strict=True)
        ]
        i, j = (part[0] if part else -1 for part in only)
        return self._suspect(i, j, f"{names[0]} in the first run, {names[1]} in the second")

    def _order(self, row: Difference) -> tuple[int, int]:
        """The place of a difference in the first run."""
        i, j = row.at
        return (i, j) if i >= 0 else (max((i for k, i in self.partners[1].items() if k < j), default=-1), j)
