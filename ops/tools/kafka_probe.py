"""Probes of a Kafka broker: one request for the brokers of its cluster. An answer with a broker means that it is up.

`refusals` checks less: whether any program listens, whatever its protocol.

    request    length | key 3 (Metadata) | version 1 | correlation | client id | 0 topics
    answer     length | correlation | brokers: node, host, port, rack | controller | topics

All numbers are big-endian; texts are a length of 2 bytes (-1: absent) and UTF-8.

Rules of this file: one request on one connection, in plain text. It neither reads nor writes records.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from standfast.store.errors import Unavailable

METADATA_KEY = 3
METADATA_VERSION = 1
CORRELATION = 0x5F
CLIENT_ID = b"standfast-probe"
ANSWER_BYTES_MAX = 1 << 20
LISTEN_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Node:
    """A broker that is alive, according to its cluster."""

    node_id: int
    host: str
    port: int


def live_nodes(host: str, port: int, timeout_s: float) -> list[Node] | None:
    """The live brokers of the cluster of this address; None without a broker's answer in time."""
    header = struct.pack(">hhih", METADATA_KEY, METADATA_VERSION, CORRELATION, len(CLIENT_ID)) + CLIENT_ID
    request = header + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            # The first bytes of another protocol are a length too, such as 1.2 GB for "HTTP".
            if not 0 < size <= ANSWER_BYTES_MAX:
                return None
            return parse_answer(_exactly(connection, size))
    except (OSError, struct.error, ValueError):
        return None


def refusals(servers: str, timeout_s: float) -> list[str] | None:
    """For each of `host:port,host:port` the proof that no program listens there; None if one does, or may."""
    found = []
    # A TCP connection alone, because the listener may speak TLS or ask for a login, which a plain request would break.
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
        except (ConnectionRefusedError, socket.gaierror) as error:
            found.append(f"{server}: {error.strerror}")
        except OSError:
            return None  # no answer in time, no route: the client waits longer and reports more
        else:
            return None
    return found


def check_listening(servers: str, hint: str = "start one on this machine with: standfast broker up") -> None:
    """Raise Unavailable at once if none of `host:port,host:port` listens."""
    # librdkafka would go on connecting until the time-out of each call, and then name no cause.
    found = refusals(servers, LISTEN_TIMEOUT_S)
    if found is not None:
        raise Unavailable(f"kafka://{servers}: no broker listens ({'; '.join(found)}): check the address, or {hint}")


def parse_answer(answer: bytes) -> list[Node]:
    """The brokers in an answer, given without its length. Raises ValueError or struct.error for other bytes."""
    correlation, count = struct.unpack_from(">ii", answer)
    if correlation != CORRELATION or not 0 <= count <= len(answer):
        raise ValueError(f"not an answer to request {CORRELATION}")
    at = 8
    nodes: list[Node] = []
    for _ in range(count):
        (node_id,) = struct.unpack_from(">i", answer, at)
        host, at = _text(answer, at + 4)
        (port,) = struct.unpack_from(">i", answer, at)
        _, at = _text(answer, at + 4)
        nodes.append(Node(node_id, host, port))
    return nodes


def _text(answer: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", answer, at)
    end = at + 2 + max(size, 0)
    if end > len(answer):
        raise ValueError("the answer ends inside a text")
    return answer[at + 2 : end].decode(), end


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ValueError("the connection was closed")
        parts += part
    return bytes(parts)
