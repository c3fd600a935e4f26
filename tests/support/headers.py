"""Records with headers of every kind through a whole application, on any log: the same check for each log.

    in ──> map ──> repartition ──> out          all headers, as they were
     ├───> count ──> counted                    those of the record that changed the result
     ├───> a step that fails ──> refused        dead letter of a step: its own headers, then ours
     └──── cannot be read ──> unread            dead letter of the source: the same

Rules of this file: the application runs by `run()`, and the records are read with a plain reader of the log.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import standfast as sf
from standfast.replication.log import Log, Record

PREFIX = "__streams.errors."
# Two of one name, without a value, empty, no ASCII, and one with a name of ours.
HEADERS = (
    ("trace", b"1"),
    ("none", None),
    ("trace", b"\xff"),
    ("empty", b""),
    ("größe", b"2"),
    (f"{PREFIX}message", b"mine"),
    ("trace", b"1"),
)
WAIT_S = 120.0


def refuse(value: object) -> object:
    raise ValueError("not this one")


def build(address: str, state_dir: Path, prefix: str) -> sf.App:
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App(f"{prefix}app", log=address, state_dir=state_dir, stores=[counts], create_topics=True)
    lines = app.stream(f"{prefix}in", on_error="dead_letter", dead_letter=f"{prefix}unread")
    lines.map(lambda key, value: (value, key), key=sf.serde.json).repartition("turned").to(f"{prefix}out")
    lines.group_by_key().count("counts").to_stream().to(f"{prefix}counted")
    step = lines.map_values(refuse, name="check", on_error="dead_letter", dead_letter=f"{prefix}refused")
    step.to(f"{prefix}checked")
    return app


def first_of(log: Log, topics: list[str]) -> dict[str, Record]:
    """The first record of each topic, once there is one."""
    deadline_s = time.monotonic() + WAIT_S
    reader = log.reader()
    found: dict[str, Record] = {}
    try:
        partitions = {topic: log.admin.describe_topic(topic) for topic in topics}
        reader.assign(
            {
                sf.TopicPartition(topic, at): 0
                for topic, info in partitions.items()
                if info
                for at in range(info.partitions)
            }
        )
        while found.keys() != set(topics):
            assert time.monotonic() < deadline_s, f"of {topics} only {sorted(found)} have a record"
            for batch in reader.fetch(1_000, 100):
                for record in batch.records:
                    found.setdefault(batch.source.topic, record)
    finally:
        reader.close()
    return found


def check_headers(address: str, state_dir: Path, prefix: str = "") -> None:
    """Run the application on a log and check the headers of everything that it writes."""
    app = build(address, state_dir, prefix)
    with app.producer() as producer:
        producer.send(f"{prefix}in", "k", "v", 5, HEADERS)
        producer.flush()
    log = sf.open_log(address)
    source = first_of(log, [f"{prefix}in"])[f"{prefix}in"]
    assert source.headers == HEADERS
    at = next(one for one in range(4) if _end(log, f"{prefix}in", one))
    log.producer().append({sf.TopicPartition(f"{prefix}in", at): [sf.Outgoing(b"k", b"{", 6, HEADERS)]})
    running = threading.Thread(target=app.run)
    running.start()
    try:
        found = first_of(log, [f"{prefix}{name}" for name in ("out", "counted", "refused", "unread")])
    finally:
        app.stop()
        running.join(WAIT_S)
        log.close()
    assert not running.is_alive()
    assert found[f"{prefix}out"].headers == HEADERS
    assert found[f"{prefix}counted"].headers == HEADERS
    for name, error, place in (("refused", "ValueError", ["step"]), ("unread", "JSONDecodeError", [])):
        headers = found[f"{prefix}{name}"].headers
        assert headers[: len(HEADERS)] == HEADERS
        added = headers[len(HEADERS) :]
        about = ["exception", "message", "stacktrace", *place, "topic", "partition", "offset"]
        assert [one for one, _ in added] == [PREFIX + what for what in about]
        last = dict(added)
        assert (last[f"{PREFIX}exception"], last[f"{PREFIX}topic"]) == (error.encode(), f"{prefix}in".encode())
        assert dict(headers)[f"{PREFIX}message"] != b"mine"  # ours is the last of its name


def _end(log: Log, topic: str, partition: int) -> int:
    reader = log.reader()
    try:
        at = sf.TopicPartition(topic, partition)
        return reader.bounds([at])[at].end
    finally:
        reader.close()
