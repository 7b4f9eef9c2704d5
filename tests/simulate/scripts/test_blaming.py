"""Blame for scripts: runs in processes of their own, of which the fewest operations are told that need more bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked import fork, fork_command, status_of, wait_for
from processes import PATIENCE, alive, children, wait_until

from roundoff import Policy, simulate
from roundoff.formats import FormatError
from roundoff.simulate.blame import BlameError
from roundoff.simulate.scripts import trial
from roundoff.simulate.scripts.blaming import blame_script
from roundoff.simulate.scripts.measures import Measure
from roundoff.simulate.scripts.processes import ScriptProcesses, prepared
from roundoff.simulate.scripts.running import Script, ScriptError

OVERFLOWS = """
import sys
import torch
x = torch.linspace(0, 12, 8)
print("loss:", (x.exp().log() * float(sys.argv[1])).sum().item())
"""


@pytest.fixture
def forked(monkeypatch):
    """Trials are forks, which need not import PyTorch; else the same."""
    with simulate("e5m3"):
        torch.ones(1) * 1.1

    def ran(_, order, script, *__):
        path = Path(f"{order.outcome}.printed")

        def run():
            printed = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            sys.stdout, sys.stderr = os.fdopen(printed, "w", buffering=1), os.fdopen(os.dup(printed), "w", buffering=1)
            sys.argv = ["-c"]
            trial.received = lambda _: prepared(order, script)
            sys.excepthook = sys.__excepthook__
            os._exit(status_of(trial.main))

        status = wait_for(fork(run))
        return status, path.read_text(), ""

    monkeypatch.setattr(ScriptProcesses, "run", ran)


def blamed(tmp_path, text, measure, *arguments, fmt="e5m10", **options):
    (tmp_path / "script.py").write_text(text)
    trials = []
    script = Script(str(tmp_path / "script.py"), arguments)
    found = blame_script(script, Policy.parse(fmt), Measure.parse(measure), on_trial=trials.append, **options)
    assert found.trials == len(trials)
    return found, trials


@pytest.mark.usefixtures("forked")
def test_the_operation_that_overflows_is_found(tmp_path):
    found, trials = blamed(tmp_path, OVERFLOWS, "loss<50", "1")
    assert found.culprits == ("exp",)
    assert set(found.units) >= {"exp", "log", "mul", "sum"}
    assert found.needs == {"exp": "e8m10"}
    assert trials[0].split("), ")[1] == "without rounding: loss 48, passes"
    assert trials[1].split("), ")[1] == "in e5m10: loss inf, fails"
    assert "0 of " in trials[-1]
    assert trials[-1].endswith(" exp in e8m10: loss 48, passes")


FILTERS = """
import torch
w = torch.nn.Parameter(torch.full((1,), 12.5))
optimizer = torch.optim.SGD([w], lr=1e-9)
(w.exp() - w.exp()).sum().backward()
optimizer.step()
print("loss:", 0.0)
"""


@pytest.mark.usefixtures("forked")
def test_a_trial_whose_weights_are_lost_has_failed(tmp_path):
    """Trainers print a loss of NaN as 0, and end with status 0."""
    found, trials = blamed(tmp_path, FILTERS, "loss<1")
    assert found.culprits, found
    assert "in e5m10: loss 0, but parameter 0 of SGD, of shape (1,), is not finite, fails" in trials[1]
    found, trials = blamed(tmp_path, FILTERS.replace("12.5", "torch.inf"), "loss<1")
    assert (found.culprits, len(trials)) == ((), 2)  # lost without rounding, too


@pytest.mark.usefixtures("forked")
def test_roles_and_what_is_logged(tmp_path):
    text = """
import roundoff, torch
w = torch.ones(1, requires_grad=True)
(w * 2.0**-12 * 2.0**-13).sum().backward()
roundoff.log(0, gradient=float(w.grad.sum() * 2.0**25))
print("gradient: 1")
"""
    found, _ = blamed(tmp_path, text, "gradient>0.5", over="role", fmt="e5m3")
    assert set(found.units) == {"forward", "backward"}
    assert "backward" in found.culprits


@pytest.mark.usefixtures("forked")
def test_a_script_that_passes_has_no_culprits(tmp_path):
    found, trials = blamed(tmp_path, OVERFLOWS, "loss<50", "1", fmt="e8m7")
    assert (found.culprits, len(trials)) == ((), 2)
    assert "the program passes as it is (2 runs)" in str(found)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("text", "measure", "message"),
    [
        (OVERFLOWS, "loss<40", r"also fails in high precision \(loss 48\): nothing is to blame$"),
        (
            OVERFLOWS,
            "accuracy>0.5",
            r"\(no number for accuracy\): .*; it printed last:\n  loss: 48.0$",
        ),
        ("pass", "finite", r"\(no number for finite\): .*; it printed nothing$"),
        ("print('inf')", "finite", r"\(not finite\): nothing is to blame$"),
        ("1 / 0", "finite", r"\(exit status 1 \(ZeroDivisionError: division by zero\)\): .*\n  Traceback"),
        ("import os; os.kill(os.getpid(), 9)", "finite", r"^the script was killed by signal 9 \(SIGKILL\)$"),
    ],
)
def test_a_script_that_fails_without_rounding_is_not_searched(text, measure, message, tmp_path):
    with pytest.raises(BlameError, match=message):
        blamed(tmp_path, text, measure, "1")


@pytest.mark.usefixtures("forked")
def test_what_the_simulation_cannot_run_is_an_error(tmp_path):
    with pytest.raises(FormatError, match=r"e8m20 cannot be simulated exactly in float32"):
        blamed(tmp_path, OVERFLOWS, "finite", "1", fmt="e8m20")


def test_a_script_that_does_not_end_is_stopped_with_its_processes(tmp_path):
    pids = tmp_path / "pids"
    (tmp_path / "hangs.py").write_text(f"""
import os, time
child = os.fork()
if child:
    with open({str(pids)!r} + "~", "w") as file:
        file.write(f"{{os.getpid()}} {{child}}")
    os.rename({str(pids)!r} + "~", {str(pids)!r})
    print("started", flush=True)
time.sleep(600)
""")
    order = trial.TrialOrder({"format": "e5m3"}, 0, 1, [], False, str(tmp_path / "outcome"), "operation", True)
    end = time.monotonic() + PATIENCE
    seconds = 3.0
    while not pids.exists():  # it takes seconds to import PyTorch
        assert time.monotonic() < end
        with ScriptProcesses(trial.TrialOrder, together=True) as processes:
            status, printed, _ = processes.run(order, Script(str(tmp_path / "hangs.py")), seconds)
        seconds *= 2
    assert (status, printed) == (None, "started\n")
    wait_until(lambda: not any(map(alive, pids.read_text().split())))


def test_the_command_and_ctrl_c(tmp_path):
    (tmp_path / "waits.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n")
    command = [sys.executable, "-c", "from roundoff.cli import main; main()", "run", "--format", "e5m3", "--blame",
               "loss<1", "waits.py"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    wait_until((tmp_path / "begun").exists)  # the first child may be one that PyTorch starts when it is imported
    (started,) = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == "roundoff: stopped; nothing was written\n"
    wait_until(lambda: not alive(started))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--blame", "loss", "script.py"], "such as loss<2.5; or finite; got 'loss'"),
        (["--blame", "loss<1", "missing.py"], "missing.py: there is no such file"),
        (["--blame", "loss<1", "--observe", "script.py"], "leave out --observe and --observe-table"),
        (["--blame", "loss<1", "--over", "thing", "script.py"], "--over"),
    ],
)
def test_mistakes_end_with_one_message_and_status_2(options, message, tmp_path):
    (tmp_path / "script.py").write_text("")
    run = fork_command("run", "--format", "e5m3", *options, cwd=tmp_path)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_a_missing_script_is_an_error():
    with pytest.raises(ScriptError, match="there is no such file"):
        blame_script(Script("missing.py"), Policy("e5m3"), Measure("finite"))
