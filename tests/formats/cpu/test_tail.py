"""The shared tail and the counter hash: numba, tensor operations and the exact reference agree bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from formats_exact import hash_reference, round_to_integer
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy import uint32, uint64

from roundoff.formats.arithmetic.tail import round_shifted, rule
from roundoff.formats.base.errors import FormatError
from roundoff.formats.base.modes import Overflow, RandomBits, Rounding
from roundoff.formats.base.random_words import (
    CHUNK,
    hash32,
    hash_tensor,
    key_base,
    keys,
    random_words,
    thinning,
)
from roundoff.formats.cpu import tail
from roundoff.formats.cpu.addends import fill, settings_of
from roundoff.formats.cpu.tail import addend64, round_shifted64
from roundoff.formats.cpu.widths import specialised

addend32, round_shifted32 = specialised(tail.addend, torch.float32), specialised(tail.round_shifted, torch.float32)


@njit
def tail32(significand, shift, positive, negative, parity, sticky, minus, word, stochastic):
    odd = uint32((significand >> min(shift, uint32(31))) & uint32(1))
    addend = word if stochastic else addend32(positive, negative, parity, minus, odd)
    return round_shifted32(significand, shift, addend, sticky)


@njit
def tail64(significand, shift, positive, negative, parity, sticky, minus, word, stochastic):
    odd = uint64((significand >> min(shift, uint64(63))) & uint64(1))
    addend = uint64(word << uint64(32)) if stochastic else addend64(positive, negative, parity, minus, odd)
    return round_shifted64(significand, shift, addend, sticky)


def all_tails(significand: int, shift: int, mode: Rounding, *, negative: bool, word: int) -> set[int]:
    stochastic = mode is Rounding.STOCHASTIC
    results = {
        int(
            round_shifted(
                torch.tensor([significand]),
                shift,
                rule(mode),
                torch.tensor([negative]),
                words=torch.tensor([word]) if stochastic else None,
            )
        ),
        int(tail64(*(uint64(v) for v in (significand, shift, *rule(mode, 64), negative, word)), stochastic)),
    }
    if significand < 2**31:
        results.add(
            int(tail32(*(uint32(v) for v in (significand, shift, *rule(mode, 32), negative, word)), stochastic))
        )
    return results


@settings(deadline=None)  # the first call compiles
@given(
    significand=st.one_of(st.integers(0, 40), st.integers(0, 2**31 - 1), st.integers(0, 2**62 - 1)),
    shift=st.integers(0, 140),
    mode=st.sampled_from(Rounding),
    negative=st.booleans(),
    word=st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1])),
)
def test_every_tail_is_exact(significand, shift, mode, negative, word):
    expected = round_to_integer(Fraction(significand, 2**shift), mode, negative=negative, word=word)
    assert all_tails(significand, shift, mode, negative=negative, word=word) == {expected}


@pytest.mark.parametrize("mode", Rounding)
def test_every_tail_is_exact_for_all_small_numbers(mode):
    for significand in range(33):
        for shift in (0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 100):
            for negative in (False, True):
                for word in (0, 1, 2**31 - 1, 2**31, 2**32 - 1):
                    expected = round_to_integer(Fraction(significand, 2**shift), mode, negative=negative, word=word)
                    assert all_tails(significand, shift, mode, negative=negative, word=word) == {expected}


@njit
def hashes(out, key0, key1):
    for i in range(out.size):
        out[i] = hash32(uint32(i), key0, key1)


def test_one_hash_in_three_forms():
    key0, key1 = keys(RandomBits(seed=7, step=3))
    n = 5000
    reference = [hash_reference(i, key0, key1) for i in range(n)]
    compiled = np.empty(n, np.uint32)
    hashes(compiled, uint32(key0), uint32(key1))
    assert compiled.tolist() == reference
    assert hash_tensor(torch.arange(n), key0, key1).tolist() == reference
    assert random_words(RandomBits(7, 3), torch.empty(50, 100)).flatten().tolist() == reference


@njit
def filled(words, index, mode):
    fill(words, words.size, index, mode, words)


def test_words_of_a_loop_beyond_two_to_the_32_have_the_keys_of_the_next_chunk():
    random, found, first = RandomBits(9, 4), np.zeros(8, np.uint32), CHUNK - 4
    mode, base = settings_of(Rounding.STOCHASTIC), key_base(random)
    mode[5:7] = base & 0xFFFFFFFF, base >> 32
    filled(found, first, mode)
    assert found.tolist() == [hash_reference(i % CHUNK, *keys(random, i // CHUNK)) for i in range(first, first + 8)]


def test_words_look_uniform_and_independent_of_each_other():
    n = 1 << 18
    words = [random_words(RandomBits(seed, step), torch.empty(n)) for seed, step in ((0, 0), (0, 1), (1, 0))]
    for a in words:
        bits = torch.stack([(a >> k) & 1 for k in range(32)]).double()
        assert ((bits.mean(1) - 0.5).abs() < 5 * 0.5 / n**0.5).all()  # five standard deviations
        correlation = torch.corrcoef(bits) - torch.eye(32)
        assert correlation.abs().max() < 6 / n**0.5
        assert abs(float(torch.corrcoef(torch.stack([a[1:], a[:-1]]).double())[0, 1])) < 6 / n**0.5
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(float(torch.corrcoef(torch.stack([words[a], words[b]]).double())[0, 1])) < 6 / n**0.5


@pytest.mark.parametrize("bits", [1, 2, 5, 8])
def test_thinned_words_carry_with_the_nearest_probability(bits):
    mask, half = thinning(bits)
    words = [(r << (32 - bits)) & mask | half for r in range(2**bits)]
    for k in range(4 * 2**bits):  # fractions at a quarter of the resolution
        fraction = k * 2**32 // (4 * 2**bits)
        carries = sum(fraction + word >= 2**32 for word in words)
        assert carries == (k + 2) // 4  # k / 4 rounded to nearest, halves up


def test_given_bits():
    given_bits = torch.tensor([0, 255], dtype=torch.uint8)
    assert random_words(given_bits, torch.empty(2)).tolist() == [1 << 23, (255 << 24) | (1 << 23)]
    assert random_words(torch.tensor([-1], dtype=torch.int32), torch.empty(1)).tolist() == [2**32 - 1]
    with pytest.raises(FormatError, match="shape and device"):
        random_words(given_bits, torch.empty(3))
    with pytest.raises(FormatError, match="dtypes uint8"):
        random_words(torch.zeros(2), torch.empty(2))
    with pytest.raises(FormatError, match="RandomBits"):
        random_words(3, torch.empty(2))


def test_misspelt_modes_get_a_suggestion():
    assert Rounding.parse("Nearest_Even") is Rounding.NEAREST_EVEN
    with pytest.raises(FormatError, match="did you mean 'nearest-even'"):
        Rounding.parse("nearest-evn")
    with pytest.raises(FormatError, match="did you mean 'saturate'"):
        Overflow.parse("saturated")
    with pytest.raises(FormatError, match="from 1 to 32, got 33"):
        RandomBits(0, bits=33)
    with pytest.raises(FormatError, match="seed of RandomBits must be an integer"):
        RandomBits(0.5)


def test_words_from_elsewhere_suggest_what_they_mean():
    meant = {
        "truncate": "toward-zero", "RTZ": "toward-zero", "half-up": "nearest-away or nearest-up",
        "half-away": "nearest-away", "ROUND_HALF_EVEN": "nearest-even",
        "floor": "down", "ceil": "up", "odd": "to-odd", "random": "stochastic", "near": "nearest-even",
    }  # fmt: skip
    for word, mode in meant.items():
        with pytest.raises(FormatError, match=f"did you mean '{mode}'"):
            Rounding.parse(word)
    with pytest.raises(FormatError, match="did you mean 'saturate'"):
        Overflow.parse("clamp")
    for word in ("half-down", "clamp", "whatever"):
        with pytest.raises(FormatError, match=r"allowed are (?!.*did you mean)"):
            Rounding.parse(word)
