"""Stores as the command line names them."""

from __future__ import annotations

import pytest

import standfast as sf
from standfast.ops.config.store_argument import parse_store, store_spec
from standfast.replication.log import TopicPolicy
from standfast.replication.topics.changelog import SLACK_MS, changelog_policy
from standfast.store.errors import BadConfig
from standfast.store.specs import StoreSpec

HOUR_MS = 3_600_000
RAW, TEXT, NUMBER = sf.serde.bytes, sf.serde.string, sf.serde.int64
COMPACT = TopicPolicy(frozenset({"compact"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:keyvalue", sf.KeyValueStore("a", RAW, RAW)),
        ("a:keyvalue:", sf.KeyValueStore("a", RAW, RAW)),
        ("a:keyvalue:plain,value=int64", sf.KeyValueStore("a", RAW, NUMBER, timestamped=False)),
        ("a:keyvalue:source=orders,key=string", sf.KeyValueStore("a", TEXT, RAW, source_topic="orders")),
        (
            "a.b-c:window:size=1h,retention=2h",
            sf.WindowStore("a.b-c", RAW, RAW, window_size_ms=HOUR_MS, retention_ms=2 * HOUR_MS),
        ),
        (
            "a:window:duplicates,plain,size=90s,retention=1d",
            sf.WindowStore(
                *("a", RAW, RAW),
                window_size_ms=90_000,
                retention_ms=24 * HOUR_MS,
                retain_duplicates=True,
                timestamped=False,
            ),
        ),
        ("a:session:retention=1h", sf.SessionStore("a", RAW, RAW, retention_ms=HOUR_MS)),
        ("a:versioned:history=1h", sf.VersionedStore("a", RAW, RAW, history_retention_ms=HOUR_MS)),
    ],
)
def test_a_store_is_declared_in_one_word(text: str, expected: StoreSpec) -> None:
    assert store_spec(parse_store(text), COMPACT) == expected


@pytest.mark.parametrize(
    "spec",
    [
        sf.WindowStore("a", RAW, RAW, window_size_ms=HOUR_MS, retention_ms=5 * HOUR_MS),
        sf.SessionStore("a", RAW, RAW, retention_ms=5 * HOUR_MS),
        sf.VersionedStore("a", RAW, RAW, history_retention_ms=5 * HOUR_MS),
    ],
)
def test_retention_is_that_of_the_changelog_less_its_slack(spec: StoreSpec) -> None:
    size = ":size=1h" if isinstance(spec, sf.WindowStore) else ""
    assert store_spec(parse_store(f"a:{spec.kind}{size}"), changelog_policy(spec)) == spec


@pytest.mark.parametrize("kept_ms", [-1, 0, SLACK_MS, 2**63 - 1])
def test_a_changelog_that_tells_no_retention_needs_it_given(kept_ms: int) -> None:
    policy = TopicPolicy(frozenset({"compact"}), retention_ms=kept_ms)
    with pytest.raises(BadConfig, match="give no retention: set it, as a:session:retention=2d"):
        store_spec(parse_store("a:session"), policy)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a", ["unknown kind '', there are keyvalue, window, session, versioned"]),
        ("a:windows", ["unknown kind 'windows', did you mean 'window'?"]),
        ("../a:session", ["store name '../a' is not usable"]),
        ("a:window", ["a window store needs its window size, as size=1h"]),
        ("a:session:size=1h", ["a session store has no option 'size', there are key, value, retention"]),
        ("a:session:retention=1", ["retention: expected a time with its unit"]),
        ("a:session:retention=0s", ["retention: expected a time above 0, got '0s'"]),
        ("a:session:retention=1h,retention=2h", ["retention is given twice"]),
        ("a:keyvalue:plain=1,key=text", ["plain takes no value", "key: expected one of bytes, string,"]),
        ("a:keyvalue:source=", ["source: expected the name of a topic"]),
    ],
)
def test_every_problem_of_an_argument_is_told(text: str, problems: list[str]) -> None:
    with pytest.raises(BadConfig) as caught:
        parse_store(text)
    assert len(caught.value.problems) == len(problems)
    for told, expected in zip(caught.value.problems, problems, strict=True):
        assert told.startswith(f"--store {text!r}: ")
        assert expected in told
