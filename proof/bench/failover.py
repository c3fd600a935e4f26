"""`make bench BENCHES=failover`: an application process is killed, until its standby has processed a record.

    feeder ── a record every 20 ms ──> source ──> owner ── SIGKILL ····· started again, stands by: the next round
                                             └──> standby: lease run out ──> writer ──> restore ──> first record

    detect     from the kill to the decision to take over: the rest of the lease, and at most one look (100 ms)
    open       opening the writer, which fences the owner, and planning the restore
    restore    the rest of the changelog and the committed offsets, to the state `running`
    process    from there to the first record in the processor's hands

Rules of this file: whole processes, by the public path (App.run), with default settings; the same machine's monotonic
clock in all. It kills only processes that it started.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from bench.feed import fed
from bench.step import Step
from standfast.ops.bench.step import STORE, address_of, bench_store, start
from standfast.replication.leases import renewal_interval_ms
from standfast.replication.listeners import Listener
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.stream.app.app import App
from standfast.stream.record import Record
from standfast.stream.task.settings import LEASE_DEFAULT_MS
from standfast.stream.topology.processor import Context, Processor

Json: TypeAlias = dict[str, Any]
Say: TypeAlias = Callable[..., None]
FAILOVER = "failover"
KEYS = 1_000
WARM_MS = 1_000  # time for a standby to reach the end before the next kill
WAIT_MS, LOOK_MS = 60_000, 100
EARLY_MAX = 10  # take-overs of a whole benchmark that no kill caused
ENDING_MS = 50  # the kernel kills the lease process of a killed one; it may be writing to the log's folder
PARTS = {
    "failover": "from the kill to the standby's first record",
    "detect": "of it: until the lease had run out and the standby decided to take over",
    "open": "of it: opening the writer, planning the restore",
    "restore": "of it: the rest of the changelog, committed offsets",
    "process": "of it: until the first record was processed",
}


# -- one process ------------------------------------------------------------------------------------------------------


class States(Listener):
    """Reports each state of the task, with its time."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        self._say(role=role, state=state, at_ms=SystemClock().monotonic_ms())


def live(step: Step, say: Say) -> None:
    """Run the application until this process is killed; reports with `say` as `States` and `FirstRecord` do."""
    app = App(
        step.app,
        log=address_of(step),
        state_dir=Path(step.folder) / f"failover-{step.run}",
        stores=[bench_store()],
        standby_replicas=1,
        memory_bytes=step.memory_bytes,
        listeners=[States(say)],
        lease_ms=LEASE_DEFAULT_MS if step.lease_ms is None else step.lease_ms,
    )

    @app.source(step.source, key=serde.bytes, value=serde.bytes)
    class FirstRecord(Processor):
        """Keeps each record, and reports the time of the first."""

        def init(self, context: Context) -> None:
            self.store = context.store(STORE)
            self.seen = False

        def process(self, record: Record) -> None:
            if not self.seen:
                self.seen = True
                say(first_ms=SystemClock().monotonic_ms())
            self.store.put(record.key, record.value)

    session = app.open()

    def promoted() -> None:
        last = -1
        while True:
            now = session.counters.promotion_last_ms
            if now != last:
                last = now
                say(promotion_ms=now)
            SystemClock().sleep_ms(5)

    threading.Thread(target=promoted, daemon=True).start()
    app.run()


# -- all of them ------------------------------------------------------------------------------------------------------


class Life:
    """One process of the application, and its lines."""

    def __init__(self, step: Step) -> None:
        self.lines: list[Json] = []
        self._child = start("bench.child", step)

    def wait_for(self, **wanted: object) -> Json:
        """The first line with these values (`...`: any). Raises Unavailable if it does not come."""
        clock = SystemClock()
        until_ms = clock.monotonic_ms() + WAIT_MS
        while True:
            self.lines += self._child.poll(LOOK_MS)
            for line in self.lines:
                if all(name in line and value in (..., line[name]) for name, value in wanted.items()):
                    return line
            ended = self._child.ended
            if ended is not None or clock.monotonic_ms() >= until_ms:
                how = "" if ended is None else f"; it ended with {ended}:\n{ended.words}"
                raise Unavailable(f"a process of the benchmark did not report {wanted}: {self.lines[-3:]}{how}")

    def kill(self) -> int:
        """Send SIGKILL; returns the monotonic time just before."""
        # Before the signal: all parts of a round count from it.
        at_ms = SystemClock().monotonic_ms()
        self.lines += self._child.kill()
        return at_ms


def rounds(step: Step, runs: int, lease_ms: int, tick: Callable[[int], None]) -> list[dict[str, int]]:
    """Kill the owner until `runs` failovers were seen; the parts of each, milliseconds. `tick` is called after each.

    Raises Unavailable if a process does not start, or leases keep running out without a kill.
    """
    source = TopicPartition(step.source, 0)
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(source.topic, 1, TopicPolicy())
    rng, clock = random.Random(1), SystemClock()
    lives: list[Life] = []
    found: list[dict[str, int]] = []
    early = 0
    try:
        with fed(step, [source], KEYS):
            lives.append(Life(replace(step, step=FAILOVER, run=0)))
            lives[-1].wait_for(first_ms=...)
            while len(found) < runs:
                # Two directories in turn: the killed process comes back as the standby of the next round.
                standby = Life(replace(step, step=FAILOVER, run=len(lives) % 2))
                lives.append(standby)
                standby.wait_for(role="standby", state="standby")
                clock.sleep_ms(WARM_MS + rng.randrange(renewal_interval_ms(lease_ms)))  # anywhere between two renewals
                parts = _parts(standby, lives[-2].kill())
                if (
                    parts["detect"] < 0
                ):  # a lease that was not renewed in time on a busy machine: no failover by the kill
                    early += 1
                    if early > EARLY_MAX:
                        raise Unavailable(
                            f"the standby took over before the owner was killed, {early} times: this machine does not "
                            f"renew a lease of {lease_ms} ms in time; give a longer --lease, or repeat it when "
                            "the machine is quiet"
                        )
                    continue
                found.append(parts)
                tick(1)
    finally:
        for life in lives:
            life.kill()
        clock.sleep_ms(ENDING_MS)
    return found


def _parts(standby: Life, killed_ms: int) -> dict[str, int]:
    first_ms = standby.wait_for(first_ms=...)["first_ms"]
    running_ms = standby.wait_for(role="active", state="running")["at_ms"]
    restoring_ms = standby.wait_for(state="restoring")["at_ms"]
    # The promotion's duration is reported, and not the time of the decision.
    decided_ms = running_ms - standby.wait_for(promotion_ms=...)["promotion_ms"]
    return {
        "failover": first_ms - killed_ms,
        "detect": decided_ms - killed_ms,
        "open": restoring_ms - decided_ms,
        "restore": running_ms - restoring_ms,
        "process": first_ms - running_ms,
    }
