"""A finished run, restored for an evaluation: its config, its result, and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError

from roundoff.files import read_json
from roundoff.runs.folder import RunDirectory, config_in

from ..config.train_config import TrainConfig
from ..errors import RunError
from ..sizes import KnownSizes
from . import checkpoint


def read_finished(files: RunDirectory) -> tuple[TrainConfig, int, dict[str, Any]]:
    """Returns the config of a finished run, the environment steps it took, and its final weights by name.

    Raises:
        RunError: the run does not exist, has not ended, has crashed, or is of a program.
        FileError: a file is damaged.
    """
    if not files.config.exists():
        raise RunError(
            f"{files.path}: holds no run (there is no config.json); give the folder of a run that `roundoff train` or a"
            " sweep has left, or of a sweep"
        )
    keys = config_in(read_json(files.config))
    if keys is None or "task" not in keys:
        raise RunError(f"{files.config}: is not the config of an agent's run, and only an agent has a policy")
    try:
        config = TrainConfig(**keys)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "config"
        raise RunError(f"{files.config}: {where}: {first['msg']}") from None
    result = files.read_result()
    if result is None:
        raise RunError(f"{files.path}: has not ended (there is no result.json); finish the run first")
    if result.status == "crashed":
        step = result.crash.step if result.crash else result.step
        raise RunError(f"{files.path}: crashed at step {step}, and left no policy that acts")
    return config, result.step, checkpoint.load(files.agent)


def sizes_known(files: RunDirectory) -> KnownSizes | None:
    """Returns the sizes of the environments of a finished run; None if an older version did not store them."""
    about = checkpoint.load_about(files.agent)
    try:
        return KnownSizes.from_plain(about["sizes"])
    except (KeyError, TypeError, ValueError):
        return None


def take_over(stored: Mapping[str, Any], target: Mapping[str, torch.Tensor], place: str) -> None:
    """Copies the final weights of a run, by name, into a model.

    Raises:
        RunError: they belong to another model; the message begins with ``place``.
    """
    expected = {name: _describe_kind(tensor) for name, tensor in target.items()}
    kinds = {str(name): _describe_kind(tensor) for name, tensor in stored.items()}
    if kinds != expected:
        name = min(name for name in expected.keys() | kinds.keys() if expected.get(name) != kinds.get(name))
        raise RunError(
            f"{place}: holds the weights of another algorithm, task or size than config.json says: {name} is"
            f" {kinds.get(name, 'missing')} there, and should be {expected.get(name, 'missing')}"
        )
    for name, tensor in target.items():
        tensor.detach().copy_(stored[name])


def _describe_kind(x: Any) -> str:
    """Returns the kind of a tensor: only the dtype and the shape for an ordinary one in memory."""
    if not isinstance(x, torch.Tensor):
        return f"a {type(x).__name__}"
    kinds = {"meta": x.is_meta, "sparse": x.layout is not torch.strided, "quantized": x.is_quantized}
    kind = "".join(f"{name} " for name, applies in kinds.items() if applies)
    return f"{kind}{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
