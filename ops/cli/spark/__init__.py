"""Commands that compare and rebuild state: verify, rebuild, pipeline."""
