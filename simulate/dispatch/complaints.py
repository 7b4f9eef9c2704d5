"""Warnings of a simulation: rules without a match, products without a rule, fp32 in a float64 program."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
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

_MOST_NAMED = 30  # names in a message
_MOST_RULE_OPERATIONS = 5  # operations; a recipe's rule about products names some thirty


class PolicyWarning(SimulationWarning):
    """A part of a policy had no effect: a rule matched nothing, or rules or accumulators missed an operation."""


def unused(rules: Iterable[Rule], plans: Iterable[OperationPlan]) -> list[Rule]:
    """Returns the rules that name an operation, module or function, and matched nothing, except for optimizer steps."""
    used = {rule for plan in plans for rule in plan.rules}
    return [
        rule
        for rule in rules  # a rule for all operations at all places could only miss if nothing ran
        if rule not in used
        and (rule.operation not in (("*",), (OPTIMIZER_STEP,)) or rule.module != ("*",) or rule.parts)
    ]


def complaints(
    policy: Policy, plans: Iterable[OperationPlan], modules: Sequence[str] = (), called: Collection[str] = (),
    parts: Parts = NO_PARTS,
) -> list[str]:  # fmt: skip
    """Returns the warnings about a policy after a program ran, each in a sentence.

    Args:
        policy: the policy.
        plans: the plans of all operations that ran.
        modules: the paths of the modules that existed.
        called: the functions named by the policy that were called.
        parts: the parts that the program was in.
    """
    ran = list(plans)
    # Functions and blocks that the program never entered, each once; rules about them get no second complaint.
    missed = {pattern for pattern in policy.within if not any(fits(name, [pattern]) for name in parts.entered)}
    out_of_reach = [rule for rule in policy.rules if rule.parts and missed.issuperset(rule.parts)]
    unmet = dict.fromkeys(pattern for rule in out_of_reach for pattern in rule.parts)
    left_out = dict.fromkeys(pattern[1:] for rule in policy.rules for pattern in rule.within if pattern.startswith("!"))
    part_complaints = [_part_complaint(pattern, parts) for pattern in {**unmet, **left_out} if pattern in missed]
    unmatched = [rule for rule in unused(policy.rules, ran) if rule not in out_of_reach]
    rule_complaints = [_rule_complaint(rule, ran, modules) for rule in unmatched]
    function_complaints = [
        f"the function {name} that the policy names was not called by that name: code that imported it by name before"
        " the simulation was entered calls the original function"
        for name in (*policy.exact_in, *policy.only_in)
        if name not in called
    ]
    sum_complaints = [*_product_complaints(policy, ran), *_accumulator_complaints(ran)]
    kinds = {"complex": "of complex numbers", "sparse": "that are sparse tensors"}
    unrounded_complaints = [
        f"operands {words} are not rounded, although the policy has rules about them: in {_list(names)}"
        for kind, words in kinds.items()
        if (names := [plan.name for plan in ran if plan.outcome.unrounded[kind]])
    ]
    operand_complaints = [*_weight_complaints(ran), *unrounded_complaints]
    others = [*sum_complaints, *operand_complaints, *_island_complaints(ran)]
    return [*part_complaints, *rule_complaints, *function_complaints, *others]


def _rule_complaint(rule: Rule, ran: list[OperationPlan], existing: Sequence[str]) -> str:
    remarks = []
    idle = [path for path in existing if rule.module != ("*",) and rule.matches_module(path)]
    if idle:
        remarks.append(
            f"there is a module {idle[0]}, but no operation ran in its forward: operations in its other methods belong"
            " to no module; exact_in and only_in of a policy name functions"
        )
    if rule.operation != ("*",):
        remarks.append(f"operations that ran: {_list(plan.name for plan in ran)}")
    if rule.module != ("*",):
        # The path of a module names all that enclose it: "net.body.0" ran in "net" and in "net.body".
        enclosing = (accumulate(split(plan.module)[1].split("."), "{}.{}".format) for plan in ran)
        modules = _list(filter(None, chain.from_iterable(enclosing)))
        remarks.append(
            f"modules that ran: {modules or 'none'} (named from the outermost module that was called;"
            " simulate(..., root=network) names them from the network)"
        )
    if rule.parts:
        within = _list(name for name in (split(plan.module)[0] for plan in ran) if name)
        remarks.append(f"parts of the program that operations ran in: {within or 'none'}")
    first, *other_operations = rule.operation  # a long list would hide the rest of the message
    if len(other_operations) > _MOST_RULE_OPERATIONS:
        rule = replace(rule, operation=(f"{first} and {len(other_operations)} others",))
    return f"the rule ({rule}) of the policy matched nothing that ran; {'; '.join(remarks)}"


def _part_complaint(pattern: str, parts: Parts) -> str:
    """Returns the complaint about a rule for functions and blocks that the program never entered."""
    near = suggestion(pattern.rpartition(":")[2], {*parts.functions, *parts.entered})
    return (
        f"the policy has rules within {pattern}{near}, but no function with this qualified name was called inside the"
        " simulation, and no block roundoff.part has this name; parts that the program was in:"
        f" {_list(parts.entered) or 'none'}"
    )


def _product_complaints(policy: Policy, ran: list[OperationPlan]) -> Iterator[str]:
    # Products that a rule should have named, if other rules name products, and products that no rule can round
    named = [rule for rule in policy.rules if rule.operation != ("*",)]
    product_rules = [rule for rule in named if any(map(rule.matches_operation, _PRODUCT_NAMES))]
    missed = [plan.name for plan in unreached_products(policy, ran)]
    unnamed = [
        plan.name
        for plan in ran
        if is_contraction(plan.name) and product_rules and _ran_itself(plan) and not _is_named(plan.name, product_rules)
    ]
    # Sums and steps inside of kernels, which the accumulator or primitive granularity did not reach
    in_carrier = [
        plan
        for plan in ran
        if plan.outcome.unaccumulated and (plan.outcome.rounded if plan.rounds else policy.format == FP32)
    ]
    summed = [plan.name for plan in in_carrier if plan.arithmetic.accumulate is not None]
    at_once = [plan.name for plan in in_carrier if plan.arithmetic.accumulate is None]
    if unnamed:
        yield (
            f"the policy has rules about matrix products or convolutions, but none names {_list(unnamed)}, which also"
            " ran; roundoff.simulate.aten.tables.CONTRACTIONS names them all"
        )
    if missed:
        yield (
            f"no rule about products reaches {_list(missed)}, which also ran: operands and sums stayed in the carrier;"
            " rules reach the products of dense tensors"
        )
    if summed:
        yield (
            f"the accumulator of the policy does not reach {_list(summed)}: sums were taken in the carrier"
            " (granularity: primitive makes losses, norms and softmax of sums that it reaches)"
        )
    if at_once:
        yield (
            f"granularity: primitive has no formula for {_list(at_once)}: each call was computed in the carrier, and"
            " rounded once"
        )


def unreached_products(policy: Policy, ran: Iterable[OperationPlan]) -> list[OperationPlan]:
    """Returns the plans of other products than contractions, if the policy rounds products and no rule names them."""
    rounds_products = policy.tells_products_apart or any(_is_named(name, policy.rules) for name in _PRODUCT_NAMES)
    other_products = [plan for plan in ran if rounds_products and is_other_product(plan.name) and _ran_itself(plan)]
    return [plan for plan in other_products if not _is_named(plan.name, policy.rules)]


def _ran_itself(plan: OperationPlan) -> bool:
    return plan.outcome.calls > plan.outcome.taken_apart


def _is_named(name: str, rules: Iterable[Rule]) -> bool:
    return any(rule.operation != ("*",) and rule.matches_operation(name) for rule in rules)


def _accumulator_complaints(ran: list[OperationPlan]) -> Iterator[str]:
    modes = {
        str(plan.arithmetic.rounding)
        for plan in ran
        if plan.outcome.accumulated
        and plan.rounds
        and plan.rounds_sums
        and plan.arithmetic.rounding != Rounding.NEAREST_EVEN
    }
    if modes:
        yield (
            f"rounding {_list(modes)} applies to results: an accumulator rounds its sums to nearest-even, whatever the"
            " policy says; accumulate: quire rounds only results"
        )


def _weight_complaints(ran: list[OperationPlan]) -> Iterator[str]:
    plans = [plan for plan in ran if any(Role.WEIGHTS in rule.role for rule in plan.arithmetic.of_operands)]
    products = [plan for plan in plans if is_contraction(plan.name) and _ran_itself(plan)]
    # Where the weights of some products were found, the others may rightly have none, unless they are suspicious.
    reached = any(role == Role.WEIGHTS for plan in products for _, role, _ in plan.outcome.seen)
    missed = [plan for plan in products if plan.outcome.missed] if reached else products
    if missed:
        places = _list(f"{plan.name} ({plan.module or 'outside of modules'})" for plan in missed)
        yield (
            f"rules about weights found {'no weight' if reached else 'none'} in {places}: a weight is a parameter or a"
            " persistent buffer of a module that was called, or a leaf that requires a gradient, or made only of these"
        )


def _island_complaints(ran: list[OperationPlan]) -> Iterator[str]:
    if any(plan.is_island for plan in ran) and not any(plan.rounds and plan.outcome.rounded for plan in ran):
        yield (
            "the policy does not change float32 computations (islands: exact), and no tensor was float16 or bfloat16,"
            " so nothing was simulated: make some (model.half(), torch.autocast), or leave islands out"
        )


_PRODUCT_NAMES = [name for name in CONTRACTIONS if "*" not in name] + ["_scaled_dot_product_flash_attention_for_cpu"]


def _list(names: Iterable[str]) -> str:
    unique = sorted(set(names))
    return ", ".join(unique[:_MOST_NAMED]) + (", ..." if len(unique) > _MOST_NAMED else "")


@final
class Float64Notice:
    """Warns of a float64 program, found by PyTorch's default dtype or by the first module that has float tensors.

    A simulation in fp32 changes no bit, whatever the dtypes, and sees no operation, so that it cannot find other
    float64 programs.

    Args:
        simulation: the simulation in fp32.
    """

    def __init__(self, simulation: object) -> None:
        self._simulation = simulation
        self._hook: RemovableHandle | None = None
        self._is_decided = False

    def enter(self) -> None:
        """Checks the default dtype, and begins to watch modules, when the simulation is entered."""
        if self._is_decided:
            return
        if torch.get_default_dtype() is torch.float64:
            self._decide(torch.float64)
        elif self._hook is None:
            self._hook = register_module_forward_pre_hook(self._on_module_call)

    def leave(self) -> None:
        """Stops watching modules when the simulation is left."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _on_module_call(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        values = (*module.parameters(recurse=False), *args)  # submodules come later, each with its own call
        dtypes = [x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if dtypes and innermost() is self._simulation:
            self.leave()
            self._decide(dtypes[0])

    def _decide(self, dtype: torch.dtype) -> None:
        self._is_decided = True
        if dtype is torch.float64:
            text = (
                "simulate('fp32') runs a program as it is, and this one computes in float64: no result is rounded to"
                " fp32; run it in float32 for that"
            )
            warnings.warn(text, SimulationWarning, stacklevel=5)
