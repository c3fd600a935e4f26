"""Parts that several tests need: fixtures, child processes, models."""
