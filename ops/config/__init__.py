"""Settings: files, environment and flags, typed and checked."""
