"""What ``roundoff doctor`` says of a machine, and when it says that something is broken."""

import json
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from devices import memory_as_a_device

import roundoff.formats.tools.verify as verifying
from roundoff import __version__
from roundoff.cli import main
from roundoff.formats import Format
from roundoff.formats.base import family, first_use
from roundoff.formats.tools.verify import Check, Verification
from roundoff.pytorch import private_names
from roundoff.simulate.native.library import reason_against_native
from roundoff.simulate.testing import self_check

doctoring, simulating = import_module("roundoff.cli.doctor"), import_module("roundoff.simulate")


@pytest.fixture
def doctor(capsys, monkeypatch):
    reason_against_native()  # has the C++ compiled, before a test takes the compiler or the cache away

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["roundoff", "doctor", *arguments])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
        return status, capsys.readouterr().out

    return run


def test_a_sound_installation(doctor, monkeypatch, tmp_path):
    for missing in ("ray", "tianshou"):
        monkeypatch.setitem(sys.modules, missing, None)  # as where it is not installed
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "roundoff" / "loops").mkdir(parents=True, mode=0o700)
    (tmp_path / "roundoff" / "loops" / "one").write_bytes(b"12345")
    status, printed = doctor("--json")
    found = json.loads(printed)
    assert (status, found["broken"]) == (0, [])
    assert found["roundoff"]["version"] == __version__
    assert {"python", "torch", "numpy", "numba", "pandas"} == set(found["versions"])
    assert found["missing"] == {
        "sweep": [],
        "rl": [],
        "qtorch": [],
        "ray": ["ray"],
        "deploy": [],
        "sb3": [],
        "tianshou": ["tianshou"],
    }
    assert found["devices"][0] == {"device": "cpu"}
    assert found["kernels"][0]["differing"] == 0 < found["kernels"][0]["cases"]
    loops = found["caches"][0]
    assert loops["folder"] == str(tmp_path / "roundoff" / "loops")
    assert loops["files"] >= 1 <= loops["bytes"]
    status, printed = doctor()
    assert status == 0
    assert 'extra ray          no ray: pip install ".[ray]"\n' in printed
    assert printed.endswith("nothing is broken\n")


def wrong(names, device, *, quick):
    return Verification(device, (Check("e5m10", "numbers", 10, 3, "1.0 -> 2.0, not 1.0"),), 0.1)


def failing(names, device, *, quick):
    raise RuntimeError("no kernel image is available\nand more")


@pytest.mark.parametrize(
    ("verify", "said"),
    [(wrong, "rounding on cpu is wrong"), (failing, "rounding on cpu fails: no kernel image is available")],
)
def test_wrong_kernels_are_broken(doctor, monkeypatch, verify, said):
    monkeypatch.setattr(verifying, "verify", verify)
    status, printed = doctor()
    assert status == 1
    assert printed.splitlines()[-1].startswith(f"BROKEN: {said}")
    assert "BROKEN, see below" in printed
    status, printed = doctor("--json")
    assert status == 1
    assert json.loads(printed)["broken"][0].startswith(said)


def test_no_compiler_is_told_and_not_broken(doctor, monkeypatch):
    monkeypatch.setenv("CXX", "there-is-no-such-compiler")
    monkeypatch.setattr(simulating, "reason_against_compiling", lambda: "no compiler works")
    status, printed = doctor()
    assert status == 0
    assert "C++ compiler       none: steps run eagerly" in printed
    assert "compiled steps     no compiler works" in printed


def test_a_kernel_of_a_device_that_was_replaced_is_broken(doctor, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = SimpleNamespace(name="NVIDIA H100", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    report = Verification("cuda:0", (Check("e5m10", "numbers", 10, 0, ""),), 0.1)
    monkeypatch.setattr(verifying, "verify", lambda names, device, quick: report)
    tried = (22, ["e5m10 on cuda:0, torch.float32, up, fails with RuntimeError: no kernel image"])
    monkeypatch.setattr(doctoring, "_tried_kernels", lambda device: (0, []) if device == "cpu" else tried)
    status, printed = doctor()
    assert status == 1
    assert "rounds right to the bit (10 cases; 22 kinds of kernels compared with the CPU)" in printed
    said = (
        "BROKEN: the kernel that rounds to e5m10 on cuda:0, torch.float32, up, fails with RuntimeError: no kernel image"
    )
    assert f"{said}; the CPU replaces it" in printed


def test_kernels_are_tried_on_the_device(monkeypatch):
    """The CPU's memory stands for that of a device."""
    memory_as_a_device(monkeypatch)
    monkeypatch.setattr(family.Family, "_correct_kernels", property(lambda _: {}))
    monkeypatch.setattr(first_use, "_tried", {})
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.full(shape, 1.0))
    for fmt in map(type, map(Format.parse, doctoring._OF_KERNELS)):
        monkeypatch.setattr(fmt, "_round_on_device", family.Family._round_on_cpu)
    tried, replaced = doctoring._tried_kernels("cuda")
    assert tried >= 4 * len(doctoring._OF_KERNELS)
    assert not replaced
    monkeypatch.setattr(first_use, "_tried", {})
    monkeypatch.setattr(type(Format.parse("nf4")), "_round_on_device", lambda *_: None)
    tried, replaced = doctoring._tried_kernels("cuda")
    assert [text.split(" on ")[0] for text in replaced] == ["nf4"] * 4


def test_bits_are_compared_where_asked(doctor):
    status, printed = doctor("--bits")
    assert status == 0
    lines = [line for line in printed.splitlines() if line.startswith("bits of ")]
    assert [line[8:].split("  ")[0] for line in lines] == [
        "operators", "operations in C++", "a compiled step", "a population",
    ]  # fmt: skip
    assert all("the bits they should have (" in line for line in lines)
    assert "simulations were checked with it" in printed


def test_other_bits_are_broken(doctor, monkeypatch):
    runs = self_check._operators()
    wrong = {"tanh": lambda x, y: runs["tanh"](x, y) if watching() else runs["tanh"](x, y) + 1}
    monkeypatch.setattr(self_check, "_operators", lambda: runs | wrong)
    monkeypatch.setattr(self_check, "_step", lambda w, moment, x, y: (w.mul_(next(numbers)), x))
    numbers = iter(range(2, 99))
    status, printed = doctor("--bits")
    assert status == 1
    assert (
        "BROKEN: operators: other bits with this PyTorch in tanh in e5m7, tanh in posit8; please report it" in printed
    )
    assert "BROKEN: a compiled step: other bits" in printed
    assert "BROKEN: a population: other bits" in printed


def watching():
    return torch._C._len_torch_dispatch_stack() > 0


def test_a_name_that_is_missing_and_a_version_that_was_not_checked_are_told(doctor, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(
        private_names, "missing_names", lambda part: [f"torch._C._of_{part}"] if part == "agents" else []
    )
    monkeypatch.setattr(simulating, "reason_against_compiling", lambda: "it was not checked")
    status, printed = doctor()
    assert status == 0
    said = "NOT CHECKED with simulations; compiled steps were not, and run eagerly; it has no torch._C._of_agents"
    assert said in printed
