"""The table that ``roundoff formats`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.formats.floats import FloatFormat
from roundoff.formats.format import Format
from roundoff.formats.names import ALIASES

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = ("fp64", "fp32", "tf32", "bf16", "fp16", *(f"e5m{m}" for m in range(9, -1, -1)), "e4m3")
_HEAD = ("format", "also called", "bits", "largest", "smallest normal", "smallest subnormal", "eps", "simulated in")


def format_table(names: Sequence[str] | None = None) -> str:
    """Facts of number formats as aligned text, a line each.

    Args:
        names: the formats to show; a selection if None.

    Raises:
        FormatError: a name is no format.
    """
    rows = [_HEAD]
    for fmt in map(Format.parse, _SHOWN if names is None else names):
        assert isinstance(fmt, FloatFormat)
        also = [alias for alias, other in ALIASES.items() if other == fmt and alias != str(fmt)]
        facts = (f"{fact:.6g}" for fact in (fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps))
        carrier = str(fmt.carrier).removeprefix("torch.")
        rows.append((str(fmt), ", ".join(also), str(fmt.bits), *facts, carrier))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = {0, 1, 7}
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
