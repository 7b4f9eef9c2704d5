"""The plain operations of a simulation, which C++ runs: their kernel computes the results, and a loop rounds them.

This module decides by the operation and the simulation. The C++ decides by the arguments of each call: it takes those
where all are ordinary tensors in the CPU's memory, of float32, float64, integers or booleans, without marks about their
values. The simulation must also be the innermost mode, and outer modes change nothing; no mode or class is just being
called, and no block is in a generator or coroutine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...formats import Format, Rounding
from ...formats.cpu.threads import ELEMENTS_PER_THREAD
from ..aten import products
from ..aten.contracted_axes import has_blocks, is_operand
from ..aten.outputs import writes_of
from ..aten.schemas import argument_names, schema_of
from ..aten.tables import BLANK
from ..aten.whole_numbers import numbers_given
from ..marks.table import Mark
from .library import NAMESPACES, Description, ExactArithmetic, LoopAddresses
from .loops import CARRIERS, Loops, PlanOfOperation
from .seen_products import ROLES, Counted, seen_products
from .stand_ins import StandsFor, address, meaning_of

_MOST_ARGUMENTS = 64  # the bits of a mask
_aten = torch.ops.aten
_PIECES = {
    **dict.fromkeys((_aten.add_.Tensor, _aten.sub_.Tensor, _aten.mul_.Tensor, _aten.div_.Tensor), 1),
    **dict.fromkeys((_aten.lerp_.Scalar, _aten.addcmul_.default, _aten.addcdiv_.default), 1),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor), 2),
    _aten.sqrt.default: 2,
}
"""Elementwise operations that may be run piece by piece: 1: in place, 2: by the variant with ``out``."""
_IN_PYTHON, _ROUNDED = 1, 2
"""The treatment of parameters that an operation sees rounded; see ``memory.h``."""
_INSIDE, _UNLESS_GRADIENT, _WEIGHTS = 1, 2, 3
"""The notes about an operation where rules are about operands of some role; see ``memory.h``."""


class Notes(NamedTuple):
    """The kinds of notes that a simulation takes, apart from marks on tensors."""

    tracks_integers: bool
    """Whether notes are taken of memory that holds integers."""
    notes_single: Callable[[str], bool] | None
    """Whether the effect of rounding on one-element results of an operation is noted, by its name; for other operations
    it is if an operand is such a result. None: never."""
    always_noted: Collection[str]
    """Operations with notes about the effect of rounding on every result."""
    noted_for_integers: Collection[str]
    """Operations with notes about the effect of rounding on results, where an operand holds integers."""
    tracks_operands: bool
    """Whether operands are distinguished by marks on their memory."""
    draws: Callable[[OpOverload], bool]
    """Whether an operation draws random numbers; their later use is noted."""


def reasons_against(plan: PlanOfOperation, notes: Notes, loops: Loops) -> Iterator[str]:
    """Yields the reasons why an operation is not plain; none if it is plain."""
    operation = plan.operation
    if not isinstance(operation, torch._ops.OpOverload) or operation.namespace not in NAMESPACES:  # noqa: SLF001  its only name
        yield "it is neither of ATen nor of PyTorch's profiler"
        return
    meaning = meaning_of(plan.kernel)
    is_known = meaning is not None and meaning.runs_itself
    runs_itself = plan.kernel is operation or _first_matrix(plan) >= 0 or is_known
    tests = {
        "it is decomposed into other operations": plan.decomposition is not None,
        "its sums are accumulated by the policy's accumulator": plan.accumulate,
        "its operands are looked at before it runs": plan.prepares
        and not _only_rounds_operands(plan, loops)
        and seen_products(plan, loops) is None,
        "it stays unrounded among the program's own float32 tensors": plan.spares,
        "it communicates": plan.settles or plan.passes_on,
        "it hands over data from outside": plan.outputs.lifts,
        "something other than its kernel computes it, or inspects its results": not runs_itself,
        "it has more arguments than fit in a mask": len(schema_of(operation).arguments) > _MOST_ARGUMENTS,
        "its results are not rounded by a loop of their own": plan.rounds
        and (plan.outputs.results or bool(plan.outputs.written))
        and not any(_result_loops(plan, loops).values()),
        "the effects of rounding on its results are counted": plan.rounds and plan.name in notes.always_noted,
        "it draws numbers that may become a weight's noise": notes.tracks_operands and notes.draws(operation),
        "it makes integers of tensors other than its first operand": notes.tracks_integers
        and _data_argument(plan) is None,
    }
    yield from (reason for reason, holds in tests.items() if holds)


def described(plan: PlanOfOperation, notes: Notes, loops: Loops) -> tuple[Description, list[Counted]] | None:
    """Returns the C++ description of a plain operation, and where it counts rounded operands; None if not plain."""
    if next(reasons_against(plan, notes, loops), None):
        return None
    assert plan.operation is not None
    # Collects the facts about results, integers and operands
    outputs, moves, rounding = plan.outputs, plan.moves, _result_loops(plan, loops)
    arguments = schema_of(plan.operation).arguments
    results = [i for i, views in enumerate(outputs.viewing) if not views and i not in outputs.auxiliary]
    adds_to_counts = bool(notes.tracks_integers and plan.counts and plan.counts.adds)
    data = _data_argument(plan) if notes.tracks_integers else -1
    numbers = numbers_given(plan.operation) if notes.tracks_integers and plan.counts and plan.counts.making else None
    meaning = meaning_of(plan.kernel) or StandsFor()
    loops_of_operands = _operand_loops(plan, loops)
    by_role = seen_products(plan, loops)
    operand_format = plan.arithmetic.operands if by_role is None and plan.prepares else None
    parameter_format = _parameter_format(plan, loops)
    counted = seen_rounded(plan) if operand_format or parameter_format else []
    counts = plan.counts if notes.tracks_integers else None
    heeds_integers = bool(counts and (counts.making or counts.writes or counts.noted))
    noted = (Mark.CHANGED | Mark.ANGLES) * bool(plan.rounds and plan.counts and plan.counts.noted)
    rule_modes = {rule.rounding for rule in plan.arithmetic.of_operands if plan.prepares}
    # Any stochastic rounding, of results or operands, makes the operation draw.
    modes = rule_modes | ({plan.arithmetic.rounding} if plan.rounds or plan.prepares else set())
    description = Description(
        single=rounding[torch.float32] or LoopAddresses(),
        twofold=rounding[torch.float64] or LoopAddresses(),
        rounds=plan.rounds,
        results=_bit_mask(results) if outputs.results else 0,
        written=_bit_mask(position for position, _ in outputs.written),
        dtypes=_bit_mask(i for i, argument in enumerate(arguments) if argument.name in ("dtype", "out_dtype")),
        data=-1 if data is None else data,
        heeds=Mark.INTEGERS * heeds_integers | noted,
        heeds_in_gradients=Mark.INTEGERS * bool(counts and counts.writes) | noted,
        makes_whole=0 if numbers is None else 1 + numbers[1],
        numbers_given=_bit_mask(numbers[0]) if numbers else 0,
        overwrites=_bit_mask(position for position, _ in plan.counts.writes) if numbers else 0,
        counts_up=notes.tracks_integers and plan.operation is torch.ops.aten.add_.Tensor,
        reads=meaning.reads,
        asks=meaning.asks,
        power=meaning.power,
        root=0 if meaning.roots is None else 1 + plan.name.endswith("_"),
        counts=(2 if plan.name.endswith("_") else 1) if adds_to_counts else 0,
        no_integers=plan.rounds and plan.name in notes.noted_for_integers,
        no_single=0 if notes.notes_single is None or not plan.rounds else 1 if notes.notes_single(plan.name) else 2,
        moves=moves is not None,
        large=2 * ELEMENTS_PER_THREAD,  # from here on, several threads round a tensor
        product=_first_matrix(plan),
        multiplications=products.MULTIPLICATIONS,
        operands=_place_mask(counted),
        single_operand=loops_of_operands[torch.float32] or LoopAddresses(),
        twofold_operand=loops_of_operands[torch.float64] or LoopAddresses(),
        draws=Rounding.STOCHASTIC in modes,
        converts=meaning.converts,
        pieces=_PIECES.get(plan.operation, 0) if plan.rounds else 0,
    )
    # Adds what only some operations have
    if notes.tracks_operands:
        description.following = {"optimizer": _INSIDE, "backward": _UNLESS_GRADIENT}.get(plan.role, _WEIGHTS)
        has_rules = plan.prepares and "parameters" in _roles_of_operands(plan)
        description.parameters = has_rules * (_ROUNDED if parameter_format else _IN_PYTHON)
        viewing = outputs.viewing or (False,) * len(schema_of(plan.operation).returns)
        description.made = _bit_mask(i for i, is_view in enumerate(viewing) if not is_view)
        description.changed = _bit_mask(position for position, _ in writes_of(plan.operation))
        description.blank = plan.operation.overloadpacket in BLANK
    if meaning.exact is not None:
        exact = meaning.exact
        description.exact = ExactArithmetic(exact.form, exact.of_lists, exact.in_place, ctypes.addressof(exact.ways))
    if meaning.roots is not None:
        description.single_root, description.twofold_root = (address(meaning.roots[dtype]) for dtype in CARRIERS)
    if moves is not None:
        description.numbers, description.combining, description.windows = map(
            _place_mask, (moves.numbers, moves.combining, moves.windows)
        )
        description.types, description.tensors = _place_mask(moves.types), _place_mask(moves.tensors)
        description.one_source = moves.single
    if by_role is None:
        return description, [(i, ("", name, str(operand_format or parameter_format))) for i, name in counted]
    description.products, counted_by_role = by_role
    return description, counted_by_role


def seen_rounded(plan: PlanOfOperation) -> list[tuple[int, str]]:
    """Returns the positions and names of the arguments that are rounded before the operation, and nothing else."""
    assert plan.operation is not None
    written = {name for _, name in plan.outputs.written}
    names = enumerate(argument_names(plan.operation))
    return [(i, name) for i, name in names if name not in written and is_operand(plan.name, name)]


def _only_rounds_operands(plan: PlanOfOperation, loops: Loops) -> bool:
    """Whether operands are rounded independently of each other and of roles, and Python numbers not at all."""
    arithmetic = plan.arithmetic
    if plan.multiplies or not _roles_of_operands(plan) <= {*ROLES, "parameters"}:
        return False
    if arithmetic.of_operands and arithmetic.operands is None:  # only rules about parameters get here
        return not (arithmetic.scalars == "rounded" and plan.rounds)
    if arithmetic.operands is None or has_blocks(arithmetic.operands):
        return False
    # Python numbers have no loop, and a format without one for any carrier is rounded in Python.
    if (arithmetic.scalars == "rounded" and plan.rounds) or not any(_operand_loops(plan, loops).values()):
        return False
    return not _takes_lists(plan) and meaning_of(plan.kernel) is None


def _roles_of_operands(plan: PlanOfOperation) -> set[str]:
    return {role for rule in plan.arithmetic.of_operands for role in rule.role}


def _bit_mask(positions: Iterable[int]) -> int:
    return sum(1 << position for position in set(positions))


def _place_mask(places: Iterable[tuple[int, str]]) -> int:
    return _bit_mask(position for position, _ in places)


def _first_matrix(plan: PlanOfOperation) -> int:
    """Returns the position of the first of two matrices that another library multiplies if they are large; else -1."""
    assert plan.operation is not None
    # The kernel of large products, as `aten/products.py` makes it, if small ones are the operation itself
    sums_by_size = isinstance(plan.kernel, partial) and plan.kernel.func is products.by_size
    if not sums_by_size or plan.kernel.args != (plan.operation,):
        return -1
    return int(plan.operation in (_aten.addmm.default, _aten.baddbmm.default))  # behind the addend


def _data_argument(plan: PlanOfOperation) -> int | None:
    """Returns the argument that is no data in calls that make integers; -1: none, or numbers decide; None: unknown."""
    counts = plan.counts
    assert plan.operation is not None
    if counts is None or counts.making is None or numbers_given(plan.operation) is not None:
        return -1
    if counts.making.of_first:  # it must hold integers
        return 0
    return 1 if plan.name == "copy_" else None


def _result_loops(plan: PlanOfOperation, loops: Loops) -> dict[torch.dtype, LoopAddresses | None]:
    """Returns the loops that round results in place, by carrier."""
    return loops.of(plan.arithmetic.format, plan.arithmetic.rounding, in_place=True)


def _operand_loops(plan: PlanOfOperation, loops: Loops) -> dict[torch.dtype, LoopAddresses | None]:
    """Returns the loops that round operands, or only parameters, into new memory, by carrier."""
    operands, rules = plan.arithmetic.operands, plan.arithmetic.of_operands
    if operands is None and _roles_of_operands(plan) == {"parameters"}:
        mode = plan.arithmetic.rounding if rules[-1].rounding is None else rules[-1].rounding
        return loops.of(_format_of(rules[-1]), Rounding(mode), in_place=False)
    if operands is None:
        return dict.fromkeys(CARRIERS)
    return loops.of(operands, plan.arithmetic.rounding, in_place=False)


def _parameter_format(plan: PlanOfOperation, loops: Loops) -> Format | None:
    """Returns the format of parameters, if rounding them is all that the operation needs before it runs; else None."""
    rules = plan.arithmetic.of_operands
    if not plan.prepares or plan.arithmetic.operands is not None or _roles_of_operands(plan) != {"parameters"}:
        return None
    if plan.multiplies or rules[-1].hadamard or meaning_of(plan.kernel) is not None:
        return None
    fmt = _format_of(rules[-1])
    if has_blocks(fmt) or _takes_lists(plan) or not any(_operand_loops(plan, loops).values()):
        return None
    return fmt


def _format_of(rule: Any) -> Format:
    fmt: Format = rule.format
    return fmt


def _takes_lists(plan: PlanOfOperation) -> bool:
    assert plan.operation is not None
    arguments = schema_of(plan.operation).arguments
    return any("List" in str(argument.type) and "Tensor" in str(argument.type) for argument in arguments)
