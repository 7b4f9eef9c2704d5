"""Number formats, and rounding tensors into them."""

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

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
from .packing import pack, unpack
from .rounding import round

# isort: split
# For the other folders, which import nothing from behind this face; no part of the public interface.
from .base.memory import is_traced as is_traced
from .base.memory import unsimulated as unsimulated
from .base.on_device import where as where
from .families.integer import Quantized as Quantized
from .packing import packed_size as packed_size
from .scales.calibration import scales_of as scales_of
from .scales.shared_scale import ROW as ROW
from .tools.recursions import bits_needed as bits_needed
from .tools.recursions import least_change as least_change
from .tools.recursions import reach as reach

if TYPE_CHECKING:
    from .base.first_use import tried_kinds as tried_kinds
    from .cpu.c_functions import folder_of_loops as folder_of_loops
    from .tools.plot import plot_formats as plot_formats
    from .tools.table import aligned as aligned
    from .tools.table import describe as describe
    from .tools.table import facts as facts
    from .tools.table import format_table as format_table
    from .tools.table import parsed as parsed
    from .tools.vectors import golden_vectors as golden_vectors
    from .tools.verify import verify as verify

__all__ = [
    "Beginning", "BlockFloatFormat", "FixedFormat", "FloatFormat", "Format", "FormatError", "IntegerFormat",
    "KernelWarning", "LogarithmicFormat", "MXFormat", "NVFP4Format", "Overflow", "PositFormat", "PowerOfTwoFormat",
    "QtorchFormat", "QuarlFormat", "RandomBits", "Rounding", "RoundoffError", "ScaleRule", "ScaledFloatFormat",
    "Suffix", "TableFormat", "pack", "register", "round", "unpack",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
