"""Attacks on every public call: what the calls are, what each is given, and what must hold afterwards."""
