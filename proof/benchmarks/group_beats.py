"""What a large group costs one of its members: processor time a second beside N others that renew their leases.

    python proof/benchmarks/group_beats.py [--members 500] [--log embedded|kafka] [--seconds 20] [--rounds 3]

    this program    joins N - 1 members, and renews their leases as often as members of so large a group do
    the member      an application by the public path (App.run), its lease process included, without records

Each round measures the member alone in its group, and then beside the others; the difference is what they cost. On the
embedded log the others have long leases instead: a renewal there changes a row, which the member reads either way.

Rules of this file: processor time is that of the kernel's count for the member's processes, in ticks of 10 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from compare_process import usage
from confluent_kafka import Producer

from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.members import MEMBERS_SUFFIX, member_key, member_value
from standfast.replication.leases import lease_in_group_ms, renewal_interval_ms
from standfast.replication.log import TopicPolicy
from standfast.replication.tail.open_log import open_log
from standfast.replication.takeover import MemberPlan, MemberTraits, Process

APP = "beats"
LEASE_MS = 1_500  # the default
LONG_LEASE_MS = 3_600_000
JOIN_LEASE_MS = 60_000  # until the first renewal
SETTLE_S = 5.0
PROGRAM = """
import sys, standfast as sf
counts = sf.KeyValueStore("n", sf.serde.string, sf.serde.int64)
app = sf.App(sys.argv[1], log=sys.argv[2], state_dir=sys.argv[3], stores=[counts])
app.stream("in", key=sf.serde.string, value=sf.serde.bytes).group_by_key().count("n")
app.run()
"""


def metadata(program: str, number: int) -> str:
    """Metadata as an instance of the same program writes them."""
    traits = MemberTraits(1, {"rack": f"r{number % 3}"}, program)
    return MemberPlan(managed=traits, process=Process(f"{number:016x}", f"process {number} on host-{number}")).to_json()


@contextmanager
def others(address: str, app: str, count: int) -> Iterator[None]:
    """So many live members beside the one that has joined."""
    with closing(open_log(address)) as log, closing(log.group(app)) as group:
        (one,) = group.view().members
        plan = MemberPlan.from_json(one.metadata).managed
        assert plan is not None
        texts = {f"m{number:04}": metadata(plan.program, number) for number in range(count)}
        if not address.startswith("kafka://"):
            for name, text in texts.items():
                group.join(name, text, lease_ms=LONG_LEASE_MS)
            yield
            return
        producer = Producer({"bootstrap.servers": address.removeprefix("kafka://"), "linger.ms": 5})

        def write(kind: str, lease_ms: int) -> None:
            for name, text in texts.items():
                producer.produce(
                    app + MEMBERS_SUFFIX,
                    key=member_key(name),
                    value=member_value(kind, f"s-{name}", lease_ms, 1, text, 1),
                    partition=0,
                )
            producer.flush()

        stop, lease_ms = threading.Event(), lease_in_group_ms(LEASE_MS, count + 1)

        def beat() -> None:
            while not stop.wait(renewal_interval_ms(lease_ms) / 1_000):
                write("beat", lease_ms)

        write("join", JOIN_LEASE_MS)
        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def per_second_ms(pid: int, seconds: float) -> float:
    """Milliseconds of processor time that the member takes a second."""
    time.sleep(SETTLE_S)
    before, began = usage(pid).cpu_s, time.monotonic()
    time.sleep(seconds)
    return (usage(pid).cpu_s - before) * 1_000 / (time.monotonic() - began)


def measure(address: str, folder: Path, app: str, members: int, seconds: float) -> tuple[float, float]:
    """The member's cost alone, and beside the others."""
    with closing(open_log(address)) as log:
        if log.admin.describe_topic("in") is None:
            log.admin.create_topic("in", 1, TopicPolicy())
    with subprocess.Popen([sys.executable, "-c", PROGRAM, app, address, str(folder / app)]) as process:
        try:
            alone = per_second_ms(process.pid, seconds)
            with others(address, app, members - 1):
                beside = per_second_ms(process.pid, seconds)
        finally:
            process.terminate()
    return alone, beside


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--log", choices=("embedded", "kafka"), default="kafka")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="standfast-beats-")))
        address = f"sqlite:///{folder}/log"
        if args.log == "kafka":
            address = f"kafka://{held.enter_context(Broker(folder / 'broker')).address}"
        costs = []
        for number in range(args.rounds):
            alone, beside = measure(address, folder, f"{APP}-{number}", args.members, args.seconds)
            costs.append(beside - alone)
            print(
                f"round {number + 1}: {alone:.1f} ms/s alone, {beside:.1f} ms/s beside {args.members - 1} others, "
                f"who cost {costs[-1]:.1f} ms/s",
                flush=True,
            )
    print(
        json.dumps(
            {
                "log": args.log,
                "members": args.members,
                "lease_ms": LEASE_MS,
                "cost_ms_per_s": {
                    "median": round(statistics.median(costs), 2),
                    "least": round(min(costs), 2),
                    "most": round(max(costs), 2),
                },
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
