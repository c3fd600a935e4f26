"""The RESP server against a model, and against any bytes: the same replies however they are cut, and no bug of ours.

The model is two dictionaries a partition: committed rows and visible rows. Connections write, commit, break and bind
again in any order; the server must refuse every request that the model refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from standfast.ops.sidecar.resp.requests import BadRequest, RequestReader
from standfast.ops.sidecar.resp.table import COMMANDS, REFUSED
from standfast.store.clock import ManualClock
from support.groups import costly
from support.resp import Desk, Talk, open_session, pack

KEYS = st.sampled_from([b"", b"a", b"aa", b"b", b"\xff", b"key\r\n"])
VALUES = st.sampled_from([b"", b"1", b"*99999999\r\n", b"x" * 50])
STORES = ("kv", "other")
CLIENTS = st.integers(0, 2)
PARTITIONS = (0, 1)


@dataclass
class Partition:
    """The model's state of one partition."""

    committed: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    seen: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    offset: int | None = None
    seq: int = 0
    last: tuple[int, int] | None = None  # number and offset of the last commit
    session: int = 0
    commits: int = 0
    dirty: bool = False
    discards: int = 0
    told: bool = True  # no write was discarded since an assignment reported the offsets

    def discard(self) -> None:
        """Drop the uncommitted rows."""
        self.seen, self.dirty, self.told = dict(self.committed), False, False
        self.discards += 1


@dataclass
class Client:
    """The model's state of one connection."""

    talk: Talk
    partition: int = 0
    session: int | None = None  # of its bind
    wrote: int = -1
    read: int = -1  # the discards when it requested the offsets
    lost: bool = False  # a write of this client was discarded

    def unbind(self) -> None:
        self.session, self.wrote, self.read, self.lost = None, -1, -1, False


class RespMachine(RuleBasedStateMachine):
    """Three connections over two partitions of a real session."""

    @initialize()
    def start(self) -> None:
        self.folder = TemporaryDirectory()
        self.session = open_session(Path(self.folder.name), ManualClock(1_356_998_400_000))
        self.session.assign(active=PARTITIONS)
        self.session.wait_ready(10)
        self.desk = Desk(self.session)
        self.partitions = {number: Partition() for number in PARTITIONS}
        self.clients = [Client(self.desk.talk()) for _ in range(3)]

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.session.close()
            self.folder.cleanup()

    def bound(self, client: Client) -> Partition | None:
        """The client's partition, bound by this call; None if it is fenced."""
        at = self.partitions[client.partition]
        if client.session is None:
            client.session, client.wrote = at.session, -1
        return at if client.session == at.session and not client.lost else None

    def discard(self, partition: int) -> None:
        """Drop the uncommitted rows, and fence every client that wrote one of them."""
        at = self.partitions[partition]
        for client in self.clients:
            if (client.partition, client.session, client.wrote) == (partition, at.session, at.commits):
                client.lost, client.wrote = True, -1
        at.discard()

    def written(self, client: Client, changes: dict[tuple[str, bytes], bytes | None], answer: Any, good: Any) -> None:
        at = self.bound(client)
        if at is None:
            assert str(answer).startswith("FENCED"), answer
            return
        assert answer == good
        client.wrote = at.commits
        for key, value in changes.items():
            at.seen.pop(key, None)
            if value is not None:
                at.seen[key] = value
            at.dirty = True

    def leave(self, client: Client) -> None:
        at = self.partitions[client.partition]
        if client.session == at.session and client.wrote == at.commits and at.dirty:
            self.discard(client.partition)
        client.unbind()

    @rule(number=CLIENTS, store=st.sampled_from(STORES), key=KEYS, value=VALUES)
    def put(self, number: int, store: str, key: bytes, value: bytes) -> None:
        client = self.clients[number]
        self.written(client, {(store, key): value}, client.talk("SF.PUT", store, key, value), b"OK")

    @rule(number=CLIENTS, store=st.sampled_from(STORES), key=KEYS)
    def delete(self, number: int, store: str, key: bytes) -> None:
        client = self.clients[number]
        there = (store, key) in self.partitions[client.partition].seen
        self.written(client, {(store, key): None} if there else {}, client.talk("SF.DEL", store, key), int(there))

    @rule(
        number=CLIENTS, batch=st.lists(st.tuples(st.sampled_from(STORES), KEYS, VALUES), max_size=4), bad=st.booleans()
    )
    def multi(self, number: int, batch: list[tuple[str, bytes, bytes]], bad: bool) -> None:
        client = self.clients[number]
        requests: list[tuple[Any, ...]] = [("SF.PUT", *one) for one in batch]
        if bad:
            answer = client.talk.exec(*requests, ("SF.PUT", "win", "k", "v"))
            assert isinstance(answer, hiredis.ReplyError)
            self.bound(client)  # it binds the connection, and nothing of the batch is written
        elif batch:
            changes: dict[tuple[str, bytes], bytes | None] = {(store, key): value for store, key, value in batch}
            self.written(client, changes, client.talk.exec(*requests), [b"OK"] * len(batch))

    @rule(number=CLIENTS)
    def read(self, number: int) -> None:
        client = self.clients[number]
        answers = {store: client.talk("SF.RANGE", store, "", "") for store in STORES}
        at = self.bound(client)
        for store, answer in answers.items():
            if at is None:
                assert str(answer).startswith("FENCED")
            else:
                rows = sorted((key, value) for (name, key), value in at.seen.items() if name == store)
                assert answer == [part for row in rows for part in row]

    @rule(number=CLIENTS, repeat=st.booleans())
    def commit(self, number: int, repeat: bool) -> None:
        client = self.clients[number]
        at = self.partitions[client.partition]
        again = repeat and at.last is not None
        seq, offset = at.last if again and at.last is not None else (at.seq + 1, (at.offset or 0) + 3)
        answer = client.talk("SF.COMMIT", "SEQ", seq, "OFFSETS", "flights", client.partition, offset)
        if self.bound(client) is None or (not at.told and client.read != at.discards):
            assert str(answer).startswith("FENCED")
            return
        if again and client.wrote == at.commits and at.dirty:
            assert "has written since" in str(answer)
            return
        if not again and client.read < 0 and client.wrote < 0:
            assert "has neither read the source offsets nor written" in str(answer)
            return
        assert answer[:2] == [1, seq]
        if not again:
            at.committed, at.offset, at.seq, at.last = dict(at.seen), offset, seq, (seq, offset)
            at.commits += 1
            at.dirty = False

    @rule(number=CLIENTS)
    def lose(self, number: int) -> None:
        client = self.clients[number]
        client.talk.connection.close()
        self.leave(client)
        self.clients[number] = Client(self.desk.talk())

    @rule(number=CLIENTS, partition=st.sampled_from(PARTITIONS))
    def select(self, number: int, partition: int) -> None:
        client = self.clients[number]
        assert client.talk("SELECT", partition) == b"OK"
        if partition != client.partition:
            self.leave(client)
            client.partition = partition
        elif client.lost or (client.session is not None and client.session != self.partitions[partition].session):
            client.unbind()

    @rule(number=CLIENTS)
    def take_up(self, number: int) -> None:
        client = self.clients[number]
        at = self.partitions[client.partition]
        expected = [] if at.offset is None else [b"flights", client.partition, at.offset]
        assert client.talk("SF.OFFSETS") == expected
        if at.dirty:
            self.discard(client.partition)
        if client.lost or (client.session is not None and client.session != at.session):
            client.unbind()
        self.bound(client)
        client.read = at.discards

    @rule(generation=st.integers(1, 3))
    def generation(self, generation: int) -> None:
        self.desk.engine.begin_generation(self.desk.engine.generation + generation)
        for at in self.partitions.values():
            if at.dirty:
                at.discard()
            at.told = True
            at.session += 1


TestResp = pytest.mark.slow(RespMachine.TestCase)
TestResp.settings = settings(max_examples=20, stateful_step_count=40)

NAMES = [row[0].encode() for row in COMMANDS] + [name.encode() for names in REFUSED.values() for name in names.split()]
WORDS = st.one_of(
    st.sampled_from(
        [b"kv", b"win", b"ses", b"ver", b"other", b"nix", b"k", b"", b"0", b"1", b"5", b"-1", b"99999999999"]
    ),
    st.sampled_from(
        [b"LIMIT", b"REV", b"TS", b"NX", b"GET", b"SEQ", b"OFFSETS", b"t", b"AFTER", b"MATCH", b"a*", b"3"]
    ),
    st.binary(max_size=8),
)
REQUEST = st.tuples(st.sampled_from(NAMES), st.lists(WORDS, max_size=7)).map(lambda one: (one[0], *one[1]))
SKIPPED = {b"SF.WAITREADY", b"SF.STATUS", b"INFO", b"CLIENT", b"HELLO", b"SCAN"}  # replies differ, or wait


@pytest.fixture(scope="module")
@costly()
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_session(tmp_path_factory.mktemp("fuzz"), ManualClock(1_356_998_400_000)) as session:
        session.assign(active=[0, 1])
        session.wait_ready(10)
        yield Desk(session)


@pytest.mark.slow
@given(requests=st.lists(REQUEST, max_size=20))
def test_any_request_gets_one_reply_and_never_a_bug(shared_desk: Desk, requests: list[tuple[bytes, ...]]) -> None:
    talk = shared_desk.talk()
    for request in requests:
        if request[0] == b"SF.WAITREADY":
            continue
        talk.send(*request)
        assert len(talk.replies()) == (0 if talk.connection.ending and request[0] != b"QUIT" else 1)
    internal = [method for method, reason in shared_desk.engine.statistics().refusals if reason == "INTERNAL"]
    assert internal == []
    talk.connection.close()


@pytest.mark.slow
@given(
    requests=st.lists(REQUEST.filter(lambda one: one[0] not in SKIPPED), max_size=12),
    garbage=st.one_of(st.just(b""), st.binary(max_size=20)),
    places=st.lists(st.integers(0, 2000), max_size=8),
)
def test_replies_are_the_same_however_the_bytes_are_cut(
    shared_desk: Desk, requests: list[tuple[bytes, ...]], garbage: bytes, places: list[int]
) -> None:
    data = b"".join(pack(*request) for request in requests) + garbage
    ends = sorted({len(data), *(place % (len(data) + 1) for place in places)})
    cuts = [[data], [data[at : at + 1] for at in range(len(data))]]
    cuts.append([data[start:end] for start, end in zip([0, *ends], ends, strict=False)])
    replies = []
    for chunks in cuts:
        shared_desk.engine.begin_generation(shared_desk.engine.generation + 1)
        for store in STORES:  # the same state each time
            cleaner = shared_desk.talk(store)
            keys = cleaner("SF.RANGE", store, "", "")[::2]
            if keys:
                cleaner("SF.DEL", store, *keys)
            cleaner("SF.COMMIT")
        talk = shared_desk.talk()
        reader, out = RequestReader(), b""
        for chunk in chunks:
            try:
                talk.connection.push(reader.feed(chunk))
            except BadRequest:
                break
            while talk.connection.run() or shared_desk.held:
                shared_desk.release()
            out += talk.connection.take()
        replies.append(out)
        talk.connection.close()
    whole, single, cut = replies
    assert single.startswith(whole)  # a request in one chunk with bytes that are no request gets no reply
    assert single.startswith(cut)
    if not garbage:
        assert whole == single == cut
