"""Control over HTTP: assignments, leases, events, timers."""
