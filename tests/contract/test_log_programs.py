"""The same random program of port calls on a real log and on the simulated one: every answer is equal.

    Draws(seed) ──> program: calls, with handles by number ──> Player of the real log      ──┐
                                                           └─> Player of the simulated one ──┴─> equal answers

Rules of this file: an answer is a plain value: records, offsets, views without times, and errors by class. The clocks
of both logs move by the program alone. On Kafka a reader drains, since a broker decides the size of a fetch, and a
question may be asked again for a moment, since markers follow a commit; each program has topics and groups of its own.
`LOG_PROGRAMS=2000` sets the number of programs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simulator.calls import DirectCalls
from simulator.draws import Draws
from simulator.log import SimLog, SimLogClient
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.leases import Busy
from standfast.replication.log import Committed, Fetched, GroupCommit, GroupView, Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.errors import StandfastError, StateLost

BEGIN_MS = 1_356_998_400_000
STEPS = 60
STEP_MS = 30_000  # leases and pauses are multiples: a program on a broker takes seconds, by which old leases age
SOON_S = 10.0
PROGRAMS = int(os.environ.get("LOG_PROGRAMS", "0"))
KAFKA_PROGRAMS, KAFKA_FEW = PROGRAMS or 40, 6

Op = tuple[Any, ...]


class Drawn:
    """A program of one seed: each call with its arguments, drawn by the number of the step."""

    def __init__(self, seed: int, *, kafka: bool) -> None:
        self._draws = Draws(seed)
        self._kafka = kafka
        self._asked = 0

    def below(self, limit: int) -> int:
        self._asked += 1
        return self._draws.below(limit, self._asked)

    def choice(self, *items: Any) -> Any:
        return items[self.below(len(items))]

    def some(self, *items: Any) -> list[Any]:
        return [item for item in items if self.below(2)]

    def source(self) -> tuple[str, int]:
        return self.choice("one", "one", "one", "kept", "kept"), min(self.below(24), 23) // 11

    def sources(self) -> list[tuple[str, int]]:
        return list(dict.fromkeys(self.source() for _ in range(1 + self.below(3))))

    def records(self) -> list[Any]:
        if not self.below(60):
            return [self.choice((None, b"no key", 7), (b"k", "text", 7), (b"k", b"v", -1), (b"k", b"v"))]
        found = []
        for _ in range(self.below(6)):
            self._asked += 1
            value = self.choice(b"%d" % self._asked, b"%d" % self._asked, b"", None)
            headers = self.choice((), (), (), (("h", b"1"), ("n", None)))
            found.append(Outgoing(b"k%d" % self.below(5), value, 1 + self.below(9) * 1_000, headers))
        return found

    def batches(self) -> dict[tuple[str, int], list[Any]]:
        found = {source: self.records() for source in self.sources()}
        refused = [source for source, batch in found.items() if batch and batch[0][0] is None]
        # How many records of other partitions a broker has by the time at which it refuses one differs from run to run.
        return {source: found[source] for source in refused[:1]} if self._kafka and refused else found

    def offsets(self) -> dict[tuple[str, int], Committed]:
        return {at: Committed(self.below(20) if self.below(20) else -1, self.choice("", "m")) for at in self.sources()}

    def positions(self) -> dict[tuple[str, int], int]:
        return {source: self.choice(0, 0, 0, self.below(12)) for source in self.sources()}

    def writing(self) -> Op:
        kind = self.choice(*("append",) * 4, *("transact",) * 4, "open", "open", "producer")
        if kind == "append":
            return kind, self.below(9), self.batches()
        if kind == "transact":
            return kind, self.below(9), self.batches(), self.choice(None, (self.group(), self.offsets()))
        if kind == "open":
            return kind, self.below(2), self.group(), f"task-{self.below(3)}", self.member(), bool(self.below(2))
        return kind, self.below(2)

    def reading(self) -> Op:
        kind = self.choice("fetch", "fetch", "fetch", "fetch", "assign", "add", "remove", "seek", "pause", "resume")
        reader = self.below(2)
        if kind == "fetch":
            return kind, reader, self.choice(1, 2, 3, 5, 8, 100)
        if kind in ("assign", "add"):
            return kind, reader, self.positions()
        if kind == "seek":
            return kind, reader, self.source(), self.choice(0, 1, self.below(9))
        return kind, reader, self.sources()

    def grouping(self) -> Op:
        kind = self.choice(
            *("join", "join", "heartbeat", "heartbeat", "leave", "view", "owners", "note", "notes"), "pass"
        )
        kind = self.choice(kind, kind, "committed", "commit")
        client, group = self.below(2), self.group()
        if kind == "join":
            return kind, client, group, self.member(), self.choice("", "text"), (1 + self.below(3)) * STEP_MS
        if kind == "heartbeat":
            lease_ms = self.choice(None, None, (1 + self.below(3)) * STEP_MS)
            return kind, client, group, self.member(), lease_ms, self.choice(Busy(), Busy(), Busy(7, (0, 9)))
        if kind == "leave":
            return kind, client, group, self.member()
        if kind == "note":
            notes = {("claim", f"n{self.below(2)}"): self.choice(None, "one", "two") for _ in range(self.below(3))}
            return kind, client, group, notes
        if kind == "committed":
            return kind, client, group, self.choice(None, self.sources())
        if kind == "commit":
            return kind, client, group, self.offsets(), self.choice(None, None, self.below(9))
        return ("pass", self.below(3)) if kind == "pass" else (kind, client, group)

    def caring(self) -> Op:
        kind = self.choice("bounds", "bounds", "bounds", "written", "first", "truncate", "describe", "groups_", "grow")
        if not self._kafka:
            kind = self.choice(*(kind,) * 5, "care", "care", "compact", "epochs", "epochs", "recreate", "policy")
        if kind in ("bounds", "written"):
            return kind, self.sources()
        if kind == "epochs":
            return kind, self.sources(), self.below(12)
        if kind == "first":
            return kind, {source: self.below(10) * 1_000 for source in self.sources()}
        if kind == "truncate":
            return kind, {source: self.choice(0, self.below(6), self.below(20)) for source in self.sources()}
        if kind == "care":
            return kind, self.choice(0, 0, STEP_MS, 1_800_000)
        if kind == "grow":
            return kind, "one", self.choice(1, 2, 2, 3)
        if kind == "policy":
            return kind, self.choice("one", "kept"), self.choice({"retention.ms": "3600000"}, {"retention.ms": "-7"})
        return (kind, self.choice("one", "kept")) if kind in ("describe", "recreate") else (kind,)

    def group(self) -> str:
        return "app" if self.below(4) else "other"

    def member(self) -> str:
        return f"m{self.below(2)}"

    def program(self) -> Iterator[Op]:
        yield from (("producer", 0), ("assign", 0, {("one", 0): 0, ("one", 1): 0, ("kept", 0): 0}))
        for _ in range(STEPS):
            yield self.choice(*(self.writing,) * 3, *(self.reading, self.grouping) * 2, self.caring)()


class Player:
    """Carries a program out on two clients of one log, and gives its answers as plain values."""

    def __init__(self, logs: list[Any], clock: ManualClock, prefix: str, *, kafka: bool) -> None:
        self.logs, self._clock, self._prefix, self._kafka = logs, clock, prefix, kafka
        # After a compaction the embedded log reads by the rest of its blocks: a fetch may bring less than it could.
        self._drains = kafka
        self._tags: dict[str, int] = {}  # tags are random: they are compared by when they came
        # The cleaner of a broker would come whenever it wants.
        kept = TopicPolicy(frozenset({"compact"}), -1, 3_600_000, 10**15 if kafka else 0)
        for name, policy in (("one", TopicPolicy()), ("kept", kept)):
            logs[0].admin.create_topic(prefix + name, 2, policy)
        self._groups = [{name: log.group(prefix + name) for name in ("app", "other")} for log in logs]
        self._writers: list[Any] = []
        self.readers = [log.reader() for log in logs]
        self._asker = logs[0].reader()
        for groups in self._groups:
            for group in groups.values():
                group.view()

    def play(self, op: Op) -> Any:
        """The answer to a call."""
        try:
            return getattr(self, f"_{op[0]}")(*op[1:])
        except StandfastError as error:
            kind = type(error).__name__
            return (kind, error.reason) if isinstance(error, StateLost) else kind

    def _at(self, source: tuple[str, int]) -> TopicPartition:
        return TopicPartition(self._prefix + source[0], source[1])

    def _by(self, given: dict[tuple[str, int], Any]) -> dict[TopicPartition, Any]:
        return {self._at(source): value for source, value in given.items()}

    def _plain(self, found: dict[TopicPartition, Any]) -> dict[str, Any]:
        return {str(source).removeprefix(self._prefix): value for source, value in sorted(found.items())}

    # -- writers

    def _append(self, writer: int, batches: dict[tuple[str, int], Any]) -> Any:
        return self._plain(self._writers[writer % len(self._writers)].append(self._by(batches)))

    def _transact(self, writer: int, batches: dict[tuple[str, int], Any], commit: Any) -> Any:
        given = None if commit is None else GroupCommit(self._prefix + commit[0], self._by(commit[1]))
        return self._plain(self._writers[writer % len(self._writers)].transact(self._by(batches), given))

    def _open(self, client: int, group: str, name: str, owner: str, if_free: bool) -> Any:
        log, prefix = self.logs[client], self._prefix
        made = log.writer(f"{prefix}{group}-{name}", group=prefix + group, owner=owner, if_free=if_free)
        self._writers.append(made)
        return made.epoch

    def _producer(self, client: int) -> Any:
        self._writers.append(self.logs[client].producer())
        return self._writers[-1].epoch

    # -- readers

    def _assign(self, reader: int, positions: dict[tuple[str, int], int]) -> Any:
        self.readers[reader].assign(self._by(positions))
        return self._plain(dict(self.readers[reader].assignment()))

    def _add(self, reader: int, positions: dict[tuple[str, int], int]) -> Any:
        self.readers[reader].add(self._by(positions))
        return self._plain(dict(self.readers[reader].assignment()))

    def _remove(self, reader: int, sources: Iterable[tuple[str, int]]) -> None:
        self.readers[reader].remove(map(self._at, sources))

    def _seek(self, reader: int, source: tuple[str, int], offset: int) -> None:
        self.readers[reader].seek(self._at(source), offset)

    def _pause(self, reader: int, sources: Iterable[tuple[str, int]]) -> None:
        self.readers[reader].pause(map(self._at, sources))

    def _resume(self, reader: int, sources: Iterable[tuple[str, int]]) -> None:
        self.readers[reader].resume(map(self._at, sources))

    def _fetch(self, reader: int, most: int) -> Any:
        if self._drains:
            return self._drain(reader, most, lambda positions: True)
        return [
            (str(one.source), list(one.records), one.next_offset, one.at_end)
            for one in self.readers[reader].fetch(most)
        ]

    def _drain(self, reader: int, most: int, done: Callable[[Any], bool]) -> Any:
        """Records by partition, to the end, and then the positions; a reader that met an error is emptied."""
        records: dict[TopicPartition, list[Any]] = {}
        deadline = time.monotonic() + SOON_S
        try:
            while True:
                found: list[Fetched] = self.readers[reader].fetch(most)
                for one in found:
                    records.setdefault(one.source, []).extend(one.records)
                positions = self._plain(dict(self.readers[reader].assignment()))
                if not found and (done(positions) or time.monotonic() > deadline):
                    return self._plain({at: some for at, some in records.items() if some}), positions
        except StandfastError:
            self.readers[reader].assign({})
            raise

    # -- groups

    def _view(self, client: int, group: str) -> Any:
        return plain_view(self._groups[client][group].view())

    def _join(self, client: int, group: str, member: str, metadata: str, lease_ms: int) -> Any:
        return plain_view(self._groups[client][group].join(member, metadata, lease_ms=lease_ms))

    def _heartbeat(self, client: int, group: str, member: str, lease_ms: int | None, busy: Busy) -> Any:
        return plain_view(self._groups[client][group].heartbeat(member, lease_ms=lease_ms, busy=busy))

    def _leave(self, client: int, group: str, member: str) -> None:
        self._groups[client][group].leave(member)

    def _owners(self, client: int, group: str) -> Any:
        return {name.removeprefix(self._prefix): owner for name, owner in self._groups[client][group].owners().items()}

    def _note(self, client: int, group: str, notes: dict[tuple[str, str], str | None]) -> None:
        self._groups[client][group].note(notes)

    def _notes(self, client: int, group: str) -> Any:
        return {key: note.text for key, note in sorted(self._groups[client][group].notes().items())}

    def _committed(self, client: int, group: str, sources: Any) -> Any:
        wanted = None if sources is None else [self._at(source) for source in sources]
        return self._plain(
            self._groups[client][group].committed(wanted, only=lambda at: at[0].startswith(self._prefix))
        )

    def _commit(self, client: int, group: str, offsets: dict[tuple[str, int], Any], writer: int | None) -> None:
        claim = None if writer is None else self._writers[writer % len(self._writers)].claim
        self._groups[client][group].commit(self._by(offsets), None, claim)

    def _pass(self, steps: int) -> None:
        for groups in self._groups:
            for group in groups.values():
                group.view()  # of Kafka: a lease runs from the moment at which a client reads of it
        self._clock.advance(steps * STEP_MS)

    # -- topics

    def _bounds(self, sources: Iterable[tuple[str, int]]) -> Any:
        return self._plain(self._asker.bounds(map(self._at, sources)))

    def _written(self, sources: Iterable[tuple[str, int]]) -> Any:
        return self._plain(self._asker.written_ends(map(self._at, sources)))

    def _first(self, times: dict[tuple[str, int], int]) -> Any:
        return self._plain(self.logs[0].admin.first_offsets(self._by(times)))

    def _truncate(self, before: dict[tuple[str, int], int]) -> None:
        if self._kafka:  # its readers hold records that they have fetched ahead
            for reader in self.readers:
                reader.assign({})
        self.logs[0].admin.delete_records(self._by(before))

    def _describe(self, name: str) -> Any:
        info = self.logs[0].admin.describe_topic(self._prefix + name)
        return None if info is None else (info.partitions, info.policy)

    def _grow(self, name: str, partitions: int) -> Any:
        return self.logs[0].admin.add_partitions(self._prefix + name, partitions).partitions

    def _policy(self, name: str, settings: dict[str, str]) -> Any:
        return self.logs[0].admin.change_topic(self._prefix + name, settings).policy

    def _groups_(self) -> Any:
        return [name for name in self.logs[0].admin.groups() if name.startswith(self._prefix)]

    def _recreate(self, name: str) -> None:
        info = self.logs[0].admin.describe_topic(self._prefix + name)
        self.logs[0].admin.delete_topic(self._prefix + name)
        self.logs[0].admin.create_topic(self._prefix + name, info.partitions, info.policy)

    def _care(self, pause_ms: int) -> None:
        self._clock.advance(pause_ms)
        self._drains = True
        self.logs[0].care(self._clock.wall_ms())

    def _compact(self) -> None:
        """All older records of keys, now."""
        log, self._drains = self.logs[0], True
        if isinstance(log, EmbeddedLog):
            log.compact(self._prefix + "kept", self._clock.wall_ms())
        else:
            for one in log.log.topics[self._prefix + "kept"].partitions:
                one.compact(self._clock.wall_ms(), dedupe=True)
            log.log.version += 1

    def _epochs(self, sources: Iterable[tuple[str, int]], before: int) -> Any:
        """Tags before an offset, by when they first came, and the ends of their epochs."""
        tags = self._asker.epoch_tags({self._at(source): before for source in sources})
        ends = self._asker.epoch_ends(tags)
        return self._plain(
            {at: (self._tags.setdefault(tag, len(self._tags)), ends[at]) for at, tag in sorted(tags.items())}
        )


def plain_view(view: GroupView) -> Any:
    """A view with its kind, and with its busy members as a plain dictionary."""
    return type(view).__name__, view.generation, view.leader, view.members, dict(view.busy)


class BrokerAway(Exception):
    """The broker did not answer in time, on a machine that is too busy: the program says nothing."""


class Pair(NamedTuple):
    real: Player
    simulated: Player


def compare(seed: int, pair: Pair, *, kafka: bool) -> None:
    """Play the program of a seed on both."""
    played: list[Op] = []
    cut: set[tuple[str, int]] = set()

    def both(op: Op) -> None:
        played.append(op)
        expected = pair.simulated.play(op)
        found = soon(pair.real, op, expected) if kafka else pair.real.play(op)
        if kafka and found in ("Unavailable", "CommitUnknown"):
            raise BrokerAway(f"seed {seed}: {found} at {op}")
        story = "\n".join(f"{number:3} {one}" for number, one in enumerate(played))
        assert found == expected, f"seed {seed}, real {found!r}, simulated {expected!r}\n{story}"

    for op in Drawn(seed, kafka=kafka).program():
        if kafka and op[0] == "truncate":
            cut.update(op[1])
        if kafka and op[0] == "first":
            # A broker's search ends with the segment of the begin, where removed records of that time hide later ones.
            op = ("first", {source: time_ms for source, time_ms in op[1].items() if source not in cut})
        both(op)
        if kafka and op[0] in ("append", "transact", "open"):
            both(("written", EVERY))  # a marker that comes later than the next record has another offset
        if kafka and op[0] in ("assign", "add", "seek"):
            both(("fetch", op[1], 100))  # before the log grows over a position that was beyond its end


EVERY = [(name, number) for name in ("one", "kept") for number in (0, 1)]
ASKS = frozenset({"bounds", "written", "first", "committed", "view", "owners", "notes", "groups_", "describe"})


def soon(player: Player, op: Op, expected: Any) -> Any:
    """The real answer, asked again for a moment where the log may still be on its way to the expected one."""
    deadline = time.monotonic() + SOON_S
    if op[0] == "fetch" and isinstance(expected, tuple) and isinstance(expected[-1], dict):
        return player.play(("drain", op[1], 100, lambda positions: positions == expected[1]))
    while True:
        found = player.play(op)
        again = op[0] in ASKS or (op[0] == "fetch" and not isinstance(found, str))
        if found == expected or not again or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def simulated(prefix: str, style: str) -> Player:
    clock = ManualClock(BEGIN_MS)
    world = SimLog("programs", clock, DirectCalls(clock), style=style)
    return Player([SimLogClient(world), SimLogClient(world)], clock, prefix, kafka=style == "kafka")


def embedded_program(seed: int, folder: Path) -> None:
    clock = ManualClock(BEGIN_MS)
    path = folder / f"{seed}.sqlite"
    logs: list[Log] = [EmbeddedLog(path, clock=clock, synchronous="normal") for _ in range(2)]
    try:
        compare(seed, Pair(Player(logs, clock, "", kafka=False), simulated("", "embedded")), kafka=False)
    finally:
        for log in logs:
            log.close()
    path.unlink()


def kafka_program(seed: int, address: str) -> None:
    clock, prefix = ManualClock(BEGIN_MS), f"p{time.time_ns()}-"
    logs = [KafkaLog(f"kafka://{address}?timeout.ms=60000", clock=clock) for _ in range(2)]
    try:
        compare(seed, Pair(Player(logs, clock, prefix, kafka=True), simulated(prefix, "kafka")), kafka=True)
    finally:
        for log in logs:
            log.close()


@pytest.mark.parametrize("seed", range(PROGRAMS or 60))
def test_program_has_equal_answers_on_the_embedded_log_and_the_simulated_one(seed: int, tmp_path: Path) -> None:
    embedded_program(seed, tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(one, marks=pytest.mark.long) if one >= KAFKA_FEW else one for one in range(KAFKA_PROGRAMS)]
)
def test_program_has_equal_answers_on_a_broker_and_the_simulated_log(seed: int, kafka_address: str) -> None:
    try:
        kafka_program(seed, kafka_address)
    except BrokerAway:
        kafka_program(seed, kafka_address)
