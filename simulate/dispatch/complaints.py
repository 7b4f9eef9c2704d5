"""Warnings of a simulation: rules without a match, products without a rule, fp32 in a float64 program."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from roundoff.errors import suggestion

from ...formats import Rounding
from ...formats.families.floats import FP32
from ..aten.tables import CONTRACTIONS, is_contraction, is_other_product
from ..policy.parts import NO_PARTS, Parts, fits, split
from ..policy.policy import Policy
from ..policy.rules import OPTIMIZER_STEP, Role, Rule
from ..presence.entering import SimulationWarning, innermost
from .plan import OperationPlan

_MOST_NAMED = 30
_MOST_OF_RULE = 5  # operations; a recipe's rule about products names some thirty


class PolicyWarning(SimulationWarning):
    """A rule of a policy names an operation, a module or a function that never ran."""


def unused(rules: Iterable[Rule], plans: Iterable[OperationPlan]) -> list[Rule]:
    """The rules that name an operation, module or function, and matched nothing; optimizer steps need not happen."""
    used = {rule for plan in plans for rule in plan.rules}
    return [
        rule
        for rule in rules
        if rule not in used
        and (rule.operation not in (("*",), (OPTIMIZER_STEP,)) or rule.module != ("*",) or rule.parts)
    ]


def complaints(
    policy: Policy,
    plans: Iterable[OperationPlan],
    modules: Sequence[str] = (),
    called: Collection[str] = (),
    parts: Parts = NO_PARTS,
) -> list[str]:
    """All that there is to say of a policy after a program ran, each in a sentence.

    Args:
        policy: the policy.
        plans: the treatment of every operation that ran.
        modules: the paths of the modules that existed.
        called: the functions named by the policy that were called.
        parts: the parts that the program was in.
    """
    ran = list(plans)
    missed = {pattern for pattern in policy.within if not any(fits(name, [pattern]) for name in parts.begun)}
    out_of_reach = [rule for rule in policy.rules if rule.parts and missed.issuperset(rule.parts)]
    named = dict.fromkeys(pattern for rule in out_of_reach for pattern in rule.parts)
    left_out = dict.fromkeys(pattern[1:] for rule in policy.rules for pattern in rule.within if pattern.startswith("!"))
    of_parts = [_of_part(pattern, parts) for pattern in {**named, **left_out} if pattern in missed]
    of_rules = [_of_rule(rule, ran, modules) for rule in unused(policy.rules, ran) if rule not in out_of_reach]
    never = [name for name in (*policy.exact_in, *policy.only_in) if name not in called]
    of_functions = [
        f"the function {name} that the policy names was not called by that name: who imports it by name, before the"
        " simulation is entered, has the plain one"
        for name in never
    ]
    of_sums = [*_of_contractions(policy, ran), *_of_accumulators(ran)]
    kinds = {"complex": "of complex numbers", "sparse": "that are sparse tensors"}
    of_unrounded = [
        f"operands {words} are not rounded, which the policy has rules about: in {_some(names)}"
        for what, words in kinds.items()
        if (names := [plan.name for plan in ran if plan.outcome.unrounded[what]])
    ]
    of_operands = [*_of_weights(ran), *of_unrounded]
    return [*of_parts, *of_rules, *of_functions, *of_sums, *of_operands, *_of_islands(ran)]


def _of_rule(rule: Rule, ran: list[OperationPlan], there: Sequence[str]) -> str:
    found = []
    idle = [path for path in there if rule.module != ("*",) and rule.matches_module(path)]
    if idle:
        found.append(
            f"there is a module {idle[0]}, and no operation ran in its forward: what its other methods compute belongs"
            " to no module; exact_in and only_in of a policy name functions"
        )
    if rule.operation != ("*",):
        found.append(f"operations that ran: {_some(plan.name for plan in ran)}")
    if rule.module != ("*",):
        modules = _some(path for plan in ran for path in _around(split(plan.module)[1]))
        found.append(
            f"modules that ran: {modules or 'none'} (named from the outermost module that was called;"
            " simulate(..., root=network) names them from the network)"
        )
    if rule.parts:
        within = _some(name for name in (split(plan.module)[0] for plan in ran) if name)
        found.append(f"parts of the program that operations ran in: {within or 'none'}")
    first, *others = rule.operation
    about = str(
        replace(rule, operation=(f"{first} and {len(others)} others",)) if len(others) > _MOST_OF_RULE else rule
    )
    return f"the rule ({about}) of the policy matched nothing that ran; {'; '.join(found)}"


def _of_part(pattern: str, parts: Parts) -> str:
    """Returns the complaint about a rule for functions and blocks that the program never entered."""
    near = suggestion(pattern.rpartition(":")[2], {*parts.functions, *parts.begun})
    return (
        f"the policy has rules within {pattern}{near}, and inside of the simulation no function with this qualified"
        " name was called, and no block roundoff.part has it; parts that the program was in:"
        f" {_some(parts.begun) or 'none'}"
    )


def _around(module: str) -> list[str]:
    """The module of this path, and those around it."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _of_contractions(policy: Policy, ran: list[OperationPlan]) -> list[str]:
    about = [rule for rule in policy.rules if rule.operation != ("*",) and any(map(rule.matches_operation, _NAMES))]
    missed = [plan.name for plan in unreached_products(policy, ran)]
    unnamed = [
        plan.name
        for plan in ran
        if is_contraction(plan.name) and about and _ran_itself(plan) and not _is_named(plan.name, about)
    ]
    in_carrier = [
        plan
        for plan in ran
        if plan.outcome.unaccumulated and (plan.outcome.rounded if plan.rounds else policy.format == FP32)
    ]
    summed = [plan.name for plan in in_carrier if plan.arithmetic.accumulate is not None]
    at_once = [plan.name for plan in in_carrier if plan.arithmetic.accumulate is None]
    texts = []
    if unnamed:
        texts.append(
            f"the policy has rules about matrix products or convolutions, and none that names {_some(unnamed)}, which"
            " ran too; roundoff.simulate.aten.tables.CONTRACTIONS names them all"
        )
    if missed:
        texts.append(
            f"no rule about products reaches {_some(missed)}, which ran too: operands and sums stayed in the carrier;"
            " dense tensors have products that rules reach"
        )
    if summed:
        texts.append(
            f"the accumulator of the policy does not reach {_some(summed)}: sums were taken in the carrier"
            " (granularity: primitive makes losses, norms and softmax of sums that it reaches)"
        )
    if at_once:
        texts.append(
            f"granularity: primitive has no formula for {_some(at_once)}: each call was computed in the carrier, and"
            " rounded once"
        )
    return texts


def unreached_products(policy: Policy, ran: Iterable[OperationPlan]) -> list[OperationPlan]:
    """The products that a policy rounds neither as its rules about products say, nor because a rule names them."""
    about = policy.tells_products_apart or any(_is_named(name, policy.rules) for name in _NAMES)
    others = [plan for plan in ran if about and is_other_product(plan.name) and _ran_itself(plan)]
    return [plan for plan in others if not _is_named(plan.name, policy.rules)]


def _ran_itself(plan: OperationPlan) -> bool:
    return plan.outcome.calls > plan.outcome.taken_apart


def _is_named(name: str, rules: Iterable[Rule]) -> bool:
    return any(rule.operation != ("*",) and rule.matches_operation(name) for rule in rules)


def _of_accumulators(ran: list[OperationPlan]) -> list[str]:
    otherwise = {
        str(plan.arithmetic.rounding)
        for plan in ran
        if plan.outcome.accumulated
        and plan.rounds
        and plan.rounds_sums
        and plan.arithmetic.rounding != Rounding.NEAREST_EVEN
    }
    if not otherwise:
        return []
    text = (
        f"rounding {_some(otherwise)} is about results: an accumulator rounds its sums to nearest-even, whatever the"
        " policy says; accumulate: quire rounds nothing but results"
    )
    return [text]


def _of_weights(ran: list[OperationPlan]) -> list[str]:
    about = [plan for plan in ran if any(Role.WEIGHTS in rule.role for rule in plan.arithmetic.of_operands)]
    products = [plan for plan in about if is_contraction(plan.name) and _ran_itself(plan)]
    reached = any(role == Role.WEIGHTS for plan in products for _, role, _ in plan.outcome.seen)
    missed = [plan for plan in products if plan.outcome.missed] if reached else products
    if not missed:
        return []
    where = _some(f"{plan.name} ({plan.module or 'outside of modules'})" for plan in missed)
    text = (
        f"rules about weights met {'no weight' if reached else 'none'} in {where}: a weight is a parameter or a"
        " persistent buffer of a module that was called, or a leaf that requires a gradient, or made of such alone"
    )
    return [text]


def _of_islands(ran: list[OperationPlan]) -> list[str]:
    if not any(plan.is_island for plan in ran) or any(plan.rounds and plan.outcome.rounded for plan in ran):
        return []
    text = (
        "the policy leaves alone what the program computes in float32 (islands: exact), and no tensor was float16 or"
        " bfloat16, so nothing was simulated: make some (model.half(), torch.autocast), or leave islands out"
    )
    return [text]


_NAMES = [name for name in CONTRACTIONS if "*" not in name] + ["_scaled_dot_product_flash_attention_for_cpu"]


def _some(names: Iterable[str]) -> str:
    found = sorted(set(names))
    return ", ".join(found[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")


@final
class Float64Notice:
    """Finds out whether a program computes in float64: by PyTorch's default dtype, or the first module with parameters.

    A simulation in fp32 changes no bit, whatever the dtypes, and sees no operation. So it does not notice another
    float64 program.

    Args:
        simulation: Simulation in fp32.
    """

    def __init__(self, simulation: object) -> None:
        self._simulation = simulation
        self._hook: RemovableHandle | None = None
        self._knows = False

    def enter(self) -> None:
        """The simulation is entered."""
        if self._knows:
            return
        if torch.get_default_dtype() is torch.float64:
            self._find(torch.float64)
        elif self._hook is None:
            self._hook = register_module_forward_pre_hook(self._look)

    def leave(self) -> None:
        """The simulation is left."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _look(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        values = (*module.parameters(recurse=False), *args)
        dtypes = [x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if dtypes and innermost() is self._simulation:
            self.leave()
            self._find(dtypes[0])

    def _find(self, dtype: torch.dtype) -> None:
        self._knows = True
        if dtype is torch.float64:
            text = (
                "simulate('fp32') runs a program as it is, and this one computes in float64: no result is rounded to"
                " fp32; run it in float32 for that"
            )
            warnings.warn(text, SimulationWarning, stacklevel=5)
