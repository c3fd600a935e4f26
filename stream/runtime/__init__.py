"""Tasks at work: the loop, a task's inputs, clocks and timers."""
