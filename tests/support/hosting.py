"""One program, or session, for each hosting mode, so that tests of all modes ask the same questions.

    Program("app" | "workers" | "run")              a process of `PROGRAM`: counts, calls, dead letters, a source, spans
    opened("external" | "session" | "aio" | "replica" | "sidecar")    a session in this process, on a log with one row
    python -m support.hosting MODE FOLDER           forks under such a session, and prints how each side goes on

Rules of this file: real processes, logs and HTTP; everything that is started here is ended here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import standfast as sf
from standfast import aio
from standfast.ops.http.server import OpsServer
from standfast.ops.shared.run_file import read_run_file
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from support.serve import Sidecars, wait_for

PROGRAMS = ("app", "workers", "run")
SESSIONS = ("external", "session", "aio")
START_S = 90
TEXT = sf.serde.string
STORE = sf.KeyValueStore("counts", TEXT, TEXT)
PROGRAM = """
import asyncio, os, signal
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
import standfast as sf

ROOT = Path(__file__).resolve().parent
TEXT, INT = sf.serde.string, sf.serde.int64


class ToFile(SpanExporter):
    def export(self, spans):
        with (ROOT / "spans.txt").open("a") as file:
            file.writelines(f"{span.name}\\n" for span in spans)
        return SpanExportResult.SUCCESS


class Numbers(sf.Source):
    def run(self, context):
        for number in range(context.position, 5):
            context.collect(sf.Record(f"n{number}", "number", 1_000 + number), number + 1)


def check(value):
    if value == "wrong":
        raise ValueError("a wrong record")
    if value == "fork":
        child = os.fork()
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    return value


async def answer(value):
    await asyncio.sleep(0)
    return f"{value}!"


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
app = sf.App(
    "hosted", log=f"sqlite:///{ROOT}/log", state_dir=ROOT / "state", stores=[sf.KeyValueStore("counts", TEXT, INT)],
    http_port=0, tracing=True, max_tasks=8, commit_interval_ms=50, workers=int(os.environ["HOSTED_WORKERS"]),
    snapshots=sf.SnapshotPolicy(to=str(ROOT / "snapshots"), every_ms=500, checkpoint_every_ms=1_000),
)
stream = app.stream("in", key=TEXT, value=TEXT, on_error="dead_letter", dead_letter="failed").map_values(check)
stream.map_values_async(answer, name="ask").to("out", value=TEXT)
stream.group_by_key().count("counts")
app.stream(Numbers(), name="numbers", key=TEXT, value=TEXT).to("collected", value=TEXT)
signal.signal(signal.SIGUSR1, lambda *_: (app.pause(), (ROOT / "paused").touch()))
signal.signal(signal.SIGUSR2, lambda *_: app.resume())
if __name__ == "__main__":
    app.run()
"""


def ask(address: str, path: str) -> tuple[int, str]:
    """One GET."""
    where = urlsplit(address)
    with closing(HTTPConnection(where.hostname or "", where.port, timeout=30)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


class Hosted:
    """Something with an HTTP server, which has the row `key` of the store `counts`; `root`: a folder of its own."""

    address: str
    root: Path

    def get(self, path: str, status: int = 200) -> str:
        """The answer to a path."""
        found, text = ask(self.address, path)
        assert found == status, f"{path}: {found} {text[:500]}"
        return text

    def document(self) -> dict[str, Any]:
        """The status."""
        found: dict[str, Any] = json.loads(self.get("/v1/status"))
        return found


class Program(Hosted):
    """`PROGRAM` in a process of its own, started at the first use."""

    def __init__(self, mode: str, root: Path) -> None:
        self.root = root
        self._sent = 0
        root.mkdir()
        (root / "hosted.py").write_text(PROGRAM, encoding="utf-8")
        command = ["run", "hosted:app"] if mode == "run" else None
        self._command = [sys.executable, "-m", "standfast", *command] if command else [sys.executable, "hosted.py"]
        self._environment = {**os.environ, "HOSTED_WORKERS": "2" if mode == "workers" else "1"}
        self._log = open_log(f"sqlite:///{root}/log")
        for topic in ("in", "out", "failed", "collected"):
            self._log.admin.create_topic(topic, 2, TopicPolicy())
        with (root / "stderr.txt").open("wb") as errors:
            self.process = subprocess.Popen(self._command, cwd=root, env=self._environment, stderr=errors)
        self.until(lambda: (root / "state/hosted/RUN.json").exists())
        self.address = read_run_file(root / "state" / "hosted").address
        self.send("key", "first")
        self.until(lambda: self.read("out"))
        self.until(lambda: ask(self.address, "/readyz")[0] == 200)

    def until(self, condition: Any) -> None:
        """Wait for it while the program runs."""

        def met() -> bool:
            assert self.process.poll() is None, self.told()
            return bool(condition())

        wait_for(met, START_S, self.told)

    def told(self) -> str:
        """The last lines of the program."""
        return (self.root / "stderr.txt").read_text(errors="replace")[-4_000:]

    def send(self, key: str, value: str) -> None:
        """Write a record to the topic `in`."""
        self._sent += 1
        record = Outgoing(key.encode(), value.encode(), 1_000 + self._sent)
        self._log.producer().append({TopicPartition("in", 0): [record]})

    def read(self, topic: str) -> list[tuple[str, str]]:
        """All records of a topic, as key and value."""
        at = [TopicPartition(topic, number) for number in range(2)]
        with closing(self._log.reader()) as reader:
            reader.assign({one: bounds.begin for one, bounds in reader.bounds(at).items()})
            found: list[Any] = []
            while batches := [one for batch in reader.fetch(10_000) for one in batch.records]:
                found += batches
        return [(one.key.decode(), (one.value or b"").decode()) for one in found if one.key is not None]

    def rests(self) -> bool:
        """Whether a second went by in which nothing was processed."""
        before = self.document()["counters"]["processed"]
        time.sleep(1.1)  # the status of a worker may be a second old
        return bool(self.document()["counters"]["processed"] == before)

    def stop(self) -> int:
        """End it by SIGTERM; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


class OfSession(Hosted):
    """A session in this process; `session` is the blocking one, `own` the one of the mode."""

    def __init__(self, session: Any, own: Any, address: str | None) -> None:
        assert address is not None
        self.session, self.own, self.address = session, own, address


def written(root: Path) -> dict[str, Any]:
    """A log with the row `key`; returns the arguments of further sessions on it, each with a directory of its own."""
    settings: dict[str, Any] = {"log": f"sqlite:///{root}/log", "stores": [STORE]}
    with sf.Session("hosted", state_dir=root / "first", partitions=1, **settings) as first:
        first.assign(active=[0])
        first.wait_ready(30)
        first.task(0).store("counts").put("key", "1", 1_000)
        first.task(0).commit()
    return settings


@contextmanager
def opened(mode: str, root: Path, **more: Any) -> Iterator[OfSession]:
    """A session that holds partition 0 in the manner of a mode; a replica follows all of them."""
    if mode == "sidecar":
        with _of_sidecar(root) as one:
            yield one
        return
    settings: dict[str, Any] = {**written(root), "state_dir": root / mode, **more}
    with ExitStack() as stack:
        if mode == "replica":
            replica = stack.enter_context(sf.Replica("hosted", **settings))
            replica.wait_ready(30)
            yield OfSession(replica, replica, stack.enter_context(OpsServer(replica, 0)).address)
            return
        settings |= {"partitions": 1, "http_port": 0}
        if mode == "aio":
            yield stack.enter_context(_of_asyncio(settings))
            return
        session = stack.enter_context(
            sf.Session("hosted", **settings, **({"placement": "group"} if mode == "external" else {}))
        )
        if mode == "external":
            session.on_assign(None, [TopicPartition("in", 0)])
        else:
            session.assign(active=[0])
        session.wait_ready(30)
        yield OfSession(session, session, session.http_address)


@contextmanager
def _of_asyncio(settings: dict[str, Any]) -> Iterator[OfSession]:
    """An asyncio session, on an event loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def begin() -> aio.Session:
        session = await aio.Session("hosted", **settings).__aenter__()
        await session.assign(active=[0])
        await session.wait_ready(30)
        return session

    try:
        session = wait(begin())
        try:
            yield OfSession(session.blocking, session, session.http_address)
        finally:
            wait(session.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextmanager
def _of_sidecar(root: Path) -> Iterator[OfSession]:
    """A client of a sidecar that is started for it."""
    sidecars = Sidecars(root)
    try:
        sidecar = sidecars.start()
        with closing(sf.connect(sidecar.run_dir, stores=[STORE], partitions=1)) as client:
            client.assign(active=[0])
            client.wait_ready(60)
            client.task(0).store("counts").put("key", "1", timestamp=1_000)
            client.task(0).commit()
            yield OfSession(client, client, sidecar.info["http"])
    finally:
        sidecars.close()


def _fork(mode: str, root: Path) -> None:
    """Fork under an open session; print the child's first error, and what the parent reads after the child's end."""
    with opened(mode, root) as one:
        reading, writing = os.pipe()
        if not os.fork():
            try:
                one.session.ready  # noqa: B018 - a closed session raises
                told = "it is open"
            except sf.StandfastError as error:
                told = type(error).__name__
            os.write(writing, told.encode())
            os._exit(0)
        os.wait()
        rows = json.loads(one.get("/v1/stores/counts/get?key=key"))["rows"]
        print(json.dumps({"child": os.read(reading, 100).decode(), "value": rows[0]["value"]}), flush=True)


if __name__ == "__main__":
    _fork(sys.argv[1], Path(sys.argv[2]))
