"""The rows of a store over the write buffer of its task, which is in Python or compiled."""
