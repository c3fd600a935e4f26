"""Instances under a consumer of the application's own: a session, driven as examples/external_consumer.py drives it.

    consume ──> each record: its task, its row, its result ──> commit ──> background work, in steps

The program is `count`: the consumer's group decides who processes, and placement "group" has the standbys.

Rules of this file: public faces of the product alone; the loop is the one of the guide, with the errors that it bears.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import standfast as sf
from simulator.faults import Kind
from simulator.hand import APP
from simulator.instance import LOG_EMPTY, SNAPSHOTS, Broken, Failing, Instance, raise_once
from simulator.log.consumer import SimConsumer
from simulator.programs import COUNTS, IN, OUT, stores_of
from simulator.witness import Witness

RECORDS_MAX = 200  # of a poll
STEPS_MAX = 20  # of background work, between two polls
ASSIGNORS = ("cooperative-sticky", "range")
SESSIONS_MS = (1_500, 3_000, 6_000)
POLLS_MS = (4_000, 10_000, 300_000)
HEARTBEATS_MS = (200, 500)


class Unborne(Exception):
    """The loop of the guide ended with an error of the log, which it is to outlast."""


class Hosted(NamedTuple):
    """What the judges ask of an application."""

    session: sf.Session


class ConsumerInstance(Instance):
    """See the head of this file."""

    _reader: SimConsumer | None = None

    def body(self) -> None:
        """A process, from its start to its clean end."""
        witness = Witness(self._world, self.machine, self._plan, self._log, self._history)
        session = self._session(witness)
        self.app = witness.app = Hosted(session)
        self._reader = consumer = self._consumer(session)
        consumer.subscribe([IN], on_assign=session.on_assign, on_revoke=session.on_revoke, on_lost=session.on_lost)
        try:
            while not self.stopping:
                try:
                    self._turn(session, consumer, witness)
                    self._lives.look()
                except sf.Unavailable as error:
                    raise Unborne(str(error)) from error
            consumer.close()
        except Exception as error:
            self.app = None
            with suppress(Exception):  # the first error says why it ends
                session.close()
            if isinstance(error, sf.ListenerFailed):
                raise Broken(str(error)) from error
            raise
        session.close()
        self.app = None

    def rebalance(self, *, expelled: bool) -> None:
        """As of `Instance`: the coordinator takes the consumer for dead, though it is not."""
        coordinator, now_ms = self._log.coordinator(APP), self._world.monotonic_ms()
        if expelled and self._reader is not None:
            coordinator.leave(self._reader.name, now_ms)
        else:
            coordinator.rebalance(now_ms)

    def _session(self, witness: Witness) -> sf.Session:
        plan = self._plan
        accepts, self.accepts = self.accepts, ()
        return sf.Session(
            APP,
            log=f"sim://{self._log.name}?style={self._log.style}",
            state_dir=self._state_dir,
            stores=stores_of(plan.program),
            placement="group",
            background=False,
            guarantee=plan.guarantee,
            standby_replicas=plan.standbys,
            lease_ms=plan.lease_ms,
            gate=plan.gate,
            clock=self.machine,
            snapshots=SNAPSHOTS if plan.snapshots else None,
            accept_empty_log=LOG_EMPTY in accepts,
            listeners=[witness, self._listener(), Failing(self.machine)],
        )

    def _consumer(self, session: sf.Session) -> SimConsumer:
        draws, machine, actor = self._world.draws, self.machine, self.machine.process
        assert actor is not None
        given: dict[str, Any] = {
            "partition.assignment.strategy": draws.choice(ASSIGNORS, "assignor"),
            "session.timeout.ms": draws.choice(SESSIONS_MS, "session"),
            "max.poll.interval.ms": draws.choice(POLLS_MS, "poll interval"),
            "heartbeat.interval.ms": draws.choice(HEARTBEATS_MS, "heartbeat"),
        }
        settings = session.consumer_settings(given)

        def beats() -> bool:
            return not (actor.ended or actor.done or machine.stands or self._world.now_ms < machine.cut_until_ms)

        return SimConsumer(settings, self._log, clock=machine, calls=self._world, beats=beats)

    def _turn(self, session: sf.Session, consumer: SimConsumer, witness: Witness) -> None:
        offsets: dict[tuple[str, int], int] = {}
        message: Any
        for message in consumer.consume(RECORDS_MAX, self._plan.idle_ms / 1_000):
            with suppress(sf.Fenced, sf.Unavailable):
                self._process(session.task(message), message, witness)
                offsets[message.topic(), message.partition()] = message.offset() + 1
        with suppress(sf.Fenced, sf.Unavailable):
            session.commit(offsets)
        with suppress(sf.Unavailable):
            for _ in range(STEPS_MAX):
                if not session.poll_once():
                    break

    def _process(self, task: Any, message: Any, witness: Witness) -> None:
        raise_once(self.machine, Kind.RAISE)
        key, value, stamp = message.key().decode(), message.value().decode(), message.timestamp()[1]
        partition, number = map(int, value.split("/"))
        counts = task.store(COUNTS)
        before = counts.get(key) or 0
        witness.seen(partition, number, before)
        counts.put(key, before + 1, stamp)
        result = f"{value}/{before + 1}".encode()
        task.send(OUT, message.key(), result, stamp, partitions=self._plan.partitions)
