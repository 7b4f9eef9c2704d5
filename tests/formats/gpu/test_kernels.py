"""Every kernel by Triton's interpreter against the loops of the CPU, bit for bit."""

from typing import Any

import pytest
import torch
from comparing import numbers, same_bits
from each import each
from formats_exact import hash_reference
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.formats import Format, FormatError, RandomBits, Rounding, round, rounding
from roundoff.formats.base import family, memory
from roundoff.formats.base.modes import RoundingOptions
from roundoff.formats.base.names import FAMILIES
from roundoff.formats.base.random_words import CHUNK, key_base, keys
from roundoff.testing import formats

tl = pytest.importorskip("triton.language")

import quick_interpreter  # noqa: E402, F401

from roundoff.formats.gpu import launch  # noqa: E402
from roundoff.formats.gpu.places import word_of  # noqa: E402
from roundoff.formats.gpu.translation import in_triton  # noqa: E402

FORMATS = [
    *("e5m10", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2", "e3m0", "e8m23_nosub", "e5m10_ftz", "e4m3_daz", "e11m30"),
    *("float8_e4m3fnuz", "binary8p3ue", "e5m2_saturate", "e4m3_propagate", "fp32", "fp6_e2m3"),
    *("q4.6", "q4.6_wrap", "q0.8", "posit8_1", "posit16", "lns8_3", "lns16_8", "fp8_e8m0", "qtorch_e5m2"),
    *("int8", "uint8", "int8_ax0", "int8_g16", "uint8_row", "int4_ax1_p99", "uint4_g8_p90", "uint6_s0.25_z3"),
    *("mxfp8_e4m3", "mxfp4", "mxint8", "mxfp6_e3m2_ax0", "bfp8_16", "nvfp4", "nvfp4_b8_ax0", "nvfp4_b8_square"),
    *("nf4", "table[-1,0,0.5,1]_b8", "table[-2,0.25,3]_unscaled"),
    *("fp8_e4m3_tensor", "fp8_e5m2_row", "fp4_e2m1_b16_pow2", "quarl4", "quarl8_ax1", "quarl16"),
]
WIDENED = [
    fmt for fmt in FORMATS if Format.parse(fmt).carrier == torch.float32 and Format.parse(fmt).fits_in(torch.float64)
]
MODES = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def on_device(fmt, x, mode=Rounding.NEAREST_EVEN, random=None, target=None):
    """What the kernels make of a tensor; of one in the CPU's memory the interpreter runs them."""
    target = torch.empty_like(x) if target is None else target
    fmt._round_on_device(x, target, RoundingOptions(Rounding(mode), fmt._policy(None), random))
    return target


def rounds(fmt, mode):
    return not str(fmt).startswith("qtorch") or mode is Rounding.NEAREST_EVEN


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy tells of overflow
@each("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FORMATS)
def test_all_modes(name, dtype):
    """Formats are rounded in every mode in their own carrier, and in some modes, by turns, in the wider one."""
    fmt, number = Format.parse(name), FORMATS.index(name)
    if fmt.carrier == dtype:
        check_modes(fmt, dtype, MODES, range(3))
    elif fmt.fits_in(dtype):
        check_modes(fmt, dtype, {MODES[0], *MODES[1 + number % 2 :: 2]}, [number % 3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", WIDENED)
def test_all_modes_in_a_wider_carrier(name):
    check_modes(Format.parse(name), torch.float64, MODES, range(3))


def check_modes(fmt, dtype, modes, sources):
    x = torch.cat([numbers(1, 3, 37).to(dtype), numbers(2, 3, 37).to(dtype).nan_to_num(posinf=2.0, neginf=-3.0)])
    x[4] *= 1e-25
    edges = torch.tensor(fmt.edges()[:30], dtype=torch.float64).to(dtype)
    x[5, : len(edges)] = torch.where(edges.isfinite(), edges, 0.0)
    for mode in modes:
        if rounds(fmt, mode):
            assert same_bits(on_device(fmt, x, mode), fmt.rounded(x, mode)), mode
    words = torch.randint(0, 1 << 32, x.shape, generator=torch.Generator().manual_seed(3))
    randoms = RandomBits(3, 5), RandomBits(-1, 2**40, 7), words
    for random in [randoms[i] for i in sources if rounds(fmt, Rounding.STOCHASTIC)]:
        expected = fmt.rounded(x, Rounding.STOCHASTIC, None, random)
        assert same_bits(on_device(fmt, x, Rounding.STOCHASTIC, random), expected), random


@pytest.mark.parametrize("name", ["e5m10", "q4.6", "mxfp4"])
def test_words_of_the_caller_for_more_numbers_than_a_program_rounds(name):
    fmt, x = Format.parse(name), torch.randn(3, 1024, generator=torch.Generator().manual_seed(1))
    words = torch.randint(0, 1 << 32, x.shape, generator=torch.Generator().manual_seed(3))
    expected = fmt.rounded(x, Rounding.STOCHASTIC, None, words)
    assert same_bits(on_device(fmt, x, Rounding.STOCHASTIC, words), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["e5m10", "int8_ax1", "mxfp8_e4m3_ax1", "int8_g8", "fp8_e4m3_row"])
def test_strides(name):
    fmt, x = Format.parse(name), numbers(4, 6, 10, 7)
    views = (
        x.permute(2, 0, 1),
        x[:, ::2],
        x[1:5, :, 3],
        x.transpose(0, 1)[2:],
        x.to(memory_format=torch.contiguous_format),
    )
    for view in views:
        target = torch.full((*view.shape, 2), -1.0)
        written = target.select(-1, 1)
        random = RandomBits(1, 2)
        for mode, bits in ((Rounding.NEAREST_EVEN, None), (Rounding.STOCHASTIC, random)):
            on_device(fmt, view, mode, bits, written)
            assert same_bits(written.contiguous(), fmt.rounded(view, mode, None, bits).contiguous())
            assert (target.select(-1, 0) == -1).all()
    own = x.permute(2, 0, 1).clone()
    expected = fmt.rounded(own)
    assert same_bits(on_device(fmt, own, target=own), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each("shape", [(), (1,), (1, 1), (1023,), (1025,), (2, 2049), (5000, 1)])
@pytest.mark.parametrize("name", ["e5m10", "bf16", "mxfp4", "int8", "uint4_row", "fp8_e4m3_b128", "bfp6_2500"])
def test_ragged_sizes(name, shape):
    fmt, x = Format.parse(name), numbers(5, *shape)
    assert same_bits(on_device(fmt, x), fmt.rounded(x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(formats(), st.sampled_from(MODES), st.integers(0, 1000), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_any_format(fmt, mode, seed, length):
    x = numbers(seed, 3, length)
    if fmt.fits_in(torch.float32):
        assert same_bits(on_device(fmt, x, mode), fmt.rounded(x, mode))


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """Rounding asks the kernels of tensors in the CPU's memory, too."""

    def switch(on):
        monkeypatch.setattr(family, "in_memory", (lambda _: False) if on else memory.in_memory)
        monkeypatch.setattr(family, "has_kernels", (lambda _: True) if on else memory.has_kernels)

    return switch


def unusual(dtype):
    """Tensors of one number, of none, and of numbers that several places share."""
    x = numbers(1, 6, 40).to(dtype).nan_to_num(0.3, 2.0, -3.0)
    one = [x[2, 3], torch.tensor(torch.nan, dtype=dtype)]
    none = [x[:0], torch.empty(3, 0, dtype=dtype), torch.empty(0, 3, 2, dtype=dtype)]
    return [*one, *none, x[:, None].expand(6, 2, 40), x[:, :1].expand(6, 33).t(), x[2, 3].expand(7)]


def told(run, *given, **options):
    """What is computed, or why it is not."""
    try:
        return run(*given, **options)
    except FormatError as error:
        return str(error)


# One format of each family, whose kernels are tried before their first use, as on a device; others in make test-slow.
TRIED = list({type(Format.parse(name)): name for name in reversed(FORMATS)}.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", TRIED)
def test_unusual_tensors(name, as_if_on_a_gpu):
    """Shape, bits and refusals are those of the CPU."""
    check_unusual_tensors(Format.parse(name), as_if_on_a_gpu)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each("name", [name for name in FORMATS if name not in TRIED])
def test_unusual_tensors_of_the_others_after_their_kernels_were_tried(name, as_if_on_a_gpu):
    check_unusual_tensors(Format.parse(name), as_if_on_a_gpu)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each("name", [name for name in FORMATS if name not in TRIED])
def test_unusual_tensors_of_the_others(name, as_if_on_a_gpu, monkeypatch):
    fmt = Format.parse(name)
    monkeypatch.setattr(type(fmt), "_kernel_is_right", lambda *_: True)
    check_unusual_tensors(fmt, as_if_on_a_gpu)


def check_unusual_tensors(fmt, as_if_on_a_gpu):
    for x in unusual(fmt.carrier):
        for mode, random in ((Rounding.NEAREST_EVEN, None), (Rounding.STOCHASTIC, RandomBits(3, 5))):
            if not rounds(fmt, mode):
                continue
            as_if_on_a_gpu(on=False)
            expected = told(round, x, fmt, rounding=mode, random=random)
            as_if_on_a_gpu(on=True)
            if mode is Rounding.NEAREST_EVEN:
                found = told(round, x, fmt)
            else:
                target = torch.full(x.shape, -7.0, dtype=x.dtype)
                found = told(fmt.round_into, x, target, mode, None, random) or target
            if isinstance(expected, str):
                assert found == expected
                continue
            assert found.shape == expected.shape
            assert same_bits(found.contiguous(), expected.contiguous()), (x.shape, x.stride(), mode)


def test_every_family_has_kernels():
    covered = {type(Format.parse(name)) for name in FORMATS}
    ours = {family.kind for family in FAMILIES.values() if family.kind.__module__.startswith("roundoff.")}
    assert ours == covered


def _words(target: Any, base: tl.int64, first: tl.int64) -> None:
    place = tl.arange(0, 8)
    word = word_of(first + place, base, 32, target, None, 1)
    tl.store(target + place, word.to(tl.int64))


def test_random_words_of_places_beyond_two_to_the_32():
    random, found, first = RandomBits(9, 4), torch.zeros(8, dtype=torch.int64), CHUNK - 4
    base = key_base(random)
    kernel = in_triton(_words, torch.float32, interpreted=True)
    kernel[(1,)](found, base - (1 << 64) if base >> 63 else base, first)
    expected = [hash_reference(i % CHUNK, *keys(random, i // CHUNK)) for i in range(first, first + 8)]
    assert found.tolist() == expected


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mode", [Rounding.NEAREST_EVEN, Rounding.UP, Rounding.STOCHASTIC], ids=str)
@pytest.mark.parametrize("name", ["e5m10", "bf16", "fp8_e4m3", "binary8p3ue"])
def test_lists(monkeypatch, name, mode):
    monkeypatch.setattr(rounding, "has_kernels", lambda _: True)
    fmt, launches = Format.parse(name), []
    monkeypatch.setattr(type(fmt), "_kernel_is_right", lambda *_: True)  # as it is known to be after the first use
    run = launch._launch
    monkeypatch.setattr(launch, "_launch", lambda *how: launches.append(how) or run(*how))
    shapes = ((3, 5), (1,), (2048,), (0,), (1025,), (40, 30), (), (7, 3))
    tensors = [numbers(i, *shape) for i, shape in enumerate(shapes)]
    tensors[-1] = tensors[-1].t()  # not contiguous: by itself
    randoms = [RandomBits(1, i) if mode is Rounding.STOCHASTIC else None for i in range(len(shapes))]
    expected = [fmt.rounded(x, mode, None, random) for x, random in zip(tensors, randoms, strict=True)]
    draws = iter(randoms)
    rounding.round_list(tensors, fmt, mode, (lambda: next(draws)) if mode is Rounding.STOCHASTIC else None)
    assert all(map(same_bits, tensors, expected))
    assert len(launches) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["e5m10", "fp8_e4m3", "q4.6", "int8", "posit8_1"])
@pytest.mark.parametrize("mode", [Rounding.NEAREST_EVEN, Rounding.STOCHASTIC], ids=str)
def test_lists_of_nothing_and_of_what_is_no_number(monkeypatch, as_if_on_a_gpu, name, mode):
    fmt = Format.parse(name)
    lists_of = [[], [torch.empty(0)], [torch.empty(3, 0), torch.empty(0, 2)]]
    if fmt.has_nan:
        nan = torch.full((3,), torch.nan)
        lists_of += [[nan], [torch.tensor(torch.nan), torch.empty(0), numbers(1, 40), torch.tensor([-0.0, -torch.nan])]]
    for tensors in lists_of:
        randoms = [RandomBits(1, i) if mode is Rounding.STOCHASTIC else None for i in range(len(tensors))]
        expected = [fmt.rounded(x, mode, None, random) for x, random in zip(tensors, randoms, strict=True)]
        draws = iter(randoms)
        as_if_on_a_gpu(on=True)
        monkeypatch.setattr(rounding, "has_kernels", lambda _: True)
        rounding.round_list(tensors, fmt, mode, draws.__next__ if mode is Rounding.STOCHASTIC else None)
        as_if_on_a_gpu(on=False)
        assert all(map(same_bits, tensors, expected))
        assert next(draws, None) is None
