"""Parts that several tests share: fixtures, child processes, models."""
