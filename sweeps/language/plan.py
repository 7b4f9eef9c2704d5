"""Plans a sweep file: makes the list of its runs, and reports all mistakes, each with its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from roundoff.runs.metric import Metric

from ...agents import TrainConfig
from ...agents.config import without_policy
from ..errors import Problems, SweepFileError
from ..subjects.agents import AGENTS
from ..subjects.program import Program
from ..subjects.program_keys import ProgramKeys
from ..subjects.subject import Run, Subject, run_id
from ..trackers import LogTo
from ..wording import complaint
from .candidates import candidates, check_cheapest
from .documents import include, read_argument, read_document, read_file
from .expansion import expand
from .located_yaml import Located, parse
from .outline import Exclusion, Outline, alternatives, merge
from .search_goal import REFERENCE, SearchGoal
from .shape import settings
from .shorthand import read_value, read_values
from .sweep_file import CASE

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Plan:
    """A validated sweep.

    Attributes:
        name: the name of the sweep.
        description: one or more lines for people.
        varying: keys that take several values, in the order of the file.
        runs: the product of the varying keys, the last varying fastest, without excluded runs. Without a search,
            runs in fp32 that differ in policies that round nothing there are one run, under the first of them.
        reproduces: names of the paper's figures and tables that it reproduces, such as ``fig4``.
        program: the program of the runs, or None for agents; ``metric`` is then the returned value that counts.
        search: the goal of the search, if not all of the runs are to be done.
        log_to: the tracker that it logs itself to, if any.
        answered_in: the file that a search writes into the folder at its end; the runs are its requests so far.
    """

    name: str
    description: str
    varying: tuple[str, ...]
    runs: tuple[Run, ...]
    reproduces: tuple[str, ...] = ()
    program: ProgramKeys | None = None
    metric: Metric | None = None
    search: SearchGoal | None = None
    log_to: LogTo | None = None
    answered_in: str = ""


def plan_file(path: str | Path, overrides: Sequence[str] = (), only: Sequence[str] = ()) -> Plan:
    """Plans the sweep described in a YAML file; docs/sweeps.md is the reference of its language.

    Args:
        path: the file.
        overrides: ``key=value`` arguments; see :func:`plan_text`.
        only: ``key=value`` arguments that choose runs; see :func:`plan_text`.

    Raises:
        SweepError: the file cannot be read.
        SweepFileError: it is not a sweep; every mistake is listed.
    """
    return plan_text(read_file(path), str(path), overrides, only)


def plan_text(
    text: str, source: str, overrides: Sequence[str] = (), only: Sequence[str] = (), program: Program | None = None
) -> Plan:
    """Plans the sweep described by YAML text.

    Args:
        text: a mapping; its sections are described in docs/sweeps.md. Keys of runs are the keys of ``TrainConfig``.
        source: the name of the text in messages; included files are looked for in the same folder.
        overrides: ``key=value`` with a YAML value. A list replaces the values of the key in the grid, anything
            else makes the key a constant. (For ``fixes`` too: one list of names is ``fixes=[[hadam, normal_fix]]``.)
            ``section=value`` and ``section.key=value`` replace sections of the file, or parts of them.
        only: ``key=value``, or a list of values: runs with other values are left out. ``case`` is the name of a case.
        program: the program to run, if the text does not name it.

    Raises:
        SweepFileError: every mistake is listed.
    """
    # Parse, include, merge: mistakes are collected, so that all are reported at once.
    problems = Problems()
    document, subject = read_document(text, source, program)
    documents = include(document, source, overrides, subject, problems)
    outline = merge(documents, problems)
    chosen = []
    for argument in only:
        if pair := read_argument(argument, (*subject.keys, CASE), problems):
            key, value = pair
            if expanded := read_values(key, value, subject, problems):
                chosen.append(Exclusion({key: alternatives(expanded)}, value.place, must_match=True))
    # Expand; combinations that are the same run, such as policies of fp32, are one.
    runs: dict[str, Run] = {}
    for run in expand(outline, subject, chosen, source, problems):
        runs.setdefault(run.id, run)
    if outline.search is None:  # a search compares the runs of each policy with runs in fp32 with that policy
        runs = _fp32_once(runs, subject)
    program_keys = subject if isinstance(subject, ProgramKeys) else None
    metric = _metric(outline, program_keys, problems)
    varying = dict.fromkeys(key for axis in outline.axes.values() for key in axis.all_keys())
    search = _search(outline, subject, runs, varying, problems)
    log_to = _section(LogTo, "log_to", outline.log_to, problems) if outline.log_to else None
    if problems:
        raise SweepFileError(problems)
    name = outline.name or Path(source).stem
    further = (outline.reproduces, program_keys, metric, search, log_to)
    return Plan(name, outline.description, tuple(varying), tuple(runs.values()), *further)


def plan_run(path: str | Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Makes the config of a single run.

    Args:
        path: a YAML or JSON file of ``TrainConfig`` keys, or the ``config.json`` of a run; None: defaults.
        overrides: ``key=value`` arguments.

    Raises:
        SweepError: the file cannot be read.
        SweepFileError: every mistake is listed.
    """
    problems, base = Problems(), dict[str, Located]()
    source = "arguments" if path is None else str(path)
    if path is not None:
        document = parse(read_file(path), source)
        if isinstance(document.value, dict) and "config" in document.value:  # `config.json` also has a version
            document = document.value["config"]
        base = settings(document, AGENTS.keys, problems)
    for override in overrides:
        if setting := read_argument(override, AGENTS.keys, problems):
            base |= [setting]  # a list is a value here, not several runs
    outline = Outline(base={key: read_value(key, value, AGENTS) for key, value in base.items()})
    configs = [run.config for run in expand(outline, AGENTS, (), source, problems)]
    if problems:
        raise SweepFileError(problems)
    config = configs[0]
    assert isinstance(config, TrainConfig)
    return config


def _fp32_once(runs: dict[str, Run], subject: Subject) -> dict[str, Run]:
    """Drops runs in fp32 that differ from an earlier one only in a policy, which rounds nothing there."""
    if isinstance(subject, ProgramKeys) and "policy" in subject.takes:  # a program may use the policy in any way
        return runs
    texts: set[str] = set()
    remaining = {}
    for run in runs.values():
        if (plain := without_policy(run.config.as_json())) is not None:
            text = json.dumps(plain, sort_keys=True)
            if text in texts:
                continue
            texts.add(text)
        remaining[run.id] = run
    return remaining


def _metric(outline: Outline, program: ProgramKeys | None, problems: Problems) -> Metric | None:
    if program is None:
        if outline.metric:
            problems.note(outline.metric.place, "metric is for programs; add program, or leave it out")
        return None
    return Metric() if outline.metric is None else _section(Metric, "metric", outline.metric, problems)


def _search(
    outline: Outline, subject: Subject, runs: dict[str, Run], varying: Iterable[str], problems: Problems
) -> SearchGoal | None:
    """Returns the goal of the search. For the fewest bits, adds runs in fp32 to compare with, if they are missing."""
    goal = _section(SearchGoal, "search", outline.search, problems) if outline.search else None
    if goal is None or outline.search is None or problems:
        return None
    try:
        if goal.looks_for == "best":
            candidates(runs.values(), varying)
            return goal
        if goal.looks_for == "cheapest":
            check_cheapest(goal, list(runs.values()), subject)
            return goal
        for branch in branches(runs.values(), goal):
            goal.widths(goal.format_of(run.config) for run in branch)
        for run in list(runs.values()):
            reference = subject.in_format(run.config, REFERENCE, goal.of)
            runs.setdefault(run_id(reference), Run(run_id(reference), reference, run.case))
    except ValueError as error:
        problems.note(outline.search.place, str(error))
    return goal


def branches(runs: Iterable[Run], goal: SearchGoal) -> list[list[Run]]:
    """Groups runs that differ only in the searched format and the seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(goal.rest_of(run.config), sort_keys=True), []).append(run)
    return list(groups.values())


def _section(model: type[_Model], name: str, section: Located, problems: Problems) -> _Model | None:
    """Reads a section as its model; returns None, with complaints, if it is not valid."""
    try:
        return model.model_validate(section.plain())
    except ValidationError as error:
        for mistake in error.errors():
            key = ".".join(str(part) for part in (name, *mistake["loc"]))
            problems.note(section.place, f"{key}: {complaint(mistake)}")
        return None
