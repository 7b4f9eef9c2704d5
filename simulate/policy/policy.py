"""Which arithmetic each operation of a program is simulated in: a base, and rules that change it for some of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ...formats import Format, FormatError, Rounding
from ..accumulation.description import Accumulation
from ..aten.tables import CONTRACTIONS, LAYERS, plain_name
from .products import Product
from .recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

OPTIMIZER_STEP = "optimizer_step"
"""Name of the pseudo-operation that a whole step of a ``torch.optim.Optimizer`` is, for rules."""


class Role(StrEnum):
    """What an operation, or an operand, is there for."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"
    INPUTS = "inputs"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"


MULTIPLIED_ROLES = (Role.WEIGHTS, Role.ACTIVATIONS, Role.GRADIENTS)
"""What matrix products and convolutions multiply."""
OPERAND_ROLES = (Role.PARAMETERS, Role.INPUTS, *MULTIPLIED_ROLES)


class Granularity(StrEnum):
    """What counts as one operation."""

    KERNEL = "kernel"
    """An ATen operation: its results are rounded, what it computes inside is not."""
    PRIMITIVE = "primitive"
    """A primitive operation: composite kernels (softplus, layer norm, addcdiv, ...) are taken apart."""


class Scalars(StrEnum):
    """What becomes of Python numbers that meet tensors."""

    EXACT = "exact"
    ROUNDED = "rounded"


class Islands(StrEnum):
    """What becomes of a program's own float32, beside its float16 or bfloat16."""

    ROUNDED = "rounded"
    """It is a carrier of the format like any other dtype."""
    EXACT = "exact"
    """It is computed as it is: what is simulated is what the program has in float16 and bfloat16."""


class Finfo(StrEnum):
    """What ``torch.finfo`` describes inside of a simulation."""

    DTYPE = "dtype"
    FORMAT = "format"


class Arithmetic(NamedTuple):
    """How one operation is simulated."""

    format: Format
    """Of its results; fp32 stands for the carrier itself, unrounded."""
    rounding: Rounding
    operands: Format | None
    """Its tensor operands are rounded to this before; None leaves them as they are."""
    of_operands: tuple[Rule, ...]
    """The rules about operands of some role, which are rounded as these say first; the last that is about one wins."""
    accumulate: Accumulation | None
    granularity: Granularity
    scalars: Scalars
    islands: Islands


def _patterns(value: object, name: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (tuple, list)) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise FormatError(
            f"{name} of a rule must be a pattern such as 'mm' or 'softmax*', or a list of them, got {value!r}"
        )
    return tuple(texts)


def _choice(kind: type[StrEnum], value: object, name: str) -> Any:
    try:
        return kind(str(value))
    except ValueError:
        raise FormatError(f"{name} must be {', '.join(kind)}, got {value!r}") from None


@dataclass(frozen=True)
class Rule:
    """Changes the arithmetic of the operations it matches; what is None it leaves as it is.

    Args:
        operation: name of an ATen operation without overload, such as ``mm`` (``add`` is also ``add_`` and
            ``_foreach_add_``), a pattern with ``*`` and ``?``, or several. ``optimizer_step`` is a whole step of an
            optimizer: gradients are rounded before it, parameters and buffers after it.
        module: path of a ``torch.nn.Module`` as ``named_modules`` gives it, or a pattern, or several; what lies inside
            a module is matched too. Operations of the backward pass belong to the module of their forward operation.
        role: ``forward``, ``backward`` or ``optimizer``: where the operation runs. Or the rule is about operands of
            forward and backward operations, whose ``format`` it sets, and their ``rounding`` if it says: they are seen
            rounded, and stay as they are in memory. ``parameters`` are leaves that require a gradient, ``inputs`` come
            from outside of the simulation. ``weights``, ``activations`` and ``gradients`` are what matrix products and
            convolutions multiply: parameters; in the forward pass all else; in the backward pass what was no operand of
            a product before. A bias, which is added, is none of them.
        product: of a rule about weights, activations or gradients: for which product they are rounded so,
            ``output``, ``grad-input``, ``grad-weight``, or several; None for any, and for products without a weight.
        format: of the results, or of the operands.
        rounding: how they are rounded.
        operands: the operation's tensor operands are rounded to this format first; of contractions, block formats have
            their blocks along the contracted axis.
        accumulate: the accumulator of contractions and sums.
        granularity: ``kernel`` or ``primitive``.
        scalars: ``exact`` or ``rounded``: Python numbers, to ``format``.
        islands: ``exact`` leaves alone what the program itself computes in float32, or float64, and not in float16 or
            bfloat16; ``rounded``: that is rounded, too.

    Raises:
        FormatError: a setting does not exist, or has no meaning for the role.
    """

    operation: str | Sequence[str] = "*"
    module: str | Sequence[str] = "*"
    role: str | Sequence[str] = "*"
    product: str | Sequence[str] | None = field(default=None, kw_only=True)
    format: Format | str | None = None
    rounding: Rounding | str | None = None
    operands: Format | str | None = None
    accumulate: Accumulation | str | None = None
    granularity: Granularity | str | None = None
    scalars: Scalars | str | None = None
    islands: Islands | str | None = None

    def __post_init__(self) -> None:
        for name in ("operation", "module", "role"):
            object.__setattr__(self, name, _patterns(getattr(self, name), name))
        if self.role != ("*",):
            roles = tuple(_choice(Role, role, "role of a rule") for role in self.role)
            object.__setattr__(self, "role", roles)
            if self.about_operands and (
                not all(role in OPERAND_ROLES for role in roles)
                or self.format is None
                or self._settings() - {"format", "rounding"}
            ):
                raise FormatError(
                    f"a rule about operands ({', '.join(OPERAND_ROLES)}) sets their format, and their rounding if need"
                    f" be, and nothing else, got {_text(self)}"
                )
        self._parse_product()
        _parse_settings(self)
        if not self._settings():
            raise FormatError(f"a rule must set one of {', '.join(_SETTINGS)}; this one sets nothing: {_text(self)}")

    def _parse_product(self) -> None:
        if self.product is None:
            return
        if self.role == ("*",) or not all(role in MULTIPLIED_ROLES for role in self.role):
            raise FormatError(
                f"product is said of {', '.join(MULTIPLIED_ROLES)}, in a rule with such a role, got {_text(self)}"
            )
        products = _patterns(self.product, "product")
        object.__setattr__(self, "product", tuple(_choice(Product, name, "product of a rule") for name in products))

    def _settings(self) -> set[str]:
        return {name for name in _SETTINGS if getattr(self, name) is not None}

    def __str__(self) -> str:
        return _text(self)

    @property
    def about_operands(self) -> bool:
        """Whether the rule is about operands of some role."""
        return any(role in OPERAND_ROLES for role in self.role)

    def matches(self, operation: str, module: str, role: str) -> bool:
        """Whether the rule speaks of this operation at this place."""
        roles = self.role == ("*",) or self.about_operands or role in self.role
        if not roles or (operation == OPTIMIZER_STEP and self.operation == ("*",)):
            return False
        return self.matches_operation(operation) and self.matches_module(module)

    def matches_operation(self, operation: str) -> bool:
        """Whether an operation of this name is meant, wherever it runs."""
        if self.operation == ("*",):
            return True
        plain = plain_name(operation)
        return any(fnmatchcase(name, pattern) for pattern in self.operation for name in (operation, plain))

    def matches_module(self, path: str) -> bool:
        """Whether the module at ``path`` (its first part is the outermost one's class), or one around it, is meant."""
        if self.module == ("*",):
            return True
        parts = path.split(".")
        around = [".".join(parts[start:end]) for start in (0, 1) for end in range(start + 1, len(parts) + 1)]
        return any(fnmatchcase(name, pattern) for pattern in self.module for name in around)


_SETTINGS = ("format", "rounding", "operands", "accumulate", "granularity", "scalars", "islands")
_KINDS = {"granularity": Granularity, "scalars": Scalars, "islands": Islands}


def _parse_settings(owner: Rule | Policy) -> None:
    """Turns the settings that were given as text into what they name."""
    for name in _SETTINGS:
        value = getattr(owner, name)
        if value is None:
            continue
        if name in ("format", "operands"):
            value = Format.parse(value)
        elif name == "rounding":
            value = Rounding.parse(value)
        elif name == "accumulate":
            value = Accumulation.parse(value) if isinstance(value, str) else value
            if not isinstance(value, Accumulation):
                raise FormatError(f"accumulate must be an Accumulation or its text, such as 'e5m10/32', got {value!r}")
        else:
            value = _choice(_KINDS[name], value, name)
        object.__setattr__(owner, name, value)


@dataclass(frozen=True)
class Policy:
    """The arithmetic of a whole program: settings for every operation, and rules that change them; later rules win.

    ``Policy("e5m10")`` rounds every result of every operation. :meth:`storage` and :meth:`mixed_precision` make the
    other usual ones, and :meth:`with_rules` adds to any.

    Args:
        format: of results. fp32 stands for the carrier itself: nothing is rounded.
        rounding: the mode; ``stochastic`` draws from the seed of the simulation.
        operands: see :class:`Rule`.
        accumulate: the accumulator of contractions and sums; None for the carrier's.
        granularity: ``kernel`` or ``primitive``.
        scalars: whether Python numbers stay exact, as in PyTorch's half-precision kernels, or are rounded.
        rules: in order.
        islands: see :class:`Rule`.
        finfo: ``format``: inside the simulation ``torch.finfo`` describes ``format`` for every dtype that carries it;
            ``dtype``: as ever.

    Raises:
        FormatError: a setting does not exist.
    """

    format: Format | str
    rounding: Rounding | str = Rounding.NEAREST_EVEN
    operands: Format | str | None = None
    accumulate: Accumulation | str | None = None
    granularity: Granularity | str = Granularity.KERNEL
    scalars: Scalars | str = Scalars.EXACT
    rules: tuple[Rule, ...] = field(default=())
    islands: Islands | str = Islands.ROUNDED
    finfo: Finfo | str = Finfo.DTYPE

    def __post_init__(self) -> None:
        _parse_settings(self)
        object.__setattr__(self, "finfo", _choice(Finfo, self.finfo, "finfo"))
        rules = tuple(self.rules)
        if not all(isinstance(rule, Rule) for rule in rules):
            raise FormatError(f"rules of a policy must be Rule objects, got {rules!r}")
        object.__setattr__(self, "rules", rules)

    @classmethod
    def of(cls, what: Policy | Format | str) -> Policy:
        """A policy: itself, or the one that rounds every operation to a format."""
        return what if isinstance(what, Policy) else cls(Format.parse(what))

    @classmethod
    def storage(cls, format: Format | str) -> Policy:
        """Rounds what is stored: results of layers, their gradients, weights and optimizer buffers after each step.

        Between these everything is computed in the carrier, as the simulation of the paper did ("Low-Precision
        Reinforcement Learning", Section 4, with qtorch's quantizers after every layer). What ends a layer is
        ``LAYERS``: matrix products, convolutions, normalisations, softmax, pooling.
        """
        return cls("fp32", rules=(Rule(LAYERS, format=format), Rule(OPTIMIZER_STEP, format=format)))

    @classmethod
    def mixed_precision(cls, format: Format | str) -> Policy:
        """Matrix products and convolutions take operands and give results in the format; the rest is the carrier's.

        Weights, optimizer and losses are float32 (master weights), as in Micikevicius et al., "Mixed Precision
        Training". Elementwise operations between two products, which autocast would leave in half precision, are
        computed in float32 here.
        """
        rule = Rule(CONTRACTIONS, role=(Role.FORWARD, Role.BACKWARD), format=format, operands=format)
        return cls("fp32", rules=(rule,))

    @classmethod
    def fp8(cls, recipe: str, format: Format | str = "fp32") -> Policy:
        """Linear layers and convolutions multiply in FP8, after a recipe of torchao's ``Float8LinearConfig``.

        What is multiplied is rounded, with a scale that follows from the numbers at hand; products are summed in the
        carrier, and results are rounded to ``format``. Products without a weight, as those of attention, keep their
        operands. With ``rowwise-with-gw-hp`` so does the product that gives the gradient of the weight.

        Args:
            recipe: ``tensorwise`` (E4M3, gradients E5M2, a scale for each tensor), ``rowwise`` (E4M3, a power of two
                for each row along what is contracted), or ``rowwise-with-gw-hp``.
            format: of results; fp32 stands for the carrier itself.

        Raises:
            FormatError: there is no such recipe or format.
        """
        name = "fp8-" + str(recipe).replace("_", "-")
        if name not in RECIPES:
            known = ", ".join(known.removeprefix("fp8-") for known in RECIPES)
            raise FormatError(f"recipe must be {known}, got {recipe!r}")
        return cls(format, rules=tuple(Rule(**rule) for rule in RECIPES[name]))  # type: ignore[arg-type]

    def with_rules(self, *rules: Rule) -> Policy:
        """The same policy with more rules, which win over those it has."""
        return replace(self, rules=(*self.rules, *rules))

    @classmethod
    def parse(cls, description: str | Mapping[str, Any], format: Format | str | None = None) -> Policy:
        """A policy from plain data, as a YAML file has it.

        Args:
            description: a format's name, or a mapping with ``preset`` (``every-op``, ``storage``, ``mixed-precision``,
                or ``fp8-`` with a recipe of :meth:`fp8` behind), any setting of :class:`Policy`, and ``rules``: a list
                of mappings with what :class:`Rule` takes.
            format: the format, if the description has none; a recipe needs none.

        Raises:
            FormatError: a key or value is wrong; the message says where.
        """
        if isinstance(description, str):
            return cls.of(description)
        settings = _mapping(description, "policy", {"preset", "rules", "finfo", *_SETTINGS})
        given = settings.pop("format", format)
        preset = str(settings.pop("preset", "every-op"))
        if given is None and preset in RECIPES:
            given = "fp32"
        if given is None:
            raise FormatError("policy needs a format")
        makers: dict[str, Callable[[Format | str], Policy]] = {
            "every-op": cls,
            "storage": cls.storage,
            "mixed-precision": cls.mixed_precision,
            **{name: partial(cls.fp8, name.removeprefix("fp8-")) for name in RECIPES},
        }
        if preset not in makers:
            raise FormatError(f"policy.preset must be {', '.join(makers)}, got {preset!r}")
        rules = settings.pop("rules", [])
        if not isinstance(rules, (list, tuple)):
            raise FormatError(f"policy.rules must be a list of mappings, got {rules!r}")
        made = []
        for number, rule in enumerate(rules):
            place = f"policy.rules[{number}]"
            keys = _mapping(rule, place, {f.name for f in fields(Rule)})
            try:
                made.append(Rule(**keys))
            except FormatError as error:
                raise FormatError(f"{place}: {error}") from None
        try:
            return replace(makers[preset](given), **settings).with_rules(*made)
        except FormatError as error:
            raise FormatError(f"policy: {error}") from None

    def as_json(self) -> dict[str, Any]:
        """The policy as plain data that :meth:`parse` reads: settings that differ from the defaults, and all rules."""
        data = _given(self)
        if self.rules:
            data["rules"] = [_given(rule) for rule in self.rules]
        return data

    def __str__(self) -> str:
        return "\n  ".join([_text(self), *map(str, self.rules)])

    def arithmetic(self, operation: str, module: str = "", role: str = Role.FORWARD) -> tuple[Arithmetic, list[Rule]]:
        """How an operation at a place is simulated, and the rules that apply."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        matched = [rule for rule in self.rules if rule.matches(operation, module, role)]
        of_operands = [rule for rule in matched if rule.about_operands and role != Role.OPTIMIZER]
        if "attention" in operation:  # which multiplies no weight
            of_operands = [rule for rule in of_operands if rule.product is None]
        for rule in matched:
            if not rule.about_operands:
                settings |= {name: getattr(rule, name) for name in _SETTINGS if getattr(rule, name) is not None}
        return Arithmetic(**settings, of_operands=tuple(of_operands)), matched

    def reaches(self, operations: Iterable[str], module: str, role: str) -> bool:
        """Whether any of these operations, at this place, computes otherwise than in the carrier."""
        for operation in operations:
            a, _ = self.arithmetic(operation, module, role)
            if str(a.format) != "fp32" or any((a.operands, a.of_operands, a.accumulate)):
                return True
        return False

    def formats(self) -> list[Format]:
        """The formats of results, wherever, each once."""
        named = (self.format, *(rule.format for rule in self.rules))
        return list(dict.fromkeys(fmt for fmt in named if isinstance(fmt, Format)))

    def settings(self, name: str) -> list[Any]:
        """What one setting is for all operations together, and in every rule that has it."""
        values = (getattr(self, name), *(getattr(rule, name) for rule in self.rules))
        return [value for value in values if value is not None]

    @property
    def tells_products_apart(self) -> bool:
        """Whether a rule is about weights, activations or gradients, so that the simulation must know them."""
        return any(role in MULTIPLIED_ROLES for rule in self.rules for role in rule.role)

    @property
    def depends_on_place(self) -> bool:
        """Whether a module or role matters, so that the simulation must follow them."""
        return any(rule.module != ("*",) or rule.role != ("*",) for rule in self.rules)


def _given(owner: Rule | Policy) -> dict[str, Any]:
    """What differs from the defaults, but for the rules of a policy, as plain data."""
    values = [(f.name, getattr(owner, f.name), f.default) for f in fields(owner) if f.name != "rules"]
    return {name: _plain(value) for name, value, default in values if value not in (None, ("*",), default)}


def _text(owner: Rule | Policy) -> str:
    return ", ".join(f"{name}={value}" for name, value in _given(owner).items())


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return _plain(value[0]) if len(value) == 1 else [_plain(item) for item in value]
    return str(value)


def _mapping(value: object, place: str, allowed: Iterable[str]) -> dict[str, Any]:
    if not hasattr(value, "keys"):
        raise FormatError(f"{place} must be a mapping, got {value!r}")
    settings: dict[str, Any] = dict(value)  # type: ignore[call-overload]
    for key in settings:
        if key not in allowed:
            raise FormatError(f"{place} has an unknown key {key!r}: allowed are {', '.join(sorted(allowed))}")
    return settings
