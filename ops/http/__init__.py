"""The HTTP server of an instance in its own process."""

from standfast.ops.http.server import OpsServer

__all__ = ["OpsServer"]
