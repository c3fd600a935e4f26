"""Errors, tables, keys, times and files that several closets of ops share."""
