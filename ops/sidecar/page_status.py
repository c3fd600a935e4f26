"""The sidecar's status document plus the fields that only its page shows: disk, servers, events, schedules, settings.

    page = OpsPage(lambda: page_status(answers.status(), state_path=..., audit=audit, loaded=loaded, ...))

Rules of this file: adds fields to a document and changes none of it. Settings come through `ops/config/show.py`, which
hides values that may be secret. A field whose source is None is omitted or empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from standfast.ops.config.config import Loaded
from standfast.ops.config.show import DEFAULT, rows
from standfast.ops.observe.metrics_servers import HttpNumbers, RespNumbers
from standfast.ops.observe.status import histogram_document
from standfast.ops.page.model import percentile
from standfast.ops.security.audit import Audit
from standfast.ops.sidecar.engine.statistics import CALL_BUCKETS_S
from standfast.store.base.version import __version__
from standfast.store.histogram import Histogram
from standfast.store.log import as_event, logger

Json = Mapping[str, Any]


def page_status(
    status: Json,
    *,
    state_path: Path | None = None,
    disk_floor_bytes: int = 0,
    audit: Audit | None = None,
    loaded: Loaded | None = None,
    resp_server: RespNumbers | None = None,
    http_server: HttpNumbers | None = None,
    schedules: Iterable[Json] = (),
) -> Json:
    """The document for the page. `schedules`: task, kind, next_ms (wall time) and missed of each punctuator."""
    return {
        **status,
        "version": __version__,
        "disk": status.get("disk") or _disk(state_path, disk_floor_bytes),
        "servers": [*_resp_server(resp_server), *_http_server(http_server)],
        "events": [] if audit is None else [event.document() for event in audit.recent()],
        "schedules": list(schedules),
        "config": {} if loaded is None else _settings(loaded),
    }


def _disk(state_path: Path | None, floor_bytes: int) -> Json | None:
    if state_path is None:
        return None
    try:
        found = shutil.disk_usage(state_path)
    except OSError as error:
        logger.warning("page: the state directory cannot be measured: %s", error, extra=as_event("disk_unmeasured"))
        return None
    return {"free_bytes": found.free, "total_bytes": found.total, "floor_bytes": floor_bytes}


def _settings(loaded: Loaded) -> dict[str, Any]:
    """The settings that differ from their defaults by origin: set in a file, a variable or a flag."""
    return {name: value for name, value, origin in rows(loaded) if origin != DEFAULT}


def _resp_server(server: RespNumbers | None) -> list[Json]:
    if server is None:
        return []
    refused = sum(server.refusals.values())
    calls = Histogram(CALL_BUCKETS_S)
    for seconds in server.call_seconds.values():
        if seconds.bounds == calls.bounds:
            calls.add(seconds)
    slowest: list[tuple[str, Any]] = (
        [("99 % of commands took at most (sampled)", percentile(histogram_document(calls), 0.99))]
        if any(calls.counts)
        else []
    )
    told = (
        *slowest,
        ("connections", server.sessions),
        ("connections bound to a partition", server.bound),
        ("commits in progress", server.committing),
        ("commands", sum(server.calls.values())),
        ("refusals", refused),
        ("connections refused", server.refused_connections),
        ("connections cut off", sum(server.cut_off.values())),
    )
    return [{"server": "RESP", "what": what, "value": value} for what, value in told]


def _http_server(server: HttpNumbers | None) -> list[Json]:
    if server is None:
        return []
    bad = sum(count for (_, code), count in server.requests.items() if code >= "500")
    told = (
        ("requests", sum(server.requests.values())),
        ("requests in progress", server.inflight),
        ("event streams", server.streams),
        ("answers 5xx", bad),
    )
    return [{"server": "HTTP", "what": what, "value": value} for what, value in told]
