"""Tells Spark of the format "standfast": it imports every module whose name begins with `pyspark_`, in every session.

Rules of this file: nothing but the name that Spark looks for, since every user of Spark in this environment pays for it.
"""

from standfast.restore.spark_data_source import StandfastSource as DefaultSource

__all__ = ["DefaultSource"]
