"""Files of tests lie in memory where there is a place for them, and where they always did elsewhere."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_folder import ROOM, use_memory


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The folder for temporary files where memory has ``room`` bytes left, and the one that children are told."""

    def found(room=ROOM, flags=0, memory=tmp_path, **environment):
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", "elsewhere")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=room, f_frsize=1, f_flag=flags))
        use_memory(memory)
        return tempfile.gettempdir(), os.environ.get("TMPDIR")

    return found


def test_files_lie_in_memory_for_children_too(found, tmp_path):
    folder = str(tmp_path / f"roundoff-tests-{os.getuid()}")
    assert found() == (folder, folder)
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert found() == (folder, folder)  # the second time it is there


def test_where_memory_does_not_serve_files_lie_where_they_did(found, tmp_path, monkeypatch):
    assert found(room=ROOM - 1) == ("elsewhere", None)
    assert found(flags=os.ST_NOEXEC) == ("elsewhere", None)
    assert found(memory=tmp_path / "missing") == ("elsewhere", None)
    assert found(TMPDIR="mine") == ("elsewhere", "mine")
    assert not list(tmp_path.iterdir())
    (tmp_path / f"roundoff-tests-{os.getuid()}").write_text("")
    assert found() == ("elsewhere", None)  # a file has the name
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (tmp_path / "roundoff-tests-12345").mkdir()
    assert found() == ("elsewhere", None)  # somebody else's folder
