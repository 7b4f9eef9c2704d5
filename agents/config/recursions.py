"""Recursions with a small gain in an agent: the bits that they need, and the part that rounding leaves of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

from .fixes import (
    BASELINES,
    COMPENSATED_AVERAGES,
    COMPENSATED_STEPS,
    EXACT_ERRORS,
    ROOTS_OF_MOMENTS,
    STOCHASTIC_MOMENTS,
    STOCHASTIC_TARGETS,
    is_stochastic,
)
from .learning_keys import OffPolicyKeys, OptimizerKeys
from .on_policy_keys import OnPolicyKeys
from .rules import beyond_support
from .storage import STOCHASTIC, Storage, read_storage
from .train_config import TrainConfig, config_class
from .value_keys import ValueKeys

if TYPE_CHECKING:
    from ...formats import FloatFormat

_ENOUGH = 0.9
"""A remark names values that reach less than this part of their horizon, and lags of more than the rest to 1."""

_DISCOUNT = "discount "
"""First words of remarks on values."""

_RESULTS_AS_COMPUTED = ("weights", "weight_gradients", "first_moments", "second_moments", "compensations")
"""The kinds of `storage` that keep results in the format of the arithmetic."""


@final
@dataclass(frozen=True)
class Recursion:
    """A repeated small change: x <- x + gain (y - x), or a step of the learning rate.

    Attributes:
        what: its name: ``values``, ``target networks``, ``first moments``, ``second moments`` or ``weights``.
        cause: the key with the gain, and its value.
        gain: the part of the distance that each step covers; the learning rate for weights.
        format: the format of the computation, or of storage if it has fewer significand bits.
        how: the rounding of its sum: ``to nearest``, ``compensated`` or ``stochastically``.
        needs: the significand bits that leave nine tenths of it, rounded to the nearest.
        left: the effect with the bits of the format, in words.
        fits: whether the effect needs no remark.
        remedy: the fix or key that makes it right on average, without more bits.
    """

    what: str
    cause: str
    gain: float
    format: str
    how: str
    needs: int
    left: str
    fits: bool
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause} in {self.format}, {self.how}: {self.left}" + ("" if self.fits else f"; {self.remedy}")


@final
@dataclass(frozen=True)
class Recursions:
    """The recursions of a run, as a table; ``print`` it."""

    rows: tuple[Recursion, ...]

    def __str__(self) -> str:
        lines = [("recursion", "gain", "needs", "has", "what is left")]
        lines += [
            (row.what, f"{row.gain:.3g}", f"m = {row.needs}", f"{row.format}, {row.how}", row.left) for row in self.rows
        ]
        from ...formats import aligned  # noqa: PLC0415  imports torch, which costs seconds

        return aligned(lines, left=range(5))


def recursions(config: TrainConfig) -> Recursions:
    """Returns the recursions of a run in float formats; other formats are left out, since they stop elsewhere.

    Args:
        config: the config of one of roundoff's own algorithms; nothing is known about others.
    """
    return Recursions(tuple(_Rows(config)) if isinstance(config, OptimizerKeys) else ())


def remarks(config: TrainConfig) -> list[str]:
    """Returns remarks on a run before it begins: recursions that its format stops, keys and steps without effect.

    Each is a sentence; the result is empty if there are no problems.
    """
    if not isinstance(config, OptimizerKeys):
        return []
    rows = _Rows(config)
    sentences = [*(str(row) for row in rows if not row.fits), *rows.without_effect()]
    # An incomplete rollout at the end is collected, but not learned from; less than 1 % of the steps does not matter.
    if isinstance(config, OnPolicyKeys) and (left := config.transitions % config.rollout) > config.transitions / 100:
        learned, more = (config.transitions - left) * config.action_repeat, config.rollout * config.action_repeat
        sentences.append(
            f"the last {left} of {config.transitions} agent steps fill no rollout of {config.rollout}, and are not"
            f" learned from; with steps: {learned} or {learned + more} the run ends with one"
        )
    if isinstance(config, ValueKeys) and (most := beyond_support(config)):
        sentences.append(
            f"values on {config.task} reach {most:.4g}, and the atoms end at v_max {config.support[1]:g}, where larger"
            " values are clipped"
        )
    return sentences


class _Sum(NamedTuple):
    """The rounding of a recursion's sums: the format, and whether it is stochastic and compensated."""

    format: FloatFormat
    stochastic: bool
    compensated: bool = False

    def __str__(self) -> str:
        if self.stochastic:
            return "compensated stochastically" if self.compensated else "stochastically"
        return "compensated" if self.compensated else "to nearest"

    def row(
        self, what: str, cause: str, gain: float, needs: int, *, left: str, on_average: str, fits: bool, remedy: str
    ) -> Recursion:
        """Returns a row of the table; stochastic sums need no remark, and are described by ``on_average``."""
        left, fits = (on_average, True) if self.stochastic else (left, fits)
        return Recursion(what, cause, gain, str(self.format), str(self), needs, left, fits, f"{remedy} avoids this")


class _Rows:
    """The recursions of a run, by the formats and modes of the results of its operations."""

    def __init__(self, config: OptimizerKeys) -> None:
        from ... import formats  # noqa: PLC0415  imports torch, which costs seconds
        from ...simulate import Policy  # noqa: PLC0415  imports torch, which costs seconds

        fmt = formats.Format.parse(config.format)
        self._config, self._formats = config, formats
        self._policy = Policy.parse(config.policy, fmt) if config.policy else Policy.of(fmt)

    def __iter__(self) -> Iterator[Recursion]:
        config = self._config
        yield from self._values()  # In the order of the table.
        if isinstance(config, OffPolicyKeys) and config.tau < 1:
            yield from self._averages(config)
        if not BASELINES[config.baseline].master_weights:  # Else the optimizer computes in full precision.
            yield from self._moments()
            yield from self._weights()

    def without_effect(self) -> Iterator[str]:
        """Yields sentences about roundings that change nothing, since their input is already in the format."""
        place = self._at("add", "optimizer")
        for name in _RESULTS_AS_COMPUTED if self._config.storage else ():
            stored = self._config.storage and self._config.storage.formats.get(name)
            if stored and stored.rounding == STOCHASTIC and place and str(place.format) == stored.format:
                yield (
                    f"storage.{name} is rounded stochastically to {stored.format}, to which the optimizer's arithmetic"
                    f" has rounded it already, {place}: that changes no bit;"
                    " stochastic_compensation and stochastic_moments do"
                )

    def _at(self, operation: str, role: str) -> _Sum | None:
        """Returns the rounding of an operation's results; None if they are not rounded, or not to a float."""
        arithmetic, _ = self._policy.arithmetic(operation, "", role)
        fmt = arithmetic.format
        if not isinstance(fmt, self._formats.FloatFormat) or fmt.native:
            return None
        return _Sum(fmt, arithmetic.rounding is self._formats.Rounding.STOCHASTIC)

    def _rounded_when_stored(self, name: str, place: _Sum | None) -> _Sum | None:
        """Returns the rounding of ``storage`` for values that it keeps in fewer bits than ``place``, else ``place``."""
        stored = self._config.storage and self._config.storage.formats.get(name)
        if not stored:
            return place
        fmt = self._formats.Format.parse(stored.format)
        if not isinstance(fmt, self._formats.FloatFormat):
            return place
        if place and place.format.significand_bits <= fmt.significand_bits:  # Already coarser than its storage.
            return place
        return _Sum(fmt, stored.rounding == STOCHASTIC)

    def _values(self) -> Iterator[Recursion]:
        """Yields the recursion of targets over n steps, or over the steps of generalized advantage estimation."""
        config, place = self._config, self._at("addcmul", "targets")
        # The gain is 1 - g^n: a value moves by that part towards the rewards of its next n steps.
        steps = getattr(config, "n_steps", 1)
        discount = config.discount**steps
        targets_are_exact = EXACT_ERRORS in config.fixes and isinstance(config, OffPolicyKeys)
        if place is None or discount == 1 or targets_are_exact:
            return
        horizon = 1 / (1 - config.discount)
        least, most = self._formats.reach(1 - discount, place.format.significand_bits)
        yield place._replace(stochastic=place.stochastic or STOCHASTIC_TARGETS in config.fixes).row(
            "values",
            f"{_DISCOUNT}{config.discount:g}" + (f" over {steps} steps" if steps > 1 else ""),
            1 - discount,
            self._formats.bits_needed(1 - discount, _ENOUGH),
            left=f"values reach {horizon * least:.0f} to {horizon * most:.0f} steps of {horizon:.3g}",
            on_average=f"values reach all {horizon:.3g} steps, on average",
            fits=least >= _ENOUGH,
            remedy=STOCHASTIC_TARGETS,
        )

    def _averages(self, config: OffPolicyKeys) -> Iterator[Recursion]:
        """Yields the recursion of target networks that move by tau: compensated or not, or in a separate format."""
        storage = config.storage
        place = self._at("add", "averages")
        compensated = COMPENSATED_AVERAGES in config.fixes
        stochastic = compensated and is_stochastic(config.fixes, "averages")
        remedy = "stochastic_compensation"
        if storage is not None and storage.targets is not None:  # Computed in the carrier, and rounded when stored.
            place = self._rounded_when_stored("targets", None)
            compensations = storage.target_compensations
            compensated = compensations is not None
            stochastic = compensations is not None and compensations.rounding == STOCHASTIC
            remedy = "storage.target_compensations with rounding: stochastic"
        if place is None or BASELINES[config.baseline].master_weights:
            return
        # An average stops when tau times its distance from the source is less than the least change.
        lag = self._formats.least_change(place.format.significand_bits, compensated=compensated)[1] / config.tau
        yield _Sum(place.format, stochastic or place.stochastic, compensated).row(
            "target networks",
            f"tau {config.tau:g}",
            config.tau,
            self._formats.bits_needed(config.tau, _ENOUGH),
            left=f"target networks stop up to {'all' if lag >= 1 else f'{100 * lag:.2g} %'} of a weight away from it",
            on_average="target networks arrive, on average",
            fits=lag <= 1 - _ENOUGH,
            remedy=remedy,
        )

    def _moments(self) -> Iterator[Recursion]:
        """Yields the recursions of both moments, or of RMSProp's second one."""
        config = self._config
        # The root of a second moment decays by the root of beta2: by about half as much.
        roots = ROOTS_OF_MOMENTS in config.fixes
        second = 1 - math.sqrt(config.adam_beta2) if roots else 1 - config.adam_beta2
        moments = [("second moments", f"adam_beta2 {config.adam_beta2:g}", second, "second_moments")]
        if config.optimizer == "adam" and config.adam_beta1:
            first = 1 - config.adam_beta1
            moments.insert(0, ("first moments", f"adam_beta1 {config.adam_beta1:g}", first, "first_moments"))
        for what, cause, gain, key in moments:
            computed = self._at("add", "optimizer")
            place = self._rounded_when_stored(key, computed)
            if place is None:
                continue
            stochastic = place.stochastic or (STOCHASTIC_MOMENTS in config.fixes and place == computed)
            # Even at the upper end of a binade, where an ulp is the smallest part of a number.
            decays = gain > 2.0 ** -(place.format.significand_bits + 2)
            yield place._replace(stochastic=stochastic).row(
                what,
                cause,
                gain,
                self._formats.bits_needed(gain, 0.5),
                left=f"{what} {'decay, in steps' if decays else 'do not decay'}",
                on_average=f"{what} follow, on average",
                fits=decays,
                remedy=STOCHASTIC_MOMENTS,
            )

    def _weights(self) -> Iterator[Recursion]:
        """Yields the recursion of weights: steps of the learning rate, about as large as Adam's."""
        config, place = self._config, self._rounded_when_stored("weights", self._at("add", "optimizer"))
        if place is None:
            return
        compensated = COMPENSATED_STEPS in config.fixes
        stochastic = place.stochastic or (compensated and is_stochastic(config.fixes, "weights"))
        change = self._formats.least_change(place.format.significand_bits, compensated=compensated)[1]
        # A usual weight is 1 / sqrt(inputs), the bound of uniform initial weights.
        largest, usual = config.lr / change, max(config.widths_of_all) ** -0.5
        scope = " of critics" if compensated else ""  # Only their steps are compensated.
        yield _Sum(place.format, stochastic, compensated).row(
            "weights",
            f"lr {config.lr:g}",
            config.lr,
            max(0, math.ceil(math.log2(usual / config.lr)) - 1),
            left=f"weights{scope} above {largest:.2g} are not moved by steps of the learning rate",
            on_average="weights are moved, on average",
            fits=largest >= usual,
            remedy="stochastic_compensation",
        )


def remarks_on(config: Mapping[str, Any]) -> list[str]:
    """Returns remarks on a run by the keys of a stored config, which is not validated; opens no files of the run.

    The result is empty if the config cannot be read, and for users' programs, where keys have other meanings.
    """
    if "program" in config:
        return []
    from roundoff.errors import RoundoffError  # noqa: PLC0415  only reports need it

    try:
        storage = read_storage(config.get("storage"))
        keys = {**config, "storage": storage and Storage(**storage)}
        return remarks(config_class(config).model_construct(**keys))
    except (RoundoffError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError):
        return []


def is_about_values(remark: str) -> bool:
    """Whether a remark is about the part of a discount's horizon that values reach."""
    return remark.startswith(_DISCOUNT)
