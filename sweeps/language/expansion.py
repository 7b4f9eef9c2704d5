"""Expands an outline to its runs: draws random values, multiplies the axes, and leaves out excluded runs."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from ..errors import Problems
from ..subjects.subject import Run, RunConfig, Subject, run_id
from ..wording import shown, unknown
from .located_yaml import Located
from .outline import Choice, Exclusion, Outline
from .sweep_file import CASE, MAX_DRAWS, MAX_SEED

MAX_RUNS = 100_000
_MAX_MISTAKES = 20  # reported mistakes of runs whose values do not go together


def expand(
    outline: Outline, subject: Subject, only: Sequence[Exclusion], source: str, problems: Problems
) -> Iterator[Run]:
    """The runs of a sweep, in the order of its axes, the last varying fastest.

    Args:
        outline: the outline.
        subject: the subject of the runs.
        only: choices of runs; runs without the values are also left out.
        source: the name of the file in messages.
        problems: takes the mistakes; the runs are valid only if it is empty at the end.
    """
    if "random" in outline.axes:
        outline.axes["random"].choices = draw_choices(outline, subject, problems)
    _check_values(outline, subject, problems)
    filters = [_Filter(outline, subject, exclusion, problems) for exclusion in (*outline.exclusions, *only)]
    count = math.prod(len(axis.choices) for axis in outline.axes.values())
    if count > MAX_RUNS:
        problems.note(source, f"the sweep has {count} runs; at most {MAX_RUNS} are allowed")
    if problems:
        return
    exclude_filters, only_filters = filters[: len(outline.exclusions)], filters[len(outline.exclusions) :]
    # Invalid combinations may be excluded: their mistakes count only if they are not.
    count_left = 0
    for choices in itertools.product(*(axis.choices for axis in outline.axes.values())):
        settings = dict(outline.base)
        for choice in choices:
            settings |= choice.settings
        case = next((choice.case for choice in choices if choice.case), "")
        values = {key: value.plain() for key, value in settings.items()}
        config = subject.config(values)
        config_or_values = values if isinstance(config, list) else config
        excluded = [entry.matches(config_or_values, case) for entry in exclude_filters]
        chosen = [entry.matches(config_or_values, case) for entry in only_filters]
        if any(excluded) or not all(chosen):
            continue
        if isinstance(config, list):
            _note_mistakes(problems, config, values, settings, source)
        else:
            count_left += 1
            yield Run(run_id(config), config, case)
    _note_filters(problems, exclude_filters, only_filters, source, count_left)


def _check_values(outline: Outline, subject: Subject, problems: Problems) -> None:
    """Notes values that their keys do not allow, and equal alternatives."""
    for key, value in outline.base.items():
        _check_value(subject, key, value, problems)
    for axis in outline.axes.values():
        if axis.section == "random":
            continue  # checked before the draws, which may be equal
        choices_by_settings: dict[str, Choice] = {}
        for choice in axis.choices:
            for key, value in choice.settings.items():
                _check_value(subject, key, value, problems)
            plain = {key: value.plain() for key, value in choice.settings.items()}
            earlier = choices_by_settings.setdefault(json.dumps(plain, sort_keys=True), choice)
            if earlier is not choice:
                problems.note(choice.place, f"{_describe_choice(axis.section, plain)} is given twice ({earlier.place})")


def _describe_choice(section: str, plain: dict[str, Any]) -> str:
    if section == "grid":
        ((key, value),) = plain.items()
        return f"{key}: the value {shown(value)}"
    return f"{'the case' if section == 'cases' else 'the combination'} {shown(plain)}"


def _check_value(subject: Subject, key: str, value: Located, problems: Problems) -> None:
    for message in subject.mistakes(key, value.plain()):
        problems.note(value.place, message)


class _Filter:
    """An exclusion (or choice) with its values in canonical form, which records its matches."""

    def __init__(self, outline: Outline, subject: Subject, exclusion: Exclusion, problems: Problems) -> None:
        self.exclusion = exclusion
        self._subject = subject
        self.matched = False
        self.matched_keys: dict[str, bool] = dict.fromkeys(exclusion.values, False)
        self.values: dict[str, list[Any]] = {}
        cases = [choice.case for axis in outline.axes.values() for choice in axis.choices if choice.case]
        for key, values in exclusion.values.items():
            if not values:
                problems.note(exclusion.place, f"an empty list for {key} matches nothing; give values")
            for value in values:
                if key == CASE and value.value not in cases:
                    message = unknown(CASE, str(value.plain()), cases) if cases else "there are no cases with names"
                    problems.note(value.place, message)
                elif key != CASE:
                    _check_value(subject, key, value, problems)
            plain = [] if problems else [value.plain() for value in values]
            self.values[key] = plain if key == CASE else [self._subject.canonical(key, value) for value in plain]

    def matches(self, settings: RunConfig | dict[str, Any], case: str) -> bool:
        """Whether a run has one of the values for each key."""
        result = True
        for key, values in self.values.items():
            if self._setting(settings, key, case) in values:
                self.matched_keys[key] = True
            else:
                result = False
        self.matched |= result
        return result

    def unmatched_text(self) -> str:
        """Describes the keys and values that no run has had."""
        keys = [key for key, matched in self.matched_keys.items() if not matched] or list(self.matched_keys)
        values = {key: [value.plain() for value in self.exclusion.values[key]] for key in keys}
        return " and ".join(f"{key}: {', '.join(map(str, allowed))}" for key, allowed in values.items())

    def _setting(self, settings: RunConfig | dict[str, Any], key: str, case: str) -> Any:
        if key == CASE:
            return case
        if not isinstance(settings, dict):
            return self._subject.value(settings, key)
        if key in settings:
            return self._subject.canonical(key, settings[key])
        return self._subject.default(key, settings)


def _note_mistakes(
    problems: Problems, messages: list[str], values: dict[str, Any], settings: dict[str, Located], source: str
) -> None:
    """Notes a mistake in a combination of values that are valid one by one, once for all runs that share it."""
    if len(problems) >= _MAX_MISTAKES:
        return
    for message in messages:
        if any(problem.message.startswith(message) for problem in problems):
            continue
        keys = [key for key in re.findall(r"\w+", message) if key in settings]
        place = settings[keys[0]].place if keys else source
        problems.note(place, f"{message} in the run {shown(values)}")


def _note_filters(
    problems: Problems, exclude_filters: list[_Filter], only_filters: list[_Filter], source: str, count_left: int
) -> None:
    """Notes filters that matched no run, or left no run."""
    if problems:
        return
    for entry in exclude_filters:
        if entry.exclusion.must_match and not entry.matched:
            problems.note(entry.exclusion.place, f"excludes nothing: no run has {entry.unmatched_text()}; remove it")
    for entry in only_filters:
        if not entry.matched:
            problems.note(entry.exclusion.place, f"chooses nothing: no run has {entry.unmatched_text()}")
    if not count_left and not problems:
        problems.note(source, "no run is left; exclude less, or choose more")


# Each key draws its values from its own stream, so that neither more keys nor more draws change others. A drawn number
# has three significant digits, as a paper would print it, so that its config repeats a run on any machine.
_DIGITS = 3


def draw_choices(outline: Outline, subject: Subject, problems: Problems) -> list[Choice]:
    """Draws the values that the outline's section ``random`` describes; mistakes are noted."""
    parts, axis = outline.random, outline.axes["random"]
    values: dict[str, Located] = parts["values"]
    for key, distribution in values.items():
        for arguments in distribution.value.values():
            for value in arguments.value:
                _check_value(subject, key, value, problems)
    if not problems:  # a wrong value is not also reported as missing
        for name, numbers in (("draws", f"1 to {MAX_DRAWS}"), ("seed", f"0 to {MAX_SEED}")):
            if name not in parts:
                problems.note(axis.place, f"random needs {name}, an integer from {numbers}")
        if not values:
            problems.note(axis.place, "random needs values: a distribution for at least one key")
    if problems:
        return []
    count, seed = parts["draws"].value, parts["seed"].value
    columns: dict[str, list[Any]] = {}
    for key, distribution in values.items():
        ((name, arguments),) = distribution.plain().items()
        stream = Random(f"{seed}:{key}")  # noqa: S311  experiments, not secrets
        is_whole = subject.is_whole(key)
        columns[key] = [_draw(name, arguments, stream.random(), is_whole=is_whole) for _ in range(count)]
    return [
        Choice({key: Located(value, values[key].place) for key, value in zip(columns, row, strict=True)}, axis.place)
        for row in zip(*columns.values(), strict=True)
    ]


def _draw(distribution: str, arguments: list[Any], u: float, *, is_whole: bool) -> Any:
    """Returns the value of the distribution at the quantile ``u`` in [0, 1)."""
    if distribution == "choice":
        return arguments[int(u * len(arguments))]
    low, high = arguments
    if distribution == "log_uniform":
        value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        value = low + u * (high - low)
    rounded = round(value) if is_whole else float(f"{value:.{_DIGITS}g}")
    return min(max(rounded, low), high)  # rounding may leave the interval
