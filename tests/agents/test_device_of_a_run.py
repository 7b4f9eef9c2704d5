"""The device of a run: one that is not there, that cannot do what the run asks, that is full; and another one later."""

from contextlib import nullcontext, suppress

import pytest
import torch
from runs import config

from roundoff.agents import RunError, train
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.run.device import open_device
from roundoff.agents.run.stopping import Stopped, StopRequest


def test_a_device_that_is_not_there(tmp_path):
    name = f"cuda:{torch.cuda.device_count() + 3}"
    with pytest.raises(RunError, match=f"device is {name}, but PyTorch finds .* CUDA device"):
        train(config(device=name), tmp_path)


class Card:
    """What PyTorch says of a machine with one old card, or of none."""

    def __init__(self, monkeypatch, cards, version="13.0"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Turing")
        monkeypatch.setattr(torch.version, "cuda", version)


@pytest.mark.parametrize(
    ("cards", "version", "keys", "message"),
    [
        (0, None, {"device": "cuda"}, "no CUDA devices.*install PyTorch with CUDA"),
        (0, "13.0", {"device": "cuda"}, "no CUDA devices.*check the driver.*support CUDA 13.0"),
        (
            1,
            "13.0",
            {"device": "cuda:1"},
            "1 CUDA device on .*; use device=cpu, or one from cuda:0 to cuda:0",
        ),
        (1, "13.0", {"device": "cuda", "format": "bf16", "native": True}, "a Turing of .* 7.5, .* needs 8.0 or more"),
    ],
)
def test_a_device_is_refused_before_anything_is_written(tmp_path, monkeypatch, cards, version, keys, message):
    Card(monkeypatch, cards, version)
    with pytest.raises(RunError, match=message):
        train(config(**keys), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_old_card_does_what_it_can(monkeypatch):
    Card(monkeypatch, 1)
    for name, native in (("cuda", None), ("cuda:0", "e5m10"), ("cpu", "e8m7")):
        assert open_device(name, native) == torch.device(name)


def test_too_little_memory_is_one_message_and_loses_nothing(tmp_path, monkeypatch):
    keys = config(steps=700)
    train(keys, tmp_path / "whole", compiled=False)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nIncluding non-PyTorch memory")

    with monkeypatch.context() as patched:
        patched.setattr(SAC, "update", full)
        with pytest.raises(RunError, match=r"memory of cpu is not enough .*allocate 2 GiB.; .*--population 1") as told:
            train(keys, tmp_path / "run", compiled=False)
    assert "non-PyTorch" not in str(told.value)
    train(keys, tmp_path / "run", compiled=False)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "devices",
    [
        ("cpu", "cpu", "cpu"),
        pytest.param(
            ("cpu", "cuda", "cpu"),
            marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
        ),
    ],
    ids="-".join,
)
def test_a_run_goes_on_on_another_device(tmp_path, devices):
    """A run's checkpoint does not say where it was made, nor does its config."""
    seen = []
    for device, until in zip(devices, (300, 600, None), strict=True):
        stop = StopRequest()

        def watch(progress, until=until, stop=stop):
            seen.append(progress.step)
            if until and progress.step >= until:
                stop.make()

        with suppress(Stopped) if until else nullcontext():
            result = train(config(steps=900, device=device), tmp_path, watch, stop)
    assert result.status == "done"
    assert seen == sorted(seen)
