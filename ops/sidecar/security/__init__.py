"""Callers of the sidecar: tokens, TLS, users, and the audit of their actions."""
