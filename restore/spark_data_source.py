"""Where `spark.dataSource.register` finds the format: an alias of `standfast.restore.spark_table.source`.

Rules of this file: none but the name that README gives.
"""

from standfast.restore.spark_table.source import StandfastSource

__all__ = ["StandfastSource"]
