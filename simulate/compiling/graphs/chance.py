"""Random numbers that a compiled step draws: before the program runs, in the order of the step's draws.

A generator's output depends on the number of earlier draws, and inductor keeps no order. A draw that does not
depend on values (``torch.randn``, dropout's mask) is made from PyTorch's generator first, and is an input of the
program; the generator ends where it ends eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final, NamedTuple, final
from unittest.mock import patch

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ....formats import FormatError
from ...shadow.widening import draws_random

_aten = torch.ops.aten

# Draws that use only the shapes and types of their operands, so that they can be made before the program runs.
_VALUE_FREE = {
    _aten.rand, _aten.randn, _aten.randint, _aten.randperm, _aten.rand_like, _aten.randn_like, _aten.randint_like,
    _aten.exponential, _aten.uniform, _aten.cauchy, _aten.geometric, _aten.log_normal, _aten.random,
    _aten.normal_functional, _aten.bernoulli.p, _aten.normal.float_float,
}  # fmt: skip


class RandomCall(NamedTuple):
    """A call that draws random numbers, and depends on no value of a tensor."""

    draw: Callable[..., torch.Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> torch.Tensor:
        """Draws."""
        return self.draw(*self.args, **self.kwargs)


def _dropout_mask(like: torch.Tensor, p: float, generator: None = None) -> torch.Tensor:
    """A mask of dropout, with the layout of ``like``.

    It is drawn in place, as by the eager step: in the order of memory or of axes, which depends on the processor.
    """
    return like.new_empty_strided(like.shape, like.stride()).bernoulli_(p, generator=generator)


@contextmanager
def settings_of_the_generator() -> Iterator[list[str]]:
    """Yields a list of the functions that set the state of PyTorch's generator in this thread, while the block runs.

    Functions of ``torch.random`` are seen, under whatever name a program has imported them, and so is a new seed that
    the generator was given itself, unless another thread has set it meanwhile.
    """
    called: list[str] = []
    seed = torch.initial_seed()
    functions: Any = torch.random  # its functions look up the generator under this name
    recorder = _RecordingGenerator(functions.default_generator, called)
    with patch.object(functions, "default_generator", recorder):
        yield called
    # A program that holds the generator itself bypasses the recorder; then only a different seed shows it.
    if not called and not recorder.is_set_elsewhere and torch.initial_seed() != seed:
        called.append("default_generator.manual_seed")


@final
class _RecordingGenerator:
    """A generator that records how one thread sets it."""

    _SETTERS: Final = ("manual_seed", "seed", "set_state")

    def __init__(self, generator: Any, called: list[str]) -> None:
        self._generator, self._called, self._thread = generator, called, get_ident()
        self.is_set_elsewhere = False

    def __getattr__(self, name: str) -> Any:
        if name in self._SETTERS:
            if get_ident() == self._thread:
                self._called.append(f"default_generator.{name}")
            else:
                self.is_set_elsewhere = True
        return getattr(self._generator, name)


def drawn_before(graph: GraphModule, set_by: list[str]) -> tuple[list[RandomCall], list[torch.Tensor]]:
    """Turns the draws of a graph into inputs of the graph; returns the draws, and stand-ins for the new inputs.

    Args:
        graph: graph of a step; it is changed.
        set_by: functions that the step has used to set the state of the generator.

    Raises:
        FormatError: some depend on numbers that the step computes, and the order would be another; or the step sets the
            seed of the generator, or its state between numbers that it draws.
    """
    seeding = [name for name in set_by if not name.endswith(".set_state")]  # a state may be restored; a seed stays
    if seeding:
        raise FormatError(
            f"the step sets the seed of PyTorch's generator (torch.{seeding[0]}), which a compiled step would do once,"
            " and not in every call; set it outside"
        )
    drawing = [node for node in graph.graph.nodes if _draws(node)]
    if drawing and set_by:
        raise FormatError(
            f"the step draws random numbers and sets the state of PyTorch's generator (torch.{set_by[0]}), as"
            " torch.random.fork_rng and torch.utils.checkpoint also do; a compiled step draws before it runs, and would"
            " draw other numbers. Draw outside, and pass them as arguments; a checkpoint around nothing random takes"
            " preserve_rng_state=False"
        )
    dependent = [node for node in drawing if _VALUE_FREE.isdisjoint((node.target, node.target.overloadpacket))]
    # A single dependent draw at the end is in order: all other draws come before the program.
    if dependent and (len(dependent) > 1 or dependent[0] is not drawing[-1]):
        names = ", ".join(sorted({node.target.overloadpacket.__name__ for node in dependent}))
        raise FormatError(
            f"the step draws random numbers {len(drawing)} times, some of which depend on what it computes ({names}),"
            " and a compiled one would draw them in another order; draw them outside, and pass them as arguments"
        )
    draws, stand_ins = [], []
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for number, node in enumerate(node for node in drawing if node not in dependent):
        is_mask = node.target is _aten.bernoulli.p  # dropout's, and also bernoulli_'s after functionalization
        draws.append(RandomCall(_dropout_mask if is_mask else node.target, *map_arg((node.args, node.kwargs), _like)))
        drawn = (node.args[0] if is_mask else node).meta["val"]
        stand_ins.append(drawn.new_empty_strided(drawn.shape, drawn.stride()))
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"drawn_{number}")  # inputs keep the order of the draws
        last.meta["val"] = stand_ins[-1]
        node.replace_all_uses_with(last)
        graph.graph.erase_node(node)
    graph.recompile()
    return draws, stand_ins


def _draws(node: Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    operation: Any = node.target
    if not draws_random(operation, node.args, node.kwargs):
        return False
    if node.kwargs.get("generator") is not None:
        raise FormatError(
            "the step draws random numbers from its own generator, which a program cannot; draw them outside, and"
            " pass them as arguments, or leave the generator to PyTorch (torch.manual_seed)"
        )
    return True


def _like(node: Node) -> torch.Tensor:
    """An uninitialized tensor with the shape and type of a node's value."""
    x = node.meta["val"]
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
