"""Records at which processes die: last words of former processes, notes of the log, sys.exit() in a processor."""
