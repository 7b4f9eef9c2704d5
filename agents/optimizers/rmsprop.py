"""RMSProp as usually written (naive in low precision), and with the root of the second moment by hypot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, final

from torch import Tensor

from .adam import AdamBase, KeepingSquares
from .hadam import KeepingRoots


class _WithoutFirstMoment(AdamBase):
    """AdamBase with the arguments of RMSProp."""

    averages_gradients: ClassVar[bool] = False

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], *, alpha: float = 0.99, **options: Any
    ) -> None:
        super().__init__(params, betas=(0.0, alpha), **options)


@final
class RMSProp(_WithoutFirstMoment, KeepingSquares):
    """RMSProp: theta <- theta - lr * g / (sqrt(v) + eps), v <- alpha v + (1 - alpha) g^2.

    It does not use momentum, and v begins as 0, without bias correction. eps is added outside of the root, as in
    ``torch.optim.RMSprop``; TensorFlow's, which the A2C paper used, adds it inside. In low precision v underflows
    as Adam's does: in e5m10 it is 0 wherever |g| < 1.7e-3, and the step is then lr g / eps.

    Args:
        params: tensors, or groups of them as for every ``torch.optim`` optimizer.
        alpha: decay of the second moment, in [0, 1).
        options: ``lr``, ``eps``, ``kahan``, ``loss_scale`` and ``eps_floor``, see
            :class:`~roundoff.agents.optimizers.adam.AdamBase`.

    Raises:
        RunError: an argument is out of range; in ``step``, a gradient is sparse.

    Source:
        Tieleman & Hinton, "Lecture 6.5: RMSProp"; Mnih et al., "Asynchronous Methods for Deep Reinforcement
        Learning", Section 4, "Optimizations", equation (8).
    """


@final
class HRMSProp(_WithoutFirstMoment, KeepingRoots):
    """RMSProp with w = sqrt(v) in place of v, by hypot: w <- hypot(sqrt(alpha) w, sqrt(1 - alpha) g).

    In exact arithmetic it is the same algorithm, without squares that could overflow or underflow. It changes RMSProp
    in the same way as hAdam changes Adam. For the arguments see :class:`RMSProp`.

    Source:
        Low-precision SAC, Section 3, Algorithm 1, without its first moment.
    """
