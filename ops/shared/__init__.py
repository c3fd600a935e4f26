"""Words that several parts of the process share."""
