"""Metadata of the stores at an address, as rows for Spark: one for each store of each task or manifest partition.

    position, topic_id     next offset of the changelog to apply
    sources                committed offsets of the task's sources, by topic/partition (tasks only)
    rows                   manifest: entries of its files; task: RocksDB's estimate, null in object storage
    made, digest           manifest: rebuild, snapshot, ...; null for a task

Rules of this file: reads only; commit records and sizes, no rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import TaskPlace, manifest_of, open_database, places_at
from standfast.restore.spark_table.options import CheckedOptions
from standfast.restore.spark_table.stores import StorePlace
from standfast.restore.verify.at_rest import definitions_of
from standfast.store.engine import Engine
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.names import few
from standfast.store.task.commit_record import Position, StoreTimes, read_record
from standfast.store.types.segments import parse_family

COLUMNS = {
    "app": "string",
    "task": "string",
    "partition": "int",
    "store": "string",
    "kind": "string",
    "position": "bigint",
    "position_at": "bigint",
    "topic_id": "string",
    "observed_at": "bigint",
    "sources": "map<string,bigint>",
    "rows": "bigint",
    "bytes": "bigint",
    "families": "int",
    "made": "string",
    "digest": "string",
    "definition": "string",
    "place": "string",
}


class MetadataReader(DataSourceReader):
    """Stores with positions and sizes."""

    def __init__(self, given: CheckedOptions, schema: StructType) -> None:
        self._address = given.place
        self._app = given.text("app")
        self._schema = schema
        wrong = [
            f"{field.name} {field.dataType.simpleString()}"
            for field in schema.fields
            if COLUMNS.get(field.name) != field.dataType.simpleString()
        ]
        if wrong:
            known = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise InvalidRequest(f"metadata has no column {few(wrong)}: it has {known}")

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        return [StorePlace(place) for place in places_at(self._address, self._app)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One batch for a task, with a row for each of its stores."""
        if not isinstance(partition, StorePlace):
            raise InternalError(f"the source was given {partition!r}, which is not one of its partitions")
        place = partition.place
        rows = list(_of_manifest(place) if place.kind == "manifest" else _of_task(place))
        if rows:
            cells = {name: [row.get(name) for row in rows] for name in self._schema.fieldNames()}
            yield pa.RecordBatch.from_pydict(cells, schema=to_arrow_schema(self._schema))


def _of_manifest(place: TaskPlace) -> Iterator[dict[str, Any]]:
    manifest = manifest_of(Folder(place.address))
    part = manifest.partition(place.task.partition)
    position = Position(part.end, -1, manifest.topic_id, manifest.made.at_ms)
    yield _row(place, manifest.store, dict(manifest.definition), position, part.observed_ms) | {
        "rows": part.entries,
        "bytes": sum(file.bytes for file in part.files),
        "families": len({file.family for file in part.files}),
        "made": manifest.made.how,
        "digest": part.digest,
    }


def _of_task(place: TaskPlace) -> Iterator[dict[str, Any]]:
    # Rows of no store are needed, so that little is fetched from object storage.
    with open_database(place, None) as engine:
        cut = read_record(engine, str(place))
        for name, definition in sorted(definitions_of(engine, str(place)).items()):
            times = cut.stores.get(name, StoreTimes())
            sizes = _sizes(engine, name)
            if place.remote:  # the estimate needs the table files, which are not fetched
                sizes["rows"] = None
            yield (
                _row(place, name, definition, cut.positions.get(name), times.observed_ms)
                | sizes
                | {"sources": list(cut.sources.items())}
            )


def _row(
    place: TaskPlace, name: str, definition: dict[str, Any], position: Position | None, observed_ms: int
) -> dict[str, Any]:
    kept = {key: value for key, value in definition.items() if key != "engine"}
    return {
        "app": place.app,
        "task": str(place.task),
        "partition": place.task.partition,
        "store": name,
        "kind": definition["kind"],
        "position": None if position is None else position.offset,
        "position_at": None if position is None else position.at_ms,
        "topic_id": None if position is None else position.topic_id,
        "observed_at": None if observed_ms < 0 else observed_ms,
        "definition": json.dumps(kept),
        "place": str(place),
    }


def _sizes(engine: Engine, name: str) -> dict[str, int | None]:
    # Window and session stores have a family for each segment.
    families = [family for family in engine.families() if (parse_family(family) or (family, 0))[0] == name]
    sizes = [engine.statistics(family) for family in families]
    return {
        "rows": sum(size.keys_estimate for size in sizes),
        "bytes": sum(size.sst_bytes for size in sizes),
        "families": len(families),
    }
