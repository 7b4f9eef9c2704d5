"""Formats numbers, intervals, shares and counts as text."""

from __future__ import annotations

import math

MULTIPLE = 10
"""The multiple of a reference from which a difference is no longer given in percent."""


def number(value: float, digits: int = 3) -> str:
    """Formats a number: ``digits`` significant digits, no decimals from 100 on; a dash for NaN."""
    if value is None or not math.isfinite(value):
        return "\u2013" if value is None or math.isnan(value) else str(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 6)}f}" if abs(value) >= 1e-4 else f"{value:.1e}"
    return text.replace("-", "\u2212").replace(",", "\u2009")


def tick(value: float) -> str:
    """Formats a round number as the label of an axis tick."""
    return f"{value:,.10g}".replace("-", "\u2212").replace(",", "\u2009")


def interval(low: float, high: float) -> str:
    """Formats an interval; a dash if it is missing."""
    return "\u2013" if math.isnan(low) or math.isnan(high) else f"{number(low)} to {number(high)}"


def with_interval(value: float, low: float, high: float) -> str:
    """Formats a value with its interval."""
    ends = interval(low, high)
    return f"{number(value)}, no interval" if ends == "\u2013" else f"{number(value)} ({ends})"


def plural(count: float, thing: str) -> str:
    """Returns a number of things in words."""
    return f"{count:.0f} {thing}{'' if count == 1 else 's'}"


def change(share: float) -> str:
    """Formats a difference as a share of the reference; from 10 times the reference on, as a multiple of it."""
    if math.isnan(share):
        return ""
    return f"{round(100 * share, 1) + 0.0:+.1f} %" if abs(share) < MULTIPLE else f"{1 + share:.3g} times"


def percent(share: float) -> str:
    """Formats a share, which is never rounded to 0 % or 100 % unless it is exact."""
    if math.isnan(share):
        return "\u2013"
    if share in (0, 1):
        return f"{share:.0%}".replace("%", "\u2009%")
    if share > 0.995 or share < 0.005:
        return ">\u200999\u2009%" if share > 0.5 else "<\u20091\u2009%"
    return f"{100 * share:.0f}\u2009%"
