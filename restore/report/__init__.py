"""HTML reports of verify and pipeline."""
