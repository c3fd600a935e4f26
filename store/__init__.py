"""State at rest: engines, store types, byte layouts, serdes and the task's write buffer.

Imports nothing of ours.
"""
