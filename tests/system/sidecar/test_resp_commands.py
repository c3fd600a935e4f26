"""The commands of the RESP server, without sockets: replies in both versions, limits, refusals with their reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hiredis
import pytest

import standfast as sf
from standfast.ops.sidecar.resp.connection import CallLimits
from standfast.ops.sidecar.resp.scans import Scans
from standfast.ops.sidecar.resp.stores import Grant
from standfast.ops.sidecar.resp.table import COMMANDS, REFUSED
from standfast.store.clock import ManualClock
from support.resp import DAY_MS, HOUR_MS, TIMEOUT_S, Desk, open_session, raw_stores

START_MS = 1_357_000_000_000 - 1_357_000_000_000 % HOUR_MS


def test_keyvalue_commands_answer_as_redis_does(desk: Desk) -> None:
    talk = desk.talk()
    assert talk("GET", "a") is None
    assert talk("SET", "a", "1") == b"OK"
    assert talk("SET", "a", "2", "NX") is None
    assert talk("SET", "a", "2", "GET") == b"1"
    assert talk("SET", "a", "3", "nx", "get") == b"2"
    assert talk("GET", "a") == b"2"
    assert talk("SET", "b", "x", "NX", "GET") is None
    assert talk("MSET", "c", "3", "d", "44") == b"OK"
    assert talk("MGET", "a", "none", "d") == [b"2", None, b"44"]
    assert talk("EXISTS", "a", "a", "none") == 2
    assert talk("STRLEN", "d") == 2
    assert talk("STRLEN", "none") == 0
    assert talk("GETDEL", "d") == b"44"
    assert talk("GETDEL", "d") is None
    assert talk("DEL", "a", "a", "none") == 1
    assert talk("get", "a") is None
    assert talk("Set", "", "") == b"OK"
    assert talk("GET", "") == b""


def test_names_choose_the_store_and_kinds_are_kept_apart(desk: Desk) -> None:
    talk = desk.talk()
    assert talk("SF.PUT", "other", "k", "v") == b"OK"
    assert talk("GET", "k") is None
    assert talk("SF.GET", "other", "k") == b"v"
    assert talk("SF.PUT", "other", "k", "w", "NX", "GET") == b"v"
    assert talk("SF.PUT", "other", "k", "w", "TS", 77) == b"OK"
    assert talk("SF.GET", "other", "k", "WITHTS") == [b"w", 77]
    assert talk("SF.DEL", "other", "k", "l") == 1
    assert "is a window store" in talk.refused("SF.PUT", "win", "k", "v")
    assert "is a keyvalue store" in talk.refused("SF.WFETCH", "kv", "k", 0, 1)
    assert "has no store 'nix'" in talk.refused("SF.GET", "nix", "k")
    assert "name" in talk.refused("SF.GET", "../x", "k")


def test_default_store_of_another_kind_refuses_each_of_several_requests(desk: Desk) -> None:
    talk = desk.talk("win")
    talk.connection.push([[b"GET", b"k"], [b"GET", b"k"], [b"SET", b"k", b"v"], [b"SET", b"k", b"v"]])
    talk.run()
    refused = [str(reply) for reply in talk.replies()]
    assert len(refused) == 4
    assert all("store 'win' is a window store" in text for text in refused), refused


def test_empty_name_is_not_the_default_store(desk: Desk) -> None:
    talk = desk.talk("kv")
    talk.connection.push([[b"SET", b"k", b"v"], [b"SF.PUT", b"", b"k", b"w"], [b"GET", b"k"]])
    talk.run()
    stored, refused, found = talk.replies()
    assert (stored, found) == (b"OK", b"v")
    assert "name" in str(refused)


def test_ranges_are_in_key_order_with_both_ends(desk: Desk) -> None:
    talk = desk.talk()
    for key in "abcde":
        talk("SET", key, key.upper())
    assert talk("SF.RANGE", "kv", "b", "d") == [b"b", b"B", b"c", b"C", b"d", b"D"]
    assert talk("SF.RANGE", "kv", "", "b") == [b"a", b"A", b"b", b"B"]
    assert talk("SF.RANGE", "kv", "d", "") == [b"d", b"D", b"e", b"E"]
    assert talk("SF.RANGE", "kv", "", "", "REV", "LIMIT", 1) == [b"e", b"E"]
    assert talk("SF.RANGE", "kv", "", "", "REV", "LIMIT", 2, "AFTER", "d") == [b"c", b"C", b"b", b"B"]
    assert talk("SF.RANGE", "kv", "", "", "LIMIT", 2, "AFTER", "b") == [b"c", b"C", b"d", b"D"]
    assert talk("SF.RANGE", "kv", "d", "b") == []
    assert "LIMIT must be" in talk.refused("SF.RANGE", "kv", "", "", "LIMIT", 0)
    assert "is not an option" in talk.refused("SF.RANGE", "kv", "", "", "LIMIT", 1, "LIMIT", 1)


def test_ranges_by_number_page_across_zero(desk: Desk) -> None:
    talk = desk.talk()
    serdes: list[Any] = [sf.serde.int64, sf.serde.float64]
    for serde in serdes:
        keys = [serde.serialize(number) for number in (-300, -5, -1, 0, 5, 300)]
        for key in keys:
            talk("SET", key, "v")
            talk("SF.WPUT", "win", key, START_MS, "v")
            talk("SF.SPUT", "ses", key, START_MS, START_MS, "v")
        by = [b"BY", serde.name.encode()]
        for order in ([], [b"REV"]):
            expected, found = keys[1:5][:: -1 if order else 1], list[bytes]()
            while page := talk(
                "SF.RANGE", "kv", keys[1], keys[4], *order, *by, "LIMIT", 1, *([b"AFTER", found[-1]] if found else [])
            ):
                found += page[::2]
            assert found == expected
            assert talk("SF.WRANGE", "win", keys[1], keys[4], 0, START_MS, *order, *by)[::4] == expected
            assert talk("SF.SRANGE", "ses", keys[1], keys[4], 0, START_MS, *by, *order)[::4] == expected
        assert talk("SF.RANGE", "kv", keys[1], keys[4]) == []
        for key in keys:
            talk("DEL", key)
            talk("SF.WDEL", "win", key, START_MS)
            talk("SF.SDEL", "ses", key, START_MS, START_MS)
    assert "BY takes int64 or float64" in talk.refused("SF.RANGE", "kv", "", "", "BY", "string")
    assert "is 8 bytes, not 1" in talk.refused("SF.RANGE", "kv", "5", "", "BY", "int64")


@pytest.mark.parametrize("reverse", [False, True])
def test_prefixes_page_to_the_end(desk: Desk, reverse: bool) -> None:
    talk = desk.talk()
    keys = [b"p" + bytes([byte]) for byte in range(0, 250, 10)] + [b"p", b"p\xff\xff"]
    for key in [*keys, b"o", b"q", b"o\xff"]:
        talk("SET", key, "v")
    order = [b"REV"] if reverse else []
    found: list[bytes] = []
    while page := talk("SF.PREFIX", "kv", "p", *order, "LIMIT", 4, *([b"AFTER", found[-1]] if found else [])):
        found += page[::2]
    assert found == sorted(keys, reverse=reverse)


def test_scan_walks_every_key_of_a_prefix_once(desk: Desk) -> None:
    talk = desk.talk()
    for number in range(35):
        talk("SET", f"user:{number:02}", "v")
        talk("SET", f"other:{number:02}", "v")
    found, cursor = [], b"0"
    while True:
        cursor, keys = talk("SCAN", cursor, "MATCH", "user:*", "COUNT", 9)
        found += keys
        talk("SET", "user:000", "between")  # a key behind the cursor changes nothing
        if cursor == b"0":
            break
    assert found == [f"user:{number:02}".encode() for number in range(35)]
    assert "begin again" in talk.refused("SCAN", 99)
    assert "prefix and a star" in talk.refused("SCAN", 0, "MATCH", "a*b*")
    assert talk("DBSIZE") >= 70


def test_long_ranges_are_read_elsewhere_and_are_whole(desk: Desk) -> None:
    talk = desk.talk()
    for number in range(500):
        talk("SET", b"%04d" % number, "v")
    desk.hold = True
    talk.send("SF.RANGE", "kv", "", "")
    talk.send("PING")
    assert talk.replies() == []
    desk.hold = False
    desk.release()
    rows, pong = talk.replies()
    assert len(rows) == 1000
    assert rows[::2] == [b"%04d" % number for number in range(500)]
    assert pong == b"PONG"


def test_long_ranges_beyond_the_bound_wait_for_their_turn_with_nothing_held_and_are_whole(desk: Desk) -> None:
    desk.context = desk.context._replace(scans=Scans(2))
    talks = [desk.talk() for _ in range(6)]
    for number in range(500):
        talks[0]("SET", b"%04d" % number, "v")
    desk.hold = True
    for talk in talks:
        talk.send("SF.RANGE", "kv", "", "")
        talk.send("PING")
    assert len(desk.held) == 2
    assert len(desk.talk()("SF.RANGE", "kv", "", "", "LIMIT", 10)) == 20, "a short one waits for nobody"
    talks[3].connection.close()  # its turn goes to the next
    desk.hold = False
    while desk.held:
        desk.release()
    for talk in (one for one in talks if one is not talks[3]):
        rows, pong = talk.replies()
        assert (len(rows), rows[0], pong) == (1000, b"0000", b"PONG")


def test_range_that_is_too_large_is_an_error_and_not_cut_short(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.ops.sidecar.resp.scans.ROWS_MAX", 10)
    monkeypatch.setattr("standfast.ops.sidecar.resp.scans.BYTES_MAX", 5000)
    talk = desk.talk()
    for number in range(11):
        talk("SET", b"%04d" % number, "v" * 400)
    assert "more than 10 rows" in talk.refused("SF.RANGE", "kv", "", "")
    assert len(talk("SF.RANGE", "kv", "", "", "LIMIT", 10)) == 20
    talk("SET", "0003", "v" * 4000)
    assert "more than 5000 bytes" in talk.refused("SF.RANGE", "kv", "", "", "LIMIT", 10)


def test_windows_are_put_fetched_and_hidden(desk: Desk) -> None:
    talk = desk.talk(None)
    for hour in range(3):
        assert talk("SF.WPUT", "win", "k", START_MS + hour * HOUR_MS, f"v{hour}") == b"OK"
    assert talk("SF.WPUT", "win", "l", START_MS, "w", "TS", 5) == b"OK"
    assert talk("SF.WGET", "win", "k", START_MS) == b"v0"
    assert talk("SF.WGET", "win", "k", START_MS + 1) is None
    assert talk("SF.WFETCH", "win", "k", START_MS, START_MS + HOUR_MS) == [
        *(START_MS, b"v0"),
        *(START_MS + HOUR_MS, b"v1"),
    ]
    assert talk("SF.WFETCH", "win", "k", 0, 2 * START_MS, "REV", "LIMIT", 1) == [START_MS + 2 * HOUR_MS, b"v2"]
    assert talk("SF.WALL", "win", START_MS, START_MS) == [
        *(b"k", START_MS, START_MS + HOUR_MS, b"v0"),
        *(b"l", START_MS, START_MS + HOUR_MS, b"w"),
    ]
    assert talk("SF.WRANGE", "win", "l", "", 0, 2 * START_MS) == [b"l", START_MS, START_MS + HOUR_MS, b"w"]
    assert talk("SF.WDEL", "win", "k", START_MS) == b"OK"
    assert talk("SF.WGET", "win", "k", START_MS) is None
    talk("SF.WPUT", "win", "m", START_MS + 3 * DAY_MS, "late")
    assert talk("SF.WALL", "win", 0, START_MS + DAY_MS) == []
    assert "window start must be" in talk.refused("SF.WPUT", "win", "k", "x", "v")
    assert "window start must be" in talk.refused("SF.WPUT", "win", "k", 2**63, "v")


def test_sessions_are_put_found_and_removed(desk: Desk) -> None:
    talk = desk.talk(None)
    assert talk("SF.SPUT", "ses", "k", START_MS, START_MS + 10, "one") == b"OK"
    assert talk("SF.SPUT", "ses", "k", START_MS + 100, START_MS + 200, "two", "TS", 3) == b"OK"
    assert talk("SF.SGET", "ses", "k", START_MS, START_MS + 10) == b"one"
    one, two = [b"k", START_MS, START_MS + 10, b"one"], [b"k", START_MS + 100, START_MS + 200, b"two"]
    assert talk("SF.SFETCH", "ses", "k") == one + two
    assert talk("SF.SFETCH", "ses", "k", "REV", "LIMIT", 1) == two
    assert talk("SF.SFETCH", "ses", "k", START_MS + 11, START_MS + 100) == two
    assert talk("SF.SALL", "ses") == one + two
    assert talk("SF.SALL", "ses", "l", "", "REV") == []
    assert talk("SF.SRANGE", "ses", "", "", 0, START_MS + 99) == one
    assert talk("SF.SRANGE", "ses", "k", "k", START_MS + 11, START_MS + 100, "REV", "LIMIT", 3) == two
    assert talk("SF.SRANGE", "ses", "l", "", 0, START_MS + 100) == []
    assert "latest start must be" in talk.refused("SF.SRANGE", "ses", "", "", 0, "x")
    assert talk("SF.SDEL", "ses", "k", START_MS, START_MS + 10) == b"OK"
    assert talk("SF.SFETCH", "ses", "k") == two
    assert "cannot start at" in talk.refused("SF.SPUT", "ses", "k", 2, 1, "v")


def test_versions_are_kept_and_read_as_of_a_time(desk: Desk) -> None:
    talk = desk.talk(None)
    assert talk("SF.VPUT", "ver", "k", "one", "TS", START_MS) == -1
    assert talk("SF.VPUT", "ver", "k", "two", "TS", START_MS + 10) == -1
    assert talk("SF.VPUT", "ver", "k", "between", "TS", START_MS + 5) == START_MS + 10
    assert talk("SF.VPUT", "ver", "k", "old", "TS", START_MS - 3 * DAY_MS) is None
    assert talk("SF.VGET", "ver", "k") == [b"two", START_MS + 10, -1]
    assert talk("SF.VGET", "ver", "k", "ASOF", START_MS + 7) == [b"between", START_MS + 5, START_MS + 10]
    assert talk("SF.VGET", "ver", "none") is None
    assert talk("SF.VRANGE", "ver", "k", START_MS, START_MS + 4, "ASC") == [b"one", START_MS, START_MS + 5]
    assert talk("SF.VDEL", "ver", "k", "TS", START_MS + 20) == [b"two", START_MS + 10, -1]
    assert talk("SF.VGET", "ver", "k") is None


def test_writes_carry_the_time_of_the_record_or_the_wall_clock(desk: Desk) -> None:
    talk, other = desk.talk(), desk.talk()
    assert talk("SF.TIME") is None
    assert talk("SF.TIME", 1000) == 1000
    talk("SET", "a", "v")
    assert talk("SF.TIME", 500) == 1000  # stream time never goes back; the record's own time stays
    talk("SET", "b", "v")
    other("SET", "c", "v")
    assert [talk("SF.GET", "kv", key, "WITHTS")[1] for key in "abc"] == [1000, 500, desk.session.clock.wall_ms()]
    assert other("SF.TIME") == 1000


def test_version_three_has_its_own_nil_and_maps(desk: Desk) -> None:
    talk = desk.talk()
    greeting = talk("HELLO", "3")
    assert greeting[b"proto"] == 3
    assert greeting[b"server"] == b"standfast"
    desk.hold = False
    talk.connection.push([[b"GET", b"none"]])
    talk.connection.run()
    assert talk.connection.take() == b"_\r\n"
    assert talk("CONFIG", "GET", "*") == {}
    assert talk("HELLO", "2")[1] == b"standfast"
    assert talk("CONFIG", "GET", "save") == []
    assert "NOPROTO" in talk.refused("HELLO", "4")
    assert "syntax error" in talk.refused("HELLO", "3", "AUTH", "x")
    assert talk("HELLO", "3", "AUTH", "kv", "x", "SETNAME", "me")[b"proto"] == 3
    assert talk("CLIENT", "GETNAME") == b"me"


def test_commands_about_the_connection(desk: Desk) -> None:
    talk = desk.talk()
    assert talk("PING") == b"PONG"
    assert talk("PING", "x") == b"x"
    assert talk("ECHO", "x") == b"x"
    assert isinstance(talk("CLIENT", "ID"), int)
    assert talk("CLIENT", "SETINFO", "LIB-NAME", "x") == b"OK"
    assert talk("CLIENT", "GETNAME") is None
    assert "no-evict".upper() not in talk.refused("CLIENT", "NO-EVICT", "on")
    assert talk("COMMAND", "COUNT") == len(COMMANDS)
    assert len(talk("COMMAND")) == len(COMMANDS)
    assert talk("COMMAND", "INFO", "get", "nix")[1] is None
    assert b"loading:0" in talk("INFO")
    assert talk("RESET") == b"RESET"
    assert "no default store" in talk.refused("GET", "a")
    assert talk("QUIT") == b"OK"
    assert talk.connection.ending


def test_what_is_not_there_says_why(desk: Desk) -> None:
    talk = desk.talk()
    for name in (name for names in REFUSED.values() for name in names.split()):
        assert talk.refused(name.lower(), "a", "b", "c").startswith(f"ERR {name} is refused: ")
        assert talk("PING") == b"PONG"


def test_set_with_expiry_is_refused_and_changes_nothing(desk: Desk) -> None:
    talk = desk.talk()
    for option in ("EX", "PX", "EXAT", "PXAT", "KEEPTTL"):
        assert "do not expire" in talk.refused("SET", "k", "v", option, 10)
        assert talk("GET", "k") is None
    assert "NX and GET" in talk.refused("SET", "k", "v", "XX")


def test_wrong_number_of_arguments_is_refused(desk: Desk) -> None:
    talk = desk.talk()
    for name, _, least, most, _ in COMMANDS:
        for count in (count for count in (least - 1, most + 1) if 1 <= count < 100):
            assert talk.refused(name, *["1"] * (count - 1)) == f"ERR wrong number of arguments for '{name}' command"


def test_unknown_commands_are_named_without_their_bytes(desk: Desk) -> None:
    talk = desk.talk()
    assert talk.refused("NIX") == "ERR unknown command 'NIX'"
    assert talk.refused(b"\xff\x00\r\n-ERR") == "ERR unknown command '????-ERR'"
    assert talk("PING") == b"PONG"
    assert desk.engine.statistics().refusals["other", "BAD_REQUEST"] == 2


def test_large_keys_and_values_are_refused_and_change_nothing(desk: Desk) -> None:
    talk = desk.talk()
    assert "over the limit" in talk.refused("SET", "k", b"x" * 1_000_001)
    assert "over the limit" in talk.refused("SET", b"k" * 70_000, "v")
    assert "over the limit" in talk.refused("MSET", "a", "1", "b", b"x" * 1_000_001)
    assert talk("MGET", "k", "a", "b") == [None, None, None]
    refusals = desk.engine.statistics().refusals
    assert (refusals["SET", "TOO_LARGE"], refusals["MSET", "TOO_LARGE"]) == (2, 1)
    for request in (("SF.WPUT", "win", b"k" * 70_000, 0, "v"), ("SF.SPUT", "ses", b"k" * 70_000, 0, 9, "v"),
                    ("SF.VPUT", "ver", b"k" * 70_000, "v"), ("SF.PUT", "kv", b"k" * 70_000, "v")):  # fmt: skip
        assert "over the limit" in talk.refused(*request)
    assert talk("SF.COMMIT") == [1, None, 0], "nothing was kept of any of them"


def test_steps_have_their_bounds_and_change_nothing_beyond(desk: Desk) -> None:
    desk.context = desk.context._replace(limits=CallLimits(batch_ops=3, batch_bytes=2_000, wait_ms=50))
    talk = desk.talk()
    three, four = ["a", "b", "c"], ["a", "b", "c", "d"]
    assert talk("MSET", *[word for key in three for word in (key, "1")]) == b"OK"
    assert talk("MGET", *three) == [b"1"] * 3
    for request in (("MSET", *four * 2), ("DEL", *four), ("SF.DEL", "kv", *four), ("MGET", *four), ("EXISTS", *four)):
        assert "keys in one command: 3 at most" in talk.refused(*request)
    kept, answer = talk.exec(*[("SET", key, "2") for key in four])
    assert "MULTI takes 3 requests and 2000 bytes" in str(kept[3]) and str(answer).startswith("EXECABORT")
    kept, answer = talk.exec(("SET", "a", b"x" * 1_500), ("SET", "b", b"x" * 1_500))
    assert "2000 bytes at most" in str(kept[1]) and str(answer).startswith("EXECABORT")
    assert talk.exec(("SET", "a", "2"), ("SET", "b", "2"), ("GET", "c")) == [b"OK", b"OK", b"1"]
    assert talk("MGET", *three) == [b"2", b"2", b"1"]
    assert "from 0 to 50" in talk.refused("SF.WAITREADY", 51)
    assert desk.engine.statistics().refusals["DEL", "TOO_LARGE"] == 1


def test_full_write_buffer_is_busy_until_a_commit(desk: Desk) -> None:
    talk = desk.talk()
    value = b"x" * 900_000
    answers = [talk("SET", f"k{number}", value) for number in range(40)]
    busy = [answer for answer in answers if isinstance(answer, hiredis.ReplyError)]
    assert busy
    assert str(busy[0]).startswith("BUSY write buffer holds")
    talk("SF.COMMIT")
    assert talk("SET", "last", value) == b"OK"


def test_token_opens_and_limits_the_connection(desk: Desk) -> None:
    grants = {b"reader": Grant("r", write=False), b"one": Grant("o", stores=frozenset({"kv"})), b"all": Grant("a")}
    desk.context = desk.context._replace(authenticate=grants.get)
    talk = desk.talk(None)
    for request in (("GET", "k"), ("SF.STATUS",), ("MULTI",), ("SELECT", 1), ("PING",), ("NIX",)):
        assert talk.refused(*request).startswith("NOAUTH")
    assert talk.refused("HELLO", "3").startswith("NOAUTH")
    assert talk.refused("AUTH", "kv", "wrong").startswith("WRONGPASS")
    assert talk("AUTH", "kv", "reader") == b"OK"
    assert talk("GET", "k") is None
    assert talk.refused("SET", "k", "v").startswith("NOPERM")
    assert talk.refused("SF.COMMIT").startswith("NOPERM")
    assert talk("AUTH", "kv", "one") == b"OK"
    assert talk("SET", "k", "v") == b"OK"
    assert talk.refused("SF.PUT", "other", "k", "v").startswith("NOPERM")
    assert talk.refused("AUTH", "other", "one").startswith("NOPERM")
    assert talk("HELLO", "3", "AUTH", "default", "all")[b"proto"] == 3
    assert talk("SF.PUT", "other", "k", "v") == b"OK"
    assert talk("AUTH", "all") == b"OK"
    assert talk("RESET") == b"RESET"
    assert talk.refused("PING").startswith("NOAUTH")


def test_sets_that_stand_together_are_as_good_as_single_ones(desk: Desk) -> None:
    talk = desk.talk()
    large = b"x" * 1_000_001
    requests = [[b"SET", b"k%d" % number, b"v%d" % number] for number in range(1_200)]
    requests[700] = [b"SET", b"large", large]
    requests[900] = [b"SET", b"k900", b"nx", b"NX"]
    requests[901] = [b"set", b"k0", b"again"]
    talk.connection.push([*requests, [b"GET", b"k0"], [b"GET", b"k1199"]])
    talk.run()
    replies = talk.replies()
    assert [number for number, reply in enumerate(replies) if reply != b"OK"] == [700, 1200, 1201]
    assert "over the limit" in str(replies[700])
    assert replies[1200:] == [b"again", b"v1199"]
    assert desk.engine.statistics().calls["SET"] == 1_200
    assert talk("SF.COMMIT", "SEQ", 1) == [1, 1, 1_198]


def test_sets_that_stand_together_in_an_uncached_store_are_all_logged(tmp_path: Path, clock: ManualClock) -> None:
    with open_session(tmp_path, clock, stores=raw_stores(caching=False)) as session:
        session.assign(active=[0])
        session.wait_ready(TIMEOUT_S)
        talk = Desk(session).talk()
        talk.connection.push([[b"SET", b"a", b"1"], [b"SET", b"a", b"2"], [b"GET", b"a"]])
        talk.run()
        assert talk.replies() == [b"OK", b"OK", b"2"]
        assert talk("SF.COMMIT", "SEQ", 1) == [1, 1, 2]


def test_one_reply_has_its_bound(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "k", b"x" * 900_000)
    assert len(talk("MGET", *["k"] * 10)) == 10
    assert "more than" in talk.refused("MGET", *["k"] * 100)
    answer = talk.exec(("SET", "a", "1"), *[("GET", "k")] * 100)
    assert "nothing of it was applied" in str(answer)
    assert talk("GET", "a") is None
    for number in range(40):
        talk("SET", b"p%02d" % number + b"y" * 60_000, "v")
        talk("SF.COMMIT")
    cursor, keys, pages = b"0", [], 0
    while True:
        cursor, page = talk("SCAN", cursor, "MATCH", "p*", "COUNT", 1000)
        keys += page
        pages += 1
        if cursor == b"0":
            break
    assert len(keys) == 40
    assert pages == 3
