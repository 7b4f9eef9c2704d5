"""Programs as the subject of a sweep: the keys of a run are the function's parameters and the arithmetic's keys."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticCustomError

from ...agents.config import KeyRole, Positive, check_device, check_policy, key
from ..errors import SweepError
from ..wording import complaint
from .program import Program
from .subject import RunConfig, Subject, adapter_of

if TYPE_CHECKING:
    from ...formats import Format
    from ...simulate import Policy

ARITHMETIC = "arithmetic"
"""A parameter of this name gets the simulation, which the function enters itself."""
_SETTINGS = ("rounding", "accumulate", "granularity")  # of the policy, as keys of their own
_INFERRED = (bool, int, float, str)  # a parameter without annotation has the type of its default


@cache
def format_named(name: str) -> Format:
    """A format by its name, or as ``module:attribute``, which is imported.

    Raises:
        FormatError: the format does not exist.
    """
    from ...formats import Format, FormatError  # noqa: PLC0415  imports torch, which costs seconds

    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        return Format.parse(name)
    module, _, attribute = name.partition(":")
    try:
        value = getattr(import_module(module), attribute)  # executes the user's file
    except (Exception, SystemExit) as error:
        raise FormatError(f"{name}: cannot be imported ({type(error).__name__}: {error})") from error
    if not isinstance(value, Format):
        raise FormatError(f"{name}: must be a roundoff.Format, is a {type(value).__name__}")
    return value


def _canonical_format(name: str) -> str:
    return name if ":" in name and format_named(name) else str(format_named(name))


def _setting(name: str) -> AfterValidator:
    """Checks a setting of the policy."""

    def check(value: str) -> str:
        from ...formats import FormatError  # noqa: PLC0415  imports torch, which costs seconds
        from ...simulate import Policy  # noqa: PLC0415

        try:
            Policy.parse({name: value}, "e5m10")
        except FormatError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(check)


class ArithmeticKeys(BaseModel):
    """The keys of every run, whatever its program; a parameter of the function with such a name gets the value."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Annotated[str, AfterValidator(_canonical_format)] = key(
        "fp32", "The number format: any that has a name, or `module:attribute`, which is imported.", KeyRole.ARITHMETIC
    )
    policy: Annotated[dict[str, Any], BeforeValidator(check_policy)] = key(
        {}, "The policy: the format of each kind of operation; see `roundoff.Policy`.", KeyRole.ARITHMETIC
    )
    rounding: Annotated[str, _setting("rounding")] | None = key(
        None, "The rounding mode, such as `stochastic`.", KeyRole.ARITHMETIC
    )
    accumulate: Annotated[str, _setting("accumulate")] | None = key(
        None, "The accumulator of products and sums, such as `e8m7/32`.", KeyRole.ARITHMETIC
    )
    granularity: Annotated[str, _setting("granularity")] | None = key(
        None,
        "The unit of rounding: `kernel` (a whole operation) or `primitive` (the steps inside).",
        KeyRole.ARITHMETIC,
    )
    observe: bool = key(False, "Count the effects of rounding in every operation.", KeyRole.ARITHMETIC)
    seed: Annotated[int, Field(ge=0, lt=2**63)] = key(
        0,
        "The seed of stochastic rounding, and of the generators of PyTorch, NumPy and Python when a run begins.",
        KeyRole.TIMELESS,
    )
    device: Annotated[str, AfterValidator(check_device)] = key(
        "cpu",
        "The device, passed to the function, which needs a parameter `device` for any other than `cpu`.",
        KeyRole.EXECUTION,
    )
    threads: Positive = key(1, "CPU threads of PyTorch.", KeyRole.EXECUTION)

    def policy_of_run(self) -> Policy:
        """The policy that these keys describe.

        Raises:
            FormatError: they do not go together.
        """
        from ...formats import FormatError  # noqa: PLC0415  imports torch, which costs seconds
        from ...simulate import Policy  # noqa: PLC0415

        settings = {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}
        if not self.policy and not settings:
            return Policy.of(format_named(self.format))
        if twice := settings.keys() & self.policy.keys():
            raise FormatError(f"{', '.join(sorted(twice))} is in policy, and is also a key; keep one of them")
        return Policy.parse({**self.policy, **settings}, format_named(self.format))


@final
@dataclass(frozen=True)
class ProgramConfig:
    """The config of a run of a program; see ``RunConfig``.

    Attributes:
        program: the program.
        arguments: values of the function's parameters that the sweep sets, as JSON values.
        settings: the keys that every run has.
    """

    program: Program
    arguments: dict[str, Any]
    settings: ArithmeticKeys
    steps: ClassVar[int] = 0  # how long it is, only the program knows

    @property
    def task(self) -> str:
        """The function's name."""
        return self.program.function

    @property
    def format(self) -> str:
        """The format as it is written."""
        return self.settings.format

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.settings.seed

    def as_json(self) -> dict[str, Any]:
        """Returns the run as JSON values: the program, format and seed, arguments, and keys not at their defaults.

        Parameters without a value are left out, so that a new parameter of the function, with a default, leaves
        finished runs unchanged.
        """
        settings = self.settings.model_dump(mode="json")
        changed = {name: settings[name] for name in self.settings.model_fields_set if settings[name] != _default(name)}
        values = {"program": self.program.text, "format": self.format, "seed": self.seed, **self.arguments, **changed}
        return dict(sorted(values.items()))

    def unsaid(self) -> dict[str, Any]:
        """Returns no keys: the config leaves out parameters without a value."""
        return {}


def _default(name: str) -> Any:
    return ArithmeticKeys.model_fields[name].default


@final
class ProgramKeys(Subject):
    """A program as the subject of a sweep.

    Args:
        program: the program; it is imported.
        reserved: names that no parameter can have, since they are sections of sweep files.

    Raises:
        SweepError: it cannot be imported, or has parameters that a sweep file cannot set.
    """

    def __init__(self, program: Program, reserved: tuple[str, ...] = ()) -> None:
        self.program = program
        function = program.load()
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise SweepError(f"{program.text} does not tell its parameters ({error}); give a plain function") from error
        self.takes = frozenset(parameters)
        """The names of all parameters."""
        arithmetic_names = {ARITHMETIC, *ArithmeticKeys.model_fields}
        self._parameters = {name: parameter for name, parameter in parameters.items() if name not in arithmetic_names}
        for name, parameter in parameters.items():
            _check_kind(program, name, parameter)
            if name in reserved:
                raise SweepError(f"{program.text}: the parameter {name} has the name of a section; rename it")
        try:
            self._hints = get_type_hints(function, include_extras=True)
        except Exception as error:
            raise SweepError(f"{program.text}: its annotations cannot be read ({error})") from error
        arithmetic_adapters = {name: adapter_of(field) for name, field in ArithmeticKeys.model_fields.items()}
        parameter_adapters = {name: _adapter(program, name, self._annotation(name)) for name in self._parameters}
        self._adapters = arithmetic_adapters | parameter_adapters
        self._known: dict[tuple[str, str], Any] = {}

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (*ArithmeticKeys.model_fields, *self._parameters)

    def canonical(self, key: str, value: Any) -> Any:  # noqa: D102
        adapter = self._adapters[key]
        if key not in self._parameters:
            return adapter.validate_python(value, strict=True)
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            rule = {"rule": "must be a finite number, text, a truth value, null, or a list or mapping of them"}
            wrong = PydanticCustomError("plain", "{rule}", rule)
            raise ValidationError.from_exception_data(key, [{"type": wrong, "input": value}]) from error
        if (key, text) not in self._known:  # which thousands of runs may share
            # As JSON: a list may be a tuple, and text a path or a member of an Enum.
            self._known[key, text] = adapter.dump_python(adapter.validate_json(text, strict=True), mode="json")
        return self._known[key, text]

    def is_whole(self, key: str) -> bool:  # noqa: D102
        return self._annotation(key) is int if key in self._parameters else key in ("seed", "threads")

    def config(self, values: dict[str, Any]) -> RunConfig | list[str]:  # noqa: D102
        from ...formats import FormatError  # noqa: PLC0415  imports torch, which costs seconds

        arithmetic = {name: value for name, value in values.items() if name not in self._parameters}
        arguments = {name: value for name, value in values.items() if name in self._parameters}
        missing = [name for name, x in self._parameters.items() if x.default is x.empty and name not in values]
        if missing:
            return [f"{self.program.text} needs {', '.join(missing)}, which has no default: set it in base or grid"]
        try:
            settings = ArithmeticKeys(**arithmetic)
            if settings.policy or any(getattr(settings, name) is not None for name in _SETTINGS):
                settings.policy_of_run()  # checks that the valid keys go together
            canonical = {name: self.canonical(name, value) for name, value in arguments.items()}
        except ValidationError as error:
            return [complaint(parameter) for parameter in error.errors()]
        except FormatError as error:
            return [str(error)]
        if settings.device != "cpu" and "device" not in self.takes:
            needed = f"a parameter device in {self.program.text}, which puts its tensors there"
            return [f"device: {settings.device} needs {needed}"]
        return ProgramConfig(self.program, canonical, settings)

    def value(self, run: RunConfig, key: str) -> Any:  # noqa: D102
        assert isinstance(run, ProgramConfig)
        if key not in self._parameters:
            return getattr(run.settings, key)
        return run.arguments.get(key, self.default(key, {}))

    def default(self, key: str, values: Mapping[str, Any]) -> Any:  # noqa: ARG002, D102
        if key not in self._parameters:
            return _default(key)
        default = self._parameters[key].default
        return None if default is inspect.Parameter.empty else default

    def in_format(self, run: RunConfig, name: str, key: str = "format") -> RunConfig:  # noqa: D102
        assert isinstance(run, ProgramConfig)
        assert key == "format"
        return replace(run, settings=run.settings.model_copy(update={"format": name}))

    def arguments(self, config: ProgramConfig) -> dict[str, Any]:
        """Returns the arguments of the function, except for the simulation."""
        settings = {name: getattr(config.settings, name) for name in ArithmeticKeys.model_fields if name in self.takes}
        return settings | {
            name: self._adapters[name].validate_json(json.dumps(value), strict=True)
            for name, value in config.arguments.items()
        }

    def _annotation(self, key: str) -> Any:
        """Returns the annotation of a parameter of the function; without one, the type of its default."""
        if key in self._hints:
            return self._hints[key]
        default = self._parameters[key].default
        return type(default) if type(default) in _INFERRED else Any


def _check_kind(program: Program, name: str, parameter: Parameter) -> None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise SweepError(
            f"{program.text}: {parameter} cannot be given by name, as a key of the sweep is;"
            " name the parameters one by one"
        )
    if type(parameter.default).__module__.partition(".")[0] == "typer":
        raise SweepError(
            f"{program.text}: the default of {name} is an object of typer, not a value; write"
            f" {name}: Annotated[TYPE, typer.Option()] = DEFAULT"
        )
    if name.startswith("_"):
        raise SweepError(f"{program.text}: the parameter {name} begins with _; rename it to make it a key")


def _adapter(program: Program, name: str, annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except PydanticUserError as error:
        raise SweepError(
            f"{program.text}: {name} is annotated with {annotation}, which YAML cannot express; annotate it with int,"
            f" float, bool, str, Literal[...], or lists and mappings of them"
        ) from error
