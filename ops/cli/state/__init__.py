"""Commands about state: of a running instance, or of files."""
