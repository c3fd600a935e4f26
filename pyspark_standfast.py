"""Registers the format "standfast": Spark imports every module whose name begins with `pyspark_`, in every session.

Rules of this file: nothing but the name that Spark looks for, since every session of Spark here imports it.
"""

from standfast.restore.spark_table.source import StandfastSource as DefaultSource

__all__ = ["DefaultSource"]
