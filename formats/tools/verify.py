"""A conformance run on the user's own machine and device, and the certificate it ends with."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ..arithmetic.patterns import INTEGER, LARGEST_EXPONENT
from ..base.errors import FormatError
from ..base.format import Format
from ..base.modes import RandomBits, Rounding
from ..base.names import FAMILIES
from ..base.random_words import random_words
from ..families.floats import FloatFormat
from ..rounding import round
from .reference import round_float
from .table import listed

_NATIVE = {"e5m10": torch.float16, "e8m7": torch.bfloat16}
_EXHAUSTIVE_BITS = 8  # Wider formats are sampled.
_SEED = 20210


@dataclass(frozen=True)
class Check:
    """One comparison, with its number of cases and of differences."""

    format: str
    comparison: str
    cases: int
    differing: int
    example: str


@dataclass(frozen=True)
class Verification:
    """The result of a conformance run; its text is the certificate."""

    device: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing differed."""
        return not any(check.differing for check in self.checks)

    def __str__(self) -> str:
        lines = []
        for name in dict.fromkeys(check.format for check in self.checks):
            checks = [check for check in self.checks if check.format == name]
            wrong = [check for check in checks if check.differing]
            cases = sum(check.cases for check in checks)
            lines.append(f"{'FAIL' if wrong else 'ok  '} {name:16} {len(checks):3} comparisons, {cases:11,} cases")
            lines += [f"       {c.comparison}: {c.differing:,} of {c.cases:,} differ, as {c.example}" for c in wrong]
        cases = sum(check.cases for check in self.checks)
        versions = f"Python {platform.python_version()}, torch {torch.__version__}"
        verdict = "every result is right to the bit" if self.passed else "SOME RESULTS ARE WRONG: please report them"
        return "\n".join(
            [
                *lines,
                "",
                f"roundoff on {self.device}, {platform.machine()}; {versions}",
                f"{cases:,} cases in {self.seconds:.0f} s: {verdict}",
            ]
        )


def verify(names: Sequence[str] | None = None, device: str = "cpu", *, quick: bool = False) -> Verification:
    """Compares rounding on a device with the required results, bit for bit.

    Float formats: numbers of the format (all of them up to 8 bits, else a spread), the midpoints between neighbours,
    and the carrier's neighbours of both, in every rounding mode, against exact rational arithmetic; random bit patterns
    against torch's own type, or the same computed by other code; and all codes there and back. Other families: their
    numbers must round to themselves; random patterns give the same on the device as the CPU's loops in another order of
    memory, and the same codes, if there are any, as the rounded patterns.

    Args:
        names: formats; if None, the formats that their families choose to verify.
        device: where torch computes, such as ``"cuda"``.
        quick: a hundredth of the random patterns, and a tenth of the spread.

    Raises:
        FormatError: a name is not a format, or the device does not exist.
    """
    start = time.perf_counter()
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise FormatError(f"no device {device!r} for this torch: {str(error).splitlines()[0]}") from None
    checks: list[Check] = []
    usual = [name for family in FAMILIES.values() for name in family.verified]
    for fmt in map(Format.parse, usual if names is None else names):
        checks += (
            _verify_float(fmt, place, quick=quick) if isinstance(fmt, FloatFormat) else _verify_other(fmt, place, quick)
        )
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else str(place)
    return Verification(name, tuple(checks), time.perf_counter() - start)


def _verify_float(fmt: FloatFormat, place: torch.device, *, quick: bool) -> Iterator[Check]:
    for dtype in (torch.float32, torch.float64):
        if not fmt.fits_in(dtype):
            continue
        x = _sample_points(fmt, dtype, 30 if quick else 300)
        for rounding in Rounding:
            random = RandomBits(_SEED) if rounding is Rounding.STOCHASTIC else None
            words = [None] * len(x) if random is None else random_words(random, x).tolist()
            numbers = [round_float(v, fmt, rounding, None, w) for v, w in zip(x.tolist(), words, strict=True)]
            expected = torch.tensor(numbers, dtype=torch.float64).to(dtype)
            got = round(x.to(place), fmt, rounding=rounding, random=random)
            yield _compare(fmt, f"{rounding}, {dtype}, against exact arithmetic", x, got, expected)
        patterns = _patterns(1 << (14 if quick else 20), dtype)
        got = round(patterns.to(place), fmt)
        if dtype == torch.float32 and str(fmt) in _NATIVE:
            native = patterns.to(_NATIVE[str(fmt)]).to(dtype)
            yield _compare(fmt, "random patterns, against torch's own type", patterns, got, native)
        else:
            rows = round(patterns.view(1, -1), [fmt]).view(-1)  # tensor operations with the format as data
            yield _compare(fmt, f"random patterns, {dtype}, against other code", patterns, got, rows)
    if fmt.bits <= 16:
        codes = torch.arange(fmt.largest_code + 1, device=place)
        numbers_of_codes = fmt.decode(codes, torch.float64)
        again = fmt.decode(fmt.encode(numbers_of_codes).to(torch.int64), torch.float64)
        yield _compare(fmt, "all codes, there and back", codes, again, numbers_of_codes.cpu())


def _verify_other(fmt: Format, place: torch.device, quick: bool) -> Iterator[Check]:
    x = _patterns(1 << (12 if quick else 18), fmt.carrier)
    x = x[x.isfinite()][: 1 << (11 if quick else 17)].view(-1, 256).contiguous()
    by_kernel = round(x.to(place), fmt)
    by_loop = round(x.t().contiguous().t(), fmt).contiguous()
    yield _compare(fmt, f"random patterns, {fmt.carrier}, against the CPU in another order", x, by_kernel, by_loop)
    with suppress(FormatError):  # a format without codes
        again = fmt.decode(fmt.encode(x.to(place)), fmt.carrier)
        yield _compare(fmt, f"codes of random patterns, {fmt.carrier}, there and back", x, again, by_loop)
    numbers = listed(fmt) if fmt.elementwise else None  # With a shared scale, a single number has another scale.
    if numbers is not None:
        numbers = numbers.to(fmt.carrier)
        yield _compare(fmt, "all numbers round to themselves", numbers, round(numbers.to(place), fmt), numbers)


def _sample_points(fmt: FloatFormat, dtype: torch.dtype, spread: int) -> torch.Tensor:
    """Numbers, midpoints, the neighbours of both, and special values; of both signs."""
    every = fmt.bits <= _EXHAUSTIVE_BITS
    count = fmt.largest_code + 1 if every else spread
    codes = torch.linspace(0, fmt.largest_code, count, dtype=torch.float64).long()
    codes = torch.cat([codes, (codes + 1).clamp(max=fmt.largest_code)])
    numbers = fmt.decode(codes, torch.float64)
    numbers = torch.cat([numbers, torch.tensor([2 * fmt.max, fmt.smallest_subnormal / 4], dtype=torch.float64)])
    numbers = numbers[numbers.abs() < 2.0 ** LARGEST_EXPONENT[dtype]].sort().values  # Sums of two are finite.
    points = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2]).to(dtype)
    limit = torch.tensor(math.inf, dtype=dtype)  # The direction of the neighbours.
    points = torch.cat([points, torch.nextafter(points, limit), torch.nextafter(points, -limit), limit.view(1)])
    return torch.cat([points, -points, torch.full((1,), torch.nan, dtype=dtype)])


def _patterns(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of random bit patterns, the same on every machine."""
    words = random_words(RandomBits(_SEED, 1), torch.empty(n))
    if dtype == torch.float32:
        return (words - (1 << 31)).to(torch.int32).view(dtype)
    return ((words << 32) | random_words(RandomBits(_SEED, 2), torch.empty(n))).view(dtype)


def _compare(fmt: Format, comparison: str, x: torch.Tensor, got: torch.Tensor, expected: torch.Tensor) -> Check:
    got, x = got.cpu(), x.cpu()
    integer = INTEGER[expected.dtype]
    different = (got.view(integer) != expected.view(integer)) & ~(got.isnan() & expected.isnan())  # Any NaN is right.
    example = ""
    if bool(different.any()):
        place = different.flatten().nonzero()[0, 0]
        argument, result, right = (t.flatten()[place].item() for t in (x, got, expected))
        example = f"{argument!r} -> {result!r}, not {right!r}"
    return Check(str(fmt), comparison, got.numel(), int(different.sum()), example)
