"""How the public calls of applications, their test driver, producers and replicas are made under attack.

    PROGRAMS    calls on the stage of sessions: an application and a replica of their own, on the stage's log
    DRIVEN      calls of the test driver, and of a processor within `driver.pipe`, on a stage of their own

Rules of this file: an application ends its run itself, at a record that says so. Its output has each record once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock
from support.attacks.calls import Entry, refused
from support.attacks.stage import Noisy, Rows, Stage, difference
from support.sessions import START_MS, four_stores

TEXT = sf.serde.string
LAST = "last"
IN, DONE, SENT = (TopicPartition(topic, 0) for topic in ("in", "done", "sent"))  # the last is the producers'


def _app(stage: Stage, **settings: Any) -> sf.App:
    """An application that passes its records on, and ends its run at the last."""
    for at in (IN, DONE, SENT):
        stage.log.admin.create_topic(at.topic, 1, TopicPolicy())
    app = sf.App(
        "other",
        log=stage.bench.address,
        state_dir=stage.root / "other-app",
        listeners=[stage.noisy],
        placement="static",
        commit_interval_ms=10,
        restore_workers=0,
        **settings,
    )

    def seen(key: str, value: str) -> bool:
        if key == LAST:
            app.stop()
        return True

    app.stream("in", key=TEXT, value=TEXT).filter(seen).to("done")
    return app


def _open(app: sf.App) -> sf.Session:
    session = app.open()
    try:
        session.assign(active=[0])
    except BaseException:
        session.close()
        raise
    return session


def _opened(use: Callable[[sf.App], object] = lambda app: None) -> Entry:
    """A call on an application that is open."""

    def call(stage: Stage, n: int) -> None:
        app = _app(stage)
        with closing(app.open()):
            use(app)

    return Entry(call)


def _polled(stage: Stage, n: int) -> None:
    """A round of an application without threads, and its end."""
    app = _app(stage)
    try:
        app.open(background=False).assign(active=[0])
        app.poll_once()
    finally:
        app.close()


def _declared(use: Callable[[sf.App], object]) -> Entry:
    """A call on an application that is only declared."""
    return Entry(lambda stage, n: use(_app(stage)))


def _run(stage: Stage, n: int) -> None:
    app = _app(stage)
    number = _count(stage, IN)
    stage.log.producer().append(
        {IN: [Outgoing(key, b"%d" % (number + at), START_MS) for at, key in enumerate((b"k", b"k", b"last"))]}
    )
    _open(app)
    app.run()


def _ran(stage: Stage) -> None:
    """Another run ends, and each record is in the output once."""
    _run(stage, 0)
    # Not numbers from 0: two runs at once may have counted the same records before they wrote theirs.
    assert _values(stage, DONE) == _values(stage, IN)


def _values(stage: Stage, at: TopicPartition) -> list[bytes | None]:
    with closing(stage.log.reader()) as reader:
        reader.assign({at: 0})
        return [record.value for batch in reader.fetch(1_000) for record in batch.records]


def _count(stage: Stage, at: TopicPartition) -> int:
    return len(_values(stage, at))


def _produced(use: Callable[[Any, int], object] = lambda producer, n: None) -> Entry:
    """A call on a producer of an application. Once it returned, the record is in the log."""

    def call(stage: Stage, n: int) -> None:
        with _app(stage).producer() as producer:
            use(producer, n)
            producer.send("sent", "k", f"sent{n}", START_MS)
        assert b'"sent%d"' % n in _values(stage, SENT)

    return Entry(call)


def _replica(use: Callable[[sf.Replica], object]) -> Entry:
    def call(stage: Stage, n: int) -> object:
        where = stage.root / f"replica{n}"
        given: dict[str, Any] = {"log": stage.bench.address, "state_dir": where, "stores": four_stores()}
        with sf.Replica("app", clock=stage.bench.clock, background=False, **given) as replica:
            return use(replica)

    return Entry(call)


def _read_replica(replica: sf.Replica) -> None:
    replica.wait_ready(5)
    rows = dict(replica.read("kv", 0).store.all())
    assert {"a", "b"} <= rows.keys()


class Passing(sf.Processor):
    def process(self, record: sf.Record) -> None: ...


PROGRAMS: dict[str, Entry] = {
    "App": _declared(lambda app: None),
    "App.assemble": _declared(lambda app: app.assemble()),
    "App.close": Entry(_polled),
    "App.configure": _declared(lambda app: app.configure({"commit_interval_ms": 20})),
    "App.make_loop": _opened(lambda app: app.make_loop(app.open(), app.assemble())),
    "App.open": _opened(),
    "App.open_session": _opened(),
    "App.pause": _opened(lambda app: app.pause()),
    "App.places": _declared(lambda app: app.places()),
    "App.poll_once": Entry(_polled),
    "App.producer": _produced(),
    "App.resume": _opened(lambda app: app.resume()),
    "App.run": Entry(_run, after=_ran),
    "App.runner_settings": _opened(lambda app: app.runner_settings(app.assemble(), app.clock)),
    "App.sink": _declared(lambda app: app.sink("done")),
    "App.source": _declared(lambda app: app.source("more", key=TEXT, value=TEXT)(Passing)),
    "App.stop": Entry(_run, after=_ran),
    "App.stream": _declared(lambda app: app.stream("more")),
    "App.table": _declared(lambda app: app.table("more")),
    "App.topology": _declared(lambda app: app.topology()),
    "Producer.__enter__": _produced(),
    "Producer.__exit__": _produced(),
    "Producer.add": _produced(lambda producer, n: producer.add(producer.check("sent", "k", "v", START_MS))),
    "Producer.check": _produced(lambda producer, n: producer.check("sent", "k", "v", START_MS)),
    "Producer.close": _produced(),
    "Producer.flush": _produced(lambda producer, n: producer.flush()),
    "Producer.send": _produced(lambda producer, n: producer.send("sent", "k", f"v{n}", START_MS)),
    "Producer.topic": _produced(lambda producer, n: producer.topic("sent")),
    "Replica": _replica(lambda replica: None),
    "Replica.__enter__": _replica(lambda replica: None),
    "Replica.__exit__": _replica(lambda replica: None),
    "Replica.assign": _replica(lambda replica: refused(lambda: replica.assign(active=[0]))),
    "Replica.commit": _replica(lambda replica: refused(lambda: replica.commit({}))),
    "Replica.look_again": _replica(lambda replica: replica.look_again()),
    "Replica.missing": _replica(lambda replica: replica.missing()),
    "Replica.on_assign": _replica(lambda replica: refused(lambda: replica.on_assign(None, [IN]))),
    "Replica.on_lost": _replica(lambda replica: refused(lambda: replica.on_lost(None, [IN]))),
    "Replica.on_revoke": _replica(lambda replica: refused(lambda: replica.on_revoke(None, [IN]))),
    "Replica.read": _replica(_read_replica),
    "Replica.read_only": _replica(lambda replica: replica.read_only),
    "Replica.reopen": _replica(lambda replica: refused(lambda: replica.reopen(0))),
}


class Called(sf.Processor):
    """Keeps each record's value, passes the record on, and makes the call under attack where there is one."""

    inside: Callable[[sf.Context], object] | None = None
    timer_key = TEXT

    def init(self, context: sf.Context) -> None:
        self.context = context

    def process(self, record: sf.Record) -> None:
        self.context.store("kv").put(record.key, record.value)
        self.context.forward(record)
        if Called.inside is not None:
            Called.inside(self.context)

    def on_timer(self, timer: sf.Timer) -> None: ...


class Lines(sf.Source):
    """A source of one's own of three records, which makes the call under attack where there is one."""

    inside: Callable[[sf.SourceContext], object] | None = None

    def run(self, context: sf.SourceContext) -> None:
        while context.position < 3 and not context.cancelled:
            context.collect(sf.Record("line", "v", START_MS), context.position + 1)
        if Lines.inside is not None:
            Lines.inside(context)


class DriverStage:
    """A driver, and a dict of the rows that were piped. Its methods are those of `Stage` that attacks use."""

    def __init__(self, root: Path, clock: ManualClock, **settings: Any) -> None:
        self.root = root
        self.noisy = Noisy()
        self.rows: dict[str, str] = {}
        self._number = 0
        self._folders = tempfile.tempdir
        tempfile.tempdir = str(root)  # where the driver makes its folder
        self.driver = self.made()
        self.pipe("a")

    def made(self) -> sf.testing.Driver:
        app = sf.App("driven", stores=[sf.KeyValueStore("kv", TEXT, TEXT)], listeners=[self.noisy], restore_workers=0)
        app.stream("in", key=TEXT, value=TEXT).process(Called, "kv").to("done")
        app.stream(Lines(), name="lines").to("lines-out")
        return sf.testing.Driver(app)

    def pipe(self, key: str, inside: Callable[[sf.Context], object] | None = None) -> None:
        Called.inside = inside
        try:
            self.driver.pipe("in", key, key, START_MS)
        finally:
            Called.inside = None
        self.rows[key] = key

    def number(self) -> int:
        self._number += 1
        return self._number

    def settle(self) -> None:
        self.driver.commit()
        self.driver.read("done")

    def check(
        self, *, returned: bool, new: Rows, offsets: frozenset[int], drops: bool = False, atomic: bool = False
    ) -> None:
        """After an error the driver is of no more use: it closes, and another one works."""
        if not returned:
            self.driver.close()
            self.driver, self.rows = self.made(), {}
        self.pipe("probe")
        found = dict(self.driver.store("kv").all())
        assert found == self.rows, difference(found, self.rows)

    def finish(self) -> None:
        """Another driver's processors find the rows."""
        self.driver.restart()
        self.pipe("probe")
        assert dict(self.driver.store("kv").all()) == self.rows
        assert [record.key for record in self.driver.read("done")][-1:] == ["probe"]

    def close(self) -> None:
        self.noisy.armed = False
        self.driver.close()
        left = [one for one in self.root.iterdir() if one.name.startswith("standfast-driver-")]
        tempfile.tempdir = self._folders
        assert not left, f"a closed driver leaves {left}"


def _within(use: Callable[[Any], object]) -> Entry:
    """A call of a processor on its context."""
    return Entry(lambda stage, n: stage.pipe(f"call{n}", use))


def _sourced(use: Callable[[Any], object] = lambda context: None) -> Entry:
    """A call of a source of one's own on its context."""

    def call(stage: DriverStage, n: int) -> None:
        Lines.inside = use
        try:
            stage.driver.run_source("lines")
        finally:
            Lines.inside = None

    return Entry(call)


def _driver(use: Callable[[sf.testing.Driver], object]) -> Entry:
    return Entry(lambda stage, n: use(stage.driver))


def _another(stage: DriverStage, n: int) -> None:
    with stage.made() as driver:
        driver.pipe("in", "k", "v", START_MS)


DRIVEN: dict[str, Entry] = {
    "testing.Driver": Entry(_another),
    "testing.Driver.__enter__": Entry(_another),
    "testing.Driver.__exit__": Entry(_another),
    "testing.Driver.advance_wall_clock": _driver(lambda driver: driver.advance_wall_clock(1_000)),
    "testing.Driver.close": Entry(_another),
    "testing.Driver.commit": _driver(lambda driver: driver.commit()),
    "testing.Driver.dropped": _driver(lambda driver: driver.dropped),
    "testing.Driver.pipe": Entry(lambda stage, n: stage.pipe(f"call{n}")),
    "testing.Driver.read": _driver(lambda driver: driver.read("done")),
    "testing.Driver.restart": _driver(lambda driver: driver.restart()),
    "testing.Driver.run_source": _sourced(),
    "testing.Driver.store": _driver(lambda driver: driver.store("kv").get("a")),
    "Context.app": _within(lambda context: context.app),
    "Context.cancel_timer": _within(lambda context: context.cancel_timer("k", START_MS)),
    "Context.commit": _within(lambda context: context.commit()),
    "Context.drop": _within(lambda context: context.drop("late", "a reason")),
    "Context.forward": _within(lambda context: context.forward(sf.Record("k", "v", START_MS))),
    "Context.has_children": _within(lambda context: context.has_children),
    "Context.headers": _within(lambda context: context.headers),
    "Context.late": _within(lambda context: context.late(sf.Record("k", "v", START_MS))),
    "Context.offset": _within(lambda context: context.offset),
    "Context.partition": _within(lambda context: context.partition),
    "Context.progress": _within(lambda context: context.progress),
    "Context.schedule": _within(
        lambda context: context.schedule(interval_ms=1_000, kind=sf.WALL_CLOCK_TIME, callback=lambda now: None)
    ),
    "Context.store": _within(lambda context: list(context.store("kv").all())),
    "Context.stream_time_ms": _within(lambda context: context.stream_time_ms),
    "Context.task_id": _within(lambda context: context.task_id),
    "Context.timer": _within(lambda context: context.timer("k", START_MS, sf.PROCESSING_TIME)),
    "Context.timestamp": _within(lambda context: context.timestamp),
    "Context.topic": _within(lambda context: context.topic),
    "Context.wall_clock_ms": _within(lambda context: context.wall_clock_ms),
    "Context.watermark_ms": _within(lambda context: context.watermark_ms),
    "SourceContext.cancelled": _sourced(lambda context: context.cancelled),
    "SourceContext.collect": _sourced(
        lambda context: context.collect(sf.Record("line", "v", START_MS), context.position + 1)
    ),
    "SourceContext.position": _sourced(lambda context: context.position),
    "SourceContext.wait": _sourced(lambda context: context.wait(0)),
    "SourceContext.wall_clock_ms": _sourced(lambda context: context.wall_clock_ms),
}
