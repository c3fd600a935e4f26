"""Renewal of a member's lease by a small process of its own."""
