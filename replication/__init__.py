"""Changes in motion: the log port and its logs, the changelog writer, standbys.

This package imports `standfast.store` only.
"""
