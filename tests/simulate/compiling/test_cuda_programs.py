"""Programs that inductor makes for a GPU, without one: what they write, their bits, and their instructions."""

import json
import re

import pytest
import torch
from each import each
from pretending import run, run_all
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from roundoff.simulate.compiling.graphs.written_operations import is_written
from roundoff.simulate.compiling.program import reason_against_compiling

STEP = """
import json
from pathlib import Path
from pretended_gpu import Pretended, FOLDER
import torch
import roundoff
from comparing import numbers, same_bits

def step(x, y, moment):
    moment.mul_(0.9).add_(x * y)
    chosen = torch.where(x > y, x, -y)
    return {names}

wrong = {{}}
for name in {formats}:
    mine, theirs = ([numbers(seed, 1003) for seed in range(3)] for _ in range(2))
    with roundoff.simulate(name):
        expected = step(*theirs)
    with Pretended() as gpu:
        program = roundoff.compile(step, roundoff.simulate(name))
        found = program(*mine)
    assert program.reason is None
    pairs = list(zip([*expected, theirs[2]], [*found, mine[2]]))
    wrong[name] = [i for i, (a, b) in enumerate(pairs) if not same_bits(a, b)]
    (FOLDER / f"{place}_{{name}}.json").write_text(json.dumps([gpu.sources, gpu.programs]))
print(json.dumps(wrong))
"""

RESULTS = """[
        x + y, x - y, x * y, x / y, x / 0.3, 1 - x, -x, x.abs(), x**2, x.reciprocal(), x.floor(), x.ceil(), x.sign(),
        torch.exp(x), torch.relu(x), torch.maximum(x, y), x.clamp(-2, 3), torch.add(x, y, alpha=0.1), (x + y).sum(),
        torch.addcmul(x, y, chosen, value=0.3), x.isnan(), x.isinf(), x.isfinite(), x.nan_to_num(0.0, 3.0, -3.0),
        torch.cat((x, y)), x[::3] + y[::3], chosen.view(17, 59).t() + 1, x.double().float(), x.to(torch.bool),
        torch.nn.functional.pad(x, (1, 1)), x * moment.new_full((), 0.3),
        *torch._foreach_add([x, y], [y, x], alpha=0.3), *torch._foreach_mul([x, y], 0.3),
        *torch._foreach_addcdiv([x], [y], [chosen], [0.1]),
    ]"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the scripts of this module say, all run in one process; and the folder they have written to."""
    folder = tmp_path_factory.mktemp("programs")
    scripts = {
        "many": STEP.format(names=RESULTS, place="many", formats=["e5m10"]),
        "few": STEP.format(names="[x + y, (x * y + 1).abs(), x / y]", place="few", formats=["e5m10", "bf16", "e5m3"]),
        "optimizers": OPTIMIZERS,
        "population": POPULATION,
    }
    return run_all(folder, scripts), folder


@pytest.fixture(scope="module")
def programs(ran):
    """What was made of many operations in a format given as data, and of a few in bfloat16, with its own program."""
    files = {"e5m10": "many_e5m10.json", "bf16": "few_bf16.json"}
    return {name: json.loads((ran[1] / file).read_text()) for name, file in files.items()}


def test_bits_of_the_eager_simulation(ran):
    assert ran[0]["many"] == {"e5m10": []}


@pytest.mark.slow
def test_bits_in_further_formats(tmp_path):
    said = run_all(tmp_path, {"many": STEP.format(names=RESULTS, place="many", formats=["bf16", "e5m3"])})
    assert said["many"] == {"bf16": [], "e5m3": []}


LIBRARY = {"floor", "ceil", "isnan", "isinf"}


def test_what_loops_call(programs):
    """No library but for functions of one possible result, no contraction, exact quotients."""
    for sources, _ in programs.values():
        assert {name for source in sources for name in re.findall(r"libdevice\.(\w+)", source)} <= LIBRARY
        assert all("'enable_fp_fusion': False" in source and "'disable_ftz': True" in source for source in sources)
        text = "\n".join(sources)
        assert "div_rn" in text
        assert not re.search(r"tmp\d+ / tmp\d+|tl\.fma|sigmoid|tl_math\.(?!abs)", text)


def test_a_rounding_stands_in_the_loop_of_what_it_rounds(ran):
    said, folder = ran
    assert said["few"] == {"e5m10": [], "bf16": [], "e5m3": []}
    for name in ("e5m10", "bf16"):  # the first one's program serves e5m3, too
        sources, programs = json.loads((folder / f"few_{name}.json").read_text())
        assert len(sources) == 1
        assert programs[0].count(".run(") == 1
        assert "torch.ops.roundoff" not in programs[0].split("def call(")[1]


INSTRUCTIONS = """
import json, re
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from torch._inductor.runtime import triton_helpers, triton_heuristics

triton_helpers.set_driver_to_gpu = lambda: None
compiled = lambda **options: lambda function: (function, options["triton_meta"])
triton_heuristics.pointwise = triton_heuristics.foreach = compiled
folder = Path(".")
found = set()
for name in ("e5m10", "bf16"):
    for number, source in enumerate(json.loads((folder / f"{name}.json").read_text())[0]):
        path = folder / f"{name}_{number}.py"
        path.write_text(source)
        module = {"__name__": name, "__file__": str(path)}
        exec(compile(source, path, "exec"), module)
        function, meta = next(x for x in module.values() if isinstance(x, tuple))
        blocks = {key: 256 for key in meta["signature"] if key.endswith("BLOCK")}
        given = ASTSource(function, meta["signature"], blocks | meta["constants"], meta["configs"][0])
        options = {"enable_fp_fusion": meta["enable_fp_fusion"], "enable_reflect_ftz": not meta["disable_ftz"]}
        options["num_warps"] = 4
        ptx = triton.compile(given, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        found |= set(re.findall(r"^\\s*(?:@\\S+ )?([a-z][\\w.:]*)", ptx, re.M))
print(json.dumps(sorted(found)))
"""


def test_instructions_for_sm_90(programs, tmp_path):
    """Each rounds once, and nothing may be fused: PTX's own compiler fuses no instruction that says how it rounds."""
    for name, made in programs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    script = INSTRUCTIONS.replace('Path(".")', f"Path({str(tmp_path)!r})")
    found = run(tmp_path, script, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path / "triton"))
    floating = {x for x in found if re.search(r"\.f(32|64)\b", x)}
    assert {"add.rn.f32", "mul.rn.f32", "div.rn.f32"} <= floating
    assert not [x for x in floating if re.match(r"fma|mad|.*\.ftz|.*\.approx|.*\.full|(add|sub|mul|div)\.f", x)]


POPULATION = """
import json
from pretended_gpu import Pretended
import torch
from comparing import numbers, same_bits
from roundoff import simulate
from roundoff.simulate.compiling.graphs import member_products
from roundoff.simulate.compiling.population import PopulationStep

# There is nothing to try products on; the other library is the CPU's.
member_products._same_bits = lambda kernel, *_: kernel is not member_products._onednn

def step(w, x, rate):
    error = (x @ w).exp() - x
    w.sub_(rate * (x.mT @ error))
    return [error.square().sum(), error.sum(1), error.amax(1), -error]

def member(i):
    generator = torch.Generator().manual_seed(i)
    return [torch.randn(1, 16, 16, generator=generator) / 8 for _ in range(2)] + [torch.tensor(0.1 * i)]

formats = ["e5m10", "e5m7", "e5m2", "e4m3"]
alone = [member(i) for i in range(4)]
together = [torch.stack(own) for own in zip(*alone)]
wrong = []
with Pretended() as gpu:
    population = PopulationStep(step, [simulate(name) for name in formats])
    found = population(*together)
for i, name in enumerate(formats):
    with simulate(name):
        expected = step(*alone[i])
    pairs = zip([*expected, alone[i][0]], [*found, together[0]])
    wrong += [(name, k) for k, (a, b) in enumerate(pairs) if not same_bits(a, b[i])]
program = gpu.programs[-1].split("def call(")[1]
calls = [program.count(f"aten.{name}(") for name in ("bmm.default", "sum.dim_IntList")]
print(json.dumps([wrong, sorted(gpu.devices), *calls]))
"""


def test_a_population(ran):
    """A format for each member; products of all are one, and what sums is called for each."""
    assert ran[0]["population"] == [[], ["cuda"], 2, 4]


OPTIMIZERS = """
import json
from pretended_gpu import Pretended
import torch
import roundoff
from comparing import same_bits

def made(kind, foreach):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = kind(model.parameters(), lr=0.05, foreach=foreach)

    def update(x, y):
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, update

torch.manual_seed(1)
x, y = torch.randn(16, 4), torch.randn(16)
found = []
for kind, foreach in ((torch.optim.SGD, False), (torch.optim.Adam, True)):
    (mine, update), (theirs, as_eager) = made(kind, foreach), made(kind, foreach)
    simulation, program = roundoff.simulate("e5m10"), roundoff.compile(update, roundoff.simulate("e5m10"))
    with Pretended(stays=lambda x: x.dim() == 0) as gpu:  # as counts of steps do
        for _ in range(4):
            program(x, y)
            with simulation:
                as_eager(x, y)
    same = all(same_bits(a, b) for a, b in zip(mine.parameters(), theirs.parameters()))
    found.append([program.reason, same, len(gpu.programs), "torch.ops.roundoff.kernel" in gpu.programs[-1]])
print(json.dumps(found))
"""


def test_numbers_of_optimizers_go_to_the_kernels(ran):
    """One program for all calls, also where a number follows from the count of steps."""
    assert ran[0]["optimizers"] == [[None, True, 1, True]] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")
def test_what_is_missing():
    assert re.search("does not work here .*; it needs triton, g", reason_against_compiling("cuda"))


@pytest.fixture
def on_cuda():
    """Tensors without numbers, on a GPU that is not there."""
    with FakeTensorMode():
        yield lambda dtype=torch.float32: torch.empty(8, 8, dtype=dtype, device="cuda")


WRITTEN = {
    "add": lambda x: x + x, "sub": lambda x: x - x.flip(0), "mul": lambda x: x * 0.3, "div": lambda x: x / x,
    "rsub": lambda x: 1 - x, "neg": lambda x: -x, "where": lambda x: torch.where(x > 0, x, 0), "sqrt": torch.sqrt,
    "to float64": lambda x: x.double(), "to bool": lambda x: x.bool(), "cat": lambda x: torch.cat((x, x)),
    "indices": lambda x: torch.arange(8, device=x.device) + 1,
}  # fmt: skip
CALLED = {
    "add alpha": lambda x: torch.add(x, x, alpha=0.3), "div number": lambda x: x / 3.0, "relu": torch.relu,
    "maximum": lambda x: torch.maximum(x, x), "exp": torch.exp, "sum": lambda x: x.sum(), "amax": lambda x: x.amax(),
    "argmax": lambda x: x.argmax(), "to int": lambda x: x.int(), "half": lambda x: x.half(), "mm": lambda x: x @ x,
    "clamp": lambda x: x.clamp(0, 1), "addcmul": lambda x: torch.addcmul(x, x, x), "pow": lambda x: x**3,
    "sqrt float64": lambda x: x.double().sqrt(), "lerp": lambda x: x.lerp(x, 0.1), "sigmoid": torch.sigmoid,
    "mixed devices": lambda x: x * torch.empty(()), "floor div": lambda x: x // x,
    "floats in a range": lambda x: torch.arange(0, 1, 0.1, device=x.device),
}  # fmt: skip


@each("name", [*WRITTEN, *CALLED])
def test_what_is_written_on_cuda(name, on_cuda):
    graph = make_fx(lambda x: (WRITTEN | CALLED)[name](x))(on_cuda())  # noqa: PLW0108  it takes no built-in functions
    last = [node for node in graph.graph.nodes if node.op == "call_function" and "empty" not in str(node.target)][-1]
    assert is_written(last) == (name in WRITTEN), last.target
