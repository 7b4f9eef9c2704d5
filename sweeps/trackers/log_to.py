"""The section ``log_to`` of a sweep file: the tracker of the sweep."""

from __future__ import annotations

from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, model_validator


@final
class LogTo(BaseModel):
    """The tracker of a sweep. No run depends on it.

    Attributes:
        name: the name of the tracker.
        project: the project of Weights & Biases, or the experiment of MLflow; empty: the sweep's name.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Literal["wandb", "mlflow"]
    project: Annotated[str, Field(max_length=120)] = ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"name": given}
        if isinstance(given, dict) and given.get("name") == "tensorboard":
            raise ValueError(
                "each run has a log for TensorBoard in any case: leave it out, and see"
                " `tensorboard --logdir` of the sweep's folder"
            )
        return given
