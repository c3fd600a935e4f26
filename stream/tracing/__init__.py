"""Spans of an application's records, by OpenTelemetry."""
