"""Files are complete or absent, and whatever is wrong with them is one message."""

import multiprocessing
import os
import pickle

import pytest
import torch

from roundoff.agents import FileError, checkpoint, files


def test_json_goes_there_and_back_and_is_sorted(tmp_path):
    files.write_json(tmp_path / "x.json", {"b": 1, "a": [0.1, None]})
    assert files.read_json(tmp_path / "x.json") == {"a": [0.1, None], "b": 1}
    assert (tmp_path / "x.json").read_text().index('"a"') < (tmp_path / "x.json").read_text().index('"b"')
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert files.read_json(tmp_path / "x.json")["b"] == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, error, moment):
    path = tmp_path / "x.json"
    files.write_json(path, 1)

    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync" if moment == "fsync" else "pathlib.Path.replace", fail)
        expected = (
            pytest.raises(FileError, match="No space")
            if isinstance(error, OSError)
            else pytest.raises(KeyboardInterrupt)
        )
        with expected:
            files.write_json(path, 2)
    assert files.read_json(path) == 1
    files.write_json(path, 3)
    assert files.read_json(path) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_reading_what_is_not_there_or_torn(tmp_path):
    with pytest.raises(FileError, match=r"nothing\.json: cannot be read"):
        files.read_json(tmp_path / "nothing.json")
    for content in (b'{"a": ', b"\xff\xfe\x00"):
        (tmp_path / "torn.json").write_bytes(content)
        with pytest.raises(FileError, match=r"torn\.json: is not JSON"):
            files.read_json(tmp_path / "torn.json")


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileError, match="cannot be made a folder"):
            files.make_directory(path)
    assert files.make_directory(tmp_path / "a" / "b").is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="no permission"):
        files.make_directory(tmp_path)


def hold(path, connection):
    with files.directory_lock(path):
        connection.send("held")
        connection.recv()


def test_one_process_at_a_time(tmp_path):
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, there))
    process.start()
    try:
        assert here.recv() == "held"
        with pytest.raises(FileError, match="another process"), files.directory_lock(tmp_path):
            pass
        process.kill()
        process.join()
        with files.directory_lock(tmp_path):
            pass
    finally:
        process.kill()
        process.join()


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
        with pytest.raises(FileError, match=r"is damaged or no checkpoint.*delete the run's folder"):
            checkpoint.load(path)
    with pytest.raises(FileError, match="cannot be read"):
        checkpoint.load(tmp_path / "missing.pt")


def test_foreign_checkpoints_are_refused(tmp_path):
    path = tmp_path / "c.pt"
    for content in ([1, 2], {"state": {}}, {"version": 1, "state": 3}):
        torch.save(content, path)
        with pytest.raises(FileError, match="no checkpoint of a run"):
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
        with pytest.raises(FileError, match="is damaged or no checkpoint"):
            checkpoint.load(tmp_path / name)
    assert not target.exists()
