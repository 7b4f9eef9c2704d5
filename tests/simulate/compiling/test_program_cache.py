"""Inductor's programs are kept where nobody else can write, and damaged ones are made anew."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor import codecache
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir
from torch._inductor.utils import clear_caches

import roundoff
from roundoff import caches
from roundoff.files import directory_lock
from roundoff.simulate import simulate
from roundoff.simulate.compiling import program_cache
from roundoff.simulate.compiling.program_cache import compiled_on_disk

CAPABILITY = torch.backends.cpu.get_cpu_capability()
OF_THIS_PROCESSOR = f"programs-{platform.machine()}-{CAPABILITY}-{program_cache._instructions()}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return tmp_path / "roundoff" / OF_THIS_PROCESSOR


def compiler():
    """Does as inductor does: makes what is missing, and loads what is there."""
    library = Path(cache_dir()) / "ab" / "library.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        library.write_bytes(b"code" * 100)
    if library.read_bytes() != b"code" * 100:
        raise OSError("file too short")
    return library


def test_programs_are_in_the_users_own_folder_and_the_users_setting_comes_back(folder, tmp_path, monkeypatch):
    assert compiled_on_disk(compiler) == folder / "ab/library.so"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # as torch sets it
    assert compiled_on_disk(compiler) == folder / "ab/library.so"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "chosen"))
    assert compiled_on_disk(compiler) == tmp_path / "chosen/roundoff" / OF_THIS_PROCESSOR / "ab/library.so"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "chosen")


@pytest.mark.parametrize("damage", ["empty", "torn", "zeros", "after a power failure"])
def test_a_damaged_file_is_made_anew(folder, monkeypatch, damage):
    library = compiled_on_disk(compiler)
    stat = library.stat()
    content = {"empty": b"", "torn": b"code" * 50}.get(damage, bytes(stat.st_size))
    library.write_bytes(content)
    if damage == "after a power failure":  # size and time were on the disk, and the content was not
        os.utime(library, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        monkeypatch.setattr(program_cache, "_boot", lambda: "the next one")
    assert compiled_on_disk(compiler).read_bytes() == b"code" * 100


def test_what_a_killed_compiler_has_left_is_removed(folder):
    library = compiled_on_disk(compiler)
    half = library.with_name("half.so")
    half.write_bytes(b"co")
    link = library.with_name("link.so")
    link.symlink_to(library)
    tuned = folder / "triton" / "best_config"
    tuned.parent.mkdir()
    tuned.write_text("written when a program ran")
    compiled_on_disk(compiler)
    assert (library.exists(), half.exists(), link.is_symlink(), tuned.exists()) == (True, False, False, True)


def test_a_copied_folder_is_used_and_a_damaged_record_trusts_nothing(folder):
    library = compiled_on_disk(compiler)
    os.utime(library, ns=(1, 1))  # as a copy may have it
    made = library.stat().st_ino
    compiled_on_disk(compiler)
    assert library.stat().st_ino == made
    for content in ("{", "[]", json.dumps({"boot": 1, "files": {"ab/library.so": [1]}})):
        (folder / ".kept.json").write_text(content)
        library.write_bytes(b"foreign")
        assert compiled_on_disk(compiler).read_bytes() == b"code" * 100


def test_what_is_damaged_while_the_process_runs_is_made_anew_once(folder):
    library = compiled_on_disk(compiler)
    tries = []

    def unlucky():
        tries.append(None)
        if len(tries) == 1:
            library.write_bytes(b"")
        return compiler()

    assert compiled_on_disk(unlucky).read_bytes() == b"code" * 100
    assert len(tries) == 2

    def broken():
        tries.append(None)
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError):
        compiled_on_disk(broken)
    assert len(tries) == 3


def test_headers_are_compiled_into_the_same_folder(folder):
    """Inductor has them in the shared temporary directory, whatever it is told."""
    theirs = codecache._HEADER_DIR, codecache._precompile_header
    ours = compiled_on_disk(lambda: (codecache._HEADER_DIR, codecache._precompile_header))
    assert ours[0] == str(folder / "precompiled_headers")
    assert ours[1] is not theirs[1]
    assert (codecache._HEADER_DIR, codecache._precompile_header) == theirs


@pytest.mark.parametrize("change", ["instructions", "capability"])
def test_programs_for_another_processor_are_not_found(folder, monkeypatch, change):
    """A home folder is shared by machines, and inductor does not look what a program on disk was written for."""
    library = compiled_on_disk(compiler)
    with monkeypatch.context() as other:
        if change == "instructions":
            other.setattr(program_cache, "_instructions", lambda: "others")
        else:
            other.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX1024")
        assert compiled_on_disk(compiler) != library
        assert library.exists()
    assert compiled_on_disk(compiler) == library


STEP = """
import roundoff, torch

x = torch.linspace(-3, 3, 1000)
step = roundoff.compile(lambda x: (x * 1.7 + 0.3).exp().sum(), roundoff.simulate("e5m10"))
print(step(x).item())
"""


@pytest.mark.slow  # two processes compile all, headers too
def test_a_process_with_fewer_instructions_compiles_for_itself(folder):
    """Loops with AVX2 did not compile where a process that may not use it found them on disk."""
    printed = []
    for capability in (CAPABILITY.lower(), "default"):
        env = os.environ | {"ATEN_CPU_CAPABILITY": capability, "XDG_CACHE_HOME": str(folder.parents[1])}
        command = [sys.executable, "-W", "error::UserWarning", "-c", STEP]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        printed.append(done.stdout)
    assert len(list(folder.parent.glob("programs-*"))) == (1 if CAPABILITY == "DEFAULT" else 2)


def test_without_any_folder_programs_live_as_long_as_the_process(monkeypatch):
    monkeypatch.setattr(program_cache, "cache_folder", lambda *_: None)
    made = compiled_on_disk(compiler)
    assert made.parents[1].stat().st_mode & 0o777 == 0o700
    assert compiled_on_disk(compiler) == made


def test_a_process_that_holds_the_folder_for_ever_keeps_no_other_one_waiting(folder, monkeypatch):
    """A stopped process holds what it has locked; another one, once its patience has ended, compiles for itself."""
    monkeypatch.setattr(program_cache, "_PATIENCE", 0.2)
    caches.advise.cache_clear()
    with directory_lock(program_cache.folder_of_programs()):
        with pytest.warns(caches.CacheWarning, match=r"another process has held .* is it stopped\?"):
            made = compiled_on_disk(compiler)
        assert folder not in made.parents
        assert compiled_on_disk(compiler) == made  # said once
    assert folder in compiled_on_disk(compiler).parents


@pytest.mark.slow  # it compiles three times
def test_real_programs_survive_real_damage(folder):
    def step(x):
        return x * 3 + 1

    def results():
        clear_caches()
        x = torch.linspace(-3, 3, 64)
        return roundoff.compile(step, simulate("e5m6"))(x)

    before = results()
    assert not torch.equal(before, torch.linspace(-3, 3, 64) * 3 + 1)
    for content in (b"", bytes(1000)):
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".kept.json"]
        assert {".so", ".py", ".cpp"} <= {path.suffix for path in files}
        for path in files:
            if path.suffix not in (".gch", ".lock"):
                path.unlink()  # this process has it in its memory
                path.write_bytes(content)
        assert torch.equal(results(), before)
