"""Processing: session, task, context, loop.

Imports restore, replication and store.
"""
