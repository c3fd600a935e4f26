"""All records of one partition between two offsets, as verify and the Spark jobs read them.

Rules of this file: a read that gets no records below its end for 30 s is an error, never an end.
"""

from __future__ import annotations

from collections.abc import Iterator

from standfast.replication.log import Fetched, LogReader
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import Unavailable

FETCH_WAIT_MS = 1_000
IDLE_FETCHES_MAX = 30  # so many empty fetches below the end: the log does not answer


def fetch_span(reader: LogReader, source: TopicPartition, span: Bounds, records_max: int) -> Iterator[Fetched]:
    """Batches from span.begin on until the position passes span.end; the last batch may reach beyond it.

    Raises Unavailable if no batch arrives for 30 s, StateLost if the log does not hold the whole span.
    """
    at, idle = span.begin, 0
    if at >= span.end:
        return
    reader.assign({source: at})
    while at < span.end:
        fetched = reader.fetch(records_max, FETCH_WAIT_MS)
        idle = 0 if fetched else idle + 1
        if idle == IDLE_FETCHES_MAX:
            raise Unavailable(
                f"{source}: no data arrived for {idle * FETCH_WAIT_MS // 1_000} s at position {at}, below its end "
                f"{span.end}: check that the log answers, then run this again"
            )
        for batch in fetched:
            # next_offset, not the last record's: the end may be a transaction marker, which no record ever reaches.
            at = batch.next_offset
            yield batch
