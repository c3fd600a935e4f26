"""Restore of stores: plan, gate, replay, fold, digest, verify.

Imports replication and store.
"""
