"""Ranges over keys that are numbers: each row that lies between the ends, in the order of the numbers.

Rules of this file: the model is a sorted list of numbers; rows are committed, buffered and deleted in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.reads import LIMIT_MAX, ReadRequest, StorePart, read
from standfast.restore.spark_table.options import parse
from standfast.restore.spark_table.stores import filters_of, read_rows
from standfast.restore.verify.at_rest import StoreAtRest
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.task.commit_record import StoreTimes
from standfast.store.types.key_ranges import KeySpan, key_spans
from support.stores import MINUTE_MS, Open, at

INT: Any = sf.serde.int64
FLOAT: Any = sf.serde.float64
NAN, INF = math.nan, math.inf
SEEDS: dict[str, tuple[Any, int]] = {"int64": (INT, 1), "float64": (FLOAT, 2)}
EDGES: dict[str, list[Any]] = {
    "int64": [-(2**63), -(2**63) + 1, -256, -1, 0, 1, 255, 256, 2**63 - 1],
    "float64": [-INF, -1.7e308, -256.0, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.5, 256.0, 1.7e308, INF],
}
SIDES = [(name, engine, caching) for name in SEEDS for engine in ("rocksdb", "memory") for caching in (True, False)]


def number_of(rng: Random, name: str) -> Any:
    if rng.random() < 0.3:
        return rng.choice(EDGES[name])
    return rng.randrange(-20, 20) if name == "int64" else rng.randrange(-20, 20) / 2


def placed(number: float) -> tuple[float, float]:
    """The place of a number: -0.0 equals 0.0, and its row comes first."""
    return number, math.copysign(1, number)


def within(number: float, low: float | None, high: float | None) -> bool:
    return (low is None or number >= low) and (high is None or number <= high)


def exact(found: Any) -> str:
    """Equal only where -0.0 and 0.0 stand in the same places."""
    return repr(found)


@pytest.mark.parametrize(("name", "engine", "caching"), SIDES)
def test_range_of_numbers_is_that_of_a_sorted_list(open_task: Open, name: str, engine: str, caching: bool) -> None:
    """625 ranges a side, each forwards and reversed: 10,000 of the eight sides."""
    serde, seed = SEEDS[name]
    settings: dict[str, Any] = {"engine": engine, "caching": caching}
    rng, task = Random(seed), open_task(sf.KeyValueStore("n", serde, INT, **settings))
    store, model, places = task.store("n"), dict[tuple[Any, float], int](), list[tuple[Any, float]]()
    for turn in range(625):
        for _ in range(2):
            number = number_of(rng, name)
            if rng.random() < 0.3:
                store.delete(number)
                model.pop(placed(number), None)
            else:
                store.put(number, turn, timestamp=1)
                model[placed(number)] = turn
            places = sorted(model)
        if turn % 20 == 0:
            task.commit(at(turn, "n"))
        low, high = (None if rng.random() < 0.2 else number_of(rng, name) for _ in range(2))
        expected = [(place[0], model[place]) for place in places if within(place[0], low, high)]
        assert exact(list(store.range(low, high))) == exact(expected), (low, high)
        assert exact(list(store.range(low, high, reverse=True))) == exact(expected[::-1]), (low, high)
    every = sorted(((serde.serialize(number), value) for (number, _), value in model.items()))
    in_bytes = [(serde.deserialize(raw), value) for raw, value in every]
    assert exact(list(store.all())) == exact(in_bytes) == exact(list(store.all(reverse=True))[::-1])
    negative = [row for raw, row in zip(every, in_bytes, strict=True) if raw[0][0] & 0x80]
    assert exact([row for row in store.all() if serde.serialize(row[0])[0] & 0x80]) == exact(negative)


def window_calls(store: Any) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    return (
        lambda number, time, value: store.put(number, value, time, timestamp=1),
        lambda low, high, first, last, reverse: store.fetch_key_range(low, high, first, last, reverse=reverse),
        lambda reverse: store.all(reverse=reverse),
    )


def session_calls(store: Any) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    return (
        lambda number, time, value: store.put(number, time, time, value, timestamp=1),
        lambda low, high, first, last, reverse: store.find_sessions_key_range(low, high, first, last, reverse=reverse),
        lambda reverse: store.all(reverse=reverse),
    )


@pytest.mark.parametrize(("name", "engine", "caching"), SIDES)
def test_windows_and_sessions_of_a_range_of_numbers_come_by_number_and_then_by_time(
    open_task: Open, name: str, engine: str, caching: bool
) -> None:
    serde, seed = SEEDS[name]
    settings: dict[str, Any] = {"retention_ms": 4 * MINUTE_MS, "engine": engine, "caching": caching}
    rng = Random(seed)
    specs = [
        sf.WindowStore("win", serde, INT, window_size_ms=1_000, **settings),
        sf.SessionStore("ses", serde, INT, **settings),
    ]
    task = open_task(*specs)
    for store_name, calls in (("win", window_calls), ("ses", session_calls)):
        put, ranged, every = calls(task.store(store_name))
        model: dict[tuple[tuple[Any, float], int], int | None] = {}
        for turn in range(80):
            for _ in range(3):
                number, time = number_of(rng, name), rng.randrange(0, 3 * MINUTE_MS, 10_000)
                model[placed(number), time] = value = None if rng.random() < 0.2 else turn
                put(number, time, value)
            if turn % 10 == 0:
                task.commit(at(turn, "win", "ses"))
            low, high = (None if rng.random() < 0.2 else number_of(rng, name) for _ in range(2))
            first, last = rng.randrange(2 * MINUTE_MS), rng.randrange(3 * MINUTE_MS)
            expected = [
                (place[0], time, value)
                for (place, time), value in sorted(model.items())
                if value is not None and within(place[0], low, high) and first <= time <= last
            ]
            for reverse in (False, True):
                found = [(key.key, key.start, value) for key, value in ranged(low, high, first, last, reverse)]
                assert exact(found) == exact(expected[::-1] if reverse else expected), (store_name, low, high, reverse)
        raw = [(serde.serialize(key.key), key.start) for key, _ in every(False)]
        assert raw == sorted(raw) == [(serde.serialize(key.key), key.start) for key, _ in every(True)][::-1]


def test_nan_is_no_end_and_in_no_range(open_task: Open) -> None:
    settings: dict[str, Any] = {"retention_ms": MINUTE_MS}
    task = open_task(
        sf.KeyValueStore("n", FLOAT, INT),
        sf.WindowStore("win", FLOAT, INT, window_size_ms=1, **settings),
        sf.SessionStore("ses", FLOAT, INT, **settings),
    )
    store = task.store("n")
    negative_nan = math.copysign(NAN, -1)
    for number in (NAN, negative_nan, -1.0, 1.0):
        store.put(number, 1, timestamp=1)
    for _ in range(2):
        assert [number for number, _ in store.range()] == [-1.0, 1.0]
        assert [number for number, _ in store.range(reverse=True)] == [1.0, -1.0]
        assert len(list(store.all())) == 4 and store.get(NAN) == store.get(negative_nan) == 1
        task.commit(at(1, "n"))
    refused = [
        lambda: store.range(NAN, None),
        lambda: store.range(None, negative_nan),
        lambda: task.store("win").fetch_key_range(NAN, None, 0, 1),
        lambda: task.store("ses").fetch_key_range(None, NAN),
    ]
    for call in refused:
        with pytest.raises(
            InvalidRequest, match=r"store '(n|win|ses)': a range cannot begin or end at NaN.*None for an"
        ):
            call()
    with pytest.raises(InvalidRequest, match="an end of a range over int64 keys is 8 bytes, not 1"):
        key_spans(INT, b"5", None, store="n")


def test_cut_is_at_most_two_byte_ranges_and_one_for_other_serdes() -> None:
    assert key_spans(sf.serde.string, b"a", b"b", store="s", reverse=True) == [KeySpan(b"a", b"b", True)]
    for name, (serde, _) in SEEDS.items():
        numbers = sorted(EDGES[name], key=placed)
        for low in (None, *numbers):
            for high in (None, *numbers):
                ends = [None if end is None else serde.serialize(end) for end in (low, high)]
                spans = key_spans(serde, ends[0], ends[1], store="n")
                assert len(spans) <= 2 and not any(span.empty for span in spans)
                backwards = [span._replace(reverse=not span.reverse) for span in spans[::-1]]
                assert key_spans(serde, ends[0], ends[1], store="n", reverse=True) == backwards
                for number in numbers:
                    taken = any(span.takes(serde.serialize(number)) for span in spans)
                    assert taken == within(number, low, high), (low, number, high)


def test_iterator_over_both_halves_gives_the_rows_of_its_call_and_closes_early(open_task: Open) -> None:
    task = open_task(sf.KeyValueStore("n", FLOAT, INT), sf.SessionStore("ses", FLOAT, INT, retention_ms=MINUTE_MS))
    store, sessions = task.store("n"), task.store("ses")
    numbers = [-2.0, -1.0, 1.0, 2.0]
    for number in numbers:
        store.put(number, 1, timestamp=1)
        sessions.put(number, 1, 1, 1)
    task.commit(at(1, "n", "ses"))
    opened = [store.range(), sessions.fetch_key_range(None, None)]
    for rows in opened:
        next(rows)
    for number in numbers:
        store.delete(number)
        sessions.remove(number, 1, 1)
    task.commit(at(2, "n", "ses"))
    assert [number for number, _ in opened[0]] == numbers[1:]
    assert [key.key for key, _ in opened[1]] == numbers[1:]
    assert list(store.range()) == list(sessions.fetch_key_range(None, None)) == []
    early = [store.range(), sessions.fetch_key_range(None, None), store.range()]
    for rows in early:
        rows.close()
        with pytest.raises(sf.Closed):
            next(rows)
    task.close()


# -- readers of raw keys ----------------------------------------------------------------------------------------------


TIMES = ("window_start", "session_start", "valid_from")


def specs_of(serde: Any) -> list[Any]:
    settings: dict[str, Any] = {"retention_ms": 4 * MINUTE_MS}
    return [
        sf.KeyValueStore("kv", serde, INT),
        sf.KeyValueStore("plain", serde, INT, timestamped=False),
        sf.WindowStore("win", serde, INT, window_size_ms=1_000, **settings),
        sf.SessionStore("ses", serde, INT, **settings),
        sf.VersionedStore("ver", serde, INT, history_retention_ms=4 * MINUTE_MS),
    ]


def numbers_of(name: str) -> list[Any]:
    return sorted(EDGES[name] + [number for number in range(-6, 6) if number not in EDGES[name]], key=placed)


@pytest.fixture(params=list(SEEDS))
def filled(request: pytest.FixtureRequest, open_task: Open) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Committed views of one store of each kind with rows of the same numbers, two of each where rows have times."""
    name = request.param
    serde, task = SEEDS[name][0], open_task(*specs_of(SEEDS[name][0]))
    for place, number in enumerate(numbers_of(name)):
        task.store("kv").put(number, place, timestamp=1)
        task.store("plain").put(number, place, timestamp=1)
        for time in (5, MINUTE_MS + 5):
            task.store("win").put(number, place, time, timestamp=1)
            task.store("ses").put(number, time, time, place, timestamp=1)
            task.store("ver").put(number, place, time)
    task.commit(at(1, "kv", "plain", "win", "ses", "ver"))
    yield name, serde, {one: task.committed_view(one) for one in task.specs}


def asked(view: Any, limit: int, **bounds: Any) -> list[dict[str, Any]]:
    """Rows of a scan, page after page."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        part = StorePart(0, view.spec, view.rows, "active", 0, view.key_serde, view.value_serde)
        view.rows.closed = False
        answer = read([part], ReadRequest("scan", view.name, limit=limit, after=after, **bounds))
        found += answer.rows
        if not answer.truncated:
            return found
        after = answer.after


def test_scan_of_a_range_goes_by_number_also_over_pages(filled: tuple[str, Any, dict[str, Any]]) -> None:
    name, serde, views = filled
    rng, wrong = Random(3), []
    ends = [(low, high) for low in (None, *EDGES[name], -3) for high in (None, *EDGES[name], 3)]
    for kind, view in views.items():
        times = [0] if kind in ("kv", "plain") else [5, MINUTE_MS + 5]
        for low, high in rng.sample(ends, 40):
            if low is None and high is None:
                continue
            bounds = {key: None if end is None else str(end) for key, end in (("key_from", low), ("key_to", high))}
            numbers = [serde.deserialize(serde.serialize(number)) for number in numbers_of(name)]
            expected = [(number, time) for number in numbers if within(number, low, high) for time in times]
            for limit in (LIMIT_MAX, 5):
                rows = asked(view, limit, **bounds)
                found = [
                    (type(numbers[0])(row["key"]), next((row[one] for one in TIMES if one in row), 0)) for row in rows
                ]
                if exact(found) != exact(expected):
                    wrong.append((kind, low, high, limit, found, expected))
    assert not wrong, wrong[0]


def test_scan_without_ends_and_by_prefix_stays_in_byte_order(filled: tuple[str, Any, dict[str, Any]]) -> None:
    _, _, views = filled
    for kind in ("kv", "plain", "win", "ses"):
        for bounds in ({}, {"prefix": "0xff", "key_format": "hex"}, {"prefix": "0x00", "key_format": "hex"}):
            hexed = {"key_format": "hex", **bounds}
            rows = [bytes.fromhex(row["key"][2:]) for row in asked(views[kind], 3, **hexed)]
            assert rows and rows == sorted(rows), (kind, bounds)
    for wrong in ("nan", "five", "0x05"):
        with pytest.raises(InvalidRequest):
            asked(views["kv"], 3, key_from=wrong, key_format="hex" if wrong == "0x05" else "utf8")


def test_bounds_of_sparks_table_select_by_number(filled: tuple[str, Any, dict[str, Any]]) -> None:
    name, serde, views = filled
    finite = [None, *(end for end in EDGES[name] if math.isfinite(end)), -3, 3]
    ends = Random(5).sample([(low, high) for low in finite for high in finite], 30)
    for kind, view in views.items():
        every = {serde.serialize(row[0]) for row in views["kv"].all()}
        times = StoreTimes(view.rows.observed_ms, 0)
        at_rest = StoreAtRest(view, view.spec.definition(), None, times)
        for low, high in ends:
            options = {key: repr(end) for key, end in (("keyFrom", low), ("keyTo", high)) if end is not None}
            filters = filters_of(parse("store", {"path": "/x", "storeName": kind, **options}), view.spec)
            found = [key for _, cells in read_rows(at_rest, view.spec, filters) for key in listed(cells["key"])]
            expected = {raw for raw in every if within(serde.deserialize(raw), low, high)}
            assert set(found) == expected, (kind, low, high)
    if name == "float64":
        with pytest.raises(BadConfig, match="NaN"):
            filters_of(parse("store", {"path": "/x", "storeName": "kv", "keyFrom": "NaN"}), views["kv"].spec)


def listed(cells: Any) -> list[bytes]:
    return cells.to_pylist() if hasattr(cells, "to_pylist") else list(cells)
