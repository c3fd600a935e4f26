"""The kind of store that a changelog is of: keys of its newest records, and its policy where it is empty."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.log import Record, TopicInfo, TopicPolicy
from standfast.replication.topics.changelog_kind import kind_problem
from standfast.store import session_key, window_key

NOW_MS = 1_790_000_000_000
KEYS = {
    "keyvalue": [b"JFK", b"a key of some length", struct.pack(">q", 7)],
    "window": [window_key.pack(b"JFK", NOW_MS - 60_000), window_key.pack(b"", NOW_MS, 3)],
    "session": [
        session_key.pack(b"JFK", NOW_MS - 60_000, NOW_MS),
        session_key.pack(b"long", NOW_MS, NOW_MS),
    ],
}
KEYS["versioned"] = KEYS["keyvalue"]
CLEANUP = {"keyvalue": "compact", "versioned": "compact", "window": "compact,delete", "session": "compact,delete"}
KINDS = list(CLEANUP)


def info(cleanup: str) -> TopicInfo:
    return TopicInfo("app-s-changelog", "id", 1, TopicPolicy(frozenset(cleanup.split(","))))


def records(keys: list[bytes]) -> list[Record]:
    return [Record(at, NOW_MS, key, b"v") for at, key in enumerate(keys)]


@pytest.mark.parametrize("kind", KINDS)
def test_changelog_of_the_declared_kind_is_taken_with_records_and_without(kind: str) -> None:
    assert kind_problem("s", kind, info(CLEANUP[kind]), records(KEYS[kind][:1])) is None
    assert kind_problem("s", kind, info(CLEANUP[kind]), []) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_changelog_of_another_kind_is_refused_where_it_can_be_told(kind: str, other: str) -> None:
    found = kind_problem("s", kind, info(CLEANUP[other]), records(KEYS[other]))
    alike = KEYS[kind] == KEYS[other] or kind == other
    assert (found is None) == alike
    if found is not None:
        assert "'s' is declared as " + kind in found and "app-s-changelog" in found
    assert (kind_problem("s", kind, info(CLEANUP[other]), []) is None) == (CLEANUP[kind] == CLEANUP[other])


def test_plain_store_whose_changelog_also_deletes_is_taken_by_its_records() -> None:
    assert kind_problem("s", "keyvalue", info("compact,delete"), records(KEYS["keyvalue"])) is None
    assert kind_problem("s", "keyvalue", info("compact,delete"), records(KEYS["keyvalue"] + KEYS["window"])) is None


def test_plain_store_whose_keys_look_like_times_is_taken_by_its_policy() -> None:
    assert kind_problem("s", "keyvalue", info("compact"), records(KEYS["window"])) is None


@pytest.mark.parametrize("kind", ["window", "session"])
def test_window_or_session_of_long_ago_is_known(kind: str) -> None:
    key = {"window": window_key.pack(b"w", 0), "session": session_key.pack(b"s", 100, 150)}[kind]
    assert kind_problem("s", kind, info("compact,delete"), records([key])) is None
    assert kind_problem("s", "keyvalue", info("compact,delete"), records([key])) is not None


def test_keys_that_may_be_of_either_kind_are_taken() -> None:
    assert kind_problem("s", "window", info("compact,delete"), records([struct.pack(">qq", 3, 9), b"JFK"])) is None


def test_window_store_with_duplicates_has_a_changelog_that_only_deletes() -> None:
    assert kind_problem("s", "window", info("delete"), []) is None


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            "win:keyvalue",
            "store 'win' is declared as keyvalue, but app-win-changelog is of another kind, its",
        ),
        ("win:session", "store 'win' is declared as session"),
        ("kv:window:size=1s,retention=1d", "store 'kv' is declared as window"),
    ],
)
@pytest.mark.parametrize("command", ["replica", "rebuild"])
def test_command_refuses_a_store_that_is_declared_as_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: str, said: str, command: str
) -> None:
    log, text = f"sqlite:///{tmp_path}/log", sf.serde.string
    stores = [
        sf.KeyValueStore("kv", text, text),
        sf.WindowStore("win", text, text, window_size_ms=1_000, retention_ms=86_400_000),
    ]
    given = {"log": log, "state_dir": tmp_path / "state", "partitions": 1, "background": False}
    with sf.Session("app", stores=stores, **given) as session:  # type: ignore[arg-type]
        session.assign(active=[0])
        session.wait_ready(30)
        session.task(0).store("kv").put("a", "b")
        session.task(0).store("win").put("a", "b", NOW_MS)
        session.task(0).commit()
    where = ["--out", str(tmp_path / "out")] if command == "rebuild" else ["--state-dir", str(tmp_path / "replica")]
    assert main([command, "--app", "app", "--log", log, "--store", declared, *where]) == 78
    assert said in capsys.readouterr().err
