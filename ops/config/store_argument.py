"""Stores as they are named on the command line: NAME:KIND[:OPTION,OPTION...].

    totals:keyvalue                       every store: key=SERDE, value=SERDE (bytes: text where it is text, else hex)
    totals:keyvalue:plain,value=int64     plain: rows without timestamps; source=TOPIC: a table that has no changelog
    hourly:window:size=1h                 retention=2d, duplicates, plain
    visits:session                        retention=2d
    prices:versioned                      history=7d

A retention that is not given is taken from the changelog topic, whose own is a day longer with Kafka Streams' defaults.

Rules of this file: pure; from text and a topic's policy to a definition. What is wrong is BadConfig with every problem.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.ops.config.config import parse_duration
from standfast.replication.log import TopicPolicy
from standfast.replication.topics.changelog import SLACK_MS
from standfast.store import serde as serdes
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import changelog_topic, check_name
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore

SERDES = ("bytes", "string", "int64", "float64", "json", "msgpack")
OPTIONS = {
    "keyvalue": ("key", "value", "source", "plain"),
    "window": ("key", "value", "size", "retention", "duplicates", "plain"),
    "session": ("key", "value", "retention"),
    "versioned": ("key", "value", "history"),
}
FLAGS = frozenset({"duplicates", "plain"})
TIMES = frozenset({"size", "retention", "history"})


@dataclass(frozen=True, slots=True)
class StoreArgument:
    """One `--store`; `options` are checked by themselves: times in milliseconds, serdes, True for a flag."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def changelog_of(self, app: str) -> str:
        """The topic that the store is restored from."""
        source: str | None = self.options.get("source")
        return source if source is not None else changelog_topic(app, self.name)


def parse_store(text: str) -> StoreArgument:
    """Read one argument."""
    name, _, rest = text.partition(":")
    kind, _, options = rest.partition(":")
    problems: list[str] = []
    try:
        check_name("store", name)
    except InvalidRequest as error:
        problems.append(str(error))
    if kind not in OPTIONS:
        problems.append(f"its kind is {kind!r}{_nearest(kind, OPTIONS)}")
        raise _refused(text, problems)
    found: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, equals, value = option.partition("=")
        if key not in OPTIONS[kind]:
            problems.append(f"a {kind} store has no option {key!r}{_nearest(key, OPTIONS[kind])}")
        elif key in found:
            problems.append(f"{key} is given twice")
        elif key in FLAGS and equals:
            problems.append(f"{key} takes no value")
        else:
            try:
                found[key] = _value(key, value)
            except ValueError as error:
                problems.append(f"{key}: {error}, got {value!r}")
    if kind == "window" and "size" not in found and not problems:
        problems.append("a window store needs its window size, as size=1h")
    if problems:
        raise _refused(text, problems)
    return StoreArgument(name, kind, found)


def store_spec(store: StoreArgument, policy: TopicPolicy) -> StoreSpec:
    """The definition; times that were not given come from the policy of the changelog topic."""
    options = store.options
    key, value = options.get("key", serdes.bytes), options.get("value", serdes.bytes)
    plain = "plain" not in options
    if store.kind == "keyvalue":
        return KeyValueStore(store.name, key, value, timestamped=plain, source_topic=options.get("source"))
    if store.kind == "versioned":
        history = options.get("history")
        if history is None:
            history = _from_topic(store, "history", policy.min_compaction_lag_ms)
        return VersionedStore(store.name, key, value, history_retention_ms=history)
    retention_ms = options.get("retention") or _from_topic(store, "retention", policy.retention_ms)
    if store.kind == "session":
        return SessionStore(store.name, key, value, retention_ms=retention_ms)
    return WindowStore(
        store.name,
        key,
        value,
        window_size_ms=options["size"],
        retention_ms=retention_ms,
        retain_duplicates="duplicates" in options,
        timestamped=plain,
    )


def _from_topic(store: StoreArgument, option: str, kept_ms: int) -> int:
    if kept_ms < SLACK_MS + (option != "history"):
        raise BadConfig(
            [
                f"store {store.name!r}: the settings of its changelog do not tell its {option}: give it, "
                f"as {store.name}:{store.kind}:{option}=2d"
            ]
        )
    return kept_ms - SLACK_MS


def _value(key: str, text: str) -> Any:
    if key in FLAGS:
        return True
    if key in TIMES:
        time_ms = parse_duration(text)
        if time_ms <= 0 and key != "history":
            raise ValueError("expected a time above 0")
        return time_ms
    if key in ("key", "value"):
        found = serdes.by_name(text)
        if found is None:
            raise ValueError(f"expected one of {', '.join(SERDES)}")
        return found
    if not text:
        raise ValueError("expected the name of a topic")
    return text


def _nearest(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f", did you mean {near[0]!r}?" if near else f", there are {', '.join(known)}"


def _refused(text: str, problems: list[str]) -> BadConfig:
    return BadConfig([f"--store {text!r}: {problem}" for problem in problems])
