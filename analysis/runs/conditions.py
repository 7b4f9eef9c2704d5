"""Conditions: the settings that distinguish runs besides task, format and seed, and their names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import pandas as pd

from ...agents.config import KeyRole, keys_with, without_policy

_POLICIES = {"every-op": "every operation rounded", "mixed-precision": "products only"}
_SIX = "six fixes"

MAPPINGS = ("policy", "storage")
"""Keys whose values are mappings, which are long as text."""

PLAIN = "as it is"
"""Name of a condition without any setting."""

_OF_PROGRAMS = frozenset({"device", "observe", "program", "threads"})
"""Keys of a program's runs that change no result, and its name, which is the task."""


class Conditions:
    """The conditions of an experiment; a condition is the values of all ``keys``.

    Args:
        runs: a row per run, with a column for each setting.
        settings: the columns that are keys of the config.
        programs: whether they are of users' programs, which define the meaning of their keys.
        cases: the name that the sweep's file gives to the case of each run, by id; a mapping that all runs of one case
            have, and no others, is called by that name.

    Attributes:
        keys: settings that take more than one value, in alphabetical order; none of them are task, format, seed,
            settings of how a run is carried out, and settings that follow from the task or the algorithm.
        independent: the keys whose value no other key determines; for keys that say less (:func:`says_less`), that
            the other keys together do not determine.
    """

    def __init__(
        self,
        runs: pd.DataFrame,
        settings: Collection[str],
        *,
        programs: bool = False,
        cases: Mapping[str, str] | None = None,
    ) -> None:
        indifferent = _OF_PROGRAMS if programs else keys_with(KeyRole.EXECUTION)
        varying = sorted(set(settings) - {"task", "format", "seed"} - indifferent)
        of_tasks = runs.groupby("task")
        self.keys = [
            key
            for key in varying
            if len(runs[key].drop_duplicates()) > 1 and of_tasks[key].nunique(dropna=False).max() > 1
        ]
        if "algorithm" in self.keys and not programs:  # of which each has keys and defaults of its own
            values = runs.groupby("algorithm", dropna=False)
            own = {key for key in self.keys if values[key].nunique(dropna=False).max() == 1}
            self.keys = [key for key in self.keys if key == "algorithm" or key not in own]
        self._mappings = () if programs else MAPPINGS
        self._names = {} if programs else self._named(runs, cases or {})
        less = [key for key in reversed(self.keys) if says_less(runs[key])]
        # Numbers with fractions say least of all.
        least = [key for key in less if runs[key].dtype.kind == "f" and (runs[key].dropna() % 1 != 0).any()]
        independent = without_settled(runs, self.keys, dict.fromkeys([*least, *less]))
        self.independent = [
            key for key in independent if not any(self._determines(runs, other, key) for other in independent)
        ]
        known = not programs and {"fixes", "baseline"} <= set(runs)
        fixes = set(runs.loc[runs["baseline"] == "none", "fixes"]) if known else set()
        self._without_baseline = fixes_in_words(*fixes) if len(fixes) == 1 else "baseline none"
        self._labels: dict[tuple[object, ...], str] = {}  # which thousands of runs may share

    def label(self, values: Mapping[str, object], but: str = "") -> str:
        """A condition in words: ``values`` by key, without the key ``but``, and without keys that another key settles.

        (A baseline settles the fixes, as it is without them.) A run without a policy or storage gets no words for it,
        unless its case has a name.
        """
        where = (but, *(values[key] for key in self.independent))
        if where not in self._labels:
            pairs = zip(self.independent, where[1:], strict=True)
            words = (self._words(key, value) for key, value in pairs if key != but)
            self._labels[where] = ", ".join(filter(None, words)) or PLAIN
        return self._labels[where]

    def name_of(self, key: str, value: object) -> str | None:
        """Returns the short name of a policy or storage: its case in the sweep's file; else None."""
        return self._names.get((key, value))

    def _words(self, key: str, value: object) -> str:
        text = as_text(value)
        if key == "policy" and text == NO_POLICY:
            return ""
        if self._mappings and key == "fixes":
            return fixes_in_words(text)
        if self._mappings and key == "baseline":
            return self._without_baseline if text == "none" else f"baseline {text}".replace("_", " ")
        if key == "policy" and text in _POLICIES:
            return _POLICIES[text]
        return self.name_of(key, value) or ("" if key in self._mappings and text == "none" else f"{key} {text}")

    def series(self, values: Mapping[str, object], but: str = "") -> str:
        """The name of a series, which is a line of a figure: the format, and the condition if there are several."""
        text = self.label(values, but)
        return str(values["format"]) if text == PLAIN else f"{values['format']}, {text}"

    def _determines(self, runs: pd.DataFrame, one: str, other: str) -> bool:
        """Whether ``one`` determines ``other``; of two that determine each other, the first in ``keys`` does."""
        if one == other or runs.groupby(one, dropna=False)[other].nunique(dropna=False).max() > 1:
            return False
        mutual = runs.groupby(other, dropna=False)[one].nunique(dropna=False).max() == 1
        return not mutual or self._rank(one) < self._rank(other)

    def _rank(self, key: str) -> tuple[bool, int]:
        """The rank of a key among keys that settle each other: the first is shown, and named values go first."""
        return all(key != named for named, _ in self._names), self.keys.index(key)

    def _named(self, runs: pd.DataFrame, cases: Mapping[str, str]) -> dict[tuple[str, Any], str]:
        """Returns the names of values of mappings, by key and value."""
        if not cases:
            return {}
        of_runs = runs["id"].map(cases)
        found = {
            (key, value): set(own.dropna())
            for key in self.keys
            if key in MAPPINGS
            for value, own in of_runs.groupby(runs[key])
        }
        named = {of: min(names) for of, names in found.items() if len(names) == 1}
        several = Counter((key, name) for (key, _), name in named.items())
        return {(key, value): name for (key, value), name in named.items() if several[key, name] == 1}


@final
class References:
    """The conditions that a reference is run under, and which of them another condition is compared with.

    Args:
        conditions: values by key, of runs of the reference, including runs that have not ended: these also have a
            condition.
        keys: that set conditions apart.
    """

    def __init__(self, conditions: Iterable[Mapping[str, object]], keys: Iterable[str]) -> None:
        self._keys = list(keys)
        self._known = dict.fromkeys(map(self.as_text, conditions))

    def as_text(self, condition: Mapping[str, object]) -> tuple[str, ...]:
        """A condition as text."""
        return tuple(as_text(condition[key]) for key in self._keys)

    def of(self, condition: Mapping[str, object]) -> tuple[str, ...] | None:
        """The reference's condition, as text: the same; without a policy, as fp32 has none; or the only one there is.

        None if that condition does not exist.
        """
        own = self.as_text(condition)
        plain = tuple(NO_POLICY if key == "policy" else text for key, text in zip(self._keys, own, strict=True))
        only = list(self._known) if len(self._known) == 1 else []
        return next((one for one in (own, plain, *only) if one in self._known), None)


def fixes_in_words(text: str) -> str:
    """A selection of fixes by their names in papers: "six fixes + stochastic targets", "without Kahan-gradients"."""
    words = text
    for old, new in (pair.split("=") for pair in ["kahan_=Kahan-", "hadam=hAdam", "_fix=-fix", "_= "]):
        words = words.replace(old, new)
    first, *more = words.split("+")
    if text == "none" or text.startswith("all but "):
        return "no fixes" if text == "none" else f"without {first.removeprefix('all but ')}"
    return " + ".join([_SIX if first == "all" else f"only {first}", *more])


def as_text(value: Any) -> str:
    """A value of a setting as text: ``none`` for a missing value, truth values as YAML has them, numbers short."""
    if pd.isna(value):
        return "none"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
    return str(value)


def without_settled(
    runs: pd.DataFrame, keys: Sequence[str], candidates: Iterable[str], given: Sequence[str] = ()
) -> list[str]:
    """Keys without the candidates with values that the remaining keys settle, together with the ``given`` ones."""
    left = list(keys)
    for key in candidates:
        others = [*given, *(one for one in left if one != key)]
        if others and runs.groupby(others, dropna=False)[key].nunique(dropna=False).max() == 1:
            left.remove(key)
    return left


def says_less(values: pd.Series[Any]) -> bool:
    """Whether values say less to people than others that settle them: numbers that are not all whole, or missing."""
    return values.dtype.kind == "f" and bool((values % 1 != 0).any())


NO_POLICY = "none"
"""Value of the column of policies for runs without one."""
_BETTER = {"done": 0, "crashed": 0, "failed": 1}


def fp32_twice(configs: Mapping[str, dict[str, Any]], outcomes: Mapping[str, dict[str, Any]]) -> list[str]:
    """The duplicate runs, by id: they differ from another run only in a policy that rounds nothing in fp32.

    One run of each set of duplicates is kept: the first that has ended, else the first that failed, else the first.

    Args:
        configs: the configs of the runs, by id.
        outcomes: with their ``status``.
    """
    alike: dict[str, list[str]] = {}
    for identity in outcomes:
        if "seed" in configs[identity] and (plain := without_policy(configs[identity])) is not None:
            alike.setdefault(json.dumps(plain, sort_keys=True, default=str), []).append(identity)
    ranked = (sorted(ids, key=lambda one: _BETTER.get(outcomes[one]["status"], 2)) for ids in alike.values())
    return [
        identity
        for first, *others in ranked
        for identity in others
        if configs[identity].get("policy") != configs[first].get("policy")  # copies stay what they are
    ]


def fp32_once(columns: dict[str, dict[str, Any]], configs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The columns of runs, by id; where the others have several policies, runs in fp32 are under none of them."""
    free = {identity for identity in columns if without_policy(configs[identity]) is not None}
    if len({columns[identity].get("policy") for identity in columns.keys() - free}) < 2:
        return columns
    return {identity: {**row, "policy": NO_POLICY} if identity in free else row for identity, row in columns.items()}
