"""Puts a world in the place of everything outside of the product, for the time of a block.

    sim://NAME    log of the world          engine    files on the machine's disk         ids, random numbers, process,
    sim://NAME    storage of snapshots      files     changes pass the machine's calls    host: drawn, by question
    clocks        those of the machine

Rules of this file: the one that knows where the product looks outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from simulator.disk import SimDisk
from simulator.engine import opener as engine_opener
from simulator.log import SimLog, SimLogClient
from simulator.storage import SimBucket
from simulator.storage import opener as storage_opener
from simulator.world import World
from standfast.replication.tail import open_log
from standfast.restore.snapshot import address
from standfast.store import outside
from standfast.store.clock import BOOT_ID, MEASURED_NS, REAL_CLOCK, Clock
from standfast.store.process.interrupts import IS_MAIN
from standfast.store.rocks.open_engine import OPEN_ENGINE

SCHEME = "sim"


@contextmanager
def outside_of(world: World, log: SimLog, disks: Sequence[SimDisk], bucket: SimBucket) -> Iterator[None]:
    """The world instead of the machine that runs it."""
    drawn: Counter[tuple[str, str]] = Counter()

    def bits(kind: str) -> int:
        who = world.who()
        drawn[who, kind] += 1
        return world.draws.bits(kind, who, drawn[who, kind])

    def new_id(kind: str, digits: int) -> str:
        return f"{bits(kind):016x}{bits(kind):016x}"[:digits]

    def open_client(_: object, clock: Clock | None) -> SimLogClient:
        return SimLogClient(log, clock, world)

    def boot() -> str:  # processes of an embedded log share a machine
        return f"boot-{machine_number() if log.kafka else 0}"

    def machine_number() -> int:
        machine = world.machine()
        return 0 if machine is None else machine.number

    replaced: Mapping[outside.Replaceable, object] = {
        outside.NEW_ID: new_id,
        outside.RANDOM_NUMBER: lambda kind: (bits(kind) >> 11) / (1 << 53),
        outside.PROCESS_ID: lambda: 1_000 + machine_number(),
        outside.HOST_NAME: lambda: f"machine-{machine_number()}",
        outside.ENVIRONMENT: dict,
        IS_MAIN: lambda: False,  # no signal handler runs in a world
        OPEN_ENGINE: engine_opener(disks),
        REAL_CLOCK: lambda: world.machine() or world,
        MEASURED_NS: lambda: int(world.now_ms * 1_000_000),
        BOOT_ID: boot,
    }
    with ExitStack() as stack:
        for place, function in replaced.items():
            stack.enter_context(place.replaced(function))
        scheme = open_log.Scheme(lambda given: given, open_client, lambda _: f"kafka://{log.name}:9092")
        stack.enter_context(open_log.OTHERS.added(SCHEME, scheme))
        stack.enter_context(address.OTHERS.added(SCHEME, storage_opener({log.name: bucket})))
        yield
