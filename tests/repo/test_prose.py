"""Docstrings, comments and messages name their subject: phrases that hide it are counted, and their number only falls.

Rules of this file: a room's limit is per 1,000 words of prose. Changes lower the limits and never raise them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.prose import code_lines, comments_of, docstrings_of, hidden, messages_of, pronouns, prose_of, words

ROOT = Path(__file__).parents[2]
# Phrases per 1,000 words of docstrings and comments, at most.
ROOMS = ("standfast", "store", "replication", "restore", "stream", "ops")
LIMITS = dict.fromkeys((*ROOMS, "docs"), 0.0) | {"tests": 0.3}
# Pronouns per 100 words of docstrings, at most.
PRONOUNS = {"standfast": 4.0, "store": 3.5, "replication": 4.0, "restore": 3.4, "stream": 3.8, "ops": 3.1}
pytestmark = pytest.mark.xdist_group("sources")  # one process reads the sources once
COMMENT_SHARE = 0.05  # comment lines beside lines of code, at least


@pytest.mark.parametrize("room", [*ROOMS, "docs", pytest.param("tests", marks=pytest.mark.long)])
def test_prose_of_a_room_hides_its_subject_no_more_often_than_before(room: str) -> None:
    found, counted = [], 0
    for path in sorted((ROOT / room).rglob("*.py")):
        for line, text in prose_of(path.read_text(encoding="utf-8")):
            found += [f"{path.relative_to(ROOT)}:{line}: {phrase!r}" for phrase in hidden(text)]
            counted += words(text)
    assert counted > 100
    rate = 1_000 * len(found) / counted
    assert rate <= LIMITS[room], f"{rate:.2f} per 1,000 words; name the subject in:\n" + "\n".join(found[-20:])


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_of_a_room_name_nouns_as_often_as_before(room: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / room).rglob("*.py"))]
    texts = [text for source in sources for _, text in docstrings_of(source)]
    assert sum(map(words, texts)) > 100
    assert 100 * sum(map(pronouns, texts)) <= PRONOUNS[room] * sum(map(words, texts))


@pytest.mark.parametrize("room", (*ROOMS, "docs"))
def test_messages_of_a_room_name_their_subject(room: str) -> None:
    found, counted = [], 0
    for path in sorted((ROOT / room).rglob("*.py")):
        for line, text in messages_of(path.read_text(encoding="utf-8")):
            found += [f"{path.relative_to(ROOT)}:{line}: {phrase!r}" for phrase in hidden(text)]
            counted += 1
    assert counted > 5
    assert not found, "name the subject in:\n" + "\n".join(found)


def test_texts_of_pages_name_their_subject() -> None:
    paths = [path for end in ("html", "js", "css", "md") for path in sorted(ROOT.glob(f"ops/*/data/*.{end}"))]
    found = {path.name: hidden(path.read_text(encoding="utf-8")) for path in paths}
    assert len(found) > 5 and not any(found.values()), found


def test_comments_are_a_twentieth_of_the_code() -> None:
    sources = [path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    comments = sum(1 for source in sources for _ in comments_of(source))
    assert comments >= COMMENT_SHARE * sum(map(code_lines, sources))


def test_lines_of_code_are_counted_without_docstrings_comments_and_blanks() -> None:
    assert (
        code_lines(
            '"""Title.\n\nMore.\n"""\n\n# why\nx = (\n    1,\n)\n\ndef f():\n    """Doc."""\n    return x  # why\n'
        )
        == 5
    )


def test_phrases_that_hide_a_subject_are_found_in_docstrings_and_comments() -> None:
    source = (
        '"""What is written, by somebody."""\n'
        "x = 1  # who has it tells us\n"
        "# over two lines: what\n"
        "# comes anew\n"
        "y = 'what is in a string does not count'  # noqa: E501 nobody\n"
    )
    found = [(line, hidden(text)) for line, text in prose_of(source)]
    assert found == [(1, ["What is", "somebody"]), (2, ["who has", "tells", "what comes", "anew"])]
    assert [line for line, _ in comments_of(source)] == [2, 3, 4]


def test_phrases_that_hide_a_subject_are_found_in_messages() -> None:
    source = (
        '"""What is a docstring."""\n'
        "def f(n):\n    'nobody'\n    raise E(f'{n} is {n}: nobody reads {n}, what comes anew')\n"
        "x = 'told', 'what is here'\n"
    )
    found = [(line, hidden(text)) for line, text in messages_of(source)]
    assert found == [(5, ["what is"]), (4, ["nobody", "what comes", "anew"])]
