"""Callers of a server: guard, tokens, TLS, users, and the audit of their actions."""
