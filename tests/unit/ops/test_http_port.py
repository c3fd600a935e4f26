"""`http_port=` of sessions and applications: real HTTP on real sessions, while they open, run, hang and close."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

import standfast as sf
from standfast.ops.http.session import CONNECTIONS_MAX
from standfast.ops.shared.run_file import RUN_FILE, read_run_file
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from support.processes import resident_bytes
from support.serve import wait_for

pytestmark = pytest.mark.slow
STORE = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)


def session_at(root: Path, port: int | None = 0, **settings: Any) -> sf.Session:
    return sf.Session(
        "app", log=f"sqlite:///{root}/log", state_dir=root / "state", stores=[STORE], http_port=port, **settings
    )


@pytest.fixture
def session(tmp_path: Path) -> Iterator[sf.Session]:
    with session_at(tmp_path) as opened:
        opened.assign(active=[0])
        opened.wait_ready(30)
        yield opened


def ask(address: str | None, path: str, method: str = "GET", timeout_s: float = 10, **headers: str) -> tuple[int, str]:
    assert address is not None
    where = urlsplit(address)
    with closing(HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def threads() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("standfast")}


def test_session_with_a_port_serves_page_status_metrics_health_and_rows(session: sf.Session) -> None:
    session.task(0).store("kv").put("k", "v")
    session.task(0).commit()
    where = session.http_address
    status, page = ask(where, "/")
    assert status == 200 and "<strong>READY</strong> 1 active, 0 standby" in page and session.instance_id in page
    assert ask(where, "/page.js")[0] == ask(where, "/page.css")[0] == 200
    assert json.loads(ask(where, "/v1/status")[1])["tasks"][0]["task"] == "0_0"
    assert json.loads(ask(where, "/v1/stores/kv/get?key=k")[1])["rows"][0]["value"] == "v"
    assert "standfast_ready 1.0" in ask(where, "/metrics")[1]
    for path in ("/startupz", "/livez", "/readyz"):
        assert ask(where, path)[0] == 200
    assert ask(where, "/readyz?verbose") == (200, "[+]session ok\nready check passed\n")
    assert ask(where, "/livez", Accept="text/plain") == (200, "live check passed\n")


def test_page_of_a_session_leaves_out_what_only_a_sidecar_has(session: sf.Session) -> None:
    page = ask(session.http_address, "/")[1]
    sections = re.findall(r'<section id="([a-z]+)"', page)
    assert {"restores", "tasks", "standbys", "stores", "changelogs"} <= set(sections)
    assert not {"events", "schedules", "servers", "actions"} & set(sections) and "<button" not in page
    links = re.findall(r'href="([a-z][^"]*)"', page)
    assert "v1/status" in links
    for link in links:
        assert ask(session.http_address, f"/{link}")[0] == 200, link
    assert ask(session.http_address, "/peek/kv/0")[0] == 404
    for path in ("/v1/drain", "/v1/assignment", "/v1/snapshots", "/v1/wipe"):
        assert ask(session.http_address, path, "POST")[0] == 404


def test_without_a_port_nothing_is_served(tmp_path: Path) -> None:
    with session_at(tmp_path, None) as opened:
        assert opened.http_address is None and "standfast-http" not in threads()
        assert not (opened.state_path / RUN_FILE).exists()


@pytest.mark.parametrize("port", [-1, 65_536, True, "80", 1.0])
def test_port_that_is_none_is_told_before_anything_is_made(tmp_path: Path, port: Any) -> None:
    with pytest.raises(sf.BadConfig, match="http_port must be a whole number from 0 to 65535"):
        session_at(tmp_path, port)
    with pytest.raises(sf.BadConfig, match="http_port must be"):
        sf.App("app", log=f"sqlite:///{tmp_path}/log", state_dir=tmp_path, http_port=port)
    assert list(tmp_path.iterdir()) == []


def test_port_that_is_taken_is_told_and_changes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sf.Held, match=f"cannot listen on 127.0.0.1:{port}"):
            session_at(tmp_path, port)
    assert list(tmp_path.iterdir()) == [] and threads() == set()
    with session_at(tmp_path, port) as opened:
        assert opened.http_address == f"http://127.0.0.1:{port}"


def test_state_directory_that_is_held_lets_go_of_the_port(tmp_path: Path, session: sf.Session) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(sf.Held, match="held by"):
        session_at(tmp_path, port)
    with socket.create_server(("127.0.0.1", port)):
        assert read_run_file(session.state_path).address == session.http_address


def test_missing_extra_is_told_with_its_install_line_and_changes_nothing(tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["starlette"] = None
import standfast as sf
from standfast.ops.http import OpsServer
store = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
given = dict(log="sqlite:///{tmp_path}/log", state_dir={str(tmp_path / "state")!r}, stores=[store])
try:
    sf.Session("app", http_port=0, **given)
except sf.BadConfig as error:
    print(error)
import os; print(os.listdir({str(tmp_path)!r}))
with sf.Session("app", **given) as session:
    session.assign(active=[0]); session.wait_ready(30)
    try:
        OpsServer(session)
    except sf.BadConfig as error:
        print(error)
print("uvicorn" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    first, made, second, loaded = done.stdout.splitlines()
    assert "pip install 'standfast[serve]'" in first and second == first
    assert (made, loaded) == ("[]", "False")


def test_close_ends_threads_run_file_and_port(tmp_path: Path) -> None:
    opened = session_at(tmp_path)
    where = urlsplit(str(opened.http_address))
    idle = socket.create_connection((str(where.hostname), int(where.port or 0)))
    with idle, closing(HTTPConnection(str(where.hostname), where.port)) as stream:
        stream.request("GET", "/page-events")
        assert stream.getresponse().status == 200
        started = monotonic()
        opened.close()
        opened.close()
        assert monotonic() - started < 10
    assert threads() == set() and not (opened.state_path / RUN_FILE).exists()
    with session_at(tmp_path, where.port) as again:
        assert ask(again.http_address, "/livez")[0] == 200


def test_requests_while_the_session_closes_get_an_answer_or_no_connection(tmp_path: Path) -> None:
    opened = session_at(tmp_path)
    opened.assign(active=[0, 1, 2])
    opened.wait_ready(30)
    address, seen, stop = opened.http_address, set[int](), threading.Event()
    problems: list[BaseException] = []
    paths = ("/v1/status", "/readyz", "/livez", "/metrics", "/v1/stores/kv/scan", "/")

    def hammer(path: str) -> None:
        while not stop.is_set():
            try:
                seen.add(ask(address, path)[0])
            except OSError:
                return  # the server is gone
            except BaseException as error:
                problems.append(error)
                return

    hammers = [threading.Thread(target=hammer, args=(path,)) for path in paths]
    for one in hammers:
        one.start()
    wait_for(lambda: 200 in seen, timeout_s=30)
    opened.close()
    stop.set()
    for one in hammers:
        one.join(30)
    assert not problems and seen <= {200, 500, 503} and not any(one.is_alive() for one in hammers)
    assert 500 not in seen
    wait_for(lambda: threads() == set(), timeout_s=10)


@contextmanager
def hung(session: sf.Session) -> Iterator[None]:
    """The session's lock is held, as by a call to a log that does not return."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with session._usable():
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        yield
    finally:
        release.set()
        holder.join()


def test_requests_that_hang_are_bounded_and_those_that_need_no_lock_are_answered(session: sf.Session) -> None:
    address = session.http_address
    where = urlsplit(str(address))
    before = threading.active_count()
    with hung(session), ExitStack() as held:
        for _ in range(3 * CONNECTIONS_MAX):  # clients that give up and come again
            client = held.enter_context(socket.create_connection((str(where.hostname), int(where.port or 0))))
            client.sendall(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: threading.active_count() - before > CONNECTIONS_MAX // 2, timeout_s=10)
        assert threading.active_count() - before <= CONNECTIONS_MAX + 2
    wait_for(lambda: ask(address, "/livez")[0] == 200, timeout_s=20)
    wait_for(lambda: threading.active_count() <= before + 1, timeout_s=10)


def test_server_closes_beside_a_session_that_hangs(tmp_path: Path) -> None:
    with session_at(tmp_path, None) as opened, hung(opened):
        server = sf_server(opened)
        waiting = threading.Thread(target=lambda: silent(lambda: ask(server.address, "/livez")))
        waiting.start()
        wait_for(lambda: "standfast-call" in threads(), timeout_s=10)
        started = monotonic()
        server.close()
        assert monotonic() - started < 5 and "standfast-http" not in threads()
        waiting.join(10)


def sf_server(session: sf.Session) -> Any:
    from standfast.ops.http import OpsServer

    return OpsServer(session)


def silent(job: Any) -> None:
    try:
        job()
    except OSError:
        pass


def test_forked_child_does_not_keep_the_port(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys, time, standfast as sf
store = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
given = dict(log="sqlite:///{tmp_path}/log", stores=[store])
session = sf.Session("app", http_port=0, state_dir={str(tmp_path / "first")!r}, **given)
child = os.fork()
if not child:
    signal.pause()
try:
    port = int(session.http_address.rpartition(":")[2])
    session.close()
    with sf.Session("app", http_port=port, state_dir={str(tmp_path / "second")!r}, **given) as again:
        print(again.http_address.endswith(str(port)), flush=True)
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110)
    assert done.stdout == "True\n", done.stderr


def test_server_takes_little_memory_whatever_is_sent_to_it(session: sf.Session) -> None:
    where = urlsplit(str(session.http_address))
    before = resident_bytes()
    with ExitStack() as held:
        for _ in range(CONNECTIONS_MAX):
            client = held.enter_context(
                socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=5)
            )
            try:
                client.sendall(b"POST /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
                client.sendall(b"x" * (4 << 20))
                client.sendall(b"GET /" + b"y" * (4 << 20))
            except OSError:
                pass  # cut off, or not read any more
        assert resident_bytes() - before < 64 << 20
    assert ask(session.http_address, "/livez")[0] == 200


def test_page_of_another_site_gets_nothing_of_a_session(session: sf.Session) -> None:
    for path in ("/", "/v1/status", "/page-events", "/metrics"):
        status, told = ask(session.http_address, path, Host="evil.example")
        assert (status, json.loads(told)["error"]) == (421, "BAD_HOST")


def topics(root: Path) -> None:
    with closing(open_log(f"sqlite:///{root}/log")) as log:
        log.admin.create_topic("in", 1, TopicPolicy())


def app_at(root: Path, port: int, state: str = "state") -> sf.App:
    app = sf.App("app", log=f"sqlite:///{root}/log", state_dir=root / state, stores=[STORE], http_port=port)

    @app.source("in", key=sf.serde.string, value=sf.serde.string)
    class Keep(sf.Processor):
        stores = ("kv",)

        def init(self, context: Any) -> None:
            self.kv = context.store("kv")

        def process(self, record: sf.Record) -> None:
            self.kv.put(record.key, record.value)

    return app


def test_second_app_on_a_port_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    topics(tmp_path)
    with app_at(tmp_path, 0).open() as first:
        port = urlsplit(str(first.http_address)).port or 0
        with pytest.raises(sf.Held, match=f"127.0.0.1:{port}"):
            app_at(tmp_path, port, "other").open()
        assert not (tmp_path / "other").exists() and ask(first.http_address, "/startupz")[0] == 200


def test_app_that_runs_serves_its_page_and_is_found_by_its_state_directory(tmp_path: Path) -> None:
    topics(tmp_path)
    app = app_at(tmp_path, 0)
    opened = app.open()
    runs = threading.Thread(target=app.run)
    runs.start()
    try:
        wait_for(lambda: ask(opened.http_address, "/readyz")[0] == 200 and bool(opened.open_tasks()), timeout_s=60)
        assert read_run_file(tmp_path / "state" / "app").address == opened.http_address
        command = [sys.executable, "-m", "standfast.ops.cli", "status", "--state-dir", str(tmp_path / "state")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "READY" in done.stdout and opened.instance_id in done.stdout, done.stderr
        assert "READY" in ask(opened.http_address, "/")[1]
    finally:
        app.stop()
        runs.join(60)
    assert not runs.is_alive() and threads() == set()


def test_app_that_ends_by_a_signal_leaves_no_run_file(tmp_path: Path) -> None:
    topics(tmp_path)
    script = f"""
import standfast as sf
store = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
app = sf.App("app", log="sqlite:///{tmp_path}/log", state_dir={str(tmp_path / "state")!r}, stores=[store], http_port=0)
text = sf.serde.string
stream = app.stream("in", key=text, value=text)
stream.filter(lambda key, value: print("runs", flush=True) is None).group_by_key().count("kv")
print(app.open().http_address, flush=True)
app.run()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        assert ask(address, "/livez")[0] == 200
        with closing(open_log(f"sqlite:///{tmp_path}/log")) as log, closing(log.producer()) as producer:
            producer.append({TopicPartition("in", 0): [Outgoing(b"k", b"v", 1)]})
        assert child.stdout.readline() == "runs\n"  # before that, `run` may not have its signal handlers yet
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(30) == 0
    assert not (tmp_path / "state/app" / RUN_FILE).exists()


def test_driver_of_an_app_with_a_port_serves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        driver = sf.testing.Driver(app_at(tmp_path, taken.getsockname()[1]), now_ms=0)
        driver.pipe("in", "k", "v", 1)
        assert driver.store("kv").get("k") == "v"


def test_asyncio_session_serves_beside_its_loop(tmp_path: Path) -> None:
    async def run() -> tuple[int, str]:
        from standfast import aio

        settings: dict[str, Any] = {"log": f"sqlite:///{tmp_path}/log", "state_dir": tmp_path / "state"}
        async with aio.Session("app", stores=[STORE], http_port=0, **settings) as session:
            await session.assign(active=[0])
            await session.wait_ready(30)
            return await asyncio.to_thread(ask, session.http_address, "/readyz?verbose")

    assert asyncio.run(run()) == (200, "[+]session ok\nready check passed\n")
    assert threads() == set()
