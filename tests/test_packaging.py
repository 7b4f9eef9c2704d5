"""What is installed: one package, complete."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import roundoff

ROOT = Path(__file__).parents[1]


def copied(target):
    """The project without what is made of it: setuptools leaves its build folder behind, and would pack it again."""
    made = shutil.ignore_patterns(".*", "build", "results", "*.egg-info")
    return shutil.copytree(ROOT, target, symlinks=True, ignore=made)


def test_the_wheel_holds_one_package(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    source = copied(tmp_path / "source")
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


def test_an_editable_install_is_a_path_which_no_folder_of_the_same_name_hides(tmp_path):
    source = copied(tmp_path / "roundoff")  # a clone, beside which Python is started
    build = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], check=True, capture_output=True, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    # A path, which type checkers and editors follow, and new modules need no install; not code that finds modules.
    (link,) = (path for path in (tmp_path / "site").iterdir() if path.is_file())
    assert link.suffix == ".pth"
    assert link.read_text().strip() == str(source / "src")
    program = "import site; site.addsitedir('site'); import roundoff; print(roundoff.__file__, roundoff.__version__)"
    run = subprocess.run(
        [sys.executable, "-E", "-S", "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert run.stdout.split() == [str(source / "src" / "roundoff" / "__init__.py"), roundoff.__version__]
