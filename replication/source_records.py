"""Records of a source topic in the form in which the store that reads it would have logged them.

    t: key, value ──> decoded and encoded again by the store's serdes ──> the bytes of the active's put
    null key, bytes that a serde refuses, a key or value that cannot be written ──> skipped

A processor cannot put a skipped record into the store, so a restore must not either, or an active and a standby would
hold different rows (Kafka Streams restores them: KAFKA-8037). Encoding again gives rows that are equal byte for byte,
whichever program wrote the topic: `{"a": 1}` and `{"a":1}` are one JSON value.

Rules of this file: it decides nothing else; restore, standby and verify all use it, so that they skip the same records.
"""

from __future__ import annotations

from collections.abc import Sequence

from standfast.replication.log import Record
from standfast.store.serde import beyond_record
from standfast.store.specs import StoreSpec


def as_logged(spec: StoreSpec, records: Sequence[Record]) -> list[Record]:
    """The records that the store can hold, in order, with the bytes of its own puts. A None value deletes.

    Raises the error of a serde that is `beyond_record`, such as Unavailable of a schema registry.
    """
    topic = spec.changelog_of("")  # the source topic: it is the same for every application
    key_serde, value_serde = spec.key.of_topic(topic, "key"), spec.value.of_topic(topic, "value")
    read_key, write_key = key_serde.deserialize, key_serde.serialize
    read_value, write_value = value_serde.deserialize, value_serde.serialize
    found: list[Record] = []
    for record in records:
        raw_key, raw_value = record.key, record.value
        if raw_key is None:
            continue
        try:
            key = read_key(raw_key)
            value = None if raw_value is None else read_value(raw_value)
            if key is None:
                continue  # a row needs a key: put refuses it
            new_key, new_value = write_key(key), None if value is None else write_value(value)
        except Exception as error:
            if (beyond := beyond_record(error, f"store {spec.name!r}: record {record.offset} of {topic}")) is not None:
                raise beyond from error  # the active waits for it too, and keeps the record
            continue  # any other error of a serde: put would have raised it; the caller counts
        found.append(
            record if (new_key, new_value) == (raw_key, raw_value) else record._replace(key=new_key, value=new_value)
        )
    return found
