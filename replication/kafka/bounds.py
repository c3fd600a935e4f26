"""Begin and end offsets of partitions, and first offsets by time, as the partitions' leaders know them.

    bounds_of, written_end, first_offsets ──> one request to each leader, for all its partitions ──> offsets

The question is a synchronous one of a consumer that reads nothing (`Askers` of clients.py). The admin client has it,
too, and must not be asked: its `list_offsets` may end the process when it does not know a leader, and raises a bare
error when a topic is deleted meanwhile (docs/internals/processing.md).

Rules of this file: all questions of a call, repeated as they may be, share one time-out of the log. A topic
is described before its first question, and after a leader's refusal: its description names an absent partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.cluster import FIRST_ANSWER_MS, NO_ANSWER, Cluster
from standfast.replication.kafka.errors import BROKEN, PASSING, client_errors, error_of
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.permissions import topic_needs
from standfast.store.names import few

COMMITTED, WRITTEN = "read_committed", "read_uncommitted"
EVENTS = 100  # of the consumer, such as a refused permission for its group: dropped, or they would pile up
_SILENT = NO_ANSWER - BROKEN


def bounds_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, committed: bool = True, operation: str = "DESCRIBE"
) -> dict[TopicPartition, Bounds]:
    """Begin offset, and as end the last stable offset (`committed`) or the high watermark; `operation`: see `check`."""
    wanted = [TopicPartition(*source) for source in partitions]
    if not wanted:
        return {}
    level = COMMITTED if committed else WRITTEN
    asked = [dict.fromkeys(wanted, at) for at in (OFFSET_BEGINNING, OFFSET_END)]
    begins, ends = _asked(cluster, asked, level, operation)
    # `max`: the head may be deleted past the last stable offset.
    return {source: Bounds(begins[source], max(ends[source], begins[source])) for source in wanted}


def written_end(cluster: Cluster, source: TopicPartition) -> int:
    """High watermark of a partition, in one request. Raises UnknownStore."""
    return _asked(cluster, [{source: OFFSET_END}], WRITTEN)[0][source]


def first_offsets(cluster: Cluster, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """First offset with this timestamp or a later one, the last stable offset if there is none."""
    asked = {TopicPartition(*source): max(time_ms, 0) for source, time_ms in times_ms.items()}
    found = _asked(cluster, [asked], COMMITTED)[0] if asked else {}
    ends = bounds_of(cluster, [source for source, offset in found.items() if offset < 0])
    return {source: ends[source].end if offset < 0 else offset for source, offset in found.items()}


def _asked(
    cluster: Cluster, questions: Sequence[Mapping[TopicPartition, int]], level: str, operation: str = "DESCRIBE"
) -> list[dict[TopicPartition, int]]:
    """The answers of the leaders to questions about the same partitions, each a time or a special offset."""
    asked = list(questions[0])
    cluster.check_unfound(asked, operation)
    part_s = min(FIRST_ANSWER_MS, cluster.timeout_ms // 2) / 1_000

    def ask(left_s: float) -> list[dict[TopicPartition, int]]:
        with cluster.askers.use(level) as client, client_errors():
            client.consume(EVENTS, 0)  # runs callbacks, too: a token may be due
            try:
                return [_answers(client, one, min(left_s, part_s)) for one in questions]
            except KafkaException as error:
                code = error_of(error).code()
                if code in _SILENT:
                    cluster.askers.renew(client)  # it may be stuck
                elif code in PASSING:
                    topics = {source.topic for source in asked}
                    for topic in topics:
                        cluster.forget(topic)
                    cluster.check(asked, operation)
                    for topic in topics:  # measured: else the client goes on asking the old leaders
                        client.list_topics(topic, left_s)
                raise

    needs = topic_needs((source.topic for source in asked), operation)
    return cluster.reading(f"offsets of {few(asked)}", ask, *needs, passing=PASSING | NO_ANSWER)


def _answers(client: Consumer, asked: Mapping[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    with client_errors():
        answer = client.offsets_for_times([KafkaPartition(*source, at) for source, at in asked.items()], timeout_s)
    for one in answer:
        if one.error is not None:
            raise KafkaException(one.error)
        found[TopicPartition(one.topic, one.partition)] = one.offset
    return found
