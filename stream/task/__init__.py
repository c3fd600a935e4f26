"""One task: its files and stores, its opening and restore, its life and its commits."""
