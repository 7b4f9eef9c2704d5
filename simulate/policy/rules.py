"""The elements of a policy: settings of operations, and rules that change them for some operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from ...formats import Format, FormatError, Rounding
from ..accumulation.description import Accumulation
from ..accumulation.fused_sum import FusedSum
from ..aten.tables import plain_name
from .parts import fits, split


class Product(StrEnum):
    """The product of a linear layer or convolution that an operand is rounded for; attention's products are none."""

    OUTPUT = "output"
    """Activation times weight, in the forward pass."""
    GRAD_INPUT = "grad-input"
    """Gradient times weight: the gradient of the activation."""
    GRAD_WEIGHT = "grad-weight"
    """Gradient times activation: the gradient of the weight."""


OPTIMIZER_STEP = "optimizer_step"
"""The name in rules for a whole step of a ``torch.optim.Optimizer``."""


class Role(StrEnum):
    """The purpose of an operation or an operand."""

    FORWARD = "forward"  # of operations, to TARGETS
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    AVERAGES = "averages"
    TARGETS = "targets"
    PARAMETERS = "parameters"  # of operands, from here on
    INPUTS = "inputs"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"


OPERATION_ROLES = (Role.FORWARD, Role.BACKWARD, Role.OPTIMIZER, Role.AVERAGES, Role.TARGETS)
"""The roles of operations; the other roles are for operands."""
MULTIPLIED_ROLES = (Role.WEIGHTS, Role.ACTIVATIONS, Role.GRADIENTS)
"""The operands of matrix products and convolutions."""
OPERAND_ROLES = (Role.PARAMETERS, Role.INPUTS, *MULTIPLIED_ROLES)


class Backward(StrEnum):
    """The operands that backward products see in place of the weights and activations that a rule rounds."""

    ROUNDED = "rounded"
    """The rounded values of the forward product, with its blocks, as with a fake quantizer."""
    UNROUNDED = "unrounded"
    """The unrounded operands in memory."""


class Granularity(StrEnum):
    """The unit that counts as one operation."""

    KERNEL = "kernel"
    """An ATen operation: its results are rounded, its intermediate values are not."""
    PRIMITIVE = "primitive"
    """A primitive operation: composite kernels (softplus, layer norm, addcdiv, ...) are taken apart."""


class Scalars(StrEnum):
    """The treatment of Python numbers that meet tensors."""

    EXACT = "exact"
    """Python numbers are numbers of the carrier; results with them may first be rounded to it, to the nearest."""
    ONCE = "once"
    """Python numbers are of the carrier; exact results of arithmetic with them are rounded once, in every mode."""
    ROUNDED = "rounded"
    """Python numbers are rounded to the format first, like the values of tensors."""


class Islands(StrEnum):
    """The treatment of a program's own float32, next to its float16 or bfloat16."""

    ROUNDED = "rounded"
    """Float32 is a carrier of the format like any other dtype."""
    EXACT = "exact"
    """Float32 stays unrounded: only the program's float16 and bfloat16 values are simulated."""


class Finfo(StrEnum):
    """The type that ``torch.finfo`` describes inside a simulation."""

    DTYPE = "dtype"
    FORMAT = "format"


class Whole(StrEnum):
    """The treatment of counts, steps, positions and the like, which programs keep in floating-point tensors."""

    EXACT = "exact"
    """Integers are not rounded until something other than an integer is computed from them."""
    ROUNDED = "rounded"
    """Integers are rounded like all results."""


class Arithmetic(NamedTuple):
    """The arithmetic used to simulate one operation."""

    format: Format
    """The format of the operation's results; fp32 means the carrier itself, unrounded."""
    rounding: Rounding
    operands: Format | None
    """The format for rounding tensor operands before the operation; None does not round them."""
    of_operands: tuple[Rule, ...]
    """The rules about operands of some role, which round them first; for each operand the last rule wins."""
    accumulate: Accumulation | FusedSum | None
    granularity: Granularity
    scalars: Scalars
    islands: Islands


# Names repeat in every step of a program, and fnmatch is slow.
@lru_cache(maxsize=1 << 14)
def _matches_operation(patterns: tuple[str, ...], operation: str) -> bool:
    base_name = plain_name(operation)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (operation, base_name))


@lru_cache(maxsize=1 << 14)
def _matches_module(patterns: tuple[str, ...], path: str) -> bool:
    parts = path.split(".")
    # The module and each that encloses it, with and without the class of the outermost one.
    paths = [".".join(parts[start:end]) for start in (0, 1) for end in range(start + 1, len(parts) + 1)]
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in paths)


def _patterns(value: object, name: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    empty = name in ("module", "within")  # an empty path is the place outside of modules, or of named parts
    if not isinstance(texts, (tuple, list)) or not texts or not all(isinstance(t, str) and (t or empty) for t in texts):
        raise FormatError(
            f"{name} of a rule must be a pattern such as 'mm' or 'softmax*', or a list of them, got {value!r}"
        )
    return tuple(texts)


def choice(kind: type[StrEnum], value: object, name: str) -> Any:
    """Returns the member of an enumeration that a text names; raises FormatError, which lists them, if none does."""
    try:
        return kind(str(value))
    except ValueError:
        raise FormatError(f"{name} must be {', '.join(kind)}, got {value!r}") from None


SETTINGS = ("format", "rounding", "operands", "accumulate", "granularity", "scalars", "islands")
"""The settings that a policy makes for all operations, and a rule for some."""
_CHOICES_OF_POLICIES = ("finfo", "whole")
OF_POLICIES = (*_CHOICES_OF_POLICIES, "random_bits", "exact_in", "only_in")
"""The settings that only a policy has."""
_KINDS = {"granularity": Granularity, "scalars": Scalars, "islands": Islands, "finfo": Finfo, "whole": Whole}


@dataclass(frozen=True)
class PassSums:
    """The accumulators of the forward and of the backward pass; as text, divided by ``|``."""

    forward: Accumulation | FusedSum
    backward: Accumulation | FusedSum

    def __str__(self) -> str:
        return f"{self.forward}|{self.backward}"


def _accumulator(value: Any) -> Accumulation | FusedSum | PassSums:
    if isinstance(value, str) and value.count("|") == 1:
        return PassSums(*(_accumulator(text.strip()) for text in value.split("|")))  # type: ignore[arg-type]
    value = (FusedSum.parse(value) or Accumulation.parse(value)) if isinstance(value, str) else value
    if not isinstance(value, Accumulation | FusedSum | PassSums):
        raise FormatError(
            "accumulate must be an Accumulation, a FusedSum or the text of one, such as 'e5m10/32' or 'h100-fp8', or"
            f" two texts as in 'h100-fp8|h100-fp8/128', got {value!r}"
        )
    return value


def parse_settings(owner: Any) -> None:
    """Converts settings given as text into the named objects."""
    for name in (*SETTINGS, *_CHOICES_OF_POLICIES):
        value = getattr(owner, name, None)
        if value is None:
            continue
        if name in ("format", "operands"):
            value = Format.parse(value)
            try:  # formats of results are keys of caches
                hash(None if name == "operands" else value)  # formats of operands need none
            except TypeError as error:
                raise FormatError(
                    f"format {value} has no hash ({error}), which a format of results needs; a dataclass has one if it"
                    " is frozen and its fields have one (a tuple, not a list)"
                ) from None
        elif name == "rounding":
            value = Rounding.parse(value)
        elif name == "accumulate":
            value = _accumulator(value)
        else:
            value = choice(_KINDS[name], value, name)
        object.__setattr__(owner, name, value)  # since the dataclasses are frozen


def plain_data(owner: Any) -> dict[str, Any]:
    """Returns the settings that differ from the defaults, except the rules of a policy, as plain data."""
    values = [(f.name, getattr(owner, f.name), f.default) for f in fields(owner) if f.name != "rules"]
    return {name: _json_value(value) for name, value, default in values if value not in (None, ("*",), (), default)}


def text(owner: Any) -> str:
    """Returns :func:`plain_data` as a line of text."""
    return ", ".join(f"{name}={value}" for name, value in plain_data(owner).items())


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return _json_value(value[0]) if len(value) == 1 else [_json_value(item) for item in value]
    return str(value)


@dataclass(frozen=True)
class Rule:
    """Changes the arithmetic of the operations it matches; settings that are None change nothing.

    Args:
        operation: name of an ATen operation without overload, such as ``mm`` (``add`` is also ``add_`` and
            ``_foreach_add_``), a pattern with ``*`` and ``?``, or several. ``optimizer_step`` is a whole step of an
            optimizer: gradients are rounded before it, parameters and buffers after it.
        module: path of a ``torch.nn.Module`` as ``named_modules`` gives it, or a pattern, or several; everything inside
            a module is also matched. Operations of the backward pass belong to the module of their forward operation.
            An empty text is what runs outside of modules, such as losses, rewards and advantages.
        role: ``forward``, ``backward``, ``optimizer``, ``averages`` (moving averages of weights, such as target
            networks) or ``targets`` (what values are moved towards): where the operation runs. Or the rule is about
            operands of operations outside of optimizers, and sets their ``format``, and their ``rounding`` if given:
            they are seen rounded, and keep their values in memory. ``parameters`` belong to modules, or are other
            leaves that require a gradient, ``inputs`` come from outside of the simulation. ``weights``, ``activations``
            and ``gradients`` are the operands of matrix products and convolutions: parameters, and values made only of
            parameters; in the forward pass all others; in the backward pass values that no product used as an operand
            before. A bias, which is added, does not count.
        product: for a rule about weights, activations or gradients: the product that sees them rounded so,
            ``output``, ``grad-input``, ``grad-weight``, or several; None for any, and for products without a weight.
        backward: for a rule about weights and activations: the values that the backward products see, ``rounded`` (the
            values of the forward pass) or ``unrounded``; None rounds them for each product, with blocks along the axis
            that it sums over.
        hadamard: for a rule about one product: the number of neighbours (a power of two) in a random Hadamard transform
            along the contracted axis before rounding, where the rules about both of its operands set it. Except for
            rounding, it does not change the product. Convolutions and grouped products go without.
        within: qualified name of a Python function, such as ``GRPOTrainer._generate``, or a pattern, or several; what
            it calls is also matched. Or the name of a block ``with roundoff.part(name):``. Operations of the backward
            pass belong to the function of their forward operation. ``package.module:function`` is the function of only
            this module; with ``!`` before it a pattern says where the rule does not hold. An empty text is the code
            outside of the parts that the policy names.
        format: format of the results, or of the operands.
        rounding: how they are rounded.
        operands: the operation's tensor operands are rounded to this format first; of contractions, block formats have
            their blocks along the contracted axis.
        accumulate: the accumulator of contractions and sums; see :class:`Policy`.
        granularity: ``kernel`` or ``primitive``.
        scalars: ``exact`` or ``rounded``: Python numbers, to ``format``.
        islands: ``exact`` does not round results that the program itself computes in float32, or float64, and not in
            float16 or bfloat16; ``rounded``: these are also rounded.

    Raises:
        FormatError: a setting does not exist, or is meaningless for the role.
    """

    operation: str | Sequence[str] = "*"
    module: str | Sequence[str] = "*"
    role: str | Sequence[str] = "*"
    product: str | Sequence[str] | None = field(default=None, kw_only=True)
    backward: Backward | str | None = field(default=None, kw_only=True)
    hadamard: int | None = field(default=None, kw_only=True)
    within: str | Sequence[str] = field(default="*", kw_only=True)
    format: Format | str | None = None
    rounding: Rounding | str | None = None
    operands: Format | str | None = None
    accumulate: Accumulation | FusedSum | PassSums | str | None = None
    granularity: Granularity | str | None = None
    scalars: Scalars | str | None = None
    islands: Islands | str | None = None

    def __post_init__(self) -> None:
        # Patterns and roles first: the checks after them read them as tuples.
        for name in ("operation", "module", "role", "within"):
            object.__setattr__(self, name, _patterns(getattr(self, name), name))
        if self.role != ("*",):
            roles = tuple(choice(Role, role, "role of a rule") for role in self.role)
            object.__setattr__(self, "role", roles)
            if self.about_operands and (
                not all(role in OPERAND_ROLES for role in roles)
                or self.format is None
                or self._settings() - {"format", "rounding"}
            ):
                raise FormatError(
                    f"a rule about operands ({', '.join(OPERAND_ROLES)}) sets their format, and their rounding if need"
                    f" be, and nothing else, got {self}"
                )
        self._parse_product()
        self._parse_backward()
        self._check_hadamard()
        parse_settings(self)
        if not self._settings():
            raise FormatError(f"a rule must set one of {', '.join(SETTINGS)}; this one sets nothing: {self}")

    def _parse_product(self) -> None:
        if self.product is None:
            return
        if self.role == ("*",) or not all(role in MULTIPLIED_ROLES for role in self.role):
            raise FormatError(f"product is for {', '.join(MULTIPLIED_ROLES)}, in a rule with such a role, got {self}")
        products = _patterns(self.product, "product")
        object.__setattr__(self, "product", tuple(choice(Product, name, "product of a rule") for name in products))

    def _parse_backward(self) -> None:
        if self.backward is None:
            return
        roles = (Role.WEIGHTS, Role.ACTIVATIONS)
        if self.role == ("*",) or not all(role in roles for role in self.role) or self.product is not None:
            raise FormatError(
                f"backward is for {' and '.join(roles)}, in a rule with such a role and without product, got {self}"
            )
        object.__setattr__(self, "backward", choice(Backward, self.backward, "backward of a rule"))

    def _check_hadamard(self) -> None:
        if self.hadamard is None:
            return
        size: object = self.hadamard  # Sylvester's construction makes matrices of powers of two
        if isinstance(size, str) and size.isdecimal():  # as plain data has it
            size = int(size)
            object.__setattr__(self, "hadamard", size)
        if self.product is None or len(self.product) != 1:
            raise FormatError(f"hadamard is for one product, in a rule with that product, got {self}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 2 or size & (size - 1):
            raise FormatError(f"hadamard of a rule must be a power of two from 2, got {size!r}")

    def _settings(self) -> set[str]:
        return {name for name in SETTINGS if getattr(self, name) is not None}

    def __str__(self) -> str:
        return text(self)

    @property
    def about_operands(self) -> bool:
        """Whether the rule is about operands of some role."""
        return any(role in OPERAND_ROLES for role in self.role)

    @property
    def parts(self) -> tuple[str, ...]:
        """The patterns of the parts that the rule is within, except for the excluded parts."""
        return tuple(pattern for pattern in self.within if pattern not in ("", "*") and not pattern.startswith("!"))

    def matches(self, operation: str, place: str, role: str) -> bool:
        """Whether the rule applies to this operation at this place: a module, in a part of the program."""
        part, module = split(place)  # as `places.place_in` joins them
        fits_role = self.role == ("*",) or self.about_operands or role in self.role  # about operands: in any operation
        # A whole step is only meant by name: rules for all operations match the operations in it.
        if not fits_role or (operation == OPTIMIZER_STEP and self.operation == ("*",)):
            return False
        fits_part = self.within == ("*",) or fits(part, self.within)
        return fits_part and self.matches_operation(operation) and self.matches_module(module)

    def matches_operation(self, operation: str) -> bool:
        """Whether the rule applies to operations of this name, at some place."""
        return self.operation == ("*",) or _matches_operation(self.operation, operation)

    def matches_module(self, path: str) -> bool:
        """Whether the rule applies to a module or an enclosing one; ``path`` begins with the outermost one's class."""
        return self.module == ("*",) or _matches_module(self.module, path)
