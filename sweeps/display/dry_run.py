"""Describes the runs that a sweep would do, and their duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from ...agents import Task, TrainConfig
from ...agents.config import remarks
from ..allocation import CheapestArithmetic
from ..estimate import estimate
from ..folder.directory import MARKER, SweepDirectory
from ..language.plan import Plan
from ..wording import brief


def describe_plan(plan: Plan, directory: Path) -> Iterator[str]:
    """Yields a line for each run: its state and the settings that vary.

    Raises:
        SweepError: the folder belongs to another sweep, or holds something else.
    """
    store = SweepDirectory(directory)
    store.check(plan)
    yield f"{plan.name}: {len(plan.runs)} runs into {directory}"
    # The runs, the modules that they import, and remarks on their configs
    width = max(len(run.id) for run in plan.runs)
    for run in plan.runs:
        values = run.config.as_json()
        settings = [f"{key}={brief(values[key])}" for key in plan.varying if key in values]
        case = [f"case={run.case!r}"] if run.case else []
        yield f"  {run.id:<{width}}  {store.state(run):<7}  {' '.join(case + settings)}"
    for module in sorted({module for run in plan.runs if (module := Task.parse(run.config.task).module)}):
        yield f"the module {module} will be imported, if --allow-import {module} allows it"
    configs = [run.config for run in plan.runs if isinstance(run.config, TrainConfig)]
    for remark, count in Counter(remark for config in configs for remark in remarks(config)).items():
        yield f"  {remark}" + (f" ({count} runs)" if count < len(plan.runs) else "")
    # Their number and length; for a search, the part of them that it runs
    steps = sum(run.config.steps for run in plan.runs)
    length = f" of {plan.program.program.text}" if plan.program else f", {steps} environment steps"
    if plan.search and plan.search.looks_for == "cheapest":
        search = CheapestArithmetic(plan)
        if search.unpriced:
            yield f"left out: {search.describe_unpriced()}"
        yield (
            f"a search: {', '.join(search.units) or 'no part'}, each by successive halving of"
            f" {len(plan.search.formats)} formats, with up to {plan.search.choose} seeds; then the other"
            f" {len(plan.runs) - plan.search.choose} seeds"
            f" confirm the choice: at most {search.most_runs} runs{length}; a dry run, nothing was written"
        )
        return
    if plan.search:
        yield {
            "fewest bits": "a search: of each row of formats, those that a bisection needs are run, and fp32",
            "best": "a search: each candidate is run with two seeds, and the better half with more, up to all of them",
        }[plan.search.looks_for]
    yield f"{len(plan.runs)} runs{length}; a dry run, nothing was written"


def describe_estimate(plan: Plan, directory: Path, workers: int, allow_imports: Collection[str] = ()) -> Iterator[str]:
    """Describes how long the runs that are not finished will take."""
    store = SweepDirectory(directory)
    waiting = [run for run in plan.runs if not store.has_ended(run)]
    if not waiting:
        yield "nothing is left to do"
        return
    # Finished runs of other sweeps in the same folder of results also count
    others = (path.parent for path in sorted(directory.parent.glob(f"*/{MARKER}")))
    durations = estimate(waiting, [directory, *(path for path in others if path != directory)], allow_imports)
    if durations.seconds:
        share = f"{len(durations.seconds)} of {len(waiting)} unfinished runs"
        longest = _duration(max(durations.seconds.values()))
        total = _duration(durations.total(workers))
        yield f"about {total} with {workers} worker{'s' * (workers > 1)} for {share}, the longest {longest}"
    yield from (f"  {note}" for note in durations.notes)
    if plan.search and plan.search.looks_for == "cheapest":
        yield "  this is the time of the fp32 runs only: candidates are rounded, and take longer"
    elif plan.search:
        yield "  a search runs a part of these, and takes less"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    if seconds < 100 * 60:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"
