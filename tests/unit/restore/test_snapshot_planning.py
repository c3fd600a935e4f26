"""Snapshots, decided: names, manifests that are refused, uploads, prunes, and the one that a restore takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.replication.offsets import TopicPartition
from standfast.restore.plan import LogState
from standfast.restore.snapshot.manifest import (
    CutPosition,
    Intent,
    Snapshot,
    SnapshotCut,
    SnapshotFile,
    SnapshotMade,
    dump_note,
    dump_snapshot,
    parse_intent,
    parse_snapshot,
)
from standfast.restore.snapshot.names import SnapshotName, file_key, name_of_key, parse_name, sha_of_key
from standfast.restore.snapshot.planning import (
    ListedSnapshot,
    Retention,
    StoredObject,
    judge,
    newest,
    newest_first,
    outdated,
    plan_prune,
    to_upload,
)
from standfast.store.errors import Corruption, InvalidRequest

HOUR_MS = 3_600_000
DEFINITION = {"kind": "keyvalue", "logging": True, "engine": "rocksdb"}


def snapshot(epoch: int = 1, offset: int = 100, *contents: str, topic_id: str = "t", **changed: Any) -> Snapshot:
    position = CutPosition("app-kv-changelog", 0, topic_id, offset, -1, "", 0, False)
    fields: dict[str, Any] = {
        "id": "x",
        "app": "app",
        "task": "0_0",
        "epoch": epoch,
        "position": offset,
        "cut": SnapshotCut({"kv": position}, {}, {}, {}, {"kv": 5}, epoch),
        "stores": {"kv": DEFINITION},
        "memory_stores": (),
        "files": tuple(
            SnapshotFile(name, 10, sha(name + text))
            for name, text in zip(("CURRENT", "000001.sst", "000002.sst"), ("", *contents), strict=False)
        ),
        "made": SnapshotMade(0, "i", "0.1", "0.3"),
    }
    return Snapshot(**{**fields, **changed})


def sha(text: str) -> str:
    return (text.encode().hex() * 64)[:64]


def log(begin: int = 0, end: int = 200, **changed: Any) -> LogState:
    return LogState(TopicPartition("app-kv-changelog", 0), topic_id="t", begin=begin, end=end, **changed)


def judged(
    one: Snapshot, state: LogState | None = None, definition: dict[str, Any] | None = None, now_ms: int = 0
) -> Any:
    return judge(
        one,
        app="app",
        task="0_0",
        definitions={"kv": DEFINITION if definition is None else definition},
        logs={"kv": state or log()},
        now_ms=now_ms,
    )


def test_names_and_keys_are_the_inverse_of_each_other() -> None:
    name = SnapshotName("0_3", 12, 4711)
    assert str(name) == "0_3/12-4711"
    assert parse_name(str(name)) == name
    assert name.key == "tasks/0_3/0000000012-00000000000000004711.json"
    assert name_of_key(name.key) == name
    assert sha_of_key(file_key("a" * 64)) == "a" * 64


@pytest.mark.parametrize("text", ["", "0_3", "0_3/12", "../12-1", "0_3/12-1/x", "0_3/-1-1", "a_b/1-1"])
def test_a_text_that_is_no_name_of_a_snapshot_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not the name of a snapshot"):
        parse_name(text)


@pytest.mark.parametrize("key", ["tasks/0_3/12-1.json", "files/../../etc", "files/xyz", "other/0_3/1.json"])
def test_other_keys_name_neither_snapshot_nor_file(key: str) -> None:
    assert name_of_key(key) is None
    assert sha_of_key(key) is None


def test_keys_of_a_task_are_in_the_order_of_epochs_and_positions() -> None:
    names = [SnapshotName("0_0", 2, 5), SnapshotName("0_0", 1, 900), SnapshotName("0_0", 10, 1)]
    in_order = [name_of_key(key) for key in sorted(name.key for name in names)]
    assert in_order == [names[1], names[0], names[2]]
    assert newest_first(names) == in_order[::-1]


def test_a_manifest_reads_back_as_it_was_written() -> None:
    one = snapshot(3, 100, "a", "b")
    assert parse_snapshot(dump_snapshot(one), "here") == one


@pytest.mark.parametrize(
    "name",
    ["../000001.sst", "/etc/passwd", "a/000001.sst", "..", "STANDFAST", "LOCK", "LOG", "x.sst", "000001.sst\n", ""],
)
def test_a_manifest_with_a_file_outside_of_a_task_directory_is_refused(name: str) -> None:
    fields = json.loads(dump_snapshot(snapshot(3, 100, "a")))
    fields["files"][1]["name"] = name
    with pytest.raises(Corruption, match="cannot be the name of a file"):
        parse_snapshot(json.dumps(fields).encode(), "here")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"format": "standfast.snapshot/2"}, InvalidRequest, "run the newer version"),
        ({"format": "other/1"}, InvalidRequest, "not a manifest of a snapshot"),
        ({"position": 7}, Corruption, "its positions add up to 100"),
        ({"files": []}, Corruption, "no file CURRENT"),
        ({"unknown": 1}, Corruption, "unknown field"),
        ({"epoch": -1}, Corruption, "epoch"),
    ],
)
def test_a_manifest_that_does_not_hold_together_is_refused(change: dict[str, Any], error: type, match: str) -> None:
    fields = json.loads(dump_snapshot(snapshot(3, 100, "a")))
    with pytest.raises(error, match=match):
        parse_snapshot(json.dumps(fields | change).encode(), "here")


def test_a_text_that_is_no_json_is_a_damaged_manifest() -> None:
    with pytest.raises(Corruption, match="not readable"):
        parse_snapshot(b"{", "here")
    with pytest.raises(Corruption, match="is damaged"):
        parse_intent(b"[]", "here")
    assert parse_intent(dump_note(Intent("i", "0_0", "me", ("a" * 64,))), "here").files == ("a" * 64,)


def test_files_that_are_absent_or_of_another_size_are_uploaded_each_content_once() -> None:
    files = [SnapshotFile(name, 10, content * 64) for name, content in (("1", "a"), ("2", "b"), ("3", "b"), ("4", "c"))]
    assert [file.name for file in to_upload(files, {"a" * 64: 10, "c" * 64: 9})] == ["3", "4"]


def test_retention_keeps_the_newest_of_each_task_and_all_that_are_young() -> None:
    kept = [ListedSnapshot(snapshot(1, offset), offset * HOUR_MS) for offset in (1, 2, 3, 4)]
    assert [name.position for name in outdated(kept, Retention(2), 5 * HOUR_MS)] == [1, 2]
    assert [name.position for name in outdated(kept, Retention(1, 2 * HOUR_MS), 5 * HOUR_MS)] == [1, 2]
    assert [name.position for name in outdated(kept, Retention(0), 9 * HOUR_MS)] == [1, 2, 3]


def test_snapshots_of_recreated_topics_do_not_push_out_those_of_the_topics_before() -> None:
    kept = [
        ListedSnapshot(snapshot(9, 900, topic_id="lost"), 0),
        ListedSnapshot(snapshot(1, 10), 0),
        ListedSnapshot(snapshot(1, 20), 0),
    ]
    assert outdated(kept, Retention(1), HOUR_MS) == [SnapshotName("0_0", 1, 10)]


def test_the_newest_is_of_the_topics_that_the_log_has_or_else_of_those_stored_last() -> None:
    lost, first, second = snapshot(9, 900, topic_id="lost"), snapshot(1, 10), snapshot(1, 20)
    kept = [ListedSnapshot(lost, 1), ListedSnapshot(first, 3), ListedSnapshot(second, 2)]
    assert newest(kept) == newest(kept, {"t"}) == newest(kept, {"another"}) == second
    assert newest(kept, {"lost"}) == lost
    assert newest([ListedSnapshot(lost, 4), *kept[1:]]) == lost
    assert newest([ListedSnapshot(lost, 4), *kept[1:]], {"t", "other"}) == second


def test_a_broken_snapshot_replaces_no_whole_one() -> None:
    kept = [ListedSnapshot(snapshot(1, 10), 0), ListedSnapshot(snapshot(1, 20), 0, whole=False)]
    plan = plan_prune(kept, {}, [], Retention(1), now_ms=HOUR_MS, grace_ms=2 * HOUR_MS)
    assert plan.snapshots == ()
    plan = plan_prune(kept, {}, [], Retention(1), now_ms=3 * HOUR_MS, grace_ms=2 * HOUR_MS)
    assert plan.snapshots == (SnapshotName("0_0", 1, 20),)


def test_a_prune_removes_only_files_that_no_snapshot_and_no_young_intent_names() -> None:
    old, new = snapshot(1, 10, "old"), snapshot(1, 20, "new")
    intents = {"young": (HOUR_MS, frozenset(["b" * 64])), "old": (0, frozenset(["c" * 64]))}
    names = {*old.contents, *new.contents, "b" * 64, "c" * 64}
    files = [StoredObject(file_key(one), 10, 0) for one in sorted(names)]
    plan = plan_prune(
        [ListedSnapshot(old, 0), ListedSnapshot(new, 0)],
        intents,
        files,
        Retention(1),
        now_ms=2 * HOUR_MS,
        grace_ms=HOUR_MS,
    )
    assert plan.snapshots == (old.name,)
    assert set(plan.files) == (old.contents - new.contents) | {"c" * 64}
    assert plan.bytes == 20


def test_the_tail_of_a_usable_snapshot_is_the_rest_of_its_changelogs() -> None:
    assert judged(snapshot(1, 150)).tail == 50
    assert judged(snapshot(1, 200)).tail == 0
    in_memory = snapshot(1, 150, memory_stores=("kv",))
    assert judged(in_memory).tail == 200


@pytest.mark.parametrize(
    ("one", "state", "match"),
    [
        (snapshot(app="other"), log(), "application 'other'"),
        (snapshot(task="0_1"), log(), "task 0_1"),
        (snapshot(topic_id="other"), log(), "topic-recreated"),
        (snapshot(1, 300), log(), "position-ahead"),
        (snapshot(1, 50), log(begin=60), "history-missing"),
        (snapshot(1, 50), log(begin=60, cleanup=frozenset({"compact", "delete"})), "truncated"),
        (snapshot(1, 100), log(diverged_at=90), "diverged"),
        (snapshot(1, 100), log(delete_retention_ms=HOUR_MS), "tombstones-expired"),
        (snapshot(stores={"kv": {**DEFINITION, "kind": "window"}}), log(), "another definition"),
        (snapshot(stores={"kv": DEFINITION, "old": {"logging": False}}), log(), "'old' has no changelog"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_passed_over_with_the_reason(
    one: Snapshot, state: LogState, match: str
) -> None:
    assert match in judged(one, state, now_ms=HOUR_MS).reason


def test_a_store_that_is_no_longer_declared_does_not_keep_a_snapshot_from_use() -> None:
    assert judged(snapshot(stores={"kv": DEFINITION, "gone": DEFINITION})).reason == ""


def test_a_snapshot_that_is_said_to_be_of_the_future_has_no_known_age_and_is_passed_over() -> None:
    state = log(delete_retention_ms=24 * HOUR_MS)
    assert "ahead of this machine's clock" in judged(snapshot(1, 150), state, now_ms=-3 * HOUR_MS).reason
    assert judged(snapshot(1, 150), state, now_ms=-2 * HOUR_MS).reason == "", "within the margin of the age"
    assert judged(snapshot(1, 200), state, now_ms=-3 * HOUR_MS).reason == "", "every delete was read"
    kept = log(delete_retention_ms=24 * HOUR_MS, cleanup=frozenset({"delete"}))
    assert judged(snapshot(1, 150), kept, now_ms=-3 * HOUR_MS).reason == "", "no delete ever goes alone"
