"""Programs and commands of README and of the documentation, with the mark that says how each is run.

    <!-- no-run: reason -->          a console block that cannot run in a test
    <!-- tested-by: tests/... -->    another test runs it, and names the page
    <!-- run-for: 5 -->              a program without end: SIGINT after so many seconds ends it cleanly

Rules of this file: a mark stands on the line before the fence. It reads pages and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"(?:^<!-- (?P<mark>no-run|tested-by|run-for): (?P<value>[^\n]*?) -->\n)?^```(?P<kind>python|console)\n"
    r"(?P<text>.*?)^```$(?P<rest>[^`]{0,20}`[^`\n]*`)?",
    re.MULTILINE | re.DOTALL,
)
PRINTS = "It prints `"


class Block(NamedTuple):
    """A block: its page, line, language, text, mark with its value, and the output that the page shows, if it does."""

    page: str
    line: int
    kind: str
    text: str
    mark: str
    value: str
    prints: str | None


def blocks(root: Path) -> Iterator[Block]:
    """Every Python and console block of README and docs, page by page."""
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            rest = (found["rest"] or "").strip()
            prints = rest[len(PRINTS) : -1] if rest.startswith(PRINTS) else None
            line = text.count("\n", 0, found.start("kind")) + 1
            page = str(path.relative_to(root))
            yield Block(page, line, found["kind"], found["text"], found["mark"] or "", found["value"] or "", prints)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """(command, output that the page shows) of a console block. Commands begin with `$ `; a backslash goes on."""
    command, shown = "", ""
    for line in text.splitlines():
        if command.endswith("\\"):
            command = f"{command[:-1]}{line.strip()}"
        elif line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        else:
            shown += line + "\n"
    if command:
        yield command, shown
