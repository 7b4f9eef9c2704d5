"""What is installed: one package, complete."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_one_package(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    # from a copy: setuptools leaves its build folder behind, and would pack it again next time
    source = shutil.copytree(
        ROOT, tmp_path / "source", symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "results", "*.egg-info")
    )
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"roundoff", wheel.name.split("-py3")[0] + ".dist-info"}
    for wanted in (
        "formats/families/floats.py",
        "simulate/dispatch/simulation.py",
        "analysis/paper/published.csv",
        "py.typed",
    ):
        assert f"roundoff/{wanted}" in names
    # the wheel works with the sources out of reach
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = "import roundoff, torch; print(roundoff.__file__, roundoff.round(torch.tensor([0.1]), 'e5m2').item())"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {program}"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.split() == [str(tmp_path / "site" / "roundoff" / "__init__.py"), "0.09375"]
