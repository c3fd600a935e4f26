"""The programs of `test_forks.py`, which fork. Each prints JSON, one value a line.

crowd FOLDER             a session, and a thread that writes; forks twenty children: [pid, ...]
dead FOLDER LOG HOW      a session; what its calls raise in a child, which ends as HOW says; and rows after that
again FOLDER             a session that is closed and opened again beside a child: its pid, then how it went
lend FOLDER              a directory whose lock a worker inherits: the worker's pid
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.process.holders import lock_holders
from standfast.store.task.state_dir import StateDir

LIFE_S = 60
CHILDREN = 20
BOARD = TopicPartition("board", 0)
Call = Callable[[], Any]
holders = lock_holders


def session(folder: str, address: str) -> sf.Session:
    """The session of these programs."""
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    return sf.Session(Path(folder).name, log=address, state_dir=f"{folder}/state", partitions=1, stores=stores)


@contextlib.contextmanager
def program(*words: object) -> Iterator[subprocess.Popen[str]]:
    """One of these programs, killed at the end."""
    command = [sys.executable, __file__, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return json.loads(line)


def tell(value: Any) -> None:
    print(json.dumps(value), flush=True)


def fork(child: Callable[[], Any]) -> int:
    pid = os.fork()
    if not pid:
        child()
        os._exit(0)
    return pid


def crowd(folder: str) -> None:
    address = f"sqlite:///{folder}/log"
    opened = session(folder, address)
    opened.assign(active=[0])
    opened.wait_ready(30)
    log = open_log(address)
    log.admin.create_topic("board", 1, TopicPolicy())

    def write() -> None:
        producer = log.producer()
        while True:
            producer.append({BOARD: [Outgoing(b"k", b"v", 1)]})

    for _ in range(2):
        threading.Thread(target=write, daemon=True).start()
    children, (begun, begins) = [], os.pipe()

    def child() -> None:
        os.write(begins, b".")
        time.sleep(LIFE_S)

    for _ in range(CHILDREN):
        time.sleep(0.02)
        children.append(fork(child))
        os.read(begun, 1)  # until a child has run at all, the kernel keeps its copies of the parent's locks
    tell(children)
    time.sleep(LIFE_S)


def dead(folder: str, address: str, how: str) -> None:
    opened = session(folder, address)
    opened.assign(active=[0])
    opened.wait_ready(60)
    task = opened.task(0)
    store = task.store("kv")
    store.put("before", "1", 1)
    task.commit()
    log = open_log(address)
    log.admin.create_topic("fork-board", 1, TopicPolicy())
    board = TopicPartition("fork-board", 0)
    producer = log.producer()
    driver = driver_of()
    scan = store.all()
    next(scan)
    calls = calls_of(opened, task, store, scan, log, board)
    reads, writes = os.pipe()
    began_s = time.monotonic()
    pid = os.fork()
    if not pid:
        os.write(writes, json.dumps({name: raised(call) for name, call in calls.items()}).encode())
        os.close(writes)
        if how == "with":
            with opened, driver:
                pass
            log.close()
        del opened, task, store, log, producer, scan, driver, calls
        sys.exit(0)  # with every destructor of the interpreter
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        found = json.loads(file.read())
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began_s
    store.put("after", "2", 3)
    task.commit()
    producer.append({board: [Outgoing(b"k", b"v", 1)]})
    keeper: Any = opened._keeper
    lives = keeper.pid is not None and Path(f"/proc/{keeper.pid}/stat").read_text().split()[2] != "Z"
    stays = driver._folder.is_dir()
    driver.close()
    log.close()
    opened.close()
    with session(folder, address) as again:
        again.assign(active=[0])
        again.wait_ready(60)
        rows = dict(again.task(0).store("kv").all())
    tell(
        {
            "calls": found,
            "code": os.waitstatus_to_exitcode(status),
            "seconds": seconds,
            "rows": rows,
            "lease_process_lives": lives,
            "driver_folder_stays": stays,
        }
    )


def calls_of(opened: sf.Session, task: Any, store: Any, scan: Any, log: Any, board: TopicPartition) -> dict[str, Call]:
    """Calls of each kind of object, made before the fork."""
    producer, reader, group = log.producer(), log.reader(), log.group("any")
    reader.assign({board: 0})
    return {
        "assign": lambda: opened.assign(active=[0]),
        "task": lambda: opened.task(0),
        "statistics": opened.statistics,
        "commit": lambda: opened.commit({}),
        "read": lambda: opened.read("kv", 0),
        "task.commit": task.commit,
        "store": lambda: task.store("kv"),
        "put": lambda: store.put("child", "0", 2),
        "get": lambda: store.get("before"),
        "scan": lambda: next(scan),
        "append": lambda: producer.append({board: [Outgoing(b"k", b"v", 1)]}),
        "fetch": lambda: reader.fetch(1),
        "view": group.view,
        "reader": log.reader,
        "describe": lambda: log.admin.describe_topic("fork-board"),
    }


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def driver_of() -> sf.testing.Driver:
    app = sf.App("driven", stores=[sf.KeyValueStore("c", sf.serde.string, sf.serde.int64)])
    app.stream("lines").group_by_key().count("c")
    return sf.testing.Driver(app)


def again(folder: str) -> None:
    address = f"sqlite:///{folder}/log"
    with session(folder, address) as opened:
        opened.assign(active=[0])
        opened.wait_ready(30)
        tell(fork(lambda: time.sleep(LIFE_S)))
    with session(folder, address) as opened:
        opened.assign(active=[0])
        opened.wait_ready(30)
    tell("opened again")


def lend(folder: str) -> None:
    state = StateDir(folder, "app")
    worker = subprocess.Popen(["/bin/sleep", str(LIFE_S)], pass_fds=(state.lock,))
    tell(worker.pid)
    time.sleep(LIFE_S)


if __name__ == "__main__":
    {"crowd": crowd, "dead": dead, "again": again, "lend": lend}[sys.argv[1]](*sys.argv[2:])
