"""Clients of a running instance and of a sidecar."""
