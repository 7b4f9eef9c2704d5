"""Finds the operations or modules that a program cannot do in a format, by delta debugging."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from roundoff.notebook import as_html

from ..formats import FloatFormat, Format, FormatError, RoundoffError
from .aten.tables import plain_name
from .dispatch.narrow_tensors import NotHeldError
from .dispatch.simulation import Simulation
from .policy.policy import Policy
from .policy.rules import OPERATION_ROLES, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HIGH = "fp32"
"""How policies name the carrier, unrounded."""

Over = Literal["operation", "module", "role"]

_WIDE_EXPONENT = 8
_WIDEST = {8: 10, 11: 48}  # significand bits tried, by the carrier's exponent bits


class BlameError(FormatError):
    """There is nothing to blame: the program passes as it is, or fails in high precision too."""


@dataclass(frozen=True)
class Blame:
    """A minimal set of what must stay in high precision; ``print`` it.

    Attributes:
        format: everything else runs in it.
        over: what the units are: operations, modules or roles.
        units: all that could have been blamed.
        culprits: if these stay in the carrier the program passes, and without any one of them it fails.
        needs: for each culprit the smallest format with which the program passes while the other culprits stay in the
            carrier: first more significand bits, then 8 exponent bits too; None if no float format up to them does.
        trials: how often the program ran.
    """

    format: str
    over: str
    units: tuple[str, ...]
    culprits: tuple[str, ...]
    needs: dict[str, str | None]
    trials: int

    def __str__(self) -> str:
        width = max(map(len, self.culprits), default=0)
        return "\n".join([self._verdict(), *(f"  {name:<{width}}  needs {self._need(name)}" for name in self.culprits)])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        import pandas as pd  # noqa: PLC0415  costs half a second

        rows = [(name, self._need(name)) for name in self.culprits]
        return as_html(self._verdict(), *([pd.DataFrame(rows, columns=[self.over, "needs"])] if rows else []))

    def _verdict(self) -> str:
        if not self.culprits:
            return f"{self.format}: the program passes as it is ({self.trials} runs)"
        few = f"{len(self.culprits)} of {len(self.units)} {self.over}s stay in high precision"
        return f"{self.format}: the program passes if {few}, and no fewer of these will do ({self.trials} runs)"

    def _need(self, culprit: str) -> str:
        return self.needs[culprit] or "the carrier, or nearly so"


def everywhere(policy: Policy) -> Policy:
    """Returns a policy under which a simulation follows every place, so that modules and roles are known."""
    return policy.with_rules(Rule(role=OPERATION_ROLES, rounding=policy.rounding))


def units_of(simulation: Simulation, over: Over) -> set[str]:
    """What has computed something, and did not only move values, in a simulation that followed every place."""
    seen = set()
    for plan in simulation.plans():
        computes = plan.outputs.results or plan.outputs.written
        if computes and plan.outcome.moved < plan.outcome.calls:
            seen.add({"operation": plain_name(plan.name), "module": plan.module, "role": plan.role}[over])
    return seen - {""}


def rule_for(over: Over, unit: str, format: Format | str) -> Rule:
    """The rule that gives one unit another format."""
    if over == "operation":
        return Rule(operation=unit, format=format)
    return Rule(module=unit, format=format) if over == "module" else Rule(role=unit, format=format)


def blame(
    program: Callable[[], Any],
    format: Format | str | Policy,
    passes: Callable[[Any], bool],
    *,
    over: Over = "operation",
    seed: int = 0,
) -> Blame:
    """Finds a minimal set of operations that must stay in high precision for a program to pass.

    The program is run again and again, with ever other operations left in their carrier (float32 or float64),
    by delta debugging (Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002, ddmin): some n^2
    runs for n units at worst, about k log n for k culprits. The result is 1-minimal: every culprit is needed while the
    others are there. There can be other such sets.

    Args:
        program: takes nothing, begins anew at every call (build the model and seed the generators inside), and returns
            what ``passes`` judges. Errors of arithmetic that it raises count as failing: ``ArithmeticError``,
            ``ValueError``, ``torch.linalg.LinAlgError``, and any other ``RuntimeError`` of a run that had computed an
            infinity or NaN before. Other errors are errors of the program, and are raised.
        format: a format, or the policy under which it fails.
        passes: whether a result is good.
        over: ``operation``: ATen operations by name; ``module``: paths of modules, with what lies in them; or ``role``.
        seed: of stochastic rounding.

    Returns:
        The set, and the smallest format for each member.

    Raises:
        BlameError: the program fails in high precision too, or with all units in high precision.
    """
    policy = Policy.of(format)
    trials = _Search(program, policy, passes, over, seed)
    if not trials.passes_unrounded():
        raise BlameError("the program fails in its carrier, without any rounding, too: there is nothing to blame")
    return search(trials, policy, over)


class Trials(Protocol):
    """Runs of a program, each with other units in another format."""

    @property
    def trials(self) -> int:
        """How many there were."""

    def passes_as_it_is(self) -> bool:
        """Whether the program passes under the policy it was given."""

    def units(self) -> tuple[str, ...]:
        """What computed something in the runs so far."""

    def keeps(self, high: Sequence[str], others: dict[str, str] | None = None) -> bool:
        """Whether the program passes with ``high`` in the carrier and ``others`` in formats of their own."""


def search(trials: Trials, policy: Policy, over: Over) -> Blame:
    """Finds what :func:`blame` finds, by trials of any kind, of a program that passes without rounding.

    Raises:
        BlameError: it fails with all units in high precision.
    """
    assert isinstance(policy.format, Format)
    passes_already = trials.passes_as_it_is()
    units = trials.units()
    if passes_already:
        return Blame(str(policy.format), over, units, (), {}, trials.trials)
    if not trials.keeps(units):
        raise BlameError(
            f"the program fails even with every {over} in high precision ({', '.join(units) or 'none'}): the trouble"
            " lies elsewhere; try over='operation'"
        )
    culprits = minimal(units, trials.keeps)
    needs = {}
    for unit in culprits:
        others = [other for other in culprits if other != unit]
        needs[unit] = smallest_format(policy.format, lambda fmt: trials.keeps(others, {unit: fmt}))  # noqa: B023  called here
    return Blame(str(policy.format), over, units, culprits, needs, trials.trials)


def minimal(units: Sequence[str], passes: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """A subset of ``units``, which pass as a whole, that passes and of which no member can be left out, by ddmin."""
    kept, parts = list(units), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        pieces = [kept[start : start + size] for start in range(0, len(kept), size)]
        rests = [[unit for unit in kept if unit not in piece] for piece in pieces]
        candidates = [
            *((piece, 2) for piece in pieces),
            *((rest, max(parts - 1, 2)) for rest in rests if len(pieces) > 2),
        ]
        found = next(((some, then) for some, then in candidates if passes(some)), None)
        if found is not None:
            kept, parts = found
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    if len(kept) == 1 and passes(()):
        return ()
    return tuple(kept)


def smallest_format(format: Format, passes: Callable[[str], bool]) -> str | None:
    """The first float format that passes, of those with more significand bits, and then with more exponent bits too."""
    return next((name for name in _wider(format) if passes(name)), None)


def _wider(format: Format) -> Iterator[str]:
    if not isinstance(format, FloatFormat):
        return
    import torch  # noqa: PLC0415  only for the name of a type

    carrier_exponent = _WIDE_EXPONENT if format.carrier == torch.float32 else 11
    widest = max(_WIDEST[carrier_exponent], format.significand_bits)
    for exponent_bits in sorted({format.exponent_bits, carrier_exponent}):
        for m in range(format.significand_bits, widest + 1):
            if (exponent_bits, m) != (format.exponent_bits, format.significand_bits):
                yield str(FloatFormat(exponent_bits, m))


class _Search:
    """Runs the program with some of its units in another format, and remembers what came of it."""

    def __init__(
        self, program: Callable[[], Any], policy: Policy, passes: Callable[[Any], bool], over: Over, seed: int
    ) -> None:
        self._program, self._policy, self._passes = program, policy, passes
        self._over, self._seed = over, seed
        self._known: dict[Any, bool] = {}
        self._seen: set[str] = set()
        self.trials = 0

    def passes_unrounded(self) -> bool:
        """Whether the program passes in its carrier."""
        return self._run(Policy(HIGH), learn=True)

    def passes_as_it_is(self) -> bool:
        """Whether the program passes under the policy it was given."""
        return self._run(self._policy, learn=True)

    def units(self) -> tuple[str, ...]:
        """What computed something, with rounding and without: control flow may depend on it."""
        return tuple(sorted(self._seen))

    def keeps(self, high: Sequence[str], others: dict[str, str] | None = None) -> bool:
        """Whether the program passes with ``high`` in the carrier and ``others`` in formats of their own.

        Calls that only move values pass on what they get, so that they are not blamed for what others computed.
        """
        key = (frozenset(high), *(others or {}).items())
        if key not in self._known:
            formats = dict.fromkeys(high, HIGH) | (others or {})
            rules = [rule_for(self._over, unit, fmt) for unit, fmt in formats.items()]
            self._known[key] = self._run(self._policy.with_rules(*rules), learn=False)
        return self._known[key]

    def _run(self, policy: Policy, *, learn: bool) -> bool:
        self.trials += 1
        simulation = Simulation(
            everywhere(policy) if learn else policy, seed=self._seed, warn_unused=False, leave_moves=not learn
        )
        try:
            with simulation:
                result = self._program()
        except NotHeldError:
            if learn:
                raise
            return False  # a wider format, which the program has no dtype for
        except RoundoffError:
            raise  # also a ValueError; it says what to change in the call
        except (ArithmeticError, ValueError, LinAlgError):
            return False
        except RuntimeError:
            if not self._loses_finiteness(policy, leave_moves=not learn):
                raise
            return False
        finally:
            if learn:
                self._seen |= units_of(simulation, self._over)
        return bool(self._passes(result))

    def _loses_finiteness(self, policy: Policy, *, leave_moves: bool) -> bool:
        """Whether a run of the program, which ends in an error, computes an infinity or NaN."""
        self.trials += 1
        simulation = Simulation(policy, seed=self._seed, observe=True, warn_unused=False, leave_moves=leave_moves)
        with suppress(Exception), simulation:
            self._program()
        return simulation.report().birth is not None
