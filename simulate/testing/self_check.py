"""Samples of what simulations compute, compared on the PyTorch that is installed: ``roundoff doctor --bits``.

The samples take seconds. They do not prove anything: they can show that an unchecked version of PyTorch has an
operation, a header or a compiler that differs from the assumptions of simulations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roundoff.pytorch.versions import compiling_on_any_version

from ...formats import Format, round
from ..compiling.population import PopulationStep
from ..compiling.step import CompiledStep
from ..dispatch.entry import simulate
from ..native import library as native

_FORMATS = ("e5m7", "posit8")
_TRAINED = ("e5m10", "e5m4", "e5m2")
_SHAPE = (4, 9, 16)


class BitCheck(NamedTuple):
    """The result of one kind of comparison: the number of compared values, and the differences."""

    what: str
    compared: int
    differing: tuple[str, ...] = ()
    reason: str | None = None
    """The reason why nothing could be compared, in words."""


def check_bits() -> list[BitCheck]:
    """Compares samples of operators, training steps, a compiled step and a population with eager bits.

    Returns:
        One check for each kind of sample.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reason is returned
        return [_check_operators(), _check_plain_operations(), _check_compiled_step(), _check_population()]


def _operators() -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Operators that are one kernel each, of two tensors of shape (4, 9, 16), the second one positive."""
    f = torch.nn.functional
    # Operators of several kernels would be rounded at each of them, and could not be compared with one rounding.
    line = torch.linspace(-1, 1, 16)
    return {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "sqrt": lambda _, y: y.sqrt(),
        "rsqrt": lambda _, y: y.rsqrt(), "reciprocal": lambda _, y: y.reciprocal(), "exp": lambda x, _: x.exp(),
        "expm1": lambda x, _: x.expm1(), "log": lambda _, y: y.log(), "log1p": lambda _, y: y.log1p(),
        "sin": lambda x, _: x.sin(), "cos": lambda x, _: x.cos(), "tanh": lambda x, _: x.tanh(),
        "sigmoid": lambda x, _: x.sigmoid(), "erf": lambda x, _: x.erf(), "relu": lambda x, _: x.relu(),
        "gelu": lambda x, _: f.gelu(x), "silu": lambda x, _: f.silu(x), "softplus": lambda x, _: f.softplus(x),
        "softmax": lambda x, _: x.softmax(-1), "log_softmax": lambda x, _: x.log_softmax(-1),
        "pow": lambda x, y: y.pow(x), "atan2": torch.atan2, "hypot": torch.hypot, "lerp": lambda x, y: x.lerp(y, 0.5),
        "addcmul": lambda x, y: torch.addcmul(x, x, y), "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
        "clamp": lambda x, _: x.clamp(-1, 1), "maximum": torch.maximum, "where": lambda x, y: torch.where(x > 0, x, y),
        "sum": lambda x, _: x.sum(), "mean": lambda x, _: x.mean(-1), "var": lambda x, _: x.var(-1),
        "prod": lambda _, y: y.prod(-1), "cumsum": lambda x, _: x.cumsum(-1), "logsumexp": lambda x, _: x.logsumexp(-1),
        "amax": lambda x, _: x.amax(-1), "vector_norm": lambda x, _: torch.linalg.vector_norm(x),
        "mm": lambda x, y: torch.mm(x[0], y[0].T), "bmm": lambda x, y: torch.bmm(x, y.mT),
        "addmm": lambda x, y: torch.addmm(line[:9], x[0], y[0].T), "mv": lambda x, _: torch.mv(x[0], line),
        "conv1d": lambda x, y: f.conv1d(x, y[:3, :, :3]), "layer_norm": lambda x, _: f.layer_norm(x, (16,), line, line),
        "group_norm": lambda x, _: f.group_norm(x, 3), "avg_pool2d": lambda x, _: f.avg_pool2d(x, 2),
        "max_pool2d": lambda x, _: f.max_pool2d(x, 2), "cat": lambda x, y: torch.cat((x, y)),
        "flip": lambda x, _: x.flip(0), "gather": lambda x, _: x.gather(0, torch.zeros(1, 9, 16, dtype=torch.int64)),
        "add_": lambda x, y: x.clone().add_(y),
    }  # fmt: skip


def _check_operators() -> BitCheck:
    """Checks that a simulated operator is its kernel with a rounded result."""
    differing, compared = [], 0
    generator = torch.Generator().manual_seed(0)
    # The second is positive, for roots, logarithms and quotients.
    drawn = torch.randn(_SHAPE, generator=generator), torch.randn(_SHAPE, generator=generator).abs() + 0.1
    for name in _FORMATS:
        fmt = Format.parse(name)
        # Numbers of the format, so that sums, products, quotients and roots are rounded once by rounding them twice.
        x, y = (round(z, fmt) for z in drawn)
        for operator, run in _operators().items():
            expected = [round(z, fmt) for z in _as_list(run(x, y))]
            with simulate(fmt):
                simulated = _as_list(run(x, y))
            compared += sum(z.numel() for z in simulated)
            if not _equal_values(expected, simulated):
                differing.append(f"{operator} in {name}")
    return BitCheck("operators", compared, tuple(differing))


def _check_plain_operations() -> BitCheck:
    """Checks that operations in C++ give the same bits as in Python."""
    if reason := native.reason_against_native():
        return BitCheck("operations in C++", 0, reason=reason)
    differing, compared = [], 0
    for name in (*_TRAINED, *_FORMATS):
        with _in_python():
            expected = _trained(simulate(name))
        in_native = _trained(simulate(name))
        compared += sum(z.numel() for z in in_native)
        if not _equal_values(expected, in_native):
            differing.append(f"training in {name}")
    return BitCheck("operations in C++", compared, tuple(differing))


def _check_compiled_step() -> BitCheck:
    differing, compared = [], 0
    for rounding in ("nearest_even", "stochastic"):
        compiled, eager = _member(0), _member(0)
        simulations = simulate(_TRAINED[1], rounding=rounding), simulate(_TRAINED[1], rounding=rounding)
        reasons: list[str] = []
        with compiling_on_any_version():
            step = CompiledStep(_step, simulations[0], on_eager=reasons.append)
            for _ in range(2):  # the first call compiles; the second one only runs
                result = [] if reasons else step(*compiled)  # a reason may come at once, or in the first call
                with simulations[1]:
                    expected = _step(*eager)
                if reasons:
                    return BitCheck("a compiled step", 0, reason=reasons[0])
                compared += sum(z.numel() for z in compiled)
                if not _equal_values([*expected, *eager], [*result, *compiled]):  # results, and changed arguments
                    differing.append(f"rounding {rounding}")
                    break
    return BitCheck("a compiled step", compared, tuple(differing))


def _check_population() -> BitCheck:
    simulations = [simulate(name) for name in _TRAINED]
    members = [_member(seed) for seed in range(len(simulations))]
    stacked = [torch.stack(tensors) for tensors in zip(*members, strict=True)]
    try:
        with compiling_on_any_version():
            results = PopulationStep(_step, simulations)(*stacked)
    except Exception as error:  # noqa: BLE001  whatever a compiler fails with
        return BitCheck("a population", 0, reason=(str(error).splitlines() or [type(error).__name__])[0])
    differing, compared = [], 0
    for i, simulation in enumerate(simulations):
        with simulation:
            expected = _step(*members[i])
        of_member = [z[i] for z in (*results, *stacked)]
        compared += sum(z.numel() for z in of_member)
        if not _equal_values([*expected, *members[i]], of_member):
            differing.append(_TRAINED[i])
    return BitCheck("a population", compared, tuple(differing))


def _step(w: Tensor, moment: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Forward, backward, an optimizer, in place."""
    leaf = w.detach().requires_grad_()
    h = torch.nn.functional.softplus(torch.tanh(x @ leaf.view(16, 16)))
    loss = (h - y).square()
    (gradient,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, 0.1))
    moment.mul_(0.9).add_(gradient, alpha=0.1)
    w.addcdiv_(moment, moment.abs().sqrt() + 0.3, value=-0.1)
    return loss.mean(), torch.softmax(h, -1).sum(0)


def _trained(simulation: Any) -> list[Tensor]:
    """Trains a small network with Adam inside a simulation; returns its parameters."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((16, 16), (16,), (16, 16), (16,))
    parameters = [torch.randn(size, generator=generator).mul_(0.3).requires_grad_() for size in sizes]
    x = torch.randn((16, 16), generator=generator)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    w, scale, v, shift = parameters
    with simulation:
        for _ in range(3):
            h = torch.nn.functional.layer_norm(x @ w, (16,), scale, shift).relu()
            loss = torch.nn.functional.cross_entropy(h @ v, torch.arange(16))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [parameter.detach() for parameter in parameters]


def _member(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((256,), (256,), (16, 16), (16, 16))]


def _as_list(results: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _equal_values(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> bool:
    """Whether all numbers are the same, NaN and the sign of zero included."""
    return all(  # bit patterns, since -0 equals 0; of NaN any pattern counts
        torch.equal(a.view(torch.int32).masked_fill(a.isnan(), 0), b.view(torch.int32).masked_fill(b.isnan(), 0))
        and torch.equal(a.isnan(), b.isnan())
        for a, b in zip(expected, (z.contiguous() for z in actual), strict=True)
    )


@contextmanager
def _in_python() -> Iterator[None]:
    """For the block, no operation of this thread runs in C++."""
    native.hold_thread(1)
    try:
        yield
    finally:
        native.hold_thread(-1)
