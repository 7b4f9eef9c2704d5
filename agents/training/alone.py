"""Trains an agent from a config to a finished run in a folder; interrupted runs continue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from roundoff.extras import require
from roundoff.files import directory_lock, make_directory, remove_temporaries
from roundoff.runs.folder import RunDirectory
from roundoff.runs.result import Result

from ..actors.stage import open_stage
from ..adapters.run import AdaptedRun
from ..adapters.settings import AdapterConfig
from ..config.train_config import TrainConfig
from ..errors import RunError
from ..programs.compiled import compile_updates
from ..run.device import open_device
from ..run.loop import Run
from ..run.parts import check_run, open_environments, opening_of
from ..run.profile import Profile, read_profile
from ..run.reporter import Progress
from ..run.stopping import StopRequest
from .learners import others_learning


def train(
    config: TrainConfig,
    directory: str | Path,
    on_progress: Callable[[Progress], None] | None = None,
    stop: StopRequest | None = None,
    *,
    compiled: bool | None = None,
    on_notice: Callable[[str], None] | None = None,
    allow_imports: Collection[str] = (),
    on_profile: Callable[[Profile], None] | None = None,
) -> Result:
    """Trains an agent, or continues to, and stores the run in ``directory`` (see :mod:`roundoff.runs`).

    The same config has the same metrics and weights, bit for bit, on the same machine, also if the run was interrupted
    and continued by calling this again. A run that has ended is not repeated. If the process is stopped, at most the
    work since the last checkpoint is lost.

    Args:
        config: the config of the run.
        directory: the run's folder; created if it is missing. It may contain nothing else.
        on_progress: called at least once per episode, and about once per second.
        stop: after a request, the run saves a checkpoint between two agent steps, and stops.
        compiled: whether updates are compiled, if possible; None: if that saves time. No result depends on it.
        on_notice: called with a message about that decision, and again if it changes.
        allow_imports: modules that may be imported to make the task ``gym:<module>:<id>``, or packages that hold them;
            modules that the program has already imported are allowed. A config from a file may name any module.
        on_profile: called at the end, also after an interruption, with the time by activity; for a run that had ended
            before, with the stored times. On a GPU the run then waits for it at the end of each activity, which takes
            longer, and no result depends on it.

    Returns:
        The result of the run. A non-finite action ends it as crashed, which is a result, not an error.

    Raises:
        RunError: the folder is another run's, the device is missing, the task's module is not allowed, or an
            environment failed.
        FileError: a file cannot be written, is damaged, or another process works in the folder.
        Stopped: ``stop`` has received a request; calling this again continues.
    """
    with open_run(
        config, directory, on_progress, stop, allow_imports, wait=on_profile is not None, on_notice=on_notice
    ) as run:
        if isinstance(run, Result):  # It had ended before.
            if on_profile:
                on_profile(read_profile(RunDirectory(directory).timing))
            return run
        try:
            return train_alone(run, compiled=compiled, on_notice=on_notice)
        finally:
            if on_profile:
                on_profile(run.profile())


@contextmanager
def open_run(
    config: TrainConfig,
    directory: str | Path,
    on_progress: Callable[[Progress], None] | None,
    stop: StopRequest | None,
    allow_imports: Collection[str],
    *,
    wait: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> Iterator[Run | AdaptedRun | Result]:
    """Begins or continues a run within the block; yields its result if it has ended; see :func:`train` and ``Run``."""
    files = RunDirectory(directory)
    if files.result.exists():  # Before any locking, since the folder of a finished run may be write-protected.
        files.check(config)
    else:
        device = open_device(config.device, config.format if config.native else None)  # Before anything is written.
        check_run(config, allow_imports)
        if isinstance(config, AdapterConfig):
            require(config.package)
        make_directory(directory)
        with directory_lock(directory):  # One process for a run.
            remove_temporaries(files.path)  # Of a killed process.
            files.claim(config)
            if not files.result.exists():  # Another process may have ended the run before this one had the lock.
                stop = stop or StopRequest()
                with _enough_memory(config), _threads(config.threads):
                    if isinstance(config, AdapterConfig):
                        yield AdaptedRun(config, files, device, on_progress, stop, allow_imports, wait=wait)
                        return
                    with (
                        others_learning(config, files, allow_imports, on_notice) as learners,
                        open_environments(config.share(), stop.make, allow_imports) as environments,
                        open_stage(config, opening_of(config, allow_imports)) as stage,
                    ):
                        yield Run(
                            config, files, device, environments, on_progress, stop, learners=learners, stage=stage,
                            wait=wait,
                        )  # fmt: skip
                return
    result = files.read_result()
    assert isinstance(result, Result)
    yield result


def train_alone(run: Run | AdaptedRun, *, compiled: bool | None, on_notice: Callable[[str], None] | None) -> Result:
    """Continues a run to its end; see :func:`train`."""
    if isinstance(run, AdaptedRun):
        if on_notice:
            on_notice(f"updates run eagerly: {run.config.reason_not_compiled}")
        return run.train()
    notice = compile_updates(run.learner, run.updates_to_come, wanted=compiled, on_notice=on_notice)
    if on_notice:
        on_notice(notice)
    training = run.training()
    try:
        batch = next(training)
        while True:
            start = time.perf_counter()
            try:
                metrics = run.learner.update(batch)  # Here, not in the generator: a population updates several runs.
            except Exception as error:  # noqa: BLE001  the run decides whether it has crashed
                batch = training.throw(error)
                continue
            run.stopwatch.wait()
            batch = training.send((metrics, time.perf_counter() - start))
    except StopIteration as end:
        result: Result = end.value
        return result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Gives PyTorch ``count`` CPU threads for the block; results depend on their number."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def _enough_memory(config: TrainConfig) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason, _, _ = str(error).partition("\n")
        raise RunError(
            f"the memory of {config.device} is not enough ({reason[:200]}); the last checkpoint is kept, and the same"
            " command continues from it: with fewer runs at once (--population 1, --workers 1), a smaller batch_size or"
            " hidden_units in a run of its own, or a card with more memory"
        ) from error
