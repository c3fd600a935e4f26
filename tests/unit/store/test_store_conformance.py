"""One suite for stores in this process and in a sidecar: the same calls, the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.store.errors import Closed, InvalidRequest, UnknownStore
from support.serve import Sidecars
from support.sessions import DAY_MS, HOUR_MS, START_MS, four_stores

pytestmark = pytest.mark.slow
OPERATIONS = 400


class Side:
    """A task of one side; `take_again` closes everything and reopens it, from the committed state."""

    def __init__(self, open_client: Callable[[], Any]) -> None:
        self._open = open_client
        self.client = open_client()
        self.take()

    def take(self) -> None:
        self.client.assign(active=[0])
        self.client.wait_ready(60)
        self.task = self.client.task(0)

    def take_again(self) -> None:
        self.client.close()
        self.client = self._open()
        self.take()

    def close(self) -> None:
        self.client.close()


@pytest.fixture(params=["embedded", "sidecar"])
def side(request: pytest.FixtureRequest, tmp_path: Path, sidecars: Sidecars) -> Iterator[Side]:
    made = open_side(request.param, tmp_path, sidecars)
    yield made
    made.close()


def open_side(name: str, root: Path, sidecars: Sidecars, stores: Callable[[], list[Any]] = four_stores) -> Side:
    if name == "embedded":
        log, state = f"sqlite:///{root}/embedded", root / "embedded-state"
        return Side(lambda: sf.Session("app", log=log, state_dir=state, stores=stores(), partitions=1))
    sidecar = sidecars.start(store__cache="64KiB")
    return Side(lambda: sf.connect(sidecar.run_dir, stores=stores(), partitions=1))


def test_rows_are_read_as_they_were_written_before_and_after_commit(side: Side) -> None:
    kv = side.task.store("kv")
    kv.put("a", "1", timestamp=START_MS)
    kv.put_all([("b", "2"), ("c", "3"), ("x", None)], timestamp=START_MS + 1)
    for _ in range(2):
        assert kv.get("a") == "1" and kv.get("nobody") is None
        assert kv.get_with_timestamp("b") == sf.ValueAndTimestamp("2", START_MS + 1)
        assert list(kv.range("a", "b")) == [("a", "1"), ("b", "2")]
        assert list(kv.range(reverse=True)) == [("c", "3"), ("b", "2"), ("a", "1")]
        assert list(kv.range("b", "a")) == []
        assert list(kv.prefix_scan("c")) == [("c", "3")]
        side.task.commit({("in", 0): 3})
    assert kv.put_if_absent("a", "9") == "1" and kv.get("a") == "1"
    assert kv.put_if_absent("d", "4") is None and kv.get("d") == "4"
    assert kv.delete("a") == "1" and kv.get("a") is None


def test_what_was_committed_is_there_again_and_nothing_else(side: Side) -> None:
    side.task.store("kv").put("kept", "1")
    side.task.commit({("in", 0): 7})
    side.task.store("kv").put("lost", "2")
    side.take_again()
    assert side.task.source_offsets() == {("in", 0): 7}
    assert list(side.task.store("kv").all()) == [("kept", "1")]


def test_errors_are_of_the_same_classes(side: Side) -> None:
    kv = side.task.store("kv")
    with pytest.raises(InvalidRequest):
        kv.put(None, "1")
    with pytest.raises(InvalidRequest):
        kv.put("a", 5)
    with pytest.raises(InvalidRequest):
        kv.put("a", "x" * 1_000_001)
    with pytest.raises(UnknownStore):
        side.task.store("other")
    with pytest.raises(InvalidRequest):
        side.client.task(7)
    kv.put("a", "1")
    rows = kv.all()
    rows.close()
    with pytest.raises(Closed):
        next(rows)
    with kv.all() as again:
        assert list(again) == [("a", "1")]


def test_more_rows_than_a_page_come_in_order(side: Side) -> None:
    kv = side.task.store("kv")
    keys = [f"k{number:05d}" for number in range(2_500)]
    kv.put_all([(key, key) for key in keys], timestamp=START_MS)
    assert [key for key, _ in kv.all()] == keys
    assert [key for key, _ in kv.all(reverse=True)] == keys[::-1]


NUMBERS: list[tuple[str, Any]] = [("int", sf.serde.int64), ("float", sf.serde.float64)]


def number_stores() -> list[Any]:
    made: list[Any] = []
    for name, key in NUMBERS:
        made.append(sf.KeyValueStore(f"kv-{name}", key, sf.serde.int64))
        made.append(sf.WindowStore(f"win-{name}", key, sf.serde.int64, window_size_ms=1, retention_ms=DAY_MS))
        made.append(sf.SessionStore(f"ses-{name}", key, sf.serde.int64, retention_ms=DAY_MS))
    return made


def test_ranges_over_numbers_go_by_number_and_all_by_bytes_also_over_pages(tmp_path: Path, sidecars: Sidecars) -> None:
    for side in (open_side(name, tmp_path, sidecars, number_stores) for name in ("embedded", "sidecar")):
        for name, serde in NUMBERS:
            kv, win, ses = (side.task.store(f"{kind}-{name}") for kind in ("kv", "win", "ses"))
            numbers = [serde.deserialize(serde.serialize(number)) for number in range(-1_500, 1_500)]
            kv.put_all([(number, 1) for number in numbers], timestamp=START_MS)
            some = numbers[1_490:1_510]
            for number in some:
                for time in (5, 10):
                    win.put(number, 1, time)
                    ses.put(number, time, time, 1)
            for _ in range(2):
                for step in (1, -1):
                    reverse = step == -1
                    assert [key for key, _ in kv.range(reverse=reverse)] == numbers[::step]
                    assert [key for key, _ in kv.range(-7, 5, reverse=reverse)] == numbers[1_493:1_506][::step]
                    in_bytes = sorted(numbers, key=serde.serialize)
                    assert [key for key, _ in kv.all(reverse=reverse)] == in_bytes[::step]
                    by_time = [(number, time) for number in some for time in (5, 10)]
                    raw = sorted(by_time, key=lambda row: (serde.serialize(row[0]), row[1]))
                    ranges = [win.fetch_key_range(-10, 9, 0, 20, reverse=reverse)]
                    ranges.append(ses.find_sessions_key_range(-10, None, 0, 20, reverse=reverse))
                    ranges.append(ses.fetch_key_range(None, 9, reverse=reverse))
                    assert [[(key.key, key.start) for key, _ in rows] for rows in ranges] == [by_time[::step]] * 3
                    alls = [win.all(reverse=reverse), win.fetch_all(0, 20, reverse=reverse), ses.all(reverse=reverse)]
                    assert [[(key.key, key.start) for key, _ in rows] for rows in alls] == [raw[::step]] * 3
                side.task.commit({("in", 0): 3})
            if name == "float":
                with pytest.raises(InvalidRequest, match="NaN"):
                    kv.range(float("nan"))
                with pytest.raises(InvalidRequest, match="NaN"):
                    win.fetch_key_range(None, float("nan"), 0, 1)
        side.close()


def test_random_operations_give_the_same_answers_on_both_sides(tmp_path: Path, sidecars: Sidecars) -> None:
    sides = [open_side(name, tmp_path, sidecars) for name in ("embedded", "sidecar")]
    told = [answers(one, random.Random(11)) for one in sides]
    for number, (left, right) in enumerate(zip(*told, strict=True)):
        assert left == right, f"answer {number} of {len(told[0])}"
    for one in sides:
        one.close()


def answers(side: Side, rng: random.Random) -> list[Any]:
    """Every answer to one list of random calls."""
    found: list[Any] = []
    now_ms = START_MS
    for number in range(OPERATIONS):
        now_ms += rng.choice((0, 1_000, HOUR_MS))
        key, value, at_ms = f"k{rng.randrange(12)}", f"v{number}", now_ms - rng.randrange(2 * DAY_MS)
        found.append(one_call(side.task, rng, key, value, at_ms, at_ms + rng.randrange(HOUR_MS)))
        if rng.random() < 0.05:
            side.task.commit({("in", 0): number})
        if rng.random() < 0.01:
            side.task.commit({("in", 0): number})
            side.take_again()
            found.append(side.task.source_offsets())
    for name in ("kv", "win", "ses"):
        found.append(list(side.task.store(name).all()))
    return found


def one_call(task: Any, rng: random.Random, key: str, value: str, at_ms: int, end_ms: int) -> Any:
    kv, win, ses, ver = (task.store(name) for name in ("kv", "win", "ses", "ver"))
    start_ms, reverse, low, high = at_ms - at_ms % HOUR_MS, rng.random() < 0.5, *sorted((key, f"k{rng.randrange(12)}"))
    calls: list[Callable[[], Any]] = [
        lambda: kv.put(key, value, at_ms),
        lambda: kv.put_if_absent(key, value, at_ms),
        lambda: kv.delete(key),
        lambda: kv.get_with_timestamp(key) and kv.get(key),
        lambda: list(kv.range(low, high, reverse=reverse)),
        lambda: list(kv.prefix_scan("k1", reverse=reverse)),
        lambda: win.put(key, value, start_ms, at_ms),
        lambda: win.put(key, None, start_ms, at_ms),
        lambda: win.fetch(key, start_ms),
        lambda: list(win.fetch_range(key, start_ms - DAY_MS, start_ms, reverse=reverse)),
        lambda: list(win.fetch_key_range(low, high, start_ms - DAY_MS, start_ms + DAY_MS, reverse=reverse)),
        lambda: list(win.fetch_all(start_ms - HOUR_MS, start_ms + DAY_MS, reverse=reverse)),
        lambda: ses.put(key, at_ms, end_ms, value, at_ms),
        lambda: ses.fetch_session(key, at_ms, end_ms),
        lambda: list(ses.find_sessions(key, at_ms - DAY_MS, end_ms, reverse=reverse)),
        lambda: list(ses.find_sessions_key_range(low, high, at_ms - DAY_MS, end_ms, reverse=reverse)),
        lambda: list(ses.fetch(key, reverse=reverse)),
        lambda: list(ses.fetch_key_range(low, high, reverse=reverse)),
        lambda: ver.put(key, value, at_ms),
        lambda: ver.delete(key, at_ms),
        lambda: (ver.get(key), ver.get(key, at_ms)),
        lambda: list(ver.range(key, at_ms - DAY_MS, at_ms, ascending=reverse)),
    ]
    return rng.choice(calls)()
