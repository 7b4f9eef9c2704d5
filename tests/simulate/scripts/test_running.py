"""Scripts run in a simulation as they run behind ``python``: each beside plain Python, in a process of its own."""

import json
import math
import signal
import subprocess
import sys

import pytest
import torch
from forked import fork_command
from processes import PATIENCE

from roundoff import simulate
from roundoff.cli import main
from roundoff.simulate.scripts.children import PythonChildren

ROUNDOFF = [sys.executable, "-c", "from roundoff.cli import main; main()"]

LOOKS = '''
"""What a script can see of how it was started."""
import argparse, inspect, sys
from pathlib import Path

import torch

import helper

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--format")
parser.add_argument("rest", nargs="*")
options = parser.parse_args()

def show() -> "not evaluated unless a future import leaks in":
    return None

class Thing:
    value: int = 3

if __name__ == "__main__":
    main = sys.modules["__main__"]
    print(sys.argv, sys.path[0], Path(__file__).resolve(), __name__, __doc__, __package__, options)
    print(main.__dict__ is globals(), helper.WHERE, type(Thing.__annotations__["value"]))
    print(getattr(__spec__, "name", None), inspect.getsource(show).splitlines()[0])
    print((torch.ones(1) / 3).item() == 0.34375, file=sys.stderr)
'''


def python(*arguments, cwd):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


def roundoff(*arguments, cwd, options=("--format", "e5m3")):
    return fork_command("run", *options, *arguments, cwd=cwd)


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """What forks need not load each for itself."""
    with simulate("e5m3", observe=True) as simulation:
        torch.ones(1, 1) @ (torch.ones(1, 1) * 1.1)
    str(simulation.report())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "helper.py").write_text("WHERE = __file__\n")
    return tmp_path


def test_a_script_sees_what_it_sees_behind_python(folder):
    (folder / "inner").mkdir()
    (folder / "inner" / "looks.py").write_text(LOOKS)
    (folder / "inner" / "helper.py").write_text("WHERE = 'inner'\n")
    arguments = ["inner/looks.py", "--seed", "3", "--format", "text", "--", "-x"]
    plain, simulated = python(*arguments, cwd=folder), roundoff(*arguments, cwd=folder)
    assert (plain.returncode, simulated.returncode) == (0, 0), simulated.stderr
    assert simulated.stdout == plain.stdout != ""
    assert simulated.stderr.splitlines()[-1] == "True"
    assert plain.stderr.splitlines()[-1] == "False"


def test_modules_and_folders_are_run_too(folder):
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print(sys.argv)\n")
    (package / "__main__.py").write_text("from . import __file__ as file; print(__name__, __package__, file)\n" + LOOKS)
    arguments = ["-m", "package", "--seed", "3"]
    plain, simulated = python(*arguments, cwd=folder), roundoff(*arguments, cwd=folder)
    assert (plain.returncode, simulated.returncode) == (0, 0), simulated.stderr
    assert simulated.stdout == plain.stdout != ""
    (package / "__main__.py").write_text("import sys; print(__name__, sys.path[0], sys.argv); sys.exit(5)")
    plain, simulated = python("package", cwd=folder), roundoff("package", cwd=folder)
    assert (plain.returncode, simulated.returncode) == (5, 5)
    assert simulated.stdout == plain.stdout != ""


FAILS = """
import sys
def fails():
    raise {error}
{hook}
fails()
"""

ENDS = """
import atexit
class Circle:
    def __del__(self):
        print("collected")
circle = Circle()
circle.itself = circle
del circle
atexit.register(print, "exit")
"""


@pytest.mark.parametrize(
    ("error", "hook"),
    [
        ("ValueError('bad')", ""),
        ("SystemExit(7)", ""),
        ("SystemExit('last words')", ""),
        ("SystemExit", ""),
        ("BrokenPipeError", ""),
        ("ValueError('bad')", "sys.excepthook = lambda _, error, tb: print('hook', error, tb.tb_frame.f_code.co_name)"),
        ("KeyboardInterrupt", ENDS),
        ("1 +", ""),
    ],
)  # fmt: skip
def test_errors_and_exits_are_the_scripts_own(error, hook, folder):
    (folder / "fails.py").write_text(FAILS.format(error=error, hook=hook))
    if hook == ENDS:  # a fork would do what this process is to do at its own exit
        command = [*ROUNDOFF, "run", "--format", "e5m3", "fails.py"]
        simulated = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    else:
        simulated = roundoff("fails.py", cwd=folder)
    plain = python("fails.py", cwd=folder)
    assert simulated.stderr == plain.stderr
    assert simulated.stdout == plain.stdout
    assert simulated.returncode == plain.returncode
    assert plain.stdout.endswith("exit\ncollected\n" if hook == ENDS else "")


def test_ctrl_c_ends_it_as_python(folder):
    (folder / "waits.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(100)\n"
        "finally: print('cleaned', flush=True)\n"
    )
    process = subprocess.Popen(
        [*ROUNDOFF, "run", "--format", "e5m3", "--observe", "waits.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert output == "cleaned\n"
    assert process.returncode == -signal.SIGINT
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "waits.py" in lines[1]
    assert "KeyboardInterrupt" in lines
    assert lines[-1].startswith("e5m3: 0 results of 0 operations")


LOADS = """
import sys
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.ones(1) * i / 3

if __name__ == "__main__":
    for context in sys.argv[1:]:
        loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context=context)
        print(context, *(batch.sum().tolist() for batch in loader))
"""


def test_workers_of_a_loader_are_forked_and_spawned(folder):
    (folder / "loads.py").write_text(LOADS)
    run = roundoff("loads.py", "fork", "spawn", cwd=folder)
    assert run.returncode == 0, run.stderr
    # Forked workers are in the simulation, as the loader without workers: 11/8 + 13/8 + 2 + 9/4 is 7.25, a tie. Those
    # that are spawned begin anew, outside: the sum of 4/3 + 5/3 + 2 + 7/3 alone is rounded.
    assert run.stdout == "fork 2.0 7.0\nspawn 2.0 7.5\n"
    said = [line for line in run.stderr.splitlines() if line.startswith("roundoff: ")]
    assert len(said) == 1
    assert said[0].startswith("roundoff: the script started 2 Python processes (")


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([[sys.executable, "-c", "pass"]], f"a Python process ({sys.executable} -c pass), in which nothing"),
        ([[sys.executable, "-c", "pass\n" * 100]], "-c pass pass pass"),
        ([[sys.executable, "-m", "roundoff", "--version"], ["true"]], ""),
    ],
)
def test_python_processes_that_begin_anew_are_told_of(commands, expected):
    with PythonChildren() as children:
        for command in commands:
            subprocess.run(command, check=True, close_fds=False)  # which calls os.posix_spawn
    subprocess.run([sys.executable, "-c", "pass"], check=True)  # behind the block
    assert expected in str(children)
    assert bool(children.commands) == bool(expected)
    assert "\n" not in str(children)
    assert len(str(children)) < 400


REDUCES = """
import math
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([math.pi, math.e]) / 3 * (dist.get_rank() + 1)
dist.all_reduce(x)
print(x.tolist(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_a_launcher_of_two_processes(inside, folder):
    """Behind torchrun each rank is in the simulation; in front of it none is, which is said."""
    (folder / "reduces.py").write_text(REDUCES)
    launcher, ours = ["-m", "torch.distributed.run", "--nproc-per-node", "2"], ["-m", "roundoff", "run", "--format"]
    given = [*launcher, *ours, "e5m3"] if inside else [*ours, "e5m3", *launcher]
    run = subprocess.run([sys.executable, *given, "reduces.py"], cwd=folder, capture_output=True, text=True, check=True)
    exact = (3 * torch.tensor([math.pi, math.e]) / 3).tolist()
    values = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(values) == 2
    assert values[0] == values[1]
    if inside:
        assert values[0] == [3.5, 2.75]  # 3.25 / 3 is 1.125 there, and 1.125 + 2.25 a tie; 0.9375 + 1.875 is 2.8125
        assert "roundoff: " not in run.stderr
    else:
        assert values[0] == pytest.approx(exact)
        assert "roundoff: the script started 2 Python processes (" in run.stderr


OVERFLOWS = """
import torch
total = torch.full((3,), 20000.0)
total = total * 2 + torch.full((3,), 0.5)
worst = total * 4  # here
print("done")
"""


def test_what_rounding_did_is_told_at_the_end(folder):
    (folder / "overflows.py").write_text(OVERFLOWS)
    options = ["--format", "e5m3", "--observe", "--observe-table", "counts.csv", "--threads", "1"]
    run = roundoff("overflows.py", cwd=folder, options=options)
    assert run.returncode == 0
    assert run.stdout == "done\n"
    assert "first non-finite result: overflow in mul (forward)" in run.stderr
    assert "overflows.py:5 in <module>: worst = total * 4" in run.stderr
    header, *rows = (folder / "counts.csv").read_text().splitlines()
    found = {
        row["operation"]: row for row in (dict(zip(header.split(","), row.split(","), strict=True)) for row in rows)
    }
    assert found["mul"]["overflow"] == "3"
    assert found["add"]["absorbed"] == "3"


MULTIPLIES = """
import torch
a = torch.ones(4, 8) * 0.5
print((a @ a.T).sum().item())
"""


def test_what_it_costs_is_told_at_the_end(folder):
    (folder / "multiplies.py").write_text(MULTIPLIES)
    (folder / "own.yaml").write_text("{name: mine, source: my bench, unit: pJ, multiply: {fp16: 2}, add: {fp32: 1}}\n")
    options = ["--format", "e5m10", "--threads", "1", "--cost-table", "cost.csv"]
    options += ["--cost-model", "horowitz-45nm", "--cost-model", "own.yaml"]
    run = roundoff("multiplies.py", cwd=folder, options=options)
    assert (run.returncode, run.stdout) == (0, "32.0\n")
    assert "128 multiply-accumulates of products, 32,768 bit operations" in run.stderr
    assert "model horowitz-45nm: 256 pJ (source: M. Horowitz" in run.stderr
    assert "model mine: 384 pJ (source: my bench)" in run.stderr
    header, *rows = (folder / "cost.csv").read_text().splitlines()
    found = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert [row["macs"] for row in found if row["operation"] == "mm"] == ["128"]


LOSES = {
    "reads it": "import torch\nloss = torch.full((2,), 300.0).square().sum()\nprint(loss.item())\n",
    "keeps it": "import torch\nw = torch.nn.Parameter(torch.ones(2))\n"
    "optimizer = torch.optim.Adam([w])\nw.grad = torch.zeros(2)\noptimizer.step()\n",
    "meets none": "import torch\nprint(torch.ones(2).sum().item(), torch.full((2,), float('inf')))\n",
}


@pytest.mark.parametrize("name", LOSES)
def test_a_program_that_loses_its_numbers_is_told_so_in_a_line(name, folder):
    (folder / "loses.py").write_text(LOSES[name])
    run = roundoff("loses.py", cwd=folder, options=["--format", "e5m10", "--threads", "1"])
    assert run.returncode == 0
    lines = [line for line in run.stderr.splitlines() if line.startswith("roundoff: ")]
    expected = {"reads it": "inf was read in", "keeps it": "parameter 0 of Adam, of shape (2,), is not finite"}
    assert len(lines) == (name in expected)
    assert all(expected[name] in line and "--observe names" in line for line in lines)


def test_policies_as_options_text_and_files(folder):
    (folder / "mul.py").write_text(
        "import torch\nx = torch.tensor([1.1]); y = (x * 1).tolist(), (x.view(1, 1) @ x).tolist()\nprint(y)\n"
    )
    (folder / "policy.yaml").write_text("preset: mixed-precision\nformat: e5m3\n")
    exact, coarse, product = 1.100000023841858, 1.125, 1.25
    for options, expected in [
        (["--format", "e5m3"], (coarse, product)),
        (["--format", "e5m3", "--rounding", "up"], (coarse, 1.375)),
        (["--format", "e5m3", "--rounding", "up", "--scalars", "once"], (coarse, 1.375)),
        (["--format", "e5m3", "--policy", "mixed-precision"], (exact, product)),
        (["--policy", "policy.yaml"], (exact, product)),
        (["--format", "e5m3", "--policy", '{"rules": [{"operation": "mul", "format": "fp32"}]}'], (coarse, product)),
    ]:
        run = roundoff("mul.py", cwd=folder, options=options)
        assert run.returncode == 0, run.stderr
        assert run.stdout == f"([{expected[0]}], [{expected[1]}])\n", options


def test_mistakes_end_with_one_message_and_status_2(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "fine.py").write_text("")
    for arguments, message in [
        (["fine.py"], "or give --policy"),
        (["--format", "e5m3", "missing.py"], "missing.py: there is no such file"),
        (["--format", "e5m3", "."], "__main__.py: there is no such file"),
        (["--format", "e5m3", "-m", "missing.module"], "there is no module missing.module to run"),
        (["--format", "e5m3", "-m", ".."], "there is no module .. to run"),
        (["--format", "e5m3", "-m", ".fine"], "there is no module .fine to run"),
        (["--format", "e5m3", "--threads", "2147483648", "fine.py"], "--threads"),
        (["--format", "e5x", "fine.py"], "e5x"),
        (["--format", "e5m3", "--policy", "{", "fine.py"], "--policy"),
        (["--format", "e5m3", "--policy", "some", "fine.py"], "policy.preset must be"),
        (["--format", "fp32", "--policy", "mixed-precision", "fine.py"], "is --format bf16 or fp16"),
        (["--format", "e5m3", "--observe-table", "no/where.csv", "fine.py"], "no does not exist"),
        (["--format", "e5m3", "--cost-table", "no/where.csv", "fine.py"], "no does not exist"),
        (["--format", "e5m3", "--cost-model", "moore", "fine.py"], "there is no cost model 'moore'"),
        (["--format", "e5m3", "--cost", "--blame", "loss<1", "fine.py"], "leave out --cost"),
        (["--format", "e5m3", "--observed", "fine.py"], "No such option"),
        (["--format", "e5m3"], "SCRIPT"),
    ]:
        before = sys.modules["__main__"], sys.argv, list(sys.path)
        monkeypatch.setattr(sys, "argv", ["roundoff", "run", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        sys.modules["__main__"], sys.argv, sys.path[:] = before
        assert end.value.code == 2, arguments
        assert message in capsys.readouterr().err, arguments
