"""Files are complete or absent and never somebody else's, and whatever is wrong with them is one message."""

import errno
import fcntl
import multiprocessing
import os
import sys

import pytest

from roundoff import files
from roundoff.errors import FileError, FolderInUseError


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
    there.close()  # so that the death of the process is an EOFError here
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


@pytest.mark.parametrize("wait", [False, 60, True])
def test_a_file_system_without_locks_is_told_from_a_folder_in_use_at_once(tmp_path, monkeypatch, wait):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(files.time, "sleep", lambda _: pytest.fail("it waits for nothing"))
    with (
        pytest.raises(FileError, match=r"\.lock: cannot be locked \(No locks available\)") as raised,
        files.directory_lock(tmp_path, wait=wait),
    ):
        pass
    assert not isinstance(raised.value, FolderInUseError)


def test_what_stands_in_the_way_is_never_written_through(tmp_path):
    """The attack: links of all names that could be guessed, from a folder that somebody else has made."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name in (".x.json.tmp", "x.json", ".lock", "log"):
        (folder / name).symlink_to(precious)
    files.write_json(folder / "x.json", 1)
    assert not (folder / "x.json").is_symlink()
    assert files.read_json(folder / "x.json") == 1
    for name in (".lock", "log"):
        with pytest.raises(OSError, match="is a link"):
            files.open_to_append(folder / name)
    with pytest.raises(FileError, match=r"\.lock: cannot be written \(is a link\)"), files.directory_lock(folder):
        pass
    assert precious.read_text() == "mine"


def test_temporary_names_cannot_be_guessed_and_are_made_anew(tmp_path, monkeypatch):
    names = {files.temporary_beside(tmp_path / "x").name for _ in range(100)}
    assert len(names) == 100
    assert all(map(files.is_temporary, names))
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "0" * 16)  # what if they could be
    trap = files.temporary_beside(tmp_path / "x")
    trap.symlink_to(tmp_path / "precious")
    with pytest.raises(FileError, match="File exists"):
        files.write_text(tmp_path / "x", "text")
    assert not (tmp_path / "precious").exists()


def test_files_have_the_permissions_that_the_user_has_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_names_of_any_length_can_be_written(tmp_path):
    files.write_text(tmp_path / ("n" * 255), "text")


def test_what_killed_processes_have_left_is_removed_and_nothing_else(tmp_path):
    left = files.temporary_beside(tmp_path / "x")
    left.write_text("torn")
    folder = files.temporary_beside(tmp_path / "y")
    (folder / "runs").mkdir(parents=True)
    link = files.temporary_beside(tmp_path / "z")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    link.symlink_to(outside)
    kept = [tmp_path / ".hidden.tmp", tmp_path / "notes.tmp"]
    for path in kept:
        path.write_text("")
    files.remove_temporaries(tmp_path)
    assert sorted(tmp_path.iterdir()) == kept
    assert (outside / "kept").exists()


def test_pipes_devices_and_giants_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(files.LARGEST * 1000)  # takes no room
    for name in ("pipe", "device"):
        with pytest.raises(FileError, match="is not a regular file"):
            files.read_json(tmp_path / name)
    with pytest.raises(OSError, match="is not a regular file"):
        files.open_to_append(tmp_path / "pipe")
    with pytest.raises(OSError, match="has more than 1000 bytes"):
        files.read_bytes(tmp_path / "giant", largest=1000)


def test_json_that_is_nested_too_deeply_is_damaged(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(FileError, match=r"is not JSON \(nested too deeply\)"):
        files.read_json(tmp_path / "deep.json")


def test_folders_that_lead_out_of_a_folder_are_refused(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (root / "out").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "new")
    (root / "inside").symlink_to(root / "real")
    for name in ("out", "dangling"):
        with pytest.raises(FileError, match="is a link that leads out of"):
            files.make_directory_inside(root, name)
    assert not list(outside.iterdir())
    for name in ("real", "inside", "new"):
        assert files.make_directory_inside(root, name).is_dir()
    (tmp_path / "link").symlink_to(root)  # what the user calls the folder may be a link
    assert files.make_directory_inside(tmp_path / "link", "real").is_dir()


def test_a_system_without_locks_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(FileError, match=r"cannot be locked \(this system has no locks"), files.directory_lock(tmp_path):
        pass
