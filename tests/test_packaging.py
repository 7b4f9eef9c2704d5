"""What is installed: one package, complete."""

import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import setuptools
from packaging.specifiers import SpecifierSet

import roundoff

ROOT = Path(__file__).parents[1]
FOLDERS = ("formats", "simulate", "agents", "sweeps", "analysis")
SDIST = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "src"}
SDIST |= {"CHANGELOG.md", "CITATION.cff", "MANIFEST.in"}
LINKS = re.compile(r"\]\(([^)]*)\)")


def copied(target):
    """The project without what is made of it: setuptools leaves its build folder behind, and would pack it again."""
    made = shutil.ignore_patterns(".*", "build", "results", "*.egg-info")
    return shutil.copytree(ROOT, target, symlinks=True, ignore=made)


def test_the_wheel_holds_one_package(tmp_path):
    source = copied(tmp_path / "source")
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], check=True, capture_output=True, cwd=source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4
        archive.extractall(tmp_path, **safely)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert {path.name for path in unpacked.iterdir()} == SDIST
    # the wheel is made of the sdist, as `python -m build` makes it
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--wheel-dir", tmp_path, unpacked], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"roundoff", wheel.name.split("-py3")[0] + ".dist-info"}
    folders = {name: source / name for name in FOLDERS} | {"": source / "src/roundoff"}
    files = {Path("roundoff", name, path.relative_to(folder)) for name, folder in folders.items()
             for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}  # fmt: skip
    assert len(files) > 600
    assert {Path(name) for name in names if name.startswith("roundoff/")} == files
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


def test_on_an_index_the_readme_has_no_relative_link(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **words: given.update(words))
    long_description = runpy.run_path(str(ROOT / "setup.py"))["long_description"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [target for target in LINKS.findall(readme) if "://" not in target]
    assert len(targets) > 12
    public = long_description(readme, "https://example.org/us/roundoff/", "1.2.3")
    assert LINKS.findall(public) == [
        target if "://" in target else
        f"https://example.org/us/roundoff/{'raw' if target.endswith('.png') else 'blob'}/v1.2.3/{target}"
        for target in LINKS.findall(readme)
    ]  # fmt: skip
    alone = long_description(readme, None, "1.2.3")  # before there is a public repository: no dead link, no lost word
    assert all("://" in target for target in LINKS.findall(alone))
    without = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", readme)
    assert re.findall(r"\w+", LINKS.sub("]", alone)) == re.findall(r"\w+", LINKS.sub("]", without))
    assert given["long_description"] == alone  # until pyproject.toml has an address


def test_the_version_is_the_same_wherever_it_stands():
    assert f"\nversion: {roundoff.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {roundoff.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_pinned_packages_install_on_the_oldest_python():
    """pip fails after minutes, without the package's name, where one pin needs a newer Python than the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    pins = re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    checked = 0
    for name, version in pins:
        try:
            installed = metadata(name)
        except PackageNotFoundError:  # of an extra
            continue
        if installed["Version"] == version and (needed := installed["Requires-Python"]):
            assert oldest in SpecifierSet(needed), (name, version, needed)
            checked += 1
    assert checked > 50


def test_the_base_imports_nothing_that_takes_long():
    """Modules are counted in place of seconds: what formats and simulate need late is imported where it is needed."""
    late = "matplotlib pandas pyarrow pydantic ray rich sympy torch._dynamo torch._inductor triton"
    program = "import sys, torch; before = set(sys.modules); import roundoff; print(*set(sys.modules) - before)"
    program += "; roundoff.round, roundoff.simulate; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    alone, used = (set(line.split()) for line in run.stdout.splitlines())
    assert alone == {"roundoff", "roundoff.errors", "roundoff.extras"}  # short, and without packages of others
    assert {"roundoff.formats", "roundoff.simulate"} < used
    assert not used & set(late.split())
