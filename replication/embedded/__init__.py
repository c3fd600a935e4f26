"""The embedded log, in one SQLite file."""
