"""Sorted files with a position, described by a manifest."""
