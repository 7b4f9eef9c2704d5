"""Settings of these tests, and which process runs what (``make test``)."""

import gc
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer.main
from hypothesis import Phase, settings
from memory_folder import use_memory

from roundoff.caches import cache_folder

use_memory()

# Processes that tests start have the settings of that folder.
CHILDREN = str(Path(__file__).parent / "children")
if CHILDREN not in (paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    os.environ["PYTHONPATH"] = os.pathsep.join([CHILDREN, *filter(None, paths)])

# A shell starts what it runs in the background with Ctrl-C ignored, and so would be what tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# dm_control's suite loads Mesa, and with it an LLVM that a Triton which is loaded later does not survive.
with suppress(ImportError):
    import_module("triton._C.libtriton")

# No test asserts a time, so Hypothesis has no deadlines either. When a test fails, it does not explain which parts of
# the example matter: it traces every line for that, which costs minutes.
PHASES = [phase for phase in Phase if phase != Phase.explain]
settings.register_profile("ours", deadline=None, phases=PHASES)  # 100 examples
settings.register_profile("many", deadline=None, phases=PHASES, max_examples=200)  # make test-slow
settings.load_profile("ours")

# Without a GPU each torch.manual_seed keeps the text of the stack for three kinds of GPU that might still come. Under
# pytest that takes a millisecond, and the seeds of these tests are tens of thousands.
for devices in (torch.cuda, torch.mtia, torch.xpu):
    devices.traceback = SimpleNamespace(format_stack=list)

# PyTorch built with CUDA pretends eight GPUs where there is none and tensors without numbers are made. A first backward
# pass behind that starts a thread for each, and forks of tests would not have them. Behind this one no threads start.
if not torch.cuda.is_available():
    torch.ones((), requires_grad=True).backward()

# Typer makes its commands of functions in each process once, and here for each command that a test runs.
typer.main.get_command = cache(typer.main.get_command)

# In a new folder, programs that try the instructions of the processor are not compiled first.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# What tests compile, some of it wrong on purpose, is kept apart from the user's own programs.
if programs := cache_folder("tests"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(programs))

# What compiles most comes first, in two processes: of those that share a folder one compiles at a time, and a third one
# runs what compiles little meanwhile.
TRAINING = ["agents/test_population.py", "sweeps/test_populations.py", "agents/test_compiled_updates.py"]
STEPS = [
    "simulate/compiling/test_step.py",
    "simulate/compiling/test_cuda_programs.py",
    "simulate/compiling/test_step_networks.py",
    "simulate/compiling/test_step_operators.py",
    "simulate/compiling/test_population.py",
    "simulate/compiling/test_step_layouts.py",
    "simulate/compiling/test_step_edges.py",
]
TOGETHER = {name: group for group, names in (("training", TRAINING), ("steps", STEPS)) for name in names}
# The longest of the others come next, from long to short: short files at the end let both processes end together.
LONG = [
    "formats/gpu/test_kernels.py",
    "test_docs.py",
    "test_cli.py",
    "hostile/test_results_folders.py",
    "agents/test_quantization_aware.py",
    "agents/test_storage.py",
    "agents/actors/test_runs_with_actors.py",
    "agents/test_pixel_training.py",
    "formats/cpu/test_float_choice.py",
    "agents/test_td3.py",
    "agents/test_training.py",
    "simulate/test_every_operator.py",
    "simulate/composites/test_primitives.py",
    "agents/test_learners.py",
    "agents/test_sac.py",
    "test_extras.py",
    "formats/families/test_floats_modes.py",
    "agents/test_on_a_device.py",
    "statement1/test_agents.py",
    "analysis/test_differences.py",
    "simulate/accumulation/test_accumulation.py",
    "agents/test_environment.py",
    "sweeps/test_programs.py",
    "sweeps/test_guests.py",
    "sweeps/test_from_python.py",
    "sweeps/test_search.py",
    "sweeps/test_own_formats.py",
    "sweeps/test_faults.py",
    "agents/test_several_environments.py",
    "formats/base/test_kinds_of_tensors.py",
    "formats/test_as_data.py",
    "agents/test_ppo.py",
    "agents/test_rollouts.py",
    "agents/test_renderer.py",
    "agents/test_baselines.py",
    "agents/test_native.py",
    "agents/test_dqn.py",
    "agents/test_d4pg.py",
    "agents/test_quantized.py",
    "agents/test_config.py",
    "agents/test_adapters.py",
    "simulate/rounded_once/test_results.py",
    "formats/tools/test_verify.py",
    "formats/gpu/test_machine_code.py",
    "analysis/test_tooltips.py",
    "agents/acting/test_c_header.py",
    "simulate/scripts/test_blaming.py",
    "simulate/scripts/test_running.py",
    "simulate/dispatch/test_networks.py",
    "test_examples.py",
    "test_testing.py",
    "test_packaging.py",
]
assert all((Path(__file__).parent / name).exists() for name in [*TOGETHER, *LONG])
PLACES = {name: place for place, name in enumerate([*TOGETHER, *LONG])}
HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def logs_of_stable_baselines3(tmp_path_factory):
    """Stable-Baselines3 makes a folder of logs for each agent, which would stay in the system's temporary folder."""
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.getbasetemp() / "SB3")


@pytest.fixture(scope="module", autouse=True)
def one_file_a_program(request):
    """Two processes compile at a time: the loops of a program in several files at once would only cost more."""
    if str(request.path.relative_to(HERE)) not in TOGETHER:
        yield
        return
    from roundoff.simulate.compiling.graphs import gathered_loops

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered_loops, "_LOOPS_OF_A_FILE", 1000)
        yield


@pytest.fixture
def uncompiled(monkeypatch):
    """Runs the graphs that are traced as they are: compiling is what takes time."""
    from roundoff.simulate.compiling.graphs import tracing
    from roundoff.simulate.compiling.step import reason_against_compiling

    assert reason_against_compiling() is None  # which compiles something, once in a process
    monkeypatch.setattr(tracing, "compile_graph", lambda traced: lambda inputs: traced.graph(*inputs))


@pytest.fixture
def short_episodes(request, monkeypatch):
    """Episodes of the control suite have 100 steps in place of 1,000: for runs that are compared with each other.

    An evaluation of a tiny agent is a whole episode, which takes longer than all its updates. Slow tests, some of which
    learn, have whole episodes, and so have those whose children would not know of shorter ones.
    """
    if request.node.get_closest_marker("slow") or "forked_interpreters" in request.fixturenames:
        return
    from roundoff.agents.environments import control_suite

    load = control_suite.load_task

    def load_short(domain, task):
        loaded = load(domain, task)
        loaded._step_limit = 100
        return loaded

    monkeypatch.setattr(control_suite, "load_task", load_short)


@pytest.fixture(autouse=True)
def new_arithmetics():
    """What tests change for a while does not reach later ones: simulations of equal arithmetic share descriptions."""
    if descriptions := sys.modules.get("roundoff.simulate.native.descriptions"):
        descriptions.shared.cache_clear()


@pytest.fixture(autouse=True)
def own_main():
    """A script that a test runs as ``__main__`` does not stay there: processes that are spawned later import it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def forked_interpreters(monkeypatch):
    """Has Python in children forked from this process, which has imported PyTorch; see ``forked_interpreters.py``."""
    from forked_interpreters import use

    use(monkeypatch)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Collecting makes a million objects, which stay: what looks for garbage among them never finds any.

    Behind it all that lives is looked at after some five million new objects, and not after each 70,000: tracing a
    program makes as many, and the modules that tests import stay, too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # else they run in the usual order
        items.sort(key=lambda item: PLACES.get(item.path.relative_to(HERE).as_posix(), len(PLACES)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file.removeprefix(f"{HERE.name}/"), file)

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None
