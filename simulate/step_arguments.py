"""Arguments of a compiled step, and what decides which of its programs is theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from roundoff.simulate.found import identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_HOLDERS = (torch.nn.Module, torch.optim.Optimizer)


def kinds(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What tensors must have in common to be the same to a program."""
    return tuple([(x.shape, x.stride(), x.dtype, x.device, x.requires_grad) for x in tensors])


def settings() -> tuple[Any, ...]:
    """What PyTorch is set to, and a program is made for."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()


class Arguments(NamedTuple):
    """Arguments of a step: what a program takes of them, and what it is made for."""

    leaves: list[Any]
    spec: TreeSpec
    tensors: list[torch.Tensor]
    holders: tuple[object, ...]
    """Modules and optimizers among them."""
    key: tuple[Any, ...]

    @classmethod
    def of(cls, nested: tuple[Any, ...]) -> Arguments:
        """Nested tuples, lists and dicts, flat."""
        leaves, spec = tree_flatten(nested)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        holders = tuple([leaf for leaf in others if isinstance(leaf, _HOLDERS)])
        constants = tuple([type(leaf) if isinstance(leaf, _HOLDERS) else identity(leaf) for leaf in others])
        return cls(leaves, spec, tensors, holders, (spec, constants, kinds(tensors)))

    def filled_with(self, tensors: Iterator[torch.Tensor]) -> tuple[Any, ...]:
        """The arguments with the next of these tensors in place of their own."""
        given = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        nested: tuple[Any, ...] = tree_unflatten(given, self.spec)
        return nested
