"""The policy of a finished run, or any other network, as a file that acts without roundoff."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from roundoff.files import make_directory, write_bytes
from roundoff.runs.folder import RunDirectory

from ...formats import Format
from ..acting.c_header import c_header
from ..acting.from_modules import policy_of
from ..acting.graphs import has_integer_operators, onnx_model
from ..acting.packed import PackedPolicy
from ..adapters.settings import AdapterConfig
from ..config.train_config import TrainConfig
from ..errors import RunError
from ..models.policy_layers import Decision
from ..run.restored import read_finished, sizes_known
from .finished import finished_agent, learner_with, looked_at

SUFFIXES = (".onnx", ".h")


class Exported(NamedTuple):
    """An exported file."""

    path: Path
    bytes: int
    """The size of the file."""
    weight_bytes: int
    """The size of the weights, as they are packed in the format."""
    note: str
    """A note for the reader; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.path}: {self.bytes} bytes, of weights {self.weight_bytes}{'; ' if self.note else ''}{self.note}"


def export_policy(run: str | Path, fmt: str, target: str | Path, *, allow_imports: Collection[str] = ()) -> Exported:
    """Writes the deterministic policy of a finished run, with its weights in a format.

    The file takes the same input as the run's network: an observation in float32, for images divided by 255. Actions
    are numbers from -1 to 1, or discrete; see ``TaskEnvironment``.

    Args:
        run: the folder of a finished run.
        fmt: the format of the weights; for the arithmetic see ``onnx_model`` and ``c_header``.
        target: the file to write, ``*.onnx`` or ``*.h``.
        allow_imports: see :func:`roundoff.agents.train`; only for runs of older versions, which need their environment.

    Raises:
        RunError: the folder is not a finished run's, its weights are another agent's, its policy cannot act outside of
            the run, or the kind of file is unknown, or cannot hold the format.
        FormatError: the format does not exist.
        FileError: a file cannot be read or written.
        MissingExtraError: onnx is not installed.
    """
    target = _target(target)
    packed, config = packed_policy(run, fmt, allow_imports=allow_imports)
    return _write_policy(packed, target, f"A policy for {config.task}, learned by {config.algorithm}")


def export(
    module: nn.Module,
    target: str | Path,
    format: Format | str = "int8",
    *,
    decision: Decision | str = Decision.OUTPUTS,
    mean: torch.Tensor | None = None,
    std: torch.Tensor | None = None,
    observation_shape: Sequence[int] | None = None,
) -> Exported:
    """Writes a user's or a library's network as a file that acts without roundoff.

    ``export(torch.nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net), "policy.h")`` writes a policy of
    Stable-Baselines3. Like a run's file, it has the bits of the engine ``simulated``, except for tanh and ELU in a
    graph, where ONNX does not define the rounding.

    Args:
        module: a ``torch.nn.Sequential`` of linear layers, convolutions and activations; see ``policy_of``.
        target: the file to write, ``*.onnx`` or ``*.h``.
        format: the format of the weights.
        decision: the rule from outputs to actions: ``outputs``, ``clip`` (to [-1, 1]), ``tanh``, or ``largest``.
        mean: the mean of observations, for a normalizer, (n,).
        std: the standard deviation of observations, (n,).
        observation_shape: (planes, height, width) if the first layer is a convolution.

    Raises:
        RunError: no module to export, weights that are not finite, an unknown kind of file, or one without the format.
        FormatError: the format does not exist.
        FileError: the file cannot be written.
        MissingExtraError: onnx is not installed.
    """
    target = _target(target)
    policy = policy_of(module, decision=decision, mean=mean, std=std, observation_shape=observation_shape)
    return _write_policy(PackedPolicy.of(policy, format), target, f"A policy of a {type(module).__name__}")


def _target(target: str | Path) -> Path:
    target = Path(target)
    if target.suffix not in SUFFIXES:
        raise RunError(f"{target}: a policy is exported as {' or '.join(f'*{suffix}' for suffix in SUFFIXES)}")
    return target


def _write_policy(packed: PackedPolicy, target: Path, about: str) -> Exported:
    note = ""
    if target.suffix == ".h":
        content = c_header(packed, about).encode()
    else:
        content = onnx_model(packed, version=version("roundoff"))
        if not packed.format.native and not has_integer_operators(packed.format):
            note = f"ONNX has no products of {packed.format}: its numbers are stored and multiplied as float32"
    make_directory(target.parent)
    write_bytes(target, content)
    return Exported(target, len(content), packed.weight_bytes, note)


def packed_policy(
    run: str | Path, fmt: str, *, allow_imports: Collection[str] = ()
) -> tuple[PackedPolicy, TrainConfig]:
    """Returns the policy of a finished run, packed in a format, and the run's config; see :func:`export_policy`.

    Raises:
        RunError: the folder is not a finished run's, its weights are another agent's, or its policy cannot be packed.
        FormatError: the format does not exist.
        FileError: a file cannot be read.
    """
    files = RunDirectory(run)
    config, step, weights = read_finished(files)
    if isinstance(config, AdapterConfig):
        raise RunError(
            f"{files.path}: the policy of {config.algorithm} is another library's; export it with that library"
        )
    plain, sizes = looked_at(config, 1), sizes_known(files)
    if sizes:
        learner, _ = learner_with(weights, plain, step, sizes, files.agent)
        return PackedPolicy.of(learner.policy_layers(), fmt), config
    with finished_agent(plain, step, weights, files.agent, allow_imports=allow_imports) as agent:
        return PackedPolicy.of(agent.learner.policy_layers(), fmt), config
