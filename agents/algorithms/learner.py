"""The learner interface: an agent that acts, and that learns in parts."""

from __future__ import annotations

from abc import ABC
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from ...simulate import Role, in_role
from ..config.fixes import EXACT_ERRORS, STOCHASTIC_TARGETS
from ..experience.replay import batch_of
from ..optimizers.decisions import add_product
from ..optimizers.step_norms import StepNorms
from .actions import Acting
from .exact_errors import exact_error, exact_target
from .part import Metrics, Part
from .state import NOISE, PLACES
from .stochastic_targets import stochastic_target


class Learner(Acting, ABC):
    """An agent: its state (``LearnerState``), its actions (``Acting``), and its updates.

    After its construction, it computes in ``config.format`` by the rules of ``config.policy``: ``act`` and ``update``
    run inside ``simulation`` (None: fp32 and fp64 are not simulated). The parts of an update do not enter it
    themselves. NaN never raises here: it appears in the actions. A native agent (``config.native``) runs the same
    operations, outside of any simulation, on tensors of ``dtype``.

    Losses are not computed, since they could overflow: autograd receives the derivative of the loss by a network's
    outputs, multiplied by the loss scale.

    A subclass also sets ``parts``, and ``draws`` for their random bits. For the arguments see ``LearnerState``.

    Attributes:
        draws: the purposes of an update's random bits, in order, at most six: its parts by name, and sections within a
            part (:meth:`draw`). Bits depend on the name's place here, not on the number of earlier draws.
        parts: the parts of an update, in order.
        compiled: the compiled program that takes the place of :meth:`compute`; None: parts run eagerly.
    """

    draws: ClassVar[tuple[str, ...]] = ("critic", "critic_step", "actor", "actor_step", "targets")
    parts: tuple[Part, ...] = ()
    _drawing: int | None = None  # The place of the current random bits; None outside of parts.

    @property
    def stochastic_targets(self) -> bool:
        """Whether targets are computed exactly and rounded once, stochastically."""
        return STOCHASTIC_TARGETS in self.config.fixes

    @property
    def exact_errors(self) -> bool:
        """Whether each error of a value is one operation, beginning with the last layers of critic and target."""
        return EXACT_ERRORS in self.config.fixes

    def noise_sizes(self, batch_size: int) -> tuple[int, ...]:  # noqa: ARG002
        """Returns the number of normal vectors, each as long as an action, in each noise of an update; here none."""
        return ()

    def prepare(self, batch: Any) -> Any:
        """Converts a batch to the input of the parts, outside of the simulation, like all preparation of data."""
        return batch

    def update(self, batch: Any) -> Metrics:
        """Makes one update: all parts that are due.

        Args:
            batch: transitions, as the recorder gives them.

        Returns:
            Tensors with means to log, still on the device.
        """
        if self.compiled and self.compiled.reason:  # The compiler failed: its parts would be slower than eager ones.
            self._write_back()
            self.compiled = None
        prepared, noises = self.begin_update(batch)
        metrics: Metrics = {}
        for part in self.parts:
            if self.is_due(part):
                inputs = part.inputs(prepared, noises)
                self.begin_part(part)
                # A program contains the rounding of the simulation.
                with nullcontext() if self.compiled else self.simulation or nullcontext():
                    compiled = self.compiled
                    metrics |= compiled.compute(part, inputs) if compiled else self.compute(part, inputs)
        for name, optimizer in self.optimizers.items():
            if optimizer.norms:
                metrics |= {f"{name}_{key}": norm for key, norm in optimizer.norms.latest.items()}
        return metrics

    def begin_update(self, batch: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Returns the inputs of an update: the prepared batch and all noises."""
        self.updates += 1
        prepared = self.prepare(batch)
        sizes = self.noise_sizes(len(batch.rows))
        with self._arithmetic(self.updates, NOISE):
            # Also for parts that are not due: the stream does not depend on their periods.
            noises = torch.split(self._normal(sum(sizes), "update_noise"), list(sizes)) if sizes else ()
        return prepared, tuple(noises)

    def is_due(self, part: Part) -> bool:
        """Returns whether the part is computed in this update."""
        return self.updates % part.every == 0

    def begin_part(self, part: Part) -> None:
        """Switches to the random bits of a part of this update."""
        self._begin(part.name)

    def compute(self, part: Part, inputs: tuple[Any, ...]) -> Metrics:
        """Computes a part that has begun, eagerly; when traced, on the tensors that this learner is bound to."""
        self._drawing = self._place(part.name)
        try:
            return part.compute(self, *inputs)
        finally:
            self._drawing = None

    def draw(self, name: str) -> None:
        """Switches to the random bits of ``name``, one of ``draws``."""
        place = self._place(name)
        if self._drawing is None:  # The function of a part was called without :meth:`compute`.
            self._begin(name)
            return
        if self.simulation is not None:  # Relative to the current step: programs take the number of the update as data.
            self.simulation.step += place - self._drawing
        self._drawing = place

    def step(self, name: str, largest_norm: float | None = None) -> None:
        """Takes a step of an optimizer with the computed gradients, with separate random bits: ``{name}_step``.

        A part calls :meth:`draw` before any computation after a step: programs use other operations for a step, so that
        random bits numbered from there would differ.

        Args:
            name: the name of the optimizer.
            largest_norm: the norm that gradients are clipped to; None: they are not clipped.
        """
        self.draw(f"{name}_step")
        self.optimizers[name].step(largest_norm)

    def _begin(self, name: str) -> None:
        if self.simulation is not None:
            self.simulation.step = PLACES * self.updates + self._place(name)

    def _place(self, name: str) -> int:
        # Place 0 is for the update's noise, and the last one for actions.
        assert name in self.draws[: PLACES - 2], f"{type(self).__name__}.draws has no {name}"
        return 1 + self.draws.index(name)

    def watch_norms(self) -> dict[str, StepNorms]:
        """Makes eager updates also return norms, such as ``critic_weights_norm``; see ``StepNorms``.

        Returns:
            The observers of each network's steps, by name.
        """
        observers = {}
        for name in self.networks.keys() & self.optimizers.keys():
            observers[name] = self.optimizers[name].norms = StepNorms(self.networks[name].layers[0].numel())
        return observers

    @property
    def row_size(self) -> int:
        """The size of a row of a batch."""
        return 2 * self.observation_size + self.action_size + 2  # Both observations, action, reward, discount.

    def unpacked(self, rows: torch.Tensor) -> Any:
        """Splits rows into a batch, for learners from states."""
        return batch_of(rows, self.observation_size, self.action_size)

    def summarize(self, metrics: Metrics) -> dict[str, float]:
        """Returns the values to log after an update, computed in full precision; it waits for the device.

        Args:
            metrics: the result of :meth:`update`.

        Returns:
            The mean of each metric, of ``td_error`` the mean square as ``critic_loss``, and the loss scales. Values and
            their errors are in the unit of the original rewards, without ``reward_scale``.
        """
        self._write_back()
        units, numbers = {"q": self.reward_scale}, {name: value.double() for name, value in metrics.items()}
        errors = numbers.pop("td_error", None)
        means = {name: float(value.mean()) / units.get(name, 1.0) for name, value in numbers.items()}
        loss = {} if errors is None else {"critic_loss": float((errors / self.reward_scale).square().mean())}
        scales = {f"{name}_loss_scale": optimizer.scale for name, optimizer in self.optimizers.items()}
        return means | loss | scales

    @property
    def scale_of_outputs(self) -> float:
        """The factor by which critics' outputs are multiplied; gradients of outputs are not."""
        return self.reward_scale

    @property
    def values_are_exact(self) -> bool:
        """Whether the terms of targets are unrounded, and only the target is rounded."""
        return self.stochastic_targets or self.exact_errors

    def errors_of(self, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Computes values - targets, without a graph; both unrounded if ``exact_errors``."""
        values = values.detach()
        return exact_error(values, targets, self.dtype) if self.exact_errors else values - targets

    @in_role(Role.TARGETS)
    def targets_of(self, rewards: torch.Tensor, discounts: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Returns the targets of values, (n, 1): rewards + discounts * discount * (the following value)."""
        if self.exact_errors:
            return exact_target(rewards, discounts, following, self.numbers["discount"])
        if self.stochastic_targets:
            return stochastic_target(rewards, discounts, following, self.numbers["discount"])
        return add_product(rewards, discounts, following, self.numbers["discount"])

    @in_role(Role.AVERAGES)
    def update_averages(self, networks: dict[str, str]) -> None:
        """Moves slow copies a step towards their networks, given as ``{average: network}``."""
        for average, network in networks.items():
            self.averages[average].update_(self.optimizers[network].parameters)
            self._coerced(self.averages[average].average)

    def before_update(self) -> AbstractContextManager[Any]:
        """Returns the simulation for computing with experience before the next update, which then draws no noise."""
        return self._arithmetic(self.updates + 1, NOISE)
