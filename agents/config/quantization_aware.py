"""The key for quantization-aware training: when products begin to be quantized, and how gradients pass through."""

from __future__ import annotations

from typing import Annotated, Any, Literal, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from .storage import canonical_format

OPERANDS = ("both", "forward")


def _operands(value: Any) -> Any:
    if value not in OPERANDS:
        raise ValueError(f"operands must be {' or '.join(OPERANDS)}, got {value!r}")
    return value


def _fraction_of_steps(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"after is a part of the run's steps, from 0 to 1, got {value!r}")
    return value


@final
class QuantizationAware(BaseModel):
    """Networks that compute products of operands rounded to ``format``, from a certain step of the run on.

    The learned weights are not rounded; gradients pass straight through the rounding.

    Source:
        Lam et al., "ActorQ: Quantization for Actor-Learner Distributed Reinforcement Learning", Appendix B.2, and
        ``quant_delay`` of Table 5. The authors' code rewrites the same networks: actors, critics, and their slow
        copies (``experimental_create_training_graph`` of TensorFlow 1).
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Annotated[str, AfterValidator(canonical_format)] = Field(
        description="The format of weights and activations in the forward pass; any format."
    )
    operands: Annotated[Literal["both", "forward"], BeforeValidator(_operands)] = Field(
        default="both",
        description="both: the backward products also see the rounded operands, as with the fake quantizers of"
        " libraries. forward: they see them unrounded.",
    )
    after: Annotated[float, Field(ge=0, le=1), BeforeValidator(_fraction_of_steps)] = Field(
        default=0.5,
        description="The part of the steps after which it begins; 1: only the last evaluation is quantized.",
    )


def read_qat(value: Any) -> Any:
    """Returns a value of the key; raises a descriptive ValueError for anything else."""
    if value is None or isinstance(value, QuantizationAware):
        return value
    if not isinstance(value, dict) or "format" not in value:
        raise ValueError(f"must be a mapping with a format, such as {{format: int8, after: 0.5}}, got {value!r}")
    for name in value:
        if name not in QuantizationAware.model_fields:
            raise ValueError(f"has no key {name!r}; allowed are {', '.join(QuantizationAware.model_fields)}")
    return value
