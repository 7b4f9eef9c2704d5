"""Recipes of training in low precision: the formats that rules round the operands of each product to.

FP8 is after torchao's Float8LinearConfig, and block-wise after DeepSeek-V3 (2024, Section 3.3.2); MX after its MXFP8
training, each operand in blocks along the contracted axis; NVFP4 after NVIDIA, "Pretraining Large Language
Models with NVFP4" (2025). INT8 is "W8A8" of inference engines such as vLLM: Dettmers et al., "LLM.int8()" (2022),
Section 2.1 (vector-wise quantization), without its outliers.
"""

from __future__ import annotations

from types import MappingProxyType

from ...formats import Format
from ..aten.tables import CONTRACTIONS
from .rules import MULTIPLIED_ROLES, Product, Role, Rule

_ALL = tuple(Product)
_FORWARD = (Role.ACTIVATIONS, Role.WEIGHTS)
_E4M3_ROW = "fp8_e4m3_row_pow2"
_HADAMARD = 16


def _rule(role: Role | tuple[Role, ...], product: Product | tuple[Product, ...], format: str) -> Rule:
    return Rule(CONTRACTIONS, role=role, product=product, format=format)


def _blockwise(scales: str) -> tuple[Rule, ...]:
    return (
        _rule((Role.ACTIVATIONS, Role.GRADIENTS), _ALL, f"fp8_e4m3_b128{scales}"),
        _rule(Role.WEIGHTS, _ALL, f"fp8_e4m3_b128{scales}_square"),
    )


RECIPES = MappingProxyType(
    {
        # A scale for each tensor: E4M3 for activations and weights, E5M2 for gradients.
        "fp8-tensorwise": (
            _rule(_FORWARD, _ALL, "fp8_e4m3_tensor"),
            _rule(Role.GRADIENTS, _ALL, "fp8_e5m2_tensor"),
        ),
        # A power of two for each row, along the axis that the product sums over: E4M3 for all three.
        "fp8-rowwise": (_rule((*_FORWARD, Role.GRADIENTS), _ALL, _E4M3_ROW),),
        # fp8-rowwise with the weight's gradient in high precision, and one scale for the weight in the backward pass.
        "fp8-rowwise-with-gw-hp": (
            _rule(_FORWARD, Product.OUTPUT, _E4M3_ROW),
            _rule(Role.GRADIENTS, Product.GRAD_INPUT, _E4M3_ROW),
            _rule(Role.WEIGHTS, Product.GRAD_INPUT, "fp8_e4m3_tensor_pow2"),
        ),
        # A scale for each square of 128 by 128 of weights; for the other operand, each 128 neighbours along the axis
        # that the product sums over.
        "fp8-blockwise": _blockwise(""),
        "fp8-blockwise-pow2": _blockwise("_pow2"),
        # A scale for each output channel of the weight and each token, only in the forward pass.
        "int8-rowwise": (_rule(_FORWARD, Product.OUTPUT, "int8_row"),),
        # Squares of weights, so that both passes see the same; gradients stochastically; Hadamard transforms before the
        # product that gives the gradient of the weight.
        "nvfp4": (
            _rule(Role.WEIGHTS, _ALL, "nvfp4_square"),
            _rule(Role.ACTIVATIONS, Product.OUTPUT, "nvfp4"),
            Rule(
                CONTRACTIONS, role=Role.GRADIENTS, product=Product.GRAD_INPUT, format="nvfp4", rounding="stochastic"
            ),
            Rule(
                CONTRACTIONS, role=(Role.ACTIVATIONS, Role.GRADIENTS), product=Product.GRAD_WEIGHT, format="nvfp4",
                hadamard=_HADAMARD,
            ),
            Rule(
                CONTRACTIONS, role=Role.GRADIENTS, product=Product.GRAD_WEIGHT, format="nvfp4", rounding="stochastic",
                hadamard=_HADAMARD,
            ),
        ),
    }
)  # fmt: skip
"""The rules of each recipe, by its name."""


def mx(format: Format | str) -> tuple[Rule, ...]:
    """Returns the rules that round every operand of a product with a weight to a format with scales."""
    return (Rule(CONTRACTIONS, role=MULTIPLIED_ROLES, product=_ALL, format=format),)
