"""The compiled module: its sources in C, and whether it can be used here."""
