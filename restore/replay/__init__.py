"""Executors of restore plans: write batches, and bulk loads by worker threads."""
