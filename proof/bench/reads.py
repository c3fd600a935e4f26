"""The steps of `make bench BENCHES=restore`, beside the product's: what a restore is compared with.

    fill    as the product's, or every key once, in one order, then all again
    log     fetch it by the log's own reader: the bound that no restore can beat
    bare    consume it with the Kafka client alone

Rules of this file: one process; nothing is made of the records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from bench.step import Step
from standfast.ops.bench import step as restores
from standfast.ops.bench.step import Measured, address_of, timed
from standfast.replication.tail.open_log import open_log

FETCH_RECORDS = 5_000


def fill(step: Step) -> Measured:
    """Write the changelog; `order` says how far the versions of a key are from each other."""
    distinct = max(step.records // step.versions, 1)
    far = (number % distinct for number in range(step.records))
    return restores.fill(step, far if step.order == "far" else None)


def read_log(step: Step) -> Measured:
    """Fetch the whole changelog."""
    with closing(open_log(address_of(step))) as log:
        reader = log.reader()
        begin, end = reader.bounds([step.changelog])[step.changelog]

        def run() -> None:
            reader.assign({step.changelog: begin})
            # By position: on Kafka, ends of transactions take offsets, too.
            while reader.assignment()[step.changelog] < end:
                reader.fetch(FETCH_RECORDS)

        return timed(run, end - begin)


def read_bare(step: Step) -> Measured:
    """Consume the whole changelog, from the making of the client to the last record."""
    from bench.bare import consume_bare

    found: list[int] = []
    measured = timed(lambda: found.append(consume_bare(address_of(step), step.changelog, step.records)), step.records)
    assert found == [step.records], f"{found[0]} of {step.records} records came"
    return measured


READS_STEPS: dict[str, Callable[[Step], Measured]] = {"fill": fill, "log": read_log, "bare": read_bare}
