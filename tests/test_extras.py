"""What works without the packages of the extras, or what only Linux has, and what is said where one is missing."""

import gc
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from roundoff.extras import EXTRAS, from_extras, heavy_imports, missing, require

ROOT = Path(__file__).parents[1]
SWEEP = "name: tiny\nbase: {steps: 6000}\ngrid: {format: [fp32, e5m10]}\n"
BROUGHT = ("typing_extensions", "pydantic", "rich")  # by torch and typer
EVERY = [package for packages in EXTRAS.values() for package in packages if package not in BROUGHT]
# Forks itself for each order, a line of JSON, and answers with the status that the fork ended with. It has imported
# PyTorch, with what optimizers import of it, and what else the base needs, as where there is no extra; so no package
# that an order hides. What None stands for cannot be imported, nor found.
SERVER = """
import json, os, sys, traceback
every = json.loads(sys.argv[1])
sys.modules |= dict.fromkeys(every)
import numpy, sympy, torch, torch._dynamo, pandas, numba
for name in every:
    del sys.modules[name]
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chdir(order["folder"])
            for name, number in (("stdout", 1), ("stderr", 2)):
                os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT), number)
                setattr(sys, name, os.fdopen(number, "w"))
            assert not [name for name in sys.modules if name.partition(".")[0] in order["hidden"]]
            sys.modules |= dict.fromkeys(order["hidden"])
            exec(compile(order["program"], "<string>", "exec"), {"__name__": "__main__"})
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
COMMANDS = """
import sys
from roundoff.cli import main
for line in {commands}:
    sys.argv = ["roundoff", *line.split()]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    print("ended with", code, file=sys.stderr)
"""
FORKED_WORKERS = f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
import forked
from roundoff.sweeps.workers import local
local.LocalProcesses = forked.ForkedWorkers
"""


def told(extra, package):
    return f'this needs {package}: pip install ".[{extra}]"'


@pytest.fixture(scope="module")
def run_without(tmp_path_factory):
    """Runs a program in a folder without some packages, in a process that has imported nothing but PyTorch."""
    place = tmp_path_factory.mktemp("printed")
    outputs = {name: str(place / name) for name in ("stdout", "stderr")}
    command = [sys.executable, "-c", SERVER, json.dumps(EVERY)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def run(hidden, program, folder):
            for path in map(Path, outputs.values()):
                path.unlink(missing_ok=True)
            order = {"hidden": list(hidden), "program": program, "folder": str(folder), **outputs}
            server.stdin.write(json.dumps(order) + "\n")
            server.stdin.flush()
            status = int(server.stdout.readline())
            return subprocess.CompletedProcess([], status, *(Path(path).read_text() for path in outputs.values()))

        yield run
        server.stdin.close()


def run_commands(run_without, hidden, commands, folder):
    """What a command says, and how it ends, for each."""
    (folder / "tiny.yaml").write_text(SWEEP)
    run = run_without(hidden, COMMANDS.format(commands=commands), folder)
    assert run.returncode == 0, run.stderr
    said = re.split(r"^ended with (\d+)\n", run.stderr, flags=re.MULTILINE)
    return dict(zip(commands, zip(said[::2], map(int, said[1::2]), strict=False), strict=True)), run.stdout


@pytest.mark.parametrize(
    ("extra", "package", "commands"),
    [
        (
            "rl",
            "dm_control",
            [
                "train steps=6000",
                "train steps=6000 observations=pixels",
                "blame steps=6000 format=e5m1",
                "sweep tiny.yaml --workers 1",
                "reproduce table7",
                "sweep tiny.yaml --dry-run --no-estimate task=humanoid_run steps=7000 --executor ray",
            ],
        ),
        ("rl", "gymnasium", ["train task=gym:Pendulum-v1", "train task=gym:odd_environments:Odd-v0"]),
        (
            "sweep",
            "yaml",
            ["sweep tiny.yaml", "train", "blame", "presets", "collect . -o x.parquet"],
        ),
        ("sweep", "tensorboard", ["train steps=6000", "sweep tiny.yaml --workers 1"]),
        (
            "sweep",
            "matplotlib",
            [
                "plot .",
                "against .",
                "compare . -o x",
                "report .",
                "formats --plot e5m10",
                "reproduce fig4",
                "blame format=e5m3 --seeds 2",
            ],
        ),
        ("ray", "ray", ["sweep tiny.yaml --executor ray"]),
    ],
)
def test_a_missing_package_is_one_message_with_the_command(extra, package, commands, tmp_path, run_without):
    ended, _ = run_commands(run_without, [package], commands, tmp_path)
    for command, (said, status) in ended.items():
        if "--dry-run" in command:  # which needs no simulator
            assert (said, status) == ("", 0)
        else:
            assert (said, status) == (f"roundoff: {told(extra, package)}\n", 2), command
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]  # nothing was begun


@pytest.mark.parametrize(
    ("extra", "package", "statement"),
    [
        ("rl", "dm_control", "from roundoff.agents import *; train(TrainConfig(), 'out')"),
        ("rl", "dm_control", "from roundoff.agents.environments.opening import *; open_environment('walker_run', 1)"),
        ("rl", "gymnasium", "from roundoff.agents import TrainConfig; TrainConfig(task='gym:Pendulum-v1')"),
        ("sweep", "pydantic", "from roundoff.agents import TrainConfig"),
        ("sweep", "yaml", "from roundoff.sweeps import plan_file"),
        ("sweep", "scipy", "import roundoff.analysis"),
        ("qtorch", "qtorch", "import torch, roundoff; roundoff.round(torch.ones(1), 'e5m2', backend='qtorch')"),
    ],
)
def test_a_function_says_so_too(extra, package, statement, tmp_path, run_without):
    run = run_without([package], statement, tmp_path)
    assert run.stderr.splitlines()[-1] == f"roundoff.extras.MissingExtraError: {told(extra, package)}"
    assert not list(tmp_path.iterdir())


def test_formats_simulate_and_observe_need_no_extra(tmp_path, run_without):
    program = """
import torch, roundoff
layer = torch.nn.Linear(4, 1)
with roundoff.simulate("e5m10", observe=True) as simulation:
    layer(torch.ones(2, 4)).sum().backward()
print(simulation.report(), simulation.report().table.shape, simulation.audit().table.shape)
from roundoff.remedies import kahan_add_, softplus
import roundoff.testing
"""
    commands = ["formats e4m3", "verify --quick e2m1", "--version", "--help", "run --format e5m2 script.py"]
    (tmp_path / "script.py").write_text("import torch; print(torch.full((1,), 1.1) * 1)")
    ended, printed = run_commands(run_without, EVERY, commands, tmp_path)
    assert {command: ended[command][1] for command in commands} == dict.fromkeys(commands, 0), ended
    assert "e4m3" in printed
    assert "tensor([1.])" in printed
    run = run_without(EVERY, program, tmp_path)
    assert run.returncode == 0, run.stderr


def test_sweeps_are_planned_and_shown_without_a_simulator(tmp_path, run_without):
    program = """
from roundoff.agents.config import registry
from roundoff.agents.config.train_config import TrainConfig
from roundoff.sweeps import plan_text, run_sweep
from roundoff.sweeps.workers import local, process
import roundoff.analysis
print(len(plan_text("name: a\\ngrid: {format: [fp32, e5m10]}", "a.yaml").runs), registry.keys()[0])
"""
    run = run_without(EXTRAS["rl"], program, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "2 algorithm\n"


def test_a_program_is_swept_without_a_simulator_and_what_draws(tmp_path, run_without):
    """The worker is a fork of the command, and has no simulator either. A sweep imports nothing that it can do without:
    Matplotlib and SciPy take a second.
    """
    (tmp_path / "train.py").write_text("def train(lr: float = 0.1):\n    return lr\n")
    (tmp_path / "own.yaml").write_text("program: train.py:train\ngrid: {lr: [0.1, 0.2], format: [e5m2]}\n")
    program = FORKED_WORKERS + COMMANDS.format(commands=["sweep own.yaml --workers 1"])
    run = run_without([*EXTRAS["rl"], "matplotlib", "scipy"], program, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "ended with 0\n" in run.stderr
    assert "2 done" in run.stdout


def test_hypothesis_is_wanted_only_by_the_strategies_of_testing(tmp_path, run_without):
    program = """
import sys
import roundoff.testing
assert "hypothesis" not in sys.modules
roundoff.testing.edge_values("e5m10")
sys.modules["hypothesis"] = None  # as if it were not installed
try:
    roundoff.testing.tensors
except roundoff.RoundoffError as error:
    print(error)
"""
    run = run_without((), program, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "pip install hypothesis" in run.stdout


def test_the_table_of_extras_is_that_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = importlib.metadata.packages_distributions()

    def names(extra):
        found = {re.split(r"[\[<>=~ ]", name)[0].lower().replace("_", "-") for name in declared[extra]}
        return found - {"roundoff"}

    for extra, packages in EXTRAS.items():
        if extra == "tianshou" and "tianshou" not in distributions:
            continue  # it cannot stand beside the pandas of constraints.txt: docs/libraries.md
        brought = {
            distributions[package][0].lower().replace("_", "-") for package in packages if package in distributions
        }
        # dm_env comes with dm_control, and the core of pydantic with it
        assert brought - {"dm-env"} == names(extra), extra


def test_errors_of_other_packages_stay_what_they_are():
    assert missing("torch") is None
    require("torch", "nobody_has_this")  # no extra's
    with pytest.raises(ModuleNotFoundError, match="No module named 'nobody_has_this'"), from_extras():
        import nobody_has_this  # noqa: F401


def test_garbage_is_not_looked_for_during_imports_and_then_as_before():
    with heavy_imports():
        assert not gc.isenabled()
        with suppress(ZeroDivisionError), heavy_imports():
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with heavy_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


NAMES = """
import inspect, pydoc
import roundoff
from roundoff import *
assert hasattr(roundoff, "sweep")
assert dict(inspect.getmembers(roundoff))["round"] is roundoff.round
assert "simulate" in pydoc.render_doc(roundoff)
print(pydoc.plain(pydoc.render_doc(roundoff.sweep)))
try:
    sweep(print, {})
except roundoff.RoundoffError as error:
    print(error)
"""


def test_names_can_be_looked_at_in_the_base_installation(tmp_path, run_without):
    own = {"typing_extensions"}  # PyTorch needs it, too
    hidden = {package for packages in EXTRAS.values() for package in packages} - own
    run = run_without(hidden, NAMES, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count('pip install ".[sweep]"') == 2


def test_the_function_and_the_package_simulate_are_kept_apart(tmp_path, run_without):
    program = (
        "import roundoff.simulate.policy.policy, roundoff; print(roundoff.simulate('e5m2').__enter__, roundoff.formats)"
    )
    run = run_without((), program, tmp_path)
    assert run.returncode == 0, run.stderr


ONLY_LINUX = """
import importlib, os, pkgutil, sys, warnings

warnings.simplefilter("ignore")
os.environ["ROUNDOFF_NATIVE"] = "0"

import torch, numba, pandas  # they know their system themselves

MISSING = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog")  # on Windows
OF_OS = ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "geteuid", "getuid", "fork", "register_at_fork",
         "sched_getaffinity", "killpg", "setsid", "waitid", "memfd_create", "prlimit", "pidfd_open")
asked = []

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame.f_globals.get("__name__", "").startswith("roundoff"):
                asked.append((name, frame.f_globals["__name__"]))
                raise ModuleNotFoundError(name, name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Nothing())

import roundoff
for part in ("formats", "simulate"):
    package = importlib.import_module(f"roundoff.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith(("roundoff.formats.", "roundoff.simulate."))]))
assert not asked, asked

for name in OF_OS:
    if hasattr(os, name):
        delattr(os, name)
print(roundoff.round(torch.tensor([0.1, 3.3]), "e5m2").tolist())
with roundoff.simulate("e5m2", observe=True) as simulation:
    print((torch.tensor([0.1, 3.3]) * 2).tolist())
assert len(simulation.report().table)
"""


def test_nothing_is_imported_that_only_linux_has(tmp_path, run_without):
    """Formats and simulations import nothing of the kind, and work where it is missing."""
    run = run_without((), ONLY_LINUX, tmp_path)
    assert run.returncode == 0, run.stderr
    count, rounded, doubled = run.stdout.splitlines()
    assert int(count) > 200
    assert (rounded, doubled) == ("[0.09375, 3.5]", "[0.1875, 7.0]")
