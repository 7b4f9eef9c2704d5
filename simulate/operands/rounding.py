"""Rounds copies of the operands of an operation before it runs; the program's own memory stays unrounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from ...formats import Format, round
from ..aten.contracted_axes import (
    LAST,
    Contraction,
    contractions,
    has_blocks,
    is_multiplied,
    is_operand,
    of_forward,
    round_along,
)
from ..aten.outputs import writes_of
from ..aten.schemas import argument_names, number_names
from ..aten.tables import BLANK
from ..aten.tensor_cores import product as narrow_product
from ..aten.tensor_cores import takes
from ..marks.table import Mark, Marks
from ..policy.carriers import carrier_of
from ..policy.policy import Policy
from ..policy.rules import MULTIPLIED_ROLES, OPERAND_ROLES, Backward, Product, Role, Rule
from .roles import NOTHING, KnownOperands, MultipliedOperands, PlannedOperation, is_backward, is_number
from .separate_products import separate_products
from .weights import Weights

Compute = Callable[..., Any]
Rounder = Callable[..., torch.Tensor]
_GOLDEN = 2654435761  # 2^32 over the golden ratio; its multiples hash integers (Knuth, vol. 3, 6.4)


class _Rounding(NamedTuple):
    """The rounding of an operand."""

    format: Format
    mode: dict[str, Any]
    """The argument ``rounding``, if the mode is not the plan's."""
    as_forward: bool = False
    """Whether the rounding has the blocks of the forward product."""
    hadamard: int | None = None
    """The size of a Hadamard transform before the rounding; None without one."""


class Operands:
    """Rounds operands, and remembers which memory holds weights and values computed inside.

    Args:
        policy: the policy of the simulation.
        marks: the table of marks of the simulation.

    Attributes:
        follows: whether it must see all operations and modules, since a rule is about operands of some role.
    """

    def __init__(self, policy: Policy, marks: Marks) -> None:
        roles = {role for rule in policy.rules for role in rule.role}
        self.follows = not roles.isdisjoint(OPERAND_ROLES)
        self._tracks_inputs = Role.INPUTS in roles
        self._marks = marks
        self._weights = Weights(marks)
        self._multiplied = MultipliedOperands(self._weights.certainty, marks)
        self.note_module = self._weights.note_module

    def note(self, plan: PlannedOperation, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Remembers the results of an operation, with its arguments as the program gave them."""
        assert plan.operation is not None
        if not is_backward(plan.role) and plan.role != Role.OPTIMIZER:
            self._weights.note(plan.operation, args, kwargs, result)
        # Remembers the memory of computed values, which holds no inputs. A view of an input is an input.
        if plan.operation.overloadpacket in BLANK:
            return
        computed = [args[i] if i < len(args) else kwargs.get(name) for i, name in writes_of(plan.operation)]
        # A returned list (operations on lists) has a single entry in `viewing`.
        results = result if isinstance(result, (tuple, list)) and len(plan.outputs.viewing) != 1 else (result,)
        viewing = plan.outputs.viewing or (False,) * len(results)
        computed += [x for x, is_view in zip(results, viewing, strict=False) if not is_view]
        for x in tree_leaves(computed):
            if isinstance(x, torch.Tensor) and x.layout is torch.strided:
                self._marks.add(x, Mark.INSIDE)

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Treats a copy in another dtype as a weight, or as a value computed inside, like its original."""
        if source.layout is not torch.strided or target.layout is not torch.strided:
            return
        self._weights.carried(source, target)
        if self._marks.of(source) & Mark.INSIDE:
            self._marks.add(target, Mark.INSIDE)

    def ready(
        self, plan: PlannedOperation, args: Sequence[Any], kwargs: Mapping[str, Any], round_operand: Rounder,
        formats: dict[tuple[str, str], Format] | None = None,
    ) -> tuple[Sequence[Any], Mapping[str, Any], Callable[[Compute], Any] | None]:  # fmt: skip
        """Rounds the operands of an operation before it runs.

        Args:
            plan: plan of the operation.
            args: its arguments.
            kwargs: its arguments by name.
            round_operand: rounds a tensor to a format, and in a mode if it is not the plan's.
            formats: filled with the format of each rounded operand, by argument and product; None if not needed.

        Returns:
            The arguments with operands rounded as the policy says, except for tensors it writes to, and None. For an
            operation with products that round an operand in different ways: the unchanged arguments, and a function
            of the kernel that computes product by product, each with operands rounded for it. For a matrix product
            that tensor cores compute: the rounded arguments, and a function that computes it there.
        """
        assert plan.operation is not None
        named = dict(zip(argument_names(plan.operation), args, strict=False)) | dict(kwargs)
        facts = self._multiplied.classify(plan, named) if plan.multiplies else NOTHING
        plan.outcome.missed += plan.multiplies and self._misses_weights(plan, named, facts)
        # The products of one operation may need an operand rounded in different ways.
        may_differ = _has_blocks(plan) or any(rule.product for rule in plan.arithmetic.of_operands)
        products = separate_products(plan.operation) if may_differ else None
        if products is None:
            new = self._round_operands(plan, args, kwargs, facts, round_operand, formats)
            return *new, self._narrow_product(plan, named, facts, *new) if plan.narrows else None

        def see(name: str, x: torch.Tensor, contraction: Contraction) -> torch.Tensor:
            # The gradient of a weight sums over batch and positions, all axes but one.
            product = Product.GRAD_WEIGHT if facts.product and contraction.over_all_others else facts.product
            return self._round_for_product(
                plan, name, named | {name: x}, contraction, facts._replace(product=product), round_operand, formats
            )

        def separate(compute: Compute) -> Any:
            result = products(compute, see, *args, **kwargs)
            if result is not NotImplemented:
                return result
            # These arguments have no formula by product: all products get the operands of one rounding.
            return compute(*self._round_operands(plan, args, kwargs, facts, round_operand, formats))

        return args, kwargs, separate

    def _narrow_product(
        self, plan: PlannedOperation, named: Mapping[str, Any], facts: KnownOperands, args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Callable[[Compute], torch.Tensor] | None:  # fmt: skip
        """Returns the function for a product of rounded operands that a narrow dtype holds; None if not allowed."""
        assert plan.operation is not None
        if not takes(plan.operation, args, kwargs):
            return None
        multiplied = argument_names(plan.operation)[len(args) - 2 : len(args)]
        roundings = [self._roundings(plan, named[name], facts.roles.get(name), facts.product) for name in multiplied]
        carrier = carrier_of(*(steps[-1].format if steps else None for steps in roundings))  # None: unrounded operands
        return None if carrier is None else lambda _: narrow_product(args, carrier)

    def _round_operands(
        self, plan: PlannedOperation, args: Sequence[Any], kwargs: Mapping[str, Any], facts: KnownOperands,
        round_operand: Rounder, formats: dict[tuple[str, str], Format] | None,
    ) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
        """Returns the arguments with all operands rounded that the operation does not write to."""
        assert plan.operation is not None
        written = {name for _, name in plan.outputs.written}
        names = argument_names(plan.operation)
        # Python numbers count as operands only with `scalars: rounded`.
        rounds_scalars = plan.arithmetic.scalars == "rounded" and plan.rounds
        numbers = set(number_names(plan.operation)) if rounds_scalars else set()
        named = dict(zip(names, args, strict=False)) | dict(kwargs)
        has_rotation = _has_rotation(plan, facts)
        by_argument = contractions(plan.name, named) if has_rotation or _has_blocks(plan) else {}
        facts = facts._replace(rotates=has_rotation and all(axis.is_plain for axis in by_argument.values()))

        def prepare(name: str, value: Any) -> Any:
            if name in written:
                return value
            if isinstance(value, torch.Tensor):
                if not is_operand(plan.name, name):
                    return value
                return self._round_for_product(
                    plan, name, named | {name: value}, by_argument.get(name, LAST), facts, round_operand, formats
                )
            if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
                return [prepare(name, item) for item in value]
            if isinstance(value, float) and name in numbers:
                return float(round(torch.tensor(value, dtype=torch.float64, device="cpu"), plan.arithmetic.format))
            return value

        return (
            [prepare(name, value) for name, value in zip(names, args, strict=False)],
            {name: prepare(name, value) for name, value in kwargs.items()},
        )

    def _round_for_product(
        self, plan: PlannedOperation, name: str, named: Mapping[str, Any], contraction: Contraction,
        facts: KnownOperands, round_operand: Rounder, formats: dict[tuple[str, str], Format] | None,
    ) -> torch.Tensor:  # fmt: skip
        """Returns an operand rounded for one product of an operation.

        Args:
            plan: plan of the operation.
            name: name of the argument.
            named: the arguments by name.
            contraction: the axis along which the product contracts the operand.
            facts: known facts about the operands, and about the product that sees them.
            round_operand: as for :meth:`ready`.
            formats: as for :meth:`ready`.
        """
        x: torch.Tensor = named[name]
        if not is_number(x):
            kind = "complex" if x.is_complex() else "sparse" if x.layout is not torch.strided else ""
            rules = plan.arithmetic.of_operands
            has_rules = any(plan.multiplies or not set(rule.role).issubset(MULTIPLIED_ROLES) for rule in rules)
            if kind and (has_rules or plan.arithmetic.operands):
                plan.outcome.unrounded[kind] += 1
            return x
        for fmt, mode, as_forward, hadamard in self._roundings(plan, x, facts.roles.get(name), facts.product):
            plan.outcome.seen[facts.product or "", facts.roles.get(name) or name, str(fmt)] += 1
            if formats is not None:
                formats[name, facts.product or ""] = fmt
            blocks_along = of_forward(plan.name, name, contraction, named) if as_forward else contraction
            if hadamard and facts.rotates:  # of both operands, so that the product stays the same
                x = rotated(x, contraction.axis, hadamard)
            x = round_along(x, fmt, blocks_along, partial(round_operand, **mode))
        return x

    def _misses_weights(self, plan: PlannedOperation, named: Mapping[str, Any], facts: KnownOperands) -> bool:
        """Whether a rule is about the weight of a product without a known weight, but with unknown operands."""
        has_rules = any(Role.WEIGHTS in rule.role for rule in plan.arithmetic.of_operands)
        if not has_rules or facts.product or is_backward(plan.role):
            return False
        multiplied = [x for name, x in named.items() if isinstance(x, torch.Tensor) and is_multiplied(plan.name, name)]
        return any(not self._marks.of(x) & (Mark.INSIDE | Mark.DATA) for x in multiplied)

    def _roundings(
        self, plan: PlannedOperation, x: torch.Tensor, role: Role | None, product: Product | None
    ) -> list[_Rounding]:
        """Returns the roundings of the operand ``x``, in order."""
        rules = plan.arithmetic.of_operands
        # First the rule about where the operand comes from, then about its role, then `operands` of the operation
        applicable = (_last_rule(rules, self._origin(x), None), _last_rule(rules, role, product)) if rules else ()
        roundings = []
        backward = is_backward(plan.role)
        for rule in applicable:
            if rule is not None and not (backward and rule.backward == Backward.UNROUNDED):
                assert isinstance(rule.format, Format)
                mode = {} if rule.rounding is None else {"rounding": rule.rounding}
                as_forward = backward and rule.backward == Backward.ROUNDED
                roundings.append(_Rounding(rule.format, mode, as_forward, rule.hadamard))
        if plan.arithmetic.operands is not None:
            roundings.append(_Rounding(plan.arithmetic.operands, {}))
        return roundings

    def _origin(self, x: torch.Tensor) -> Role | None:
        if self._weights.is_parameter(x):
            return Role.PARAMETERS
        return Role.INPUTS if self._tracks_inputs and not self._marks.of(x) & Mark.INSIDE else None


def _has_rotation(plan: PlannedOperation, facts: KnownOperands) -> bool:
    """Whether the rules about both operands of a product ask for a Hadamard transform of the same size."""
    if len(facts.roles) < 2:
        return False
    rules = plan.arithmetic.of_operands
    last_rules = [_last_rule(rules, role, facts.product) for role in facts.roles.values()]
    sizes = {rule and rule.hadamard for rule in last_rules}
    return len(sizes) == 1 and None not in sizes and not plan.name.startswith("convolution")


def _last_rule(rules: Sequence[Rule], role: Role | None, product: Product | None) -> Rule | None:
    """Returns the last of the rules that is about operands of this role in this product."""
    matching = (r for r in reversed(rules) if role in r.role and (r.product is None or product in r.product))
    return next(matching, None)


def _has_blocks(plan: PlannedOperation) -> bool:
    arithmetic = plan.arithmetic
    formats = [rule.format for rule in arithmetic.of_operands if isinstance(rule.format, Format)]
    return any(map(has_blocks, (arithmetic.operands, *formats)))


def rotated(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Multiplies each ``size`` neighbours along ``axis`` by an orthogonal matrix: random signs, Hadamard's matrix.

        y = x diag(s) H / sqrt(size)

    The product of two matrices that were both rotated along the axis that it sums over is the product of the two, but
    for rounding: H H^T = size I. The signs s are the same in every call, as in NVIDIA's recipe ("Pretraining
    Large Language Models with NVFP4", 2025, appendix). Sums are taken in the dtype of ``x``. A NaN or an infinity makes
    its neighbours NaN or infinite.

    Args:
        x: float32 or float64, any shape of at least one axis.
        axis: the contracted axis; the remainder after the last full group of ``size`` is unchanged.
        size: a power of two.

    Returns:
        A new tensor of the shape of ``x``.
    """
    rows = x.movedim(axis, -1)
    length = rows.shape[-1] // size * size
    groups = rows[..., :length].reshape(*rows.shape[:-1], length // size, size) @ _matrix(size, x.dtype, x.device)
    result: torch.Tensor = torch.cat([groups.flatten(-2), rows[..., length:]], -1).movedim(-1, axis)
    return result


@cache
def _matrix(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    hadamard = torch.ones(1, 1, dtype=torch.float64)  # doubled by Sylvester's construction
    while len(hadamard) < size:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    signs = torch.tensor([1.0 - 2.0 * ((number * _GOLDEN >> 31) & 1) for number in range(size)], dtype=torch.float64)
    matrix: torch.Tensor = signs[:, None] * hadamard / size**0.5
    return matrix.to(dtype).to(device)
