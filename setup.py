"""Maps the top-level folders to subpackages of ``roundoff``; everything else is in pyproject.toml.

The folders are ``formats/``, ``simulate/``, ...; installed under those names they would collide
with any other project's ``agents`` or ``formats``, so they are installed as ``roundoff.formats`` etc.
"""

from setuptools import find_packages, setup

FOLDERS = ("formats", "simulate", "agents", "analysis", "sweeps")

packages = ["roundoff"]
package_dir = {"roundoff": "src/roundoff"}
for folder in FOLDERS:
    packages += [f"roundoff.{name}" for name in find_packages(include=[folder, f"{folder}.*"])]
    package_dir[f"roundoff.{folder}"] = folder

setup(packages=packages, package_dir=package_dir)
