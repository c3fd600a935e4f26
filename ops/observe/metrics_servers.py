"""Counters of a sidecar's RESP and HTTP servers, of its verifications, and of the event loop's delay.

Rules of this file: plain slots that are added to per request, and samples made of them at scrape time; no metrics
library. Methods are of a fixed list, so that requests for odd paths make no series.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from standfast.ops.observe.metrics_values import Sample, buckets
from standfast.store.histogram import Histogram

RESP = "resp"
HTTP = "http"
OK = "OK"
OTHER = "other"
HTTP_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0)
LAG_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
LAG_EVERY_S = 0.25
# First segments of paths below /v1, and the paths outside of it.
KNOWN_PATHS = frozenset(
    {"hello", "stores", "assignment", "revoke", "ready", "events", "schedule", "status", "lags", "locate", "tasks"}
    | {"heartbeat", "snapshots", "verify", "drain", "wipe", "openapi.json"}
)
KNOWN_ROOTS = frozenset({"/", "/metrics", "/livez", "/readyz", "/startupz", "/events", "/page.js", "/page.css"})
HTTP_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})


class RespNumbers(Protocol):
    """Counters of the RESP server; `EngineStatistics` of the sidecar's engine is one."""

    @property
    def sessions(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def committing(self) -> int: ...
    @property
    def refused_connections(self) -> int: ...
    @property
    def cut_off(self) -> Mapping[str, int]: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def calls(self) -> Mapping[str, int]: ...
    @property
    def refusals(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def call_seconds(self) -> Mapping[str, Histogram]: ...
    @property
    def batches(self) -> Histogram: ...


@dataclass(slots=True)
class HttpNumbers:
    """Counters of the HTTP server; only the event loop adds to them, so they need no lock."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)  # method, code
    seconds: dict[str, Histogram] = field(default_factory=dict)  # by method
    inflight: int = 0
    streams: int = 0
    bytes_out: int = 0

    def method(self, verb: str, path: str) -> str:
        """The label of a request, such as `GET /v1/status`; `other` if it is not on the list."""
        if verb not in HTTP_METHODS:
            return OTHER
        parts = path.split("/", 3)
        # Two segments only: the names of stores and partitions behind them would be one series each.
        if path in KNOWN_ROOTS:
            return f"{verb} {path}"
        if len(parts) > 2 and parts[1] == "v1" and parts[2] in KNOWN_PATHS:
            return f"{verb} /v1/{parts[2]}"
        return OTHER

    def answered(self, method: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests[method, str(status)] += 1
        self.seconds.setdefault(method, Histogram(HTTP_BUCKETS_S)).observe(seconds)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def counted(app: App, numbers: HttpNumbers) -> App:
    """An ASGI layer that counts requests, their status and their duration; streams of events apart."""

    async def layer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        method, loop = numbers.method(scope["method"], scope["path"]), asyncio.get_running_loop()
        started, status, stream = loop.time(), 500, False  # 500 unless an answer begins

        async def counting(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message.get("headers", ())).get(b"content-type", b"")
                if kind.startswith(b"text/event-stream"):
                    stream = True
                    numbers.streams += 1
            else:
                numbers.bytes_out += len(message.get("body", b""))
            await send(message)

        numbers.inflight += 1
        # In a finally, so that a client that hangs up is counted too.
        try:
            await app(scope, receive, counting)
        finally:
            numbers.inflight -= 1
            numbers.streams -= stream
            # A stream lasts as long as its reader likes, which would spoil the durations of all answers.
            numbers.answered(method, status, 0.0 if stream else loop.time() - started)

    return layer


@dataclass(slots=True)
class VerifyNumbers:
    """Results of verifications over HTTP, by store."""

    records: Counter[str] = field(default_factory=Counter)
    mismatches: Counter[str] = field(default_factory=Counter)
    success_ms: dict[str, int] = field(default_factory=dict)

    def count(self, verdicts: Iterable[Mapping[str, Any]], now_ms: int) -> None:
        """Count the verdicts of one run; an inconclusive verdict is neither a failure nor a success."""
        for one in verdicts:
            store = str(one["store"])
            self.records[store] += int(one["records"])
            self.mismatches[store] += sum(int(one[name]) for name in ("missing", "extra", "different", "stale"))
            if one["verdict"] == "equal":
                self.success_ms[store] = now_ms

    def samples(self, held: Iterable[str]) -> Iterator[Sample]:
        """Samples of the held stores; counters begin at 0."""
        # From 0, so that the first mismatch is an increase, which an alert sees.
        for store in sorted(held):
            yield "verify_records_total", (store,), self.records[store]
            yield "verify_mismatches_total", (store,), self.mismatches[store]
            if store in self.success_ms:
                yield "verify_last_success_timestamp_seconds", (store,), self.success_ms[store] / 1_000


class LoopLag:
    """Wakes up at an interval and counts how late that was."""

    def __init__(self) -> None:
        self.seconds = Histogram(LAG_BUCKETS_S)

    async def watch(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.seconds.observe(max(loop.time() - due, 0.0))


def resp_server_samples(server: RespNumbers) -> Iterator[Sample]:
    """Samples of the RESP server."""
    refused = Counter[str]()
    for (method, reason), count in sorted(server.refusals.items()):
        refused[method] += count
        yield "rpc_requests_total", (RESP, method, reason), count
    for method, calls in sorted(server.calls.items()):
        # Calls and refusals are read one after the other while the server counts on.
        yield "rpc_requests_total", (RESP, method, OK), max(calls - refused[method], 0)
    for method, seconds in sorted(server.call_seconds.items()):
        yield "rpc_duration_seconds", (RESP, method), buckets(seconds)
    yield "rpc_batch_ops", (RESP,), buckets(server.batches)
    yield "rpc_inflight", (RESP,), server.committing
    yield "rpc_received_bytes_total", (RESP,), server.bytes_in
    yield "rpc_sent_bytes_total", (RESP,), server.bytes_out
    yield "sessions", ("bound",), server.bound
    yield "sessions", ("unbound",), max(server.sessions - server.bound, 0)
    yield "sessions_refused_total", (), server.refused_connections
    for reason, count in sorted(server.cut_off.items()):
        yield "sessions_cut_off_total", (reason,), count


def http_server_samples(server: HttpNumbers) -> Iterator[Sample]:
    """Samples of the HTTP server."""
    for (method, code), count in sorted(server.requests.items()):
        yield "rpc_requests_total", (HTTP, method, code), count
    for method, seconds in sorted(server.seconds.items()):
        yield "rpc_duration_seconds", (HTTP, method), buckets(seconds)
    yield "rpc_inflight", (HTTP,), server.inflight
    yield "rpc_sent_bytes_total", (HTTP,), server.bytes_out
    yield "event_streams", (), server.streams
