"""Comparison of stores with their changelogs, and import of folders with manifests as state."""
