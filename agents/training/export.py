"""``roundoff export``: the policy of a finished run as a file that acts without roundoff."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from roundoff.files import make_directory, read_json, write_bytes

from ..acting.c_header import c_header
from ..acting.graphs import has_integer_operators, onnx_model
from ..acting.packed import PackedPolicy
from ..config.train_config import TrainConfig
from ..errors import FileError, RunError
from ..run.checkpoint import load
from ..run.directory import RunDirectory
from ..run.parts import check_run, make_learner, open_environments

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..algorithms.learner import Learner

SUFFIXES = (".onnx", ".h")


class Exported(NamedTuple):
    """What was written."""

    path: Path
    bytes: int
    """Of the file."""
    weight_bytes: int
    """Of the weights, as they are packed in the format."""
    note: str
    """What a reader should know of it; empty if nothing."""

    def __str__(self) -> str:
        return f"{self.path}: {self.bytes} bytes, of weights {self.weight_bytes}{'; ' if self.note else ''}{self.note}"


def export_policy(run: str | Path, fmt: str, target: str | Path, *, allow_imports: Collection[str] = ()) -> Exported:
    """Writes what acts deterministically in a finished run, with its weights in a format.

    The file takes what the run's network sees: an observation as numbers of float32, of images divided as the run
    divides them. Actions are numbers from -1 to 1, as ``TaskEnvironment`` has them, or one of several.

    Args:
        run: the folder of a run that has ended: ``config.json``, ``agent.pt`` and ``result.json``.
        fmt: of the weights; see ``onnx_model`` and ``c_header`` for which they compute in.
        target: a file to be written, ``*.onnx`` or ``*.h``.
        allow_imports: as for :func:`roundoff.agents.train`.

    Raises:
        RunError: the folder is no finished run's, the run's policy cannot act outside of it, or the kind of file is
            unknown, or cannot hold the format.
        FormatError: there is no such format.
        FileError: a file cannot be read or written.
        MissingExtraError: onnx is not installed.
    """
    target = Path(target)
    if target.suffix not in SUFFIXES:
        raise RunError(f"{target}: a policy is exported as {' or '.join(f'*{suffix}' for suffix in SUFFIXES)}")
    learner = finished_learner(run, allow_imports=allow_imports)
    packed = PackedPolicy.of(learner.policy_layers(), fmt)
    config = learner.config
    note = ""
    if target.suffix == ".h":
        content = c_header(packed, f"A policy for {config.task}, learned by {config.algorithm}").encode()
    else:
        content = onnx_model(packed, version=version("roundoff"))
        if not packed.format.native and not has_integer_operators(packed.format):
            note = f"ONNX has no products of {packed.format}: its numbers are stored and multiplied as float32"
    make_directory(target.parent)
    write_bytes(target, content)
    return Exported(target, len(content), packed.weight_bytes, note)


def finished_learner(run: str | Path, *, allow_imports: Collection[str] = ()) -> Learner:
    """The learner of a run that has ended, with its final weights, on the CPU.

    Args:
        run: the folder of the run.
        allow_imports: as for :func:`roundoff.agents.train`.

    Raises:
        RunError: the folder is no finished run's, or its algorithm is another library's.
        FileError: one of its files is missing or damaged.
    """
    files = RunDirectory(run)
    if not files.config.is_file():
        raise RunError(f"{files.path}: holds no config.json, so it is no run's folder")
    if not files.result.exists() or not files.agent.exists():
        raise RunError(f"{files.path}: the run has not ended; the command that began it continues it")
    config = _config(files)
    check_run(config, allow_imports)
    alone = {"environments": 1, "environment_workers": 0, "eval_episodes": 1}
    environments = open_environments(config.model_copy(update=alone), lambda: None, allow_imports, evaluation=False)
    try:
        learner, _ = make_learner(config, environments, torch.device("cpu"))
    finally:
        environments.close()
    state = load(files.agent)
    for name, tensor in learner.weights().items():
        found: Any = state.get(name)
        if not isinstance(found, torch.Tensor) or found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise FileError(f"{files.agent}: holds the weights of another agent than {files.config} describes")
        tensor.copy_(found)
    return learner


def _config(files: RunDirectory) -> TrainConfig:
    content = read_json(files.config)
    try:
        config = TrainConfig(**content["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{files.config}: is not the config of a run") from error
    if ":" in config.algorithm:
        raise RunError(
            f"{files.path}: the policy of {config.algorithm} is another library's; export it with that library"
        )
    return config
