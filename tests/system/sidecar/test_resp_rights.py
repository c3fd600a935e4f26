"""Rights at the RESP server: a repeat gives no client more than its token allows; a removed token ends at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.ops.security.audit import Audit
from standfast.ops.security.tokens import Tokens
from standfast.ops.sidecar.resp.stores import Grant
from standfast.ops.sidecar.serve_resp import authenticator
from standfast.store.clock import ManualClock
from support.resp import Desk, RespBench, Talk, open_session, pack

GRANTS = {
    b"all": Grant("all"),
    b"other": Grant("other", stores=frozenset({"other"})),
    b"read": Grant("read", write=False, stores=frozenset({"other"})),
    b"kv": Grant("kv", stores=frozenset({"kv"})),
    b"look": Grant("look", write=False),
}


@pytest.fixture
def desk(tmp_path: Path, clock: ManualClock) -> Iterator[Desk]:
    """As that of support.serve, where every client needs a token."""
    with open_session(tmp_path, clock) as session:
        session.assign(active=[0])
        session.wait_ready(10)
        yield Desk(session, GRANTS.get)


def as_(desk: Desk, token: str) -> Talk:
    talk = desk.talk(None)
    assert talk("AUTH", token) == b"OK"
    return talk


def test_repeat_is_answered_to_whom_sends_the_same_and_may_see_it(desk: Desk) -> None:
    first = as_(desk, "all")
    batch = ("SF.GET", "kv", "a"), ("SF.COMMIT", "SEQ", 5)
    first("SF.PUT", "kv", "a", "secret")
    assert first.exec(*batch) == [b"secret", [1, 5, 1]]
    assert as_(desk, "kv").exec(*batch) == first.exec(*batch) == [b"secret", [1, 5, 1]]
    for token in ("other", "read", "look"):
        assert "NOPERM" in str(as_(desk, token).exec(*batch)), token
    another = ("PING",), ("SF.COMMIT", "SEQ", 5)
    for token in ("other", "read", "all"):
        assert "secret" not in str(as_(desk, token).exec(*another))
    assert "another batch" in str(first.exec(("SF.GET", "kv", "b"), batch[1]))
    assert "another batch" in str(first.exec(("SF.GET", "other", "a"), batch[1]))
    assert first("SF.COMMIT", "SEQ", 5) == [1, 5, 1]
    assert first("SF.COMMIT", "SEQ", 6) == [1, 6, 0]
    assert first.exec(("SF.COMMIT", "SEQ", 6)) == [[1, 6, 0]]
    wrote = ("SF.PUT", "kv", "a", "2"), ("SF.COMMIT", "SEQ", 7)
    assert first.exec(*wrote) == [b"OK", [1, 7, 1]]
    assert "another batch" in str(first.exec(("SF.PUT", "kv", "a", "3"), wrote[1]))
    assert first.exec(*wrote) == [b"OK", [1, 7, 1]]


def test_default_store_is_part_of_a_batch(desk: Desk) -> None:
    first = as_(desk, "all")
    assert first("AUTH", "kv", "all") == b"OK"
    batch = ("SET", "a", "1"), ("SF.COMMIT", "SEQ", 1)
    assert first.exec(*batch) == [b"OK", [1, 1, 1]]
    assert first("AUTH", "other", "all") == b"OK"
    assert "another batch" in str(first.exec(*batch))


def entry(name: str, token: str, more: str = "") -> str:
    return f'[[tokens]]\nname = "{name}"\nrole = "write"\ntoken = "{token}"\n{more}\n'


def test_token_that_is_gone_ends_on_open_connections(resp_bench: RespBench, clock: ManualClock) -> None:
    path = resp_bench.root / "tokens.toml"
    path.touch(mode=0o600)
    old, new = "old-token-of-the-application", "new-token-of-the-application"
    path.write_text(entry("app", old) + entry("app", new))
    tokens = Tokens(path)
    resp_bench.open(authenticate=authenticator(tokens, Audit(clock)), revision=lambda: tokens.revision)
    before, after = resp_bench.client(None), resp_bench.client(None)
    assert before("AUTH", "kv", old) == after("AUTH", "kv", new) == b"OK"
    assert before("SET", "a", "1") == after("SET", "b", "1") == b"OK"
    assert before("SF.COMMIT") == [1, None, 2]
    assert before("SET", "a", "uncommitted") == b"OK"
    resp_bench.call(tokens.reload)
    assert before("SET", "a", "uncommitted too") == b"OK", "it is still there"
    path.write_text(entry("app", new, 'stores = ["kv"]'))
    resp_bench.call(tokens.reload)
    before.socket.sendall(pack("SET", "a", "2") + pack("SF.COMMIT") + pack("MULTI"))
    assert [str(before.reply()).split()[0] for _ in range(3)] == ["NOAUTH"] * 3
    refused = after.refused("SF.COMMIT", "OFFSETS", "t", 0, 2)
    assert refused.startswith("FENCED"), "what the old token had written is discarded"
    assert after("SF.OFFSETS") == []
    assert after("GET", "a") == b"1"
    assert after.refused("SF.GET", "other", "a").startswith("NOPERM"), "the new one may do less now"
    assert before("AUTH", "kv", new) == b"OK"
    assert before("GET", "a") == b"1"


def test_rights_are_checked_when_a_command_is_queued(desk: Desk) -> None:
    refused = [
        ("look", ("SF.PUT", "kv", "a", "1"), "may not write store 'kv'"),
        ("look", ("SF.WPUT", "win", "a", 0, "1"), "may not write store 'win'"),
        ("look", ("SF.COMMIT", "SEQ", 1), "may not write"),
        ("look", ("SF.TIME", 5), "may not write"),
        ("kv", ("SF.GET", "other", "a"), "may not read store 'other'"),
        ("kv", ("SF.DEL", "other", "a"), "may not write store 'other'"),
        ("kv", ("SF.RANGE", "other", "", ""), "may not read store 'other'"),
        ("kv", ("SF.GET", "../x", "a"), "store name"),
    ]
    for token, request, why in refused:
        talk = as_(desk, token)
        assert talk("MULTI") == b"OK" and talk("PING") == b"QUEUED"
        assert why in talk.refused(*request), request
        assert talk("PING") == b"QUEUED" and talk.refused("EXEC").startswith("EXECABORT"), request
    allowed = [("look", ("SF.GET", "kv", "a")), ("look", ("SF.TIME",)), ("kv", ("SF.PUT", "kv", "a", "1"))]
    for token, request in allowed:
        assert len(as_(desk, token).exec(request)) == 1, request
    assert desk.context.budget.queues == 0


def test_command_of_the_own_store_is_checked_when_it_is_queued(desk: Desk) -> None:
    talk = desk.talk(None)
    assert talk("AUTH", "kv", "look") == b"OK" and talk("MULTI") == b"OK" and talk("GET", "a") == b"QUEUED"
    assert "may not write store 'kv'" in talk.refused("SET", "a", "1")
    assert talk.refused("EXEC").startswith("EXECABORT")
