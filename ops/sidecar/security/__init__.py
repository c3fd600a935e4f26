"""Callers of the sidecar: tokens, TLS, users, and the audit of what they did."""
