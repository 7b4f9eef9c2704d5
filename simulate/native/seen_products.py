"""Describes to C++ the operands of products that are rounded by role, or in blocks along the contracted axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...formats import Format, Rounding
from ..aten.contracted_axes import fixed_contractions, has_blocks, is_multiplied, is_operand
from ..aten.schemas import argument_names, schema_of
from .library import PLACES_BY_ROLE, LoopAddresses, OperandRounding, SeenProducts
from .loops import CARRIERS, Loops, PlanOfOperation
from .stand_ins import meaning_of

ROLES = ("weights", "activations", "gradients")
"""Roles of operands, by their numbers in the C++."""
PRODUCTS = ("output", "grad-input", "grad-weight", None)
"""Products, by their numbers in the C++; the last is a product without a weight."""
_MOST_ARGUMENTS = 11
_CONVOLUTIONS = ("convolution", "convolution_backward")
_SINGLE, _TWOFOLD = 1, 2  # bits for float32 and float64

Counted = tuple[int, tuple[str, str, str]]
"""A place where C++ counts rounded operands, with their product, role (or argument) and format."""


def seen_products(plan: PlanOfOperation, loops: Loops) -> tuple[SeenProducts, list[Counted]] | None:
    """Returns the C++ description of operands, and where it counts them; None if C++ cannot round them this way."""
    arithmetic = plan.arithmetic
    if not plan.prepares or (arithmetic.scalars == "rounded" and plan.rounds) or plan.outputs.written:
        return None
    if not plan.multiplies and (arithmetic.of_operands or not has_blocks(arithmetic.operands)):
        return None
    convolves = plan.name in _CONVOLUTIONS
    columns = set[str]() if convolves else fixed_contractions(plan.name)
    rules = arithmetic.of_operands
    has_other_roles = any(role not in ROLES for rule in rules for role in rule.role)
    rotates = not convolves and any(rule.hadamard for rule in rules)
    if columns is None or has_other_roles or rotates or meaning_of(plan.kernel) is not None:
        return None
    assert plan.operation is not None
    arguments = schema_of(plan.operation).arguments
    names = argument_names(plan.operation)
    takes_lists = any("List" in str(argument.type) and "Tensor" in str(argument.type) for argument in arguments)
    if len(names) > _MOST_ARGUMENTS or takes_lists:
        return None
    return _RoundingTable(plan, loops).described(names, columns)


class _RoundingTable:
    """The roundings of a plan's operands, each once, and by role and product."""

    def __init__(self, plan: PlanOfOperation, loops: Loops) -> None:
        self._plan, self._loops = plan, loops
        self._roundings: dict[tuple[Format, Rounding, bool], OperandRounding | None] = {}

    def described(self, names: Sequence[str], columns: set[str]) -> tuple[SeenProducts, list[Counted]] | None:
        """Returns the C++ description of the operands, and where it counts them."""
        plan, rules = self._plan, self._plan.arithmetic.of_operands
        products, counted = SeenProducts(), list[Counted]()
        products.tells = plan.multiplies
        products.in_backward = plan.role == "backward"
        products.about_weights = any("weights" in rule.role for rule in rules)
        products.matrix = bool(columns)
        products.operands = sum(1 << i for i, name in enumerate(names) if is_operand(plan.name, name))
        products.multiplied = sum(1 << i for i, name in enumerate(names) if is_multiplied(plan.name, name))
        products.columns = sum(1 << i for i, name in enumerate(names) if name in columns)
        products.convolves = 1 + _CONVOLUTIONS.index(plan.name) if plan.name in _CONVOLUTIONS else 0
        formats = (plan.arithmetic.operands, *(rule.format for rule in rules))
        differs_by_product = any(map(has_blocks, formats)) or any(rule.product for rule in rules)
        products.separates = products.convolves > 1 and differs_by_product
        for place in range(PLACES_BY_ROLE):
            backward, rest = divmod(place, len(ROLES) * len(PRODUCTS))
            role, product = ROLES[rest // len(PRODUCTS)], PRODUCTS[rest % len(PRODUCTS)]
            # The rule that an operand is rounded by, as `operands/rounding.py` finds it
            about_role = [rule for rule in rules if role in rule.role]
            matching = [rule for rule in about_role if rule.product is None or product in rule.product]
            rule = matching[-1] if matching else None
            products.table[place] = -1
            if rule is not None and not (backward and rule.backward == "unrounded"):
                mode = plan.arithmetic.rounding if rule.rounding is None else Rounding(rule.rounding)
                as_forward = backward == 1 and rule.backward == "rounded"
                products.table[place] = self._place(rule.format, mode, as_forward=as_forward)
                counted.append((place, (product or "", role, str(rule.format))))
        operands = plan.arithmetic.operands
        products.always = -1 if operands is None else self._place(operands, plan.arithmetic.rounding, as_forward=False)
        if operands is not None:
            counted += _counted_always(names, str(operands))
        roundings = [rounding for rounding in self._roundings.values() if rounding is not None]
        if not roundings or len(roundings) < len(self._roundings):
            return None
        products.roundings = (OperandRounding * len(roundings))(*roundings)
        return products, counted

    def _place(self, fmt: Format, mode: Rounding, *, as_forward: bool) -> int:
        key = fmt, mode, as_forward
        if key not in self._roundings:
            self._roundings[key] = self._describe_rounding(fmt, mode, as_forward=as_forward)
        return list(self._roundings).index(key)

    def _describe_rounding(self, fmt: Format, mode: Rounding, *, as_forward: bool) -> OperandRounding | None:
        contiguous, strided = (self._loops.of(fmt, mode, in_place=False, strided=strided) for strided in (False, True))
        passes = _SINGLE * _passes(fmt, torch.float32, mode) + _TWOFOLD * _passes(fmt, torch.float64, mode)
        if not passes and not any(contiguous.values()):
            return None
        loops = [contiguous[dtype] or LoopAddresses() for dtype in CARRIERS]
        loops += [strided[dtype] or LoopAddresses() for dtype in CARRIERS]
        return OperandRounding(*loops, passes, has_blocks(fmt), as_forward)


def _passes(fmt: Format, dtype: torch.dtype, mode: Rounding) -> bool:
    """Whether rounding leaves every value of a carrier unchanged, and draws no random bits."""
    return fmt.native and fmt.carrier == dtype and mode is Rounding.NEAREST_EVEN


def _counted_always(names: Sequence[str], fmt: str) -> list[Counted]:
    """The counts of operands that are rounded whatever they are; see ``counted_always`` in ``products.h``."""
    return [
        (
            PLACES_BY_ROLE + (i * (len(ROLES) + 1) + role) * len(PRODUCTS) + product,
            (PRODUCTS[product] or "", role_name, fmt),
        )
        for i, name in enumerate(names)
        for role, role_name in enumerate((*ROLES, name))
        for product in range(len(PRODUCTS))
    ]
