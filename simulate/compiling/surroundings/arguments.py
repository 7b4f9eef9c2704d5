"""Arguments of a compiled step: their program, the results in their memory, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ....formats import FormatError
from .found import identity

_kernels: Any = torch.backends.cuda  # also for the CPU
_HOLDERS = (torch.nn.Module, torch.optim.Optimizer)


def kinds(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Returns the properties that tensors must share for a program to treat them alike."""
    return tuple([(x.shape, x.stride(), x.dtype, x.device, x.requires_grad) for x in tensors])


def settings() -> tuple[Any, ...]:
    """Returns the PyTorch settings that a program is made for."""
    autocast = tuple([torch.is_autocast_enabled(x) and torch.get_autocast_dtype(x) for x in ("cpu", "cuda")])
    attention = _kernels.flash_sdp_enabled(), _kernels.math_sdp_enabled()  # which kernel attention takes
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), autocast, attention


def gradient_of(x: torch.Tensor) -> torch.Tensor | None:
    """Returns the gradient that a leaf of autograd has."""
    return x.grad if x.requires_grad and x.is_leaf else None


def repeated(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Returns for each tensor the first position of the same object; nothing if no tensor is repeated."""
    ids = [id(x) for x in tensors]
    if len(set(ids)) == len(ids):
        return ()
    return tuple([ids.index(x) for x in ids])


class Arguments(NamedTuple):
    """Arguments of a step: the inputs that a program takes from them, and the properties that it is made for."""

    leaves: list[Any]
    spec: TreeSpec
    tensors: list[torch.Tensor]
    holders: tuple[object, ...]
    """Modules, optimizers and other objects with attributes among them."""
    key: tuple[Any, ...]

    @classmethod
    def of(cls, nested: tuple[Any, ...]) -> Arguments:
        """Nested tuples, lists and dicts, flat."""
        leaves, spec = tree_flatten(nested)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        # Modules and optimizers are looked into, so only their type is a constant. Other objects can also change.
        holders = tuple([leaf for leaf in others if isinstance(leaf, _HOLDERS) or hasattr(leaf, "__dict__")])
        constants = tuple([type(leaf) if isinstance(leaf, _HOLDERS) else identity(leaf) for leaf in others])
        with_gradient = tuple([gradient_of(x) is not None for x in tensors])
        return cls(leaves, spec, tensors, holders, (spec, constants, kinds(tensors), with_gradient))

    def filled_with(self, tensors: Iterator[torch.Tensor]) -> tuple[Any, ...]:
        """The arguments with the next of these tensors instead of the original ones."""
        leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        nested: tuple[Any, ...] = tree_unflatten(leaves, self.spec)
        return nested


class ArgumentAlias(NamedTuple):
    """A result that is an argument, or a view of one."""

    argument: int
    itself: bool
    size: Sequence[int | torch.SymInt]
    stride: Sequence[int | torch.SymInt]
    offset: int | torch.SymInt
    """The distance from the first element of the argument."""

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result, for these arguments."""
        x = tensors[self.argument]
        return x if self.itself else x.detach().as_strided(self.size, self.stride, x.storage_offset() + self.offset)

    def of_members(self, x: torch.Tensor) -> ArgumentAlias:
        """Returns the alias for a population with the argument ``x``."""
        return self._replace(size=(len(x), *self.size), stride=(x.stride(0), *self.stride))


def alias_of(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> ArgumentAlias | None:
    """Returns the view of an argument that a result is; None if it has its own memory, or another dtype."""
    memory = memory_of(result)
    for i, x in enumerate(tensors):
        if result is x or (memory_of(x) == memory and x.dtype == result.dtype):
            offset = result.storage_offset() - x.storage_offset()
            return ArgumentAlias(i, result is x, result.shape, result.stride(), offset)
    return None


def layouts(tensors: Sequence[torch.Tensor]) -> list[object]:
    """Returns the memory layouts of tensors: equal as long as none is given another shape or other memory."""
    return [(memory_of(x), x.shape, x.stride(), x.storage_offset()) for x in tensors]


def check_kept(tensors: Sequence[torch.Tensor], before: list[object], gradients: Sequence[torch.Tensor | None]) -> None:
    """Refuses steps that change their arguments, after tracing, otherwise than by writing numbers.

    Args:
        tensors: stand-ins for the arguments.
        before: Their :func:`layouts` before the step.
        gradients: Their gradients before the step.
    """
    after = map(gradient_of, tensors)
    if any(x is not None and x is not y for x, y in zip(after, gradients, strict=True)):
        raise FormatError(
            "the step leaves gradients in the grad of an argument, where a compiled step cannot; take them from"
            " torch.autograd.grad"
        )
    if layouts(tensors) != before:
        raise FormatError(
            "the step gives an argument another shape or other memory (resize_, t_, squeeze_, .data = ...), which a"
            " compiled step cannot; let it return a new tensor"
        )


def memory_of(x: torch.Tensor) -> Hashable:
    """Returns a key that is equal for tensors that share memory."""
    if x.layout is not torch.strided:
        return id(x)
    return x.untyped_storage()._cdata  # type: ignore[no-any-return]  # noqa: SLF001  stand-ins have no address


def check_lazy(tensors: Sequence[torch.Tensor], among: Collection[int]) -> None:
    """Refuses tensors with values that differ from their memory, which a program would read instead."""
    for i in among:
        if tensors[i].is_neg() or tensors[i].is_conj():
            raise FormatError(
                f"tensor {i} of the arguments of a compiled step is a lazy negative or conjugate (a view of complex"
                " numbers); pass it with .resolve_neg() or .resolve_conj()"
            )


def check_shared(tensors: Sequence[torch.Tensor], written: Collection[int]) -> None:
    """Refuses arguments that share memory, with one another or within themselves, if they are written to."""
    owners: dict[int, int] = {}
    for i, x in enumerate(tensors):
        j = owners.setdefault(x.untyped_storage().data_ptr(), i)  # the first tensor with this memory
        if j != i and (i in written or j in written) and x.numel():
            raise FormatError(
                f"tensors {j} and {i} of the arguments of a compiled step share memory, and the step writes to one"
                " of them; pass the one and make the other from it inside"
            )
        if x.requires_grad and (x._base is tensors[j] or tensors[j]._base is x):  # noqa: SLF001  public nowhere
            raise FormatError(
                f"of tensors {j} and {i} of the arguments of a compiled step one is a view of the other, and both"
                " require gradients; pass the one and make the other from it inside"
            )
        if i in written and _overlaps(x):
            raise FormatError(
                f"tensor {i} of the arguments of a compiled step is expanded, several of its elements are one number,"
                " and the step writes to it; pass it with .clone()"
            )


def _overlaps(x: torch.Tensor) -> bool:
    """Whether several elements may be one number: some axis does not step over all elements of the narrower ones."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
