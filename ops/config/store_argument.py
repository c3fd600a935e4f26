"""Stores as the command line names them: NAME:KIND[:OPTION,OPTION...].

    totals:keyvalue                       every store: key=SERDE, value=SERDE (bytes: text where it is text, else hex)
    totals:keyvalue:plain,value=int64     plain: rows without timestamps; source=TOPIC: a table that has no changelog
    hourly:window:size=1h                 retention=2d, duplicates, plain
    visits:session                        retention=2d
    prices:versioned                      history=7d

A missing retention is taken from the changelog topic, whose own is a day longer with Kafka Streams' defaults. A topic
that is kept for ever, as new ones of ours, does not have it.

Rules of this file: pure; from text and a topic's policy to a definition. BadConfig lists every problem of the text.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.ops.config.config import parse_duration
from standfast.replication.log import TopicPolicy
from standfast.replication.topics.changelog import SLACK_MS, TIME_MAX_MS
from standfast.replication.topics.settings import RETENTION
from standfast.store import serde as serdes
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import changelog_topic, check_name, few
from standfast.store.specs import SPECS, TRAITS, StoreSpec
from standfast.store.traits import Setting

SERDES = ("bytes", "string", "int64", "float64", "json", "msgpack")
OPTIONS = {
    kind: ("key", "value", *(one.word for one in traits.settings), *(("plain",) if traits.plain else ()))
    for kind, traits in TRAITS.items()
}
_SETTINGS = {one.word: one for traits in TRAITS.values() for one in traits.settings}
FLAGS = frozenset({"plain", *(word for word, one in _SETTINGS.items() if one.what == "flag")})


@dataclass(frozen=True, slots=True)
class StoreArgument:
    """One `--store`; each of `options` has been checked: times in milliseconds, serdes, True for a flag."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def from_topic(self) -> list[Setting]:
        """Settings that the changelog's policy supplies where they are not given: how long rows are kept."""
        traits = TRAITS[self.kind]
        return [one for one in traits.settings if one.name == traits.retention]

    def changelog_of(self, app: str) -> str:
        """The topic from which the store is restored."""
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
        problems.append(f"unknown kind {kind!r}{_nearest(kind, OPTIONS)}")
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
    store = StoreArgument(name, kind, found)
    needed = [one for one in TRAITS[kind].settings if one.needed and one not in store.from_topic]
    if not problems:
        problems = [
            f"a {kind} store needs its {one.name.removesuffix('_ms').replace('_', ' ')}, as {one.word}=1h"
            for one in needed
            if one.word not in found
        ]
    if problems:
        raise _refused(text, problems)
    return store


def store_spec(store: StoreArgument, policy: TopicPolicy) -> StoreSpec:
    """The definition; missing times come from the policy of the changelog topic."""
    options, traits = store.options, TRAITS[store.kind]
    given: dict[str, Any] = {one.name: options[one.word] for one in traits.settings if one.word in options}
    for one in store.from_topic:
        if one.name not in given:
            # Versioned stores keep old versions by a delay of compaction, windows and sessions rows by their age.
            by_age = traits.kept_by == RETENTION
            given[one.name] = _from_topic(store, one, policy.retention_ms if by_age else policy.min_compaction_lag_ms)
    if "plain" in options:
        given["timestamped"] = False
    key, value = options.get("key", serdes.bytes), options.get("value", serdes.bytes)
    return SPECS[store.kind](store.name, key, value, **given)


def _from_topic(store: StoreArgument, setting: Setting, kept_ms: int) -> int:
    # A topic that keeps less than the day that its changelog adds was set up by hand, and of one that is kept for ever
    # the owner removes records: both say nothing about the store.
    if not SLACK_MS + setting.least <= kept_ms < TIME_MAX_MS:
        raise BadConfig(
            [
                f"store {store.name!r}: the settings of its changelog give no {setting.word}: set it, "
                f"as {store.name}:{store.kind}:{setting.word}=2d"
            ]
        )
    return kept_ms - SLACK_MS


def _value(key: str, text: str) -> Any:
    if key in FLAGS:
        return True
    if key in _SETTINGS and _SETTINGS[key].what == "time":
        time_ms = parse_duration(text)
        if time_ms < _SETTINGS[key].least:
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
    return f", did you mean {near[0]!r}?" if near else f", there are {few(known)}"


def _refused(text: str, problems: list[str]) -> BadConfig:
    return BadConfig([f"--store {text!r}: {problem}" for problem in problems])
