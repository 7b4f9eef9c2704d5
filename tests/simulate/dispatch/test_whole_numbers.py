"""Counts, steps, positions and indices stay whole in a simulation, until they are computed with data."""

import itertools
import threading
from contextlib import contextmanager, nullcontext

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from comparing import same_bits
from each import each
from hypothesis import given, settings
from torch.nn.functional import cross_entropy, ctc_loss, one_hot
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.formats import Format
from roundoff.simulate.native import library

OPTIMIZERS = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
)  # fmt: skip


@contextmanager
def unwritten_is_nan():
    """Memory that a kernel allocates and does not write is NaN, so that a test sees it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def steps_of(optimizer):
    return [float(state["step"]) for state in optimizer.state.values()]


def train(optimizer, p, steps):
    for _ in range(steps):
        p.grad = torch.full_like(p, 0.5)
        optimizer.step()


@each("how", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_count_their_steps(name, how):
    p = torch.nn.Parameter(torch.ones(3))
    try:
        optimizer = getattr(torch.optim, name)([p], lr=0.25, **how)
    except TypeError:
        pytest.skip(f"{name} takes no {how}")
    with simulate("e5m3"):
        train(optimizer, p, 20)
    assert steps_of(optimizer) == [20]


def test_a_step_that_was_loaded_is_counted_on():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([p])
    train(optimizer, p, 1)
    saved = optimizer.state_dict()
    saved["state"][0]["step"] = torch.tensor(1001.0)
    optimizer.load_state_dict(saved)
    with simulate("e8m7"):
        train(optimizer, p, 2)
    assert steps_of(optimizer) == [1003]


def test_the_update_is_that_of_its_step():
    """With a constant gradient Adam moves by its learning rate, whatever the step; with a frozen counter by less."""
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([p], lr=2.0**-6, eps=0)
    with simulate(Policy("fp32", rules=(Rule(["add", "_foreach_add"], format="e5m3"),))):
        train(optimizer, p, 100)
        p.data.zero_()
        train(optimizer, p, 1)
    assert abs(p.item() / -(2.0**-6) - 1) < 0.05


@pytest.mark.parametrize("fmt", ["e8m7", "e5m3", "int8", "posit8"])
def test_what_counts_and_orders_is_left_whole(fmt):
    ids = torch.randint(0, 4, (2000,), generator=torch.Generator().manual_seed(0))
    with simulate(fmt):
        counts = torch.histc(ids.float(), bins=4, min=0, max=3)
        kept = {
            "arange": torch.arange(1000.0),
            "cast": torch.tensor([1001, 2003]).float(),
            "sum of a cast": one_hot(ids, 4).float().sum(0),
            "offsets": one_hot(ids, 4).float().sum(0).cumsum(0),
            "sum of a mask": (ids > 0).float().sum(),
            "mask summed as floats": (ids > 0).sum(dtype=torch.float32),
            "weighted scatter": torch.zeros(4).scatter_add(0, ids, torch.ones(2000)),
            "permutation": torch.randperm(1001, dtype=torch.float32).sort().values,
            "difference": counts.cumsum(0) - counts,
            "division that rounds": torch.div(torch.arange(1000.0), 3, rounding_mode="floor"),
            "kept from zero": (ids > 0).float().sum().clamp(min=1e-9),
            "double": torch.arange(1000.0).double() * 2,
        }
    exact = torch.bincount(ids, minlength=4).float()
    assert same_bits(counts, exact)
    assert same_bits(kept["arange"], torch.arange(1000.0))
    assert kept["cast"].tolist() == [1001, 2003]
    assert same_bits(kept["sum of a cast"], exact)
    assert same_bits(kept["offsets"], exact.cumsum(0))
    assert kept["sum of a mask"] == kept["mask summed as floats"] == kept["kept from zero"] == exact[1:].sum()
    assert same_bits(kept["weighted scatter"], exact)
    assert same_bits(kept["permutation"], torch.arange(1001.0))
    assert same_bits(kept["difference"], exact.cumsum(0) - exact)
    assert same_bits(kept["division that rounds"], (torch.arange(1000) // 3).float())
    assert same_bits(kept["double"], torch.arange(1000.0).double() * 2)


def is_of(fmt, x):
    return same_bits(roundoff.round(x, fmt), x)


def test_with_data_counts_are_rounded():
    data = torch.full((4,), 0.3)
    counts = torch.arange(1000, 1004)
    with simulate("e5m3"):
        results = [
            counts.float() * data, counts.float() + data, counts.float() / 7, counts.float().mean(),
            counts.float().sqrt(), torch.cat([counts.float(), data]), torch.where(counts > 1001, counts.float(), data),
            counts / 7, counts * 0.3, counts.float().reciprocal(),
        ]  # fmt: skip
    assert all(is_of("e5m3", x) for x in results)
    assert not is_of("e5m3", counts.float())


def test_bytes_are_data():
    image = torch.arange(256, dtype=torch.uint8)
    with simulate("e5m3"):
        assert is_of("e5m3", image.float())
        assert is_of("e5m3", image.to(torch.int8).float())
        assert is_of("e5m3", image.float().sum())
        assert is_of("e5m3", image * 1.0)


def test_data_from_outside_is_data_though_it_is_whole():
    data = torch.arange(1000.0)
    made = torch.tensor([1001.0, 2003.0])
    with simulate("e5m3"):
        assert is_of("e5m3", data + 1)
        assert is_of("e5m3", data.clone())
        assert is_of("e5m3", torch.tensor([1001.0, 2003.0]))
        assert is_of("e5m3", made.sum())
        assert is_of("e5m3", torch.full((3,), -1e9))  # a mask of attention


def test_memory_that_data_is_written_to_is_data():
    data = torch.tensor([300.7, 17.0, 1.0])
    with simulate("e5m3"):
        x = torch.zeros(3)
        x += data
        y = torch.zeros(3)
        y[0] = data[0]
        z = torch.zeros(2, 3)
        z[1].copy_(data)
        w = torch.arange(3.0).mul_(0.7)
        torch.add(data, data, out=(v := torch.zeros(3)))
        for written in (x, y, z, w, v):
            assert is_of("e5m3", written + 1001)


def by_exact(buffer, data):
    with roundoff.exact():
        buffer.copy_(data)


def by_an_inner_simulation(buffer, data):
    with simulate("fp32"):
        buffer.copy_(data)


def by_a_thread(buffer, data):
    thread = threading.Thread(target=lambda: buffer.copy_(data))
    thread.start()
    thread.join()


UNSEEN = {
    "NumPy": lambda buffer, data: np.copyto(buffer.numpy(), data.numpy()),
    "an element through NumPy": lambda buffer, data: buffer.numpy().__setitem__(0, data.numpy()[0]),
    "DLPack": lambda buffer, data: torch.from_dlpack(buffer).copy_(data),
    "memoryview": lambda buffer, data: memoryview(buffer.numpy()).__setitem__(slice(None), data.numpy()),
    "apply_": lambda buffer, data: buffer.apply_(lambda _: 0.1),
    "map_": lambda buffer, data: buffer.map_(data, lambda _, new: new),
    ".data": lambda buffer, data: by_exact(buffer.data, data),
    "another dtype": lambda buffer, data: buffer.view(torch.int32).copy_(data.view(torch.int32)),
    "NaN": lambda buffer, data: buffer.numpy().fill(np.nan),
    "infinity": lambda buffer, data: buffer.numpy().fill(np.inf),
    "exact": by_exact,
    "inner": by_an_inner_simulation,
    "thread": by_a_thread,
}
MADE = {
    "zeros": lambda: torch.zeros(4),
    "ones": lambda: torch.ones(4),
    "full": lambda: torch.full((4,), 0.0),
    "new_zeros": lambda: torch.rand(2).new_zeros(4),
    "counts": lambda: torch.zeros(4) + 1,
    "positions": lambda: torch.arange(4.0),
    "strided": lambda: torch.zeros(4, 2000)[:, 0],
}
COMPUTED = {
    "x + x": lambda x: x + x,
    "x - 2": lambda x: x - 2,
    "x * x": lambda x: x * x,
    "x += 1": lambda x: x.add_(1),
    "sum": torch.sum,
    "cumsum": lambda x: x.cumsum(0),
    "square of a copy": lambda x: x.clone().square(),
    "foreach": lambda x: torch._foreach_add([x], 1)[0],
}


@pytest.mark.parametrize("native", ["1", "0"])
def test_memory_that_is_written_where_the_simulation_does_not_see_it_holds_data(monkeypatch, native):
    monkeypatch.setenv(library.VARIABLE, native)
    data = torch.tensor([0.1, 0.2, 7.3, 0.4])
    for write, make in itertools.product(UNSEEN, MADE):
        for name, compute in COMPUTED.items():
            with simulate("e5m2"):
                buffer = MADE[make]()
                UNSEEN[write](buffer, data)
                assert is_of("e5m2", compute(buffer)), (write, make, name)


def test_memory_that_counts_overwrite_holds_counts():
    data = torch.rand(3)
    with simulate("e5m3"):
        x = data + data
        x.copy_(torch.tensor([1001, 2003, 17]))
        part = data + data
        part[:2].copy_(torch.tensor([1001, 2003]))
        assert (x + 1).tolist() == [1002, 2004, 18]
        assert is_of("e5m3", part + 1)


def test_parameters_and_gradients_are_data():
    weight = torch.nn.Parameter(torch.ones(1, 3))
    with simulate("e5m3"):
        made = torch.nn.Parameter(torch.zeros(3))
        assert is_of("e5m3", (made + 1001).detach())
        layer = torch.nn.Linear(3, 1)
        layer(torch.ones(1001, 3)).sum().backward()
        assert is_of("e5m3", layer.bias.grad)
        (weight * torch.arange(1001.0, 1004.0)).sum().backward()
        assert is_of("e5m3", weight.grad)


def test_a_checkpoint_computes_positions_again():
    def layer(x):
        return x * (torch.arange(1001.0, 1004.0) + 1)

    def gradient(run):
        x = torch.full((3,), 0.3, requires_grad=True)
        with simulate("e8m7"):
            run(x).sum().backward()
        return x.grad

    assert same_bits(gradient(layer), gradient(lambda x: checkpoint(layer, x, use_reentrant=False)))


def test_a_programs_own_bfloat16_is_rounded():
    mask = torch.ones(1001, dtype=torch.bool)
    with simulate("e8m7"):
        simulated = mask.to(torch.bfloat16).sum()
    assert same_bits(simulated, mask.to(torch.bfloat16).sum())
    with simulate("e5m3"):
        assert is_of("e5m3", torch.arange(1000.0).to(torch.bfloat16).float())


def test_turned_off():
    with simulate("e5m3", whole="rounded") as simulation:
        assert is_of("e5m3", torch.arange(1000.0))
        assert is_of("e5m3", torch.tensor([1001, 2003]).float())
    assert simulation.policy == Policy.parse({"format": "e5m3", "whole": "rounded"})
    assert simulation.policy.as_json() == {"format": "e5m3", "whole": "rounded"}
    with pytest.raises(roundoff.formats.FormatError, match="whole must be exact, rounded, got 'no'"):
        simulate("e5m3", whole="no")


@pytest.mark.parametrize("how", [{}, {"whole": "rounded"}], ids=str)
@pytest.mark.parametrize("fmt", ["e5m6", "fp8_e4m3_row"])
def test_what_ctc_leaves_unwritten_changes_nothing(fmt, how):
    """Behind a sequence's end its kernel writes no numbers for its derivative: other rows must not share a scale."""
    scores = torch.randn(9, 2, 5, generator=torch.Generator().manual_seed(0))
    found = []
    for memory in (nullcontext, unwritten_is_nan):
        x = scores.clone().requires_grad_()
        with memory(), simulate(fmt, **how):
            ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2], [3, 3]]), (9, 4), (2, 1)).backward()
        found.append(x.grad)
    assert found[0].isfinite().all()
    assert same_bits(*found)


def test_the_number_of_targets_divides_gradients():
    """What ``nll_loss`` hands to its derivative is no result of the program's."""
    logits = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.randint(0, 3, (4000,), generator=torch.Generator().manual_seed(1))
    with simulate("e5m3"):
        cross_entropy(logits * 1, targets).backward()
    assert logits.grad.abs().max() > 0

    with simulate("e4m3"):  # 256 is infinite there
        x = torch.zeros(256, 3, requires_grad=True)
        cross_entropy(x * 1, targets[:256]).backward()
    assert x.grad.abs().max() > 0


@pytest.mark.parametrize("fmt", ["e5m10", "e5m7", "e4m3"])
def test_a_gradient_scaler_recovers(fmt):
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.25)
    scaler = torch.amp.GradScaler("cpu")
    with simulate(fmt):
        for _ in range(25):
            optimizer.zero_grad()
            scaler.scale((p * p).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert 1 <= scaler.get_scale() < 65536
    assert p.abs().max() < 0.5


@pytest.mark.filterwarnings("ignore:the integer .* is left unrounded")
@each(("fmt", "rounding"), itertools.product(("e8m7", "e5m3", "e4m3"), ("nearest-even", "up", "stochastic")))
def test_random_numbers_stay_in_their_range(fmt, rounding):
    torch.manual_seed(0)
    with simulate(fmt, rounding=rounding):
        uniform = [torch.rand(20000), torch.rand_like(torch.empty(20000)), torch.empty(20000).uniform_()]
        exponential = torch.empty(20000).exponential_()
        assert torch.randint(0, 1001, (20000,), dtype=torch.float32).max() == 1000
    for x in uniform:
        assert is_of(fmt, x)
        assert 0 <= x.min() <= x.max() < 1
    assert is_of(fmt, exponential)
    assert exponential.min() > 0


def test_experts_get_their_tokens():
    """Tokens of each expert are counted as transformers does, for a product of groups; no row is left unwritten."""
    generator = torch.Generator().manual_seed(0)
    experts = torch.randint(0, 4, (2000,), generator=generator).sort().values
    tokens = torch.randn(2000, 8, generator=generator).bfloat16()
    weights = torch.randn(4, 8, 8, generator=generator).bfloat16()
    with simulate("e8m7"), unwritten_is_nan():
        counts = torch.histc(experts.float(), bins=4, min=0, max=3)
        offsets = counts.cumsum(0).int()
        out = torch.nn.functional.grouped_mm(tokens, weights, offs=offsets)
    assert offsets.tolist() == torch.bincount(experts).cumsum(0).tolist()
    assert out.isfinite().all()


def test_the_audit_says_what_was_left_whole():
    with simulate("e5m3") as simulation:
        for _ in range(3):
            (torch.arange(100.0) + 1) * 0.3
        torch.rand(3) + 1
    table = simulation.audit().table.set_index("operation")
    assert table.loc["aten.arange.default", "unrounded integers"] == 3
    assert table.loc["aten.arange.default", "treatment"] == "unrounded: integer values"
    assert table.loc["aten.add.Tensor", ["calls", "rounded", "unrounded integers"]].tolist() == [4, 1, 3]
    assert "unrounded where" in table.loc["aten.add.Tensor", "treatment"]
    assert table.loc["aten.mul.Tensor", "unrounded integers"] == 0


def test_compiled_steps_keep_whole_numbers_too():
    def make():
        p = torch.nn.Parameter(torch.ones(4))
        return p, torch.optim.Adam([p], lr=0.25, eps=1e-3), torch.zeros(3)

    def step_of(p, optimizer, count):
        def step(x, ids):
            optimizer.zero_grad()
            ((p * x).sum() - ids.float().sum()).square().backward()
            optimizer.step()
            count.copy_((ids > 40).sum())
            return count + ids.float().sum(), torch.arange(100.0) + 1

        return step

    eager, compiled = make(), make()
    outside, inside = simulate("e5m3"), simulate("e5m3")
    fast = roundoff.compile(step_of(*compiled), inside)
    slow = step_of(*eager)
    for i in range(4):
        generator = torch.Generator().manual_seed(i)
        given = torch.randn(4, generator=generator), torch.randint(0, 100, (40,), generator=generator)
        with outside:
            expected = slow(*given)
            after = eager[2] + 1001
        got = fast(*given)
        with inside:
            assert same_bits(compiled[2] + 1001, after)
        assert all(same_bits(x, y) for x, y in zip(got, expected, strict=True))
        assert expected[0][0] == (given[1] > 40).sum() + given[1].sum()
    assert fast.reason is None
    assert steps_of(compiled[1]) == [4]


whole = st.integers(-3000, 3000)


@pytest.mark.filterwarnings("ignore:the integer .* is left unrounded")
@given(
    st.lists(whole, min_size=2, max_size=6),
    st.lists(st.sampled_from(["add", "sub", "mul", "cumsum", "flip", "cat", "clamp", "floor", "number"]), max_size=5),
    st.sampled_from(["e8m7", "e5m3", "e4m3", "int8", "posit8", "mxfp4"]),
)
def test_arithmetic_on_whole_numbers_is_that_of_float64(numbers, operations, fmt):
    """Whatever is added, multiplied and moved: as without rounding, up to where the carrier has all whole numbers."""

    def run(x):
        for name in operations:
            match name:
                case "add" | "sub":
                    x = getattr(torch, name)(x, torch.arange(len(x), dtype=x.dtype))
                case "mul":
                    x = x * torch.arange(len(x), dtype=x.dtype).remainder(3)
                case "cumsum" | "flip":
                    x = getattr(torch, name)(x, 0) if name == "cumsum" else x.flip(0)
                case "cat":
                    x = torch.cat([x, torch.ones(2, dtype=x.dtype)])
                case "clamp":
                    x = x.clamp(min=-2000, max=1999)
                case "floor":
                    x = torch.div(x, 3, rounding_mode="floor")
                case "number":
                    x = x * 3 + 1
        return x

    with simulate(fmt):
        simulated = run(torch.tensor(numbers).double())
    assert same_bits(simulated, run(torch.tensor(numbers).double()))


@settings(max_examples=40, deadline=None)
@given(st.lists(whole, min_size=2, max_size=6), st.sampled_from(["add", "sub", "mul", "maximum"]), st.booleans())
def test_with_one_number_of_data_results_are_of_the_format(numbers, name, first):
    data = roundoff.round(torch.linspace(-2.3, 900.1, len(numbers)), "e5m3")
    with simulate("e5m3"):
        operands = torch.tensor(numbers).float(), data
        result = getattr(torch, name)(*(operands if first else operands[::-1]))
    assert is_of(Format.parse("e5m3"), result)
