"""Rounding on a device, family by family: the choice of kernel, and its arguments.

Every function rounds ``source`` into ``target``: float32 or float64 on a device, not empty, of one shape; ``target``
may be ``source``. The parameters of a format are copied to the device once, and stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ..arithmetic.elements import Element
from ..arithmetic.float_parameters import FloatParameters
from ..base.modes import RandomBits, Rounding, RoundingOptions
from ..base.on_device import put_on, table_on
from ..cpu import float_choice
from ..cpu.numbers.logarithms import PowerCells
from ..cpu.numbers.tables import Table
from . import numbers, scaled
from .launch import kernel_of, round_blocks, round_each, run_each, run_many, settings_of

__all__ = ["run_each", "run_many"]

_CACHE_SIZE = 256  # Each entry is a few words on a device.


@lru_cache(_CACHE_SIZE)
def _float_data(parameters: FloatParameters, dtype: torch.dtype, device: torch.device, by_mode: bool) -> torch.Tensor:
    return put_on(parameters.packed(dtype, by_mode=by_mode), device)


@lru_cache(_CACHE_SIZE)
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return put_on(values, device, dtype)


def float_kernel(
    parameters: FloatParameters, dtype: torch.dtype, device: torch.device, options: RoundingOptions, *, signed: bool,
    listed: bool = False,
) -> tuple[Any, tuple[torch.Tensor, ...]]:  # fmt: skip
    """Returns the kernel and data that :func:`.run_each`, or :func:`.run_many` if ``listed``, needs to round to floats.

    Without a sign, negative numbers become 0.
    """
    by_mode, parts = True, {}  # The kernel of any mode, unless a faster one rounds in the same way.
    if not signed:
        number_of = numbers.unsigned_float
    elif options.rounding is Rounding.NEAREST_EVEN and parameters.infinite == parameters.over_positive:
        number_of, by_mode = numbers.float_nearest, False
        parts = float_choice.cheapest(parameters, dtype)._asdict()
    elif isinstance(options.random, RandomBits):
        number_of, parts = numbers.float_stochastic, float_choice.cheapest_random(parameters, dtype)._asdict()
    else:
        number_of = numbers.float_by_mode
    kernel = kernel_of(dtype, device, number_of, listed=listed, **parts)
    return kernel, (_float_data(parameters, dtype, device, by_mode),)


def to_scaled_float(
    source: torch.Tensor,
    target: torch.Tensor,
    parameters: FloatParameters,
    scale: torch.Tensor,
    options: RoundingOptions,
) -> None:
    """Rounds to floats over one scale, a tensor of one number on the device."""
    data = _float_data(parameters, source.dtype, source.device, True), scale
    round_each(source, target, options, numbers.scaled_float, data)


def to_scaled_blocks(
    source: torch.Tensor, target: torch.Tensor, where: tuple[int, int], parameters: FloatParameters, largest: float,
    options: RoundingOptions, *, power_of_two: bool,
) -> None:  # fmt: skip
    """Rounds to floats over a scale for each block; ``where`` is the blocks' axis and length."""
    dtype, device = source.dtype, source.device
    data = _float_data(parameters, dtype, device, True), _constants((largest, float(power_of_two)), dtype, device)
    parts = {"key_of": scaled.magnitude_key, "scale_of": scaled.largest_over_top, "number_of": scaled.float_over}
    round_blocks(source, target, *where, options, parts, data)


def to_grid(
    source: torch.Tensor, target: torch.Tensor, scale: float, zero: float, codes: tuple[int, int],
    options: RoundingOptions, *, between: bool = False,
) -> None:  # fmt: skip
    """Rounds to equally spaced numbers, with one known scale; ``between`` as for the CPU's ``round_channels``."""
    data = _grid((scale, zero, *codes), source.dtype, source.device)
    number_of = numbers.between_codes if between else numbers.on_one_grid
    round_each(source, target, options, number_of, (settings_of(options.rounding, source.device), data))


@lru_cache(_CACHE_SIZE)
def _grid(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    scale = torch.tensor(numbers[0], dtype=dtype, device="cpu")  # As the dtype represents it.
    return put_on((float(1 / scale), *numbers), device, dtype)


def to_wrapping_grid(
    source: torch.Tensor, target: torch.Tensor, scale: float, codes: tuple[int, int], options: RoundingOptions
) -> None:
    """Rounds to equally spaced numbers with codes that wrap round at their ends; the scale is a power of two."""
    data = _constants((1 / scale, scale, codes[1] - codes[0] + 1, *codes), source.dtype, source.device)
    round_each(source, target, options, numbers.wrapping, (settings_of(options.rounding, source.device), data))


def to_grids(
    source: torch.Tensor, target: torch.Tensor, layout: tuple[int, int], scales: torch.Tensor, zeros: torch.Tensor,
    codes: tuple[int, int], options: RoundingOptions,
) -> None:  # fmt: skip
    """Rounds to equally spaced numbers, with scales and zero points on the device.

    Args:
        source: see the module.
        target: see the module.
        layout: the number of neighbours in row-major order that share a scale, and the number of scales.
        scales: the scales, in the dtype of ``source``, in order; after the last one the first comes again.
        zeros: zero points, of the same dtype and number.
        codes: smallest and largest.
        options: the mode.
    """
    device = source.device
    data = (
        settings_of(options.rounding, device), (1 / scales).contiguous(), scales.contiguous(), zeros.contiguous(),
        _constants(codes, source.dtype, device), _constants(layout, torch.int64, device),
    )  # fmt: skip
    nearest = options.rounding is Rounding.NEAREST_EVEN
    number_of = numbers.on_grid_of_channel if nearest else numbers.between_codes_of_channel
    round_each(source, target, options, number_of, data, by_place=True)  # The position decides the scale.


def to_integer_blocks(
    source: torch.Tensor, target: torch.Tensor, where: tuple[int, int], codes: tuple[int, int], least: float,
    options: RoundingOptions, *, symmetric: bool,
) -> None:  # fmt: skip
    """Rounds to integers, with a scale and a zero point for each group; no scale is below ``least``."""
    data = settings_of(options.rounding, source.device), _constants((*codes, least), torch.float64, source.device)
    parts = {
        "key_of": scaled.magnitude_key if symmetric else scaled.order_key,  # Signs only count for a zero point.
        "scale_of": scaled.symmetric_range if symmetric else scaled.full_range,
        "number_of": scaled.nearest_code if options.rounding is Rounding.NEAREST_EVEN else scaled.code_between,
    }
    round_blocks(source, target, *where, options, parts, data)


def to_posit(
    source: torch.Tensor,
    target: torch.Tensor,
    width: int,
    exponent_bits: int,
    ends: tuple[int, int],
    options: RoundingOptions,
) -> None:
    """Rounds to posits, with the arguments of the CPU's ``round_posit``."""
    device = source.device
    data = settings_of(options.rounding, device), _constants((exponent_bits, width - 1, *ends), torch.int64, device)
    # A posit's nearest number is decided on the bit string, stochastic rounding on values.
    number_of = numbers.posit_by_mode if options.random is None else numbers.posit_stochastic
    round_each(source, target, options, numbers.posit if options.rounding is Rounding.NEAREST_EVEN else number_of, data)


def to_logarithmic(
    source: torch.Tensor, target: torch.Tensor, fraction_bits: int, zero: int, cells: PowerCells, powers: torch.Tensor,
    smallest: float | None, options: RoundingOptions,
) -> None:  # fmt: skip
    """Rounds to logarithmic numbers, with the arguments of the CPU's loops. Without ``smallest`` to the nearest."""
    device = source.device
    data = (
        settings_of(options.rounding, device), _constants((fraction_bits, zero), torch.int64, device),
        *(table_on(x, device) for x in (cells.below, cells.inside, powers)),
        _constants((smallest or 0.0,), torch.float64, device),
    )  # fmt: skip
    round_each(source, target, options, numbers.logarithmic if smallest is None else numbers.logarithmic_by_mode, data)


def to_powers_of_two(
    source: torch.Tensor, target: torch.Tensor, over: int, infinite: int, options: RoundingOptions
) -> None:
    """Rounds to E8M0, with the arguments of the CPU's loop."""
    data = settings_of(options.rounding, source.device), _constants((over, infinite), torch.int64, source.device)
    round_each(source, target, options, numbers.power_of_two, data)


def to_table(source: torch.Tensor, target: torch.Tensor, table: Table, options: RoundingOptions) -> None:
    """Rounds to the numbers of a table."""
    # A random word decides between the lower neighbour and the next number.
    device, mode = source.device, Rounding.DOWN if options.random is not None else options.rounding
    data = (
        settings_of(mode, device), table_on(table.values, device), table_on(table.thresholds[mode], device),
        _constants((table.values.numel(),), torch.int64, device),
    )  # fmt: skip
    round_each(source, target, options, numbers.in_table if options.random is None else numbers.drawn_from_table, data)


def to_scaled_table(
    source: torch.Tensor, target: torch.Tensor, where: tuple[int, int], table: Table, scales: tuple[float, float],
    options: RoundingOptions,
) -> None:  # fmt: skip
    """Rounds to a table's numbers times a scale for each block; ``scales`` are the smallest and the largest."""
    device, mode = source.device, Rounding.NEAREST_EVEN if options.random is not None else options.rounding
    data = (
        settings_of(mode, device), table_on(table.values, device), table_on(table.thresholds[mode], device),
        table_on(table.choices[mode], device), _constants((table.values.numel(),), torch.int64, device),
        _constants((table.largest, *scales), source.dtype, device),
    )  # fmt: skip
    number_of = scaled.nearest_in_table if options.rounding is Rounding.NEAREST_EVEN else scaled.between_in_table
    parts = {
        "key_of": scaled.magnitude_key,
        "scale_of": scaled.table_scale,
        "number_of": number_of if options.random is None else scaled.drawn_in_table,
    }
    round_blocks(source, target, *where, options, parts, data)


def to_elements(
    source: torch.Tensor, target: torch.Tensor, where: tuple[int, int], addend: int, element: Element,
    tensor_scale: torch.Tensor | None, options: RoundingOptions,
) -> None:  # fmt: skip
    """Rounds to elements over each block's scale: a power of two, or NVFP4's scale within the tensor's."""
    dtype, device = source.dtype, source.device
    fixed = (addend, element.emax, element.emin, element.significand_bits, int(element.signed_zero))  # p[0] to p[4]
    data = (
        settings_of(options.rounding, device), _constants(fixed, torch.int64, device),
        _constants((element.max,), torch.float64, device),
        _constants((0.0,), dtype, device) if tensor_scale is None else tensor_scale,
    )  # fmt: skip
    power = tensor_scale is None  # OCP MX and block floating point; otherwise NVFP4.
    parts = {
        "key_of": scaled.magnitude_key,
        "scale_of": scaled.shared_power if power else scaled.scale_within,
        "number_of": scaled.multiplied if power else scaled.divided,
    }
    round_blocks(source, target, *where, options, parts, data)


def as_qtorch(source: torch.Tensor, target: torch.Tensor, words: Sequence[int], options: RoundingOptions) -> None:
    """Rounds as qtorch 0.3.0 does; ``words`` are the parameters of the CPU's loop."""
    data = _constants(tuple(words), torch.uint32, source.device)
    round_each(source, target, options, numbers.as_qtorch, (data,))
