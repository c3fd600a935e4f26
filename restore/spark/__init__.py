"""Rebuild, verify, inspect and pipeline as Spark jobs."""
