"""The process: command line, metrics, status, demo, bench of restores.

Imports every other room.
"""
