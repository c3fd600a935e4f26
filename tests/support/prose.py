"""The prose of the sources: docstrings and comments, and the phrases in it that hide their subject.

    prose_of(text)  ──> (line, text) of each docstring and each run of comment lines
    messages_of(text) > (line, text) of each other string of several words: errors, log lines, help, pages
    docstrings_of(text), pronouns(text)
    hidden(text)    ──> phrases such as "what is", "who has", "tells", "somebody", "anew"

Rules of this file: it reads text and counts; the limits stand in tests/repo/test_prose.py.
"""

from __future__ import annotations

import ast
import io
import re
import sys
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
PRONOUN = re.compile(r"\b(?:it|they|one|those|such|so)\b", re.IGNORECASE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and each run of comment lines; directives to tools are no prose."""
    yield from docstrings_of(source)
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


def docstrings_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring."""
    for node in nodes(source):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node, clean=True)):
            yield node.body[0].lineno, text


def comments_of(source: str) -> tuple[tuple[int, str], ...]:
    """(line, text) of each line that has a comment."""
    return _lines(source)[0]


def code_lines(source: str) -> int:
    """How many lines hold code: without docstrings, comments and blanks."""
    lines = set(_lines(source)[1])
    for node in nodes(source):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


@cache
def _lines(source: str) -> tuple[tuple[tuple[int, str], ...], frozenset[int]]:
    """The comments, as (line, text), and the lines that hold code.

    A `#` outside of the strings begins a comment. The standard library's tokenizer says the same, in ten times as long.
    """
    strings = _strings(source)
    comments: list[tuple[int, str]] = []
    within = {line for first, last in strings for line in range(first[0], last[0] + 1) if last[0] > first[0]}
    code = set(within)
    of_line: dict[int, list[tuple[int, int]]] = {}
    for first, last in strings:
        for line in range(first[0], last[0] + 1):
            span = (first[1] if line == first[0] else 0, last[1] if line == last[0] else sys.maxsize)
            of_line.setdefault(line, []).append(span)
    for number, line in enumerate(source.encode().split(b"\n"), 1):
        begins = line.find(b"#")
        while begins >= 0 and any(first <= begins < last for first, last in of_line.get(number, ())):
            begins = line.find(b"#", begins + 1)
        if line[: begins if begins >= 0 else None].strip():
            code.add(number)
        comment = line[begins:].decode() if begins >= 0 else ""
        if comment and not DIRECTIVE.match(comment) and not comment.startswith("#!"):
            comments.append((number, comment.lstrip("# ").rstrip("\r")))
    return tuple(comments), frozenset(code)


Span = tuple[tuple[int, int], tuple[int, int]]  # begin and end, each as (line, byte)


def _strings(source: str) -> set[Span]:
    """Where strings stand. The tree has those that follow each other as one, with the comments between them."""
    found: set[Span] = set()
    lines = source.encode().split(b"\n")
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            first, last = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
            if first[0] < last[0] and any(b"#" in line for line in lines[first[0] - 1 : last[0]]):
                found.update(_parts(lines, first, last))
            else:
                found.add((first, last))
    return found


def _parts(lines: list[bytes], first: tuple[int, int], last: tuple[int, int]) -> Iterator[Span]:
    text = [*lines[first[0] - 1 : last[0] - 1], lines[last[0] - 1][: last[1]]]
    text[0] = b" " * first[1] + text[0][first[1] :]
    within = "\n".join(["(", *(line.decode() for line in text), ")"])
    comments = [one for one in tokenize.generate_tokens(io.StringIO(within).readline) if one.type == tokenize.COMMENT]
    begin = first
    for one in comments:
        line = one.start[0] + first[0] - 2
        yield begin, (line, len(one.line[: one.start[1]].encode()))
        begin = (line + 1, 0)
    yield begin, last


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


def pronouns(text: str) -> int:
    """The number of pronouns, for each of which a noun might stand."""
    return len(PRONOUN.findall(text))


def words(text: str) -> int:
    """How many words `text` has."""
    return len(WORD.findall(text))
