"""Recipes of training in FP8: what rules round the operands of which product to, after torchao's Float8LinearConfig."""

from __future__ import annotations

from types import MappingProxyType

from ..aten.tables import CONTRACTIONS
from .products import Product
from .rules import Role, Rule

_ALL = tuple(Product)
_FORWARD = (Role.ACTIVATIONS, Role.WEIGHTS)
_E4M3_ROW = "fp8_e4m3_row_pow2"


def _rule(role: Role | tuple[Role, ...], product: Product | tuple[Product, ...], format: str) -> Rule:
    return Rule(CONTRACTIONS, role=role, product=product, format=format)


RECIPES = MappingProxyType(
    {
        # A scale for each tensor: E4M3 for activations and weights, E5M2 for gradients.
        "fp8-tensorwise": (
            _rule(_FORWARD, _ALL, "fp8_e4m3_tensor"),
            _rule(Role.GRADIENTS, _ALL, "fp8_e5m2_tensor"),
        ),
        # A power of two for each row, along what the product sums over: E4M3 for all three.
        "fp8-rowwise": (_rule((*_FORWARD, Role.GRADIENTS), _ALL, _E4M3_ROW),),
        # The same, but the gradient of the weight in high precision, and one scale for the weight in the backward pass.
        "fp8-rowwise-with-gw-hp": (
            _rule(_FORWARD, Product.OUTPUT, _E4M3_ROW),
            _rule(Role.GRADIENTS, Product.GRAD_INPUT, _E4M3_ROW),
            _rule(Role.WEIGHTS, Product.GRAD_INPUT, "fp8_e4m3_tensor_pow2"),
        ),
    }
)
"""By name, the rules that make a recipe."""
