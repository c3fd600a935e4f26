"""Data over the Redis protocol."""
