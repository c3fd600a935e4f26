"""Topics that take smaller batches than the client sends: whole commits, no record twice, the record at fault named.

Both producers, both guarantees; limits that are known, lowered after the first commit, or may not be read.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.writer import KafkaWriter
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TOPIC, TRANSACTIONAL_ID, Need
from standfast.replication.record_limits import MESSAGE_BYTES, RecordRefused, alone_bytes
from standfast.store.native_module import SWITCH
from support.secured import WAIT_S, Secured, secured_broker

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

LIMIT = 10_000
CALLS = ("append", "transact")


@pytest.fixture(scope="module")
def secured(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture(params=["compiled", pytest.param("python", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Both producers, one after the other."""
    if request.param == "python":
        monkeypatch.setenv(SWITCH, "0")
    made = Place(secured)
    yield made
    made.log.close()


class Place:
    """A log of a user of its own, which knows no limit yet, and topics that this user may write to."""

    def __init__(self, secured: Secured) -> None:
        self._secured = secured
        self._user = secured.new_user()
        self._admin = secured.root.admin
        secured.allow(self._user, [Need(TRANSACTIONAL_ID, "standfast-producer-", "WRITE")], prefixed=True)
        self.log = self.opened()

    def opened(self, options: str = "") -> KafkaLog:
        """A log of this user, with further settings."""
        address = self._secured.login(self._user)
        return KafkaLog(f"{address}{'&' if '?' in address else '?'}{options}" if options else address)

    def topic(self, most_bytes: int | None, partitions: int = 1, *, known: bool = True) -> str:
        """A new topic; `known`: its user may read its settings."""
        name = f"small-{uuid.uuid4().hex[:8]}"
        extra = {} if most_bytes is None else {MESSAGE_BYTES: str(most_bytes)}
        self._admin.create_topic(name, partitions, TopicPolicy(extra=extra))
        operations = ("WRITE", "DESCRIBE_CONFIGS") if known else ("WRITE",)
        self._secured.allow(self._user, [Need(TOPIC, name, one) for one in operations])
        return name

    def lower(self, name: str, most_bytes: int) -> None:
        self._admin.change_topic(name, {MESSAGE_BYTES: str(most_bytes)})

    def values(self, source: TopicPartition, count: int) -> list[bytes | None]:
        """Values of all committed records, of which there are `count` or more."""
        reader = self._secured.root.reader()
        reader.assign({source: 0})
        found: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_S
        # The marker behind a transaction may come a moment after its commit.
        while len(found) < count or reader.assignment()[source] < reader.bounds([source])[source].end:
            assert time.monotonic() < deadline, f"{len(found)} records, not {count}"
            found += [record.value for fetched in reader.fetch(1_000, 100) for record in fetched.records]
        reader.close()
        return found


def records(count: int, size: int = 33, first: int = 0) -> list[Outgoing]:
    return [Outgoing(b"%d" % number, b"%0*d" % (size, number), 5) for number in range(first, first + count)]


def once(*written: Sequence[Outgoing]) -> Counter[bytes | None]:
    return Counter(one.value for batch in written for one in batch)


@pytest.mark.parametrize("call", CALLS)
def test_batch_above_a_topics_limit_goes_in_pieces_and_keeps_its_order(place: Place, call: str) -> None:
    name, wide = place.topic(LIMIT, 2), place.topic(None)
    parts = [TopicPartition(name, 0), TopicPartition(name, 1), TopicPartition(wide, 0)]
    batches = {parts[0]: records(2_000), parts[1]: records(3), parts[2]: records(5_000, first=5_000)}
    ends = getattr(place.log.producer(), call)(batches)
    assert ends == {part: len(batch) for part, batch in batches.items()}
    assert [place.values(part, len(batches[part])) for part in parts] == [
        [one.value for one in batches[part]] for part in parts
    ]


@pytest.mark.parametrize("call", CALLS)
def test_limit_that_is_lowered_between_two_commits_costs_no_record_and_doubles_none(place: Place, call: str) -> None:
    small, beside = TopicPartition(place.topic(None), 0), TopicPartition(place.topic(None), 0)
    writer = place.log.producer()
    first, second, third = records(10), records(2_000, first=10), records(1_000, first=3_000)
    getattr(writer, call)({small: first, beside: first})
    producer = writer._transactional
    place.lower(small.topic, LIMIT)
    getattr(writer, call)({small: second, beside: second})
    assert writer._transactional is producer  # the same one, so that this writer fences no newer one
    getattr(writer, call)({small: third, beside: third})
    assert [Counter(place.values(part, 3_010)) for part in (small, beside)] == [once(first, second, third)] * 2


@pytest.mark.parametrize("call", CALLS)
def test_limit_that_may_not_be_read_is_found_by_halves(place: Place, call: str) -> None:
    small, beside = TopicPartition(place.topic(LIMIT, known=False), 0), TopicPartition(place.topic(None), 0)
    writer = place.log.producer()
    first, second = records(2_000), records(2_000, first=2_000)
    getattr(writer, call)({small: first, beside: first})
    getattr(writer, call)({small: second, beside: second})
    assert [Counter(place.values(part, 4_000)) for part in (small, beside)] == [once(first, second)] * 2


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_record_above_the_limit_is_named_itself_and_the_next_write_succeeds(
    place: Place, call: str, known: bool
) -> None:
    small = TopicPartition(place.topic(LIMIT, known=known), 0)
    large = Outgoing(b"large", os.urandom(2 * LIMIT), 5)
    writer: KafkaWriter = place.log.producer()
    with pytest.raises(RecordRefused, match=r"a record of 20005 bytes with key b'large' is larger than the limit"):
        getattr(writer, call)({small: [*records(500), large, *records(500, first=500)]})
    last = records(1_000, first=2_000)
    getattr(writer, call)({small: last})
    found = Counter(place.values(small, 1_000))
    assert large.value not in found and once(last) <= found
    assert call == "append" or found == once(last)
    assert writer.limits.problem(small.topic, large.key, large.value, ()) is not None


def test_largest_record_that_a_topic_takes_is_known_to_the_byte(place: Place) -> None:
    small = TopicPartition(place.topic(LIMIT), 0)
    headers = (("name", b"value"),)
    fits = next(size for size in range(LIMIT, 0, -1) if alone_bytes(b"k", b"x" * size, headers) <= LIMIT)
    writer: KafkaWriter = place.log.producer()
    writer.append({small: [Outgoing(b"k", b"x" * fits, 5, headers)]})
    assert len(place.values(small, 1)) == 1 and alone_bytes(b"k", b"x" * fits, headers) == LIMIT
    beyond = Outgoing(b"k", b"x" * (fits + 1), 5, headers)
    assert writer.limits.problem(small.topic, *beyond[:2], headers) is not None
    with pytest.raises(RecordRefused):
        writer.append({small: [beyond]})


@pytest.mark.parametrize("call", CALLS)
def test_several_megabytes_for_a_limit_that_was_lowered_are_whole(place: Place, call: str) -> None:
    small = TopicPartition(place.topic(None), 0)
    writer = place.log.producer()
    first, second = records(10), records(3_000, size=1_500, first=10)
    getattr(writer, call)({small: first})
    place.lower(small.topic, 300_000)
    getattr(writer, call)({small: second})
    found = Counter(place.values(small, 3_010))
    # At least once, batches behind a refused one may have been taken, and come once more to keep the order.
    assert found == once(first, second) if call == "transact" else found >= once(first, second)


@pytest.mark.parametrize("call", CALLS)
def test_record_above_the_clients_own_limit_is_named_itself(secured: Secured, place: Place, call: str) -> None:
    small = TopicPartition(place.topic(None), 0)
    with pytest.raises(RecordRefused, match="key b'large'"):
        getattr(place.opened("message.max.bytes=5000").producer(), call)(
            {small: [*records(5), Outgoing(b"large", b"x" * 6_000, 5)]}
        )
