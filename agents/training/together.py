"""Several runs trained by one process: runs with agents of one kind as a population, others one by one."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from roundoff.runs.result import Result

from ...simulate import reason_against_compiling
from ..adapters.run import AdaptedRun
from ..config.train_config import TrainConfig
from ..programs.population import Population, shared_kind, worth_sharing
from ..run.loop import Run, Training
from ..run.reporter import Progress
from ..run.stopping import StopRequest
from .alone import open_run, train_alone

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # From malloc.h.
_MOST_KEPT = 1 << 30
_LARGEST_FROM_HEAP = 1 << 25  # The largest value that glibc allows.


@final
@dataclass(frozen=True)
class Job:
    """A run to train; see :func:`roundoff.agents.train` for its arguments."""

    config: TrainConfig
    directory: str | Path
    on_progress: Callable[[Progress], None] | None = None
    on_notice: Callable[[str], None] | None = None
    allow_imports: Collection[str] = ()


class _OpenRun(NamedTuple):
    """A job and its open run."""

    number: int
    job: Job
    run: Run | AdaptedRun
    open: ExitStack


def train_together(
    jobs: Sequence[Job], stop: StopRequest | None = None, *, compiled: bool | None = None
) -> Iterator[tuple[int, Result | Exception]]:
    """Trains agents, or continues to; every run has the same results, checkpoints and end as in a separate process.

    Runs with agents of one kind, after the same number of updates, are updated by one program, with a separate format,
    learning rate, discount, tau and initial temperature for each. A run that ends does not affect the others.

    Args:
        jobs: the runs, each with a separate folder.
        stop: after a request, all runs save checkpoints and stop.
        compiled: see :func:`roundoff.agents.train`; False trains one after the other.

    Yields:
        As runs end, the index of the job, and the result or the error that :func:`roundoff.agents.train` would raise.
    """
    with ExitStack() as all_stacks:
        runs: list[_OpenRun] = []
        for number, job in enumerate(jobs):
            stack = all_stacks.enter_context(ExitStack())  # Closes this run before the others.
            opening = open_run(
                job.config, job.directory, job.on_progress, stop, job.allow_imports, on_notice=job.on_notice
            )
            try:
                run = stack.enter_context(opening)
            except Exception as error:  # noqa: BLE001  the other runs are not concerned
                yield number, error
                continue
            if isinstance(run, Result):
                stack.close()  # The run had ended before; releases its folder.
                yield number, run
            elif isinstance(run, Run) and run.has_company:  # Other processes are waiting for it.
                yield _train_alone(_OpenRun(number, job, run, stack), compiled=compiled)
            else:
                runs.append(_OpenRun(number, job, run, stack))
        groups: dict[Any, list[_OpenRun]] = {}  # The runs of each possible population.
        for entry in runs:
            key = None if compiled is False else _shared_key(entry.run, forced=compiled is True)
            groups.setdefault(key or entry.number, []).append(entry)
        for members in groups.values():
            population = _population(members)
            if population:
                yield from _train(population, members)
            else:
                for entry in members:
                    yield _train_alone(entry, compiled=compiled)


def _shared_key(run: Run | AdaptedRun, *, forced: bool) -> Any:
    """Returns a key that the members of a population share; None if a run is trained separately."""
    if isinstance(run, AdaptedRun):
        return None
    if not forced and not worth_sharing(run.config, run.updates_to_come):
        return None
    shared = shared_kind(run.config)
    return (shared, run.learner.updates) if shared and not reason_against_compiling() else None


def _train_alone(entry: _OpenRun, *, compiled: bool | None) -> tuple[int, Result | Exception]:
    with entry.open:
        try:
            return entry.number, train_alone(entry.run, compiled=compiled, on_notice=entry.job.on_notice)
        except Exception as error:  # noqa: BLE001  the other runs are not concerned
            return entry.number, error


def _population(runs: Sequence[_OpenRun]) -> Population | None:
    """Makes a population of the agents of like runs; returns None for a single run, or if compilation fails."""
    if len(runs) == 1:
        return None
    keep_freed_memory()
    try:
        population = Population([entry.run.learner for entry in runs if isinstance(entry.run, Run)])
    except Exception as error:  # noqa: BLE001  a full disk, a mistake of the compiler's
        _notify(runs, f"trained one by one, since {len(runs)} runs together could not be compiled ({error})")
        return None
    _notify(runs, f"updates are compiled, of {len(runs)} runs together")
    return population


def _notify(runs: Sequence[_OpenRun], text: str) -> None:
    for entry in runs:
        if entry.job.on_notice:
            entry.job.on_notice(text)


def _train(population: Population, runs: Sequence[_OpenRun]) -> Iterator[tuple[int, Result | Exception]]:
    training = {i: entry.run.training() for i, entry in enumerate(runs) if isinstance(entry.run, Run)}
    outcomes: dict[int, Any] = dict.fromkeys(training)  # Of the last update; None before the first.
    while training:
        batches: dict[int, Any] = {}
        for i, outcome in outcomes.items():
            batch = _advance(training[i], outcome)
            if isinstance(batch, (Result, Exception)):
                del training[i]
                runs[i].open.close()
                yield runs[i].number, batch
            else:
                batches[i] = batch
        if batches:
            start = time.perf_counter()
            metrics = population.update(batches)
            share = (time.perf_counter() - start) / len(batches)  # Each run counts its share of the time.
            outcomes = {i: (metrics[i], share) for i in batches}


def _advance(training: Training, outcome: Any) -> Any:
    """Continues a run up to its next update; returns the update's batch, or the run's result or error at its end."""
    try:
        return training.send(outcome)
    except StopIteration as end:
        return end.value
    except Exception as error:  # noqa: BLE001  the other runs are not concerned
        return error


def keep_freed_memory() -> bool:
    """Lets the C library keep up to 1 GiB of freed memory, instead of giving it back to the system at once.

    An update of a population makes and frees tensors of megabytes hundreds of times a second. If memory is returned
    each time, the system clears its pages again: a quarter of the update's time with 8 members of 128 units.

    Returns:
        Whether the setting, which lasts for the rest of the process, was possible: only with glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP), (_M_TRIM_THRESHOLD, _MOST_KEPT))
    return all(mallopt(name, value) == 1 for name, value in settings)
