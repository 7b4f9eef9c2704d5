"""The number of significant decimal digits of a function's results, from samples with random rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ...formats import Format, FormatError, Rounding, aligned
from ..dispatch.simulation import Simulation
from ..policy.policy import Policy
from ..policy.rules import choice
from ..presence.generators import remembered_generators, seed_generators
from .rounding import Randomness, RandomRounding

_LOG2 = math.log10(2)  # decimal digits of a bit
_SHOWN = 10  # rows of each table that are printed


class Digits(NamedTuple):
    """The significant decimal digits of one value, or of the elements of one tensor.

    Digits are infinite where all samples are equal, 0 where no digit is significant, NaN where a sample is not finite.
    """

    name: str
    elements: int
    mean: float
    """The mean over samples; of several elements, the mean of their magnitudes."""
    digits: float
    """Parker's estimate, log10 |mean / standard deviation|; of several elements, the median."""
    least: float
    """The smallest estimate of the elements."""
    certain: float
    """The lower bound of Sohier et al. for the element with the fewest digits; see :func:`certain_digits`."""

    @classmethod
    def of(cls, name: str, samples: Sequence[Any]) -> Digits:
        """Estimates the digits of samples of equal shape."""
        table = np.array([np.asarray(sample, dtype=np.float64).ravel() for sample in samples])
        estimates = significant_digits(table)
        least = float(estimates.min()) if not np.isnan(estimates).any() else math.nan
        with np.errstate(all="ignore"):
            mean = float(table.mean()) if table.shape[1] == 1 else float(np.abs(table.mean(0)).mean())
        median = float(np.median(estimates))
        return cls(name, table.shape[1], mean, median, least, certain_digits(least, len(samples)))


def significant_digits(samples: np.ndarray) -> np.ndarray:
    """Parker's estimate of the significant decimal digits, log10 |mean / standard deviation|, at least 0.

    Args:
        samples: (samples, elements), float64.

    Returns:
        (elements,): infinity where all samples are equal, NaN where one is not finite.

    Source:
        Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic", 1997, section 4.
    """
    with np.errstate(all="ignore"):
        mean, deviation = samples.mean(0), samples.std(0, ddof=1)
        estimate = np.maximum(np.log10(np.abs(mean) / deviation), 0.0)
    # A deviation of equal samples may be tiny instead of 0, since their mean is rounded.
    estimate = np.where((samples == samples[0]).all(0), np.inf, estimate)
    return np.where(np.isfinite(samples).all(0), estimate, np.nan)


def certain_digits(digits: float, samples: int, probability: float = 0.95, confidence: float = 0.95) -> float:
    """A lower bound of the significant decimal digits of a result, for normally distributed errors.

    With the given confidence, the digits up to the bound are significant (the error is below half a unit of the last
    one) with at least the given probability.

    Args:
        digits: the estimate of :func:`significant_digits`.
        samples: the number of samples, from 2.
        probability: the probability that a digit is significant.
        confidence: the confidence in the standard deviation, which is estimated.

    Source:
        Sohier, De Oliveira Castro, Févotte, Lathuilière, Petit and Jamond, "Confidence Intervals for Stochastic
        Arithmetic", ACM TOMS 47(2), 2021, section 3 (centered normality hypothesis).
    """
    from scipy.special import gammaincinv, ndtri  # noqa: PLC0415  is not needed to import the package

    quantile = 2 * float(gammaincinv((samples - 1) / 2, (1 - confidence) / 2))  # of chi squared
    # In bits, as in the paper: the uncertainty of the standard deviation, and the quantile of the normal errors
    shift = 0.5 * math.log2((samples - 1) / quantile) + math.log2(float(ndtri((probability + 1) / 2)))
    return max(digits - shift * _LOG2, 0.0)


@dataclass(frozen=True)
class DigitsReport:
    """The significant digits of a program; ``print`` it.

    Attributes:
        samples: the number of samples.
        results: the digits of each result.
        modules: the digits of the operations of each module and role, the fewest first; named ``role module``.
        failed: operations that kept PyTorch's rounding, and the reason.
        lines: the output of a script in the first sample, with ``[digits]`` after each number that differs.
        over_seeds: the digits of each result that several seeds agree in, by name; empty without seeds.
    """

    samples: int
    results: tuple[Digits, ...]
    modules: tuple[Digits, ...]
    failed: Mapping[str, str]
    lines: tuple[str, ...] = ()
    over_seeds: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        head = "output of the first sample; [n] after a number: its digits; numbers without [n] are the same in all"
        lines = [head, *(f"  {line}" for line in self.lines)] if self.lines else []
        lines += [f"significant decimal digits, from {self.samples} samples with random rounding"]
        lines += [f"kept PyTorch's rounding: {name} ({reason})" for name, reason in self.failed.items()]
        return "\n".join([*lines, *self._tables()])

    def as_json(self) -> dict[str, Any]:
        """The report as plain data; infinite digits are ``"all"``, and NaN is null."""
        parts = {"results": self.results, "modules": self.modules}
        rows = {name: [_row_as_json(row) for row in part] for name, part in parts.items()}
        seeds = {"over_seeds": {name: _plain_digits(x) for name, x in self.over_seeds.items()}}
        return {"samples": self.samples, **rows, "failed": dict(self.failed), "lines": list(self.lines), **seeds}

    def _tables(self) -> Iterator[str]:
        header = ("elements", "mean", "median digits", "fewest", "at least")
        for title, rows, seeds in (("result", self.results, self.over_seeds), ("role and module", self.modules, {})):
            if rows:
                cells = [
                    (row.name, str(row.elements), f"{row.mean:.6g}", *map(in_words, row[3:]))  # the fields of digits
                    + ((in_words(seeds[row.name]) if row.name in seeds else "-",) if seeds else ())
                    for row in rows[:_SHOWN]
                ]
                yield aligned([(title, *header) + (("over seeds",) if seeds else ()), *cells], left=[0])
            if len(rows) > _SHOWN:
                yield f"and {len(rows) - _SHOWN} more, in the report's JSON"


def in_words(digits: float) -> str:
    """``2.3``; ``all`` where all samples are equal, ``not finite`` for NaN."""
    return "not finite" if math.isnan(digits) else "all" if math.isinf(digits) else f"{digits:.1f}"


def _row_as_json(row: Digits) -> dict[str, Any]:
    mean = row.mean if math.isfinite(row.mean) else None
    digits = {name: _plain_digits(x) for name, x in zip(row._fields[3:], row[3:], strict=True)}
    return {"name": row.name, "elements": row.elements, "mean": mean, **digits}


def _plain_digits(digits: float) -> float | str | None:
    return None if math.isnan(digits) else digits if math.isfinite(digits) else "all"


def digits(
    function: Callable[[], Any],
    samples: int = 8,
    *,
    format: Format | str | Policy | None = None,
    randomness: Randomness | str = Randomness.RESULTS,
    seed: int = 0,
    seeds: int = 0,
    root: torch.nn.Module | Sequence[torch.nn.Module] = (),
) -> DigitsReport:
    """Counts the significant digits of the results of a function: runs it several times with random rounding.

    Digits that differ between samples depend on rounding errors, and are not significant. Each run starts from the
    same state of the random generators of PyTorch, NumPy and Python; the function must make its own model and data.

    Args:
        function: returns a number, a tensor, or a list, tuple or mapping of them.
        samples: the number of runs, at least 2.
        format: None: float32, float16 and bfloat16 results are computed in float64 and rounded randomly to their own
            dtype. A format or policy: results are rounded to it stochastically.
        randomness: ``results``, ``operands`` or ``up-or-down``; see :class:`Randomness`. Only without a format.
        seed: seed of the roundings.
        seeds: the number of further runs, each with another seed of the generators and without random rounding. The
            report then also has the digits that these agree in: random rounding matters only where it leaves fewer.
        root: the module, or modules, where names of modules begin.

    Returns:
        The digits of each result, and of the operations of each module, forward and backward.

    Raises:
        FormatError: a setting does not exist, or there are fewer than two samples, or one seed.
        ValueError: the shapes of the results differ between samples.
    """
    kind = checked_randomness(randomness, samples, seeds, has_format=format is not None)
    restore = remembered_generators()
    runs: list[dict[str, np.ndarray]] = []
    watchers = []
    for number in range(samples + seeds):
        restore()  # every sample begins with the same random numbers; only its roundings differ
        if number >= samples:
            seed_generators(number - samples)
        # Samples of different seeds share no random bits, for up to 2^20 samples.
        simulation, watcher = sampled(format, kind, (seed << 20) + number if number < samples else None, root=root)
        with simulation:
            result = function()
        runs.append(dict(_named_values(result, "result")))
        watchers.append(watcher)
    restore()
    shapes = {name: x.shape for name, x in runs[0].items()}
    if any({name: x.shape for name, x in run.items()} != shapes for run in runs):
        raise ValueError(f"the function gave results of other names or shapes in another sample than {shapes}")
    failed = {name: reason for watcher in watchers for name, reason in watcher.failed.items()}
    results = [Digits.of(name, [run[name] for run in runs[:samples]]) for name in shapes]
    over_seeds = {name: Digits.of(name, [run[name] for run in runs[samples:]]).digits for name in shapes if seeds}
    modules = of_modules([watcher.elements for watcher in watchers[:samples]])
    return DigitsReport(samples, tuple(results), modules, failed, over_seeds=over_seeds)


def checked_randomness(
    randomness: Randomness | str, samples: int, seeds: int, *, has_format: bool
) -> Randomness | None:
    """The kind of random errors, None with a format; checks the numbers of samples and seeds.

    Raises:
        FormatError: the kind does not exist, there are fewer than two samples, or there is one seed.
    """
    for name, count in (("samples", samples), ("seeds", seeds)):
        if type(count) is not int or (count < 2 and (name, count) != ("seeds", 0)):
            allowed = "an integer of at least 2" if name == "samples" else "0, or an integer of at least 2"
            raise FormatError(f"{name} must be {allowed}, got {count!r}")
    if has_format and randomness != Randomness.RESULTS:
        raise FormatError(f"a format rounds results stochastically; leave out the randomness {randomness!r}")
    return None if has_format else choice(Randomness, randomness, "randomness")


def sampled(
    format: Format | str | Policy | None,
    randomness: Randomness | None,
    seed: int | None,
    root: torch.nn.Module | Sequence[torch.nn.Module] = (),
) -> tuple[Simulation, RandomRounding]:
    """Makes the simulation of one sample, and the watcher that keeps its results; seed None: no random rounding."""
    policy = Policy.of("fp32" if format is None else format)
    if seed is None:
        randomness, seed = None, 0
    else:
        policy = replace(policy, rounding=Rounding.STOCHASTIC)
    watcher = RandomRounding(randomness, seed)
    return Simulation(policy, seed=seed, watchers=[watcher], root=root, warn_unused=False), watcher


def of_modules(samples: Sequence[Mapping[tuple[str, str, str, int], np.ndarray]]) -> tuple[Digits, ...]:
    """The digits of the operations of each module and role that ran in all samples, the fewest digits first."""
    places: dict[str, list[tuple[str, str, str, int]]] = {}
    for key in samples[0]:
        # Control flow may depend on rounding: only calls that all samples made can be compared.
        if all(key in sample and sample[key].shape == samples[0][key].shape for sample in samples):
            places.setdefault(f"{key[0]} {key[1]}".strip(), []).append(key)
    rows = [
        Digits.of(name, [np.concatenate([sample[key] for key in keys]) for sample in samples])
        for name, keys in places.items()
    ]
    return tuple(sorted(rows, key=lambda row: (not math.isnan(row.least), row.least, row.digits)))  # NaN first


def _named_values(result: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The numbers in a result, by name."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from _named_values(value, str(key) if name == "result" else f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for number, value in enumerate(result):
            yield from _named_values(value, f"{name}[{number}]")
    elif result is not None:
        try:
            x = result.detach() if isinstance(result, torch.Tensor) else torch.as_tensor(result)
            x = (x if x.layout is torch.strided else x.to_dense()).cpu()
            # Real and imaginary parts have digits of their own.
            values = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double().numpy()
        except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError) as error:
            raise FormatError(f"{name} must be a number or a tensor of numbers, got {type(result).__name__}") from error
        if values.size:
            yield name, values
