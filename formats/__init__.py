"""What a number format is, and rounding a tensor into it."""

from .families.floats import FloatFormat  # in the order of imports, families are shown

# isort: split
from .arithmetic.elements import ScaleRule
from .base.errors import FormatError, RoundoffError
from .base.first_use import KernelWarning
from .base.format import Format
from .base.modes import Overflow, RandomBits, Rounding
from .base.names import Beginning, Suffix, register
from .families.block_float import BlockFloatFormat
from .families.fixed import FixedFormat
from .families.integer import IntegerFormat
from .families.logarithmic import LogarithmicFormat
from .families.mx import MXFormat
from .families.nvfp4 import NVFP4Format
from .families.posit import PositFormat
from .families.power_of_two import PowerOfTwoFormat
from .families.qtorch import QtorchFormat
from .families.quarl import QuarlFormat
from .families.scaled_float import ScaledFloatFormat
from .families.table import TableFormat
from .gradients import fake_round
from .packing import pack, unpack
from .rounding import round

__all__ = [
    "Beginning",
    "BlockFloatFormat",
    "FixedFormat",
    "FloatFormat",
    "Format",
    "FormatError",
    "IntegerFormat",
    "KernelWarning",
    "LogarithmicFormat",
    "MXFormat",
    "NVFP4Format",
    "Overflow",
    "PositFormat",
    "PowerOfTwoFormat",
    "QtorchFormat",
    "QuarlFormat",
    "RandomBits",
    "Rounding",
    "RoundoffError",
    "ScaleRule",
    "ScaledFloatFormat",
    "Suffix",
    "TableFormat",
    "fake_round",
    "pack",
    "register",
    "round",
    "unpack",
]
