"""Calls and files of the product that one operation touches."""
