"""An application: sources, processors and stores, run over the tasks that are assigned to this instance.

    app = App("delays", log=..., state_dir=..., stores=[...])
    @app.source("flights", key=serde.string, value=serde.json)
    class Board(Processor): ...
    app.stream("clicks").group_by_key().count("visits").to("out")
    app.run()

Rules of this file: declaration and life cycle; the loop itself is `standfast.stream.runtime.loop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, cast

from standfast.replication.kafka.callbacks import with_settings
from standfast.replication.listeners import Listener
from standfast.replication.tail.open_log import open_log
from standfast.store import serde
from standfast.store.arguments import checked, is_whole, path_problems, refuse
from standfast.store.buffer.rows import VALUE_MAX_BYTES
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.log import LogFormat, as_event, logger, printed
from standfast.store.names import check_name, check_topic
from standfast.store.process.interrupts import Apart, Flag, stopped_by_signals
from standfast.store.process.parent import lent_channel
from standfast.store.process.threads import THREADS, Threads
from standfast.store.serde import Serde
from standfast.store.specs import KeyValueStore, StoreSpec
from standfast.stream.app.app_settings import (
    argument_problems,
    check_kinds,
    check_numbers,
    interval_of,
    setting_problems,
    with_placement,
)
from standfast.stream.app.producer import Producer, formats_of
from standfast.stream.app.rounds import Rounds, closing_after
from standfast.stream.dsl.fluent import Defaults, Stream, Table, named_step, store_of_kind
from standfast.stream.dsl.ways import APP, no_step
from standfast.stream.restart import ExponentialDelay, RestartStrategy
from standfast.stream.runtime.call_loop import CallLoop
from standfast.stream.runtime.group_consumers import GroupConsumers
from standfast.stream.runtime.loop import BATCH_BYTES, LINGER_MS, Loop
from standfast.stream.runtime.runner import RunnerSettings
from standfast.stream.runtime.source_discovery import SourceDiscovery
from standfast.stream.runtime.source_runs import CANCEL_TIMEOUT_MS, SourceRuns
from standfast.stream.session.session import Session
from standfast.stream.signatures import spelled_out
from standfast.stream.source import Source
from standfast.stream.stream_time import Policy
from standfast.stream.task.settings import (
    DISCOVERY_DEFAULT_MS,
    SessionOptions,
    SessionSettings,
    twice_problems,
)
from standfast.stream.topology.assembly import Assembled, assemble, create_absent, external_topics
from standfast.stream.topology.calls import check_processor, is_async
from standfast.stream.topology.drops import Drops
from standfast.stream.topology.nodes import Partitioner, ProcessorNode
from standfast.stream.topology.policy import StepOptions
from standfast.stream.topology.processor import Processor, has_timers
from standfast.stream.topology.sources import SourceOptions, SourceSettings, TableOptions
from standfast.stream.topology.topology import Topology, TopologyBuilder
from standfast.stream.trace import Tracing
from standfast.stream.workers.command import Program, this_program
from standfast.stream.workers.counts import Workers, cores, worker_count, workers_problems
from standfast.stream.workers.wishes import PAUSE, RESUME, STOP

if TYPE_CHECKING:
    from standfast.stream.workers.supervisor import Supervisor

P = TypeVar("P", bound=type[Processor])
POLL_MS = 50


@checked(BadConfig)
@spelled_out({SessionOptions: SessionSettings, SourceOptions: SourceSettings, TableOptions: SourceSettings})
class App:
    """A stream application. Its tasks, one per sub-topology and partition, are shared out among live instances.

    name                   of the application: part of its topics' names, and the id of its consumer group
    log                    address of the log: `sqlite:///path`, or `kafka://host:port,host:port?option=value`
    state_dir              folder of all state; it and `log` may be left out for the test driver only
    stores                 definitions of its stores, such as `KeyValueStore("counts", serde.string, serde.int64)`
    stream_time            "min": the smallest over a task's inputs of the largest timestamp; "max": the largest of all
    commit_interval_ms     milliseconds that processed records may stay uncommitted; None: 1,000 at least once, and
                           exactly once 100, or more (1,000 at most) while commits take over a fifth of a task's time
    linger_ms              at least once, output records are written once the oldest waits so many milliseconds, or
                           they are `batch_bytes`; exactly once they are written with the commit
    batch_bytes            see `linger_ms`; bytes of keys and values that wait
    restart                strategy for a failed task, such as `FixedDelay(3, 1_000)`; None: `ExponentialDelay()`
    watermark_interval_ms  milliseconds between polls of periodic assigners; 0: after every record
    default_key_serde      of keys, in streams that name none
    default_value_serde    of values, in streams that name none
    log_format             "text" or "json": form of the lines that run() prints; None: as STANDFAST_LOGGING__FORMAT
                           says, else "text"
    tracing                whether to make OpenTelemetry spans of its records, commits and restores, with the provider
                           that the program has set up; needs the extra `otel`
    create_topics          whether to create its absent source and output topics, for trying: with as many partitions
                           as its largest source has, else 4
    source_cancel_timeout_ms  milliseconds that a source of one's own may take to end once it is cancelled; past it
                           the application ends with an error
    clock                  source of times; None: the system's clock
    listeners              receive restores, standbys and commits from the start

    workers                number of processes that process its tasks, "auto" for one per core: see run()

    The options that follow are those of its session. `placement` is "managed" (a leader among the instances spreads
    tasks and standbys evenly) or "static": `app.open().assign(...)` names the tasks of this instance before run().
    "shared", as earlier versions named theirs, means "managed" here.
    """

    program: Program | None = None  # runs this program again for workers; None: the command that started this process
    _wishes: deque[str] | None = None  # of a worker process, for its supervisor
    _rounds: Rounds | None = None  # once poll_once() was called

    def __init__(
        self,
        name: str,
        *,
        log: str | None = None,
        state_dir: str | Path | None = None,
        stores: Sequence[StoreSpec] = (),
        stream_time: Policy = "min",
        commit_interval_ms: int | None = None,
        linger_ms: int = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        restart: RestartStrategy | None = None,
        watermark_interval_ms: int = 200,
        default_key_serde: Serde[Any] = serde.string,
        default_value_serde: Serde[Any] = serde.json,
        log_format: LogFormat | None = None,
        tracing: bool = False,
        create_topics: bool = False,
        source_cancel_timeout_ms: int = CANCEL_TIMEOUT_MS,
        workers: Workers = 1,
        clock: Clock | None = None,
        listeners: Iterable[Listener] = (),
        **settings: Unpack[SessionOptions],
    ) -> None:
        check_name("application", name)
        refuse(setting_problems(settings))
        found = argument_problems(stores, listeners, default_key_serde, default_value_serde)
        found += [] if state_dir is None else path_problems("state_dir", state_dir)
        refuse([*found, *workers_problems(workers)] or twice_problems(stores := tuple(stores)))
        check_kinds(log, log_format, restart, create_topics=create_topics, tracing=tracing)
        if log is not None:
            log = with_settings(log, settings.get("kafka"))
        check_numbers(
            stream_time,
            (("watermark_interval_ms", watermark_interval_ms, 0), *interval_of(commit_interval_ms)),
            (
                ("linger_ms", linger_ms, 0),
                ("batch_bytes", batch_bytes, 1),
                ("source_cancel_timeout_ms", source_cancel_timeout_ms, 1),
            ),
        )
        self.name = name
        self.stream_time: Policy = stream_time
        self.commit_interval_ms = commit_interval_ms
        self.linger_ms = linger_ms
        self.batch_bytes = batch_bytes
        self.watermark_interval_ms = watermark_interval_ms
        self.restart: RestartStrategy = restart or ExponentialDelay()
        self.clock: Clock = clock or SystemClock()
        self.drops = Drops(self.clock)
        self.stores = tuple(stores)
        self.settings = with_placement(settings)
        self.discovery_interval_ms = settings.get("discovery_interval_ms", DISCOVERY_DEFAULT_MS)
        self.create_topics = create_topics
        self.workers: Workers = workers
        self.log_format: LogFormat | None = log_format
        self.builder = TopologyBuilder(name, self.stores)
        self.session: Session | None = None
        self.supervisor: Supervisor | None = None  # while run() supervises worker processes
        self.tracing: Tracing | None = open_telemetry(name, log) if tracing else None
        self._defaults = Defaults(default_key_serde, default_value_serde)
        self._log_address = log
        self._state_dir = state_dir
        self.session_listeners = (*listeners, *(() if self.tracing is None else (self.tracing.listener,)))
        self._assembled: Assembled | None = None
        self.paused = False
        self._stop = Flag()
        self._apart = Apart()
        # Kept from one run to the next: a thread that did not end must not get a second one beside it.
        self.source_runs = SourceRuns(self.clock, source_cancel_timeout_ms)

    def configure(self, given: Mapping[str, Any]) -> None:
        """Replace arguments of App, by name, before it runs, such as by those of a settings file.

        Takes log, state_dir, commit_interval_ms, log_format, workers, and the options of the session. Raises BadConfig
        for other names, wrong values, and once the application is open; nothing is changed then.
        """
        if self.session is not None:
            raise BadConfig([f"application {self.name!r} is open: configure it before it runs"])
        own = {
            "log": self._log_address,
            "state_dir": self._state_dir,
            "commit_interval_ms": self.commit_interval_ms,
            "log_format": self.log_format,
            "workers": self.workers,
        }
        options = cast("SessionOptions", {**self.settings, **{key: given[key] for key in given.keys() - own.keys()}})
        own |= {key: given[key] for key in given.keys() & own.keys()}
        state_dir: Any = own["state_dir"]
        refuse(setting_problems(options))
        refuse([] if state_dir is None else path_problems("state_dir", state_dir))
        refuse(workers_problems(own["workers"]))
        check_kinds(own["log"], own["log_format"], None)
        check_numbers(self.stream_time, interval_of(cast("int | None", own["commit_interval_ms"])))
        log: Any = own["log"]
        self.settings, self._state_dir = with_placement(options), state_dir
        self._log_address = None if log is None else with_settings(log, options.get("kafka"))
        self.commit_interval_ms = cast("int | None", own["commit_interval_ms"])
        self.log_format, self.workers = cast("Any", own["log_format"]), cast("Any", own["workers"])
        self.discovery_interval_ms = options.get("discovery_interval_ms", DISCOVERY_DEFAULT_MS)

    if not TYPE_CHECKING:  # type checkers know every name, and would take any with this

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(App, name, APP)

    # --- declaration ---

    def source(
        self,
        topic: str | Source,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        name: str | None = None,
        partitions: int | None = None,
        **options: Unpack[SourceOptions],
    ) -> Callable[[P], P]:
        """Class decorator: the processor reads this topic; used several times, it reads several topics.

        name        of a source of one's own, as in `@app.source(MySource(), name="lines")`: keeps its position; a topic
                    has none
        partitions  of a source of one's own: it has a task for each; None: 1

        The serdes of a source of one's own write its dead letters, and its records where they change tasks.
        """
        settings = self._source_settings(key, value, options)

        def register(processor: P) -> P:
            check_processor(processor, f"source {name if isinstance(topic, Source) else topic!r}")
            node = self.builder.add_any_source(topic, name, partitions, settings)
            called = processor.__name__
            there = self.builder.nodes.get(called)
            if isinstance(there, ProcessorNode) and there.make is processor:
                self.builder.connect(called, node)
            else:
                timer_key = (processor.timer_key or settings.key) if has_timers(processor) else None
                stores = () if is_async(processor) else processor.stores
                self.builder.add_processor(called, processor, [node], stores, timer_key)
            return processor

        return register

    def sink(
        self,
        topic: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        partitioner: Partitioner | None = None,
        **step: Unpack[StepOptions],
    ) -> Callable[[P], P]:
        """Class decorator, above the sources: the processor's forwarded records are written to this topic."""
        named: StepOptions = {**step, "name": step.get("name") or f"{topic}-sink"}
        sink, policy = named_step(self.builder, topic, named)

        def register(processor: P) -> P:
            check_processor(processor, f"sink {topic!r}")
            self.builder.add_sink(
                sink,
                topic,
                [processor.__name__],
                key or self._defaults.key,
                value or self._defaults.value,
                partitioner,
                policy=policy,
            )
            return processor

        return register

    def stream(
        self,
        topic: str | Source,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        name: str | None = None,
        partitions: int | None = None,
        **options: Unpack[SourceOptions],
    ) -> Stream:
        """A topic, or a source of one's own, as a stream of records.

        name        of a source of one's own, as in `app.stream(MySource(), name="lines")`: keeps its position; a topic
                    has none
        partitions  of a source of one's own: it has a task for each; None: 1

        With several partitions a source of one's own may collect a key in any of them, so that a step which needs
        equal keys together puts a repartition topic before itself.
        """
        settings = self._source_settings(key, value, options)
        node = self.builder.add_any_source(topic, name, partitions, settings)
        spread = isinstance(topic, Source) and (partitions or 1) > 1
        return Stream(self.builder, node, self._defaults, settings.key, settings.value, rekeyed=spread)

    def table(self, topic: str, store: str | None = None, **options: Unpack[TableOptions]) -> Table:
        """A topic as a table: the latest value of each key, with the topic itself as the store's changelog.

        `store` names a declared KeyValueStore, whose serdes read the topic; without it the store has the topic's name
        and the default serdes. Records without a key are skipped and counted.

        With `timestamp` or `invalid_timestamp` rows differ from those of the topic, so that the store has a changelog
        of its own: such a change makes another store, for which the application is reset or another name given.
        """
        name = topic if store is None else store
        check_topic(topic)
        if store is None and name not in self.builder.specs:
            spec: KeyValueStore = KeyValueStore(name, self._defaults.key, self._defaults.value)
        else:
            spec = store_of_kind(self.builder, name, [KeyValueStore], f"table {topic!r}")
        settings = SourceSettings(key=spec.key, value=spec.value, **options)
        node, spec = self.builder.add_table(topic, spec, settings)
        return Table(self.builder, node, self._defaults, spec.key, spec.value, store=name)

    def topology(self) -> Topology:
        """The application's topology; partition counts are known once it has run or was opened."""
        if self._assembled is not None:
            return self._assembled.topology
        return Topology(self.name, self.builder.sub_topologies(), tuple(self.builder.internal.values()))

    # --- life ---

    def producer(self) -> Producer:
        """A writer of records to the application's topics, with the serdes and partitioners that it declares for them.

        It opens the log for itself, so that it works before, while and after the application runs, here or elsewhere.
        """
        if self._log_address is None:
            raise BadConfig([f"application {self.name!r} needs log=... for a producer"])
        log = open_log(self._log_address, clock=self.clock, kafka=self.settings.get("kafka"))
        try:
            for line in create_absent(*external_topics(self.builder), log.admin) if self.create_topics else ():
                logger.warning("application %s: %s", self.name, line, extra=as_event("app_note", app=self.name))
        except BaseException:
            log.close()
            raise
        return Producer(
            log,
            formats_of(self.builder),
            (self._defaults.key, self._defaults.value),
            self.clock,
            value_max_bytes=self.settings.get("value_max_bytes", VALUE_MAX_BYTES),
            inject=None if self.tracing is None else self.tracing.inject,
        )

    def open(self, *, background: bool = True) -> Session:
        """Open the session (state directory, log, membership); run() does this too.

        background  whether restores, standbys, the lease and snapshots run in threads; False: it has no thread, and
                    poll_once() does all of it, called several times within `lease_ms`; `http_port` is not opened then
        """
        if not isinstance(background, bool):
            raise BadConfig([f"open: background must be True or False, not {background!r:.100}"])
        if self.session is None:
            assembled = self.assemble(starts=True)
            log, state_dir = self.places()

            def opens() -> Session:
                self.session = self.open_session(assembled, log, state_dir, self.clock, background=background)
                return self.session

            # Apart, with the assignment: an exception of a signal handler must not lose an open session.
            return self._apart.run(opens)
        return self.session

    def poll_once(self, timeout_ms: int = 0) -> int:
        """One round of what run() does, after open(): of the tasks, and of the session where it has no threads.

        Returns the number of processed records, and waits for the first one for `timeout_ms` at most. Raises the error
        of a task that is given up: close() is all that is left then.
        """
        if not is_whole(timeout_ms):
            raise InvalidRequest(f"poll_once: timeout_ms must be whole milliseconds, not {timeout_ms!r:.100}")
        return self._begun().poll_once(timeout_ms)

    def _begun(self) -> Rounds:
        if self._rounds is None:
            if self.session is None or self._assembled is None:
                raise InvalidRequest(f"application {self.name!r} is not open: call open() before poll_once()")
            self._rounds = Rounds(self, self.session, partial(self.make_loop, self.session, self._assembled))
        return self._rounds

    def close(self) -> None:
        """Commit all processed records, end all tasks and close the session, as at the end of run(); twice is fine.

        After an error of poll_once() nothing more is committed.
        """
        self._end(commit=True)

    def assemble(self, *, starts: bool = False) -> Assembled:
        """Check the program against the topics of its log, and number its tasks. Raises BadConfig.

        `starts`: the instance starts with it; Held while consumers of other programs are in the application's group.
        """
        address, _ = self.places()
        # State under a numbered name would not be found again after the next change of the program.
        if self.builder.nameless:
            raise BadConfig(self.builder.nameless)
        # A log of its own, closed before the session opens one: topics are checked before any state is opened.
        log = open_log(address, clock=self.clock, kafka=self.settings.get("kafka"))
        try:
            growing = self.discovery_interval_ms is not None
            if starts:
                GroupConsumers(log.admin, self.name, self.clock).refuse()
            assembled = assemble(self.builder, log.admin, address, growing=growing, create=self.create_topics, log=log)
        finally:
            log.close()
        for line in assembled.notes:
            logger.warning("application %s: %s", self.name, line, extra=as_event("app_note", app=self.name))
        self._assembled = assembled
        return assembled

    def places(self) -> tuple[str, str | Path]:
        """The log's address, and the state directory. Raises BadConfig without either."""
        if self._log_address is None or self._state_dir is None:
            raise BadConfig([f"application {self.name!r} needs log=... and state_dir=... to run"])
        return self._log_address, self._state_dir

    def open_session(
        self,
        assembled: Assembled,
        log: str,
        state_dir: str | Path,
        clock: Clock,
        *,
        background: bool = True,
        alone: bool = False,
    ) -> Session:
        """A session with this application's stores and settings; for run() and the test driver.

        Without `background` the caller drives it, and no client reads it; `alone`: it takes all tasks at once, too.
        """
        options: SessionOptions = {**self.settings}
        if alone:
            options["placement"] = "shared"
            options.pop("replace", None)
            options.pop("max_tasks", None)
            if (policy := options.get("snapshots")) is not None:  # no leader takes a cut over all tasks here
                options["snapshots"] = replace(policy, checkpoint_every_ms=None)
        if not background:
            options.pop("http_port", None)
        if not log.startswith("kafka://"):
            options.pop("kafka", None)  # a test driver's log is its own
        session = Session(
            self.name,
            log=log,
            state_dir=state_dir,
            stores=(),
            groups=assembled.groups,
            clock=clock,
            background=background,
            listeners=self.session_listeners,
            **options,
        )
        # The same counter object, so that metrics of the session show drops without copying them.
        session.counters.dropped = self.drops.counts
        return session

    def runner_settings(self, assembled: Assembled, clock: Clock, threads: Threads = THREADS) -> RunnerSettings:
        """The settings that the runners of this application's tasks share."""
        return RunnerSettings(
            clock,
            self.drops,
            self.stream_time,
            self.watermark_interval_ms,
            assembled.partitions_of,
            assembled.upstream,
            assembled.event_time,
            assembled.outputs,
            tracing=self.tracing,
            calls=CallLoop(threads),
        )

    def run(self, *, workers: Workers | None = None) -> None:
        """Process until stop() or SIGTERM/SIGINT; commits and closes cleanly at the end.

        workers  number of processes that process the tasks of this instance, "auto" for one per core; None: as given
                 to App. 1: this process alone

        A failed task is opened again as the restart strategy says. Once it may not be, the other tasks commit, all
        is closed, and its error ends the run, with a note that says why. Uncommitted records are processed again by
        the next run. Lines about tasks and failures go through the logger `standfast`; while the program has set up
        no handler for them, they are printed to stderr, in the form of `log_format`.

        With several workers the program runs once more in each, from its first line to this call, which *is* the
        worker there and does not return: every line before the call runs once per process, a spare one included. This
        process then only supervises, and serves `http_port` for all of them. Raises BadConfig for a notebook, a REPL or
        `-c`, WorkerFailed for a worker that dies again and again.
        """
        channel = lent_channel()
        # A span of the program around this call is no parent of records, and goes into no header.
        with printed(self.log_format), nullcontext() if self.tracing is None else self.tracing.apart():
            # Modules of workers are imported where there are some: a program without them starts sooner.
            from standfast.stream.app.worker import AppWorker
            from standfast.stream.workers.worker import refuse_second_run, run_worker

            if channel is not None:
                # pyright knows this file by its path as well, and takes the two classes for different ones.
                run_worker(AppWorker(cast("Any", self)), channel)
            refuse_second_run(self.name)
            try:
                count = worker_count(self.workers if workers is None else workers, cores(), self.settings)
                # Before anything is open: a signal that comes while the session opens ends the run as cleanly as a
                # later one. To the end, so that a second signal does not break off the last commit or the closing.
                with stopped_by_signals(self.stop):
                    if count == 1:
                        self._run_here()
                    else:
                        self._supervise(count, self.program or this_program())
            except Exception as error:
                logger.error(
                    "application %s ends: %s: %s",
                    self.name,
                    type(error).__name__,
                    error,
                    extra=as_event("app_failed", app=self.name, error_class=type(error).__name__),
                )
                raise
            finally:
                self.supervisor = None
            logger.info("application %s ended", self.name, extra=as_event("app_ended", app=self.name))

    def _run_here(self) -> None:
        ended = False
        with closing_after(f"application {self.name}", lambda: self._end(commit=ended)):
            session = self.open()
            if self.settings.get("placement") == "static" and not session.all_tasks():
                raise InvalidRequest(
                    f'application {self.name!r} has no task to run: with placement="static" name this instance\'s '
                    "tasks before run(), as in app.open().assign(active=[...], standby=[...])"
                )
            self._told_start(session.instance_id, session.state_path)
            self._begun()
            while not self._stop.is_set():
                self.poll_once(POLL_MS)
            ended = True

    def _end(self, *, commit: bool) -> None:
        """End the rounds and close the session. Not after an error with a commit."""
        try:
            with closing_after(f"application {self.name}", self._release):
                rounds, self._rounds = self._rounds, None
                if rounds is not None:
                    rounds.close(commit=commit)
        finally:
            try:
                self._release()  # again, where a signal handler has broken off the first call
            finally:
                self.session = None

    def _release(self) -> None:
        """Close the session, also one that was opened after a signal handler had ended the wait for it."""
        self._apart.wait()
        if self.session is not None:
            self.session.close()
            self.session = None

    def _told_start(self, instance: str, state_path: Path, workers: int = 1) -> None:
        about = as_event("app_started", app=self.name, instance=instance, state_dir=str(state_path), workers=workers)
        by = "" if workers == 1 else f", by {workers} workers"
        logger.info("application %s runs as instance %s, state in %s%s", self.name, instance, state_path, by,
                    extra=about)  # fmt: skip

    def _supervise(self, workers: int, program: Program) -> None:
        if self.session is not None:
            raise BadConfig(
                [f"application {self.name!r} is open in this process: run(workers={workers}) needs it closed first"]
            )
        assembled, (log, state_dir) = self.assemble(starts=True), self.places()
        from standfast.stream.workers.supervisor import Supervisor

        supervisor = Supervisor(
            self.name,
            log=log,
            state_dir=state_dir,
            groups=assembled.groups,
            options=self.settings,
            restart=self.restart,
            workers=workers,
            program=program,
            clock=self.clock,
            flow=assembled.topology.flow(),
        )
        self.supervisor = supervisor
        self._told_start(supervisor.instance_id, supervisor.state_path, workers)
        with closing_after(f"application {self.name}", supervisor.close):
            runners = self.runner_settings(assembled, self.clock)
            discovery = SourceDiscovery(supervisor, assembled.topology, runners, self.discovery_interval_ms, self.clock)
            consumers = GroupConsumers(supervisor.log.admin, self.name, self.clock)
            while not self._stop.is_set():
                for wish in supervisor.pool.wishes():
                    self.obey(wish)
                supervisor.pool.pause(self.paused)
                discovery.poll()
                consumers.poll()
                supervisor.poll_once()

    def make_loop(self, session: Session, assembled: Assembled) -> Loop:
        """The loop over the tasks of a session; for run() and for worker processes."""
        runners = self.runner_settings(assembled, self.clock, session.threads)
        return Loop(
            session,
            assembled.topology,
            runners,
            commit_interval_ms=self.commit_interval_ms,
            restart=self.restart,
            clock=self.clock,
            batch_bytes=self.batch_bytes,
            linger_ms=self.linger_ms,
            sources=self.source_runs,
            discovery=SourceDiscovery(session, assembled.topology, runners, self.discovery_interval_ms, self.clock),
        )

    def stop(self) -> None:
        """Make run() end; may be called from any thread, and in a worker process, too: the whole instance ends."""
        self._stop.set()
        self._wish(STOP)

    def pause(self) -> None:
        """Process nothing until resume(); tasks stay here, standbys continue. May be called as stop()."""
        self.paused = True
        self._wish(PAUSE)

    def resume(self) -> None:
        """Continue after pause(). May be called as stop()."""
        self.paused = False
        self._wish(RESUME)

    def obey(self, wish: str) -> None:
        """Carry out a call that a worker process got."""
        {STOP: self.stop, PAUSE: self.pause, RESUME: self.resume}[wish]()

    @property
    def rests(self) -> bool:
        """Whether nothing is to be processed now."""
        return self.paused or self._stop.is_set()

    def as_worker(self) -> deque[str]:
        """Be a worker process from now on; returns the calls of stop(), pause() and resume(), for its supervisor.

        Calls before run() were made in each process of the program, so that they are the supervisor's.
        """
        self._stop.clear()
        self.paused = False
        self._wishes = deque()
        return self._wishes

    def _wish(self, wish: str) -> None:
        # No message from here: a handler of signals may call, while its thread is in the middle of one.
        if self._wishes is not None:
            self._wishes.append(wish)

    def _source_settings(
        self, key: Serde[Any] | None, value: Serde[Any] | None, options: SourceOptions
    ) -> SourceSettings:
        key = self._defaults.key if key is None else key
        return SourceSettings(key=key, value=self._defaults.value if value is None else value, **options)


def open_telemetry(app: str, log: str | None) -> Tracing:
    """The spans of an application. Raises BadConfig without the extra `otel`."""
    try:
        # Here and not above: an application without tracing must run without the library.
        from standfast.stream.tracing.otel import EMBEDDED, KAFKA, OpenTelemetry
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise BadConfig(
            ["tracing=True needs the library 'opentelemetry', which is not installed: pip install 'standfast[otel]'"]
        ) from error
    return OpenTelemetry(app, KAFKA if (log or "").startswith("kafka:") else EMBEDDED)
