"""Worked examples of the time semantics, played step by step."""
