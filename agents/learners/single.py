"""The only learner of a run: the simplest of the groups that a run may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from ..optimizers.network_optimizer import NetworkOptimizer


class LearnerLost(Exception):  # noqa: N818  no error of this process
    """Raised when another learner of the run has ended, or its node has failed."""


class Learners(Protocol):
    """This process among the learners of a run.

    Attributes:
        rank: the number of this process; 0 leads: it evaluates, logs, and writes results.
        leads: whether this process leads.
        in_step: whether all learners take the same number of steps, and save together.
    """

    rank: int
    in_step: bool

    @property
    def leads(self) -> bool:
        """Whether this process leads."""

    def first_step(self, step: int) -> int:
        """Returns the step of the checkpoint to continue from, given the leader's; -1: no checkpoint."""

    def join(self, optimizers: Mapping[str, NetworkOptimizer], step: int) -> None:
        """Makes these optimizers move parameters together with other learners, from step ``step`` of the run on."""

    def advance(self, step: int, count: int) -> int:
        """Returns the number of steps of all learners, after ``count`` steps of this one since ``step``."""

    def is_to_stop(self, requested: bool) -> bool:
        """Returns whether to stop now, given whether this learner has received a request to stop."""

    def meet(self) -> None:
        """Waits until all learners that save together have arrived here."""

    def look_after(self) -> None:
        """Checks, about once a second, the state of the other learners."""

    def why_lost(self) -> Any:
        """Returns the crash that ended another learner; None if it did not crash."""


@final
class SingleLearner:
    """The only learner of a run."""

    rank, leads, in_step = 0, True, True

    def first_step(self, step: int) -> int:  # noqa: D102
        return step

    def join(self, optimizers: Mapping[str, NetworkOptimizer], step: int) -> None:
        """Does nothing: a single learner does not have peers to join."""

    def advance(self, step: int, count: int) -> int:  # noqa: D102
        return step + count

    def is_to_stop(self, requested: bool) -> bool:  # noqa: D102
        return requested

    def meet(self) -> None:
        """Does nothing: a single learner does not have peers to meet."""

    def look_after(self) -> None:
        """Does nothing: a single learner does not have peers to look after."""

    def why_lost(self) -> Any:
        """Returns None: a single learner does not have peers to lose."""
        return None
