"""Opens and closes a compiled client of Kafka 120 times, in a process where nothing else opens or closes anything.

    argv      Client | Producer, its settings as JSON, TOPIC with 20 records of 100,000 bytes in partition 0
    stdout    JSON: bytes of memory, open files and threads that the last 100 times left

Rules of this file: started by path.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started by path

from standfast.replication.kafka.native_library import native
from support.processes import open_files, resident_bytes, thread_count

RECORDS = 5
WAIT_S = 60.0


def consume(client: Any, topic: str, _: int) -> None:
    """Read all records."""
    client.assign([(topic, 0, 0)])
    deadline, count = time.monotonic() + WAIT_S, 0
    while count < RECORDS:
        assert time.monotonic() < deadline
        count += sum(len(one) for one in client.consume(100, 100) if not isinstance(one, tuple))


def produce(client: Any, topic: str, number: int) -> None:
    """Write as many records, a megabyte in all; those of every other client are dropped by its end."""
    values = (bytes(100_000),) * RECORDS
    client.learn(topic, 10_000)
    headers = ((("a", b"b" * 1_000),),) * RECORDS
    assert client.produce(topic, 0, values, values, (1,) * RECORDS, headers, 0, 10_000) == RECORDS
    if number % 2:
        assert client.flush(30_000) == 0
        assert [one[0] for one in client.delivered()] == [RECORDS]


def main() -> None:
    """Print the memory, files and threads that a hundred clients left."""
    kind, settings, topic = sys.argv[1:]
    use = {"Client": consume, "Producer": produce}[kind]

    def once(number: int) -> None:
        client = getattr(native().module, kind)(list(json.loads(settings).items()))
        use(client, topic, number)
        client.close()

    for number in range(20):
        once(number)
    before = resident_bytes(), open_files(), thread_count()
    for number in range(100):
        once(number)
    after = resident_bytes(), open_files(), thread_count()
    print(json.dumps([now - then for now, then in zip(after, before, strict=True)]))


if __name__ == "__main__":
    main()
