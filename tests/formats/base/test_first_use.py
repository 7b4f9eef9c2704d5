"""Kernels of devices are tried before they are used: on stand-ins in the CPU's memory, right, wrong and failing."""

import warnings
from math import isnan

import pytest
import torch
from comparing import numbers, same_bits
from devices import memory_as_a_device
from tensor_roundings import by_operations

from roundoff import simulate
from roundoff.formats import Format, FormatError, RandomBits, Rounding, round, rounding
from roundoff.formats.base import family, first_use
from roundoff.formats.base.first_use import KernelWarning, sample_numbers, tried_kinds


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """The CPU's memory as that of a device with kernels, of which nothing was tried yet."""
    memory_as_a_device(monkeypatch)
    monkeypatch.setattr(rounding, "has_kernels", lambda _: True)
    monkeypatch.setattr(first_use, "_tried", {})


def fresh(name):
    """A format of which nothing is known but its fields."""
    fmt = Format.parse(name)
    new = object.__new__(type(fmt))
    new.__dict__.update(fmt.__getstate__())
    return new


def with_kernel(monkeypatch, name, kernel):
    """A format whose kernel is another; and its tensors' calls of it."""
    fmt, calls = fresh(name), []

    def counted(source, target, how):
        calls.append(tuple(source.shape))
        kernel(source, target, how)

    monkeypatch.setitem(fmt.__dict__, "_round_on_device", counted)
    return fmt, calls


def to_nearest(fmt):
    return family.RoundingOptions(Rounding.NEAREST_EVEN, fmt._policy(None), None)


def right(name):
    fmt = Format.parse(name)
    return fmt._round_on_cpu


NAMES = ["e5m10", "q4.6", "posit8_1", "lns8_3", "fp8_e8m0", "nf4", "int8", "int8_ax1_g16", "mxfp4", "nvfp4"]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_kernel_is_tried_once_and_used(monkeypatch, name):
    fmt, calls = with_kernel(monkeypatch, name, right(name))
    x = numbers(1, 3, 64).nan_to_num(posinf=1.0, neginf=1.0)
    for _ in range(2):
        assert same_bits(round(x, fmt), by_operations(fmt, x))
    assert calls == [(64, 64), (64, 64), (3, 64), (3, 64)]
    assert list(tried_kinds().values()) == [""]


def off_by_a_bit(name, where):
    """The right kernel, but for one number of those that it says."""

    def kernel(source, target, how):
        right(name)(source, target, how)
        chosen = where(source).nonzero()
        if len(chosen):
            target[tuple(chosen[0])] += 0.125

    return kernel


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("random", [None, RandomBits(3), "words"])
def test_a_wrong_kernel_is_replaced_with_one_warning(monkeypatch, name, random):
    kernel = off_by_a_bit(name, lambda x: (x.abs() > 0.4) & (x.abs() < 4))
    fmt, calls = with_kernel(monkeypatch, name, kernel)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    mode = Rounding.NEAREST_EVEN if random is None else Rounding.STOCHASTIC
    if random == "words":
        random = torch.randint(0, 1 << 32, x.shape, generator=torch.Generator().manual_seed(2))
    with pytest.warns(KernelWarning, match=f"rounds to {fmt} on cpu, torch.float32, {mode}.*of 4096 numbers") as said:
        found = round(x, fmt, rounding=mode, random=random)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same_bits(round(x, fmt, rounding=mode, random=random), found)
    monkeypatch.undo()
    assert same_bits(found, round(x, name, rounding=mode, random=random))
    assert set(calls) == {(64, 64)}  # of samples alone


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -0.0, 1e-45])
def test_special_numbers_are_among_what_is_tried(monkeypatch, special):
    def kernel(source, target, how):
        right("e5m10")(source, target, how)
        zero = source.signbit() if special == 0 else True
        target[source.isnan() if isnan(special) else (source == special) & zero] = 1.0

    fmt, _ = with_kernel(monkeypatch, "e5m10", kernel)
    with pytest.warns(KernelWarning):
        round(torch.ones(3), fmt)


def test_a_kernel_that_does_not_compile_is_replaced(monkeypatch):
    def kernel(source, target, how):
        raise RuntimeError("ptxas fatal: Value 'sm_999' is not defined\nand more")

    fmt, _ = with_kernel(monkeypatch, "e5m10", kernel)
    with pytest.warns(
        KernelWarning, match="e5m10 on cpu.* fails with RuntimeError: ptxas fatal: Value 'sm_999' is not defined;"
    ):
        assert round(torch.tensor([1.0001]), fmt).item() == 1.0
    assert list(tried_kinds().values()) == ["fails with RuntimeError: ptxas fatal: Value 'sm_999' is not defined"]


def test_a_rounding_in_place_of_a_strided_view(monkeypatch):
    fmt, calls = with_kernel(
        monkeypatch, "int8_ax1_g16", off_by_a_bit("int8_ax1_g16", lambda x: ~x.is_contiguous() & (x > 0))
    )
    x = numbers(1, 8, 6, 32).nan_to_num(posinf=1.0, neginf=1.0)
    expected = right_bits(x.clone(), "int8_ax1_g16")
    assert same_bits(round(x, fmt), expected)  # in order
    view = x.clone().movedim(0, 2).contiguous().movedim(2, 0)
    with pytest.warns(KernelWarning, match="strided"):
        fmt.round_into(view, view)
    assert same_bits(view.contiguous(), expected)
    assert calls[0] == (16, 16, 16)


def right_bits(x, name):
    right(name)(x, x, to_nearest(Format.parse(name)))
    return x


def test_lists_are_tried_apart(monkeypatch):
    fmt, ran = fresh("e5m10"), []

    def many(tensors, how, randoms):
        ran.append(len(tensors))
        for x in tensors:
            x.zero_()

    monkeypatch.setitem(fmt.__dict__, "_run_list", many)
    tensors = [numbers(1, 50), numbers(2, 7)]
    expected = [right_bits(x.clone(), "e5m10") for x in tensors]
    with pytest.warns(KernelWarning, match="listed"):
        rounding.round_list(tensors, fmt)
    assert ran == [2]
    assert all(same_bits(x, y) for x, y in zip(tensors, expected, strict=True))


def test_while_a_graph_is_captured_nothing_is_tried(monkeypatch):
    fmt, calls = with_kernel(monkeypatch, "e5m10", lambda x, y, how: y.copy_(by_operations(Format.parse("e5m10"), x)))
    for module in (family, first_use):
        monkeypatch.setattr(module, "is_captured", lambda: True)
    round(torch.ones(3), fmt)
    assert calls == [(3,)]
    monkeypatch.setattr(family, "is_captured", lambda: False)
    monkeypatch.setattr(first_use, "is_captured", lambda: False)
    round(torch.ones(3), fmt)
    assert calls == [(3,), (4096,), (4096,), (3,)]


@pytest.mark.filterwarnings("ignore::roundoff.KernelWarning")
def test_no_simulation_sees_the_trial(monkeypatch):
    fmt, calls = with_kernel(monkeypatch, "e5m10", lambda source, target, how: None)  # launched, as kernels are
    around, _ = with_kernel(monkeypatch, "e5m2", right("e5m2"))
    seen = []
    for _ in range(2):
        with simulate(around) as simulation:
            fmt.rounded(torch.ones(3))
        seen.append(simulation.audit().table)
    monkeypatch.undo()
    assert calls
    assert seen[0].equals(seen[1])


def test_what_a_format_cannot_do_is_no_fault_of_the_kernel(monkeypatch):
    fmt, calls = with_kernel(monkeypatch, "int8", right("int8"))
    with pytest.raises(FormatError, match="overflow"):
        round(torch.ones(3), fmt, overflow="infinity")
    assert not calls
    assert not tried_kinds()


def test_the_numbers_that_are_tried():
    x = torch.from_numpy(sample_numbers())
    assert len(x) == 4096
    narrow = x.float()
    for name in ("e5m10", "e4m3", "e2m1"):
        finite = narrow[narrow.isfinite()]
        rounded = by_operations(Format.parse(name), finite)
        assert (rounded != finite).sum() > 500
        assert (rounded == finite).sum() > 50
        assert rounded.unique().numel() > 12
    assert ((narrow != 0) & (narrow.abs() < 2**-126)).sum() > 5


def test_a_trial_may_wait_where_a_program_forbids_waiting(monkeypatch):
    modes = [2]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with pytest.raises(ZeroDivisionError), first_use.waiting_allowed(torch.device("cuda:0")):
        assert modes == [2, 0]
        1 / 0  # noqa: B018
    assert modes == [2, 0, 2]
    with first_use.waiting_allowed(torch.device("cpu")):
        assert modes == [2, 0, 2]
