"""What depends on the version of PyTorch stands in one place, and other versions are told of."""

import ast
import tomllib
import warnings
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import roundoff
from roundoff.pytorch import private_names, versions
from roundoff.pytorch.private_names import NAMES, missing_names

ROOT = Path(__file__).parents[1]
FOLDERS = ("formats", "simulate", "agents", "sweeps", "analysis")


def sources():
    yield from (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    ground = ROOT / "src" / "roundoff"
    yield from (path for path in ground.rglob("*.py") if path.relative_to(ground).parts[0] not in FOLDERS)


def is_private(name):
    words = name.split(".")
    return "experimental" in words or any(word.startswith("_") and not word.startswith("__") for word in words)


def private_names_in(tree):
    """What a module uses of PyTorch that is not public, by its full name: imports, and what follows a point."""
    bound = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "torch")
    for node in ast.walk(tree):
        words = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value  # noqa: PLW2901  the chain is followed
        if words and isinstance(node, ast.Name) and node.id in bound:
            yield ".".join([bound[node.id], *words])


def used():
    found = defaultdict(set)
    for path in sources():
        for name in private_names_in(ast.parse(path.read_text(encoding="utf-8"))):
            if is_private(name) and not name.startswith("torch.ops."):
                found[name].add(path.relative_to(ROOT).as_posix())
    return found


def test_every_private_name_stands_in_the_table_and_is_used():
    found = used()

    def covered(name):
        return any(name == known or name.startswith(f"{known}.") for known in NAMES)

    # The beginning of a longer name is found as well.
    beginnings = {".".join(name.split(".")[:count]) for name in NAMES for count in range(1, name.count(".") + 1)}
    unknown = {name: files for name, files in found.items() if not covered(name) and name not in beginnings}
    assert not unknown
    unused = [known for known in NAMES if not any(f"{name}.".startswith(f"{known}.") for name in found)]
    assert not unused


def test_this_version_has_them_all(monkeypatch):
    for part in ("formats", "simulations", "compiled steps", "agents"):
        assert list(missing_names(part)) == []
    absent = ["torch._C._no_such_name", "no_such_package.name"]
    for name in absent:
        monkeypatch.setitem(NAMES, name, private_names.PrivateName("agents", "", ""))
    assert list(missing_names("agents")) == absent


def test_versions_are_compared_by_two_numbers():
    told = {"2.13.0+cpu": (2, 13), "2.15.0": (2, 15), "2.16.0a0+git12ab": (2, 16), "3.0": (3, 0), "main": (0, 0)}
    assert {text: versions.release(text) for text in told} == told
    assert versions.written(versions.COMPILING) == "2.13, 2.14, 2.15"


@pytest.fixture
def of_version(monkeypatch):
    def be(version, *, told=False):
        monkeypatch.setattr(versions, "_warned", told)
        monkeypatch.setattr(torch, "__version__", version)

    return be


def test_a_version_that_was_not_checked_is_told_of_once(of_version):
    of_version("2.99.0")
    with pytest.warns(versions.VersionWarning, match=r"checked with PyTorch 2\.\d+, .* and not with 2\.99\.0"):
        roundoff.simulate("e5m10")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roundoff.simulate("e5m7")
        of_version("2.15.0")
        roundoff.simulate("e5m7")
        of_version("2.99.0")
        roundoff.round(torch.ones(2), "e5m2")  # formats are the same on all


def test_a_step_is_compiled_where_its_bits_were_checked(of_version, monkeypatch):
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    of_version("2.12.1", told=True)
    with pytest.warns(
        roundoff.CompileWarning, match=r"checked with PyTorch 2\.13, 2\.14, 2\.15, and not with 2\.12\.1"
    ) as told:
        step = roundoff.compile(lambda x: x * 3, roundoff.simulate("e5m2"))
    assert len(told) == 1
    assert step(torch.tensor([0.9])).item() == 2.5
    with versions.compiling_on_any_version():
        assert versions.reason_against_compiled_bits() is None
    assert versions.reason_against_compiled_bits()
    monkeypatch.setenv(versions.VARIABLE, "1")
    assert versions.reason_against_compiled_bits() is None
    with versions.compiling_on_any_version():
        pass
    assert versions.reason_against_compiled_bits() is None
    monkeypatch.delenv(versions.VARIABLE)
    of_version("2.13.0+cpu")
    assert versions.reason_against_compiled_bits() is None


def test_the_metadata_and_the_page_have_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest, newest = versions.OLDEST, versions.SIMULATING[-1]
    # No upper bound: pip replaces no PyTorch that works. The extra has one.
    assert f"torch>={oldest[0]}.{oldest[1]}" in project["dependencies"]
    first = versions.SIMULATING[0]
    asked = f"torch>={first[0]}.{first[1]},<{newest[0]}.{newest[1] + 1}"
    assert project["optional-dependencies"]["checked"] == [asked]
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert all(f"\n| {major}.{minor}." in page for major, minor in versions.SIMULATING)
