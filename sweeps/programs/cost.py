"""The cost of a program's step in the arithmetic of its run, counted over a few optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from roundoff.current_run import part_of

from ...simulate import MODELS, Cost, CostCounter, CostModel, CountedSteps, Simulation, Watcher, learned
from ..errors import SweepError
from ..subjects.program_keys import ARITHMETIC, ProgramConfig
from ..user_code import described
from .recorder import seed_generators
from .run import keys_of, surroundings

_STEPS = 2


def count_steps(config: ProgramConfig, models: Sequence[CostModel] = tuple(MODELS.values())) -> CountedSteps:
    """Counts the cost of a step of a program, in the arithmetic of its run.

    The program is called here as a run calls it, and ended after a few steps of the optimizer that makes the first one:
    the first step rounds the initial weights to their formats, and is not counted. A program without a second step is
    counted as a whole.

    Args:
        config: the program, and its arguments.
        models: models of the cost of products, with their own numbers.

    Returns:
        What ``Cost.as_json`` has, for one step, and ``steps``, how many were counted: 0 for a whole program. And what
        the optimizer's parameters were after its first step, and after the last one.

    Raises:
        SweepError: the program raised something.
    """
    own = config.own
    stop = _StopAfterSteps(_STEPS)
    simulation = Simulation(own.policy_of_run(), seed=own.seed, watchers=[stop], warn_unused=False)
    stop.counter = simulation.count_cost()
    keys = keys_of(config.program)
    function, arguments = config.program.load(), keys.arguments(config)
    seed_generators(config.seed)
    try:
        with part_of(_Nobody()), surroundings(own.threads):
            if ARITHMETIC in keys.takes:
                function(**arguments, arithmetic=simulation)
            else:
                with simulation:
                    function(**arguments)
    except _EnoughError:
        return CountedSteps(stop.counter.report().as_json(_STEPS, models) | {"steps": _STEPS}, stop.begin, stop.end)
    except (Exception, SystemExit) as error:
        raise SweepError(f"{config.program.text}: {described(error)}") from error
    whole = stop.first or stop.counter.report()
    return CountedSteps(whole.as_json(1, models) | {"steps": 0}, {}, {})


class _EnoughError(BaseException):
    """A program has made the steps to be counted; not an error that the program would handle."""


@final
class _StopAfterSteps(Watcher):
    """Begins to count after the first step of an optimizer, and ends the program after some more of its steps."""

    def __init__(self, steps: int) -> None:
        self.counter: CostCounter
        self.first: Cost | None = None
        self.begin: dict[str, torch.Tensor] = {}
        self.end: dict[str, torch.Tensor] = {}
        self._steps = steps
        self._optimizer: torch.optim.Optimizer | None = None

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after each step of any optimizer."""
        if self._optimizer is None:
            self._optimizer = optimizer
            self.first = self.counter.report()
            self.counter.restart()
            self.begin = _parameters(optimizer)
        elif optimizer is self._optimizer:
            self._steps -= 1
            if self._steps == 0:
                self.end = _parameters(optimizer)
                raise _EnoughError


def _parameters(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return learned({"parameters": [x for group in optimizer.param_groups for x in group["params"]]})


class _Nobody:
    """Receives a program's reports on its run, and does nothing."""

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    def checkpoint(self, state: Any, every: float) -> None:
        """Nothing is kept."""

    def restore(self) -> None:
        """The program starts from the beginning."""
