"""The sidecar's process: one event loop with both servers, one control thread, worker processes for restores.

    settings ──> lock of the run directory ──> lock of the state directory ──> sockets ──> info file ──> call me
    TERM, INT   drain: no new work, wait for commits, close the tasks, exit 0; a second one: stop now
    HUP         read tokens, TLS files and the log level again       USR1  status to the log       QUIT  stacks

Rules of this file: the composition root. It decides only the order of steps; addresses are announced only once they can
be called. A kill at any moment loses nothing that a commit acknowledged, so an orderly stop is quick and never needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from standfast.ops.config.config import Loaded
from standfast.ops.config.rules import socket_problem
from standfast.ops.config.types import Config
from standfast.ops.observe.health import live, ready
from standfast.ops.observe.metrics import SidecarMetrics, SidecarReading
from standfast.ops.observe.metrics_servers import HttpNumbers, LoopLag
from standfast.ops.observe.status_merge import added
from standfast.ops.page.page import OpsPage
from standfast.ops.page.peek import PeekedRecords, look
from standfast.ops.security.audit import Audit
from standfast.ops.security.http_guard import is_admin, readable
from standfast.ops.security.tokens import Tokens
from standfast.ops.shared.log_lines import configure
from standfast.ops.shared.run_file import RunInfo, remove_run_file, write_run_file
from standfast.ops.shared.serve_files import RunDir, listen_tcp
from standfast.ops.shared.text import dumps
from standfast.ops.sidecar.control.answers import PROTOCOL, Answers
from standfast.ops.sidecar.control.plane import ControlPlane
from standfast.ops.sidecar.control.routes import ControlRoutes
from standfast.ops.sidecar.engine.statistics import RespStatistics
from standfast.ops.sidecar.page_status import page_status
from standfast.ops.sidecar.serve_http import SidecarHttp, application
from standfast.ops.sidecar.serve_resp import open_resp_server
from standfast.ops.sidecar.systemd import Notifier
from standfast.replication.kafka.address import KafkaAddress
from standfast.replication.tail.open_log import open_log, parse_address
from standfast.restore.snapshot.opening import missing_library
from standfast.store.base.version import __version__
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import BadConfig, Held, StandfastError
from standfast.store.log import as_event, logger
from standfast.store.task.state_dir import StateDir, pid_alive
from standfast.stream.session.membership import naming_former_id

# A worker of a killed server ends by its pidfd and holds the inherited lock until then.
LOCK_WAIT_MS = 10_000
BEAT_S = 0.5
SWITCH_S = 0.0005  # the longest that another thread, a commit's, may keep the interpreter from the event loop
CLOSE_S = 5.0  # share of a stop's deadline that is kept for closing the tasks
Reload = Callable[[], Config]


def check(config: Config) -> None:
    """Raise BadConfig for missing settings that a sidecar needs, and for a socket path that is too long."""
    needed = (("app.name", config.app.name), ("app.log", config.app.log), ("app.state_dir", config.app.state_dir))
    problems = [f"{name} is missing: a sidecar needs it" for name, value in needed if value is None]
    if (problem := socket_problem(config)) is not None:
        problems.append(f"serve.run_dir: {problem}")
    if config.group.max_tasks is not None:
        problems.append(
            "group.max_tasks is for `standfast run`, whose tasks a leader places: programs of a sidecar choose "
            "theirs; leave it out"
        )
    if config.snapshot_policy is not None:
        problems += missing_library()
    if problems:
        raise BadConfig(problems)


def check_log(config: Config) -> None:
    """Raise Unavailable if the log cannot be reached."""
    assert config.log_address is not None
    where = parse_address(config.log_address)
    if not isinstance(where, KafkaAddress):
        open_log(config.log_address).close()
        return
    from standfast.ops.tools.kafka_probe import check_listening

    check_listening(where.servers)


def serve(loaded: Loaded, reload: Reload | None = None) -> int:
    """Run the sidecar until it is stopped. Raises BadConfig, Held, Unavailable before anything can be called."""
    config = loaded.config
    check(config)
    run_dir = config.run_dir
    assert config.app.name is not None and config.app.state_dir is not None and run_dir is not None
    assert config.log_address is not None
    configure(config.logging.level, config.logging.format)
    # The default of 5 ms gave RESP reads a p99 of 9.6 ms beside a busy thread of the same process; 0.5 ms gave 3.1 ms.
    sys.setswitchinterval(SWITCH_S)
    clock = SystemClock()
    with ExitStack() as opened:
        (config.app.state_dir / config.app.name).mkdir(mode=0o700, parents=True, exist_ok=True)
        # Locks before sockets: binding takes the path of a live socket over without a word.
        run = RunDir(run_dir)
        opened.callback(run.close)
        # RocksDB's own lock says only "Resource temporarily unavailable", and task by task.
        with naming_former_id(config.app.name, config.log_address):
            state = own_state(config.app.state_dir, config.app.name, clock)
        opened.callback(state.close)
        # Before the sockets open, so that a log that cannot be reached refuses the start.
        check_log(config)
        http_socket = opened.enter_context(listen_tcp(config.http.host, config.http.port))
        sidecar = Sidecar(loaded, run, state, clock, reload)
        # Also while the event loop hangs: the handler needs no interpreter.
        faulthandler.register(signal.SIGQUIT, all_threads=True)
        # A RESP call takes 31 us with uvloop and hiredis, about what redis-server takes on the same machine.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(sidecar.main(http_socket))


def own_state(state_dir: Path, app: str, clock: Clock) -> StateDir:
    """Lock the state directory; the worker of a killed sidecar gets LOCK_WAIT_MS to end. Raises Held."""
    deadline_ms = clock.monotonic_ms() + LOCK_WAIT_MS
    while True:
        try:
            return StateDir(state_dir, app)
        except Held:
            holder = (state_dir / app / "LOCK").read_text(errors="replace").removeprefix("pid ").strip()
            # Only a dead holder is waited for: its worker is about to end. A living sidecar keeps the lock.
            if not holder.isdigit() or pid_alive(int(holder)) or clock.monotonic_ms() >= deadline_ms:
                raise
            clock.sleep_ms(20)


class Sidecar:
    """The sidecar of one process, from the sockets to the exit code."""

    def __init__(self, loaded: Loaded, run: RunDir, state: StateDir, clock: Clock, reload: Reload | None) -> None:
        self._loaded = loaded
        self._config = config = loaded.config
        self._run = run
        self._state = state
        self._clock = clock
        self._reload = reload
        self._notify = Notifier()
        self._audit = Audit(clock)
        self._tokens = Tokens(config.auth.tokens_file)
        self._beat_ms = clock.monotonic_ms()
        self._numbers = HttpNumbers()
        self._lag = LoopLag()
        self._server: RespStatistics | None = None  # as of the last beat or scrape
        self._metrics = SidecarMetrics(self._reading, clock, state.path)
        self._closing: list[Callable[[], None]] = []  # ends of the page's streams, called before the servers close
        self._resp_path = str(run.path / config.serve.socket)

    async def main(self, http_socket: socket.socket) -> int:
        """Serve until a signal or a drain ends it."""
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.plane = plane = ControlPlane(self._config, self._state, loop, self._clock)
        self.answers = Answers(plane, self._state.instance_id, self._resp_path)
        routes = ControlRoutes(plane, self.answers, self._loop_age_ms, self._scrape)
        routes.on_drain = self._drain
        plane.events.heard = self._heard
        peek = self._look if self._config.http.peek else None
        page = None
        if self._config.http.page:
            page = OpsPage(self._page_status, self._clock, peek=peek, acts=is_admin, reads=readable)
        more = [] if page is None else page.routes
        app = application(routes, more, allow_quit=self._config.http.allow_quit)
        self._http = SidecarHttp(app, self._config, self._state.instance_id, self._tokens, self._audit, self._numbers)
        if page is not None:
            self._closing.append(page.close)
        plane.start()
        self._resp = await open_resp_server(plane.engine, self._config, self._tokens, self._audit, self._run.path)
        self._run.made(self._config.serve.socket)
        # Both sockets are open before INFO.json names them, so that a client that finds the file can connect.
        await self._http.start(http_socket)
        self._signals(loop)
        run_info = self._write_info(http_socket)
        watching = [loop.create_task(self._beat()), loop.create_task(self._lag.watch())]
        # Last: systemd starts units that depend on the sidecar once it has READY=1.
        self._notify.tell(READY=1, STATUS="serving")
        logger.info(
            "serving %s: RESP at %s, HTTP at %s:%d",
            self._config.app.name,
            self._resp_path,
            *self._http_at,
            extra=as_event(
                "serving", app=self._config.app.name, resp=str(self._resp_path), http=":".join(map(str, self._http_at))
            ),
        )
        try:
            await self._stop.wait()
            self._notify.tell(STOPPING=1)
            self._end_in_time(run_info)
            return await self._close()
        finally:
            for task in watching:
                task.cancel()
            remove_run_file(self._state.path, run_info)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _loop_age_ms(self) -> int:
        return self._clock.monotonic_ms() - self._beat_ms

    async def _beat(self) -> None:
        """The event loop's heartbeat; feeds the service manager's watchdog only while the process is live."""
        while True:
            self._beat_ms = self._clock.monotonic_ms()
            try:
                self._tell_well()
            except Exception:  # noqa: BLE001  the next beat comes; without its sign the watchdog acts
                logger.exception("the service manager could not be notified", extra=as_event("notify_failed"))
            await asyncio.sleep(BEAT_S)

    def _tell_well(self) -> None:
        self._server = self.plane.engine.statistics()
        # This call runs on the loop, so the loop is alive.
        facts = self.answers.facts(loop_age_ms=0)
        fields: dict[str, str | int] = {"STATUS": ready(facts).text(verbose=False)}
        if live(facts).ok:
            fields["WATCHDOG"] = 1
        self._notify.tell(**fields)

    async def _scrape(self) -> bytes:
        self._server = self.plane.engine.statistics()  # on the loop, whose numbers they are
        return await asyncio.to_thread(self._metrics.exposition)

    def _reading(self) -> SidecarReading:
        plane = self.plane
        numbers = (self._server, self._numbers, self._lag, self.answers.verified)
        statistics = plane.session.statistics()
        counters = added([statistics.counters, plane.timers.counters])
        return SidecarReading(replace(statistics, counters=counters), plane.ready, *numbers)

    def _page_status(self) -> Mapping[str, Any]:
        return page_status(
            self.answers.status(),
            state_path=self._state.path,
            disk_floor_bytes=self._config.state.disk_floor_bytes,
            audit=self._audit,
            loaded=self._loaded,
            resp_server=self._server,
            http_server=self._numbers,
            schedules=self.plane.timers.shown(),
        )

    def _look(self, store: str, partition: int) -> PeekedRecords:
        """The end of a changelog, for the page."""
        log, changelog = self.plane.session.changelog(store, partition)
        return look(log, changelog)

    def _heard(self, event: str, data: Mapping[str, Any]) -> None:
        """Add events of the sidecar's own (task, fenced, draining) to the audit and the page's list of events."""
        if event in ("task", "fenced", "draining"):
            self._audit.done(event, "sidecar", **{name: str(value) for name, value in data.items()})

    def _write_info(self, http_socket: socket.socket) -> RunInfo:
        host, port = http_socket.getsockname()[:2]
        self._http_at = (host, port)
        scheme = "https" if self._config.tls else "http"
        # Without brackets the colons of an IPv6 address would read as a port.
        shown = f"[{host}]" if ":" in host else host
        info = {
            "protocol": PROTOCOL,
            "version": __version__,
            "app": self._config.app.name,
            "instance": self._state.instance_id,
            "pid": os.getpid(),
            "resp_socket": self._resp_path,
            "http": f"{scheme}://{shown}:{port}",
        }
        # Only the owner's own tools may read our files in the run directory, and with them this token.
        token = self._tokens.issue() if self._tokens.from_file else None
        # The group may read INFO.json, so the token goes into a file of its own.
        self._run.write_info(info, token, self._config.serve.group)
        run_info = RunInfo(
            str(self._config.app.name),
            self._state.instance_id,
            os.getpid(),
            host,
            port,
            self._clock.wall_ms(),
            __version__,
            scheme,
            str(self._run.path),
        )
        # In the state directory: the run directory may be anywhere.
        write_run_file(self._state.path, run_info)
        return run_info

    def _signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        loop.add_signal_handler(signal.SIGUSR1, self._on_status)

    def _on_stop(self) -> None:
        if self._stop.is_set():
            logger.warning("second request to stop: stopping now", extra=as_event("stop_forced"))
            # `os._exit` runs no cleanup, so the files of the run directory are removed here.
            self._run.close()
            os._exit(0)  # acknowledged writes are durable, and uncommitted ones belong to no client any more
        logger.info("request to stop: draining", extra=as_event("stop_requested"))
        self._stop.set()

    def _on_reload(self) -> None:
        try:
            self._tokens.reload()
            if self._http.tls is not None:
                self._http.tls.reload()
            if self._reload is not None:
                logging_now = self._reload().logging
                configure(logging_now.level, logging_now.format)
        except StandfastError as error:
            self._audit.failed("reload", "signal")
            logger.error("the reload ended with an error: %s", error, extra=as_event("reload_failed"))
        else:
            self._audit.done("reload", "signal")
            logger.info("reloaded: tokens, TLS files, log level", extra=as_event("reloaded"))

    def _on_status(self) -> None:
        def tell() -> None:
            print(dumps(self.answers.status()), file=sys.stderr, flush=True)

        # In a thread: status takes the session's lock, which restore work holds, and the loop must not wait for it.
        asyncio.get_running_loop().run_in_executor(None, tell)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _drain(self, wait_s: float) -> None:
        """Take no new work, wait until running work is committed, close the tasks. Repeated: waits for the same."""
        await asyncio.wrap_future(self.plane.call(self.plane.drain))
        deadline_ms = self._clock.monotonic_ms() + wait_s * 1_000
        while self._uncommitted() and self._clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(0.02)
        # Also with uncommitted writes left: clients had `wait_s` to commit them, and nothing of them was acknowledged.
        await asyncio.wrap_future(self.plane.call(self.plane.close_tasks))

    def _uncommitted(self) -> bool:
        """Whether an open connection has uncommitted writes."""
        # Without a client nothing more will be committed.
        return bool(self._resp.clients) and self.plane.uncommitted

    def _end_in_time(self, run_info: RunInfo) -> None:
        """Enforce the stop's one deadline with a timer, because loop, pool threads and the log may all hang."""
        timeout_s = self._config.serve.drain_timeout_ms / 1_000

        def end() -> None:
            logger.warning(
                "the sidecar did not close within %.1f s; nothing acknowledged is lost",
                timeout_s,
                extra=as_event("close_overdue"),
            )
            with contextlib.suppress(OSError):
                self._run.close()
                remove_run_file(self._state.path, run_info)
            # Threads that hang in the log would keep any other exit waiting.
            os._exit(0)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()

    async def _close(self) -> int:
        timeout_s = self._config.serve.drain_timeout_ms / 1_000
        try:
            # Closing gets its own share: clients that never commit would use up the whole deadline.
            await self._drain(timeout_s - min(CLOSE_S, timeout_s / 2))
        except (StandfastError, TimeoutError) as error:
            logger.warning(
                "the tasks could not be closed cleanly; nothing that was acknowledged is lost: %s",
                error,
                extra=as_event("close_failed"),
            )
        # Streams have no end of their own, so the HTTP server would wait for them.
        self.plane.events.close()
        for end in self._closing:
            end()
        await self._resp.close()
        await self._http.close()
        self.plane.stop()
        await asyncio.to_thread(self.plane.join)
        return 0
