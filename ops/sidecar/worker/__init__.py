"""The process for restores and standbys beside the sidecar's server."""
