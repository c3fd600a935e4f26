"""A process that stops itself in the middle of a commit, and goes on at SIGCONT.

    place    before      no part of the commit has been sent to the broker
             within      its records and offsets are in the log, the end of the transaction is not
             after       the log has the commit, the local database does not

    stdout   stopped     SIGSTOP comes next
             fenced      the commit, or the next one, was refused: a newer owner has the task
             again       the commit failed without a newer owner; the task was reopened
             gone        the task is not held here any more
             done        every record is committed

Rules of this file: started by `test_kafka_exactly_once.py` with its settings as JSON. Record n of the source puts n
under its own key, so that a changelog shows which process processed which records.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from standfast.replication.kafka.writer import KafkaWriter
from standfast.replication.offsets import TopicPartition
from standfast.stream.task import commit_write
from support.crash.options import use

LIFE_MAX_S = 60  # an orphan ends by itself
STOP_AT = 5
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def say(line: str) -> None:
    print(line, flush=True)


def stop_here() -> None:
    say("stopped")
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_once_at(place: str) -> None:
    """Stop before the call that begins the place."""
    if place == "after":

        def reach(name: str) -> None:
            if name == "commit.logged":
                setattr(commit_write, "reach", lambda name: None)  # noqa: B010 - it is no name of that module's own
                stop_here()

        setattr(commit_write, "reach", reach)  # noqa: B010
        return
    name = {"before": "transact", "within": "_commit"}[place]
    inner: Any = getattr(KafkaWriter, name)

    def stopping(self: KafkaWriter, *arguments: Any, **others: Any) -> Any:
        setattr(KafkaWriter, name, inner)
        stop_here()
        return inner(self, *arguments, **others)

    setattr(KafkaWriter, name, stopping)


def write(session: sf.Session, settings: dict[str, Any]) -> None:
    """Write records one by one, each in a commit of its own."""
    source = settings["source"]
    stopped = False
    while True:
        offset = session.task(0).source_offsets().get(TopicPartition(source, 0), 0)
        if offset == settings["count"]:
            return
        if offset == STOP_AT and not stopped:
            stopped = True
            stop_once_at(settings["place"])
        task = session.task(0)
        task.store("kv").put(f"k{offset}", settings["name"])
        try:
            task.commit({(source, 0): offset + 1})
        except sf.Unavailable:
            say("again")
            session.reopen(0)
            session.wait_ready(30)


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    given = {"log": settings["log"], "state_dir": settings["state_dir"], "lease_ms": settings["lease_ms"]}
    given["max_stall_ms"] = settings["lease_ms"]
    with sf.Session(settings["app"], stores=STORES, partitions=1, **given) as session:
        session.assign(active=[0])
        session.wait_ready(30)
        try:
            write(session, settings)
        except (sf.Fenced, sf.InvalidRequest) as error:
            if not isinstance(error, sf.Fenced) and "not assigned" not in str(error):
                raise
            say("fenced")
            while any(task.role == "active" for task in session.tasks().values()):
                session.clock.sleep_ms(10)
            say("gone")
            return
    say("done")


if __name__ == "__main__":
    use()
    main()
