"""The fluent layer and its aggregations."""
