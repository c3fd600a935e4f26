"""Snapshots: a task's files at one point, in a folder or object storage, and the restore from them."""
