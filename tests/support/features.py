"""Features of the product, and sentences of the pages that deny one.

    features.md ──> rows: feature, since, page, phrases ──┐
    pages ──> units: a sentence, bullet, row or line of code, behind the headings above it ──> denials

Rules of this file: it reads texts and knows no feature. A phrase is looked for in each unit by itself, in lower case
and without marks of Markdown; `...` in it stands for any words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
MARKS = re.compile(r"[`*\\]|(?<!\w)_|_(?!\w)")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
BEGINS = re.compile(r"\s*(?:[-*]|\d+\.)\s+")


class Feature(NamedTuple):
    """A row: the feature in words, the version that has it first, its page with an anchor, phrases that deny it."""

    name: str
    since: str
    page: str
    denials: tuple[str, ...]


def features_of(text: str) -> list[Feature]:
    """The rows of the table of features. Raises ValueError for a row without four cells, or without a phrase."""
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        phrases = tuple(filter(None, (one.strip() for one in cells[-1].split(";"))))
        if len(cells) != 4 or not phrases:
            raise ValueError(f"a row has four cells, the last with phrases between semicolons: {row}")
        found.append(Feature(cells[0], cells[1], cells[2], phrases))
    return found


def plain(text: str) -> str:
    """Words of a text in lower case, without links and marks."""
    return " ".join(MARKS.sub("", LINK.sub(r"\1", text)).lower().split())


def units_of(page: str) -> Iterator[tuple[int, str]]:
    """(line, plain text) of each sentence, bullet, row and line of code, behind the headings above it."""
    headings: list[str] = []
    run: list[str] = []
    first, fenced = 1, False

    def sentences() -> Iterator[tuple[int, str]]:
        for one in SENTENCE.split(" ".join(run)) if run else ():
            yield first, plain(" : ".join([*headings, one]))
        run.clear()

    for number, line in enumerate(page.splitlines(), 1):
        fence, heading = line.startswith("```"), not fenced and re.match(r"(#+) (.*)", line)
        alone = fence or fenced or heading or line.startswith("|") or not line.strip()
        if alone or BEGINS.match(line):
            yield from sentences()
            first = number
        fenced ^= fence
        if heading:
            headings[len(heading[1]) - 1 :] = [heading[2]]
        elif alone and line.strip() and not fence:
            cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else [line]
            yield number, plain(" : ".join([*headings, *cells]))
        elif not alone:
            run.append(BEGINS.sub("", line, count=1) if BEGINS.match(line) else line.strip())
    yield from sentences()


def denials(pages: Mapping[str, str], features: Iterable[Feature]) -> Iterator[tuple[str, int, Feature, str]]:
    """(page, line, feature, unit) of each unit of the pages that denies a feature."""
    wanted = [(feature, [plain(part) for part in one.split("...")]) for feature in features for one in feature.denials]
    for name, text in pages.items():
        units = list(units_of(text))
        whole = "\n".join(unit for _, unit in units)
        for feature, parts in wanted:
            if all(part in whole for part in parts):  # few phrases get beyond this look
                yield from ((name, line, feature, unit) for line, unit in units if in_order(parts, unit))


def in_order(parts: list[str], unit: str) -> bool:
    """Whether the parts of a phrase follow each other in the unit, each as whole words."""
    return re.search(".*".join(rf"(?<!\w){re.escape(part)}(?!\w)" for part in parts), unit) is not None


def pages_of(root: Path) -> dict[str, str]:
    """Pages that users read, by their path: README, SECURITY, docs, READMEs of deploy, and headers of examples."""
    paths = [root / "README.md", root / "SECURITY.md"]
    paths += sorted([*(root / "docs").rglob("*.md"), *(root / "deploy").rglob("*.md")])
    pages = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}
    for path in sorted((root / "examples").glob("*.py")):
        pages[str(path.relative_to(root))] = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return {name: text for name, text in pages.items() if "/generated/" not in name}
