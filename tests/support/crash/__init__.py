"""Processes that are killed, and models of the state that they must leave behind."""
