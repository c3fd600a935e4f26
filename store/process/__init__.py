"""Child processes: the side of the process that starts one, and the side of the one that is started."""
