"""The base of format families: rounding, codes, lists of values, and checks.

A family defines its rounding (``_round_memory``, by compiled loops) and its overflow policies besides saturation
(``_policy``); if it has codes, also ``_encoded``, the exact codes of rounded numbers, and ``_decoded``; if it lists
its numbers, ``_values``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import torch

from roundoff.locks import cached_property

from .errors import FormatError
from .first_use import is_correct, kind_of
from .format import Format, check_numbers
from .memory import has_kernels, in_memory, in_place_of, is_dense, is_virtual, materialized, unsimulated
from .modes import Overflow, Random, RandomBits, Rounding, RoundingOptions, check_choices, seeded
from .on_device import is_captured
from .operator import as_operator
from .random_words import check_words

_MOST_LISTED_BITS = 16  # 65,536 values in float64: half a megabyte.


class LoopByAddress(Protocol):
    """A compiled loop and its parameters; see :class:`.cpu.addressed.Addressed`."""

    calling: Any
    parameters: int

    def address(self, *, in_place: bool) -> int:
        """Returns the address of its code."""


class Family(Format):
    """A format with compiled loops for the CPU's memory; tensors on devices without kernels are copied there."""

    def rounded(
        self,
        x: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: Random = None,
    ) -> torch.Tensor:
        """See :meth:`.Format.rounded`."""
        place = _find_residence(x, random)
        if place is Residence.OPERATOR:
            self._policy(overflow)  # Checked now, since a graph runs the operator later.
            self._check_shape(x)
            return as_operator(x, self, rounding, overflow, random)
        if place is Residence.COPY:
            x = materialized(x)
            place = _find_residence(x, random)  # The copy of a lazily negated tensor has another residence.
        if place is Residence.MEMORY and not is_dense(x):
            x = target = x.clone(memory_format=torch.preserve_format)  # a dense copy, rounded in place
        else:
            target = torch.empty_like(x)  # Has the strides of x if x is dense.
        self._round(place, x, target, rounding, overflow, random)
        return target

    def round_into(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: Random = None,
    ) -> None:
        """See :func:`roundoff.formats.round`, and the class for NaN, infinity and -0."""
        place = _find_residence(source, random, target)
        if place in (Residence.MEMORY, Residence.DEVICE):
            self._round(place, source, target, rounding, overflow, random)
        else:
            target.copy_(self.rounded(source, rounding, overflow, random))

    def _round(
        self, place: Residence, source: torch.Tensor, target: torch.Tensor, rounding: Rounding,
        overflow: Overflow | None, random: Random,
    ) -> None:  # fmt: skip
        """Rounds ``source`` into ``target``, both in the CPU's memory or on a device with kernels."""
        if place is Residence.MEMORY:
            self._round_plain(source, target, rounding, overflow, random)
            return
        options = self._options(source, rounding, overflow, random)  # Also checked if there are no elements.
        if not source.numel():
            return
        layout = "in order" if source.is_contiguous() and target.is_contiguous() else "strided"
        if place is Residence.DEVICE and self._kernel_is_right(source, options, layout, self._round_on_device):
            self._round_on_device(source, target, options)
        else:
            self._round_on_cpu(source, target, options)

    def _round_plain(
        self, source: torch.Tensor, target: torch.Tensor, rounding: Rounding, overflow: Overflow | None, random: Random
    ) -> None:
        """Rounds ``source`` into ``target``, both in the CPU's memory."""
        options = self._options(source, rounding, overflow, random)
        if source.numel():
            in_place_of(self._round_memory, source, target, options, in_order=random is not None or self._in_order)

    def _kernel_is_right(
        self,
        source: torch.Tensor,
        options: RoundingOptions,
        layout: str,
        kernel: Callable[[torch.Tensor, torch.Tensor, RoundingOptions], None],
    ) -> bool:
        """Whether a kernel rounds such tensors correctly; tested at the first use of its kind (:mod:`.first_use`)."""
        # Faster to hash than the kind, which contains the text of the format.
        key = (source.dtype, source.device, options.rounding, options.policy, type(options.random), layout)
        correct = self._correct_kernels.get(key)
        if correct is None:
            kind = kind_of(self, source, options, layout)
            correct = is_correct(kind, options, source.dim(), kernel, self._round_on_cpu)
            if not is_captured():  # During a capture nothing was tested.
                self._correct_kernels[key] = correct
        return correct

    @cached_property
    def _correct_kernels(self) -> dict[Any, bool]:
        """Whether the kernel is correct, for the kinds of rounding tested so far."""
        return {}

    def _options(
        self, source: torch.Tensor, rounding: Rounding, overflow: Overflow | None, random: Random
    ) -> RoundingOptions:
        options = RoundingOptions(rounding, self._policy(overflow), random)
        self._check_shape(source)
        if rounding is not Rounding.NEAREST_EVEN or random is not None:
            check_random(rounding, random, source)
        return options

    def _policy(self, overflow: Overflow | None) -> Overflow:
        """Returns the overflow policy: the requested one, or the format's own; saturation, if the family lacks one.

        Raises:
            FormatError: the format lacks the requested policy.
        """
        return overflow_policy(self, overflow, (Overflow.SATURATE,))

    def _check_shape(self, x: torch.Tensor) -> None:
        """Raises FormatError if the format cannot divide a tensor of the shape of ``x`` into blocks."""

    @unsimulated
    def encode(
        self,
        x: torch.Tensor,
        rounding: Rounding | str = Rounding.NEAREST_EVEN,
        overflow: Overflow | str | None = None,
        random: Random = None,
        *,
        seed: int | None = None,
    ) -> Any:
        """See :meth:`.Format.encode`; the type of the codes is documented at each family's ``_encoded``."""
        random = seeded(random, seed)
        mode, overflow_choice = check_choices(rounding, overflow, random)
        policy = self._policy(overflow_choice)
        check_numbers(x)
        x = x.detach() if torch.compiler.is_compiling() else materialized(x.detach())
        check_random(mode, random, x)
        return self._encoded(x, RoundingOptions(mode, policy, random))

    @unsimulated
    def decode(self, codes: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """See :meth:`.Format.decode`."""
        return self._decoded(codes, dtype)

    @unsimulated
    def values(self) -> torch.Tensor:
        """See :meth:`.Format.values`."""
        if self.bits > _MOST_LISTED_BITS:
            raise FormatError(f"{self} has 2^{self.bits} codes, too many to list: the limit is 2^{_MOST_LISTED_BITS}")
        return self._values()

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> Any:
        """Rounds ``x``, a strided tensor of float32 or float64, and returns the exact codes of the result."""
        return super().encode(x, options.rounding, options.policy, options.random)

    def _rounded_to_encode(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor:
        """Rounds ``x`` in its dtype, or in float64 if its dtype cannot represent every number of the format."""
        x = x if self.fits_in(x.dtype) else x.to(torch.float64)
        return self.rounded(x, options.rounding, options.policy, options.random)

    def _decoded(self, codes: Any, dtype: torch.dtype | None) -> torch.Tensor:
        """Returns the numbers that codes represent."""
        return super().decode(codes, dtype)

    def _values(self) -> torch.Tensor:
        """Lists all finite numbers in ascending order, float64; called for formats of at most 16 bits."""
        return super().values()

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> LoopByAddress | None:  # noqa: ARG002
        """Returns the loop that rounds memory of ``dtype`` in a mode, for callers in C++; None if there is none.

        ``strided``: the loop for blocks along an axis other than the contiguous one.
        """
        return None

    @property
    def _in_order(self) -> bool:
        """Whether :meth:`_round_memory` requires elements in row-major order, in every mode."""
        return False

    @abstractmethod
    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        """Rounds dense, not empty tensors with equal strides; contiguous ones if there are random bits."""

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        """Rounds tensors, of any strides and not empty, on a device that has kernels."""
        self._round_on_cpu(source, target, options)

    @unsimulated
    def _round_on_cpu(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        """Rounds not empty tensors of any device by the CPU's loops, in copies.

        Raises:
            FormatError: a CUDA graph is being captured, which cannot repeat the copies.
        """
        if is_captured():
            raise FormatError(
                f"no kernel rounds to {self} on {source.device}: the CPU does, and a CUDA graph cannot repeat that"
            )
        if isinstance(options.random, torch.Tensor):  # Hashed words are the same on every device.
            options = options._replace(random=options.random.cpu())
        numbers = source.cpu()
        rounded = torch.empty_like(numbers)
        in_place_of(
            self._round_memory, numbers, rounded, options, in_order=options.random is not None or self._in_order
        )
        target.copy_(rounded)


class Residence(Enum):
    """The place of a tensor's elements, which decides how they are rounded."""

    MEMORY = auto()
    """In the CPU's memory: a loop rounds them."""
    DEVICE = auto()
    """On a device with kernels: a kernel rounds them."""
    OPERATOR = auto()
    """Not computed yet, or inside a wrapper: an operator rounds them, for which graphs and wrappers have rules."""
    COPY = auto()
    """Anywhere else: a loop rounds a copy in the CPU's memory."""


def _find_residence(x: torch.Tensor, random: Random, target: torch.Tensor | None = None) -> Residence:
    """Decides where ``x`` is rounded with its random bits, into ``target`` if there is one."""
    words = random if isinstance(random, torch.Tensor) else None
    # The usual case comes first, since this runs at every rounding.
    if in_memory(x) and (words is None or in_memory(words)) and (target is None or target is x or in_memory(target)):
        return Residence.MEMORY
    if torch.compiler.is_compiling() or is_virtual(x) or x.is_meta or (words is not None and is_virtual(words)):
        return Residence.OPERATOR
    return Residence.DEVICE if has_kernels(x) and (target is None or has_kernels(target)) else Residence.COPY


def check_integer(owner: str, name: str, value: object, allowed: range) -> None:
    """Raises FormatError unless ``value`` is an integer in ``allowed``."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:  # True is also an int.
        raise FormatError(f"{name} of {owner} must be an integer from {allowed[0]} to {allowed[-1]}, got {value!r}")


def overflow_policy(fmt: Format, requested: Overflow | str | None, allowed: Sequence[Overflow]) -> Overflow:
    """Returns the overflow policy: the requested one, or the format's own, which comes first in ``allowed``.

    Raises:
        FormatError: the format lacks the requested policy.
    """
    if requested is None:
        return allowed[0]
    policy = Overflow.parse(requested)
    if policy not in allowed:
        raise FormatError(
            f"overflow of {fmt} must be {' or '.join(allowed)}, got {str(policy)!r}: it has no such number"
        )
    return policy


def check_random(rounding: Rounding, random: Random, like: torch.Tensor) -> None:
    """Raises FormatError unless ``random`` suits the mode and, if it is a tensor, the elements of ``like``."""
    check_choices(rounding, None, random)
    if random is not None and not isinstance(random, RandomBits):
        check_words(random, like)


def check_encodable(fmt: object, x: torch.Tensor) -> None:
    """Raises FormatError if ``x`` holds a NaN, for formats without NaN."""
    if bool(x.isnan().any()):
        raise FormatError(
            f"{fmt} has no NaN, and the tensor to encode holds one; replace it first, see torch.nan_to_num"
        )
