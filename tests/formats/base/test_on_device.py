"""Rounding on a GPU, by stand-ins for its tensors: nothing waits, and the bits are those of the CPU's loops."""

import pytest
import torch
from comparing import numbers, same_bits
from devices import Waited, is_stand_in, stand_ins
from each import each

from roundoff.formats import Format, FormatError, RandomBits, Rounding, round
from roundoff.formats.base import family, memory
from roundoff.formats.base.family import Family
from roundoff.formats.base.names import FAMILIES
from roundoff.formats.base.on_device import number_on, table_on, where
from roundoff.formats.rounding import round_list

NAMES = sorted({name for family in FAMILIES.values() for name in family.shown})


@each("name", NAMES)
def test_no_family_waits(name, monkeypatch):
    fmt = Format.parse(name)
    x = numbers(0, 6, 40).to(fmt.carrier)
    for mode in Rounding:
        random = RandomBits(1, 2) if mode is Rounding.STOCHASTIC else None
        try:
            expected = round(x, fmt, rounding=mode, random=random)
        except FormatError:  # the format has no such mode
            continue
        with stand_ins(monkeypatch) as device:
            there = x.cuda()
            with device.nothing_waits():
                found = round(there, fmt, rounding=mode, random=random)
            assert is_stand_in(found)
        assert same_bits(found, expected), mode


@each("name", NAMES)
def test_kernels_are_launched_without_waiting_on_tensors_of_the_device(name, monkeypatch):
    pytest.importorskip("triton")
    from roundoff.formats.gpu import launch

    fmt, launched = Format.parse(name), []
    with stand_ins(monkeypatch) as device, monkeypatch.context() as patch:
        patch.setattr(memory, "_compiles_for", lambda _: True)
        patch.setattr(torch.Tensor, "pin_memory", lambda x: x)
        patch.setattr(type(fmt), "_kernel_is_right", lambda *_: True)  # as it is known to be after the first use
        patch.setattr(launch, "_launch", lambda kernel, programs, tensors, *rest: launched.append(tensors))
        x = numbers(0, 6, 40).to(fmt.carrier).cuda()
        for mode in (Rounding.NEAREST_EVEN, Rounding.TOWARD_ZERO, Rounding.STOCHASTIC):
            random = RandomBits(1, 2) if mode is Rounding.STOCHASTIC else None
            before = len(launched)
            try:
                with device.nothing_waits():
                    round(x, fmt, rounding=mode, random=random)
            except FormatError:  # the format has no such mode
                continue
            assert len(launched) > before or fmt.native
    for source, target, data, given in launched:
        assert all(map(is_stand_in, (source, target, *data, given)))


@each("name", [*NAMES, "int8_g16_p90", "nvfp4_square", "quarl8", "qtorch_e5m10"])
def test_without_kernels_a_tensor_goes_to_the_cpu_and_back(name, monkeypatch):
    fmt, copied = Format.parse(name), Family._round_on_cpu
    x = numbers(0, 6, 40).nan_to_num(0.5, 2.0, -3.0).to(fmt.carrier)
    words = torch.randint(0, 1 << 32, x.shape, generator=torch.Generator().manual_seed(1))
    hows = [(Rounding.NEAREST_EVEN, None), (Rounding.STOCHASTIC, RandomBits(1, 2)), (Rounding.STOCHASTIC, words)]
    for mode, random in hows if "qtorch" not in name else hows[:1]:
        expected = round(x, fmt, rounding=mode, random=random)
        with stand_ins(monkeypatch) as device, monkeypatch.context() as patch:
            patch.setattr(Family, "_round_on_cpu", copied)
            there, given = x.cuda(), random.cuda() if random is words else random
            found = round(there, fmt, rounding=mode, random=given)
            assert is_stand_in(found)
            target = torch.empty(40, 6, device="cuda", dtype=x.dtype).t()
            fmt.round_into(there, target, mode, None, given)
            assert same_bits(target.cpu().contiguous(), expected)
            with device.nothing_waits(), pytest.raises(Waited, match=r"copy of \(6, 40\) from it"):
                round(there, fmt, rounding=mode, random=given)
        assert same_bits(found, expected), mode


def test_a_captured_graph_has_no_copy_to_the_cpu(monkeypatch):
    copied = Family._round_on_cpu
    with stand_ins(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(Family, "_round_on_cpu", copied)
        patch.setattr(family, "is_captured", lambda: True)
        with pytest.raises(FormatError, match=r"e5m10 on cuda:0: .* a CUDA graph cannot repeat that"):
            round(torch.ones(3).cuda(), "e5m10")


def test_a_tensor_without_numbers_has_the_shape_of_the_result():
    found = round(torch.empty(4, 6, device="meta").t(), "int8_row")
    assert (found.is_meta, found.shape, found.stride()) == (True, (6, 4), (1, 6))


def test_rows_of_formats_do_not_wait(monkeypatch):
    x = numbers(0, 2, 40)
    for mode in (Rounding.NEAREST_EVEN, Rounding.TOWARD_ZERO):
        expected = round(x, ["e5m10", "e4m3"], rounding=mode)
        with stand_ins(monkeypatch) as device:
            there = x.cuda()
            with device.nothing_waits():
                found = round(there, ["e5m10", "e4m3"], rounding=mode)
        assert same_bits(found, expected)


@pytest.mark.parametrize("name", ["e5m10", "int8", "mxfp8_e4m3", "binary8p4ue"])
@pytest.mark.parametrize("mode", [Rounding.NEAREST_EVEN, Rounding.STOCHASTIC])
def test_a_list_has_the_bits_of_its_tensors_one_by_one(name, mode, monkeypatch):
    tensors = [numbers(1, 6, 8), numbers(2, 3), numbers(3, 0), numbers(4, 1).view(()), numbers(5, 6, 8).t()]
    bits = [RandomBits(1, step) if mode is Rounding.STOCHASTIC else None for step in range(len(tensors))]
    expected = [round(x, name, rounding=mode, random=random) for x, random in zip(tensors, bits, strict=True)]
    here = [x.clone() for x in tensors]
    round_list(here, Format.parse(name), mode, iter(bits).__next__ if bits[0] else None)
    assert all(map(same_bits, here, expected))
    with stand_ins(monkeypatch) as device:
        there = [x.clone().cuda() for x in tensors]
        with device.nothing_waits():
            round_list(there, Format.parse(name), mode, iter(bits).__next__ if bits[0] else None)
    assert all(map(same_bits, there, expected))


def test_numbers_and_tables_go_there_once(monkeypatch):
    table = torch.arange(4.0)
    with stand_ins(monkeypatch) as device, device.nothing_waits():
        x = torch.arange(4, device="cuda")
        assert table_on(table, x.device) is table_on(table, x.device)
        chosen = where(x > 1, x, 0.5)
        assert (chosen.dtype, is_stand_in(chosen)) == (torch.float32, True)
        assert number_on(chosen, torch.float64, x.device) is chosen
    assert chosen.tolist() == [0.5, 0.5, 2.0, 3.0]
    assert table_on(table, table.device) is table
