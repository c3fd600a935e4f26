"""Hosting of tasks: sessions, ownership, opening, commits."""
