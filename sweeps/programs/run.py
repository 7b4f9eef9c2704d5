"""A run of a program: from its config to its result, through any number of interruptions."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from roundoff.current_run import part_of
from roundoff.errors import FileError, RoundoffError
from roundoff.files import directory_lock, encodable, make_directory, remove_temporaries
from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import Metric
from roundoff.runs.result import Crash, ProgramResult

from ...agents import Numerics, Progress, Reporter, Stopped, StopRequest, Stopwatch, open_device
from ...simulate import OutOfMemory, Simulation, SteppedOptimizers, damaged_weight, lost_numbers
from ..errors import SweepError
from ..subjects.flag_values import PASSED_ON, checked_flags
from ..subjects.flags import is_success
from ..subjects.program import Program
from ..subjects.program_keys import ARITHMETIC, ProgramConfig, ProgramKeys
from ..user_code import describe_error, format_traceback
from .recorder import ProgramRecorder, ProgramStopped, number, seed_generators


class ProgramError(RoundoffError):
    """A program has failed: its exception in one line, followed by the program's own traceback."""


class NoMetricError(ProgramError):
    """A program does not return its metric, whatever its settings."""


def config_of(program: Program, values: Mapping[str, Any]) -> ProgramConfig:
    """The config of a run of a program, from what its ``as_json`` returned.

    Raises:
        SweepError: it does not fit this program, which has changed since.
    """
    keys = keys_of(program)
    arguments = {key: value for key, value in values.items() if key != "program"}
    unknown = [key for key in arguments if key not in keys.keys]
    config: Any = [f"{program.text} has no parameter {unknown[0]}"] if unknown else keys.config(arguments)
    if isinstance(config, list):
        raise SweepError(f"{program.text}: {'; '.join(config)}; it has changed since the sweep was planned")
    assert isinstance(config, ProgramConfig)
    return config


@cache
def keys_of(program: Program) -> ProgramKeys:
    """The keys of a program's runs."""
    return ProgramKeys(program)


def run_program(
    config: ProgramConfig,
    metric: Metric,
    directory: str | Path,
    on_progress: Callable[[Progress], None] | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Runs a program, or continues to, and leaves the run in ``directory`` (see :mod:`roundoff.runs`).

    The function runs inside the simulation that the config describes, or is given it as ``arithmetic``. Generators of
    random numbers are seeded before. Where it returns nothing, or a program with flags its exit status, the metric is
    the value last logged under its name. A program that has ended is not run again.

    Args:
        config: the program, and its arguments.
        metric: the returned value that counts.
        directory: the run's folder; made if it is missing. Nothing else may be in it.
        on_progress: called about once a second while it logs.
        stop: once it is made, the program stops at its next checkpoint, or at its next log call if it does not save.

    Returns:
        The content of ``result.json``.

    Raises:
        ProgramError: the program raised an error while its numbers were finite, or returned other things than numbers.
        SweepError: the program's flags cannot have one of its settings.
        RunError: the folder is another run's, or this machine lacks the device.
        FileError: a file cannot be written, is damaged, or another process works in the folder.
        Stopped: as ``stop`` asked; calling this again continues.
    """
    files = RunDirectory(directory)
    if not files.result.exists():
        open_device(config.settings.device)  # before anything is written
        make_directory(directory)
        with directory_lock(directory):
            remove_temporaries(files.path)
            files.claim(config)
            # Another process may have ended it while this one waited for the lock.
            if not files.result.exists():
                _run(config, metric, files, on_progress, stop or StopRequest())
    files.check(config)
    result = files.read_result()
    assert result is not None
    return result.as_json()


def _run(
    config: ProgramConfig,
    metric: Metric,
    files: RunDirectory,
    on_progress: Callable[[Progress], None] | None,
    stop: StopRequest,
) -> None:
    settings = config.settings
    simulation = Simulation(settings.policy_of_run(), seed=settings.seed, observe=settings.observe)
    numerics = Numerics(simulation) if settings.observe else None
    reporter = Reporter(files, Stopwatch(), numerics, on_progress)
    with ProgramRecorder(reporter, metric.name, simulation, stop) as recorder:
        values, reason = _outcome(config, metric, simulation, recorder)
        if reason:
            reason = reporter.reason(reason)
        score = metric.score(None if reason else values[metric.name])
        crash = Crash(recorder.step, reason) if reason else None
        result = ProgramResult("crashed" if reason else "done", score, recorder.step, crash, values, metric)
        recorder.finish()
        seconds = reporter.stopwatch.total
    files.end(result, {"seconds": seconds, **config.program.origin()})


def _outcome(
    config: ProgramConfig, metric: Metric, simulation: Simulation, recorder: ProgramRecorder
) -> tuple[dict[str, float], str]:
    """Calls the program: the finite numbers that it returns, and why it has crashed, or nothing."""
    keys = keys_of(config.program)
    function, arguments = config.program.load(), keys.arguments(config)
    untaken = {name: getattr(config.settings, name) for name in PASSED_ON if name not in keys.takes}
    seed_generators(config.seed)
    with SteppedOptimizers() as stepped:
        try:
            with part_of(recorder), surroundings(config.settings.threads), checked_flags(config.program.text, untaken):
                if ARITHMETIC in keys.takes:
                    returned = function(**arguments, arithmetic=simulation)
                else:
                    with simulation:
                        returned = function(**arguments)
            if recorder.last is not None and (returned is None or is_success(function, returned)):
                returned = {metric.name: recorder.last}
            values = _returned_values(config.program, metric, returned)
            reason = _final_crash_reason(metric, values, recorder, stepped)
        except ProgramStopped:
            raise Stopped(recorder.step) from None
        except (FileError, SweepError):  # a setting that its flags cannot have is no crash
            raise
        except (Exception, SystemExit) as error:
            description = str(error) if isinstance(error, ProgramError) else describe_error(error)
            if reason := _crash_reason(error, simulation, recorder, stepped):
                return {}, f"{reason}, then {description}"
            if isinstance(error, ProgramError):
                raise
            if metric.error == "crash":
                return {}, description
            raise ProgramError(f"{description}\n{format_traceback(error)}") from error
    return {name: value for name, value in values.items() if math.isfinite(value)}, reason


def _final_crash_reason(
    metric: Metric, values: Mapping[str, float], recorder: ProgramRecorder, stepped: SteppedOptimizers
) -> str:
    """The reason why a program that has returned its metric has crashed; empty if it has not."""
    if not math.isfinite(values[metric.name]):
        return f"{metric.name} is not finite"
    returned = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if reasons := [*recorder.not_finite.values(), *returned]:
        return reasons[0]
    damaged = damaged_weight(stepped.weights())
    return "" if damaged is None else f"the weights {damaged} are not finite at the end"


def _crash_reason(
    error: BaseException, simulation: Simulation, recorder: ProgramRecorder, stepped: SteppedOptimizers
) -> str:
    """Describes the values that were not finite when the program ended: logged or read last, or weights; else empty."""
    if isinstance(error, OutOfMemory):
        return ""
    recorded = next(iter(recorder.not_finite.values()), "") or str(simulation.last_read)
    return recorded or lost_numbers(error, stepped.weights()) or ""


@contextmanager
def surroundings(threads: int) -> Iterator[None]:
    """Restores the state of the process that a run changes and the process still needs.

    A process that the program forks ends where the program does.
    """
    thread_count, dtype, directory = torch.get_num_threads(), torch.get_default_dtype(), Path.cwd()
    mask, path, process = os.umask(0o022), list(sys.path), os.getpid()
    os.umask(mask)  # reading the mask sets it
    torch.set_num_threads(threads)
    try:
        with torch.enable_grad():
            yield
    finally:
        if os.getpid() != process:  # a child that the program forked must not continue the sweep
            os._exit(0)
        torch.set_num_threads(thread_count)
        torch.set_default_dtype(dtype)
        os.chdir(directory)
        os.umask(mask)
        sys.path[:] = path


def _returned_values(program: Program, metric: Metric, returned: Any) -> dict[str, float]:
    """The numbers that a program has returned, by name.

    Raises:
        NoMetricError: it is none, or the metric is not among them.
    """
    logs = f"roundoff.log(step, {metric.name}=value)"
    if returned is None:
        raise NoMetricError(
            f"{program.text} returns nothing, and has not logged {metric.name}: return it, or add {logs}"
        )
    try:
        if not isinstance(returned, Mapping):
            numbers = {metric.name: number(f"what {program.text} returns", returned)}
        else:
            numbers = {
                encodable(str(name)): number(f"{program.text} returns {name}, which", value)
                for name, value in returned.items()
            }
    except TypeError as error:
        raise NoMetricError(f"{error}; return a number, or a mapping from names to numbers, or add {logs}") from error
    if metric.name not in numbers:
        raise NoMetricError(
            f"{program.text} returns {', '.join(numbers) or 'an empty mapping'}; the metric is {metric.name}: say which"
            " of them counts with metric: NAME"
        )
    return numbers
