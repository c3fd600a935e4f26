"""The prose of the sources: docstrings and comments, and the phrases in it that hide their subject.

    prose_of(text)  ──> (line, text) of each docstring and each run of comment lines
    messages_of(text) > (line, text) of each other string of several words: errors, log lines, help, pages
    hidden(text)    ──> phrases such as "what is", "who has", "tells", "somebody", "anew"

Rules of this file: it reads text and counts; the limits stand in tests/repo/test_prose.py.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache

from support.syntax import nodes

# Relative clauses without a noun, and words that stand for a subject without naming it.
HIDDEN = re.compile(
    r"\b(?:what (?:is|was|waits|came|it|they|there|an?|the|has|one|many|several|others)"
    r"|what (?:goes|may|must|comes|belongs|runs)"
    r"|who(?:ever)? (?:has|is|asks|wants|comes|waits|reads|writes|takes|holds|needs|listens|gives|starts)"
    r"|tell|tells|told|(?:some|no|every|any)body|anew)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pyright:|fmt:|ruff:|pragma|shellcheck|nosec)\b.*")
_NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and each run of comment lines; directives to tools are no prose."""
    for node in nodes(source):
        if isinstance(node, _DOCUMENTED):
            text = ast.get_docstring(node, clean=True)
            if text:
                yield node.body[0].lineno, text
    run: list[str] = []
    first = last = 0
    for line, text in comments_of(source):
        if line != last + 1 and run:
            yield first, " ".join(run)
            run = []
        if not run:
            first = line
        run.append(text)
        last = line
    if run:
        yield first, " ".join(run)


def comments_of(source: str) -> tuple[tuple[int, str], ...]:
    """(line, text) of each line that has a comment."""
    return _tokens(source)[0]


def code_lines(source: str) -> int:
    """How many lines hold code: without docstrings, comments and blanks."""
    lines = set(_tokens(source)[1])
    for node in nodes(source):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


@cache  # the slow part of these tests
def _tokens(source: str) -> tuple[tuple[tuple[int, str], ...], frozenset[int]]:
    """The comments, as (line, text), and the lines that hold tokens of code."""
    comments: list[tuple[int, str]] = []
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
        elif token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string) and not token.string.startswith("#!"):
            comments.append((token.start[0], token.string.lstrip("# ")))
    return tuple(comments), frozenset(lines)


def messages_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string of several words that is no docstring; the values of an f-string are left out."""
    tree = nodes(source)
    skipped = {
        id(node.body[0].value)
        for node in tree
        if isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in tree:
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            skipped |= set(map(id, parts))
            text = " … ".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        else:
            continue
        if len(WORD.findall(text)) > 1:
            yield node.lineno, text


def hidden(text: str) -> list[str]:
    """The phrases in `text` that hide their subject."""
    return [found[0] for found in HIDDEN.finditer(" ".join(text.split()))]


def words(text: str) -> int:
    """How many words `text` has."""
    return len(WORD.findall(text))
