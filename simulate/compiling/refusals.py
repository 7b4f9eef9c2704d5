"""Reasons why a step cannot be compiled: known reasons, and the meaning of errors during compilation."""

from __future__ import annotations

import signal
import subprocess
import traceback
from pathlib import Path

from roundoff.errors import causes

from ...formats import FormatError
from ..dispatch.simulation import Simulation
from ..policy.rules import Granularity, Scalars
from ..presence.user_code import is_users
from .surroundings.walk import HOW


class OtherBitsError(FormatError):
    """A compiled step would have other bits than the eager one."""


def is_of_the_step(error: Exception) -> bool:
    """Whether the step itself has raised an error, which PyTorch's C++ does only with these two."""
    origin = traceback.extract_tb(error.__traceback__)[-1].filename  # the innermost frame
    return not isinstance(error, (RuntimeError, TypeError)) and is_users(origin)


def why_untraceable(error: Exception) -> str:
    """Explains a PyTorch error that a step raised while it was traced."""
    if "to FakeTensors" in str(error):  # a tensor with values among stand-ins
        return (
            f"the step uses a tensor{_place(error)} that is not among its arguments and was not found around it; pass"
            f" it as an argument, or {HOW}"
        )
    return (
        f"the step cannot be traced{_place(error)} ({_first_line(error)}): it may only use its arguments, tensors"
        " that it finds around it and tensors that it makes, write to no others, and read no number from a tensor"
        " (.item(), if, float())"
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _place(error: Exception) -> str:
    """Returns the place, outside of PyTorch and the simulation, that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if is_users(frame.filename)]
    return f" at {outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}" if outside else ""


def optimizer_of(error: BaseException) -> str | None:
    """The optimizer of ``torch.optim`` that an error comes from, by the name of its file; None: from elsewhere."""
    while error.__cause__ is not None:
        error = error.__cause__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.parent.name == "optim" and file.parent.parent.name == "torch" and file.stem != "optimizer":
            return file.stem.lstrip("_")
        if is_users(frame.filename):
            return None
    return None


def last_words(error: Exception) -> str:
    """Returns the last error line of a compiler, or the signal that ended it, as when a run is stopped."""
    for cause in causes(error):
        if isinstance(cause, subprocess.CalledProcessError) and cause.returncode < 0:
            return f"{signal.Signals(-cause.returncode).name} has ended it"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    # A compiler's output is long, and its last error line is the most specific.
    lines = [line.strip() for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or [f"{type(error).__name__}: {_first_line(error)}"])[-1][:200]


def is_of_a_tool(error: Exception) -> bool:
    """Whether an error comes from the C++ compiler, or from the system: a program or a file is missing, for example."""
    of_the_compiler = {"CppCompileError", "InvalidCxxCompiler"}
    return any(isinstance(cause, OSError) or type(cause).__name__ in of_the_compiler for cause in causes(error))


def reason_against_tracing(simulation: Simulation, *, rules: bool = False, roles: bool = False) -> str | None:
    """The reason why a program cannot be traced in this simulation, in words; None if it can.

    Args:
        simulation: The simulation around the program.
        rules: Whether the trace runs the program itself, so that its modules, optimizers and operands are found in
            the trace as they are when it runs.
        roles: Whether at least its backward passes and its optimizers are found in the trace.
    """
    policy = simulation.policy
    if any(watcher.sees_numbers for watcher in simulation.watchers):
        return "an observing simulation looks at numbers, which a traced program does not have"
    if policy.settings("accumulate"):
        return "rounded accumulation runs its own loops"
    if Granularity.PRIMITIVE in policy.settings("granularity"):
        return "primitive granularity takes operations apart below autograd, which cannot be traced"
    scalars = Scalars.ROUNDED in policy.settings("scalars")
    followed = simulation.places and not (roles and policy.depends_on_roles_alone)
    if scalars or (not rules and (followed or policy.settings("operands"))):
        return "the policy has rules about places, operands or scalars, which are followed while a program runs"
    if any(rule.about_operands for rule in policy.rules):
        return "the policy has rules about parameters, inputs or operands of products, found only while a program runs"
    return None
