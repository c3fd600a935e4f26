"""Renewal of a member's lease by a small separate process."""
