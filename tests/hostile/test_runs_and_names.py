"""Folders of single runs that somebody else has prepared, and names of formats that are none."""

import io
import json
import pickle
import zipfile

import pytest
import torch
from hostile.inputs import ESCAPES, FILES, TEXTS, VALUES, places, replaced

from roundoff.sweeps.language.plan import plan_run

SETTINGS = ["task=cartpole_swingup", "steps=200", "hidden_units=8", "batch_size=8", "seed_steps=100", "eval_every=200"]
RESULT = {"status": "crashed", "return": 1.0, "return_std": 0.0, "step": 200, "crash": {"step": 5, "reason": "none"}}
TIMING = {"seconds": 1.0, "steps_per_second": 2.0, "spent": {"updates": 1.0}}


@pytest.fixture
def run(commands):
    """The folder of a run that has ended, as it claims."""
    folder = commands.work / "run"
    folder.mkdir()
    config = {"config": plan_run(None, SETTINGS).as_json(), "version": "0.1.0"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps(RESULT))
    (folder / "timing.json").write_text(json.dumps(TIMING))
    return folder


@pytest.mark.parametrize("name", ["config.json", "result.json", "timing.json"])
def test_wrong_types_in_every_field(commands, run, name):
    train = ("train", *SETTINGS, "--out", run, "--profile")
    assert commands.run(*train)[0] == 0
    content = json.loads((run / name).read_text())
    texts = [*VALUES.values(), *map(json.dumps, TEXTS.values())]
    for number, way in enumerate(places(content)):
        (run / name).write_text(replaced(content, way, texts[number % len(texts)]))
        commands.run(*train)
        if name != "config.json" or number < 5:
            (run / name).write_text(replaced(content, way, '"\\u001b[2J"'))
            commands.run(*train)


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_not_what_they_are_called(commands, run, kind):
    for name in ("timing.json", "result.json", "config.json"):
        if kind.startswith("link") and name == "result.json":
            continue  # there is none then, and the run is trained
        (run / name).unlink()
        FILES[kind](run / name)
        commands.run("train", *SETTINGS, "--out", run, "--profile")


class _Called:
    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('../precious/PWNED').touch()",)


def _archive(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(10_000_000))


def _saved(content):
    return lambda path: torch.save(content, path)


CHECKPOINTS = {
    "pickle": lambda path: path.write_bytes(pickle.dumps(_Called())),
    "saved pickle": _saved({"version": 1, "state": _Called()}),
    "compressed": _archive,
    "tensor": _saved(torch.ones(3)),
    "no version": _saved({"state": {}}),
    "empty state": _saved({"version": 1, "state": {}}),
    "another version": _saved({"version": ESCAPES, "state": {}}),
    "old format": lambda path: torch.save(_Called(), path, _use_new_zipfile_serialization=False),
    "truncated": lambda path: path.write_bytes(_bytes({"version": 1, "state": {}})[:200]),
}


def _bytes(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


@pytest.mark.parametrize("kind", [*CHECKPOINTS, *(kind for kind in FILES if not kind.startswith("link"))])
def test_checkpoints(commands, run, kind):
    (run / "result.json").unlink()
    (CHECKPOINTS | FILES)[kind](run / "checkpoint.pt")
    assert commands.run("train", *SETTINGS, "--out", run)[0] == 2


def test_names_of_formats(commands):
    names = [text.encode(errors="ignore").decode().replace("\0", "") for text in TEXTS.values()]
    names += ["e99999999m99999999", "e5m" + "9" * 5000, "int8_g" + "9" * 30, "int8_p" + "9" * 400, "int8_s1e999_z0"]
    names += ["q99999999.99999999", "posit4000000000", "posit16_99999999", "lns8_99999999", "mxfp4_b" + "9" * 30]
    names += [
        "bfp8_" + "9" * 30,
        "binary99999999p3",
        "e5m10b" + "9" * 5000,
        "nvfp4_ax" + "9" * 30,
        "\u0665e5m10",
        "e\u0665m10",
    ]
    for name in names:
        if name:
            assert commands.run("formats", "--", name)[0] == 2
    for name in filter(None, names[::3]):
        assert commands.run("verify", "--quick", "--", name)[0] == 2
    assert commands.run("formats", "--plot", "e5m10", "--out", "formats.png", "--", *names[:3])[0] == 2


def test_a_drawing_goes_through_no_link(commands):
    (commands.work / "formats.png").symlink_to(commands.precious / "file")
    commands.run("formats", "--plot", "e2m1", "--out", "formats.png")
    assert not (commands.work / "formats.png").is_symlink()


@pytest.mark.parametrize(
    "command",
    [
        "sweep",
        "status",
        "collect",
        "reproduce",
        "train",
        "blame",
        "formats",
        "verify",
        "plot",
        "report",
        "presets",
        "schema",
    ],
)
@pytest.mark.parametrize("text", [ESCAPES, "\udcff\udc1b", "--\x1b[2J", "--seeds=\x1b[2J", "x" * 5000], ids=range(5))
def test_arguments_are_shown_harmlessly(commands, command, text):
    """A shell may take them from names of files, as in ``roundoff report *``."""
    commands.run(command, text, text, text)
