"""The language of docstrings and pages: plain English, within a budget that a crude count can hold."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("formats", "simulate", "agents", "analysis", "sweeps", "src/roundoff")
FOLDERS = (*PRODUCT, "bench", "docs", "examples", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
FRAGMENT = re.compile(
    r"(Of|Which|Whose|Where|Nor|Those|Their|Its|They|Such|It|As|So|And|But|Or|Then|Likewise|By|Without|Along|None:|"
    r"In which|That|The same|The latter)(?!\w)"
)
CLUMSY = re.compile(
    r"\b(?:that|those|these) of\b"  # name the thing again
    r"|\b(?:of|in|by|for|from|to|with|on|at) (?:which|whom)\b"  # two sentences
    r"|\bwhat (?:it|they|is|are|was|were|has|have) "  # a noun
    r"|\bwhose\b"  # with
    r"|, too\b|(?<!leave )(?<!left )\balone\b"  # also, only
    r"|\bwhole numbers?\b|\bbeside\b|\bgo(?:es)? on\b|\bmends?\b"  # integer, next to, continue, fix
    r"|\b(?:so|as) many\b|\banother one\b|\bthe others?'s?\b"
)
"""Constructions that are rare in good documentation; a hit is a place to rewrite, not a rule of grammar."""
FOR_LINTERS = re.compile("noqa|type: ignore|fmt:")


def docstrings(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def prose(page):
    """The text of a page without code, targets of links and tables."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^(\||    ).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", text))


def hits(text):
    return [match.group() for match in CLUMSY.finditer(text)]


def rate(texts):
    """Hits in 1,000 words."""
    return 1000 * sum(len(hits(text)) for text in texts) / max(1, sum(len(re.findall(r"\w+", text)) for text in texts))


def test_no_docstring_begins_as_a_fragment():
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in docstrings(file)
        if FRAGMENT.match(text)
    ]
    assert len(files) > 700
    assert not found, "name the thing, then the verb:\n" + "\n".join(found)


def test_the_count_finds_clumsy_sentences():
    clumsy = (
        "The format whose values are those of the carrier, and the mode alone, by which a whole number goes on, too."
    )
    assert len(hits(clumsy)) == 7
    assert not hits(
        "The format has the values of the carrier; only the mode of an integer continues. What is a format?"
    )


def test_docstrings_stay_within_their_budget():
    for folder in PRODUCT:
        files = [
            path for path in sorted((ROOT / folder).rglob("*.py")) if folder != "src/roundoff" or not is_linked(path)
        ]
        texts = [text for file in files for _, text in docstrings(file)]
        assert rate(texts) <= 3, sorted(hit for text in texts for hit in hits(text))
        begins = [text for text in texts if re.match(r"(What|How|Why|Who|Which|Where)\b", text)]
        assert len(begins) <= 0.01 * len(texts), begins
        lines = [line for text in texts for line in text.splitlines()]
        assert not [line for line in lines if re.match(r"\s+\w+: (of|that of|whose)\b", line)]


def test_a_private_function_is_named_after_what_it_does():
    """A name that three modules use, such as ``_values``, says too little."""
    modules = {}
    for file in {path.resolve() for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")}:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__"):
                modules.setdefault(node.name, set()).add(str(file.relative_to(ROOT)))
    assert len(modules) > 1000
    assert not {name: sorted(files) for name, files in modules.items() if len(files) > 2}


def test_long_modules_have_comments():
    """Comments for reasons, sources and phases; those for linters do not count."""
    lines = comments = 0
    for file in {path.resolve() for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")}:
        text = file.read_text(encoding="utf-8")
        if text.count("\n") > 150:
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            found = {x.start[0] for x in tokens if x.type == tokenize.COMMENT and not FOR_LINTERS.search(x.string)}
            lines, comments = lines + text.count("\n"), comments + len(found)
    assert lines > 50_000
    assert comments >= 0.03 * lines


def is_linked(file):
    return any(parent.is_symlink() for parent in file.parents)


def test_pages_stay_within_their_budget():
    assert len(PAGES) > 50  # the patterns find them
    wordy = {str(page.relative_to(ROOT)): hits(prose(page)) for page in PAGES if rate([prose(page)]) > 3}
    assert not wordy
    assert rate([prose(page) for page in PAGES]) <= 2
    long = [
        (page.name, sentence[:80])
        for page in PAGES
        for paragraph in re.split(r"\n\s*\n|\n(?=[-*#\d])", prose(page))
        for sentence in re.split(r"(?<=[.?!:;])\s+", paragraph)
        if len(sentence.split()) > 40
    ]
    assert not long
