"""How inductor writes roundings to float formats as C++."""

import platform

import pytest
import torch
from comparing import same_bits
from families_exact import random_patterns
from torch._inductor.utils import run_and_get_code

from roundoff.formats import Format
from roundoff.formats.compiling import inductor
from roundoff.formats.compiling.float_data import float_data, round_float

NAMES = ["e5m10", "bf16"]  # by an addition, and bit by bit


def test_a_rounding_is_one_function_also_of_several_vectors():
    """A loop has two vectors of float32 for one of bfloat16."""
    torch._dynamo.reset()
    formats = [float_data(Format.parse(name), torch.float32, torch.device("cpu")) for name in NAMES]
    x = random_patterns(2000, torch.float32)

    def rounded(x, few):
        return [round_float(y, data.parameters, data.by_addition) for data in formats for y in (x, few.float())]

    given = x, x[:1500].bfloat16()
    # PyTorch's programs on disk do not know how their roundings were written.
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        found, (code,) = run_and_get_code(torch.compile(rounded, fullgraph=True), *given)
    assert all(map(same_bits, found, rounded(*given)))
    if platform.machine() == "x86_64" and inductor.pick_vec_isa().bit_width():
        assert "VectorizedN<float, 2> all" in code
        width = inductor.pick_vec_isa().bit_width()
        assert all(inductor._cpp_function(name, width) in code for name in inductor._BODIES)


def test_other_instructions_are_refused_as_before():
    with pytest.raises(NotImplementedError, match="inline_asm_elementwise"):
        inductor.CppOverrides.inline_asm_elementwise("x", asm="nop")
