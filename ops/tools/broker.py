"""A real Kafka broker on this machine, for trying and testing: one node, loopback only.

    <directory>/server.properties, log4j2.properties    written at each start
                data/                                    its log: topics outlive the broker
                broker.log                               its output; the former log is broker.log.1
                PORTS.json                               its last ports, taken again if they are free
                BROKER.json                              the process, while one runs (`broker_state`)

    Broker(directory).start() ──> address ──> kill(), start() again ──> stop()

Rules of this file: one process, ours by id and start time; no other process is ever signalled. Readiness is an answer
to a real request. It knows nothing of the topics' contents.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from standfast.ops.shared.loopback import HOST, free_port, is_free
from standfast.ops.shared.process_id import identify
from standfast.ops.tools.broker_settings import LOGGING, properties_text, server_properties
from standfast.ops.tools.broker_state import RunningBroker, end_broker, record_broker, running_broker
from standfast.ops.tools.cache import Say
from standfast.ops.tools.jars import ensure_jars, load_jar_set
from standfast.ops.tools.java import ensure_java
from standfast.ops.tools.kafka_probe import live_nodes
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import Closed, Held, InvalidRequest, Unavailable
from standfast.store.files import write_atomically

JAR_SET = "kafka"
PORTS_FILE = "PORTS.json"
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true", "-XX:+ExitOnOutOfMemoryError")
# C1 only: half of the processor time to start, slower later.
JVM_LIGHT: tuple[str, ...] = ("-XX:TieredStopAtLevel=1",)
START_MS_MAX = 90_000
FORMAT_S_MAX = 60.0
PROBE_S_MAX = 2.0
PROBE_EVERY_MS = 30
START_TRIES = 3
LOG_BYTES_MAX = 16 << 20
LOG_TAIL_LINES = 15
PORT_TAKEN = "Address already in use"
STACK_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


class Broker:
    """One broker in `directory`, which is created if absent and keeps its topics.

    `port` 0 takes the broker's last port, or a free one. `settings` are Kafka's own and win over ours (`{port}` and
    `{controller_port}` stand for the ports). `light` compiles less: half the processor time to start, slower later.
    `bound` ends the broker with the thread that started it, however that ends. `say` gets a line for each download.
    """

    def __init__(
        self,
        directory: str | Path,
        port: int = 0,
        *,
        settings: Mapping[str, str] | None = None,
        light: bool = False,
        bound: bool = True,
        say: Say = lambda text: None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= port < 1 << 16:
            raise InvalidRequest(f"port is {port}: give 1 to 65535, or 0 for a free one")
        self.directory = Path(directory).absolute()
        self._port = port
        self._settings = dict(settings or {})
        self._light = light
        self._bound = bound
        self._say = say
        self._clock = clock or SystemClock()
        self._child: subprocess.Popen[bytes] | None = None
        self._running: RunningBroker | None = None

    @property
    def running(self) -> RunningBroker:
        """The broker of the last start, also after a kill. Raises Closed before the first start."""
        if self._running is None:
            raise Closed(f"the broker in {self.directory} was not started")
        return self._running

    @property
    def address(self) -> str:
        """`host:port`, for clients. Raises Closed before the first start."""
        return self.running.address

    @property
    def log_path(self) -> Path:
        """The file of the broker's output."""
        return self.directory / "broker.log"

    def start(self) -> RunningBroker:
        """Start the broker and return once it answers.

        Raises Held if a broker runs on the directory or the port is taken, Unavailable if it cannot be fetched or does
        not come up (with the last lines of its log), Corruption if a fetched file differs from its pinned digest.
        """
        with self._alone():
            java = ensure_java(self._say)
            jar_set = load_jar_set(JAR_SET)
            program = [str(java.path), *JVM, *(JVM_LIGHT if self._light else ())]
            program += [f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"]
            program += ["-cp", f"{ensure_jars(jar_set, java, self._say)}/*"]
            for tries_left in reversed(range(START_TRIES)):
                port, controller_port = self._choose_ports()
                self._write_settings(port, controller_port)
                self._format(program)
                try:
                    self._launch(program, port, jar_set.version, java.path)
                    break
                except Unavailable as error:
                    # Another process took a port between our choice and the broker's listening on it.
                    if tries_left == 0 or self._port != 0 or PORT_TAKEN not in str(error):
                        raise
                    (self.directory / PORTS_FILE).unlink()
            if self._child is not None and not self._bound:
                # The broker outlives this process, which never waits for it: without a return code Python would warn
                # of a child that still runs.
                self._child.returncode = 0
                self._child = None
            return self.running

    def stop(self) -> None:
        """Stop the broker in order, or by SIGKILL if that takes too long. Does nothing if it does not run."""
        end_broker(self.directory, self._clock)
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone; start() brings it back, with its topics and its port."""
        end_broker(self.directory, self._clock, at_once=True)
        self._reap()

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the directory while starting."""
        # Two starts at the same moment would format one data folder, and run two brokers on it.
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidRequest(f"{self.directory} cannot hold a broker ({error}): name another directory") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Held(f"another process is starting a broker in {self.directory}: wait for it") from None
            if running := running_broker(self.directory):
                raise Held(
                    f"a broker runs in {self.directory} already: pid {running.pid} at {running.address}. Use it, stop "
                    "it (standfast broker down), or name another directory"
                )
            yield
        finally:
            os.close(lock)

    def _choose_ports(self) -> tuple[int, int]:
        """The ports for clients and for the controller. Raises Held if the given port is taken."""
        if self._port != 0 and not is_free(self._port):
            raise Held(f"port {self._port} on {HOST} is taken by another process: name another, or 0 for a free one")
        path = self.directory / PORTS_FILE
        # The last ports, so that clients reconnect after a kill.
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        last, last_controller = before.get("port", 0), before.get("controller_port", 0)
        # Listeners of the caller's own take their ports only when the broker starts.
        named = set(map(int, re.findall(r":(\d+)", self._settings.get("listeners", ""))))
        port = self._port or (last if last and is_free(last) else free_port(but=named))
        again = last_controller not in (0, port) and is_free(last_controller)
        controller_port = last_controller if again else free_port(but={port, *named})
        write_atomically(path, json.dumps({"port": port, "controller_port": controller_port}) + "\n")
        return port, controller_port

    def _write_settings(self, port: int, controller_port: int) -> None:
        values = server_properties(self.directory / "data", port, controller_port, self._settings)
        write_atomically(self.directory / "server.properties", properties_text(values))
        write_atomically(self.directory / "log4j2.properties", LOGGING)

    def _format(self, program: list[str]) -> None:
        """Format the data folder, once."""
        if (self.directory / "data/meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(b"sf" + uuid.uuid4().bytes[2:]).decode().rstrip("=")  # never begins with "-"
        command = [*program, *JVM_LIGHT, "kafka.tools.StorageTool", "format", "--cluster-id", cluster]
        command += ["--ignore-formatted", "--config", str(self.directory / "server.properties")]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=FORMAT_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(
                f"the data folder of the broker in {self.directory} cannot be formatted: {error}"
            ) from error
        if done.returncode != 0:
            raise Unavailable(
                f"the data folder of the broker in {self.directory} cannot be formatted; the last lines:\n"
                f"{_tail(done.stdout)}"
            )

    def _launch(self, program: list[str], port: int, version: str, java: Path) -> None:
        """Start the process and wait until it answers; if it does not, end it and remove its file."""
        # Only at a start, since a running broker writes to the file that it has open.
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_name("broker.log.1"))
        command = [*program, "kafka.Kafka", str(self.directory / "server.properties")]
        if self._bound:
            # -P, because modules in the broker's directory must not be imported.
            command = [sys.executable, "-P", "-m", "standfast.ops.tools.bound_exec", str(os.getpid()), *command]
        with self.log_path.open("ab") as log:
            log_from = log.tell()
            # A session of its own: a Ctrl-C in the terminal must not reach the broker before its clients are done.
            child = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            process = identify(child.pid)
            if process is not None:
                # Before it answers, so that `down` finds a broker whose starter was killed meanwhile.
                running = RunningBroker(
                    process.pid, process.started_ticks, process.boot, port, version, str(java), str(self.log_path)
                )
                record_broker(self.directory, running)
                self._running = running
            self._child = child
            self._wait_ready(child, port, log_from)
        except BaseException:
            child.kill()
            self._child = child
            self.kill()  # removes BROKER.json too
            raise

    def _wait_ready(self, child: subprocess.Popen[bytes], port: int, log_from: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + START_MS_MAX
        while True:
            answered = live_nodes(HOST, port, PROBE_S_MAX)
            code = child.poll()
            # An answer beside an exit code comes from another broker, which has the port.
            if answered and code is None:
                return
            if code is not None or self._clock.monotonic_ms() >= deadline_ms:
                ended = f"ended with exit code {code}" if code is not None else f"gave no answer in {START_MS_MAX} ms"
                with self.log_path.open("rb") as log:
                    log.seek(log_from)
                    told = _tail(log.read())
                raise Unavailable(
                    f"the broker in {self.directory} did not start: it {ended}; the last lines of {self.log_path}:\n"
                    f"{told}"
                )
            self._clock.sleep_ms(PROBE_EVERY_MS)

    def _reap(self) -> None:
        """Wait for the broker if it is a child of this process, so that no zombie is left."""
        if self._child is not None:
            self._child.wait()
            self._child = None


def _tail(output: bytes) -> str:
    """The last lines with a cause: without stack frames, and without info lines if there are others."""
    lines = [line.rstrip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not STACK_FRAME.match(line)]
    told = [line for line in lines if " INFO " not in line] or lines
    return "\n".join(f"    {line}" for line in told[-LOG_TAIL_LINES:]) or "    (it wrote nothing)"
