"""The RESP server: sets and gets a second, and the time of a single get, beside redis-server in the same run.

    python proof/benchmarks/resp.py                                    everything, a few minutes
    python proof/benchmarks/resp.py --rounds 1 --sets 100000 --restore 0 --json /tmp/resp.json

The server is `standfast serve`, pinned to one core, with RocksDB and its changelog on the embedded log, which syncs
every commit. The client is another process on the other core. It uses little of it: its bytes are made beforehand, and
as root it has priority there. Each round takes every measure once of each server (redis-server keeps nothing on disk):

    sets        pipelines of 16 from 4 connections, and a commit after every 500 sets; all on one partition
    sets-spread the same, each connection on a partition of its own (--partitions 4)
    gets        pipelines of 16 from 4 connections
    get         one get at a time, no other connection: 50th and 99th percentile, largest
    get-sets    one get at a time while 4 connections set and commit as above, at a fifth of the speed of `sets`
    get-large   the same with a commit after every 5,000 sets
    get-restore one get at a time while the server's worker, on the client's core, restores another partition of
                --restore records from the same log, from its assignment to its open gate

Rules of this file: the client and the rounds; the servers are standfast's and Debian's redis-server.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import hiredis

import standfast as sf

HERE = Path(__file__).resolve().parent
KEYS = 100_000
CONNECTIONS = 4
LARGE = 5_000  # sets of a large commit
FILL = 20_000  # records of one commit, in the partition to restore
VALUE = random.Random(1).randbytes(100)
OK = b"+OK\r\n"
PACK: Any = hiredis.pack_command
Figures: TypeAlias = dict[str, float]


def key(number: int) -> bytes:
    """One of the keys, 16 bytes."""
    return b"key:%012d" % (number % KEYS)


class Server:
    """A running server: its socket, its process, and whether it has commits."""

    def __init__(self, name: str, path: Path, process: subprocess.Popen[bytes], *, commits: bool) -> None:
        self.name, self.path, self.process, self.commits = name, path, process, commits

    def connect(self, partition: int = 0) -> socket.socket:
        """A connection, on the default store of a partition."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        if self.commits:
            begin = (b"AUTH", b"kv", b"x"), (b"SELECT", b"%d" % partition), (b"SF.OFFSETS",)
            connection.sendall(b"".join(of_command(*one) for one in begin))
            told = 2 * OK + b"*0\r\n"
            assert connection.recv(len(told), socket.MSG_WAITALL) == told
        return connection

    def cpu_s(self) -> float:
        """Processor time that the server has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident size of the server."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


STORES = [sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes)]


class Sidecar(Server):
    """`standfast serve` with a control client; one partition more than it serves waits for the restore measure."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], partitions: int, worker_core: int) -> None:
        run = folder / "state/resp/run"
        wait_for(run / "INFO.json", process)
        super().__init__("standfast", run / "resp.sock", process, commits=True)
        self.partitions = partitions
        self.control = sf.connect(run, stores=STORES)
        self.control.assign(active=range(partitions))
        self.control.wait_ready(60)
        for worker in self.control.status()["workers"]:
            for thread in Path(f"/proc/{worker['pid']}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {worker_core})


@contextmanager
def our_server(folder: Path, core: int, worker_core: int, partitions: int) -> Iterator[Sidecar]:
    """Start the sidecar on one core, its worker on the other."""
    settings = {
        "app.name": "resp",
        "app.log": f"sqlite:///{folder}/log",
        "app.state_dir": folder / "state",
        "app.partitions": partitions + 1,
        "app.gate": "task",  # else the restore of one partition would hold back the others
        "logging.level": "warning",
    }
    command: list[Any] = ["taskset", "-c", str(core), sys.executable, "-P", "-m", "standfast.ops.cli", "serve"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with subprocess.Popen(command) as process:
        try:
            server = Sidecar(folder, process, partitions, worker_core)
            yield server
            server.control.close()
        finally:
            process.terminate()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a starting server has created this file."""
    deadline = time.monotonic() + 30
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.05)


@contextmanager
def redis_server(program: str, folder: Path, core: int) -> Iterator[Server]:
    """redis-server without persistence."""
    path = folder / "redis"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--daemonize", "no"]
    command = ["taskset", "-c", str(core), "redis-server", *options]
    if Path(program).name != "redis-server":  # one program with several names: it acts by its argv[0]
        command[3:4] = ["bash", "-c", 'exec -a redis-server "$0" "$@"', program]
    environment = os.environ | {"LD_LIBRARY_PATH": str(Path(program).parent.parent / "lib/x86_64-linux-gnu")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        wait_for(path, process)
        yield Server("redis-server", path, process, commits=False)
        process.terminate()


def find_redis() -> str | None:
    """The machine's redis-server, or the one in the tests' package of redis-cli."""
    cached = Path(os.environ.get("STANDFAST_CACHE_DIR", Path.home() / ".cache/standfast")) / "clients"
    found = [str(one) for one in cached.glob("redis-tools-*/usr/bin/redis-check-rdb")]
    return shutil.which("redis-server") or (found[0] if found else None)


def pipelines(
    server: Server, batches: list[bytes], depth: int, reply_bytes: int, commit_every: int, pause_s: float = 0.0,
    partitions: int = 1, until: Callable[[], bool] = lambda: False,
) -> float:  # fmt: skip
    """Send every batch from several connections, one batch in flight on each; returns seconds until all replies came.

    The connections divide the partitions; a commit follows `commit_every` sets of its partition.
    """
    commit = of_command(b"SF.COMMIT") if commit_every and server.commits else b""
    placed = {server.connect(number % partitions): number % partitions for number in range(CONNECTIONS)}
    connections = list(placed)
    waiting: dict[socket.socket, int] = {}
    todo = iter(batches)
    since = dict.fromkeys(range(partitions), 0)

    def send(connection: socket.socket) -> bool:
        batch = next(todo, None)
        if batch is None or until():
            return False
        partition = placed[connection]
        since[partition] += depth
        want = depth * reply_bytes
        if commit and since[partition] >= commit_every:
            since[partition] -= commit_every
            batch += commit
            want = -want  # and the acknowledgement, of any length
        waiting[connection] = want
        connection.sendall(batch)
        return True

    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        open_ = 0
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            open_ += send(connection)
        got: dict[Any, bytes] = dict.fromkeys(connections, b"")
        while open_:
            for event, _ in selector.select():
                connection = event.fileobj
                assert isinstance(connection, socket.socket)
                buffer = got[connection] + connection.recv(1 << 18)
                got[connection] = buffer
                want = waiting[connection]
                if len(buffer) < abs(want) or (want < 0 and buffer[-want:].count(b"\r\n") < 4):
                    continue
                assert b"-ERR" not in buffer and b"-FENCED" not in buffer and b"-BUSY" not in buffer, buffer[:300]
                got[connection] = b""
                if pause_s:
                    time.sleep(pause_s)
                open_ += send(connection) - 1
    took = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return took


def single_gets(server: Server, number: int, until: Callable[[], bool] | None = None) -> Figures:
    """One get at a time: `number` of them, or until `until` is true. Times in microseconds."""
    connection = server.connect()
    requests = [of_command(b"GET", key(random.randrange(KEYS))) for _ in range(2_000)]
    clock, took = time.perf_counter_ns, []
    for at in count():
        if at >= number if until is None else (at % 64 == 0 and until()):
            break
        request = requests[at % len(requests)]
        began = clock()
        connection.sendall(request)
        connection.recv(4096)
        took.append(clock() - began)
    connection.close()
    took.sort()
    of = len(took)
    return {
        "gets": of,
        "p50_us": took[of // 2] / 1e3,
        "p99_us": took[of * 99 // 100] / 1e3,
        "p999_us": took[of * 999 // 1000] / 1e3,
        "max_us": took[-1] / 1e3,
    }


def of_command(*parts: bytes) -> bytes:
    """One request in RESP."""
    packed: bytes = PACK(parts)
    return packed


def measure(server: Server, args: argparse.Namespace) -> dict[str, Figures]:
    """Take every measure of one server, except the restore."""
    depth = args.pipeline
    sets = [
        b"".join(of_command(b"SET", key(at + one), VALUE) for one in range(depth)) for at in range(0, args.sets, depth)
    ]
    total = len(sets) * depth
    found: dict[str, Figures] = {}
    cpu = server.cpu_s()
    took = pipelines(server, sets, depth, len(OK), args.commit)
    found["sets"] = {"per_s": total / took, "cpu_us": (server.cpu_s() - cpu) / total * 1e6}
    if server.commits and args.partitions > 1:
        cpu = server.cpu_s()
        took = pipelines(server, sets, depth, len(OK), args.commit, partitions=args.partitions)
        found["sets-spread"] = {"per_s": total / took, "cpu_us": (server.cpu_s() - cpu) / total * 1e6}
    gets = [
        b"".join(of_command(b"GET", key((at * 7 + one) % total)) for one in range(depth))
        for at in range(0, args.sets, depth)
    ]
    cpu = server.cpu_s()
    took = pipelines(server, gets, depth, len(VALUE) + 8, 0)
    found["gets"] = {"per_s": total / took, "cpu_us": (server.cpu_s() - cpu) / total * 1e6}
    found["get"] = single_gets(server, args.singles)
    # Four times a batch's own duration: the writer then goes at a fifth of the speed of `sets`.
    pause_s = depth * 4 / found["sets"]["per_s"]
    for name, commit in (("get-sets", args.commit), ("get-large", LARGE))[: 1 + server.commits]:
        with writing(server, depth, commit, pause_s):
            found[name] = single_gets(server, args.singles)
    found["memory"] = {"rss_mib": server.rss_mib()}
    return found


@contextmanager
def writing(server: Server, depth: int, commit: int, pause_s: float) -> Iterator[None]:
    """Let another process set and commit meanwhile; a thread would share this one's interpreter lock."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import resp; resp.writer(sys.argv[2:])"
    command = [sys.executable, "-c", code, str(HERE), str(server.path), server.name, str(depth), str(commit)]
    with subprocess.Popen([*command, str(pause_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        yield
        process.stdin.close()


def writer(arguments: list[str]) -> None:
    """Set and commit at a given speed until stdin closes; runs in a process of its own."""
    path, name, depth, commit, pause_s = arguments
    server = Server(name, Path(path), subprocess.Popen(["true"]), commits=name == "standfast")
    batch = [b"".join(of_command(b"SET", key(at), VALUE) for at in range(start, start + int(depth)))
             for start in range(0, KEYS, int(depth))]  # fmt: skip
    print("ready", flush=True)
    os.set_blocking(0, False)

    def ended() -> bool:
        return select_ready(0) and os.read(0, 1) == b""

    pipelines(server, batch * 1_000, int(depth), len(OK), int(commit), float(pause_s), until=ended)


def fill(folder: Path, partitions: int, records: int) -> None:
    """Write the records to restore, as another instance of the application would."""
    with sf.Session(
        "resp", log=f"sqlite:///{folder}/log", state_dir=folder / "fill", stores=STORES, partitions=partitions + 1,
        take_over=False,
    ) as session:  # fmt: skip
        session.assign(active=[partitions])
        session.wait_ready(60)
        task = session.task(partitions)
        put = task.store("kv").put
        for start in range(0, records, FILL):
            for number in range(start, min(start + FILL, records)):
                put(b"key:%012d" % (number % 500_000), VALUE, number)
            task.commit()


def measure_restore(server: Sidecar, folder: Path, args: argparse.Namespace) -> Figures:
    """Take single gets while the worker restores a partition."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import resp, pathlib; resp.fill(pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:]))"  # fmt: skip  # noqa: E501
    subprocess.run(
        [sys.executable, "-c", code, str(HERE), str(folder), str(server.partitions), str(args.restore)], check=True
    )
    restored = threading.Event()
    server.control.assign(active=range(server.partitions + 1))
    began = time.perf_counter()

    def wait() -> None:
        server.control.wait_ready(600)
        restored.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    found = single_gets(server, 0, restored.is_set)
    waiting.join()
    return found | {"restore_s": time.perf_counter() - began}


def select_ready(stream: Any) -> bool:
    """Whether the stream has bytes to read, or has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(0))


def summary(rounds: list[dict[str, dict[str, Figures]]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Median, minimum and maximum of each figure by server and measure."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name in dict.fromkeys(name for one in rounds for name in one):
        runs = [one[name] for one in rounds if name in one]
        for what in runs[0]:
            for figure in runs[0][what]:
                values = [run[what][figure] for run in runs]
                found.setdefault(name, {}).setdefault(what, {})[figure] = [
                    round(statistics.median(values), 1), round(min(values), 1), round(max(values), 1)
                ]  # fmt: skip
    return found


def main() -> None:
    """Run the rounds, print medians with minimum and maximum."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--sets", type=int, default=500_000, help="sets, and gets, of one round")
    add("--singles", type=int, default=20_000, help="single gets of one measure")
    add("--pipeline", type=int, default=16)
    add("--commit", type=int, default=500, help="sets of one commit")
    add("--restore", type=int, default=2_000_000, help="records that are restored meanwhile; 0: none")
    add("--core", type=int, default=0, help="of the server")
    add("--client-core", type=int, default=1)
    add("--partitions", type=int, default=4)
    add("--json", type=Path, help="write every run to this file")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.client_core})
    with suppress(PermissionError):  # without priority, the client's waits for its core count as well
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    program = find_redis()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="standfast-resp-") as name:
        for number in range(args.rounds):
            folder = Path(name) / str(number)
            folder.mkdir()
            found: dict[str, dict[str, Figures]] = {}
            with our_server(folder, args.core, args.client_core, args.partitions) as sidecar:
                found["standfast"] = measure(sidecar, args)
                if args.restore:
                    found["standfast"]["get-restore"] = measure_restore(sidecar, folder, args)
            if program is not None:
                with redis_server(program, folder, args.core) as server:
                    found["redis-server"] = measure(server, args)
            rounds.append(found)
            print(json.dumps(found), file=sys.stderr, flush=True)
            shutil.rmtree(folder)
    document = {
        "schema": "standfast.bench-door/1",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "settings": {name: value for name, value in vars(args).items() if name != "json"},
        "median_least_most": summary(rounds),
        "rounds": rounds,
    }
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["median_least_most"], indent=1))


if __name__ == "__main__":
    main()
