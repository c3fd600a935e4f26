"""Benches of writes, reads, standbys, failovers, processing, workers and moves: `python -m bench`."""
