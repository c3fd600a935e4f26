"""Reports of verify and pipeline as HTML pages."""
