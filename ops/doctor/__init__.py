"""Findings about an application's settings, topics and files; and the reset of an application."""
