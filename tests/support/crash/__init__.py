"""Processes that are killed, and models of what they must leave behind."""
