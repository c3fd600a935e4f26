"""A table as lines of text for a terminal of a given width.

    fits                     columns side by side; columns of text (`fold`) share the remaining width, and wrap
    does not, headings wrap  at their spaces
    does not at all          one block a row, a line for each column: a number, name or state is never broken or cut

Rules of this file: pure. Only cells of `fold` columns wrap, at spaces where there are any. Widths are those of a
terminal, where some characters take two places.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

GAP = 2
FOLD_MIN = 12  # a column of text is not made narrower than this,
WORD_MAX = 24  # nor than its longest word up to this length: a time is not broken, a long value is
RULE = "─"


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines of a table; the first `head` of them are its headings."""

    lines: list[str]
    head: int = 0


def draw(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    *,
    right: Collection[str] = (),
    fold: Collection[str] = (),
) -> Drawing:
    """The table in `width` places; if its unbroken cells need more, one block a row."""
    heads: list[list[str]] = [[column] for column in columns]
    widths = _widths(columns, heads, cells, width, fold)
    if widths is None:
        heads = [column.split(" ") for column in columns]
        widths = _widths(columns, heads, cells, width, fold)
    if widths is None:
        return Drawing(_blocks(columns, cells, width, fold))
    to_right = [column in right for column in columns]
    depth = max(map(len, heads), default=0)
    lines = [
        _line([([""] * (depth - len(head)) + head)[number] for head in heads], widths, to_right)
        for number in range(depth)
    ]
    lines.append(RULE * (sum(widths) + GAP * (len(widths) - 1)))
    for row in cells:
        wrapped = [
            wrap(cell, size) if column in fold else [cell]
            for cell, size, column in zip(row, widths, columns, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            lines.append(_line([one[number] if number < len(one) else "" for one in wrapped], widths, to_right))
    return Drawing(lines, depth)


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of `width` places: broken at spaces, and within a word only if it is longer than a line."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        if cell_len(line) > width:
            *full, line = chop_cells(line, width)
            lines += full
    return [*lines, line]


def _widths(
    columns: Sequence[str], heads: list[list[str]], cells: Sequence[Sequence[str]], width: int, fold: Collection[str]
) -> list[int] | None:
    """The width of each column; None if they do not fit."""
    widths = [
        max([*map(cell_len, head), *(cell_len(row[at]) for row in cells)], default=0) for at, head in enumerate(heads)
    ]
    over = sum(widths) + GAP * (len(widths) - 1) - width
    least = {at: _least(heads[at], [row[at] for row in cells]) for at, column in enumerate(columns) if column in fold}
    while over > 0:
        giving = [at for at, size in least.items() if widths[at] > size]
        if not giving:
            return None
        # The widest column of text shrinks first, down to the next one, so that short ones stay whole.
        at = max(giving, key=lambda one: widths[one])
        next_widest = max([widths[one] for one in giving if one != at], default=0)
        cut = min(over, widths[at] - least[at], max(widths[at] - next_widest, 1))
        widths[at] -= cut
        over -= cut
    return widths


def _least(head: list[str], cells: Sequence[str]) -> int:
    word = max((cell_len(word) for cell in cells for word in cell.split(" ")), default=0)
    return max(FOLD_MIN, min(word, WORD_MAX), *map(cell_len, head))


def _line(texts: Sequence[str], widths: Sequence[int], to_right: Sequence[bool]) -> str:
    padded = []
    for text, width, right in zip(texts, widths, to_right, strict=True):
        space = " " * (width - cell_len(text))
        padded.append(space + text if right else text + space)
    return (" " * GAP).join(padded).rstrip()


def _blocks(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int, fold: Collection[str]) -> list[str]:
    label = max(map(cell_len, columns)) + GAP
    lines: list[str] = []
    for row in cells:
        if lines:
            lines.append("")
        for column, cell in zip(columns, row, strict=True):
            parts = wrap(cell, max(width - label, FOLD_MIN)) if column in fold else [cell]
            lines += [
                (" " * label if number else column + " " * (label - cell_len(column))) + part
                for number, part in enumerate(parts)
            ]
    return [line.rstrip() for line in lines]
