"""Products on a GPU are float32 products, whatever PyTorch is allowed; by stand-ins on the CPU for its settings."""

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.simulate.aten import tensor_cores
from roundoff.simulate.compiling.graphs import member_products, members, tracing
from roundoff.simulate.compiling.population import PopulationStep
from roundoff.simulate.compiling.program import products_of
from roundoff.simulate.numbers.kernel_calls import call_kernel


class Seen(TorchDispatchMode):
    """What is allowed while each operation computes."""

    def __init__(self, settings):
        super().__init__()
        self.settings, self.while_running = settings, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        allowed = {name: setting.fp32_precision for name, setting in self.settings.items()}
        self.while_running[func.overloadpacket.__name__] = allowed
        return func(*args, **(kwargs or {}))


@pytest.fixture
def settings(monkeypatch):
    """PyTorch's settings, which stay as they are for other tests, in the place of a GPU's."""
    made = {name: SimpleNamespace(fp32_precision="tf32") for name in ("matmul", "conv", "rnn")}
    monkeypatch.setattr(tensor_cores, "_GPU", "cpu")
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=made["matmul"], is_built=lambda: False))
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(conv=made["conv"], rnn=made["rnn"]))
    return made


def precisions(settings):
    return {name: setting.fp32_precision for name, setting in settings.items()}


@pytest.mark.parametrize(
    "policy",
    ["e5m7", Policy.storage("e5m7"), Policy.mixed_precision("e5m7"), Policy("e5m7", accumulate="e5m7/4")],
    ids=range(4),
)
def test_what_is_allowed_while_products_are_computed(settings, policy):
    x, w = torch.randn(2, 3, 8), torch.randn(4, 3, 5)
    x.requires_grad_()
    with Seen(settings) as seen, simulate(policy):
        torch.nn.functional.conv1d(x, w).square().sum().backward()
        torch.mm(x[0].detach(), x[1].detach().mT).add(1)
    matmul, both = {"matmul": "ieee", "conv": "tf32", "rnn": "tf32"}, {"matmul": "ieee", "conv": "ieee", "rnn": "tf32"}
    if isinstance(policy, Policy) and policy.accumulate:
        assert seen.while_running["bmm"] in (matmul, both)  # what the accumulator adds up
    else:
        assert seen.while_running["mm"] == matmul
        assert seen.while_running["convolution"] == seen.while_running["convolution_backward"] == both
    assert seen.while_running["add"] == precisions(settings)
    assert set(precisions(settings).values()) == {"tf32"}


def test_what_stays_as_the_program_has_it(settings):
    x = torch.randn(4, 4)
    with Seen(settings) as seen:
        x @ x
        assert seen.while_running["mm"]["matmul"] == "tf32"
        with simulate("fp32"):
            x @ x
        assert seen.while_running["mm"]["matmul"] == "tf32"
        with simulate("e5m7"), roundoff.exact():
            x @ x
        assert seen.while_running["mm"]["matmul"] == "tf32"
        with pytest.warns(roundoff.PolicyWarning), simulate("e5m7", islands="exact"):
            x @ x
        assert seen.while_running["mm"]["matmul"] == "tf32"
        with simulate(Policy("e5m7", rules=(Rule("mm", format="fp32"),))):
            x @ x
        assert seen.while_running["mm"]["matmul"] == "ieee"
        settings["matmul"].fp32_precision = "none"
        with simulate("e5m7"):
            x @ x
        assert seen.while_running["mm"]["matmul"] == "none"  # which is float32, too


def test_settings_are_restored_after_an_error(settings):
    with simulate("e5m7"), pytest.raises(RuntimeError):
        torch.randn(2, 3) @ torch.randn(2, 3)
    assert set(precisions(settings).values()) == {"tf32"}


def test_where_no_gpu_takes_part_nothing_is_set(settings, monkeypatch):
    monkeypatch.setattr(tensor_cores, "_GPU", "cuda")
    x = torch.randn(4, 4)
    with Seen(settings) as seen, simulate("e5m7"):
        x @ x
    assert seen.while_running["mm"]["matmul"] == "tf32"


@pytest.fixture
def allowed_by_the_program():
    """TF32 in matrix products. PyTorch's function for it also sets what oneDNN may do, and does not take that back."""
    onednn = torch.backends.mkldnn.matmul
    before, permission = torch.get_float32_matmul_precision(), onednn.fp32_precision
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)
    onednn.fp32_precision = permission


@pytest.mark.parametrize("name", ["mm", "convolution", "_cudnn_rnn"])
def test_pytorchs_own_settings_read_as_before(name, allowed_by_the_program):
    backends = torch.backends

    def settings():
        return (
            torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32,
            backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision,
        )  # fmt: skip

    found = settings()
    with tensor_cores.in_float32(name):
        assert backends.cuda.matmul.fp32_precision == "ieee"
        assert (backends.cudnn.conv.fp32_precision == "ieee") == ("conv" in name)
        assert (backends.cudnn.rnn.fp32_precision == "ieee") == ("rnn" in name)
    assert settings() == found
    assert found[0] == "high"


def layers(x, kernel, learned):
    """A convolution and a matrix product, forward and backward."""
    leaf = learned.detach().requires_grad_()
    loss = (torch.nn.functional.conv1d(x, kernel) @ leaf).square().sum()
    return [loss, *torch.autograd.grad(loss, leaf)]


@pytest.fixture
def ran(uncompiled, settings, monkeypatch):
    """What is allowed while each operation of a program runs; programs are not compiled, which is what takes time."""

    def run(traced):
        def program(inputs):
            with Seen(settings) as seen:
                result = traced.graph(*inputs)
            found.append(seen.while_running)
            return result

        return program

    found = []
    monkeypatch.setattr(tracing, "compile_graph", run)
    return found


OPERANDS = (2, 3, 8), (4, 3, 5), (4, 2)


@pytest.mark.parametrize(
    ("simulation", "allowed"),
    [(None, "tf32"), (simulate("fp32"), "tf32"), (simulate("e5m7"), "ieee")],
    ids=["plain", "fp32", "e5m7"],
)
def test_what_is_allowed_while_a_compiled_step_runs(ran, settings, simulation, allowed):
    program = roundoff.compile(layers, simulation)
    for _ in range(2):
        program(*map(torch.randn, OPERANDS))
    assert program.reason is None
    assert len(ran) == 2
    for seen in ran:
        assert seen["convolution"] == {"matmul": allowed, "conv": allowed, "rnn": "tf32"}
        assert (seen.get("mm") or seen["bmm"])["matmul"] == allowed
    assert set(precisions(settings).values()) == {"tf32"}


def test_a_compiled_step_without_convolutions_leaves_their_setting(ran, settings):
    roundoff.compile(lambda x: [x @ x], simulate("e5m7"))(torch.randn(4, 4))
    assert ran[0]["mm"] == {"matmul": "ieee", "conv": "tf32", "rnn": "tf32"}
    roundoff.compile(lambda x: [x + x], simulate("e5m7"))(torch.randn(4, 4))
    assert set(ran[1]["add"].values()) == {"tf32"}


def test_what_is_allowed_while_a_population_runs(ran, settings, monkeypatch):
    """Also while its products are tried."""
    # Which kernel has the bits of each member alone depends on the processor.
    monkeypatch.setattr(member_products, "_same_bits", lambda kernel, target, *_: kernel is target)
    tried = []
    multiply = member_products.multiply
    monkeypatch.setattr(members, "multiply", lambda *given: (tried.append(precisions(settings)), multiply(*given))[1])
    rows = [torch.randn(2, 1, 16, 16) for _ in range(2)]
    PopulationStep(lambda x, y: [x @ y], [simulate("e5m7"), simulate("e5m2")])(*rows)
    assert ran[0]["bmm"] == tried[0] == {"matmul": "ieee", "conv": "tf32", "rnn": "tf32"}
    PopulationStep(lambda x, y: [x @ y], [None, None])(*rows)
    assert set(ran[1]["bmm"].values()) == set(tried[1].values()) == {"tf32"}


def test_products_that_other_operators_compute_are_found(settings):
    """Products of tensor cores are found, which other cards leave to PyTorch, and kernels given numbers as tensors."""
    x = torch.randn(16, 16)

    def calls(x):
        half = torch.ops.roundoff.narrow_product(None, x, x, torch.float16)
        return half, call_kernel(torch.ops.aten.addmm.default, (x, x, x), {"alpha": 0.5}, lambda _: None), x.exp()

    found = products_of(make_fx(calls)(x), [simulate("e5m7")])
    assert found == ("addmm", "narrow_product")


def test_where_no_gpu_takes_part_a_compiled_step_sets_nothing(ran, settings, monkeypatch):
    monkeypatch.setattr(tensor_cores, "_GPU", "cuda")
    roundoff.compile(lambda x: [x @ x], simulate("e5m7"))(torch.randn(4, 4))
    assert ran[0]["mm"]["matmul"] == "tf32"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_operands_keep_their_bits(allowed_by_the_program):
    """A product with the identity, and with a kernel of one tap, shows every bit of the operand."""

    def products(x, one):
        return [x @ one, torch.nn.functional.conv2d(x.view(1, 64, 8, 8), one.view(64, 64, 1, 1))]

    x = 1 + torch.arange(64 * 64, device="cuda").view(64, 64) * 2.0**-23
    policy = Policy("fp32", rules=(Rule("relu", format="e5m7"),))
    one = torch.eye(64, device="cuda")
    with simulate(policy):
        eagerly = products(x, one)
    for found in (eagerly, roundoff.compile(products, simulate(policy))(x, one)):
        assert torch.equal(found[0], x)
        assert torch.equal(found[1], x.view(1, 64, 8, 8))
