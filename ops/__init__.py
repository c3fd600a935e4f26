"""The process: command line, metrics, status, demo, benchmarks.

Imports every other room.
"""
