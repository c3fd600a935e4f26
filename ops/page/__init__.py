"""The ops page of an instance: templates, rows and a stream of changes."""
