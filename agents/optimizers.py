"""The optimizer of one network as the config asks for it: naive or hAdam, with or without Kahan and loss scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from roundoff.agents.adam import Adam
from roundoff.agents.compound_loss_scaling import CompoundLossScaler
from roundoff.agents.hadam import HAdam

if TYPE_CHECKING:
    import torch

    from roundoff.agents.adam import AdamBase
    from roundoff.agents.config import TrainConfig
    from roundoff.formats import FloatFormat


@final
class NetworkOptimizer:
    """Steps one flat parameter tensor by the gradients in its ``grad``.

    Args:
        flat: the parameters.
        config: the learning rate, Adam's constants, and which fixes are on.
        format: the number format of the run, for its largest and smallest numbers.
        kahan: whether this network's updates are compensated if ``kahan_gradients`` is on.

    Attributes:
        optimizer: the optimizer itself.
        scaler: its loss scaler, if ``compound_loss_scaling`` is on.
    """

    def __init__(self, flat: torch.Tensor, config: TrainConfig, format: FloatFormat, *, kahan: bool) -> None:
        make = HAdam if "hadam" in config.fixes else Adam
        scaled = "compound_loss_scaling" in config.fixes
        self.optimizer: AdamBase = make(
            [flat],
            lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            kahan=kahan and "kahan_gradients" in config.fixes,
            eps_floor=format.smallest_subnormal if scaled else 0.0,
        )
        self.scaler: CompoundLossScaler | None = None
        if scaled:
            self.scaler = CompoundLossScaler(
                self.optimizer,
                initial_scale=config.initial_loss_scale,
                growth_interval=config.loss_scale_growth_interval,
                largest=format.max,
            )

    @property
    def scale(self) -> float:
        """By what gradients must be multiplied."""
        return self.scaler.scale if self.scaler else 1.0

    def step(self) -> None:
        """Updates the parameters, or skips the step if the scaler finds gradients that are not finite."""
        if self.scaler:
            self.scaler.step()
        else:
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer and its scaler."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
