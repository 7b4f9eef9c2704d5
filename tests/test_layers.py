"""Dependencies point one way, and only the umbrella is installed."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The ground floor: what has nothing to do with number formats; it imports itself alone.
GROUND = {"caches", "errors", "files", "printable"}
MAY_IMPORT = {
    "formats": {"formats"},
    "simulate": {"formats", "simulate"},
    "agents": {"formats", "simulate", "agents"},
    "sweeps": {"formats", "agents", "sweeps"},
    "analysis": {"formats", "analysis"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} line {node.lineno}: imports are absolute"
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_follow_the_layers(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        for module in imports(path):
            if module.split(".")[0] == "roundoff":
                layer = [*module.split("."), "umbrella"][1]
                assert layer in MAY_IMPORT[folder] | GROUND, f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("name", sorted(GROUND))
def test_the_ground_floor_rests_on_nothing(name):
    for module in imports(ROOT / "src" / "roundoff" / f"{name}.py"):
        parts = module.split(".")
        assert parts[0] in sys.stdlib_module_names or (parts[0] == "roundoff" and parts[1] in GROUND), module


def test_the_wheel_holds_one_package(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    # from a copy: setuptools leaves its build folder behind, and would pack it again next time
    source = shutil.copytree(
        ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "build", "results", "*.egg-info")
    )
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"roundoff", wheel.name.split("-py3")[0] + ".dist-info"}
    for wanted in ("formats/floats.py", "simulate/mode.py", "analysis/published.csv", "py.typed"):
        assert f"roundoff/{wanted}" in names
    # the wheel works with the sources out of reach
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = "import roundoff, torch; print(roundoff.__file__, roundoff.round(torch.tensor([0.1]), 'e5m2').item())"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {program}"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.split() == [str(tmp_path / "site" / "roundoff" / "__init__.py"), "0.09375"]
