"""The key for quantization-aware training: from when on which products are quantized, and what gradients see of it."""

from __future__ import annotations

from typing import Annotated, Literal, final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _format_of_operands(name: str) -> str:
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds

    return str(Format.parse(name))


@final
class QuantizationAware(BaseModel):
    """Networks whose products are computed of operands rounded to ``format``, from a moment of the run on.

    The weights that are learned stay as they are; gradients pass straight through the rounding.

    Source:
        Krishnan et al., "QuaRL: Quantization for Fast and Environmentally Sustainable Reinforcement Learning", Figure 5
        and Table 5 (``quant_delay``). Its code rewrites the whole graph, as is done here: the networks that act, those
        that value, and their slow copies (``experimental_create_training_graph`` of TensorFlow 1.14).
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Annotated[str, AfterValidator(_format_of_operands)] = Field(
        description="Of weights and activations in the forward pass; any format."
    )
    operands: Literal["both", "forward"] = Field(
        default="both",
        description="`both`: the backward products see the rounded operands, too, as with the fake quantizers of"
        " libraries. `forward`: they see them unrounded.",
    )
    after: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="The part of the steps after which it begins; 1: only the last evaluation is quantized."
    )
