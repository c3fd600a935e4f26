"""The control plane in the test's process, while its thread is busy, a commit runs or the log is away."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

import standfast as sf
from standfast.ops.config.types import Config
from standfast.ops.observe.health import ready
from standfast.ops.observe.verdict import verdict
from standfast.ops.shared.error_codes import NOT_ACTIVE, NOT_ASSIGNED, ErrorCode, Refused
from standfast.ops.sidecar.control import routes as control_routes
from standfast.ops.sidecar.control.answers import Answers
from standfast.ops.sidecar.control.plane import ControlPlane
from standfast.ops.sidecar.control.schema import Assignment, Revoke, Store, Stores, Task
from standfast.ops.sidecar.engine.commit import CommitRequest
from standfast.ops.sidecar.engine.task import Binding, Commit
from standfast.ops.sidecar.serve_http import HEALTH, application, bounded
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.shapes import fit
from standfast.store.clock import SystemClock
from standfast.store.errors import Fenced, InvalidRequest, Unavailable
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.task import Task as OwnTask

T = TypeVar("T")
WAIT_S = 60.0  # a starved machine takes its time
AT_200 = CommitRequest(seq=1, offsets={("t", 0): 200})


class Plane:
    """A control plane without a worker process, and its answers."""

    def __init__(self, root: Path) -> None:
        config = Config()
        app = replace(config.app, name="app", log=f"sqlite:///{root}/log", state_dir=root / "s")
        # No test here is about the lease of a member, which a starved machine renews too late.
        group = replace(config.group, lease_ms=60_000)
        self.config = replace(config, app=app, group=group, serve=replace(config.serve, workers=0))
        (root / "s" / "app").mkdir(parents=True)
        state = StateDir(root / "s", "app")
        self.plane = ControlPlane(self.config, state, asyncio.get_running_loop(), SystemClock())
        self.answers = Answers(self.plane, "i", "x")
        self.plane.start()

    async def call(self, job: Callable[[], T]) -> T:
        return await asyncio.wait_for(asyncio.wrap_future(self.plane.call(job)), WAIT_S)

    async def assign(self, generation: int, *active: int, **more: Any) -> None:
        tasks = [{"partition": one, "role": "active"} for one in active]
        # A test without heartbeats is not about the lease of the application, which ends after 10 s by default.
        body = {"generation": generation, "tasks": tasks, "lease_ms": 600_000, **more}
        await self.call(lambda: self.plane.assign(fit(body, Assignment)))

    async def revoke(self, **body: Any) -> dict[int, dict[str, int]]:
        return await self.call(lambda: self.plane.revoke(fit(body, Revoke)))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def ready(self) -> None:
        await self.until(lambda: self.answers.ready()["ready"])

    async def committing(self, request: CommitRequest) -> tuple[Binding, Commit]:
        """Partition 0 with a row written and its commit begun, and the committing connection."""
        await self.assign(1, 0)
        await self.ready()
        engine = self.plane.engine
        binding = engine.connect()
        engine.write(binding).task.stores.store("kv").put_raw(b"count", b"200", 1)
        commit = engine.begin_commit(binding, request)
        assert isinstance(commit, Commit)
        return binding, commit


def refused(task: OwnTask) -> None:
    """Have the log refuse a commit before its first byte."""
    steps = task.commit_steps()
    next(steps)
    away = Unavailable("the log is away")
    away.unwritten = True
    with pytest.raises(Unavailable, match="away"):
        steps.throw(away)


class CountedLock:
    """The lock of a session, which counts how often a thread takes it."""

    def __init__(self, lock: Any, thread: int) -> None:
        self._lock = lock
        self._thread = thread
        self.taken = 0

    def __enter__(self) -> None:
        self.taken += threading.get_ident() == self._thread
        self._lock.__enter__()

    def __exit__(self, *why: Any) -> None:
        self._lock.__exit__(*why)


def on_plane(root: Path, test: Callable[[Plane], Awaitable[None]]) -> None:
    """Run a test on an event loop, with stores declared."""

    async def run() -> None:
        plane = Plane(root)
        stores = Stores((Store("kv", "keyvalue"),), 3)
        await plane.call(lambda: plane.plane.declare(stores))
        try:
            await test(plane)
        finally:
            await plane.call(plane.plane.close_tasks)
            plane.plane.stop()

    asyncio.run(run())


def test_heartbeats_in_time_keep_the_lease_while_the_control_thread_is_busy(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0, lease_ms=300)
        go_on = threading.Event()
        busy = asyncio.ensure_future(made.call(lambda: go_on.wait(WAIT_S)))
        for _ in range(8):
            await asyncio.sleep(0.1)
            made.plane.heartbeat(1)
        go_on.set()
        await busy
        await made.call(made.plane.tick)
        assert not made.plane.lease.ended
        with pytest.raises(Fenced):
            made.plane.heartbeat(0)
        await made.until(lambda: made.plane.lease.ended)
        with pytest.raises(Fenced):
            made.plane.heartbeat(1)

    on_plane(tmp_path, test)


def test_lease_begins_once_the_tasks_were_opened(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        session = await made.call(lambda: made.plane.session.session)
        opened, assign = threading.Event(), session.assign

        def slow(**wanted: Any) -> None:
            opened.wait(0.5)
            assign(**wanted)

        session.assign = slow  # type: ignore[method-assign, assignment]
        await made.assign(1, 0, lease_ms=300)
        await made.call(made.plane.tick)
        assert not made.plane.lease.ended

    on_plane(tmp_path, test)


async def end_lease(made: Plane) -> None:
    """Silence of the application for as long as its lease."""
    plane = made.plane
    await made.call(lambda: setattr(plane, "lease", replace(plane.lease, until_ms=plane.clock.monotonic_ms())))
    await made.until(lambda: plane.lease.ended)
    await made.call(plane.tick)  # a whole round later


def idle_everywhere(made: Plane) -> bool:
    """Readiness, status and page say that the lease of generation 1 ended, and the probe fails."""
    told, status = made.answers.ready(), made.answers.status()
    health, shown = ready(made.answers.facts(loop_age_ms=0)), verdict(status)
    words = [told["idle"], status["sidecar"]["idle"], shown.text, *health.document()["reasons"]]
    assert (told["ready"], status["ready"], health.ok, shown.word) == (False, False, False, "IDLE")
    return all(re.search(r"lease of generation 1 ended \d+ s ago$", word) for word in words)


def test_wait_for_readiness_ends_with_the_lease_and_readiness_status_and_page_say_idle(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        made.plane.session.mover.want = lambda *wanted, **named: None  # type: ignore[method-assign]
        await made.assign(1, 0, lease_ms=60_000)  # no task is opened, so the call waits for readiness
        waiting = asyncio.ensure_future(get(made, "/v1/ready?wait=60000"))
        await asyncio.sleep(0)
        await end_lease(made)
        response = await asyncio.wait_for(waiting, WAIT_S)
        told = response.json()
        assert (response.status_code, told["ready"]) == (200, False)
        assert re.fullmatch(r"lease of generation 1 ended \d+ s ago", told["idle"])
        assert idle_everywhere(made)
        with pytest.raises(Refused, match="the lease of generation 1 has ended"):
            made.plane.table.running(0)

    on_plane(tmp_path, test)


@pytest.mark.parametrize("how", ["lease", "standby", "gone"])
def test_partition_that_leaves_is_not_said_to_become_ready_while_its_task_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0, **({"lease_ms": 300} if how == "lease" else {}))
        await made.ready()
        session = made.plane.session.session
        assert session is not None
        seen: list[tuple[ErrorCode, str]] = []
        hold = session.hold

        def holding(*args: Any, **more: Any) -> Any:
            with pytest.raises(Refused) as refused:
                made.plane.table.running(0)
            seen.append((refused.value.reason, str(refused.value)))
            return hold(*args, **more)

        monkeypatch.setattr(session, "hold", holding)
        if how == "lease":
            await made.until(lambda: seen)
        else:
            tasks = [{"partition": 0, "role": "standby"}] if how == "standby" else []
            asked = fit({"generation": 2, "tasks": tasks}, Assignment)
            await made.call(lambda: made.plane.assign(asked))
        reason, text = seen[0]
        assert reason == (NOT_ACTIVE if how == "standby" else NOT_ASSIGNED), text
        assert ("the lease of generation 1 has ended" in text) == (how == "lease")

    on_plane(tmp_path, test)


def test_sidecar_that_was_abandoned_is_ready_again_with_the_next_assignment(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0, lease_ms=60_000)
        await end_lease(made)
        assert idle_everywhere(made)
        await made.assign(2, 0)
        await made.ready()
        assert made.answers.status()["sidecar"]["idle"] == "" and made.plane.ready

    on_plane(tmp_path, test)


def test_lease_that_ends_after_all_was_revoked_leaves_the_sidecar_ready(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0, lease_ms=60_000)
        await made.revoke(generation=1, partitions=[0])
        await end_lease(made)
        assert made.answers.ready()["ready"] and made.plane.ready

    on_plane(tmp_path, test)


@pytest.mark.parametrize("how", ["revoked", "assigned"])
def test_sidecar_is_unready_for_a_task_that_was_taken_over_until_the_application_lets_go_of_it(
    tmp_path: Path, how: str
) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0, 1)
        await made.ready()
        log = made.config.log_address
        assert log is not None
        with closing(sf.Session("app", log=log, state_dir=tmp_path / "other", partitions=3,
                                stores=list(made.plane.specs))) as other:  # fmt: skip
            await asyncio.to_thread(other.assign, active=(0,))
            await made.until(other.tasks)
            with pytest.raises(Fenced):
                await made.call(lambda: made.plane.table.running(0).commit({("t", 0): 1}))
            await made.until(lambda: made.answers.ready()["fenced"])
            assert not made.answers.ready()["ready"] and not made.plane.ready
            assert not ready(made.answers.facts(loop_age_ms=0)).ok
            assert made.plane.table.running(1)
            if how == "assigned":
                await made.assign(2, 1)
            else:
                await made.revoke(generation=1, partitions=[0])
            await made.ready()
            assert made.answers.ready()["fenced"] == {} and made.plane.ready

    on_plane(tmp_path, test)


@pytest.mark.parametrize("generation", [1, 2])
def test_assignment_waits_for_a_commit_whose_connection_is_gone_and_tells_its_offsets(
    tmp_path: Path, generation: int
) -> None:
    async def test(made: Plane) -> None:
        engine = made.plane.engine
        binding, commit = await made.committing(AT_200)
        engine.disconnect(binding)
        told = made.answers.ready()
        assert (told["ready"], told["tasks"][0]["source_offsets"]) == (False, None)
        assigned = asyncio.ensure_future(made.assign(generation, 0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(assigned), 0.2)
        commit.run()
        engine.end_commit(commit)
        await assigned
        await made.ready()
        told = made.answers.ready()
        assert told["tasks"][0]["source_offsets"] == [{"topic": "t", "partition": 0, "offset": 200}]

    on_plane(tmp_path, test)


def test_writes_of_an_ended_generation_are_discarded_if_their_commit_was_refused(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        engine = made.plane.engine
        _, commit = await made.committing(AT_200)
        assigned = asyncio.ensure_future(made.assign(2, 0))
        await made.until(lambda: engine.generation == 2)
        commit.error = InvalidRequest("refused before anything was written")
        with pytest.raises(InvalidRequest):
            engine.end_commit(commit)
        await assigned
        assert not commit.held.uncommitted

    on_plane(tmp_path, test)


def test_failed_task_is_opened_again_after_an_outage_of_the_log_under_a_new_generation(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0)
        await made.ready()
        session = await made.call(lambda: made.plane.session.session)
        log: Any = session.log
        writer = log.writer

        def away(*arguments: Any, **named: Any) -> Any:
            raise Unavailable("the broker is away")

        def fail() -> None:
            log.writer = away
            session.task(0).fail(Unavailable("the broker is away"))

        await made.call(fail)
        await made.assign(2, 0, 1)
        for _ in range(3):
            await made.call(made.plane.tick)
        assert made.plane.wanted.active == {0, 1}
        assert not made.answers.assignment()["fenced"]
        log.writer = writer
        await made.ready()

    on_plane(tmp_path, test)


def test_partition_whose_files_cannot_be_set_aside_is_opened_again(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0)
        await made.ready()

        def full(partition: int, reason: str) -> None:
            raise OSError("no space left")

        made.plane.session.set_aside = full  # type: ignore[method-assign]
        epoch = made.plane.table.running(0).epoch
        with pytest.raises(OSError, match="no space"):
            await made.call(lambda: made.plane.wipe(0, epoch))
        await made.call(made.plane.tick)
        assert made.plane.session.held().tasks
        await made.ready()

    on_plane(tmp_path, test)


def test_wipe_is_refused_where_the_log_cannot_give_the_rows_back(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0)
        await made.ready()
        session = made.plane.session.session
        spec = next(one for one in session.specs if one.traits.cleanup == {"compact"})
        at = TopicPartition(spec.changelog_of(session.app), 0)
        session.log.producer().append({at: [Outgoing(b"k", b"v", 1)] * 3})
        assert isinstance(session.log, EmbeddedLog)
        session.log.truncate(at, 2)
        epoch = made.plane.table.running(0).epoch
        with pytest.raises(Refused, match=rf"removed from the head of {at} \(it begins at 2\)"):
            await made.call(lambda: made.plane.wipe(0, epoch))
        assert made.plane.session.held().tasks
        await made.ready()

    on_plane(tmp_path, test)


def test_final_positions_of_a_revoke_are_those_after_the_commit_that_ran(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        _, commit = await made.committing(CommitRequest())
        revoked = asyncio.ensure_future(made.revoke(generation=1, partitions=[0], mode="clean"))
        await made.until(lambda: not made.plane.table.now.open)
        commit.run()
        made.plane.engine.end_commit(commit)
        after = {name: at.offset for name, at in commit.held.task.stores.cut.positions.items()}
        assert await revoked == {0: after}

    on_plane(tmp_path, test)


def test_probes_ask_no_disk_and_see_a_control_thread_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(made: Plane) -> None:
        await made.until(lambda: made.plane.disk.free_bytes)
        loop, asked = threading.current_thread().name, set()

        def stale(path: Any) -> None:
            asked.add(threading.current_thread().name)
            raise OSError("stale file handle")

        monkeypatch.setattr(os, "statvfs", stale)
        await made.until(lambda: made.plane.disk.free_bytes == 0)
        assert made.answers.facts(loop_age_ms=0).disk_free_bytes == 0
        assert loop not in asked and "standfast-control" in asked
        go_on = threading.Event()
        busy = asyncio.ensure_future(made.call(lambda: go_on.wait(WAIT_S)))
        await asyncio.sleep(0.2)
        assert made.answers.facts(loop_age_ms=0).control_age_ms >= 100
        go_on.set()
        await busy

    on_plane(tmp_path, test)


async def get(made: Plane, path: str) -> httpx.Response:
    app = application(control_routes.ControlRoutes(made.plane, made.answers, lambda: 0, no_metrics))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        return await client.get(path)


async def no_metrics() -> bytes:
    return b""


def test_active_partitions_are_read_and_stale_rows_are_refused_while_one_partition_cannot_be_read(
    tmp_path: Path,
) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0, 1)
        await made.ready()
        scan = "/v1/stores/kv/scan"
        whole = (await get(made, scan)).json()
        assert [one["partition"] for one in whole["partitions"]] == [0, 1]
        tasks = (Task(0, "active"), Task(1, "standby"))
        await made.call(lambda: made.plane.assign(Assignment(2, tasks)))
        await made.ready()
        assert [one["partition"] for one in (await get(made, scan)).json()["partitions"]] == [0]
        absent = await get(made, "/v1/stores/kv/get?key=k")
        assert absent.status_code == 404
        assert "not read: the standbys of partitions 1, ask their active instances" in absent.text
        assert (await get(made, scan + "?partition=0")).status_code == 200
        held = made.plane.session.held
        made.plane.session.held = lambda: replace(held(), tasks={0: held().tasks[0]})  # type: ignore[method-assign]
        assert (await get(made, scan + "?stale=1")).json()["reason"] == "NOT_ACTIVE"

    on_plane(tmp_path, test)


def test_control_tick_takes_the_lock_of_the_session_once(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        tasks = (Task(0, "active"), Task(1, "standby"))
        await made.call(lambda: made.plane.assign(Assignment(1, tasks)))
        await made.ready()

        def ticks(number: int) -> int:
            session: Any = made.plane.session.session
            lock = session._lock
            counted = session._lock = CountedLock(lock, threading.get_ident())
            try:
                for _ in range(number):
                    made.plane.tick()
            finally:
                session._lock = lock
            return counted.taken

        assert await made.call(lambda: ticks(5)) == 5
        assert sorted(made.plane.table.now.open) == [0]
        assert made.plane.table.now.states == {0: "running", 1: "standby"}

    on_plane(tmp_path, test)


def test_rows_are_not_read_while_the_gate_is_shut(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        await made.assign(1, 0)
        await made.ready()

        def shut() -> httpx.Response:
            now = made.plane.table.now
            made.plane.table.now = replace(now, open={}, states={0: "running"})
            return asyncio.run_coroutine_threadsafe(get(made, "/v1/stores/kv/scan?partition=0"), loop).result(WAIT_S)

        loop = asyncio.get_running_loop()
        assert (await made.call(shut)).json()["reason"] == "RESTORING"

    on_plane(tmp_path, test)


def test_reader_of_events_that_stops_reading_loses_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: Plane) -> None:
        monkeypatch.setattr(control_routes, "SEND_S_MAX", 0.05)
        routes = control_routes.ControlRoutes(made.plane, made.answers, lambda: 0, no_metrics)
        scope = {"type": "http", "method": "GET", "path": "/v1/events", "headers": [], "query_string": b""}
        stream = await routes.events(Request(scope), {})
        assert len(made.plane.events) == 1

        async def nothing() -> Any:
            await asyncio.Event().wait()

        async def takes_the_head(message: Any) -> None:
            if message["type"] != "http.response.start":
                await nothing()

        async with asyncio.timeout(WAIT_S):
            await stream(scope, nothing, takes_the_head)
        assert len(made.plane.events) == 0

    on_plane(tmp_path, test)


def test_probes_are_answered_beside_as_many_requests_as_there_may_be() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] != "/livez":
                await go_on.wait()
            await Response("well")(scope, receive, send)

        transport = httpx.ASGITransport(app=bounded(slow, 1, "", beside=HEALTH))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            first = asyncio.ensure_future(client.get("/v1/events"))
            await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            assert (await client.get("/v1/hello")).json()["reason"] == "LIMIT"
            assert (await client.get("/livez")).status_code == 200
            go_on.set()
            assert (await first).status_code == 200
            assert (await client.get("/v1/hello")).status_code == 200

    asyncio.run(test())


def test_answer_of_a_commit_counts_the_changes_of_a_refused_one_before_it(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        binding, commit = await made.committing(AT_200)
        task = commit.held.task
        refused(task)
        task.stores.store("kv").put_raw(b"other", b"1", 1)
        commit.run()
        assert made.plane.engine.end_commit(commit).changes == 2
        assert binding.held is commit.held

    on_plane(tmp_path, test)


def test_writes_are_shown_as_uncommitted_until_their_commit_has_ended(tmp_path: Path) -> None:
    async def test(made: Plane) -> None:
        _, commit = await made.committing(AT_200)
        task = commit.held.task
        size_bytes = task.stores.buffer.size_bytes
        refused(task)
        assert made.plane.uncommitted, "a drain waits for them"
        [shown] = (await made.call(made.plane.session.statistics)).tasks
        assert shown.buffer_bytes == size_bytes
        commit.run()
        made.plane.engine.end_commit(commit)
        assert not made.plane.uncommitted

    on_plane(tmp_path, test)
