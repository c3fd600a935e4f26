"""The commands by which redis-cli and graphical clients show a store: keys, types, values, and sizes."""

from __future__ import annotations

import pytest

from standfast.ops.sidecar.resp import scans as resp_scans
from standfast.ops.sidecar.resp.stores import Grant
from standfast.ops.sidecar.resp.table import COMMANDS
from support.resp import Desk


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_graphical_client_lists_the_keys_of_a_store_with_type_expiry_and_value(desk: Desk, protocol: str) -> None:
    talk = desk.talk(partition=1)
    talk("HELLO", protocol)
    for number in range(5):
        talk("SET", f"user:{number}", "value")
    assert b"# Keyspace\r\ndb1:keys=5,expires=0,avg_ttl=0\r\n" in talk("INFO", "keyspace")
    cursor, keys = talk("SCAN", 0, "MATCH", "*", "COUNT", 500, "TYPE", "string")
    assert (cursor, len(keys)) == (b"0", 5)
    assert talk("SCAN", 0, "MATCH", "*", "COUNT", 500, "TYPE", "hash") == [b"0", []]
    assert {(talk("TYPE", key), talk("TTL", key), talk("PTTL", key)) for key in keys} == {(b"string", -1, -1)}
    assert talk("GETRANGE", "user:3", 0, 4999) == b"value"
    assert talk("UNLINK", "user:3", "user:3", "none") == 1
    assert [talk("TYPE", "user:3"), talk("TTL", "user:3"), talk("EXPIRETIME", "user:3")] == [b"none", -2, -2]


def test_keys_are_found_by_prefix_or_as_a_whole(desk: Desk) -> None:
    talk = desk.talk()
    for key in ("a", "b:1", "b:2", "c"):
        talk("SET", key, "v")
    assert talk("KEYS", "*") == [b"a", b"b:1", b"b:2", b"c"]
    assert talk("KEYS", "b:*") == [b"b:1", b"b:2"]
    assert talk("KEYS", "b:1") == [b"b:1"]
    assert talk("KEYS", "none") == []
    assert talk("SCAN", 0, "MATCH", "b:2") == [b"0", [b"b:2"]]
    for pattern in ("*b", "b?*", "b:[12]*", "b\\:*"):
        assert "a prefix and a star" in talk.refused("KEYS", pattern)
    assert talk.exec(("KEYS", "b:*"), ("TYPE", "a")) == [[b"b:1", b"b:2"], b"string"]
    assert "is a window store" in desk.talk("win").refused("KEYS", "*")


def test_more_keys_than_one_reply_takes_are_refused_with_the_way_to_page(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = desk.talk()
    for number in range(300):
        talk("SET", b"%04d" % number, "v")
    assert len(talk("KEYS", "*")) == 300
    monkeypatch.setattr(resp_scans, "ROWS_MAX", 299)
    assert "use SCAN 0 MATCH prefix* COUNT n" in talk.refused("KEYS", "*")


@pytest.mark.parametrize(
    ("first", "last", "part"),
    [
        (0, 2, b"abc"),
        (0, -1, b"abcdef"),
        (-3, -1, b"def"),
        (4, 99, b"ef"),
        (-99, 1, b"ab"),
        (3, 2, b""),
        (0, -7, b"a"),
        (-1, -2, b""),
    ],
)
def test_part_of_a_value_is_that_of_redis(desk: Desk, first: int, last: int, part: bytes) -> None:
    talk = desk.talk()
    talk("SET", "k", "abcdef")
    assert talk("GETRANGE", "k", first, last) == part
    assert talk("GETRANGE", "none", first, last) == b""


def test_info_has_the_sections_that_are_asked_for_and_only_stores_that_the_token_may_read(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    assert talk("INFO", "server", "cluster").count(b"# ") == 2
    for request in (("INFO",), ("INFO", "all"), ("INFO", "everything")):
        assert b"db0:keys=1," in talk(*request)
    assert talk("INFO", "nix") == b""
    talk.connection.stores.grant = Grant("other only", stores=frozenset({"other"}))
    assert b"db0" not in talk("INFO")
    assert b"db0" not in desk.talk(None)("INFO")


def test_info_does_not_wait_for_a_commit(desk: Desk) -> None:
    talk, other = desk.talk(), desk.talk()
    talk("SET", "a", "1")
    desk.hold = True
    talk.send("SF.COMMIT")
    assert b"role:master" in other("INFO")
    desk.hold = False
    desk.release()
    assert talk.replies() == [[1, None, 1]]
    assert b"db0:keys=1," in other("INFO")


def test_every_command_is_documented_by_how_it_is_called(desk: Desk) -> None:
    talk = desk.talk()
    talk("HELLO", "3")
    docs = talk("COMMAND", "DOCS")
    assert sorted(docs) == sorted(row[0].lower().encode() for row in COMMANDS)
    assert all(one[b"summary"] and one[b"group"] and one[b"since"] for one in docs.values())
    assert talk("COMMAND", "DOCS", "sf.range", "nix") == {b"sf.range": docs[b"sf.range"]}
    assert docs[b"sf.range"][b"summary"].startswith(b"SF.RANGE store from to")
    assert (docs[b"get"][b"group"], docs[b"del"][b"summary"][:11]) == (b"string", b"DEL key ...")
