"""The command line as a user meets it: in processes of its own, killed in the middle, and given nonsense."""

import importlib.metadata
import json
import os
import pty
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from itertools import takewhile
from pathlib import Path

import pytest
import typer
from forked import ForkedWorkers, begin_command, ended, fork_command, status_of, wait_for
from processes import PATIENCE, wait_until
from program_runs import write_run, write_sweep

from roundoff import __version__ as roundoff_version
from roundoff.agents.run.stopping import StopRequest, stopping_on_sigterm
from roundoff.cli import app, main
from roundoff.cli.options import stoppable

ROUNDOFF = [sys.executable, "-c", "from roundoff.cli import main; main()"]

TINY = """
name: tiny
base:
  task: cartpole_swingup
  action_repeat: 50
  steps: 2000
  hidden_units: 8
  batch_size: 8
  seed_steps: 10
  eval_every: 1000
  eval_episodes: 1
  checkpoint_every: 200
grid:
  format: [fp32, e5m10]
  seed: [0, 1]
"""


def roundoff(*arguments, cwd=None, workers=None):
    """The command in a fork, without the seconds that importing PyTorch costs."""
    with tempfile.TemporaryDirectory() as folder:
        run = fork_command(*arguments, cwd=cwd, printed=Path(folder), workers=workers)
    assert "Traceback" not in run.stderr, run.stderr
    return run


def results(directory):
    """Everything that must not depend on how often a sweep was interrupted."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.name in ("config.json", "metrics.jsonl", "result.json", "sweep.json")
    }


def checkpoints(directory):
    """The checkpoints there are, each with the moment it was written at."""
    found = {}
    for path in directory.glob("runs/*/checkpoint.pt"):
        with suppress(FileNotFoundError):  # of a run that has just ended
            found[path] = path.stat().st_mtime_ns
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    importlib.import_module("roundoff.analysis")  # so that no fork has to
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "tiny.yaml").write_text(TINY)
    run = roundoff("sweep", folder / "tiny.yaml", "--out", folder / "out", "--workers", 2, workers=ForkedWorkers)
    assert run.returncode == 0, run.stderr
    assert "[4/4]" in run.stdout
    assert "4 done, 0 crashed, 0 failed of 4 runs" in run.stdout
    return folder / "out"


class Begun:
    """A sweep: started as a user starts it, with workers that it starts itself, or forks of this process."""

    def __init__(self, command, folder, own):
        self.printed, self.errors = folder / "stdout", folder / "stderr"
        if own:
            with self.printed.open("w") as printed, self.errors.open("w") as errors:
                self.process = subprocess.Popen([*ROUNDOFF, *command], stdout=printed, stderr=errors)
            self.pid, self.ended = self.process.pid, self.process.poll
        else:
            self.pid = begin_command(*command, printed=folder, workers=ForkedWorkers)
            self.ended = self.poll
        self.status = None

    def poll(self):
        if self.status is None:
            self.status = ended(self.pid)
        return self.status


@pytest.mark.usefixtures("forked_interpreters")
def test_a_sweep_killed_again_and_again_ends_with_the_same_results(undisturbed, tmp_path):
    """The one that Ctrl-C ends starts its worker as a user's does; the others and their two workers are forks."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    out = tmp_path / "out"
    source = random.Random(0)
    command = ["sweep", str(tmp_path / "tiny.yaml"), "--out", str(out), "--workers", "2"]
    checkpoints_survived = 0
    for deadly in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        own = deadly == signal.SIGINT
        sweep = Begun([*command[:-1], "1"] if own else command, tmp_path, own=own)
        # wait until a run goes beyond what there was, then strike at a random moment
        before = checkpoints(out)
        wait_until(lambda: checkpoints(out) != before or sweep.ended() is not None)  # noqa: B023
        assert "starting" in sweep.printed.read_text().splitlines()[0]
        time.sleep(source.uniform(0, 0.25))
        if sweep.ended() is not None:
            break  # a fast machine: there is nothing left to interrupt
        os.kill(sweep.pid, deadly)
        status = wait_until(lambda: (sweep.ended(),) if sweep.ended() is not None else None)[0]  # noqa: B023
        if status == 0:
            break  # a faster one: it ended before the signal came
        checkpoints_survived += len(list(out.glob("runs/*/checkpoint.pt")))
        if deadly != signal.SIGKILL:
            errors = sweep.errors.read_text()
            assert status == 128 + deadly
            assert "the same command continues" in errors
            assert "Traceback" not in errors
            logs = [log.read_text() for log in out.glob("logs/*")]
            assert any("roundoff: stopped as asked" in log for log in logs)
            assert not any("Traceback" in log for log in logs)
    assert checkpoints_survived > 0
    run = roundoff(*command, workers=ForkedWorkers)
    assert run.returncode == 0, run.stderr
    again = roundoff(*command)
    assert "nothing to do, 4 finished before" in again.stdout
    assert results(out) == results(undisturbed)
    assert not list(out.glob("runs/*/checkpoint.pt"))


def test_plot(undisturbed):
    run = roundoff("plot", undisturbed)
    assert run.returncode == 0, run.stderr
    names = [Path(line).name for line in run.stdout.splitlines()]
    drawn = ("degradation", "curves", "training")  # of four runs; score distributions take ten
    figures = [f"{name}.{suffix}" for name in drawn for suffix in ("csv", "png", "svg")]
    assert names == ["summary.csv", "runs.csv", *figures]
    for line in run.stdout.splitlines():
        assert Path(line).stat().st_size > 100
    lines = (undisturbed / "summary.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("cartpole_swingup,fp32,23,8,2,0,")


def test_status_and_collect(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["roundoff", "status", str(undisturbed)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "tiny: 4 runs: 0 running, 0 waiting, 4 done, 0 crashed, 0 failed"
    out = tmp_path / "all.parquet"
    monkeypatch.setattr(sys, "argv", ["roundoff", "collect", str(undisturbed), "-o", str(out)])
    with suppress(SystemExit):
        main()
    assert json.loads(roundoff("status", undisturbed, "--json").stdout)["counts"]["done"] == 4
    records = sum(len(path.read_bytes().splitlines()) for path in undisturbed.glob("runs/*/metrics.jsonl"))
    assert capsys.readouterr().out == f"{out}: {records} records of 4 runs\n"
    (undisturbed / "runs" / "figures").mkdir()  # which is no run, and no reason to say so
    for command in (
        ["status", undisturbed],
        ["collect", undisturbed, "-o", out],
        ["plot", undisturbed, "--figures", "curves"],
    ):
        run = roundoff(*command)
        assert (run.returncode, run.stderr) == (0, "")
    (undisturbed / "runs" / "figures").rmdir()


def test_dry_run_writes_nothing(undisturbed, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    run = roundoff("sweep", "tiny.yaml", "--dry-run", "--no-estimate", "seed=[1, 5]", cwd=tmp_path)
    assert run.returncode == 0
    assert "4 runs, 8000 environment steps" in run.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "tiny.yaml"]
    run = roundoff("sweep", "tiny.yaml", "--dry-run", "--out", undisturbed, "seed=[1, 5]", cwd=tmp_path)
    assert [line.split()[1] for line in run.stdout.splitlines()[1:5]] == ["done", "waiting", "done", "waiting"]
    assert "for 2 of 2 unfinished runs" in run.stdout
    assert "2 runs estimated by finished ones" in run.stdout


def test_train_one_run(tmp_path):
    settings = "action_repeat=100 steps=3000 hidden_units=4 batch_size=4 seed_steps=5 eval_every=2000 eval_episodes=1"
    arguments = ["train", "--out", tmp_path / "run", "format=e5m6", "fixes=[hadam, normal_fix]", *settings.split()]
    run = roundoff(*arguments)
    assert run.returncode == 0, run.stderr
    assert "return" in run.stdout
    assert roundoff(*arguments).returncode == 0
    other = roundoff(*arguments, "seed=1")
    assert other.returncode == 2
    assert "seed is 0 there and 1 here" in other.stderr


@pytest.mark.usefixtures("forked_interpreters")
def test_profiles(undisturbed, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    sweep = roundoff("sweep", tmp_path / "tiny.yaml", "--out", undisturbed, "--profile")
    assert sweep.returncode == 0
    lines = sweep.stdout.splitlines()
    assert lines[-1].startswith(("The limit of these 4 runs is", "No single activity limits these 4 runs;"))
    assert {"environment", "actions", "copies", "replay", "updates"} < {line.split()[0] for line in lines[3:]}
    single = ["train", "--out", str(tmp_path / "run"), "steps=1000000", "hidden_units=8", "batch_size=8", "--profile"]
    single += ["--no-compile", "action_repeat=50"]
    process = subprocess.Popen([*ROUNDOFF, *single], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "step" in process.stdout.readline() + process.stdout.readline()
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT
    assert "the same command continues" in errors
    last = printed.splitlines()[-1]
    assert "limit" in last
    assert "this run" in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "missing.yaml"], "missing.yaml: cannot be read (No such file or directory)"),
        (["sweep", "significand-quik"], '(did you mean "significand-quick"?)'),
        (["sweep", "bad.yaml"], "bad.yaml:2:18: format: unknown format 'fp23'"),
        (["sweep", "significand-quick", "sedd=1"], "did you mean 'seed'?"),
        (["sweep", "significand-quick", "--only", "seed=9"], "no run has seed: 9"),
        (["sweep", "significand-quick", "--out", "foreign"], "not the folder of a sweep"),
        (["sweep", "significand-quick", "--out", "bad.yaml/x"], "bad.yaml"),
        (["sweep", "significand-quick", "--workers", "0"], "--workers"),
        (["sweep", "significand-quick", "--gpus-per-run", "0.5"], "--executor ray"),
        (["sweep", "significand-quick", "--executor", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at"),
        (["train", "algorithm=dqn", "--address", "127.0.0.1:1"], "--address is for actors, and this run has none"),
        (["status", "missing"], "missing: is not the folder of a sweep"),
        (["status", "foreign"], "foreign: is not the folder of a sweep"),
        (["collect", "foreign", "--out", "all.parquet"], "foreign: is not the folder of a sweep"),
        (["plot", "missing"], "does not exist"),
        (["plot", "foreign"], "holds no runs"),
        (["against", "foreign"], "holds no runs"),
        (["compare", "foreign", "missing", "--out", "figures"], "there is nothing to compare\nforeign: holds no runs"),
        (["train", "lr=fast"], "argument 'lr=fast': lr:"),
        (["train", "device=cuda:99", "--out", "run"], "cuda"),
        (["formats", "e9000m1"], "e9000m1"),
        (["formats", "--plot"], "name the formats to draw"),
        (["formats", "--plot", "e5m10", "--out", "missing/formats.png"], "missing"),
        (["formats", "--plot", "e5m10", "--json"], "take one of them"),
        (["formats", "e4m3", "--vectors", ""], "cannot be written"),
        (["status", "foreign", "--watch", "--json"], "leave one of them out"),
        (["verify", "e5m99"], "significand"),
        (["verify", "e5m10", "--device", "cuda:99"], "cuda"),
        (["swep"], "No such command"),
    ],
)
def test_mistakes_end_with_one_message_and_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "bad.yaml").write_text("grid:\n  format: [e5m8, fp23]\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["roundoff", *arguments])
    with pytest.raises(SystemExit) as ended:  # any other exception would be a traceback
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"bad.yaml", "foreign"}  # nothing was written
    assert list((tmp_path / "foreign").iterdir()) == [tmp_path / "foreign" / "thesis.tex"]


def test_a_sweep_of_a_program_has_no_profile(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("def train(seed: int):\n    return {'loss': 1.0}\n")
    (tmp_path / "sweep.yaml").write_text("program: train.py:train\nmetric: loss\ngrid:\n  seed: [0, 1]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["roundoff", "sweep", "sweep.yaml", "--profile"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("--profile is about agents; of a program only the whole time is known: leave it out")
    assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "sweep.yaml", "__pycache__"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_named(tmp_path):
    tmp_path.chmod(0o500)
    run = roundoff("sweep", "significand-quick", "--out", tmp_path / "out")
    assert run.returncode == 2
    assert "out" in run.stderr


def test_what_there_is(capsys, monkeypatch):
    def printed(*arguments):
        monkeypatch.setattr(sys, "argv", ["roundoff", *arguments])
        with suppress(SystemExit):
            main()
        return capsys.readouterr().out

    module = subprocess.run([sys.executable, "-m", "roundoff", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == printed("--version") == f"roundoff {roundoff_version}\n"
    assert roundoff_version == importlib.metadata.version("roundoff")
    assert printed("-h") == printed("--help")
    assert printed("sweep", "-h") == printed("sweep", "--help") != ""
    listed = [line for line in printed("--help").splitlines() if re.fullmatch(r"[A-Z]\w+:", line)]
    assert listed == ["Options:", "Simulate:", "Sweep:", "Agents:", "Tools:"]
    for name, command in typer.main.get_command(app).commands.items():
        assert f"\n  {name} " in printed("--help")
        examples = [shlex.split(line) for line in printed(name, "--help").partition("\nExamples:\n")[2].splitlines()]
        assert [words[:2] for words in filter(None, examples)] == [["roundoff", name]] * 2
        for words in filter(None, examples):
            command.make_context(name, list(takewhile(lambda word: word != ">", words[2:])))  # options and values exist
    half, scaled = json.loads(printed("formats", "e5m10", "int8", "--json"))
    assert (half["largest"], half["smallest"], half["also_called"][0]) == (65504.0, 2.0**-24, "fp16")
    assert scaled["largest"] is None
    assert [fmt["format"] for fmt in json.loads(printed("formats", "--json"))][:2] == ["fp64", "fp32"]
    shown = printed("formats", "e5m10", "e4m3").splitlines()
    assert [line.split()[0] for line in shown] == ["format", "e5m10", "e4m3"]
    assert "65504" in shown[1]
    assert "448" in printed("formats", "fp8_e4m3")
    assert "e2m1_finite" in printed("verify", "fp4_e2m1", "--quick")
    presets = printed("presets")
    assert "significand-quick" in presets
    assert re.search(r"`significand` +\| paper +\| fig4 ", presets)
    chosen = printed("presets", "FIG4", "--size", "quick").splitlines()[2:]
    assert [line.split()[1] for line in chosen] == [
        "`actor-communication-quick`",
        "`actorq-quick`",
        "`significand-quick`",
    ]
    assert '"$schema"' in printed("schema")


def test_the_shell_completes_commands(tmp_path):
    (tmp_path / "roundoff").write_text("from roundoff.cli import main; main()")
    asked = {"_ROUNDOFF_COMPLETE": "complete_bash", "COMP_WORDS": "roundoff re", "COMP_CWORD": "1"}
    run = subprocess.run(
        [sys.executable, tmp_path / "roundoff"], capture_output=True, text=True, check=False, env=os.environ | asked
    )
    assert sorted(run.stdout.split()) == ["report", "reproduce"]


def test_the_command_says_what_it_can_without_pytorch(tmp_path):
    write_sweep(tmp_path, [write_run(tmp_path, "fp32", 0, 0.5)])
    asked = (
        ["--help"],
        ["presets", "fig4"],
        ["presets", "--size", "quick"],
        ["schema"],
        ["formats"],
        ["status", str(tmp_path)],
    )
    program = "import sys; from roundoff.cli import app\n"
    program += f"for words in {asked!r}: app(words, standalone_mode=False)\n"
    program += "assert 'torch' not in sys.modules; assert 'pandas' not in sys.modules"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "sweep" in run.stdout


def test_a_run_whose_terminal_is_closed_is_saved(tmp_path):
    keys = ["task=cartpole_swingup", "action_repeat=50", "hidden_units=8", "batch_size=8", "seed_steps=10"]
    keys += [f"{name}=500000" for name in ("steps", "eval_every", "checkpoint_every")]
    command = ["train", *keys, "--out", str(tmp_path / "run"), "--no-compile"]
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # behind nohup it is ignored
        sys.argv, sys.excepthook = ["roundoff", *command], sys.__excepthook__
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        with suppress(BaseException):
            os._exit(status_of(main))
        os._exit(1)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists)
    wait_until((tmp_path / "run" / "metrics.jsonl").read_bytes)
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
    os.close(terminal)
    assert wait_for(pid) == 143
    assert (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.parametrize("ignored", [False, True])
def test_hanging_up_stops_as_sigterm_does_unless_it_is_ignored(monkeypatch, ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    stop = StopRequest()
    try:
        with stopping_on_sigterm(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.made is not ignored
        ends = nullcontext() if ignored else pytest.raises(SystemExit, match="129")
        with ends, stoppable("the same command goes on"):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_every_command_that_writes_files_takes_out():
    """``run`` writes what its script does, and the table that ``--observe-table`` names."""
    writing = {
        "allocate",
        "blame",
        "collect",
        "compare",
        "cost",
        "export",
        "formats",
        "plot",
        "quantize",
        "report",
        "reproduce",
        "sweep",
        "train",
    }
    commands = typer.main.get_command(app).commands
    options = {name: {flag for one in command.params for flag in one.opts} for name, command in commands.items()}
    assert {name for name, flags in options.items() if {"--out", "-o"} <= flags} == writing
    assert {name for name, flags in options.items() if "--out" in flags} == writing


def test_who_reads_errors_may_stop_and_what_is_printed_stays(tmp_path):
    """``roundoff status FOLDER 2> >(head) > table``: the table is not thrown away with the messages."""
    read, write = os.pipe()
    os.close(read)
    lines = ["say('lost', error=True)", "say('kept')", "say('lost', error=True)", "say('too')"]
    program = "; ".join(["from roundoff.cli.options import say", *lines])
    with os.fdopen(write, "wb") as closed:
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=closed, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"kept\ntoo\n")


@pytest.mark.usefixtures("forked_interpreters")
def test_who_reads_may_stop_and_the_status_stays(tmp_path):
    """``roundoff status FOLDER | head`` of many runs; 1 would mean that some have failed."""
    for number in range(300):
        run = tmp_path / "runs" / f"cartpole_swingup-fp32-s{number}-{number:010x}"
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"config": {"task": "cartpole_swingup", "seed": number}}))
        (run / "result.json").write_text(
            json.dumps({"status": "done", "return": 1.0, "return_std": 0.0, "step": 1, "crash": None})
        )
    runs = [{"id": run.name, "config": {"task": "cartpole_swingup"}} for run in (tmp_path / "runs").iterdir()]
    plan = {"layout": 1, "name": "many", "description": "", "varying": ["seed"], "runs": runs}
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    for command in (["status", str(tmp_path)], ["status", str(tmp_path), "--json"], ["formats"]):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            ended = subprocess.run([*ROUNDOFF, *command], stdout=closed, stderr=subprocess.PIPE, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
