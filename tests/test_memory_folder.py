"""Files of tests lie in memory where there is a place for them, and where they always did elsewhere."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_folder import PYTEST_HAS, ROOM, folder_of_tests, use_memory


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The folder of tests where memory has ``room`` bytes left."""

    def found(room=ROOM, flags=0, memory=tmp_path, **environment):
        for name in ("TMPDIR", PYTEST_HAS):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(tempfile, "tempdir", "/elsewhere")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=room, f_frsize=1, f_flag=flags))
        use_memory(memory)
        return folder_of_tests()

    return found


def test_where_files_of_tests_lie(found, tmp_path, monkeypatch):
    assert found() == tmp_path
    elsewhere = Path("/elsewhere")
    assert found(room=ROOM - 1) == elsewhere
    assert found(flags=os.ST_NOEXEC) == elsewhere
    assert found(memory=tmp_path / "missing") == elsewhere
    assert found(TMPDIR="/mine") == elsewhere
    assert found(**{PYTEST_HAS: "/mine"}) == Path("/mine")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert found() == elsewhere


def test_this_one_lies_there(tmp_path):
    assert tmp_path.is_relative_to(folder_of_tests().resolve())
