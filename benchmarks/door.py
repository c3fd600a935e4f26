"""The data door: sets and gets a second, and how long a single get takes, beside redis-server in the same run.

    python benchmarks/door.py                                    everything, a few minutes
    python benchmarks/door.py --rounds 1 --sets 100000 --restore 0 --json /tmp/door.json

The server is pinned to one core: a session with RocksDB and its changelog on the embedded log, which syncs every
commit. The client is another process on the other core, in which it spends little: its bytes are made beforehand, and
as root it goes before all else there. In each round every measure is made once of each server (redis-server keeps
nothing on disk):

    sets        pipelines of 16 from 4 connections, and a commit after every 500 sets; all on one partition
    sets-spread the same, each connection on a partition of its own (--partitions 4)
    gets        pipelines of 16 from 4 connections
    get         one get at a time, nobody else there: 50th and 99th percentile, largest
    get-sets    one get at a time while 4 connections set and commit as above, at a fifth of the speed of `sets`
    get-restore one get at a time while another process, on the client's core at lower priority, restores --restore
                records in bulk from the same log

Rules of this file: the client and the rounds; the servers are benchmarks/door_server.py and Debian's redis-server.
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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import hiredis

HERE = Path(__file__).resolve().parent
KEYS = 100_000
CONNECTIONS = 4
VALUE = random.Random(1).randbytes(100)
OK = b"+OK\r\n"
PACK: Any = hiredis.pack_command
Figures: TypeAlias = dict[str, float]


def key(number: int) -> bytes:
    """One of the keys, 16 bytes."""
    return b"key:%012d" % (number % KEYS)


class Server:
    """A running server: its socket, its process, and whether it commits."""

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
        """Processor time that it used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Memory that it holds."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def our_server(folder: Path, core: int, partitions: int) -> Iterator[Server]:
    """The data door."""
    command = [sys.executable, "-P", HERE / "door_server.py", "--dir", folder, "--core", str(core)]
    command += ["--partitions", str(partitions)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n", "the server did not start"
        yield Server("standfast", folder / "s", process, commits=True)
        process.stdin.close()


@contextmanager
def redis_server(program: str, folder: Path, core: int) -> Iterator[Server]:
    """redis-server without persistence."""
    path = folder / "redis"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--daemonize", "no"]
    command = ["taskset", "-c", str(core), "redis-server", *options]
    if Path(program).name != "redis-server":  # the same program, told apart by its name
        command[3:4] = ["bash", "-c", 'exec -a redis-server "$0" "$@"', program]
    environment = os.environ | {"LD_LIBRARY_PATH": str(Path(program).parent.parent / "lib/x86_64-linux-gnu")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        deadline = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.05)
        yield Server("redis-server", path, process, commits=False)
        process.terminate()


def find_redis() -> str | None:
    """The machine's redis-server, or the one unpacked for the tests, which came with redis-cli."""
    cached = Path(os.environ.get("STANDFAST_CACHE_DIR", Path.home() / ".cache/standfast")) / "clients"
    found = [str(one) for one in cached.glob("redis-tools-*/usr/bin/redis-check-rdb")]
    return shutil.which("redis-server") or (found[0] if found else None)


def pipelines(
    server: Server, batches: list[bytes], depth: int, reply_bytes: int, commit_every: int, pause_s: float = 0.0,
    partitions: int = 1, until: Callable[[], bool] = lambda: False,
) -> float:  # fmt: skip
    """Send every batch from several connections, one of each in flight at a time; seconds until all are answered.

    Connections share partitions out; a commit follows so many sets of its partition.
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
    """One get at a time: so many, or until something ended. Microseconds."""
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
    """One request."""
    packed: bytes = PACK(parts)
    return packed


def measure(server: Server, args: argparse.Namespace) -> dict[str, Figures]:
    """Every measure of one server but the restore."""
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
    pause_s = depth * 4 / found["sets"]["per_s"]
    code = "import sys; sys.path.insert(0, sys.argv[1]); import door; door.writer(sys.argv[2:])"
    command = [sys.executable, "-c", code, str(HERE), str(server.path), server.name, str(depth), str(args.commit)]
    with subprocess.Popen([*command, str(pause_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None and writer.stdout is not None
        writer.stdout.readline()
        found["get-sets"] = single_gets(server, args.singles)
        writer.stdin.close()
    found["memory"] = {"rss_mib": server.rss_mib()}
    return found


def writer(arguments: list[str]) -> None:
    """A process that sets and commits at a measured speed until its input closes."""
    path, name, depth, commit, pause_s = arguments
    server = Server(name, Path(path), subprocess.Popen(["true"]), commits=name == "standfast")
    batch = [b"".join(of_command(b"SET", key(at), VALUE) for at in range(start, start + int(depth)))
             for start in range(0, KEYS, int(depth))]  # fmt: skip
    print("ready", flush=True)
    os.set_blocking(0, False)

    def ended() -> bool:
        return os.read(0, 1) == b"" if selectors_ready() else False

    def selectors_ready() -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            return bool(selector.select(0))

    pipelines(server, batch * 1_000, int(depth), len(OK), int(commit), float(pause_s), until=ended)


def measure_restore(server: Server, folder: Path, args: argparse.Namespace) -> Figures:
    """Single gets while another process restores a partition."""
    command = [sys.executable, "-P", HERE / "door_server.py", "--dir", folder, "--core", str(args.client_core)]
    command += ["--restore", "--partitions", str(args.partitions)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == b"restoring\n"
        found = single_gets(server, 0, lambda: bool(select_ready(worker.stdout)))
        found["restore_s"] = float(worker.stdout.readline())
        worker.stdin.close()
    return found


def select_ready(stream: Any) -> bool:
    """Whether something can be read there."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(0))


def summary(rounds: list[dict[str, dict[str, Figures]]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Median, least and most of each figure by server and measure."""
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
    """Run the rounds, print medians with least and most."""
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
    with suppress(PermissionError):  # else what the client waits for on its core counts as well
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    program = find_redis()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="standfast-door-") as name:
        for number in range(args.rounds):
            folder = Path(name) / str(number)
            folder.mkdir()
            found: dict[str, dict[str, Figures]] = {}
            with our_server(folder, args.core, args.partitions) as server:
                found["standfast"] = measure(server, args)
                if args.restore:
                    subprocess.run([sys.executable, "-P", HERE / "door_server.py", "--dir", folder, "--core",
                                    str(args.client_core), "--fill", str(args.restore),
                                    "--partitions", str(args.partitions)], check=True)  # fmt: skip
                    found["standfast"]["get-restore"] = measure_restore(server, folder, args)
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
