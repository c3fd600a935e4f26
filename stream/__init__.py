"""Stream processing: sessions, topologies, the processing loop, windows and time.

Imports restore, replication and store.
"""
