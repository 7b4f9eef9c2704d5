"""Inductor's programs are kept where nobody else can write, and damaged ones are made anew."""

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
from roundoff.errors import FileError
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


def test_a_program_is_compiled_once(folder):
    made = compiled_on_disk(compiler).stat()
    assert compiled_on_disk(compiler).stat() == made
    assert [path.name for path in folder.iterdir() if path.is_file()] == [".lock"]


@pytest.mark.parametrize("remains", [b"", b"code" * 50, bytes(400)])
@pytest.mark.parametrize("boot", ["the same", "after a power failure"])
def test_what_a_killed_compiler_has_left_is_removed(folder, monkeypatch, remains, boot):
    before = folder / "ab" / "before"
    tuned = folder / "triton" / "best_config"

    def killed():
        library = compiler()
        library.write_bytes(remains)
        library.with_name("link.so").symlink_to(library)
        tuned.parent.mkdir()
        tuned.write_text("written when a program ran")
        raise KeyboardInterrupt

    compiled_on_disk(lambda: (before.parent.mkdir(), before.write_bytes(b"sound")))
    os.utime(before, ns=(1, 1))  # clocks of file systems are coarse
    with pytest.raises(KeyboardInterrupt):
        compiled_on_disk(killed)
    if boot != "the same":
        monkeypatch.setattr(program_cache, "_boot", lambda: "the next one")
    library = compiled_on_disk(compiler)
    assert library.read_bytes() == b"code" * 100
    assert (before.exists(), library.with_name("link.so").is_symlink()) == (True, False)
    assert tuned.exists() == (boot == "the same")


def test_on_a_full_disk_nothing_is_compiled_into_the_folder_without_a_mark(folder, monkeypatch, tmp_path):
    def full(path, _text):
        raise FileError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(program_cache, "write_text", full)
    monkeypatch.setattr(program_cache, "folder_of_process", lambda _: tmp_path)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert compiled_on_disk(compiler) == tmp_path / "ab/library.so"
    assert not (folder / "ab").exists()


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
def test_real_programs_survive_real_remains(folder):
    def step(x):
        return x * 3 + 1

    def results():
        clear_caches()
        x = torch.linspace(-3, 3, 64)
        return roundoff.compile(step, simulate("e5m6"))(x)

    before = results()
    assert not torch.equal(before, torch.linspace(-3, 3, 64) * 3 + 1)
    for content in (b"", bytes(1000)):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {".so", ".py", ".cpp"} <= {path.suffix for path in files}
        (folder / ".compiles").write_text(program_cache._boot())
        for path in files:
            if path.suffix not in (".gch", ".lock"):
                path.unlink()  # this process has it in its memory
                path.write_bytes(content)
        assert torch.equal(results(), before)
