"""How long a commit holds a task, and a record, exactly once on Kafka: tasks and rates beside bare transactions.

    python proof/benchmarks/commit_rounds.py [--tasks 1 12 24] [--rates 240 1000] [--seconds 20] [--json FILE]

    feeder         a process of its own: keyed records at a steady rate
    application    one instance: in ──> select_key ──> repartition ──> count in a store   (1 task: without repartition)
    chain          the client alone: begin, offsets, produce, commit, until a second client has consumed the record

    pause          from the beginning of a task's commit to its end: the task takes no records meanwhile
    hop            from the record's processing before the repartition topic to its processing behind it
    waited         from the feeder's record to its processing behind the repartition topic

The chain runs beside each application, on the same broker and the same processors, and before it on idle ones. A hop is
bounded by two chains and one interval: a record waits for its task's commit, its end, and the next task's read.

Rules of this file: times are of one machine's monotonic clock. The first `WARM_S` seconds do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.stream.steps import Steps
from standfast.stream.task.task import Task

WARM_S = 5.0
KEYS = 1_000
CHAINS = 60
RECORDS_OF_CHAIN = 10
CHAIN_PAUSE_S = 0.1
END_S = 60.0  # the longest time that a child may take beyond its run


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def quantiles(values: list[float]) -> dict[str, float]:
    """p50 and p99 with their number, in the unit of the values."""
    found = sorted(values)
    if not found:
        return {"count": 0, "p50": float("nan"), "p99": float("nan")}
    return {
        "count": len(found),
        "p50": round(found[len(found) // 2], 1),
        "p99": round(found[min(len(found) - 1, len(found) * 99 // 100)], 1),
    }


# --- the programs of the children ---


def feed(address: str, topic: str, partitions: int, rate: int, seconds: float) -> dict[str, Any]:
    """Write records with the time in their value; returns how many."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1})
    began, count = now_ns(), 0
    while (passed := (now_ns() - began) / 1e9) < seconds:
        while count < passed * rate:
            producer.produce(topic, str(now_ns()).encode(), f"k{count % KEYS}".encode(), count % partitions)
            count += 1
        producer.poll(0.002)
    producer.flush()
    return {"records": count}


class Times:
    """Durations that the application measures, in milliseconds."""

    def __init__(self) -> None:
        self.hops: list[float] = []
        self.waits: list[float] = []
        self.pauses: list[float] = []
        self.from_ns = 0
        self.processed = 0

    def behind(self, key: Any, value: list[int]) -> bool:
        self.processed += 1
        now = now_ns()
        if now >= self.from_ns:
            self.waits.append((now - value[0]) / 1e6)
            self.hops.append((now - value[1]) / 1e6)
        return True

    def watch(self) -> None:
        """Measure each commit of a task that writes something."""
        steps_of = Task.commit_steps

        def measured(task: Task, *given: Any, **named: Any) -> Steps[bool]:
            before = now_ns()
            wrote = yield from steps_of(task, *given, **named)
            if wrote and before >= self.from_ns:
                self.pauses.append((now_ns() - before) / 1e6)
            return wrote

        Task.commit_steps = measured  # type: ignore[method-assign]


def run(address: str, name: str, folder: str, tasks: int, seconds: float) -> dict[str, Any]:
    """Run the application for so long; it prints a line once all of its tasks run."""
    times = Times()
    times.watch()
    counts: sf.KeyValueStore[Any, Any] = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App(name, log=f"kafka://{address}", state_dir=folder, stores=[counts], standby_replicas=0)
    read = app.stream(f"{name}-in", key=sf.serde.string, value=sf.serde.json).map_values(lambda at: [at, now_ns()])
    if tasks > 1:
        read = read.select_key(lambda key, value: key).repartition("x")
    read.filter(times.behind).group_by_key().count("counts")
    session = app.open()

    def end() -> None:
        while len([1 for task in session.open_tasks().values() if task.looped]) < tasks:
            time.sleep(0.05)
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        times.from_ns = now_ns() + round(WARM_S * 1e9)
        times.processed = 0
        cpu = time.process_time()
        time.sleep(seconds)
        found["cpu_share"] = round((time.process_time() - cpu) / seconds, 2)
        found["processed"] = times.processed
        found["interval_ms"] = session.statistics().commit_interval_ms
        app.stop()

    found: dict[str, Any] = {}
    threading.Thread(target=end, daemon=True).start()
    app.run()
    kinds = {"pause_ms": times.pauses, "hop_ms": times.hops, "waited_ms": times.waits}
    return found | {kind: quantiles(values) for kind, values in kinds.items()}


def chain(address: str, topic: str) -> dict[str, Any]:
    """Transactions of the client alone, one after the other, each until a consumer has its last record."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-chain", "linger.ms": 0})
    producer.init_transactions()
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": topic, "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
    )
    at = TopicPartition(topic, 0, 0)
    consumer.assign([at])
    metadata = consumer.consumer_group_metadata()
    bare, whole = [], []
    for number in range(CHAINS):
        before = now_ns()
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, number)], metadata)
        for _ in range(RECORDS_OF_CHAIN):
            producer.produce(topic, b"v" * 20, b"k", 0)
        producer.flush()
        producer.commit_transaction()
        bare.append((now_ns() - before) / 1e6)
        left = RECORDS_OF_CHAIN
        while left:
            left -= len(consumer.consume(left, 0.1))
        whole.append((now_ns() - before) / 1e6)
        time.sleep(CHAIN_PAUSE_S)
    consumer.close()
    return {"transaction_ms": quantiles(bare[5:]), "chain_ms": quantiles(whole[5:])}


PROGRAMS = {"feed": feed, "run": run, "chain": chain}


# --- the parent ---


@contextmanager
def child(program: str, *given: Any) -> Iterator[subprocess.Popen[str]]:
    """A child that runs one of the programs and prints its result."""
    command = [sys.executable, __file__, "--child", json.dumps([program, *given])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the child ended with {process.wait()}"
    found: dict[str, Any] = json.loads(line)
    return found


def result(program: str, *given: Any) -> dict[str, Any]:
    with child(program, *given) as process:
        return line_of(process)


def measure(address: str, folder: Path, tasks: int, rate: int, seconds: float, what: str = "rounds") -> dict[str, Any]:
    """One number of tasks at one rate, with a chain before it and one beside it."""
    name = f"{what}-{tasks}-{rate}"
    partitions = max(tasks // 2, 1)
    admin = AdminClient({"bootstrap.servers": address})
    topics = [NewTopic(f"{name}-in", partitions), NewTopic(f"{name}-chain", 1), NewTopic(f"{name}-chain-2", 1)]
    for made in admin.create_topics(topics).values():
        made.result()
    alone = result("chain", address, f"{name}-chain")
    with child("run", address, name, str(folder / name), tasks, WARM_S + seconds) as app:
        assert line_of(app) == {"ready": True}
        assert app.stdin is not None
        app.stdin.write("go\n")
        app.stdin.flush()
        with child("feed", address, f"{name}-in", partitions, rate, WARM_S + seconds) as feeder:
            time.sleep(WARM_S)
            beside = result("chain", address, f"{name}-chain-2")
            fed = line_of(feeder)
        found = line_of(app)
    return {"tasks": tasks, "rate": rate, "fed": fed["records"], **found, "chain_alone": alone, "chain_beside": beside}


def shown(one: dict[str, Any]) -> str:
    alone, bare = one["chain_alone"]["transaction_ms"], one["chain_beside"]["transaction_ms"]
    whole = one["chain_beside"]["chain_ms"]
    most, most_99 = (2 * whole[part] + one["interval_ms"] for part in ("p50", "p99"))
    pause, hop, waited = one["pause_ms"], one["hop_ms"], one["waited_ms"]
    return (
        f"{one['tasks']:>3} tasks {one['rate']:>5}/s  processed {one['processed']}/{one['fed']}  "
        f"processor {one['cpu_share']}  interval {one['interval_ms']} ms\n"
        f"    pause  p50 {pause['p50']:>7} p99 {pause['p99']:>7} ms   bare transaction p50 {bare['p50']} p99 "
        f"{bare['p99']} ms: {pause['p50'] / bare['p50']:.1f} and {pause['p99'] / bare['p99']:.1f} times\n"
        f"    hop    p50 {hop['p50']:>7} p99 {hop['p99']:>7} ms   2 chains and the interval {most:.0f}, {most_99:.0f} "
        f"ms: {hop['p50'] / most:.1f} and {hop['p99'] / most_99:.1f} times\n"
        f"    waited p50 {waited['p50']:>7} p99 {waited['p99']:>7} ms   bare transaction on an idle machine p50 "
        f"{alone['p50']} p99 {alone['p99']} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 12, 24])
    parser.add_argument("--rates", type=int, nargs="+", default=[240, 1_000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        program, *arguments = json.loads(given.child)
        print(json.dumps(PROGRAMS[program](*arguments)), flush=True)
        return 0
    found = []
    with tempfile.TemporaryDirectory(prefix="standfast-") as folder, Broker(Path(folder) / "kafka") as broker:
        # A new broker compiles its code for a while: measured, its transactions took ten times as long at first.
        measure(broker.address, Path(folder), given.tasks[-1], given.rates[-1], given.seconds, "warm")
        for tasks in given.tasks:
            for rate in given.rates:
                found.append(measure(broker.address, Path(folder), tasks, rate, given.seconds))
                print(shown(found[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
