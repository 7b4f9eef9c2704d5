"""The one thing of the package that pyproject.toml cannot say: its long description, the README as an index shows it.

On an index the README stands alone, so its links lead to the tag of this version in the public repository, whose
address is ``Repository`` in ``[project.urls]``. Without such an address only their text is left, and
pictures are left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]*)\)(\n*)")  # a link within the repository


def long_description(readme: str, repository: str | None, version: str) -> str:
    """Makes the README's links absolute.

    Args:
        readme: The README, whose links are relative.
        repository: The address of the public repository, or None.
        version: The version, whose tag the links lead to.

    Returns:
        The README without a relative link.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, text, target, end = link.groups()
        if repository:
            return (
                f"{picture}[{text}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/v{version}/{target}){end}"
            )
        return "" if picture else text + end

    return LINK.sub(absolute, readme)


project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(version,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/roundoff/__init__.py").read_text("utf-8"), re.MULTILINE)
setup(
    long_description=long_description(
        (ROOT / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Repository"), version
    ),
    long_description_content_type="text/markdown",
)
