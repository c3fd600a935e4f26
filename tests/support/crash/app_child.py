"""A process to be killed: a whole application on the embedded log, with one state directory.

    clicks (2) ──> hopping windows, updates ──> updates           task group 0, event time, late and dead letters
          │   ├──> tumbling windows, on close ──> finals
          │   ├──> sessions, updates ──> visits
          │   ├──> Watcher: timers per key, stream-time punctuation ──> alarms
          │   └──> by place ──> ...-places-repartition ──> counts ──> totals                  group 1
          │                                         └────> Board: timers at window ends ──> boards
    orders (1) ──> by place ──> ...-orders-repartition ──> tumbling windows, on close ──> order-finals     groups 2, 3
                                                    └────> sessions, on close ──> order-sessions

    stdout     ready              every task with stores is here, running or standing by
               lost TASK REASON   state was set aside: correct only where a file was damaged
               kept PARTITION OFFSET,...   a commit with these clicks has returned; each left a row in `notes`
    exit       0 after SIGTERM; any other end but the kill is a failure (the reason is on stderr)

Besides the failpoints of the library a `strike` (place, times, how) of the settings ends the process (kill), or fails
the task once (raise), inside the application's own code:

    add      before a value is added to an aggregate: in the middle of the windows of one record
    emit     a held-back update goes downstream: in the middle of a flush
    final    a final result goes downstream: in the middle of the results that one record closes
    timer    inside a timer of the Watcher, something written
    board    inside a timer of the Board, something written
    tick     inside the punctuation, something written

Rules of this file: processing of a record depends on the record and the state only. The punctuation notes the boundary
that it has done: a schedule restarts with each life, and then fires once more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.replay import restorer
from standfast.stream.runtime import loop
from standfast.stream.task import purge
from support.crash.options import use

APP = "crashapp"
TASKS = 7
STATELESS = 2  # the group of one task without stores, which has no standby
TOPICS = {
    "clicks": 2, "orders": 1, "updates": 2, "finals": 2, "visits": 2, "alarms": 2, "late": 2, "dead": 2, "totals": 2,
    "boards": 2, "order-finals": 2, "order-sessions": 2,
}  # fmt: skip
INPUTS = ("clicks", "orders")
INTERNAL = {f"{APP}-places-repartition": 2, f"{APP}-orders-repartition": 2}
DISORDER_MS = 20_000
HOP = sf.HoppingWindows(60_000, 20_000, 5_000)
TUMBLE = sf.TumblingWindows(30_000, 10_000)
VISIT = sf.SessionWindows(8_000, 15_000)
TOTAL = sf.TumblingWindows(60_000, 100_000_000)  # grace for any order of the records of two upstream tasks
BOARD_MS = 45_000
ORDER = sf.TumblingWindows(30_000, 5_000)
ORDER_VISIT = sf.SessionWindows(6_000, 5_000)
SILENCE_MS = 15_000
REMIND_MS = 40_000
TICK_MS = 25_000
RETIRE_MS = 60_000
BOUNDARY = "#boundary"
RETENTION_MS = 150_000
LIFE_MAX_S = 90  # an orphan ends by itself
MEMORY_BYTES = 32 << 20


@dataclass
class Strike:
    """The place where the application's own code ends the process, or fails its task."""

    place: str = ""
    times: int = 0
    how: str = "kill"

    def reach(self, place: str) -> None:
        if place != self.place:
            return
        self.times -= 1
        if self.times == 0:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print("failed", flush=True)
            raise sf.InternalError(f"struck at {place}")  # no on_error skips this error


NO_STRIKE = Strike()


Noted = dict[str, list[int]]  # offsets of clicks by task, since its last commit
NOTES = "notes"


class Teller(Listener):
    """Reports that every task is here, that state was lost, and which clicks are in the store without a changelog."""

    def __init__(self, noted: Noted) -> None:
        self.here: set[TaskId] = set()
        self.noted = noted

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        if offsets := self.noted.pop(str(task), []):
            say(f"kept {task.partition} {','.join(map(str, offsets))}")

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        self.noted.pop(str(task), None)  # opened, or failed: uncommitted clicks are forgotten
        if state in ("running", "standby") and task not in self.here:
            self.here.add(task)
            if len([one for one in list(self.here) if one.group != STATELESS]) == TASKS - 1:  # another thread may add
                say("ready")

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        say(f"lost {task} {reason}")


def stores_of(settings: Mapping[str, Any]) -> list[Any]:
    """Stores in memory come back from their changelog only, so not every run has them."""
    text, json_serde = sf.serde.string, sf.serde.json
    volatile: Any = "memory" if settings["volatile"] else "rocksdb"
    visit_ms = max(RETENTION_MS, ORDER_VISIT.retention_safe_ms)
    return [
        sf.WindowStore("hops", text, json_serde, window_size_ms=HOP.size_ms, retention_ms=RETENTION_MS),
        sf.WindowStore("tumbles", text, json_serde, window_size_ms=TUMBLE.size_ms, retention_ms=RETENTION_MS),
        sf.SessionStore("sessions", text, json_serde, retention_ms=RETENTION_MS),
        sf.KeyValueStore("seen", text, json_serde),
        sf.WindowStore(
            "totals",
            text,
            json_serde,
            window_size_ms=TOTAL.size_ms,
            retention_ms=TOTAL.retention_safe_ms,
            engine=volatile,
        ),
        sf.KeyValueStore("board", text, json_serde),
        sf.WindowStore("order-windows", text, json_serde, window_size_ms=ORDER.size_ms, retention_ms=RETENTION_MS),
        sf.SessionStore("order-visits", text, json_serde, retention_ms=visit_ms, engine=volatile),
        *([sf.KeyValueStore(NOTES, text, json_serde, logging=False)] if settings["unlogged"] else []),
    ]


def make_watcher(strike: Strike, noted: Noted | None) -> type[sf.Processor]:
    class Watcher(sf.Processor):
        """An alarm for a silent key, a reminder, and keys retired by stream time."""

        stores = ("seen",) if noted is None else ("seen", NOTES)

        def init(self, context: sf.Context) -> None:
            self.context = context
            self.seen = context.store("seen")
            self.notes = None if noted is None else context.store(NOTES)
            context.schedule(TICK_MS, sf.STREAM_TIME, self.tick)

        def process(self, record: sf.Record) -> None:
            key, stamp = record.key, record.timestamp
            last, count, due = self.seen.get(key) or (-1, 0, -1)
            last = max(last, stamp)
            if due >= 0:
                self.context.cancel_timer(key, due)
            self.context.timer(key, last + SILENCE_MS)
            if record.value["n"] % 3 == 0:
                self.context.timer(key, stamp + REMIND_MS)
            self.seen.put(key, [last, count + 1, last + SILENCE_MS], stamp)
            if record.value.get("bad"):
                raise ValueError("a bad record, found out late")
            if noted is not None and self.notes is not None:
                self.notes.put(str(self.context.offset), record.value["n"], stamp)
                noted.setdefault(self.context.task_id, []).append(self.context.offset)

        def on_timer(self, timer: sf.Timer) -> None:
            last, count, due = self.seen.get(timer.key) or (-1, 0, -1)
            if due == timer.time:
                self.seen.put(timer.key, [last, count, -1], timer.time)
            strike.reach("timer")
            if timer.time % 7 == 0:
                self.context.timer(timer.key, timer.time + 1_000)  # perhaps due in this very step
            self.forward(timer.key, {"alarm": timer.time, "count": count}, timer.time)

        def tick(self, now_ms: int) -> None:
            boundary = now_ms // TICK_MS * TICK_MS
            if boundary <= (self.seen.get(BOUNDARY) or [-1])[0]:
                return
            self.seen.put(BOUNDARY, [boundary], boundary)
            strike.reach("tick")
            with self.seen.all() as found:
                rows = [(key, row) for key, row in found if key != BOUNDARY and row[0] < boundary - RETIRE_MS]
            for key, (_, count, due) in rows:
                self.seen.delete(key)
                if due >= 0:
                    self.context.cancel_timer(key, due)
                self.forward(key, {"retired": boundary, "count": count}, boundary)

        def forward(self, key: str, value: Any, stamp: int) -> None:
            self.context.forward(sf.Record(key, value, stamp, (("by", b"watcher"),)))

    return Watcher


def make_board(strike: Strike) -> type[sf.Processor]:
    class Board(sf.Processor):
        """Count and sum per place and window, forwarded by a timer once the watermark has passed the window."""

        stores = ("board",)

        def init(self, context: sf.Context) -> None:
            self.context = context
            self.board = context.store("board")

        def process(self, record: sf.Record) -> None:
            end = (record.timestamp // BOARD_MS + 1) * BOARD_MS
            row_key = f"{record.key}|{end}"
            count, total = self.board.get(row_key) or (0, 0)
            self.board.put(row_key, [count + 1, total + record.value["n"]], end)
            self.context.timer(record.key, end - 1)

        def on_timer(self, timer: sf.Timer) -> None:
            row = self.board.delete(f"{timer.key}|{timer.time + 1}")
            strike.reach("board")
            self.context.forward(sf.Record(timer.key, row, timer.time, (("by", b"board"),)))

    return Board


def nothing() -> list[int]:
    return [0, 0, -1]


def merge(_key: str, one: list[int], other: list[int]) -> list[int]:
    return [one[0] + other[0], one[1] + other[1], max(one[2], other[2])]


def make_app(
    settings: Mapping[str, Any],
    strike: Strike = NO_STRIKE,
    listener: Listener | None = None,
    noted: Noted | None = None,
) -> sf.App:
    """The application of every process of a run, the looking one included."""
    noted = {} if noted is None else noted

    def add(_key: str, value: Any, aggregate: list[int]) -> list[int]:
        strike.reach("add")
        return [aggregate[0] + 1, aggregate[1] + value["n"], value["n"]]

    def reach(place: str) -> Any:
        return lambda _key, _value: strike.reach(place)

    app = sf.App(
        APP,
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=stores_of(settings),
        guarantee=settings["guarantee"],
        standby_replicas=settings["standbys"],
        accept_unreadable_rows=settings["accept"],
        accept_empty_log=settings["accept"],
        lease_ms=settings["lease_ms"],
        restart_grace_ms=settings["grace_ms"],
        max_stall_ms=settings["max_stall_ms"],
        cache_max_bytes=settings["cache_max_bytes"],
        commit_interval_ms=settings["commit_interval_ms"],
        watermark_interval_ms=0,
        memory_bytes=MEMORY_BYTES,
        restart=sf.FixedDelay(attempts=3, delay_ms=50),
        listeners=[] if listener is None else [listener],
    )
    clicks = app.stream(
        "clicks",
        watermarks=lambda: sf.BoundedDisorder(DISORDER_MS),
        late="late",
        on_error="dead_letter",
        dead_letter="dead",
    )
    by_key = clicks.group_by_key()
    by_key.window(HOP).aggregate(nothing, add, "hops").peek(reach("emit")).to("updates")
    by_key.window(TUMBLE).aggregate(nothing, add, "tumbles", emit=sf.ON_WINDOW_CLOSE).peek(reach("final")).to("finals")
    by_key.window(VISIT).aggregate(nothing, add, "sessions", merge=merge).peek(reach("emit")).to("visits")
    places = clicks.select_key(lambda _key, value: value["place"]).repartition("places")
    clicks.process(make_watcher(strike, noted if settings["unlogged"] else None), name="watcher").to(
        "alarms"
    )  # last, so that a bad record has passed every other processor
    places.group_by_key().window(TOTAL).count("totals").peek(reach("emit")).to("totals")
    places.process(make_board(strike), name="watch-board").to("boards", key=sf.serde.string)
    orders = app.stream("orders").select_key(lambda _key, value: value["place"]).repartition("orders", partitions=2)
    of_place = orders.group_by_key()
    closing: Any = {"emit": sf.ON_WINDOW_CLOSE}
    of_place.window(ORDER).aggregate(nothing, add, "order-windows", **closing).peek(reach("final")).to("order-finals")
    of_place.window(ORDER_VISIT).aggregate(nothing, add, "order-visits", merge=merge, **closing).to("order-sessions")
    return app


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    loop.RECORDS_PER_TURN = settings["turn_records"]
    purge.PURGE_INTERVAL_MS = settings["purge_interval_ms"]
    restorer.BATCH_RECORDS_MAX = settings["restore_records"]
    noted: Noted = {}
    make_app(settings, Strike(**settings["strike"]), Teller(noted), noted).run()


if __name__ == "__main__":
    use()
    main()
