"""Rounding the values that an optimizer stores: gradients before its step, parameters and its own buffers after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils._pytree import tree_leaves

from ..aten.wrappers import parts
from ..policy.policy import Policy
from ..policy.rules import OPTIMIZER_STEP, Role
from ..presence.entering import simulations_off
from ..watching.watcher import Call, Watcher
from .narrow_tensors import NARROW
from .plan import OperationPlan
from .results import Results


def names_steps(policy: Policy) -> bool:
    """Whether a rule of the policy is about whole steps of optimizers."""
    return any(rule.matches(OPTIMIZER_STEP, "", Role.OPTIMIZER) for rule in policy.rules)


def round_stored(
    optimizer: torch.optim.Optimizer, plan: OperationPlan, results: Results, watchers: Sequence[Watcher], *, after: bool
) -> None:
    """Rounds the gradients of an optimizer, or ``after`` its step its parameters and buffers, in place."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if after:
        states = [optimizer.state.get(p, {}) for p in parameters]
        buffers = [value for state in states for name, value in state.items() if name != "step"]
        stored = [*parameters, *tree_leaves(buffers)]
    else:
        stored = [p.grad for p in parameters if p.grad is not None]
    call = Call(plan.place, plan.arithmetic.format, None, (), {}, ((), {}))
    with simulations_off(), torch.no_grad():
        tensors = [x for x in stored if isinstance(x, torch.Tensor) and not (plan.spares and x.dtype not in NARROW)]
        rounded = [part for tensor in tensors for part in parts(tensor.detach())]
        results.round_all(rounded, plan, call)
    for watcher in watchers if plan.rounds else ():
        for x in rounded:
            watcher.stored(x, plan.arithmetic.format)
