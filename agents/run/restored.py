"""A run that has ended, taken up again to be evaluated: its config, how it ended, and its weights."""

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
    """The config of a run that is done, the environment steps it took, and its final weights by name.

    Raises:
        RunError: the run does not exist, it has not ended or crashed, or is of a program.
        FileError: a file is damaged.
    """
    if not files.config.exists():
        raise RunError(
            f"{files.path}: holds no run (there is no config.json); give the folder of a run that `roundoff train` or a"
            " sweep has left, or of a sweep"
        )
    given = config_in(read_json(files.config))
    if given is None or "task" not in given:
        raise RunError(f"{files.config}: is not the config of an agent's run, and only an agent has a policy")
    try:
        config = TrainConfig(**given)
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
    """The sizes of the environments of a run that is done; None if it left none, as runs of older versions did."""
    about = checkpoint.load_about(files.agent)
    try:
        return KnownSizes.from_plain(about["sizes"])
    except (KeyError, TypeError, ValueError):
        return None


def take_over(found: Mapping[str, Any], own: Mapping[str, torch.Tensor], place: str) -> None:
    """Copies the final weights of a run, by name, into a model.

    Raises:
        RunError: they belong to another model; ``place`` says where they came from.
    """
    shapes = {name: _in_words(tensor) for name, tensor in own.items()}
    there = {str(name): _in_words(tensor) for name, tensor in found.items()}
    if there != shapes:
        differing = sorted(name for name in shapes.keys() | there.keys() if shapes.get(name) != there.get(name))
        name = differing[0]
        raise RunError(
            f"{place}: holds the weights of another algorithm, task or size than config.json says: {name} is"
            f" {there.get(name, 'missing')} there, and should be {shapes.get(name, 'missing')}"
        )
    for name, tensor in own.items():
        tensor.detach().copy_(found[name])


def _in_words(x: Any) -> str:
    """A kind of tensor; one of numbers in memory has only a dtype and a shape."""
    if not isinstance(x, torch.Tensor):
        return f"a {type(x).__name__}"
    kinds = {"meta": x.is_meta, "sparse": x.layout is not torch.strided, "quantized": x.is_quantized}
    kind = "".join(f"{name} " for name, found in kinds.items() if found)
    return f"{kind}{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
