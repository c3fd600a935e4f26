"""A storage of snapshots that damages the bytes of reads counts as away, with the true reason, and takes no writes.

Rules of this file: the library below the storage gives wrong bytes; everything of ours is real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from unit.stream.test_session_snapshots import KV, keeper_of, put, restored, rows

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.offsets import TopicPartition
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.prune import prune
from standfast.restore.snapshot.storage import DamagedReads
from standfast.store.clock import SystemClock
from support.sessions import Bench

KV_LOG = TopicPartition("app-kv-changelog", 0)
SAID = "reads of the storage of snapshots .* come back damaged"


def flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 0xFF]) + content[1:] if content else content


def cut(content: bytes) -> bytes:
    return content[:-1]


def same_form(content: bytes) -> bytes:
    """Still a manifest, of another topic."""
    return content.replace(b'"topic_id": "', b'"topic_id": "x')


class Line:
    """The library, over a line that damages the bytes of its answers while `damage` is set."""

    def __init__(self) -> None:
        self.damage: Callable[[bytes], bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(obstore, name)

    def get(self, store: Any, key: str) -> Any:
        found, line = obstore.get(store, key), self

        class Got:
            meta = found.meta

            def bytes(self) -> bytes:
                return line.through(bytes(found.bytes()))

        return Got()

    def get_range(self, store: Any, key: str, *, start: int, length: int) -> bytes:
        return self.through(bytes(obstore.get_range(store, key, start=start, length=length)))

    def through(self, content: bytes) -> bytes:
        return content if self.damage is None else self.damage(content)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    made = Line()
    monkeypatch.setattr("standfast.restore.snapshot.storage.obstore", made)
    return made


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "snaps")


def policy(to: str, **given: Any) -> sf.SnapshotPolicy:
    return sf.SnapshotPolicy(to=to, **given)


def kept(to: str) -> dict[str, bytes]:
    """Every object of the storage."""
    return {str(path.relative_to(to)): path.read_bytes() for path in Path(to).rglob("*") if path.is_file()}


def with_snapshot(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a", "b")
    first.snapshot(0)
    put(first, "c")
    first.close()


@pytest.mark.parametrize("damage", [flipped, cut, same_form])
@pytest.mark.parametrize("role", ["active", "standby"])
def test_session_starts_reads_the_changelog_and_says_why(
    bench: Bench, to: str, line: Line, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes], role: str
) -> None:
    with_snapshot(bench, to)
    before = kept(to)
    line.damage = damage if damage is not same_form else lambda content: same_form(flipped_probe(content))
    session = bench.session("b", stores=KV, snapshots=policy(to, every_records=1), take_over=False)
    if role == "active":
        session.assign(active=[0])
    else:
        session.assign(standby=[0])
    bench.settle(session)
    with session.read("kv", 0, allow_stale=True).store.all() as found:
        assert dict(found) == dict.fromkeys("abc", "1")
    assert restored(session) == {"restored": 0, "none": 0, "failed": 1, "store": 0}
    assert "restored from its changelogs alone" in caplog.text
    text, _ = session.counters.snapshots.errors["0_0"]
    assert "come back damaged" in text
    assert "overwrites" not in caplog.text
    assert kept(to) == before


def flipped_probe(content: bytes) -> bytes:
    return content if content.startswith(b"{") else flipped(content)


def test_writes_stop_none_is_called_a_success_and_they_go_on_once_reads_are_whole(
    bench: Bench, to: str, line: Line
) -> None:
    session = bench.active(stores=KV, snapshots=policy(to, every_records=1, keep=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    for key in "ab":
        keeper.round()
        put(session, key)
    keeper.round()
    assert made["made"] >= 1
    before, count = kept(to), made["made"]
    line.damage = flipped
    for key in "cd":
        put(session, key)
        bench.clock.advance(60_000)
        keeper.round()
    with pytest.raises(DamagedReads, match=SAID):
        session.snapshot(0)
    with pytest.raises(DamagedReads, match=SAID):
        prune(open_storage(to, "app"), Retention(1), clock=SystemClock())
    assert (made["made"], made["unchanged"]) == (count, 0)
    assert made["failed"] == 2
    assert "come back damaged" in session.counters.snapshots.errors["0_0"][0]
    assert kept(to) == before
    assert rows(session) == dict.fromkeys("abcd", "1")
    line.damage = None
    bench.clock.advance(60_000)
    keeper.round()
    assert made["made"] == count + 1
    assert session.counters.snapshots.errors == {}


def test_manifest_that_cannot_be_read_back_does_not_stay(bench: Bench, to: str, line: Line) -> None:
    """Reads become damaged in the middle of an upload."""
    session = bench.active(stores=KV, snapshots=policy(to))
    put(session, "a")
    line.damage = lambda content: flipped(content) if b"standfast.snapshot/1" in content else content
    with pytest.raises(DamagedReads, match=SAID):
        session.snapshot(0)
    assert not list(Path(to).rglob("tasks/0_0/*"))
    assert not list(Path(to).rglob("intents/*"))
    line.damage = None
    assert session.snapshot(0) == "0_0/1-1"


def test_snapshot_that_is_there_already_is_not_called_another_one(bench: Bench, to: str, line: Line) -> None:
    session = bench.active(stores=KV, snapshots=policy(to))
    put(session, "a")
    session.snapshot(0)
    for damage in (flipped, lambda content: same_form(flipped_probe(content))):
        line.damage = damage
        with pytest.raises(DamagedReads, match=SAID):
            session.snapshot(0)
    line.damage = None
    assert session.snapshot(0) == "0_0/1-1"


def test_task_that_needs_a_snapshot_waits_for_whole_reads(bench: Bench, to: str, line: Line) -> None:
    with_snapshot(bench, to)
    bench.embedded.truncate(KV_LOG, 1)
    line.damage = flipped
    session = bench.session("b", stores=KV, snapshots=policy(to))
    with pytest.raises(sf.Unavailable, match=r"must begin with a snapshot.*come back damaged"):
        session.assign(active=[0])
    line.damage = None
    bench.clock.advance(60_000)
    session.assign(active=[0])
    session.wait_ready(30)
    assert rows(session) == dict.fromkeys("abc", "1")


def test_one_damaged_snapshot_of_a_sound_storage_is_passed_over_alone(bench: Bench, to: str) -> None:
    with_snapshot(bench, to)
    (manifest,) = Path(to).rglob("tasks/0_0/*.json")
    manifest.write_bytes(flipped(manifest.read_bytes()))
    session = bench.active("b", stores=KV, snapshots=policy(to))
    assert rows(session) == dict.fromkeys("abc", "1")
    assert restored(session) == {"restored": 0, "none": 1, "failed": 0, "store": 0}


def test_finding_ends_with_the_damage(bench: Bench, to: str, line: Line) -> None:
    line.damage = flipped
    session = bench.active(stores=KV, snapshots=policy(to))
    put(session, "a")
    assert "come back damaged" in session.counters.snapshots.errors["listing"][0]
    keeper_of(session).round()
    assert "come back damaged" in session.counters.snapshots.errors["listing"][0]
    line.damage = None
    bench.clock.advance(300_000)
    keeper_of(session).round()
    assert session.counters.snapshots.errors == {}
    assert listed(open_storage(to, "app")).whole == ()


def test_doctor_finds_it(bench: Bench, to: str, line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    with_snapshot(bench, to)
    arguments = ["doctor", "--app", "app", "--log", bench.address, "--snapshots", to, "--json"]

    def found() -> dict[str, Any]:
        main(arguments)
        return {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}

    before = kept(to)
    assert not [rule for rule in found() if rule.startswith("snapshot")]
    line.damage = flipped
    finding = found()["snapshots-unreadable"]
    assert finding["severity"] == "warning"
    assert to in finding["where"]
    assert kept(to) == before
