"""Carries restore plans out: batches, and bulk loads by worker processes."""
