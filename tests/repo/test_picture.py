"""The picture of the folders in docs/internals/architecture.md is the folders on disk, with their imports.

    name/   description   imports    two blanks before a folder of a room, four before a folder in one
                                     on the right: the nearest folders of the same room; these import the others

Rules of this file: as in `test_tidy.py`. Imports through names in strings count too; aliases and the imports of lower
rooms do not, since rooms have one order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from repo.test_tidy import ROOMS, Source, imports, named, our_path
from repo.test_tidy_folders import ALIASES, COMPOSITION, planted

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

PAGE = "docs/internals/architecture.md"
LINE = re.compile(
    r"(?P<indent> *)(?P<name>[a-z_]+)/ +(?P<what>\S+(?: \S+)*)(?: {2,}(?P<imports>[a-z_/]+(?:, [a-z_/]+)*))?"
)
FRONT_DOOR = "standfast"
Arrows = Mapping[str, frozenset[str]]


def picture(page: str) -> dict[str, tuple[str, ...]]:
    """Folder -> folders of the same room that the picture names on its right, in the order of the picture."""
    (block,) = re.findall(r"^## Five rooms.*?^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in block.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, f"{PAGE}: {line!r} is no line of the picture"
        above = [*above[: len(match["indent"]) // 2], match["name"]]
        room = above[0]
        found["/".join(above)] = tuple(f"{room}/{one}" for one in (match["imports"] or "").split(", ") if one)
    return found


def arrows_of(sources: Iterable[Source]) -> Arrows:
    """Folder -> folders of the same room that its files import, but for the files at the room's root."""
    product = [source for source in sources if source.room is not None]
    paths = frozenset(source.path for source in product)
    found: dict[str, set[str]] = {source.path.rpartition("/")[0]: set() for source in product}
    for source in product:
        folder = source.path.rpartition("/")[0]
        for _, module, name in () if source.path in ALIASES else (*imports(source), *named(source)):
            target = our_path(module, name, paths)
            other = target.rpartition("/")[0]
            if target in paths and other not in (folder, *ROOMS) and other.startswith(f"{source.room}/"):
                found[folder].add(other)
    return {folder: frozenset(others) for folder, others in found.items()}


def nearest(folder: str, arrows: Arrows) -> frozenset[str]:
    """The imported folders that no other imported folder reaches."""
    reached = frozenset().union(*(_reached(one, arrows) for one in arrows[folder]))
    return arrows[folder] - reached


def _reached(folder: str, arrows: Arrows) -> frozenset[str]:
    found: set[str] = set()
    todo = [folder]
    for one in todo:
        new = arrows[one] - found
        found |= new
        todo += new
    return frozenset(found)


def check_picture(shown: Mapping[str, tuple[str, ...]], arrows: Arrows) -> Iterator[str]:
    yield from (f"{one}: on disk, and not in the picture" for one in sorted(arrows.keys() - shown.keys()))
    yield from (
        f"{one}: in the picture, and not on disk" for one in sorted(shown.keys() - arrows.keys() - {FRONT_DOOR})
    )
    order = list(shown)
    tops = [one for one in order if "/" not in one]
    if tops != [*ROOMS, FRONT_DOOR]:
        yield f"the rooms stand in another order than their imports: {tops}"
    for folder in arrows.keys() & shown.keys():
        wanted = nearest(folder, arrows)
        if set(shown[folder]) != wanted:
            yield f"{folder}: imports {sorted(wanted)}, the picture says {sorted(shown[folder])}"
        for other in arrows[folder] & shown.keys():
            puts_together = folder in COMPOSITION and other.startswith(f"{folder}/")
            if order.index(other) > order.index(folder) and not puts_together:
                yield f"{folder}: imports {other}, which stands below it in the picture"


def test_picture_of_the_architecture_is_the_folders_and_their_imports(repo_root: Path, sources: list[Source]) -> None:
    problems = list(check_picture(picture((repo_root / PAGE).read_text(encoding="utf-8")), arrows_of(sources)))
    assert not problems, "\n" + "\n".join(problems)


GOOD = """## Five rooms
```
store/        values
replication/  the log
restore/      plans
stream/       time
  task/       one task
  session/    a session          task
  app/        the application    session
ops/          no files
standfast/    the front door
```
"""
SOURCES = [
    *(Source(f"{room}/__init__.py", "") for room in ROOMS),
    *planted(stream__app__a="stream.session.a stream.task.a store.a", stream__session__a="stream.task.a"),
    *planted(stream__task__a="stream.a store.a", stream__a="", store__a=""),
]


def test_picture_that_is_true_is_accepted() -> None:
    assert list(check_picture(picture(GOOD), arrows_of(SOURCES))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  task/       one task\n", ""),
        ("  task/       one task\n", "  task/       one task\n  tasks/      many\n"),
        ("a session          task", "a session"),
        ("one task\n", "one task  session\n"),
        ("the application    session", "the application    session, task"),
        (
            "  task/       one task\n  session/    a session          task\n",
            "  session/    a session  task\n  task/  one\n",
        ),
        ("store/        values\nreplication/  the log\n", "replication/  the log\nstore/        values\n"),
    ],
)
def test_picture_that_is_not_true_is_found(old: str, new: str) -> None:
    assert GOOD.replace(old, new) != GOOD
    assert list(check_picture(picture(GOOD.replace(old, new)), arrows_of(SOURCES)))
