"""The tasks that both servers of the sidecar call."""
