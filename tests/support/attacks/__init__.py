"""Attacks on every public call: the calls, their arguments, and the state that must hold afterwards."""
