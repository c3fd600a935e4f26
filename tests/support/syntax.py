"""Syntax trees of the sources, for the tests that read them: each text is parsed once in a process.

Rules of this file: it parses and keeps; `pytest.mark.xdist_group("sources")` brings the tests that read all sources
into one process.
"""

from __future__ import annotations

import ast
from functools import cache


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a source."""
    return ast.parse(text)


@cache  # a dozen rules look at every node of every file
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of the tree, in the order of `ast.walk`."""
    return tuple(ast.walk(parsed(text)))
