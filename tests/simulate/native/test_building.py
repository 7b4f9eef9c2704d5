"""Compiling, keeping and loading the C++ of the shortcut."""

import os
import stat
import subprocess
import sys

import pytest

import roundoff
from roundoff.files import directory_lock
from roundoff.simulate.native import building, library


@pytest.fixture
def unloaded(monkeypatch):
    """A process that has not asked for the library yet; the one that is loaded comes back afterwards."""
    monkeypatch.setenv(library.VARIABLE, "1")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_reason", "")


def test_without_a_compiler_all_goes_through_python_with_one_warning(unloaded, monkeypatch):
    monkeypatch.setenv("CXX", "there-is-no-such-compiler")
    with pytest.warns(library.NativeWarning, match="there is no C\\+\\+ compiler"), roundoff.simulate("e5m3"):
        pass
    with roundoff.simulate("e5m3") as simulation:  # a second warning would be an error
        pass
    assert simulation._runner._shortcut is None
    assert library.reason_against_native() == "there is no C++ compiler"


def test_a_compiler_that_fails_is_told(unloaded, monkeypatch, tmp_path):
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: not today' >&2\nexit 1\n")
    broken.chmod(stat.S_IRWXU)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.warns(library.NativeWarning, match="not today"):
        assert library.library() is None


@pytest.fixture
def quick_compiler(monkeypatch, tmp_path):
    """One that makes a text of what is to be a library, and notes how often it is called."""
    compiler, calls = tmp_path / "quick", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho call >> {calls}\nwhile [ "$1" != -o ]; do shift; done\necho library > "$2"\n')
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: len(calls.read_text().split())


def test_it_is_compiled_once_and_again_where_it_is_damaged(quick_compiler, capsys):
    path = building.built()
    assert capsys.readouterr().err.count("compiling its C++") == 1
    assert building.built() == path
    assert capsys.readouterr().err == ""
    assert quick_compiler() == 1
    assert not stat.S_IMODE(path.parent.stat().st_mode) & 0o077
    path.write_bytes(path.read_bytes()[:-3])
    assert building.built().read_text() == "library\n"
    assert quick_compiler() == 2
    path.with_suffix(".sha256").unlink()
    building.built()
    assert quick_compiler() == 3


def test_a_process_that_holds_the_folder_for_ever_keeps_no_other_one_waiting(unloaded, quick_compiler, monkeypatch):
    monkeypatch.setattr(building, "_PATIENCE", 0.2)
    with (
        directory_lock(building.folder_of_natives()),
        pytest.warns(library.NativeWarning, match=r"another process has held .* is it stopped\?"),
    ):
        assert library.library() is None


def test_another_source_is_another_library(quick_compiler, monkeypatch, tmp_path):
    path = building.built()
    other = tmp_path / "shortcut.cpp"
    other.write_bytes(building.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(building, "SOURCE", other)
    assert building.built() != path


def test_what_is_no_library_is_not_loaded(unloaded, quick_compiler):
    with pytest.warns(library.NativeWarning, match="invalid ELF header|file too short"):
        assert library.library() is None


def test_it_is_switched_off_by_the_environment(monkeypatch):
    monkeypatch.setenv(library.VARIABLE, "0")
    with roundoff.simulate("e5m3") as simulation:
        pass
    assert simulation._runner._shortcut is None
    assert library.reason_against_native() == "ROUNDOFF_NATIVE is 0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_goes_on(monkeypatch):
    program = """
import os, torch, roundoff
x = torch.full((4,), 0.1)
with roundoff.simulate("e5m3"):
    first = x * x
    child = os.fork()
    same = torch.equal(x * x, first)
    if not child:
        os._exit(not same)
    raise SystemExit(os.waitpid(child, 0)[1] or not same)
"""
    environment = {**os.environ, library.VARIABLE: "1"}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
