"""The test driver: an application runs in the test's own thread, without a broker, on a clock that the test advances.

    driver = sf.testing.Driver(app, now_ms=0)
    driver.pipe("flights", "N123", {"delay": 4}, 1_000)
    driver.read("out")

The parts are the real ones: stores on RocksDB, changelogs and commits in an embedded log, both in a folder that is
removed afterwards. Only fetching is missing: piped records go straight to the task, and records that a task writes to
an internal topic straight to the next task, committed or not. Sources of one's own run in a call of the test, or are
piped to by their names.

Asynchronous steps run on a real event loop, and `pipe` waits for their results, in real time: one record's results
are there before the next record is processed, so that a test is deterministic.

Rules of this file: no task runs outside a call of the test. `pipe` does not commit unless a processor or a full
buffer requests it, nor does a punctuation; `commit` forwards cached results. Public as `standfast.testing`.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from standfast.replication.log import Headers, Outgoing, TopicPolicy
from standfast.replication.log import Record as LogRecord
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.arguments import INT64_MAX, checked, flag_problems, is_whole
from standfast.store.clock import ManualClock
from standfast.store.closing import Closing
from standfast.store.errors import Closed, DiskFull, InternalError, InvalidRequest
from standfast.store.names import check_topic, few
from standfast.store.process import forks
from standfast.store.serde import Serde
from standfast.store.serde import bytes as raw_bytes
from standfast.store.specs import StoreSpec, store_name
from standfast.store.types.kinds import gives_stores
from standfast.stream.outgoing import headers_problem
from standfast.stream.record import Record
from standfast.stream.runtime.call_loop import CallLoop
from standfast.stream.runtime.inputs import OwnInput
from standfast.stream.runtime.runner import TaskRunner
from standfast.stream.session.session import Session
from standfast.stream.source import SourceContext
from standfast.stream.task.states import TaskState
from standfast.stream.topology.assembly import Assembled, assemble, external_topics
from standfast.stream.topology.nodes import ProcessorNode, SinkNode, SourceNode
from standfast.stream.topology.sinks import partition_of
from standfast.stream.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from standfast.stream.app.app import App

CALL_WAIT_MS = 50  # between two looks at calls in flight
ROUNDS_MAX = 10_000  # a driver that makes no progress ends with an error instead of a test that hangs


@checked(InvalidRequest)
class Driver(Closing):
    """Runs all tasks of an application. `partitions`: the partition count of its topics; 1 by default.

    `commit_each_record`: commit after each piped record and each move of the clock, as Kafka Streams' test driver does.
    Watermarks advance at each record, whatever the application's `watermark_interval_ms`.
    """

    def __init__(self, app: App, now_ms: int = 0, *, partitions: int = 1, commit_each_record: bool = False) -> None:
        if not isinstance(getattr(app, "builder", None), TopologyBuilder):
            raise InvalidRequest(f"driver: it runs a standfast.App, not {app!r:.100}")
        if not is_whole(now_ms) or not is_whole(partitions, 1):
            raise InvalidRequest(
                f"driver: now_ms {now_ms!r:.100} and partitions {partitions!r:.100} must be whole numbers"
            )
        if flag_problems(commit_each_record=commit_each_record):
            raise InvalidRequest(f"driver: commit_each_record must be True or False, not {commit_each_record!r:.100}")
        self.app = app
        self._commit_each_record = commit_each_record
        self.clock = ManualClock(now_ms)
        self._partitions = partitions
        self._folder = Path(tempfile.mkdtemp(prefix="standfast-driver-"))
        # A driver's log need not survive a power loss, so the syncs of a commit are saved.
        self._address = f"sqlite:///{self._folder}/log?synchronous=normal"
        self._held: list[Session | CallLoop] = []
        # For a test that fails before close(), too.
        self._finalizer = weakref.finalize(self, _clean_up, self._held, self._folder)
        forks.dies_in_child(self)
        self._nodes = {node.name: node for group in app.builder.sub_topologies() for node in group.nodes}
        self._offsets: dict[TopicPartition, int] = defaultdict(int)
        self._piped: dict[TopicPartition, list[Outgoing]] = defaultdict(list)
        self._results: dict[str, list[Outgoing]] = defaultdict(list)
        self._routed: dict[tuple[TaskId, TopicPartition], int] = {}
        self._runners: dict[TaskId, TaskRunner] = {}
        self._commit_asked = False
        try:
            self._assembled = self._assemble()
            self._readers = {topic: one.group for one in self._assembled.topology.groups for topic in one.topics}
            self._open()
        except BaseException:
            self._finalizer()  # a test that keeps the error would keep the folder and its lock, too
            raise

    def forked(self) -> None:
        """As in `forks.Owned`: the folder is the parent's."""
        self._finalizer.detach()

    # --- calls of a test ---

    def pipe(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Pass one record to the application and process everything that follows from it.

        Key and value go through the source's serdes; bytes that these cannot serialise are passed unchanged, so that
        damaged input can be tested. `timestamp` in milliseconds, by default the driver's clock. Exceptions of
        processors propagate, and the driver is of no more use then. The topic may be the name of a source of one's own:
        key and value are then passed as they are, at the next offset of `partition` (0).
        """
        check_topic(topic)
        if timestamp is not None and not is_whole(timestamp, -INT64_MAX):
            raise InvalidRequest(f"driver: timestamp must be whole milliseconds, not {timestamp!r:.100}")
        if (problem := headers_problem(headers)) is not None:
            raise InvalidRequest(f"driver: a record of {topic!r} cannot be passed: {problem}")
        node = self._nodes.get(f"{topic}-source")
        if not isinstance(node, SourceNode) or node.internal:
            raise self._no_source(topic)
        if node.own is not None:
            one = self._own_input(topic, 0 if partition is None else partition)
            stamp = self.clock.wall_ms() if timestamp is None else timestamp
            self._collected(one, Record(key, value, stamp, tuple(headers)), one.fetched + 1)
            return
        settings = node.settings
        raw_key = _raw(settings.key.of_topic(topic, "key"), key)
        raw_value = _raw(settings.value.of_topic(topic, "value"), value)
        if partition is None:
            partition = partition_of(raw_key, self._partitions) if raw_key is not None else 0
        if partition not in range(self._partitions):
            raise InvalidRequest(f"driver: {topic!r} has {self._partitions} partitions, not one numbered {partition!r}")
        stamp = self.clock.wall_ms() if timestamp is None else timestamp
        at = TopicPartition(topic, partition)
        # Written to the log with the next commit only, before the tasks' offsets, which refer to these records.
        self._piped[at].append(Outgoing(raw_key, raw_value, max(stamp, 0), headers))
        self._deliver(at, raw_key, raw_value, stamp, headers)
        self._settle()
        if self._commit_each_record:
            self.commit()

    def run_source(self, name: str, partition: int = 0, *, records_max: int | None = None) -> int:
        """Run a source of one's own in this thread, from its position on, and process each record that it collects.

        The run ends when `run` returns, when it waits (`context.wait` returns True at once), and after `records_max`
        records, which must be given for a source that never waits. Returns the number of records. An exception of the
        source propagates.
        """
        if records_max is not None and not is_whole(records_max, 1):
            raise InvalidRequest(f"driver: records_max must be a whole number from 1, not {records_max!r:.100}")
        one = self._own_input(name, partition)
        port = _Port(self, one, records_max)
        source = one.own.source.another()
        try:
            source.run(SourceContext(one.own.name, partition, one.own.partitions, one.fetched, port))
        except Closed:
            if not port.cancelled:
                raise
        if port.error is not None:
            raise port.error
        return port.records

    def advance_wall_clock(self, duration_ms: int) -> None:
        """Advance the clock; due work is done once, however many intervals were skipped."""
        if not is_whole(duration_ms):
            raise InvalidRequest(f"driver: the clock moves forward by whole milliseconds, not by {duration_ms!r:.100}")
        self.clock.advance(duration_ms)
        for runner in list(self._runners.values()):
            runner.tick()
        self._settle()
        if self._commit_each_record:
            self.commit()

    def read(self, topic: str) -> list[Record]:
        """Records of an output topic since the last read, committed or not, in the order in which they were written."""
        check_topic(topic)
        outputs = self._assembled.topology.output_topics
        if topic not in outputs and topic not in self._results:
            known = few(outputs) or "none"
            raise InvalidRequest(f"driver: {self.app.name!r} writes no topic {topic!r} (it writes: {known})")
        serdes = self._serdes(topic)
        key, value = serdes[0].of_topic(topic, "key"), serdes[1].of_topic(topic, "value")
        found, self._results[topic] = self._results[topic], []
        return [
            Record(
                None if one.key is None else key.deserialize(one.key),
                None if one.value is None else value.deserialize(one.value),
                one.timestamp,
                one.headers,
            )
            for one in found
        ]

    def commit(self) -> None:
        """Commit every task; cached results of aggregations are forwarded before."""
        moved = True
        while moved:  # a released result may be held back again by the next aggregation
            moved = False
            for task_id in sorted(self._runners):
                self._runners[task_id].flush()
                routed = self._route()
                moved |= self._run_all() or routed
        if self._piped:
            producer = self._session.log.producer()
            producer.append(self._piped)
            producer.close()
            self._piped.clear()
        for task_id in sorted(self._runners):
            self._runners[task_id].commit()
            self._routed = {at: count for at, count in self._routed.items() if at[0] != task_id}

    @gives_stores
    def store(self, store: str | StoreSpec, partition: int = 0) -> Any:
        """A store as the application's processors see it, uncommitted writes included; of one task, by its partition.

        By its definition the result has its types (KeyValueState[K, V], ...), by its name it is Any. Raises
        InvalidRequest for a store that the application does not have, or declares otherwise.
        """
        name = store_name(store)
        for group in self._assembled.topology.groups:
            if any(spec.name == name for spec in group.specs):
                return self._runners[TaskId(group.group, partition)].task.store(cast("str", store))
        known = few(spec.name for group in self._assembled.topology.groups for spec in group.specs)
        raise InvalidRequest(f"driver: {self.app.name!r} has no store {name!r} (it has: {known})")

    @property
    def dropped(self) -> int:
        """The number of skipped records or updates: late, without a key, damaged, ... (`app.drops.counts`)."""
        return self.app.drops.total

    def restart(self) -> None:
        """Commit, close, and open again: new processors on the same state."""
        self.commit()
        self._close()
        self._open()

    def close(self) -> None:
        """Close the application and remove the folder; uncommitted changes are lost."""
        self._close()
        self._finalizer()

    # --- inside ---

    def _assemble(self) -> Assembled:
        log = open_log(self._address, clock=self.clock)
        try:
            # `assemble` refuses absent external topics, and no other program creates them here.
            for topic in chain(*external_topics(self.app.builder)):
                log.admin.create_topic(topic, self._partitions, TopicPolicy())
            return assemble(self.app.builder, log.admin, self._address)
        finally:
            log.close()

    def _open(self) -> None:
        self._session = self.app.open_session(
            self._assembled, self._address, self._folder / "state", self.clock, background=False, alone=True
        )
        self._held.append(self._session)
        wanted = sum(group.partitions for group in self._assembled.groups.values())
        for _ in range(ROUNDS_MAX):
            self._session.poll_once()
            tasks = self._session.all_tasks()
            if len(tasks) == wanted and all(task.state is TaskState.RUNNING for task in tasks.values()):
                break
        else:
            held = self._session.all_tasks().values()
            failed = next((task.error for task in held if task.error is not None), None)
            if failed is not None:
                raise failed
            if self._session.disk.room.text:
                raise DiskFull(f"driver: {self._session.disk.room.text}")
            raise InternalError(f"driver: tasks of {self.app.name!r} do not run: {few(self._session.missing(), '; ')}")
        # Between two records no time passes here by itself, so that periodic watermarks would never be asked for.
        settings = replace(self.app.runner_settings(self._assembled, self.clock), watermark_interval_ms=0)
        self._held.append(settings.calls)
        for task_id, task in sorted(tasks.items()):
            group = self._assembled.topology.groups[task_id.group]
            inputs = [TopicPartition(topic, task_id.partition) for topic in sorted(group.topics)]
            known = task.source_offsets()
            runner = TaskRunner(task, group, settings, {at: known.get(at, 0) for at in inputs})
            for one in runner.inputs.values():
                one.at_end = True  # without fetching, an input has all its records at all times
            self._runners[task_id] = runner
        for runner in self._runners.values():
            runner.start()
        self._settle()

    def _own_input(self, name: str, partition: int) -> OwnInput:
        node = self._nodes.get(f"{name}-source")
        if not isinstance(node, SourceNode) or node.own is None:
            raise self._no_source(name)
        if partition not in range(node.own.partitions):
            raise InvalidRequest(
                f"driver: {name!r} has {node.own.partitions} partitions, not one numbered {partition!r}"
            )
        one = self._runners[TaskId(self._readers[node.topic], partition)].inputs[node.topic]
        assert isinstance(one, OwnInput)
        return one

    def _collected(self, one: OwnInput, record: Record, offset: int) -> None:
        runner = self._runners[TaskId(self._readers[one.topic], one.partition)]
        runner.take_collected(one, [(record, offset)], at_end=True)
        self._settle()
        if self._commit_each_record:
            self.commit()

    def _no_source(self, name: str) -> InvalidRequest:
        topology = self._assembled.topology
        known = few((*topology.source_topics, *(one.label for one in topology.own_sources)))
        return InvalidRequest(f"driver: {name!r} is not a source of {self.app.name!r} (sources: {known})")

    def _close(self) -> None:
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
        self._routed.clear()
        for one in reversed(self._held):
            one.close()
        self._held.clear()

    def _deliver(
        self, at: TopicPartition, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers
    ) -> None:
        offset = self._offsets[at]
        self._offsets[at] = offset + 1
        record = LogRecord(offset, timestamp, key, value, headers)
        self._runners[TaskId(self._readers[at.topic], at.partition)].add(at.topic, [record], offset + 1, True)

    def _settle(self) -> None:
        """Process until nothing is left; commit if a task requested it."""
        self._route()
        self._run_all()
        for _ in range(ROUNDS_MAX):
            if not self._commit_asked and not any(_wants_commit(runner) for runner in self._runners.values()):
                return
            self._commit_asked = False
            self.commit()
        raise InternalError(f"driver: {self.app.name!r} asks for a commit after every commit")

    def _run_all(self) -> bool:
        """Process all waiting records; return whether there were any."""
        progress, any_progress = True, False
        while progress:
            progress = False
            for runner in self._runners.values():
                # One record at a time, so that its outputs reach the next task before the following record.
                while runner.run(1) or runner.in_flight:
                    progress = any_progress = True
                    self._finish_calls(runner)
                    self._route()
                    if _wants_commit(runner):
                        runner.task.commit_requested = False
                        self._commit_asked = True  # the commit follows once nothing is left to process
        return any_progress

    @staticmethod
    def _finish_calls(runner: TaskRunner) -> None:
        """Wait for the results of asynchronous steps: each record's are there before the next one is processed."""
        while True:
            runner.collect()
            if not runner.in_flight:
                return
            runner.wait_for_call(CALL_WAIT_MS)

    def _route(self) -> bool:
        """Pass the records written since the last call: to the next task, to the test, or to both."""
        moved = False
        internal = {one.name for one in self._assembled.topology.internal}
        for task_id, runner in self._runners.items():
            for at, written in list(runner.task.outputs.items()):
                seen = self._routed.get((task_id, at), 0)
                self._routed[task_id, at] = len(written)
                for one in written[seen:]:
                    moved = True
                    if at.topic in self._readers:
                        self._deliver(at, *one)
                    if at.topic not in internal:
                        self._results[at.topic].append(one)
        return moved

    def _serdes(self, topic: str) -> tuple[Serde[Any], Serde[Any]]:
        for node in self._nodes.values():
            if isinstance(node, SinkNode) and node.topic == topic:
                return node.key, node.value
            if isinstance(node, SourceNode) and node.settings.late == topic:
                return node.settings.key, node.settings.value
            if isinstance(node, ProcessorNode) and node.late == topic and node.given is not None:
                return node.given
        return raw_bytes, raw_bytes


class _Port:
    """The port of a source that the test runs: each record is processed before `collect` returns."""

    def __init__(self, driver: Driver, one: OwnInput, records_max: int | None) -> None:
        self.records = 0
        self.cancelled = False
        self.error: Exception | None = None
        self._driver = driver
        self._one = one
        self._records_max = records_max

    def put(self, record: Record, offset: int) -> None:
        if self.cancelled:
            raise Closed("driver: the run of the source was cancelled: return from run()")
        self._driver._collected(self._one, record, offset)
        self.records += 1
        self.cancelled = self.records == self._records_max

    def wait(self, seconds: float) -> bool:
        self.cancelled = True  # nothing will come while the test is in this call
        return True

    def fail(self, error: Exception) -> None:
        self.error = self.error or error

    def wall_ms(self) -> int:
        return self._driver.clock.wall_ms()


def _wants_commit(runner: TaskRunner) -> bool:
    return runner.task.commit_requested or runner.task.stores.buffer.full


def _raw(serde: Serde[Any], given: Any) -> bytes | None:
    if given is None:
        return None
    try:
        return serde.serialize(given)
    except Exception as error:
        if isinstance(given, bytes):
            return given
        raise InvalidRequest(
            f"driver: the source's serde {serde.name!r} cannot write {given!r:.100} ({type(error).__name__}: {error}): "
            "give a value that it can write, or bytes"
        ) from error


def _clean_up(held: list[Session | CallLoop], folder: Path) -> None:
    with ExitStack() as last:  # in reverse; each step runs, whatever errors the earlier ones raise
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        for one in held:
            last.callback(one.close)
