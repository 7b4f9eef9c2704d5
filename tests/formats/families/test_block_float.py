import pytest
import torch
from block_exact import exact_block
from comparing import same_bits
from each import each
from families_exact import DETERMINISTIC, random_patterns, rounded
from tensor_roundings import by_operations

from roundoff.formats import FormatError
from roundoff.formats.arithmetic.elements import ScaleRule
from roundoff.formats.families.block_float import BlockFloatFormat
from roundoff.formats.families.mx import MXFormat


@each("rule", ScaleRule)
@pytest.mark.parametrize(("width", "block"), [(2, 4), (4, 7), (8, 16), (12, 16), (16, 3), (23, 9)])
def test_equals_rational_arithmetic(width, block, rule):
    fmt = BlockFloatFormat(width, block, scale_rule=rule)
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(30, block, generator=generator) * 2.0 ** torch.linspace(-148, 125, 30).round()[:, None]
    # Ties and near ties: numbers with one bit more than the format keeps.
    x[10:20] = (x[10:20] / 2.0 ** x[10:20].log2().nan_to_num(0).floor().amax() * 2.0**width).round() / 2.0**width
    for rounding in DETERMINISTIC:
        for dtype in (torch.float32, torch.float64):
            exact = [exact_block(row, fmt.element, rule, rounding) for row in x.tolist()]
            expected = torch.tensor([numbers for numbers, _ in exact], dtype=torch.float64).to(dtype)
            assert same_bits(rounded(fmt, x.to(dtype), rounding=rounding), expected)
            assert same_bits(by_operations(fmt, x.to(dtype), rounding=rounding), expected)
        stored = fmt.encode(x, rounding)
        assert same_bits(fmt.decode(stored), expected.float())


@pytest.mark.parametrize(("width", "block"), [(2, 1), (8, 16), (23, 33), (23, 32)])
def test_both_paths_agree_on_random_patterns(width, block):
    fmt = BlockFloatFormat(width, block)
    for x in (random_patterns(20_000, torch.float32, finite=True), torch.randn(20_000)):
        assert same_bits(rounded(fmt, x), by_operations(fmt, x))


def test_mxint8_is_block_floating_point_of_8_bits():
    x = torch.randn(5, 100)
    assert same_bits(rounded(BlockFloatFormat(8, 32), x), rounded(MXFormat("mxint8"), x))


def test_a_block_of_one_number_keeps_its_leading_bits():
    x = torch.tensor([1.75, -3.0, 0.15625, 0.0, -0.0])
    assert rounded(BlockFloatFormat(4, 1), x).tolist() == [1.75, -3.0, 0.15625, 0.0, 0.0]
    assert rounded(BlockFloatFormat(3, 1), x).tolist() == [1.5, -3.0, 0.125, 0.0, 0.0]


def test_blocks_lie_along_the_chosen_axis():
    x = torch.tensor([[8.0, 1.0], [0.3, 1.1]])
    assert rounded(BlockFloatFormat(4, 2, axis=0), x).tolist() == [[8.0, 1.0], [0.0, 1.0]]
    assert rounded(BlockFloatFormat(4, 2), x).tolist() == [[8.0, 0.0], [0.25, 1.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 16), "significand_bits .* from 2 to 23, got 1"),
        ((24, 16), "got 24"),
        ((8, 0), "block"),
        ((8, -1), "got -1"),
    ],
)
def test_impossible_formats_are_refused(arguments, message):
    with pytest.raises(FormatError, match=message):
        BlockFloatFormat(*arguments)
