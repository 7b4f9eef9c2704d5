"""The policy of a simulation: the arithmetic of all operations, and rules that change it for some."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from roundoff.locks import cached_property

from ...formats import Format, FormatError, Rounding
from ...formats.base.modes import WORD_BITS
from ...formats.families.floats import FP32
from ..accumulation.description import Accumulation
from ..accumulation.fused_sum import FusedSum
from ..aten.tables import CONTRACTIONS, LAYERS
from .reading import read_description
from .recipes import RECIPES, mx
from .rules import (
    MULTIPLIED_ROLES,
    OF_POLICIES,
    OPTIMIZER_STEP,
    SETTINGS,
    Arithmetic,
    Finfo,
    Granularity,
    Islands,
    PassSums,
    Role,
    Rule,
    Scalars,
    Whole,
    parse_settings,
    plain_data,
    text,
)

_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")  # module and qualified name


@dataclass(frozen=True)
class Policy:
    """The arithmetic of a whole program: settings for every operation, and rules that change them; later rules win.

    ``Policy("e5m10")`` rounds every result of every operation. :meth:`storage` and :meth:`mixed_precision` make the
    other usual ones, and :meth:`with_rules` adds to any.

    Args:
        format: format of the results. fp32 means the carrier itself: nothing is rounded.
        rounding: the mode; ``stochastic`` draws from the seed of the simulation.
        operands: see :class:`Rule`.
        accumulate: the accumulator of contractions and sums; None for the carrier's. Two divided by ``|`` are for the
            forward and the backward pass: ``h100-fp8|h100-fp8/128``.
        granularity: ``kernel`` or ``primitive``.
        scalars: whether Python numbers stay exact, as in PyTorch's half-precision kernels, or are rounded.
        rules: in order.
        islands: see :class:`Rule`.
        finfo: ``format``: inside the simulation ``torch.finfo`` describes ``format`` for every dtype that carries it;
            ``dtype``: the dtype, as in PyTorch.
        whole: ``exact`` leaves counts, steps and positions in floating-point tensors unrounded;
            ``rounded`` rounds them like all results.
        random_bits: the number of random bits of an element, 1 to 32, in stochastic rounding; see
            :class:`~roundoff.RandomBits`.
        exact_in: functions that run without rounding, as under :func:`exact`: ``package.module:function`` or
            ``package.module:Class.method``, one or several. Their modules are imported when the simulation is entered.
        only_in: the only functions with rounding; empty for everywhere.

    Raises:
        FormatError: a setting does not exist.
    """

    format: Format | str
    rounding: Rounding | str = Rounding.NEAREST_EVEN
    operands: Format | str | None = None
    accumulate: Accumulation | FusedSum | PassSums | str | None = None
    granularity: Granularity | str = Granularity.KERNEL
    scalars: Scalars | str = Scalars.EXACT
    rules: tuple[Rule, ...] = field(default=())
    islands: Islands | str = Islands.ROUNDED
    finfo: Finfo | str = Finfo.DTYPE
    whole: Whole | str = Whole.EXACT
    random_bits: int = WORD_BITS
    exact_in: str | Sequence[str] = ()
    only_in: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        parse_settings(self)
        # The class is frozen: parsed values replace their texts by object.__setattr__.
        random_bits = str(self.random_bits)  # as plain data has it
        if not random_bits.isdecimal() or not 1 <= int(random_bits) <= WORD_BITS:
            raise FormatError(f"random_bits must be an integer from 1 to {WORD_BITS}, got {self.random_bits!r}")
        object.__setattr__(self, "random_bits", int(random_bits))
        for name in ("exact_in", "only_in"):
            object.__setattr__(self, name, _functions(getattr(self, name), name))
        if not (isinstance(self.rules, (list, tuple)) and all(isinstance(rule, Rule) for rule in self.rules)):
            raise FormatError(f"rules of a policy must be a list or tuple of Rule objects, got {self.rules!r}")
        object.__setattr__(self, "rules", tuple(self.rules))

    @classmethod
    def of(cls, what: Policy | Format | str) -> Policy:
        """Returns a policy unchanged; for a format, the policy that rounds every operation to it."""
        return what if isinstance(what, Policy) else cls(Format.parse(what))

    @classmethod
    def storage(cls, format: Format | str) -> Policy:
        """Rounds only stored values: results of layers, their gradients, weights and optimizer buffers after each step.

        Between these everything is computed in the carrier, as the simulation of the paper did ("Low-Precision
        Reinforcement Learning", Section 4, with qtorch's quantizers after every layer). What ends a layer is
        ``LAYERS``: matrix products, convolutions, normalisations, softmax, pooling.
        """
        return cls("fp32", rules=(Rule(LAYERS, format=format), Rule(OPTIMIZER_STEP, format=format)))

    @classmethod
    def mixed_precision(cls, format: Format | str) -> Policy:
        """Matrix products and convolutions take operands and give results in the format; the rest is the carrier's.

        A format with shared scales (MX, NVFP4, integers scaled by the data) applies only to operands, as in
        hardware: results are the carrier's.

        Weights, optimizer and losses are float32 (master weights), as in Micikevicius et al., "Mixed Precision
        Training". Elementwise operations between two products, which autocast would leave in half precision, are
        computed in float32 here.
        """
        operands = Format.parse(format)
        results = operands if operands.elementwise else "fp32"
        role = (Role.FORWARD, Role.BACKWARD)  # not the optimizer, which computes in float32
        return cls("fp32", rules=(Rule(CONTRACTIONS, role=role, format=results, operands=operands),))

    @classmethod
    def engine(cls, format: Format | str) -> Policy:
        """Rounds every result, and sees parameters rounded: an engine that has its weights in the format.

        ``Policy(format)`` on its own is a float32 program with rounded results: its weights, which come from outside,
        are multiplied unrounded until something is computed from them. Inference engines use cast weights.
        """
        return cls(format, rules=(Rule(role=Role.PARAMETERS, format=format),))

    @classmethod
    def mx(
        cls, operands: Format | str = "mxfp8_e4m3", format: Format | str = "fp32", *, but: str | Sequence[str] = (),
        accumulate: FusedSum | str | None = None,
    ) -> Policy:  # fmt: skip
        """Linear layers and convolutions multiply in an MX format, or another with scales, as MXFP8 training does.

        Each of the three products sees its operands, also gradients, in blocks along the contracted axis, rounded to
        nearest-even; it is summed in the carrier. Weights stay in high precision in memory.

        Args:
            operands: the format of weights, activations and gradients: ``mxfp8_e4m3`` (scales by OCP's rule),
                ``mxfp8_e4m3_rceil`` (by cuBLAS's, the usual one in training), ``mxfp4``, ``mxint8``, ``bfp8_16``.
            format: format of the results; fp32 means the carrier itself.
            but: modules with products that keep their operands, as patterns of :class:`Rule`.
            accumulate: matrix unit that sums the products, such as ``b200-mxfp8``; None sums in the carrier.

        Raises:
            FormatError: the format or the unit does not exist.
        """
        return cls(format, accumulate=accumulate, rules=(*mx(operands), *_operand_exceptions(but)))

    @classmethod
    def nvfp4(
        cls, format: Format | str = "fp32", *, but: str | Sequence[str] = (), accumulate: FusedSum | str | None = None
    ) -> Policy:
        """Linear layers and convolutions multiply in NVFP4, after NVIDIA's recipe of pretraining.

        Weights in squares of 16 by 16, which are the same numbers in both passes; activations and gradients in blocks
        of 16 along the contracted axis; gradients stochastically; and in the product that gives the gradient of the
        weight both operands after a random Hadamard transform of 16 neighbours. NVIDIA keeps some layers in high
        precision, which ``but`` names here.

        Args:
            format: format of the results; fp32 means the carrier itself, ``bf16`` is the recipe's.
            but: modules with products that keep operands, as patterns of :class:`Rule` (``["*lm_head", "*.31.*"]``).
            accumulate: matrix unit that sums the products, such as ``b200-nvfp4``; None sums in the carrier.

        Raises:
            FormatError: the format or the unit does not exist.
        """
        return cls(format, accumulate=accumulate, rules=(*RECIPES["nvfp4"], *_operand_exceptions(but)))

    @classmethod
    def fp8(
        cls, recipe: str, format: Format | str = "fp32", *, but: str | Sequence[str] = (),
        accumulate: FusedSum | str | None = None,
    ) -> Policy:  # fmt: skip
        """Linear layers and convolutions multiply in FP8, after a recipe of torchao or of DeepSeek-V3.

        Operands are rounded, with scales that follow from their values, and results are rounded to ``format``. Products
        without a weight, such as in attention, keep their operands. With ``rowwise-with-gw-hp`` so does the product
        that gives the gradient of the weight.

        Args:
            recipe: ``tensorwise`` (E4M3, gradients E5M2, a scale for each tensor), ``rowwise`` (E4M3, a power of two
                for each row along the contracted axis), ``rowwise-with-gw-hp``, or ``blockwise`` (E4M3; weights in
                squares of 128 by 128, activations and gradients in blocks of 128 along the contracted axis; after
                DeepSeek-V3); with ``blockwise-pow2`` the scales are powers of two.
            format: format of the results; fp32 means the carrier itself.
            but: modules with products that keep their operands, as patterns of :class:`Rule` (``"*lm_head"``).
            accumulate: matrix unit that sums the products; None sums in the carrier. torchao's choice on an H100, fast
                sums of outputs and restarted sums of gradients, is ``h100-fp8|h100-fp8/128``.

        Raises:
            FormatError: the recipe, the format or the unit does not exist.
        """
        name = "fp8-" + str(recipe).replace("_", "-")
        if name not in RECIPES:
            recipes = ", ".join(name.removeprefix("fp8-") for name in RECIPES if name.startswith("fp8-"))
            raise FormatError(f"recipe must be {recipes}, got {recipe!r}")
        return cls(format, accumulate=accumulate, rules=(*RECIPES[name], *_operand_exceptions(but)))

    @classmethod
    def int8(cls, format: Format | str = "fp32", *, but: str | Sequence[str] = ()) -> Policy:
        """Linear layers and convolutions multiply in INT8, as inference engines do (W8A8); backward products do not.

        Weights have a scale for each output channel, activations one for each token, each the largest magnitude over
        127. An engine sums integers exactly and multiplies by both scales at the end. Here integers times their scale
        are multiplied and summed in the carrier, which differs by some units in its last place. A token or channel with
        NaN or an infinity is NaN.

        Args:
            format: format of the results; fp32 means the carrier itself.
            but: modules with products that keep their operands, as patterns of :class:`Rule` (``"*lm_head"``).

        Raises:
            FormatError: the format does not exist.
        """
        return cls(format, rules=(*RECIPES["int8-rowwise"], *_operand_exceptions(but)))

    def with_rules(self, *rules: Rule) -> Policy:
        """Returns the policy with more rules, which win over those it has."""
        return replace(self, rules=(*self.rules, *rules))

    def with_part(self, name: str | Sequence[str], policy: Policy | Format | str) -> Policy:
        """Returns the policy with a different policy within a part of the program.

        ``Policy.mixed_precision("bf16").with_part("GRPOTrainer._generate", Policy.fp8("rowwise", "bf16"))`` trains in
        bfloat16 and samples in FP8. This policy has no effect in the part, and the part's rules have none elsewhere.

        Args:
            name: qualified name of a function, name of a block :func:`roundoff.part`, a pattern, or several; see
                ``within`` of :class:`Rule`.
            policy: policy of the part.

        Raises:
            FormatError: the other policy sets something for the whole program (``finfo``, ``whole``, ``exact_in``,
                ``only_in``) and this policy does not; a rule of it is within a part itself; or the name is invalid.
        """
        inner = Policy.of(policy)
        defaults = Policy("fp32")
        # What a part cannot have for itself
        for setting in OF_POLICIES:
            if getattr(inner, setting) not in (getattr(defaults, setting), getattr(self, setting)):
                raise FormatError(
                    f"{setting} of a policy applies to the whole program, and in a part it cannot be"
                    f" {getattr(inner, setting)}, where the program has {getattr(self, setting)}"
                )
        names = tuple(name) if isinstance(name, (list, tuple)) else (name,)
        if not names or not all(isinstance(text, str) and text and not text.startswith("!") for text in names):
            raise FormatError(f"a part is named by a function or a block, or a pattern, or several, got {name!r}")
        excluded = tuple(f"!{pattern}" for pattern in names)  # the rules of this policy leave the part out
        # Settings that the part lacks move from the policy to a rule: None in the part's rule would not unset them.
        moved = {s: getattr(self, s) for s in SETTINGS if getattr(inner, s) is None and getattr(self, s) is not None}
        settings = {s: getattr(inner, s) for s in SETTINGS if getattr(inner, s) is not None}
        unset: dict[str, Any] = dict.fromkeys(moved)
        # Later rules win: first this policy, which holds outside of the part, then the part's settings and its rules.
        return replace(
            self,
            **unset,
            rules=(
                *([Rule(within=excluded, **moved)] if moved else []),
                *(replace(rule, within=(*rule.within, *excluded)) for rule in self.rules),
                Rule(within=names, **settings),
                *(replace(rule, within=_combine_within(rule.within, names)) for rule in inner.rules),
            ),
        )

    @classmethod
    def parse(cls, description: str | Mapping[str, Any], format: Format | str | None = None) -> Policy:
        """Returns the policy that plain data, such as a YAML file, describe.

        Args:
            description: the name of a format or of a recipe of :meth:`fp8`, or a mapping with ``preset``
                (``every-op``, ``storage``, ``mixed-precision``, ``engine``, ``mx``, ``nvfp4``, ``int8-rowwise``, or
                ``fp8-`` with a recipe of :meth:`fp8`), ``but`` along with a recipe, any setting of :class:`Policy`,
                ``rules``: a list of mappings with what :class:`Rule` takes, and ``parts``: a mapping from names of
                functions to their policies; see :meth:`with_part`.
            format: the format, if the description lacks one; not needed for a recipe.

        Raises:
            FormatError: a key or value is wrong; the message says where.
        """
        if isinstance(description, str):
            is_recipe = description in RECIPES and "-" in description  # nvfp4 is also a format
            return cls.parse({"preset": description}, format) if is_recipe else cls.of(description)
        settings = _mapping(description, "policy", {"preset", "but", "rules", "parts", *OF_POLICIES, *SETTINGS})
        base_format = settings.pop("format", format)  # the description's own before the caller's
        preset = str(settings.pop("preset", "every-op"))
        # The preset, the settings that replace some of its own, then the rules, which win over its rules
        makers: dict[str, Callable[[Format | str], Policy]] = {
            "every-op": cls, "storage": cls.storage, "mixed-precision": cls.mixed_precision, "engine": cls.engine,
            "mx": cls.mx, "nvfp4": cls.nvfp4, "int8-rowwise": cls.int8,
            **{name: partial(cls.fp8, name.removeprefix("fp8-")) for name in RECIPES if name.startswith("fp8-")},
        }  # fmt: skip
        if preset not in makers:
            raise FormatError(f"policy.preset must be {', '.join(makers)}, got {preset!r}")
        if base_format is None and preset in RECIPES:  # a recipe names the formats of operands; results are unrounded
            base_format = "fp32"
        if base_format is None:
            raise FormatError("policy needs a format")
        but = settings.pop("but", ())
        if but and preset not in ("mx", *RECIPES):
            raise FormatError(f"policy.but goes with a recipe (mx, {', '.join(RECIPES)}), got preset {preset!r}")
        parts = settings.pop("parts", {})
        parts = _mapping(parts, "policy.parts", parts)
        rules = _rules(settings.pop("rules", []))
        try:
            policy = replace(makers[preset](base_format), **settings).with_rules(*_operand_exceptions(but), *rules)
        except FormatError as error:
            raise FormatError(f"policy: {error}") from None
        for name, part_policy in parts.items():
            try:
                policy = policy.with_part(name, cls.parse(part_policy, format))
            except FormatError as error:
                raise FormatError(f"policy.parts.{name}: {error}") from None
        return policy

    @classmethod
    def load(cls, path: str | Path, format: Format | str = "fp32") -> Policy:
        """Returns the policy described by a YAML file, such as the output of ``roundoff allocate``; see :meth:`parse`.

        Raises:
            FormatError: it cannot be read, or a key or value is wrong.
        """
        return cls.parse(read_description(path), format)

    def as_json(self) -> dict[str, Any]:
        """Returns the policy as plain data for :meth:`parse`: settings that differ from the defaults, and all rules."""
        data = plain_data(self)
        if self.rules:
            data["rules"] = [plain_data(rule) for rule in self.rules]
        return data

    def __str__(self) -> str:
        return "\n  ".join([text(self), *map(str, self.rules)])

    def arithmetic(self, operation: str, module: str = "", role: str = Role.FORWARD) -> tuple[Arithmetic, list[Rule]]:
        """Returns the arithmetic of an operation at a place, and the rules that apply."""
        matched = [rule for rule in self.rules if rule.matches(operation, module, role)]
        if not matched and not isinstance(self.accumulate, PassSums):  # the same for all operations: made once
            return self._without_rules, matched
        settings: dict[str, Any] = {name: getattr(self, name) for name in SETTINGS}
        # Rules about operands say which roundings come before the operation; they set nothing of the operation.
        of_operands = [rule for rule in matched if rule.about_operands and role != Role.OPTIMIZER]
        if "attention" in operation:  # attention multiplies no weight
            of_operands = [rule for rule in of_operands if rule.product is None]
        for rule in matched:
            if not rule.about_operands:
                settings |= {name: getattr(rule, name) for name in SETTINGS if getattr(rule, name) is not None}
        if isinstance(sums := settings["accumulate"], PassSums):  # two accumulators, one of them for this role
            settings["accumulate"] = sums.backward if role == Role.BACKWARD else sums.forward
        return Arithmetic(**settings, of_operands=tuple(of_operands)), matched

    @cached_property
    def _without_rules(self) -> Arithmetic:  # of most operations, and the same object for all of them
        settings: dict[str, Any] = {name: getattr(self, name) for name in SETTINGS}
        return Arithmetic(**settings, of_operands=())

    def reaches(self, operations: Iterable[str], module: str, role: str) -> bool:
        """Whether the policy changes the arithmetic of any of these operations at this place."""
        for operation in operations:
            a, _ = self.arithmetic(operation, module, role)
            if str(a.format) != "fp32" or any((a.operands, a.of_operands, a.accumulate)):
                return True
        return False

    @property
    def shares_scales(self) -> bool:
        """Whether any format has scales that values share with their neighbours."""
        return not all(fmt.elementwise for fmt in (*self.formats(), *self.settings("operands")))

    def formats(self) -> list[Format]:
        """Returns the formats of the policy and its rules, each once."""
        return list(dict.fromkeys(fmt for fmt in self.settings("format") if isinstance(fmt, Format)))

    @property
    def rounds_results(self) -> bool:
        """Whether the results of any operation are rounded, not only operands."""
        named = (self.format, *(rule.format for rule in self.rules if not rule.about_operands))
        return any(isinstance(fmt, Format) and not fmt.native for fmt in named)

    @property
    def rounds_nothing(self) -> bool:
        """Whether neither the policy nor a rule rounds anything: every format is fp32."""
        formats = [*self.formats(), *self.settings("operands")]
        return not self.settings("accumulate") and all(fmt == FP32 for fmt in formats)

    def settings(self, name: str) -> list[Any]:
        """Returns the values of one setting, of the policy and of every rule that has it."""
        values = (getattr(self, name), *(getattr(rule, name) for rule in self.rules))
        return [value for value in values if value is not None]

    @property
    def tells_products_apart(self) -> bool:
        """Whether a rule is about weights, activations or gradients, which the simulation must then distinguish."""
        return any(role in MULTIPLIED_ROLES for rule in self.rules for role in rule.role)

    @property
    def depends_on_place(self) -> bool:
        """Whether the arithmetic depends on modules, parts or roles, which the simulation must then follow."""
        by_pass = any(isinstance(sums, PassSums) for sums in self.settings("accumulate"))
        return self.names_modules or bool(self.within) or by_pass or any(rule.role != ("*",) for rule in self.rules)

    @property
    def names_modules(self) -> bool:
        """Whether a rule is about modules of some name."""
        return any(rule.module != ("*",) for rule in self.rules)

    @property
    def within(self) -> tuple[str, ...]:
        """The patterns that rules use to name functions and other parts of the program, each once."""
        named = (pattern for rule in self.rules for pattern in rule.within)
        return tuple(dict.fromkeys(pattern.removeprefix("!") for pattern in named if pattern not in ("", "*")))

    @property
    def depends_on_roles_alone(self) -> bool:
        """Whether the arithmetic depends on the role only: on no module or part, and not on whole optimizer steps."""
        steps = (OPTIMIZER_STEP, "", Role.OPTIMIZER)
        return not self.names_modules and not self.within and not any(rule.matches(*steps) for rule in self.rules)


def _functions(value: object, name: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if isinstance(names, (tuple, list)) and all(isinstance(text, str) and _FUNCTION.fullmatch(text) for text in names):
        return tuple(names)
    raise FormatError(
        f"{name} of a policy must be functions as package.module:function or package.module:Class.method, got {value!r}"
    )


def _rules(rules: object) -> list[Rule]:
    """Parses rules from plain data."""
    if not isinstance(rules, (list, tuple)):
        raise FormatError(f"policy.rules must be a list of mappings, got {rules!r}")
    parsed = []
    for number, rule in enumerate(rules):
        place = f"policy.rules[{number}]"
        keys = _mapping(rule, place, {f.name for f in fields(Rule)})
        try:
            parsed.append(Rule(**keys))
        except FormatError as error:
            raise FormatError(f"{place}: {error}") from None
    return parsed


def _combine_within(within: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Combines the patterns ``names`` with ``within``, which may only leave names out."""
    if any(not pattern.startswith("!") and pattern != "*" for pattern in within):
        raise FormatError(
            f"a rule of the policy of a part cannot be within another part ({', '.join(within)}): add it behind"
        )
    return (*names, *(pattern for pattern in within if pattern != "*"))


def _operand_exceptions(modules: str | Sequence[str]) -> list[Rule]:
    """Returns the rule that leaves the operands of products in these modules unrounded; none without modules."""
    return [Rule(CONTRACTIONS, modules, MULTIPLIED_ROLES, format="fp32")] if modules else []


def _mapping(value: object, place: str, allowed: Iterable[str]) -> dict[str, Any]:
    if not hasattr(value, "keys"):
        raise FormatError(f"{place} must be a mapping, got {value!r}")
    settings: dict[str, Any] = dict(value)  # type: ignore[call-overload]
    for key in settings:
        if key not in allowed:
            raise FormatError(f"{place} has an unknown key {key!r}: allowed are {', '.join(sorted(allowed))}")
    return settings
