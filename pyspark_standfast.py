"""Tells Spark of the format "standfast": it imports every module whose name begins with `pyspark_`, in every session.

Rules of this file: nothing but the name that Spark looks for, since everybody who uses Spark here pays for it.
"""

from standfast.restore.spark_table.source import StandfastSource as DefaultSource

__all__ = ["DefaultSource"]
