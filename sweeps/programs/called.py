"""One call of a program as the main module of a process, which ``roundoff blame`` runs in many arithmetics.

Its argument is a JSON object: ``program`` and ``folder`` as of :class:`~..subjects.program.Program`, and ``values``,
the keys of the run. The numbers that the function returns are logged, so that a measure can be about them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, final

from roundoff.current_run import log

from ...simulate import exact
from ..errors import SweepError
from ..language.located_yaml import parse
from ..subjects.program import Program
from ..subjects.program_keys import ARITHMETIC, ProgramConfig, ProgramKeys
from .recorder import number, seed_generators
from .run import config_of

MODULE = "roundoff.sweeps.programs.called"


def config_from(arguments: Sequence[str]) -> ProgramConfig:
    """The config of a run of a program.

    Args:
        arguments: ``key=value``, among them ``program=FILE.py:FUNCTION``; values are written as in YAML.

    Raises:
        SweepError: the program does not exist, or does not take the key or value.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        key, sign, text = argument.partition("=")
        if not (key and sign):
            raise SweepError(f"{argument}: must be key=value")
        values[key] = parse(text, key).plain()
    program = Program.named(str(values.pop("program")), Path.cwd())
    keys = ProgramKeys(program)
    if unknown := [key for key in values if key not in keys.keys]:
        raise SweepError(f"{program.text} has no parameter {unknown[0]}; it has {', '.join(keys.keys)}")
    config = keys.config(values)
    if isinstance(config, list):
        raise SweepError("; ".join(config))
    assert isinstance(config, ProgramConfig)
    return config


def argument_for(config: ProgramConfig) -> str:
    """Returns the argument that has this module call a program as a run with this config does."""
    program = config.program
    return json.dumps({"program": program.text, "folder": program.folder, "values": config.as_json()})


@final
class _Simulated:
    """The ``arithmetic`` argument of a function: the simulation continues in its blocks, and is paused elsewhere."""

    def __init__(self, paused: AbstractContextManager[None]) -> None:
        self._paused = paused

    def __enter__(self) -> None:
        """Resumes the simulation."""
        self._paused.__exit__(None, None, None)

    def __exit__(self, *_: object) -> None:
        """Pauses it again."""
        self._paused.__enter__()


def main() -> None:
    """Calls the program, and logs the numbers that it returns."""
    call: dict[str, Any] = json.loads(sys.argv[1])
    with exact():
        config = config_of(Program(call["program"], call["folder"]), call["values"])
        keys = ProgramKeys(config.program)
        function, arguments = config.program.load(), keys.arguments(config)
        seed_generators(config.seed)
    if ARITHMETIC in keys.takes:
        paused = exact()
        with paused:
            returned = function(**arguments, arithmetic=_Simulated(paused))
    else:
        returned = function(**arguments)
    with exact():
        numbers = returned if isinstance(returned, dict) else {"value": returned}
        log(0, **{str(name): number(str(name), value) for name, value in numbers.items()})


if __name__ == "__main__":
    main()
