"""Programs of Lightning, transformers, accelerate and trackers, as docs/frameworks.md has them; Optuna's example."""

import os
import re
import runpy
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from bench.networks_in_half import network
from comparing import same_bits

from roundoff import simulate
from roundoff.analysis import table
from roundoff.simulate.native.library import VARIABLE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/frameworks.md").read_text(encoding="utf-8")
FILES = {
    name: block
    for block, name in re.findall(r"^```(?:python|yaml)\n(# ([^\n]+)\n.*?)^```\n", PAGE, re.DOTALL | re.MULTILINE)
}
COMMANDS = [
    (command, shown)
    for console in re.findall(r"^```console\n(.*?)^```\n", PAGE, re.DOTALL | re.MULTILINE)
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)+)", console, re.MULTILINE)
]
NEEDS = {"lightning_net.py": "lightning", "language_model.py": "transformers", "loop.py": "accelerate"}
BIN = Path(sys.executable).parent


def the_files_of_the_page(folder):
    for name, block in FILES.items():
        (folder / name).write_text(block)


def run(command, folder, **environment):
    words = command.split()
    words[0] = str(BIN / words[0])
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment}
    done = subprocess.run(words, check=False, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def test_the_page_is_whole():
    assert set(FILES) == {*NEEDS, "sweep.yaml", "tracked.py", "tracked.yaml"}
    assert len(COMMANDS) == 13
    assert all(any(name in command for name in NEEDS) for command, _ in COMMANDS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_program_prints_what_the_page_shows(name, tmp_path):
    """Digits may differ with the machine's BLAS; what is NaN may not."""
    pytest.importorskip(NEEDS[name])
    the_files_of_the_page(tmp_path)
    numbers = {}
    for command, shown in [(command, shown) for command, shown in COMMANDS if name in command]:
        out = run(command, tmp_path).stdout
        (printed,) = re.findall(r"^loss .*\n", out, re.MULTILINE)
        numbers[command] = float(printed.split()[1])
        assert re.sub(r"\d+", "0", printed) == re.sub(r"\d+", "0", shown), command
        assert numbers[command] == pytest.approx(float(shown.split()[1]), rel=0.1, nan_ok=True), command
    assert len(numbers) >= 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["albert", "gpt2", "llama", "mbart", "mobilebert", "mpt", "olmo", "qwen3"])
@pytest.mark.parametrize("native", ["0", "1"], ids=["Python", "C++"])
def test_networks_in_fp32_have_the_bits_of_the_plain_program(name, native, monkeypatch):
    """Two steps of training, dropout among them; nothing is rounded, and no operation may compute otherwise."""
    pytest.importorskip("transformers")
    monkeypatch.setenv(VARIABLE, native)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def trained(around):
        model = network(name, 0).train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        draw = torch.Generator().manual_seed(0)
        for _ in range(2):
            ids = torch.randint(3, 99, (2, 16), generator=draw)
            with around:
                optimizer.zero_grad()
                model(input_ids=ids, labels=ids).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        return list(model.parameters())

    plain, simulated = trained(nullcontext()), trained(simulate("fp32"))
    assert all(map(same_bits, plain, simulated))
    assert not all(map(same_bits, plain, trained(simulate("e8m10"))))


def test_trl_runs_as_it_is_in_parts():
    pytest.importorskip("trl")
    page = (ROOT / "docs/rollouts.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.*grpo\.py)\nreward (.*)\n", page, re.MULTILINE)
    assert len(commands) == 4
    printed = []
    for command, shown in commands:
        done = run(command, ROOT, HF_HUB_OFFLINE="1")
        assert "PolicyWarning" not in done.stderr
        printed.append(float(re.findall(r"^reward (.*)\n", done.stdout, re.MULTILINE)[0]))
        assert printed[-1] == pytest.approx(float(shown), abs=0.1), command
    assert len(set(printed)) > 2


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_policy_finds_its_roles_in_lightning(tmp_path, monkeypatch):
    """Products of the forward and the backward pass are in FP8, though Lightning trains within the optimizer's step."""
    pytest.importorskip("lightning")
    import roundoff

    the_files_of_the_page(tmp_path)
    monkeypatch.chdir(tmp_path)
    with roundoff.simulate(roundoff.Policy.fp8("tensorwise")) as simulation:
        runpy.run_path("lightning_net.py")["train"]()
    audit = simulation.audit().table.set_index(["operation", "role"])["operands"]
    products = {key: set(rows) for key, rows in audit[audit != ""].groupby(level=[0, 1])}
    forward = {"output: activations e4m3fn_tensor, weights e4m3fn_tensor"}
    assert products["aten.addmm.default", "forward"] == forward
    assert any("gradients e5m2_tensor" in row for row in products["aten.mm.default", "backward"])
    assert not {role for _, role in products} - {"forward", "backward"}


def test_a_sweep_of_a_framework(tmp_path):
    pytest.importorskip("lightning")
    the_files_of_the_page(tmp_path)
    run("roundoff sweep sweep.yaml --workers 1", tmp_path)
    runs = table(tmp_path / "results/framework")
    assert runs.groupby("format")["status"].agg(set).to_dict() == {"fp32": {"done"}, "e5m10": {"crashed"}}
    assert len(runs) == 4


def test_trackers_go_on_in_a_simulation_and_in_a_sweep(tmp_path):
    trackers = [name for name in ("tensorboard", "mlflow", "wandb") if find_spec(name)]
    if trackers == ["tensorboard"]:
        pytest.skip("neither mlflow nor wandb is installed")
    the_files_of_the_page(tmp_path)
    store = {"MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    run("roundoff run --format e8m7 tracked.py", tmp_path, **store)
    run(f"roundoff sweep tracked.yaml tracker=[{','.join(trackers)}] --workers 1", tmp_path, **store)
    runs = table(tmp_path / "results/tracked")
    assert list(runs["status"]) == ["done"] * 2 * len(trackers)
    assert runs.groupby("format")["score"].nunique().to_dict() == {"fp32": 1, "e8m7": 1}  # whatever it logs to
    assert len([*tmp_path.glob("runs/*/events.out.tfevents.*")]) == 1 + 2
    assert all((tmp_path / "results/tracked/runs" / run / "tensorboard").is_dir() for run in runs["run"])
    if "mlflow" in trackers:
        losses = [path.read_text().splitlines() for path in tmp_path.glob("mlruns/*/*/metrics/loss")]
        assert [len(lines) for lines in losses] == [40, 40]
        assert losses[0] != losses[1]
    if "wandb" in trackers:
        assert len([*tmp_path.glob("wandb/offline-run-*/*.wandb")]) == 2


@pytest.mark.filterwarnings("ignore")  # Optuna's own
def test_optuna_finds_an_eps_that_fp16_has(tmp_path):
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = runpy.run_path(str(ROOT / "examples/optuna/search.py"))["search"]
    study = search("e5m10", 3, tmp_path, steps=60)
    assert study.trials[0].params == {"lr": 1e-3, "eps": 1e-8}
    assert study.trials[0].user_attrs["crashed"] == 3
    assert study.trials[0].value == pytest.approx(0.1)
    assert study.best_value > 0.3
    assert len([*tmp_path.glob("trial-*/runs/*/result.json")]) == 9
