"""The simulation mode: everything computed inside is a value of the format, and nothing else changes."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import roundoff
from roundoff.formats import FormatError
from roundoff.simulate import simulate


class EveryResult(TorchDispatchMode):
    """Entered inside a simulation, sees what each operation gives back to the program, and asserts it is rounded."""

    def __init__(self, fmt):
        super().__init__()
        self.format = fmt
        self.checked = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:
            for value in torch.utils._pytree.tree_leaves((result, args if func._schema.is_mutable else ())):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    assert_of_format(value, self.format, func)
                    self.checked += 1
        return result


def assert_of_format(x, fmt, what=""):
    with roundoff.exact():  # the simulation around would compare what it rounds
        x, rounded = x.detach(), roundoff.round(x.detach(), fmt)
        counts = x.dim() == 0 and float(x).is_integer() and what  # steps and numbers of targets are not rounded
        same = (x == rounded) | (x.isnan() & rounded.isnan())
        assert counts or bool(same.all()), f"{what}: {x[~same][:3]} is not of {fmt}"


def small_net(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3, padding=1),
        torch.nn.BatchNorm1d(4),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.Linear(24, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Softplus(),
        torch.nn.Linear(16, 3),
    ).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) * 0.3)
    return net


def train(net, optimizer, steps=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(8, 2, 6, generator=generator, dtype=dtype)
        y = torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False, eps=1e-3),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, eps=1e-3),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True, eps=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
}


@pytest.mark.filterwarnings("ignore:the integer .* is left unrounded")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fmt", ["e5m10", "e8m7", "e4m3", "e2m1"])
def test_every_result_of_training_is_of_the_format(fmt, optimizer):
    net = small_net()
    with simulate(fmt):
        with torch.no_grad():
            for value in (*net.parameters(), *net.buffers()):
                value.copy_(value.clone()) if value.is_floating_point() else None
        with EveryResult(fmt) as seen:
            train(net, OPTIMIZERS[optimizer](net.parameters()))
    assert seen.checked > 500
    for value in (*net.parameters(), *(p.grad for p in net.parameters()), *net.buffers()):
        if value.is_floating_point():
            assert_of_format(value, fmt)


def test_the_checker_can_fail():
    with pytest.raises(AssertionError, match="is not of"), EveryResult("e5m10"):
        torch.rand(100, generator=torch.Generator().manual_seed(0)).mul(0.1)


@pytest.mark.filterwarnings("ignore:simulate.'fp32'. runs a program as it is:roundoff.SimulationWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fp32_changes_no_bit(optimizer, dtype):
    def result(*, simulated):
        net = small_net(dtype)
        if simulated:
            with simulate("fp32"):
                loss = train(net, OPTIMIZERS[optimizer](net.parameters()), dtype=dtype)
        else:
            loss = train(net, OPTIMIZERS[optimizer](net.parameters()), dtype=dtype)
        return [loss, *net.state_dict().values(), *(p.grad for p in net.parameters())]

    for plain, simulated in zip(result(simulated=False), result(simulated=True), strict=True):
        assert torch.equal(plain, simulated)


def test_fp64_changes_no_bit_of_a_float64_program():
    plain, simulated = small_net(torch.float64), small_net(torch.float64)
    train(plain, OPTIMIZERS["adam"](plain.parameters()), dtype=torch.float64)
    with simulate("fp64"):
        # torch.optim.Adam keeps its step counter in torch's default dtype
        torch.set_default_dtype(torch.float64)
        try:
            train(simulated, OPTIMIZERS["adam"](simulated.parameters()), dtype=torch.float64)
        finally:
            torch.set_default_dtype(torch.float32)
    for a, b in zip(plain.parameters(), simulated.parameters(), strict=True):
        assert torch.equal(a, b)


NATIVE_HALF = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "exp": lambda x, y: x.exp(),
    "log": lambda x, y: x.abs().log(),
    "tanh": lambda x, y: x.tanh(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "reciprocal": lambda x, y: x.reciprocal(),
    "scalar": lambda x, y: x * 0.1,
    "relu": lambda x, y: x.relu(),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "hypot": torch.hypot,
    "softplus": lambda x, y: torch.nn.functional.softplus(x),
}


@pytest.mark.parametrize("name", NATIVE_HALF)
def test_e5m10_is_native_half_where_kernels_compute_in_float32(name):
    """PyTorch's own half kernels on the CPU convert to float32, compute, and round once: so does the simulation."""
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(1 << 15), 1 << 15, (2, 200_000), generator=generator).to(torch.int16)
    x, y = bits.view(torch.float16)
    program = NATIVE_HALF[name]
    native = program(x, y)
    with simulate("e5m10"):
        simulated = program(x.float(), y.float())
    assert native.dtype == torch.float16
    a, b = native.float(), simulated
    assert torch.equal(a.isnan(), b.isnan())
    # compared as bits, so that the sign of zero counts
    assert torch.equal(a.nan_to_num(7.0).view(torch.int32), b.nan_to_num(7.0).view(torch.int32))


def test_square_roots_are_native_half_to_one_ulp():
    """On some processors PyTorch's vectorised float32 square root is itself off by one ulp, and then ties move."""
    x = torch.arange(0x7C01).to(torch.int16).view(torch.float16)
    with simulate("e5m10"):
        simulated = x.float().sqrt()
    assert (simulated.half().view(torch.int16).int() - x.sqrt().view(torch.int16).int()).abs().max() <= 1


def test_matrix_products_accumulate_wide_and_round_once():
    generator = torch.Generator().manual_seed(4)
    a, b = (roundoff.round(torch.randn(64, 64, generator=generator), "e5m10") for _ in range(2))
    with simulate("e5m10"):
        product = a @ b
    exact = a.double() @ b.double()
    # half an ulp of e5m10 from the one rounding, and float32's accumulation error, which is far smaller
    assert torch.all((product - exact).abs() <= exact.abs() * 2.0**-11 + 1e-5)
    assert_of_format(product, "e5m10")


def test_in_place_out_views_and_strides():
    with simulate("e4m3"):
        x = torch.full((4, 6), 1.1)
        column = x[:, 1]
        column.mul_(1.3)  # strided memory
        assert_of_format(x, "e4m3")
        assert column.data_ptr() == x[:, 1].data_ptr()
        assert x[0, 1] != x[0, 0]
        out = torch.empty(6, 4).t()
        assert torch.add(x, 0.3, out=out) is out
        assert out.stride() == (1, 4)
        assert_of_format(out, "e4m3")
        torch.sum(x.expand(2, 4, 6), 0, out=out)
        assert_of_format(out, "e4m3")
        split = torch.full((4,), 0.7).chunk(2)
        assert split[1].data_ptr() == split[0].data_ptr() + 8


def test_data_from_outside_is_not_changed():
    data = np.array([0.1, 0.2], dtype=np.float32)
    x = torch.full((3,), 0.1)
    with simulate("e5m2"):
        shared = torch.from_numpy(data)
        also_shared = torch.as_tensor(data)
        made = torch.tensor([0.1, 0.2])
        y = x.view(3, 1).reshape(3)
        z = x + 0.0
    assert data[0] == np.float32(0.1)
    assert shared.data_ptr() == also_shared.data_ptr() == data.ctypes.data
    assert torch.equal(made, roundoff.round(torch.tensor([0.1, 0.2]), "e5m2"))
    assert torch.equal(y, torch.full((3,), 0.1))
    assert torch.equal(z, roundoff.round(x, "e5m2"))


def test_integers_booleans_and_random_streams_are_untouched():
    def program():
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(100, generator=generator)
        return noise, torch.randint(0, 10, (5,), generator=generator), noise.argsort(), noise > 0

    plain = program()
    with simulate("e5m10"):
        simulated = program()
    assert torch.equal(simulated[0], roundoff.round(plain[0], "e5m10"))
    assert torch.equal(plain[1], simulated[1])
    assert torch.equal(plain[3], simulated[3])


def test_batch_norm_statistics_are_rounded():
    """ATen's schema does not say that native_batch_norm writes them."""
    norm = torch.nn.BatchNorm1d(3)
    with simulate("e5m2"):
        norm(torch.randn(16, 3, generator=torch.Generator().manual_seed(6)))
    assert_of_format(norm.running_mean, "e5m2")
    assert_of_format(norm.running_var, "e5m2")
    assert torch.all(norm.running_mean != 0)


def test_complex_numbers_are_rounded_part_by_part():
    with simulate("e5m10"):
        spectrum = torch.fft.rfft(torch.randn(16, generator=torch.Generator().manual_seed(7)))
    assert_of_format(torch.view_as_real(spectrum), "e5m10")


def test_simulations_nest_and_the_innermost_wins():
    x = torch.tensor([1.0 + 2.0**-7])
    with simulate("e5m2") as outer:
        with simulate("e5m10"):
            assert torch.equal(x * 1, x)
            with simulate("fp32"):
                assert torch.equal(x * (1 + 2.0**-20), x * (1 + 2.0**-20))
            with pytest.raises(KeyError), outer:  # re-entered, and left by an exception
                assert (x * 1).item() == 1.0
                raise KeyError
            assert torch.equal(x * 1, x)
        assert (x * 1).item() == 1.0
    assert torch.equal(x * (1 + 2.0**-20), torch.tensor([(1.0 + 2.0**-7) * (1 + 2.0**-20)]))


def test_fp32_inside_a_simulation_pauses_it():
    x = torch.tensor([1.0 + 2.0**-20])
    with simulate("e5m2"), simulate("fp32"):
        assert torch.equal(x * 1, x)


def test_threads_simulate_independently():
    x = torch.full((1000,), 1.0 + 2.0**-5)
    wrong = []
    start = threading.Barrier(3)

    def work(fmt, expected):
        start.wait()
        for _ in range(200):
            if fmt is None:
                result = x * 1
            else:
                with simulate(fmt):
                    result = x * 1
            if not torch.equal(result, torch.full_like(result, expected)):
                wrong.append((fmt, result[0].item()))

    threads = [
        threading.Thread(target=work, args=case)
        for case in (("e5m2", 1.0), ("e5m10", 1.0 + 2.0**-5), (None, 1.0 + 2.0**-5))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_custom_autograd_functions_and_checkpointing_are_rounded():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.1

        @staticmethod
        def backward(ctx, g):
            return g * 1.1

    x = torch.linspace(0.1, 1, 10).requires_grad_()
    with simulate("e5m3"):
        y = torch.utils.checkpoint.checkpoint(lambda v: Scale.apply(v).tanh(), x, use_reentrant=False)
        y.sum().backward()
    assert_of_format(y, "e5m3")
    assert_of_format(x.grad, "e5m3")


def test_inference_mode_rounds_the_same_operations():
    """There functions such as linear and softmax arrive whole."""
    net, x = small_net().eval(), torch.randn(64, 2, 6, generator=torch.Generator().manual_seed(8))

    def program():
        y = net(x)
        return torch.nn.functional.cross_entropy(y, y.argmax(-1), reduction="none", label_smoothing=0.3)

    with simulate("e5m4"):
        with torch.no_grad():
            expected = program()
        with torch.inference_mode():
            result = program()
    assert torch.equal(result, expected)


def test_function_transforms():
    x = torch.linspace(0.1, 1, 12).view(3, 4)
    with simulate("e5m3"):
        gradient = torch.func.vmap(torch.func.grad(lambda v: (v.sin() * 1.1).sum()))(x)
    assert_of_format(gradient, "e5m3")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda: torch.ones(2, dtype=torch.bfloat16) + 1, r"leave out .half\(\), .bfloat16"),
        (lambda: torch.ones(2).to(torch.complex32), "must be float32, float64, float16, bfloat16 or complex"),
        (lambda: torch.eye(2).to_sparse() * 2.0, "must be dense"),
    ],
)
def test_what_cannot_be_simulated_is_refused(program, message):
    with simulate("e5m10"), pytest.raises(FormatError, match=message):
        program()


def test_wide_formats_need_float64():
    with simulate("e5m12"):
        assert_of_format(torch.rand(10, dtype=torch.float64) * 0.1, "e5m12")
        with pytest.raises(FormatError, match="run the program in float64"):
            torch.rand(10)


def test_an_unknown_format_is_named():
    with pytest.raises(FormatError, match="e5m10"):
        simulate("e5m1O")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_training_on_cuda_is_rounded():
    net = small_net().cuda()
    with simulate("e5m10"):
        loss = net(torch.randn(8, 2, 6, device="cuda")).square().sum()
        loss.backward()
        torch.optim.Adam(net.parameters(), eps=1e-3).step()
    for parameter in net.parameters():
        assert_of_format(parameter, "e5m10")
        assert_of_format(parameter.grad, "e5m10")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_simulations_travel(copied):
    """Alone, and within a module that holds one; the copy draws what the original would have drawn."""
    net = small_net()
    net.simulation = simulate("e5m3", rounding="stochastic", seed=5, observe=True)
    net.simulation.step = 7
    twin = copied(net)
    assert twin.simulation is not net.simulation
    results = []
    for one in (net, twin):
        with one.simulation:
            results.append(torch.ones(100) * 1.01)
    assert torch.equal(*results)
    assert str(twin.simulation) == str(net.simulation)
    assert len(net.simulation.plans()) == len(twin.simulation.plans()) > 0


def test_a_mode_that_changes_nothing_is_named():
    for name in ("fp32", "e8m23"):
        with pytest.warns(roundoff.SimulationWarning, match=f"toward-zero changes nothing: {name} is fp32"):
            simulate(name, rounding="toward-zero")
    simulate("fp32", rounding="nearest-even")
    simulate(roundoff.Policy("fp32", operands="e4m3"), rounding="toward-zero")


def test_policies_of_fp32_alone_say_that_they_round_nothing():
    for policy in (roundoff.Policy.mixed_precision("fp32"), roundoff.Policy.storage("fp32")):
        with pytest.warns(roundoff.SimulationWarning, match="the policy rounds nothing.* in bf16 or fp16"):
            simulate(policy)
    simulate(roundoff.Policy.mixed_precision("bf16"))
    with pytest.warns(roundoff.SimulationWarning, match="rounds nothing"):
        simulate(roundoff.Policy.mixed_precision("fp32"), islands="exact")


def test_memory_that_is_shared_with_another_library_keeps_its_bits():
    a, x = np.array([0.1], dtype=np.float32), torch.tensor([0.1])
    ways = (torch.from_numpy, torch.as_tensor, torch.asarray, torch.from_dlpack)
    with simulate("e5m10") as simulation:
        assert all(torch.equal(way(a), x) for way in ways)
        assert torch.equal(torch.frombuffer(bytearray(a.tobytes()), dtype=torch.float32), x)
        assert not torch.equal(torch.tensor(a), x)
        assert not torch.equal(torch.from_numpy(a) * 1, x)
    table = simulation.audit().table.set_index("operation")
    assert "data from outside" in table.loc["aten.lift_fresh.default", "treatment"]
    assert a == np.float32(0.1)


def test_a_plan_never_changes_while_what_came_of_it_is_counted():
    with simulate("e5m6") as simulation:
        torch.ones(3) * 1.1
    (plan,) = (plan for plan in simulation.plans() if plan.name == "mul")
    assert plan.outcome.calls == plan.outcome.rounded == 1
    with pytest.raises(AttributeError, match="a plan never changes: rounds was decided when it was made"):
        plan.rounds = False
