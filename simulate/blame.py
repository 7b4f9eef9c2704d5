"""Finds the operations or modules that a program cannot do in a format, by delta debugging."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from roundoff.notebook import as_html
from roundoff.searches import ask, minimal

from ..formats import FloatFormat, Format, FormatError, RoundoffError
from .aten.tables import plain_name
from .dispatch.narrow_tensors import NotHeldError
from .dispatch.simulation import Simulation
from .policy.parts import split
from .policy.policy import Policy
from .policy.rules import OPERATION_ROLES, Rule

HIGH = "fp32"
"""The name of the unrounded carrier in policies."""

Over = Literal["operation", "module", "role", "part"]

_WIDE_EXPONENT = 8  # float32's
_WIDEST = {8: 10, 11: 48}  # significand bits tried, by the carrier's exponent bits


class BlameError(FormatError):
    """Nothing can be blamed: the program also fails in high precision, or with all units in high precision."""


@dataclass(frozen=True)
class Blame:
    """A minimal set of units that must stay in high precision; ``print`` it.

    Attributes:
        format: everything else runs in it.
        over: kind of the units: operations, modules, roles or parts of the program.
        units: all units that could have been blamed.
        culprits: a minimal set: with these in the carrier the program passes, and without any one of them it fails.
        needs: the smallest sufficient format of each of them, with the others in the carrier: first more significand
            bits, then also 8 exponent bits; None if no float format up to them is sufficient.
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
        """Returns the result as HTML, for notebooks."""
        import pandas as pd  # noqa: PLC0415  costs half a second

        rows = [(name, self._need(name)) for name in self.culprits]
        return as_html(self._verdict(), *([pd.DataFrame(rows, columns=[self.over, "needs"])] if rows else []))

    def _verdict(self) -> str:
        if not self.culprits:
            return f"{self.format}: the program passes as it is ({self.trials} runs)"
        condition = f"{len(self.culprits)} of {len(self.units)} {self.over}s stay in high precision"
        return f"{self.format}: the program passes if {condition}, and no fewer of these will do ({self.trials} runs)"

    def _need(self, culprit: str) -> str:
        return self.needs[culprit] or "the carrier, or nearly so"


def everywhere(policy: Policy) -> Policy:
    """Returns a policy under which a simulation follows every place, so that modules and roles are known."""
    return policy.with_rules(Rule(role=OPERATION_ROLES, rounding=policy.rounding))


def units_of(simulation: Simulation, over: str) -> set[str]:
    """Returns the units that computed something, not only moved values, in a simulation that followed every place."""
    units = set()
    for plan in simulation.plans():
        computes = plan.outputs.results or plan.outputs.written
        if computes and plan.outcome.moved < plan.outcome.calls:
            part, module = split(plan.module)
            names = {"operation": plain_name(plan.name), "module": module, "role": plan.role, "part": part}
            units.add(names[over])
    return units - {""}  # outside of modules, or of parts


def with_formats(policy: Policy, over: str, formats: Mapping[str, str]) -> Policy:
    """Returns a policy that gives each unit its own format; later units win."""
    argument = "within" if over == "part" else over
    return policy.with_rules(*(Rule(**dict[str, Any]({argument: unit}), format=fmt) for unit, fmt in formats.items()))


def blame(
    program: Callable[[], Any],
    format: Format | str | Policy,
    passes: Callable[[Any], bool],
    *,
    over: Over = "operation",
    seed: int = 0,
) -> Blame:
    """Finds a minimal set of operations that must stay in high precision for a program to pass.

    The program is run again and again, each time with other operations left in their carrier (float32 or float64),
    by delta debugging (Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002, ddmin): some n^2
    runs for n units at worst, about k log n for k blamed ones. The result is 1-minimal: each one is needed while the
    others are there. There can be other such sets.

    Args:
        program: takes nothing, starts over at every call (build the model and seed the generators inside), and returns
            what ``passes`` judges. Errors of arithmetic that it raises count as failing: ``ArithmeticError``,
            ``ValueError``, ``torch.linalg.LinAlgError``, and any other ``RuntimeError`` of a run that had computed an
            infinity or NaN before. Other errors are errors of the program, and are raised.
        format: a format, or the policy under which it fails.
        passes: whether a result is good.
        over: ``operation``: ATen operations by name; ``module``: paths of modules, with their contents; ``role``; or
            ``part``: blocks ``with roundoff.part(name):`` and the functions that rules of the policy are within.
        seed: seed of stochastic rounding.

    Returns:
        The set, and the smallest format for each member.

    Raises:
        BlameError: the program fails in high precision too, or with all units in high precision.
    """
    return search(_ProgramTrials(program, Policy.of(format), passes, over, seed))


class Trial(NamedTuple):
    """The outcome of one run.

    Attributes:
        passed: whether it was good enough.
        outcome: the outcome, in words.
        units: the units that computed something, if they were requested.
        printed: its last output, in words, if that may explain the failure.
    """

    passed: bool
    outcome: str
    units: Iterable[str] = ()
    printed: str = ""


class Trials(ABC):
    """Runs a program with different units in different formats; no run is repeated, and each is reported in a line.

    Args:
        format: format or policy that rounds the units that are not blamed.
        over: kind of the units: operations, modules, roles or parts of the program.
        on_trial: called for every trial, with a line of text.
    """

    noun: ClassVar[str]
    """The name of the program in messages."""

    def __init__(self, format: Format, over: str, on_trial: Callable[[str], None] = lambda _: None) -> None:
        self.format, self.over, self._on_trial = format, over, on_trial
        self.count = 0
        self._units: set[str] = set()
        self._passes_by_formats: dict[object, bool] = {}

    @abstractmethod
    def watched(self, *, rounded: bool) -> Trial:
        """Runs the program in its format, or without any rounding, and reports the units that compute something."""

    @abstractmethod
    def under(self, formats: Mapping[str, str]) -> Trial:
        """Runs the program with each unit in its own format.

        Calls that only move values pass values on unchanged, so that they are not blamed for the results of others.
        """

    @property
    def units(self) -> tuple[str, ...]:
        """The units that computed something, with rounding or without: control flow may depend on it."""
        return tuple(sorted(self._units))

    def watch(self, *, rounded: bool) -> Trial:
        """Runs the program in its format, or without any rounding, and remembers the units that compute something."""
        name = f"in {self.format}" if rounded else "without rounding"
        trial = self._run_trial(name, lambda: self.watched(rounded=rounded))
        self._units |= set(trial.units)
        return trial

    def keeps(self, high: Sequence[str], others: Mapping[str, str] | None = None) -> bool:
        """Whether the program passes with ``high`` in the carrier and ``others`` in their own formats."""
        formats = {**dict.fromkeys(sorted(high), HIGH), **(others or {})}
        # Delta debugging asks about some sets again.
        key = frozenset(formats.items())
        if key not in self._passes_by_formats:
            name = f"{len(high)} of {len(self._units)} {self.over}s in high precision"
            name += "".join(f", {unit} in {fmt}" for unit, fmt in (others or {}).items())
            self._passes_by_formats[key] = self._run_trial(name, lambda: self.under(formats)).passed
        return self._passes_by_formats[key]

    def _run_trial(self, name: str, run: Callable[[], Trial]) -> Trial:
        self.count += 1
        start, count = time.monotonic(), self.count
        trial = run()
        verdict = "passes" if trial.passed else "fails"
        self._on_trial(f"trial {count} ({time.monotonic() - start:.0f} s), {name}: {trial.outcome}, {verdict}")
        return trial


def search(trials: Trials) -> Blame:
    """Finds the set that :func:`blame` returns, by trials of any kind.

    Raises:
        BlameError: what runs fails without any rounding, or with all units in high precision.
    """
    noun, over, fmt = trials.noun, trials.over, trials.format
    # Both ends of the search: without rounding the program must pass, and with it it must fail.
    unrounded = trials.watch(rounded=False)
    if not unrounded.passed:
        raise BlameError(
            f"the {noun} also fails in high precision ({unrounded.outcome}): nothing is to blame{unrounded.printed}"
        )
    passes_already = trials.watch(rounded=True).passed
    units = trials.units
    if passes_already:
        return Blame(str(fmt), over, units, (), {}, trials.count)
    if not trials.keeps(units):
        place = "in the rounding of data or of moves" if over == "operation" else "elsewhere; try over='operation'"
        raise BlameError(
            f"the {noun} fails even with every {over} in high precision ({', '.join(units) or 'none'}): the cause"
            f" is {place}"
        )
    culprits = ask(minimal(units), trials.keeps)[1] or ()
    # The smallest format of each one, while the others stay in the carrier
    needs: dict[str, str | None] = {}
    for unit in culprits:
        others = [other for other in culprits if other != unit]
        needs[unit] = next((name for name in _wider(fmt) if trials.keeps(others, {unit: name})), None)
    return Blame(str(fmt), over, units, culprits, needs, trials.count)


def _wider(format: Format) -> Iterator[str]:
    """Yields the float formats with more significand bits, and then those with also more exponent bits."""
    if not isinstance(format, FloatFormat):
        return
    import torch  # noqa: PLC0415  only for the name of a type

    carrier_exponent = _WIDE_EXPONENT if format.carrier == torch.float32 else 11  # float64's
    widest = max(_WIDEST[carrier_exponent], format.significand_bits)
    for exponent_bits in sorted({format.exponent_bits, carrier_exponent}):
        for m in range(format.significand_bits, widest + 1):
            if (exponent_bits, m) != (format.exponent_bits, format.significand_bits):
                yield str(FloatFormat(exponent_bits, m))


class _ProgramTrials(Trials):
    noun = "program"

    def __init__(
        self, program: Callable[[], Any], policy: Policy, passes: Callable[[Any], bool], over: Over, seed: int
    ) -> None:
        assert isinstance(policy.format, Format)
        super().__init__(policy.format, over)
        self._program, self._policy, self._passes, self._seed = program, policy, passes, seed

    def watched(self, *, rounded: bool) -> Trial:
        return self._run(self._policy if rounded else Policy(HIGH), learn=True)

    def under(self, formats: Mapping[str, str]) -> Trial:
        return self._run(with_formats(self._policy, self.over, formats), learn=False)

    def _run(self, policy: Policy, *, learn: bool) -> Trial:
        # The first runs learn the units; later ones leave moves unrounded: only the source of a value is to blame.
        simulation = Simulation(
            everywhere(policy) if learn else policy, seed=self._seed, warn_unused=False, leave_moves=not learn
        )
        error: Exception | None = None
        try:
            with simulation:
                result = self._program()
        except NotHeldError as caught:
            if learn:
                raise
            error = caught  # the program has no dtype for the wider format of this trial
        except RoundoffError:
            raise  # also a ValueError; it says what to change in the call
        except (ArithmeticError, ValueError, LinAlgError) as caught:
            error = caught
        except RuntimeError as caught:  # PyTorch raises it for anything, also for NaN (as a sampler's probabilities)
            if not self._loses_finiteness(policy, leave_moves=not learn):
                raise
            error = caught
        passed = error is None and bool(self._passes(result))
        outcome = "what it returned" if error is None else f"{type(error).__name__}: {error}"
        return Trial(passed, outcome, units_of(simulation, self.over) if learn else ())

    def _loses_finiteness(self, policy: Policy, *, leave_moves: bool) -> bool:
        """Whether a run of the program, which ends in an error, has computed an infinity or NaN."""
        # Runs it again, observed, which takes several times as long: only runs that raise a vague error need it.
        self.count += 1
        simulation = Simulation(policy, seed=self._seed, observe=True, warn_unused=False, leave_moves=leave_moves)
        with suppress(Exception), simulation:
            self._program()
        return simulation.report().birth is not None
