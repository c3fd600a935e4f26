"""No page denies a feature: a table has the features with phrases that would deny each, and pages are read for these.

Rules of this file: the planted denials are sentences that pages once had, each put into a page of now, in memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.features import Feature, denials, features_of, pages_of, plain

TABLE = Path(__file__).parent / "features.md"
FIRST = "0.1.0"  # the version before the changelog
PLANTED = (
    ("docs/faq.md", "One instance runs all tasks of an `App`; with `standby_replicas=` others stand by.", "share"),
    ("docs/guide/processing.md", "The first takes all\npartitions of `flights`.", "share"),
    ("docs/migrate/kafka-streams.md", "## What standfast does not have\n\n- tasks on several instances;", "share"),
    ("docs/migrate/faust.md", "One `App` does not spread its tasks over several instances.", "share"),
    ("docs/migrate/kafka-streams.md", "| `num.stream.threads` | no equivalent: one thread |", "worker"),
    ("docs/guarantees.md", "- One thread processes the tasks of an `App` in turn.", "worker"),
    ("docs/faq.md", "Windows close by stream time, which only records\nmove. And so on.", "watermarks"),
    ("docs/migrate/faust.md", "| agent | steps; both are plain functions, not coroutines |", "map_async"),
    ("docs/migrate/quix.md", "## What standfast does not have\n\n- sources other\n  than topics;", "sf.Source"),
    ("docs/migrate/quix.md", "| `sdf.to_topic(topic)` | `.to(name)`; the topic must exist |", "create_topics"),
    ("README.md", "```\nSF.COMMIT SEQ 1 EPOCH 3 GROUP counts OFFSETS flights 0 4712\n```", "epoch"),
    ("docs/operate/deploy.md", "- Without it each start is a restore of the whole changelog.", "snapshots"),
    ("SECURITY.md", "| the same | Delete | `standfast reset` alone |", "expired"),
)  # fmt: skip


@pytest.fixture(scope="module")
def features() -> list[Feature]:
    return features_of(TABLE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(repo_root: Path) -> dict[str, str]:
    return pages_of(repo_root)


def test_no_page_denies_a_feature(pages: dict[str, str], features: list[Feature]) -> None:
    found = [f"{page}:{line}: denies {one.name!r}: {unit}" for page, line, one, unit in denials(pages, features)]
    assert len(pages) > 50 and not found, "\n".join(found)


def test_each_planted_denial_is_found_in_its_page(pages: dict[str, str], features: list[Feature]) -> None:
    assert len(PLANTED) >= 10
    missed = []
    for page, text, feature in PLANTED:
        planted = {page: f"{pages[page]}\n\n{text}\n"}
        found = {one.name for _, line, one, _ in denials(planted, features) if line > pages[page].count("\n")}
        if not any(feature in name for name in found):
            missed.append(f"{page}: {text!r} denies {feature!r}, found: {sorted(found)}")
    assert not missed, "\n".join(missed)


def test_each_feature_has_its_version_its_page_and_its_names_there(repo_root: Path, features: list[Feature]) -> None:
    changelog = (repo_root / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = {FIRST, *re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)}
    wrong = [f"{one.name}: no version {one.since}" for one in features if one.since not in versions]
    for one in features:
        name, _, anchor = one.page.partition("#")
        path = repo_root / "docs" / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        anchors = {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        absent = [word for word in re.findall(r"`([^`]+)`", one.name) if word not in text]
        if not text or (anchor and anchor not in anchors) or absent:
            wrong.append(f"{one.name}: docs/{one.page} lacks {absent or anchor or 'everything'}")
    assert not wrong, "\n".join(wrong)
    assert len({one.name for one in features}) == len(features) > 25


def slug(heading: str) -> str:
    """The anchor of a heading, as the site makes it."""
    return re.sub(r"[^a-z0-9]+", "-", plain(heading).replace("'", "")).strip("-")


@pytest.mark.parametrize("row", ["| a | 0.1.0 | faq.md |", "| a | 0.1.0 | faq.md | |", "| a | b | 0.1.0 | f.md | no |"])
def test_row_of_another_form_is_refused(row: str) -> None:
    with pytest.raises(ValueError, match="four cells"):
        features_of(f"| feature | since | page | denials |\n|---|---|---|---|\n{row}\n")
