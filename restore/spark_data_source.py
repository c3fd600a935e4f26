"""The module that users import for `spark.dataSource.register`: an alias of `standfast.restore.spark_table.source`.

Rules of this file: its only purpose is this name, which README gives.
"""

from standfast.restore.spark_table.source import StandfastSource

__all__ = ["StandfastSource"]
