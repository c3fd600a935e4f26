"""State at rest: engines, store types, byte layouts, serdes and the task's write buffer.

This package imports no other package of standfast.
"""
