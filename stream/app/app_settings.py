"""Checks of the arguments of an application, and the settings of its session that follow from them.

Rules of this file: pure; `App` calls it before anything is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, get_args

from standfast.replication.listeners import Listener
from standfast.store.arguments import list_problems
from standfast.store.errors import BadConfig
from standfast.store.log import LogFormat
from standfast.store.serde import serde_problems
from standfast.store.specs import StoreSpec
from standfast.stream.restart import RestartStrategy
from standfast.stream.stream_time import Policy
from standfast.stream.task.settings import SessionOptions, SessionSettings


def argument_problems(stores: object, listeners: object, key: object, value: object) -> list[str]:
    return [
        *list_problems("stores", stores, StoreSpec, "[standfast.KeyValueStore(...)]"),
        *list_problems("listeners", listeners, Listener, "[MyListener()]"),
        *serde_problems(default_key_serde=key, default_value_serde=value),
    ]


def setting_problems(settings: Mapping[str, Any]) -> list[str]:
    """Problems of a session's settings that are wrong for any application."""
    if settings.get("placement", "managed") not in ("managed", "static", "shared"):
        return [f'placement of an App is "managed" or "static", not {settings["placement"]!r:.100}']
    try:
        return SessionSettings.of(settings).problems()
    except BadConfig as error:
        return list(error.problems)


def with_placement(settings: SessionOptions) -> SessionOptions:
    """The settings with the placement of applications, of which "shared" is an earlier name."""
    return {**settings, "placement": "static" if settings.get("placement") == "static" else "managed"}


def check_kinds(log: object, log_format: object, restart: object, **flags: object) -> None:
    """Raise BadConfig for a value of another kind than its setting takes."""
    for flag, given in flags.items():
        if not isinstance(given, bool):
            raise BadConfig([f"{flag} must be True or False, not {given!r:.100}"])
    if log_format is not None and log_format not in get_args(LogFormat):
        raise BadConfig([f"log_format must be {' or '.join(get_args(LogFormat))}, not {log_format!r:.100}"])
    if log is not None and not isinstance(log, str):
        raise BadConfig([f"log must be an address such as sqlite:///./log, not {log!r:.100}"])
    if restart is not None and not isinstance(restart, RestartStrategy):
        raise BadConfig([f"restart must be a strategy such as standfast.FixedDelay(3, 1000), not {restart!r:.100}"])


def check_numbers(stream_time: str, *numbers: tuple[tuple[str, int, int], ...]) -> None:
    problems = []
    if stream_time not in get_args(Policy):
        problems.append(f"stream_time must be one of {', '.join(get_args(Policy))}, not {stream_time!r}")
    for name, number, least in chain.from_iterable(numbers):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            problems.append(f"{name} must be a whole number of at least {least}, not {number!r}")
    if problems:
        raise BadConfig(problems)


def interval_of(given_ms: int | None) -> tuple[tuple[str, int, int], ...]:
    return () if given_ms is None else (("commit_interval_ms", given_ms, 1),)
