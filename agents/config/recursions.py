"""Recursions with a small gain in an agent: the bits that they need, and the part that rounding leaves of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from .baselines import BASELINES
from .fixes import (
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
from .train_config import config_class
from .value_keys import ValueKeys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...formats import FloatFormat
    from ...simulate import Policy
    from .train_config import TrainConfig

_ENOUGH = 0.9
"""Less than this part of a value's horizon is named, and a lag of more than what is left to 1."""

_DISCOUNT = "discount "
"""What remarks on values begin with."""

_RESULTS_AS_COMPUTED = ("weights", "weight_gradients", "first_moments", "second_moments", "compensations")
"""What `storage` keeps of results that the arithmetic has rounded already."""


@final
@dataclass(frozen=True)
class Recursion:
    """Something that goes a part of the way to where it goes, x <- x + gain (y - x), or small steps, again and again.

    Attributes:
        what: its name: ``values``, ``target networks``, ``first moments``, ``second moments`` or ``weights``.
        cause: the key that says the gain, and its value.
        gain: the part; of weights the learning rate, which is a step.
        format: the format it is computed in, or kept in if that has fewer significand bits.
        how: its sum is rounded: ``to nearest``, ``compensated`` or ``stochastically``.
        needs: the significand bits that leave nine tenths of it, rounded to the nearest.
        left: what there is with the bits it has, in words.
        fits: whether that is enough to go unsaid.
        remedy: what makes it right on average, at no bits.
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
        widths = [max(len(line[i]) for line in lines) for i in range(4)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]])
            for line in lines
        )


def recursions(config: TrainConfig) -> Recursions:
    """The recursions of a run in float formats; recursions of other runs stop elsewhere, and are left out.

    Args:
        config: the config of one of roundoff's own algorithms; nothing is known about others.
    """
    return Recursions(tuple(_rows(config)) if isinstance(config, OptimizerKeys) else ())


def remarks(config: TrainConfig) -> list[str]:
    """Returns remarks on a run before it begins: recursions that its format cannot carry, keys and steps in vain.

    Each is a sentence; the result is empty where all is well.
    """
    if not isinstance(config, OptimizerKeys):
        return []
    rows = (str(row) for row in recursions(config).rows if not row.fits)
    return [*rows, *_vain(config), *_steps_in_vain(config), *_clipped(config)]


def _steps_in_vain(config: OptimizerKeys) -> Iterator[str]:
    """A sentence about the last transitions, if they fill no rollout, and are more than a hundredth of all.

    These are collected, and not learned from.
    """
    if isinstance(config, OnPolicyKeys) and (left := config.transitions % config.rollout) > config.transitions / 100:
        learned, more = (config.transitions - left) * config.action_repeat, config.rollout * config.action_repeat
        yield (
            f"the last {left} of {config.transitions} agent steps fill no rollout of {config.rollout}, and are not"
            f" learned from; with steps: {learned} or {learned + more} the run ends with one"
        )


def _clipped(config: OptimizerKeys) -> Iterator[str]:
    """A sentence about a categorical head with atoms that do not cover the values of its task, as its keys say."""
    if isinstance(config, ValueKeys) and (most := beyond_support(config)):
        yield (
            f"values on {config.task} reach {most:.4g}, and the atoms end at v_max {config.support[1]:g}, where larger"
            " values are clipped"
        )


def _rows(config: OptimizerKeys) -> Iterator[Recursion]:
    places = _Places(config)
    yield from _values(config, places)
    if isinstance(config, OffPolicyKeys) and config.tau < 1:
        yield from _averages(config, places)
    if not BASELINES[config.baseline].master_weights:
        yield from _moments(config, places)
        yield from _weights(config, places)


class _Places:
    """The formats and modes of the results of the operations of a role."""

    def __init__(self, config: OptimizerKeys) -> None:
        from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds
        from ...simulate import Policy  # noqa: PLC0415  imports torch, which costs seconds

        self._own = Format.parse(config.format)
        self._policy: Policy = Policy.parse(config.policy, self._own) if config.policy else Policy.of(self._own)

    def at(self, operation: str, role: str) -> tuple[FloatFormat, bool] | None:
        """The format, and whether it is rounded to stochastically; None where nothing is rounded, or to no float."""
        from ...formats import FloatFormat, Rounding  # noqa: PLC0415  imports torch, which costs seconds

        arithmetic, _ = self._policy.arithmetic(operation, "", role)
        fmt = arithmetic.format
        if not isinstance(fmt, FloatFormat) or fmt.native:
            return None
        return fmt, arithmetic.rounding is Rounding.STOCHASTIC


def _kept(config: OptimizerKeys, name: str, place: tuple[FloatFormat, bool] | None) -> tuple[FloatFormat, bool] | None:
    """The format and rounding of values that ``storage`` keeps in fewer bits than computed; stochastic if True."""
    from ...formats import FloatFormat, Format  # noqa: PLC0415  imports torch, which costs seconds

    stored = config.storage and config.storage.formats.get(name)
    if not stored:
        return place
    fmt = Format.parse(stored.format)
    if not isinstance(fmt, FloatFormat) or (place and place[0].significand_bits <= fmt.significand_bits):
        return place
    return fmt, stored.rounding == STOCHASTIC


def _values(config: OptimizerKeys, places: _Places) -> Iterator[Recursion]:
    """Targets, of n steps; of rollouts the steps that lambda reaches."""
    from ...formats import bits_needed, reach  # noqa: PLC0415  imports torch, which costs seconds

    place = places.at("addcmul", "targets")
    steps = getattr(config, "n_steps", 1)
    discount = config.discount**steps
    targets_are_exact = EXACT_ERRORS in config.fixes and isinstance(config, OffPolicyKeys)
    if place is None or discount == 1 or targets_are_exact:
        return
    fmt, stochastic = place
    stochastic = stochastic or STOCHASTIC_TARGETS in config.fixes
    horizon = 1 / (1 - config.discount)
    least, most = reach(1 - discount, fmt.significand_bits)
    exact = f"values reach all {horizon:.3g} steps, on average"
    cause = f"{_DISCOUNT}{config.discount:g}" + (f" over {steps} steps" if steps > 1 else "")
    yield Recursion(
        "values",
        cause,
        1 - discount,
        str(fmt),
        _how(stochastic=stochastic),
        bits_needed(1 - discount, _ENOUGH),
        exact if stochastic else f"values reach {horizon * least:.0f} to {horizon * most:.0f} steps of {horizon:.3g}",
        stochastic or least >= _ENOUGH,
        f"{STOCHASTIC_TARGETS} takes that away",
    )


def _averages(config: OffPolicyKeys, places: _Places) -> Iterator[Recursion]:
    """Target networks that are moved by tau: compensated or not, or kept in a separate format."""
    from ...formats import bits_needed, least_change  # noqa: PLC0415  imports torch

    storage = config.storage
    place = places.at("add", "averages")
    compensated = COMPENSATED_AVERAGES in config.fixes
    stochastic = compensated and is_stochastic(config.fixes, "averages")
    remedy = "stochastic_compensation takes that away"
    if storage is not None and storage.targets is not None:  # computed in the carrier
        place = _kept(config, "targets", None)
        kept = storage.target_compensations
        compensated, stochastic = kept is not None, kept is not None and kept.rounding == STOCHASTIC
        remedy = "storage.target_compensations with rounding: stochastic takes that away"
    if place is None or BASELINES[config.baseline].master_weights:
        return
    fmt, stochastic_result = place
    stochastic = stochastic or stochastic_result
    lag = least_change(fmt.significand_bits, compensated=compensated)[1] / config.tau
    yield Recursion(
        "target networks",
        f"tau {config.tau:g}",
        config.tau,
        str(fmt),
        _how(stochastic=stochastic, compensated=compensated),
        bits_needed(config.tau, _ENOUGH),
        "target networks arrive, on average"
        if stochastic
        else f"target networks stop up to {_percent(lag)} of a weight away from it",
        stochastic or lag <= 1 - _ENOUGH,
        remedy,
    )


def _moments(config: OptimizerKeys, places: _Places) -> Iterator[Recursion]:
    """Yields both moments, or the second one of RMSProp; its root decays by half as much."""
    from ...formats import bits_needed  # noqa: PLC0415  imports torch, which costs seconds

    roots = ROOTS_OF_MOMENTS in config.fixes
    second = 1 - math.sqrt(config.adam_beta2) if roots else 1 - config.adam_beta2
    found = [("second moments", f"adam_beta2 {config.adam_beta2:g}", second, "second_moments")]
    if config.optimizer == "adam" and config.adam_beta1:
        found.insert(0, ("first moments", f"adam_beta1 {config.adam_beta1:g}", 1 - config.adam_beta1, "first_moments"))
    for what, cause, gain, key in found:
        computed = places.at("add", "optimizer")
        place = _kept(config, key, computed)
        if place is None:
            continue
        fmt, stochastic = place
        stochastic = stochastic or (STOCHASTIC_MOMENTS in config.fixes and place == computed)
        # Even at the upper end of a binade, where an ulp is the smallest part of a number.
        decays = gain > 2.0 ** -(fmt.significand_bits + 2)
        left = "follow, on average" if stochastic else "decay, in steps" if decays else "do not decay"
        yield Recursion(
            what,
            cause,
            gain,
            str(fmt),
            _how(stochastic=stochastic),
            bits_needed(gain, 0.5),
            f"{what} {left}",
            stochastic or decays,
            f"{STOCHASTIC_MOMENTS} takes that away",
        )


def _weights(config: OptimizerKeys, places: _Places) -> Iterator[Recursion]:
    """Steps of the learning rate, about as large as Adam's steps, relative to weights of a usual size."""
    from ...formats import least_change  # noqa: PLC0415  imports torch, which costs seconds

    place = _kept(config, "weights", places.at("add", "optimizer"))
    if place is None:
        return
    fmt, stochastic_result = place
    compensated = COMPENSATED_STEPS in config.fixes
    stochastic = stochastic_result or (compensated and is_stochastic(config.fixes, "weights"))
    largest = config.lr / least_change(fmt.significand_bits, compensated=compensated)[1]
    usual = max(config.widths_of_all) ** -0.5
    own = " of critics" if compensated and not stochastic else ""
    yield Recursion(
        "weights",
        f"lr {config.lr:g}",
        config.lr,
        str(fmt),
        _how(stochastic=stochastic, compensated=compensated),
        max(0, math.ceil(math.log2(usual / config.lr)) - 1),
        "weights are moved, on average"
        if stochastic
        else f"weights{own} above {largest:.2g} are not moved by steps of the learning rate",
        stochastic or largest >= usual,
        "stochastic_compensation takes that away",
    )


def _vain(config: OptimizerKeys) -> Iterator[str]:
    """Roundings that round nothing, since there are numbers of the format already."""
    if config.storage is None:
        return
    place = _Places(config).at("add", "optimizer")
    for name in _RESULTS_AS_COMPUTED:
        stored = config.storage.formats.get(name)
        if stored and stored.rounding == STOCHASTIC and place and str(place[0]) == stored.format:
            yield (
                f"storage.{name} is rounded stochastically to {stored.format}, to which the optimizer's arithmetic has"
                f" rounded it already, {_how(stochastic=place[1])}: that changes no bit;"
                " stochastic_compensation and stochastic_moments do"
            )


def _how(*, stochastic: bool, compensated: bool = False) -> str:
    if stochastic:
        return "compensated stochastically" if compensated else "stochastically"
    return "compensated" if compensated else "to nearest"


def _percent(share: float) -> str:
    return "all" if share >= 1 else f"{100 * share:.2g} %"


def said_of(config: Mapping[str, Any]) -> list[str]:
    """The remarks on a run by the keys of a config from a file, which is not validated; its files are not opened.

    Empty if the config cannot be understood, and for users' programs, where keys have other meanings.
    """
    if "program" in config:
        return []
    from roundoff.errors import RoundoffError  # noqa: PLC0415  only reports need it

    try:
        storage = read_storage(config.get("storage"))
        made = config_class(config).model_construct(**{**config, "storage": storage and Storage(**storage)})
        return remarks(made)
    except (RoundoffError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError):
        return []


def is_about_values(remark: str) -> bool:
    """Whether a remark is the one on values, which says the horizon that is left of a discount."""
    return remark.startswith(_DISCOUNT)
