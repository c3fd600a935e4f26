"""Seeded simulations of pure parts: `standfast simulate`."""
