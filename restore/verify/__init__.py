"""Proof that stores and changelogs agree, and folders with manifests as state."""
