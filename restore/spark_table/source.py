"""`spark.read.format("standfast")`: stores, changelogs, their changes and metadata as tables, and tables as stores.

    spark.read.format("standfast").option("storeName", "delays").option("decode", "true").load("/var/lib/board")
    .option("kind", "changelog" | "changes") with log, and topic or app and storeName
    .option("kind", "metadata").load("/var/lib/board")
    df.write.format("standfast").mode("append").options(...).save("/data/delays")

Spark finds the format through the module `pyspark_standfast`, which it imports in every session that looks for a data
source in Python.

Rules of this file: it maps each kind to its reader, and nothing else. It imports little, since every such session pays
for it: the readers' modules are imported when a read needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from standfast.restore.spark_table.options import CheckedOptions

FORMAT = "standfast"


class StandfastSource(DataSource):
    """The format. All options are checked: an unknown one is an error."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """Columns of the table that the options name."""
        # Imported here and below: Spark loads this module also in sessions that never read a store.
        from standfast.restore.spark_table.columns import ddl

        return ddl(_columns(self._given(None)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of `schema`."""
        given = self._given(None)
        if given.kind == "metadata":
            from standfast.restore.spark_table.metadata import MetadataReader

            return MetadataReader(given, schema)
        if given.kind == "store":
            from standfast.restore.spark_table.stores import StoreReader

            return StoreReader(given, schema)
        from standfast.restore.spark_table.log import ChangelogReader, ChangesReader

        return ChangelogReader(given, schema) if given.kind == "changelog" else ChangesReader(given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a new folder."""
        from standfast.restore.spark_table.writer import StateWriter

        return StateWriter(self._given("write"), schema, overwrite=overwrite)

    def _given(self, kind: str | None) -> CheckedOptions:
        from standfast.restore.spark_table.options import parse

        return parse(kind, dict(self.options))


def _columns(given: CheckedOptions) -> Mapping[str, str]:
    if given.kind == "metadata":
        from standfast.restore.spark_table.metadata import COLUMNS

        return COLUMNS
    if given.kind == "store":
        from standfast.restore.spark_table.stores import store_schema

        return store_schema(given)
    from standfast.restore.spark_table.log import log_schema

    return log_schema(given)
