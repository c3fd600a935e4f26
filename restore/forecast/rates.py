"""Rates of restores on this machine: measured by the last ones, and read by the next forecast.

    <state_dir>/<app>/RATES
    {"format": "standfast.rates/1", "replay": {"per_s": 812000.0, "measured_ms": 1700000000000},
     "download": {"per_s": 91000000.0, "measured_ms": 1700000000000}}

`replay` is in changelog records a second over all tasks of the process, `download` in bytes of snapshots a second.

Rules of this file: a rate is an estimate. A missing or damaged file gives the defaults, and a failed write is reported
and costs nothing else. Two processes that write at the same time may lose one of two new rates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from standfast.store.files import write_atomically
from standfast.store.log import as_event, logger

RATES_FILE = "RATES"
FORMAT = "standfast.rates/1"
REPLAY, DOWNLOAD = "replay", "download"
# About half of the slowest runs of the benchmarks: small values, one partition, two cores, a service on loopback.
DEFAULTS = {REPLAY: 200_000.0, DOWNLOAD: 50_000_000.0}
# Short restores measure openings and connections, not the rate.
LEAST = {REPLAY: 10_000, DOWNLOAD: 1 << 20}


class Rate(NamedTuple):
    """Units per second; `measured_ms` is the wall time of the measurement, None for a default."""

    per_s: float
    measured_ms: int | None = None


def read_rates(state_path: Path | None) -> dict[str, Rate]:
    """REPLAY and DOWNLOAD, as measured in `<state_dir>/<app>` or by default."""
    found = {} if state_path is None else _read(state_path / RATES_FILE)
    return {what: found.get(what, Rate(default)) for what, default in DEFAULTS.items()}


def note_rate(state_path: Path, what: str, amount: int, took_ms: int, now_ms: int) -> None:
    """Keep a rate that a restore has just shown; one that is too short to show any is left out."""
    if amount < LEAST[what] or took_ms <= 0:
        return
    path = state_path / RATES_FILE
    # The other rate stays: a machine may replay for months without a download.
    rates = _read(path) | {what: Rate(round(amount * 1_000 / took_ms, 1), now_ms)}
    document = {"format": FORMAT, **{name: rate._asdict() for name, rate in rates.items()}}
    try:
        write_atomically(path, json.dumps(document) + "\n")
    except OSError as error:
        logger.warning("the rate of this restore is not kept: %s", error, extra=as_event("rate_unkept", what=what))


def _read(path: Path) -> dict[str, Rate]:
    try:
        # Bounded: a file that another program has put there may be of any size.
        document = json.loads(path.read_bytes()[:4_096])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s is not readable, default rates are used: %s", path, error, extra=as_event("rates_unread"))
        return {}
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return {}
    found = {what: _rate(document.get(what)) for what in DEFAULTS}
    return {what: rate for what, rate in found.items() if rate is not None}


def _rate(shape: Any) -> Rate | None:
    if not isinstance(shape, dict):
        return None
    per_s, measured_ms = shape.get("per_s"), shape.get("measured_ms")
    # A bool is a number in Python; a rate of 0 would make every forecast infinite.
    if isinstance(per_s, bool) or not isinstance(per_s, int | float) or not 0 < per_s < 1e15:
        return None
    if isinstance(measured_ms, bool) or not isinstance(measured_ms, int):
        return None
    return Rate(float(per_s), measured_ms)
