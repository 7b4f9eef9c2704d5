"""What a number format is, and rounding a tensor into it."""

from roundoff.formats.block import BlockFloatFormat
from roundoff.formats.codebook import TableFormat
from roundoff.formats.elements import ScaleRule
from roundoff.formats.errors import FormatError, RoundoffError
from roundoff.formats.fixed import FixedFormat
from roundoff.formats.floats import FloatFormat
from roundoff.formats.format import Format
from roundoff.formats.gradients import fake_round
from roundoff.formats.integer import IntegerFormat
from roundoff.formats.logarithmic import LogarithmicFormat
from roundoff.formats.modes import Overflow, RandomBits, Rounding
from roundoff.formats.mx import MXFormat
from roundoff.formats.nvfp4 import NVFP4Format
from roundoff.formats.packing import pack, unpack
from roundoff.formats.posit import PositFormat
from roundoff.formats.power_of_two import PowerOfTwoFormat
from roundoff.formats.qtorch_legacy import QtorchFormat
from roundoff.formats.rounding import round

__all__ = [
    "BlockFloatFormat",
    "FixedFormat",
    "FloatFormat",
    "Format",
    "FormatError",
    "IntegerFormat",
    "LogarithmicFormat",
    "MXFormat",
    "NVFP4Format",
    "Overflow",
    "PositFormat",
    "PowerOfTwoFormat",
    "QtorchFormat",
    "RandomBits",
    "Rounding",
    "RoundoffError",
    "ScaleRule",
    "TableFormat",
    "fake_round",
    "pack",
    "round",
    "unpack",
]
