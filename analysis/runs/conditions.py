"""Finds conditions, the settings that distinguish runs besides task, format and seed, and names them."""

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
"""Keys with mappings as values, whose texts are long."""

PLAIN = "as it is"
"""Name of a condition without any setting."""

_PROGRAM_KEYS = frozenset({"device", "observe", "program", "threads"})
"""Keys of a program's runs that change no result, and the program, which is the task."""


class Conditions:
    """The conditions of an experiment; a condition is the values of all ``keys``.

    Args:
        runs: a row per run, with a column for each setting.
        settings: the columns that are keys of the config.
        programs: whether they are runs of users' programs, which define the meaning of their keys.
        cases: the name of each run's case in the sweep's file, by id; a mapping that all runs of one case have, and no
            other runs, gets that name.

    Attributes:
        keys: settings that take more than one value, in alphabetical order, without task, format, seed, settings of how
            a run is carried out, and settings that follow from the task or the algorithm.
        independent: the keys that no other key determines; less telling keys (:func:`is_less_telling`) are left out
            even if only several others together determine them.
    """

    def __init__(
        self,
        runs: pd.DataFrame,
        settings: Collection[str],
        *,
        programs: bool = False,
        cases: Mapping[str, str] | None = None,
    ) -> None:
        indifferent = _PROGRAM_KEYS if programs else keys_with(KeyRole.EXECUTION)
        varying = sorted(set(settings) - {"task", "format", "seed"} - indifferent)
        runs_by_task = runs.groupby("task")
        self.keys = [  # a key that has one value on each task follows from the task
            key
            for key in varying
            if len(runs[key].drop_duplicates()) > 1 and runs_by_task[key].nunique(dropna=False).max() > 1
        ]
        if "algorithm" in self.keys and not programs:  # leaves out keys that each algorithm has one value of
            values = runs.groupby("algorithm", dropna=False)
            algorithm_keys = {key for key in self.keys if values[key].nunique(dropna=False).max() == 1}
            self.keys = [key for key in self.keys if key == "algorithm" or key not in algorithm_keys]
        self._mappings = () if programs else MAPPINGS
        self._names = {} if programs else self._value_names(runs, cases or {})
        less = [key for key in reversed(self.keys) if is_less_telling(runs[key])]
        # Numbers with fractions are the least telling values.
        least = [key for key in less if runs[key].dtype.kind == "f" and (runs[key].dropna() % 1 != 0).any()]
        independent = without_determined(runs, self.keys, dict.fromkeys([*least, *less]))
        self.independent = [
            key for key in independent if not any(self._determines(runs, other, key) for other in independent)
        ]
        has_fixes = not programs and {"fixes", "baseline"} <= set(runs)
        fixes = set(runs.loc[runs["baseline"] == "none", "fixes"]) if has_fixes else set()
        self._without_baseline = fixes_in_words(*fixes) if len(fixes) == 1 else "baseline none"
        self._labels: dict[tuple[object, ...], str] = {}  # a cache: thousands of runs may share a label

    def label(self, values: Mapping[str, object], but: str = "") -> str:
        """Describes a condition: ``values`` by key, without the key ``but``, and without keys that others determine.

        (A baseline determines the fixes, as it excludes them.) The absence of a policy or storage is not described,
        unless its case has a name.
        """
        key_values = (but, *(values[key] for key in self.independent))
        if key_values not in self._labels:
            pairs = zip(self.independent, key_values[1:], strict=True)
            words = (self._words(key, value) for key, value in pairs if key != but)
            self._labels[key_values] = ", ".join(filter(None, words)) or PLAIN
        return self._labels[key_values]

    def name_of(self, key: str, value: object) -> str | None:
        """Returns the short name of a policy or storage: its case in the sweep's file; else None."""
        return self._names.get((key, value))

    def _words(self, key: str, value: object) -> str:
        text = value_text(value)
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
        """Names a series, which is a line of a figure: the format, and the condition if there are several."""
        text = self.label(values, but)
        return str(values["format"]) if text == PLAIN else f"{values['format']}, {text}"

    def _determines(self, runs: pd.DataFrame, key: str, other: str) -> bool:
        """Whether ``key`` determines ``other``; of two keys that determine each other, the one of lower rank does."""
        if key == other or runs.groupby(key, dropna=False)[other].nunique(dropna=False).max() > 1:
            return False
        mutual = runs.groupby(other, dropna=False)[key].nunique(dropna=False).max() == 1
        return not mutual or self._rank(key) < self._rank(other)

    def _rank(self, key: str) -> tuple[bool, int]:
        """Returns the rank of a key among keys that determine each other; keys with named values have the lowest."""
        return all(key != named for named, _ in self._names), self.keys.index(key)

    def _value_names(self, runs: pd.DataFrame, cases: Mapping[str, str]) -> dict[tuple[str, Any], str]:
        """Returns the names of values of mappings, by key and value."""
        if not cases:
            return {}
        cases_of_runs = runs["id"].map(cases)
        case_names = {
            (key, value): set(cases_of_value.dropna())
            for key in self.keys
            if key in MAPPINGS
            for value, cases_of_value in cases_of_runs.groupby(runs[key])
        }
        names = {pair: min(cases) for pair, cases in case_names.items() if len(cases) == 1}
        counts = Counter((key, name) for (key, _), name in names.items())
        return {(key, value): name for (key, value), name in names.items() if counts[key, name] == 1}


@final
class References:
    """The conditions of a reference's runs; finds the condition to compare another one with.

    Args:
        conditions: values by key of the reference's runs, including runs that have not ended.
        keys: the keys that distinguish conditions.
    """

    def __init__(self, conditions: Iterable[Mapping[str, object]], keys: Iterable[str]) -> None:
        self._keys = list(keys)
        self._known = dict.fromkeys(map(self.text_of, conditions))

    def text_of(self, condition: Mapping[str, object]) -> tuple[str, ...]:
        """Writes a condition as texts."""
        return tuple(value_text(condition[key]) for key in self._keys)

    def reference_of(self, condition: Mapping[str, object]) -> tuple[str, ...] | None:
        """Finds the reference's condition: the same; the same without a policy, which fp32 lacks; or the only one.

        None if the reference lacks such a condition.
        """
        same = self.text_of(condition)
        no_policy = tuple(NO_POLICY if key == "policy" else text for key, text in zip(self._keys, same, strict=True))
        only = list(self._known) if len(self._known) == 1 else []
        return next((text for text in (same, no_policy, *only) if text in self._known), None)


def fixes_in_words(text: str) -> str:
    """Names a selection of fixes as papers do: "six fixes + stochastic targets", "without Kahan-gradients"."""
    words = text
    for old, new in (pair.split("=") for pair in ["kahan_=Kahan-", "hadam=hAdam", "_fix=-fix", "_= "]):
        words = words.replace(old, new)
    first, *more = words.split("+")
    if text == "none" or text.startswith("all but "):
        return "no fixes" if text == "none" else f"without {first.removeprefix('all but ')}"
    return " + ".join([_SIX if first == "all" else f"only {first}", *more])


def value_text(value: Any) -> str:
    """Writes a setting's value as text: ``none`` for a missing value, truth values as in YAML, numbers short."""
    if pd.isna(value):
        return "none"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
    return str(value)


def without_determined(
    runs: pd.DataFrame, keys: Sequence[str], candidates: Iterable[str], fixed: Sequence[str] = ()
) -> list[str]:
    """Drops candidates that the remaining keys determine, together with the ``fixed`` ones."""
    remaining = list(keys)
    for key in candidates:
        others = [*fixed, *(other for other in remaining if other != key)]
        if others and runs.groupby(others, dropna=False)[key].nunique(dropna=False).max() == 1:
            remaining.remove(key)
    return remaining


def is_less_telling(values: pd.Series[Any]) -> bool:
    """Whether values tell people less than values that determine them: numbers that are not all whole, or missing."""
    return values.dtype.kind == "f" and bool((values % 1 != 0).any())


NO_POLICY = "none"
"""Value of the column of policies for runs without one."""
_BETTER = {"done": 0, "crashed": 0, "failed": 1}


def duplicates_in_fp32(configs: Mapping[str, dict[str, Any]], outcomes: Mapping[str, dict[str, Any]]) -> list[str]:
    """Finds duplicate runs, by id: they differ from another run only in a policy, which rounds nothing in fp32.

    One run of each set of duplicates is kept: the first that has ended, else the first that failed, else the first.

    Args:
        configs: the configs of the runs, by id.
        outcomes: the outcomes of the runs, with their ``status``.
    """
    groups: dict[str, list[str]] = {}
    for identity in outcomes:
        if "seed" in configs[identity] and (plain := without_policy(configs[identity])) is not None:
            groups.setdefault(json.dumps(plain, sort_keys=True, default=str), []).append(identity)
    ranked = (sorted(ids, key=lambda identity: _BETTER.get(outcomes[identity]["status"], 2)) for ids in groups.values())
    return [
        identity
        for first, *others in ranked
        for identity in others
        if configs[identity].get("policy") != configs[first].get("policy")  # copies stay what they are
    ]


def drop_policy(columns: dict[str, dict[str, Any]], configs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Removes the policy from columns of runs in fp32, by id, if the other runs have several policies."""
    in_fp32 = {identity for identity in columns if without_policy(configs[identity]) is not None}
    if len({columns[identity].get("policy") for identity in columns.keys() - in_fp32}) < 2:
        return columns
    return {identity: {**row, "policy": NO_POLICY} if identity in in_fp32 else row for identity, row in columns.items()}
