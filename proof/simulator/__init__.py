"""Whole instances of an application in a world without real time, threads, disk or network, driven from one seed.

docs/internals/simulator.md explains it.
"""
