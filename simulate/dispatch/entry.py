"""The function that makes a simulation, from a format and settings or from a policy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from ...formats import Format, Rounding
from ...formats.base.names import mistaken
from ..accumulation.description import Accumulation
from ..accumulation.fused_sum import FusedSum
from ..policy.policy import Policy
from ..presence.entering import SimulationWarning
from ..watching.watcher import Watcher
from .plan import UNSIMULATED
from .simulation import Simulation


def simulate(
    format: Format | str | Policy,
    *,
    rounding: Rounding | str | None = None,
    accumulate: Accumulation | FusedSum | str | None = None,
    granularity: str | None = None,
    scalars: str | None = None,
    islands: str | None = None,
    finfo: str | None = None,
    whole: str | None = None,
    random_bits: int | None = None,
    seed: int = 0,
    observe: bool = False,
    shadow: Literal["fp64"] | None = None,
    cost: bool = False,
    products: Literal["fast", "plain"] = "fast",
    root: torch.nn.Module | Sequence[torch.nn.Module] = (),
    watchers: Sequence[Watcher] = (),
) -> Simulation:
    """Rounds every floating-point result of every PyTorch operation in a ``with`` block to ``format``.

    ``with simulate("e5m10"): loss = model(x).sum(); loss.backward(); optimizer.step()`` runs unmodified code as
    hardware with that format would: forward, backward, optimizer, in-place, ``out=`` and foreach operations. Values
    live in their float32 or float64 tensors (the carrier). By default each ATen operation computes in its carrier and
    its results are rounded once, to nearest-even, as PyTorch's own half-precision kernels do; sums and products are
    accumulated in the carrier, and Python scalars stay exact. See :func:`roundoff.round` for infinities, NaN,
    signed zero, overflow and underflow; real and imaginary parts are rounded each on its own. A :class:`Policy`
    chooses the arithmetic by operation, module and role.

    Integers that are not data stay exact: casts of integers and booleans (but not of bytes, which are data),
    ``arange``, zeros and ones, counts, the steps of optimizers, and sums, products and moves of only such values.
    With data they give rounded results. Random numbers stay in the range that their operation promises.

    Views are unchanged, as are values from outside (parameters, data) until an operation computes with them; use
    ``roundoff.round`` to start from values of the format. Backward must be called inside the block to be rounded.
    A program's own float16 and bfloat16 tensors also hold values of the format: an operation computes with them in
    float32, and its results are rounded there, once.
    Simulations nest: the innermost wins. ``simulate("fp32")`` runs the program as it is, bit for bit, whatever its
    dtypes; for a program in float64 a :class:`SimulationWarning` says so.

    Args:
        format: a format or its name, or a policy. Formats with more than 10 significand bits need a float64 program.
        rounding: the mode; ``"stochastic"`` draws its bits from ``seed``, the step (:attr:`Simulation.step`), the
            number of the rounding within the step and the element: the same on every device, for any number of threads.
        accumulate: Accumulator of matrix products, convolutions and sums, such as ``"e5m10/32"``, or the matrix unit
            for products, such as ``"h100-fp8"``; see :class:`Accumulation` and :class:`FusedSum`.
        granularity: ``"primitive"`` takes composite kernels (softplus, layer norm, softmax, addcdiv, fused optimizers)
            apart and rounds each step of them; ``"kernel"`` is the default.
        scalars: Python numbers that meet tensors. ``"exact"``, the default: they are numbers of the carrier, and to the
            nearest PyTorch's kernels compute with them, which round to the carrier first. ``"once"``: results of
            arithmetic with them are also rounded once, to the nearest. ``"rounded"``: they are rounded to the format.
        islands: ``"exact"``: results that the program itself computes in float32, and not in float16 or bfloat16,
            are not rounded; ``"rounded"`` is the default.
        finfo: ``"format"``: ``torch.finfo`` describes the format, in this thread; ``"dtype"`` is the default.
        whole: ``"rounded"``: counts, steps and positions that the program keeps in floating-point tensors are rounded
            like all results; ``"exact"``, the default, leaves them whole.
        random_bits: the number of random bits of an element in stochastic rounding, 1 to 32 (the default); hardware
            often has few. They decide roundings to formats; the carrier's own roundings have 32.
        seed: seed of stochastic rounding.
        observe: count, per operation, module and role, what rounding does; see :meth:`Simulation.report`. A step
            then takes two to eight times as long.
        shadow: ``"fp64"``: carry a float64 twin of every value; see :meth:`Simulation.shadow_report`. Ten to
            fifty times slower than the plain program.
        cost: count, per operation, module and role, the costs of the program in these formats: products, bytes moved,
            memory; see :meth:`Simulation.cost`.
        products: ``"fast"``: large float32 matrix products are computed by the faster library of this machine
            (:mod:`.products`), which sums them in its own order; on an NVIDIA GPU, operands that a rule rounds
            to a format within float16 or bfloat16, by tensor cores (:mod:`.tensor_cores`), summed in float32.
            ``"plain"``: by PyTorch's choice.
        root: the module, or a list of modules, where module names in rules and reports begin. Without it names begin at
            the outermost module that is called, which is not the whole network where a program calls parts of it
            (``vae.encode(x)``).
        watchers: your own objects to call for every operation; see :class:`Watcher`.

    Returns:
        A context manager, which may be entered again, and is also a decorator: ``@simulate("e5m10")`` over a function
        makes a simulation for each call.

    Raises:
        FormatError: the format or setting does not exist; inside the block, an operation computed a tensor that cannot
            hold the format (float32 for a wide format, bfloat16 for e5m10), or sparse numbers.
    """
    settings = {
        "rounding": rounding, "accumulate": accumulate, "granularity": granularity, "scalars": scalars,
        "islands": islands, "finfo": finfo, "whole": whole, "random_bits": random_bits,
    }  # fmt: skip
    note = mistaken(format) if isinstance(format, str) else None  # the user may mean another format
    if note:
        warnings.warn(note, UserWarning, stacklevel=2)
    changes: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if rounding is not None and rounding != Rounding.NEAREST_EVEN and Policy.of(format) == UNSIMULATED:
        text = (
            f"rounding {rounding} changes nothing: {format} is fp32, which leaves results to PyTorch, also in float64"
            " programs; other formats round them"
        )
        warnings.warn(text, SimulationWarning, stacklevel=2)
    policy = replace(Policy.of(format), **changes)
    if policy.rules and policy.rounds_nothing:
        text = "the policy rounds nothing, since it names only fp32; PyTorch's mixed precision is in bf16 or fp16"
        warnings.warn(text, SimulationWarning, stacklevel=2)
    return Simulation(
        policy, seed=seed, observe=observe, shadow=shadow, cost=cost, products=products, root=root,
        watchers=watchers,
    )  # fmt: skip
