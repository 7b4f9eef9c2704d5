"""Runs a sweep: finished runs are kept, and unfinished runs are carried out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.files import directory_lock, make_directory, make_directory_inside, remove_temporaries

from ..agents import check_run
from ..agents.config import TrainConfig
from .errors import SweepError
from .folder.directory import State, SweepDirectory
from .folder.leases import Leases
from .language.plan import Plan
from .subjects.program_keys import ProgramConfig
from .subjects.subject import Run, RunConfig
from .watcher import SweepWatcher, tracked
from .workers.pool import Event, Executor, execute


@dataclass(frozen=True)
class Summary:
    """The numbers of runs of the plan that ended in each way."""

    done: int
    crashed: int
    failed: int


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_sweep(
    plan: Plan,
    directory: Path,
    *,
    executor: Executor,
    watcher: SweepWatcher,
    compiled: bool | None = None,
    population: int = 1,
    allow_imports: Collection[str] = (),
) -> Summary:
    """Brings every run of ``plan`` to its end in ``directory``; finished runs are not repeated.

    Whenever it is stopped, in whatever way, calling it again continues from the runs' checkpoints, with the same
    results as if it had never been stopped. Runs that failed are tried again. Any number of sweeps may work in the
    same folder, also from several machines: each run is done by one of them, and all end when all runs have. A run with
    an unreadable result has failed, until the file is deleted; the others continue.

    Args:
        plan: what to run.
        directory: new, empty, or of a sweep of the same name, which is then extended.
        executor: starts the workers; closed at the end.
        watcher: receives the events.
        compiled: whether updates are compiled; no result depends on it. See :func:`roundoff.agents.train`.
        population: the most runs that one worker trains at once, if they can share a program; no result depends on it.
        allow_imports: modules that may be imported for tasks such as ``gym:<module>:<id>``; see
            :func:`roundoff.agents.train`. Workers import the modules that this process has imported: formats that they
            register may be named.

    Returns:
        How the runs of the plan ended.

    Raises:
        MissingExtraError: the tracker of the sweep is not installed.
        SweepError: the folder is something else; or no worker can be started; or the tracker cannot be used; or the
            first run of a program gives no metric.
        RunError: the module of a task is not allowed, or its environment is unsuitable for training; or this machine,
            where workers are to run, lacks the device of a run.
        FileError: it cannot be written.
    """
    # Checks the folder and the configs before anything is written
    store = SweepDirectory(directory)
    store.check(plan)
    if plan.program is None:
        configs = [run.config for run in plan.runs if isinstance(run.config, TrainConfig)]
        for config in {(config.task, config.algorithm): config for config in configs}.values():
            check_run(config, allow_imports)
    watcher = tracked(watcher, plan, directory)
    runs, leases = claim(store, plan, directory, watcher)
    logs = make_directory_inside(directory, "logs")
    states = {run.id: store.state(run) for run in plan.runs}
    if executor.is_local:
        _check_devices([run.config for run in plan.runs if states[run.id] not in ("done", "crashed")])
    # Announces the unfinished runs, and reports damaged results as failures
    jobs = _jobs(plan, store, states, runs, leases)
    damaged = [(run, damage) for run in plan.runs if (damage := store.damage(run))]
    waiting = [*(run for run, _ in jobs), *(run for run, _ in damaged)]
    watcher.begin(waiting, len(plan.runs) - len(waiting), max(1, min(executor.limit, len(jobs))))
    for run, damage in damaged:
        watcher.event(Event("failed", run, reason=damage), "failed", None)
    # Carries out the runs, and reports their events
    if jobs:
        running = execute(
            jobs, executor, leases, logs,
            compiled=compiled, population=population, allow_imports=allow_imports, metric=plan.metric,
        )  # fmt: skip
        with closing(running) as events:
            for event in events:
                completed, score = _complete_event(event, store)
                if completed.kind == "ended":  # a lease is of no use once there is a result
                    leases.forget(event.run.id)
                states[event.run.id] = store.state(event.run) if completed.kind in ("ended", "failed") else "waiting"
                watcher.event(completed, states[event.run.id], score)
                check_metric(event, states.values())
    ended = list(states.values())
    return Summary(ended.count("done"), ended.count("crashed"), ended.count("failed"))


def claim(store: SweepDirectory, plan: Plan, directory: Path, watcher: SweepWatcher) -> tuple[Path, Leases]:
    """Writes the plan into a folder; returns the folder of the runs, and their leases."""
    make_directory(directory)
    with directory_lock(directory, wait=True):
        remove_temporaries(directory)
        for notice in store.claim(plan):
            watcher.notice(notice)
        return make_directory_inside(directory, "runs"), Leases(make_directory_inside(directory, "leases"))


def check_metric(event: Event, states: Iterable[str]) -> None:
    """Ends a sweep if its first run has shown that no run of its program returns the metric.

    Raises:
        SweepError: the event shows that, and no run has ended with a result.
    """
    if event.ends_sweep and not {"done", "crashed"} & {*states}:
        raise SweepError(
            "no other run is started, since all would fail in the same way; edit the program, and start the sweep again"
        )


def _complete_event(event: Event, store: SweepDirectory) -> tuple[Event, float | None]:
    """Completes an event from the folder, and reads the score; records the failure of a run in the folder."""
    if event.kind == "failed":
        store.record_failure(event.run, event.reason)
    if event.kind != "ended":
        return event, 0.0
    if damage := store.damage(event.run):
        return Event("failed", event.run, reason=damage), 0.0
    result = store.result(event.run)
    if isinstance(event.run.config, ProgramConfig) and result.crash:
        event = replace(event, reason=result.crash.reason)
    return event, result.score


def _check_devices(configs: Sequence[RunConfig]) -> None:
    """Raises RunError if a run needs a device that this machine does not have, or that lacks a feature it needs."""
    agents = [config for config in configs if isinstance(config, TrainConfig)]
    needed = {(config.device, config.format if config.native else None) for config in agents}
    needed |= {(config.settings.device, None) for config in configs if isinstance(config, ProgramConfig)}
    if any(device != "cpu" for device, _ in needed):
        from ..agents import open_device  # noqa: PLC0415  imports torch

        for device, native in sorted(needed, key=str):
            open_device(device, native)


def _jobs(
    plan: Plan, store: SweepDirectory, states: dict[str, State], runs: Path, leases: Leases
) -> list[tuple[Run, Path]]:
    """The unfinished runs and their folders, without the traces of earlier tries."""
    unfinished = [run for run in plan.runs if states[run.id] not in ("done", "crashed") and not store.damage(run)]
    unfinished.sort(key=lambda run: states[run.id] == "failed")  # failed runs last: a failure may end the sweep
    jobs = [(run, store.run_path(run)) for run in unfinished]
    for run, path in jobs:
        if path.is_symlink():
            make_directory_inside(runs, run.id)
        store.files(run).forget_failure()
    for identity in leases.numbers():
        if states.get(identity) in ("done", "crashed"):  # its worker was killed between result and release
            leases.forget(identity)
    return jobs
