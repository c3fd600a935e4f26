"""Claims of internal topics and the command line: doctor shows them, reset and release end them; on both logs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.log import Log
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.claims import CLAIM, claims_of
from standfast.store.errors import BadConfig

TEXT = sf.serde.string


class Place:
    """A log with an application `<app>`, whose store `eu-x` has one row."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address = root, address
        self.log: Log = open_log(address)
        self.app = f"app{uuid.uuid4().hex[:8]}"
        self.other = f"{self.app}-eu"
        self.shared = f"{self.other}-x-changelog"
        self.start(self.app, "eu-x")

    def start(self, app: str, store: str) -> None:
        """Run an application for a moment; it writes a row."""
        with sf.Session(
            app,
            log=self.address,
            state_dir=self.root / uuid.uuid4().hex,
            stores=[sf.KeyValueStore(store, TEXT, TEXT)],
            partitions=1,
        ) as session:
            session.assign(active=[0])
            session.wait_ready(30)
            task = session.task(0)
            task.store(store).put("k", app)
            task.commit()

    def claims(self, app: str) -> set[str]:
        return set(claims_of((self.log.notes_of([app])[app]) or {}))

    def forget(self, app: str) -> None:
        """Remove the claims, as a version without them would have left the log."""
        group = self.log.group(app)
        group.note(dict.fromkeys(group.notes()))
        group.close()


KAFKA = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[*KAFKA, pytest.mark.long])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_address')}"
    else:
        address = f"sqlite:///{tmp_path}/log"
    made = Place(tmp_path, address)
    yield made
    made.log.close()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def doctor(place: Place, capsys: pytest.CaptureFixture[str], app: str, store: str) -> dict[str, dict[str, Any]]:
    """Findings about claims, by rule."""
    _, document = run(capsys, "doctor", "--app", app, "--log", place.address, "--store", f"{store}:keyvalue")
    return {one["rule"]: one for one in document["findings"] if "claim" in one["rule"]}


def test_the_doctor_says_whose_topic_it_is_and_that_one_is_not_claimed(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(place, capsys, place.app, "eu-x") == {}
    found = doctor(place, capsys, place.other, "x")["topic-claimed"]
    assert found["severity"] == "error"
    assert place.shared in found["where"] and repr(place.app) in found["what"]
    place.forget(place.app)
    found = doctor(place, capsys, place.app, "eu-x")["topic-unclaimed"]
    assert found["severity"] == "warning"
    assert place.shared in found["where"] and place.other in found["why"]


@pytest.mark.parametrize("place", ["embedded", pytest.param("kafka", marks=KAFKA)], indirect=True)
def test_a_released_topic_is_claimed_by_the_application_that_starts_next(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadConfig, match=f"standfast topic release {place.shared} --app {place.app}"):
        place.start(place.other, "x")
    code, document = run(capsys, "topic", "release", place.shared, "--app", place.app, "--log", place.address)
    assert (code, document["topic"], document["released_by"]) == (0, place.shared, place.app)
    place.start(place.other, "x")
    assert (place.claims(place.app), place.claims(place.other)) == (set(), {place.shared})
    code, _ = run(capsys, "topic", "release", place.shared, "--app", place.app, "--log", place.address)
    assert code == 2  # it has no claim any more


def test_a_claim_is_not_released_while_the_application_runs(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    store = sf.KeyValueStore("eu-x", TEXT, TEXT)
    with sf.Session(place.app, log=place.address, state_dir=place.root / "s", stores=[store], partitions=1):
        code, _ = run(capsys, "topic", "release", place.shared, "--app", place.app, "--log", place.address)
        assert code != 0
    assert place.claims(place.app) == {place.shared}


def test_a_reset_ends_the_claims_and_deletes_the_claimed_topic_without_a_doubt(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.start(place.other, "y")  # another application with the longer name: the name alone would leave the topic
    code, _ = run(capsys, "reset", "--app", place.app, "--log", place.address, "--yes")
    assert code == 0
    assert place.log.admin.describe_topic(place.shared) is None
    assert place.claims(place.app) == set()
    assert place.claims(place.other) == {f"{place.other}-y-changelog"}
    place.start(place.other, "x")


def test_a_reset_leaves_the_topic_that_another_application_has_claimed(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.start(place.other, "y")
    code, _ = run(capsys, "reset", "--app", place.other, "--log", place.address, "--store", "x", "--yes")
    assert code == 0
    assert place.log.admin.describe_topic(place.shared) is not None
    assert place.log.admin.describe_topic(f"{place.other}-y-changelog") is None
    assert place.claims(place.app) == {place.shared}


def test_a_reset_of_offsets_keeps_the_claims(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.log.notes_of([place.app])[place.app]
    assert before is not None and set(before) == {(CLAIM, place.shared)}
    run(capsys, "reset", "--app", place.app, "--log", place.address, "--state-dir", str(place.root), "--offsets", "own",
        "--yes")  # fmt: skip
    assert place.log.notes_of([place.app])[place.app] == before
