"""Commands that went."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.ops.command.command_line import main
from standfast.ops.command.gone import GONE

CHANGELOG = Path(__file__).resolve().parents[3] / "CHANGELOG.md"


@pytest.mark.parametrize("words", GONE)
def test_command_that_went_says_what_to_use_instead(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--help"], ["name", "--json"]):
        assert main([*words, *more]) == 2
        assert capsys.readouterr().err == f"error: `standfast {' '.join(words)}` is gone: {GONE[words]}\n"


def test_changelog_has_the_same_table() -> None:
    text = CHANGELOG.read_text(encoding="utf-8")
    rows = [f"| `standfast {' '.join(words)}` | {instead} |" for words, instead in GONE.items()]
    assert "\n".join(["| command | instead |", "|---|---|", *rows]) + "\n\n" in text
