"""Write the API reference of the repository, docs/reference/api.md, from signatures and docstrings.

    python docs/api.py > docs/reference/api.md

Each entry has an example, which the tests run. The HTML pages of ``make docs`` list all other public names.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import textwrap
import warnings
from typing import Any

import torch

import roundoff

HEAD = """# API reference

This page lists the arguments of the most used names. `python docs/api.py` writes it from the docstrings; `make docs`
makes [HTML pages](index.rst) of all public names.

```python
import torch
import roundoff
```
"""

EXAMPLES = {
    "simulate": """
x = torch.tensor(1.1)
with roundoff.simulate("e5m2"):
    y = x * x
print(y)
""",
    "round": """
print(roundoff.round(torch.tensor([0.1, 300.0]), "e4m3"))
""",
    "exact": """
x = torch.tensor(1.1)
with roundoff.simulate("e5m2"), roundoff.exact():
    y = x * x
print(y)
""",
    "Policy": """
with roundoff.simulate(roundoff.Policy("fp32", operands="e5m2")):
    y = torch.full((1, 2), 1.1) @ torch.ones(2, 1)
print(y)
""",
    "Rule": """
policy = roundoff.Policy("e5m2", rules=[roundoff.Rule(operation="log*", format="fp32")])
with roundoff.simulate(policy):
    y = torch.tensor(3.0).log()
print(y)
""",
    "digits": """
def variance():
    torch.manual_seed(0)
    x = 1000 + torch.randn(100)
    return (x * x).mean() - x.mean() ** 2


print(f"{roundoff.digits(variance).results[0].digits:.0f}")
""",
    "diff": """
x = torch.arange(6.0).view(2, 3)
report = roundoff.diff(lambda: x.softmax(1), lambda: x.softmax(0))
print(report.explained, report.differences[0].reason)
""",
    "Format": """
fmt = roundoff.Format.parse("fp16")
print(fmt, fmt.max, fmt.eps)
""",
    "blame": """
def train():
    return (torch.tensor([300.5, 2.5]).square() / 1000).sum().item()


print(roundoff.blame(train, "e5m10", lambda result: result < 100))
""",
    "compile": """
double = roundoff.compile(lambda x: x + x, roundoff.simulate("e5m2"))
print(double(torch.tensor([1.3])))
""",
    "sweep": "",
}


def plain(text: str) -> str:
    """Markdown of the reStructuredText in docstrings."""
    return re.sub(r":\w+:`(?:[^`<]*<)?[~.]*([^`>]+)>?`", r"`\1`", text).replace("``", "`")


def sections(documented: Any) -> dict[str, str]:
    """The parts of a docstring by heading; the summary has an empty heading."""
    parts = re.split(
        r"^(Args|Attributes|Returns|Raises|Source|Yields):\n", inspect.getdoc(documented) or "", flags=re.MULTILINE
    )
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def arguments(documented: Any, text: str) -> list[str]:
    """Rows of a table with each argument, its type and default, and its meaning."""
    known = inspect.signature(documented).parameters
    rows = ["| argument | type | default | meaning |", "|---|---|---|---|"]
    for name, meaning in re.findall(r"^    (\w+): ((?:.*\n?)(?:^      .*\n?|^\n)*)", text, flags=re.MULTILINE):
        parameter = known.get(name)
        kind = "" if parameter is None or parameter.annotation is parameter.empty else str(parameter.annotation)
        given = parameter is not None and parameter.default is not parameter.empty
        default = f"`{parameter.default!r}`" if parameter is not None and given else ""
        meaning = " ".join(plain(meaning).split()).replace("|", "/")  # noqa: PLW2901
        rows.append(f"| `{name}` | {kind.replace(' | ', ' or ')} | {default} | {meaning} |")
    return rows


def entry(name: str, documented: Any) -> str:
    """The part of the page about one name."""
    parts = sections(documented)
    lines = [f"## roundoff.{name}", "", plain(parts[""]).rstrip(), ""]
    for heading in ("Args", "Attributes"):
        if heading in parts:
            lines += [*arguments(documented, parts[heading]), ""]
    for heading in ("Returns", "Raises", "Source"):
        if heading in parts:
            lines += [
                textwrap.fill(f"**{heading}.** {' '.join(plain(parts[heading]).split())}", 118, break_on_hyphens=False),
                "",
            ]
    return "\n".join(lines)


def example(name: str) -> str:
    """The example of a name with its output."""
    code = EXAMPLES[name].strip()
    if not code:
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, {"torch": torch, "roundoff": roundoff})  # noqa: S102  ours, above
    return f"\n```python\n{code}\n```\n\n```text\n{printed.getvalue()}```\n"


def page() -> str:
    """The whole page; the examples are run."""
    return HEAD + "\n" + "\n".join(entry(name, getattr(roundoff, name)) + example(name) for name in EXAMPLES)


if __name__ == "__main__":
    print(page().rstrip())
