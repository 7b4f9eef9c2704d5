"""Checkpoints come back as they were, or are refused in one message; nothing in them is ever executed."""

import os
import pickle
import zipfile
import zlib

import pytest
import torch

from roundoff.agents import FileError
from roundoff.agents.run import checkpoint
from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import MetricsLog


def test_checkpoints_go_there_and_back(tmp_path):
    state = {"x": torch.arange(3.0), "deep": {"n": 2**70, "s": "text", "l": [1.5, None]}}
    checkpoint.save(tmp_path / "c.pt", state)
    loaded = checkpoint.load(tmp_path / "c.pt")
    assert torch.equal(loaded["x"], state["x"])
    assert loaded["deep"] == state["deep"]


def test_damaged_checkpoints_are_refused(tmp_path):
    path = tmp_path / "c.pt"
    checkpoint.save(path, {"x": torch.arange(1000.0)})
    whole = path.read_bytes()
    flipped = whole[:2000] + bytes([whole[2000] ^ 64]) + whole[2001:]
    for content in (b"", b"nonsense", whole[:100], whole[: len(whole) // 2], whole[:-30], flipped):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"is damaged or not a checkpoint.*delete the run's folder"):
            checkpoint.load(path)
    with pytest.raises(FileError, match="cannot be read"):
        checkpoint.load(tmp_path / "missing.pt")


def test_foreign_checkpoints_are_refused(tmp_path):
    path = tmp_path / "c.pt"
    for content in ([1, 2], {"state": {}}, {"version": 1, "state": 3}):
        torch.save(content, path)
        with pytest.raises(FileError, match="not a checkpoint of a run"):
            checkpoint.load(path)
    torch.save({"version": 99, "state": {}}, path)
    with pytest.raises(FileError, match="has version 99"):
        checkpoint.load(path)


class Evil:
    def __reduce__(self):
        return (os.mkdir, (os.environ["ROUNDOFF_TEST_EVIL"],))


def test_a_checkpoint_cannot_execute_anything(tmp_path, monkeypatch):
    target = tmp_path / "made"
    monkeypatch.setenv("ROUNDOFF_TEST_EVIL", str(target))
    torch.save({"version": 1, "state": {"x": Evil()}}, tmp_path / "c.pt")
    (tmp_path / "d.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("c.pt", "d.pt"):
        with pytest.raises(FileError, match="is damaged or not a checkpoint"):
            checkpoint.load(tmp_path / name)
    assert not target.exists()


def test_what_is_no_archive_of_pytorch_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "c.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(FileError, match="a part of it is compressed"):
        checkpoint.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match="is not a regular file"):
        checkpoint.load(path)


@pytest.mark.parametrize("damage", [lambda text: text.replace(b"1", b"2", 1), lambda text: b"\0" * 9 + text[9:]])
def test_curves_that_were_changed_below_a_checkpoint_are_not_continued(tmp_path, damage):
    """A flipped digit is JSON, too: no later reader could tell."""
    with MetricsLog(RunDirectory(tmp_path), length=0, step=0) as log:
        log.write("train", 1, {"loss": 1.5})
        length, checksum = log.synced_length(), log.checksum
        log.write("train", 2, {"loss": 2.5})  # behind the checkpoint: cut off
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.raises(FileError, match=r"metrics\.jsonl: was changed or damaged after the run was interrupted"):
        MetricsLog(RunDirectory(tmp_path), length=length, step=1, checksum=checksum)
    path.write_bytes(whole)
    with MetricsLog(RunDirectory(tmp_path), length=length, step=1, checksum=checksum) as log:
        log.write("train", 2, {"loss": 2.5})
        assert log.checksum == zlib.crc32(whole)
    assert path.read_bytes() == whole


def test_a_copy_by_hard_links_stays_as_it_is(tmp_path):
    """``cp -al`` and ``rsync --link-dest`` make copies of this kind."""
    with MetricsLog(RunDirectory(tmp_path), length=0, step=0) as log:
        log.write("train", 1, {"loss": 1.5})
    backup = tmp_path / "backup"
    os.link(tmp_path / "metrics.jsonl", backup)
    before = backup.read_bytes()
    with MetricsLog(RunDirectory(tmp_path), length=len(before), step=1) as log:
        log.write("train", 2, {"loss": 2.5})
    assert backup.read_bytes() == before
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before)
    assert len((tmp_path / "metrics.jsonl").read_bytes()) > len(before)
