"""Shells that move records from a log to the stores of tasks: fetch thread, pipeline, applier, tailer."""
