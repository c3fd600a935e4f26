"""Running tasks: the loop, a task's inputs, clocks and timers."""
