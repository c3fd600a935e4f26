"""The compiled put of a key-value store: the calls of the Python method, the same refusals, and no ended process.

`test_row_writes.py` plays random puts, savepoints and commits on both.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest

from standfast.replication.kafka.native_library import compiled
from standfast.store import serde
from standfast.store.buffer import WriteBuffer
from standfast.store.errors import Closed, Fenced, InvalidRequest, TooLarge
from standfast.store.memory import MemoryEngine
from standfast.store.rows import RowLimits, StoreRows
from standfast.store.specs import KeyValueStore
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.value_timestamp import TIMESTAMP

MODULE = compiled().module


def opened(
    key: Any = serde.bytes,
    value: Any = serde.bytes,
    *,
    limits: RowLimits | None = None,
    quick: bool = True,
    **given: Any,
) -> KeyValueState[Any, Any]:
    """A store with one row, so that later puts are the usual case."""
    spec = KeyValueStore("s", key=key, value=value, **given)
    rows = StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 7, limits=limits or RowLimits())
    store = KeyValueState(spec, rows)
    if quick:
        store.quicken(MODULE)
    rows.write("s", b"first", TIMESTAMP.pack(1) + b"1", b"1", 1)
    return store


def put_of(store: KeyValueState[Any, Any]) -> Any:
    """The method without its type: wrong calls, too."""
    return store.put


def test_a_put_enters_row_change_count_and_size() -> None:
    one, other = opened(), opened(quick=False)
    for store in (one, other):
        put_of(store)(b"a", b"v", 5)
        put_of(store)(b"b", b"", 0)
        put_of(store)(b"c", b"now")
        put_of(store)(b"d", b"now", None)
        put_of(store)(value=b"named", timestamp=TIMESTAMP_MAX_MS, key=b"e")
        put_of(store)(b"a", b"again", timestamp=6)
        put_of(store)(bytearray(b"f"), memoryview(b"copied"), 8)
        put_of(store)(b"b", None, 9)
    assert type(one.put) is not type(other.put)
    buffers = [store.rows.buffer for store in (one, other)]
    assert buffers[0].rows == buffers[1].rows
    assert list(buffers[0].rows["s"]) == list(buffers[1].rows["s"])
    assert buffers[0].size_bytes == buffers[1].size_bytes
    assert buffers[0].take_changes() == buffers[1].take_changes()
    assert one.rows.counters == other.rows.counters
    assert {type(cell) for row in buffers[0].rows["s"].items() for cell in row} == {bytes, type(None)}


@pytest.mark.parametrize(
    "given",
    [
        (None, b"v", 5),
        (5, b"v", 5),
        (b"k", "text", 5),
        (b"k", b"v", -1),
        (b"k", b"v", 1 << 70),
        (b"k", b"v", TIMESTAMP_MAX_MS + 1),
        (b"k", b"v", True),
        (b"k", b"v", 1.5),
        (b"k", b"v", "1"),
        (b"k" * 11, b"v", 5),
        (b"k", b"v" * 21, 5),
    ],
)
def test_a_put_refuses_in_the_words_of_the_python_method_and_changes_nothing(given: tuple[Any, ...]) -> None:
    limits = RowLimits(value_bytes=20)
    limits.limit_keys(10)
    store, plain = opened(limits=limits), opened(limits=limits, quick=False)
    said = []
    for one in (store, plain):
        with pytest.raises((InvalidRequest, TooLarge)) as refused:
            put_of(one)(*given)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert store.rows.buffer.rows == {"s": {b"first": TIMESTAMP.pack(1) + b"1"}}
    assert (store.rows.counters, store.rows.buffer.size_bytes) == (plain.rows.counters, plain.rows.buffer.size_bytes)


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((b"k",), {}), ((b"k", b"v", 1, 2), {}), ((b"k", b"v", 1), {"other": 1})]
)
def test_a_wrong_call_raises_as_the_python_method_does(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"put\(\)"):
        put_of(opened())(*given, **named)


def test_a_least_timestamp_of_the_log_is_kept() -> None:
    limits = RowLimits(least_timestamp_ms=1)
    store = opened(limits=limits)
    with pytest.raises(InvalidRequest, match="timestamp"):
        store.put(b"k", b"v", 0)
    store.put(b"k", b"v", 1)
    assert store.rows.buffer.take_changes()["s"][1:] == [(b"k", b"v", 1, ())]


def test_closed_and_fenced_stores_refuse() -> None:
    store = opened()
    store.rows.close()
    with pytest.raises(Closed):
        store.put(b"k", b"v", 5)
    store = opened()
    store.rows.fence("another instance")
    with pytest.raises(Fenced, match="another instance"):
        store.put(b"k", b"v", 5)
    assert b"k" not in store.rows.buffer.rows["s"]


def test_serdes_run_once_and_their_errors_name_part_and_store() -> None:
    store = opened(serde.string, serde.json)
    store.put("a", {"b": 1}, 5)
    assert store.get("a") == {"b": 1}
    with pytest.raises(InvalidRequest, match=r"'s'.*value"):
        store.put("b", object(), 5)
    with pytest.raises(InvalidRequest, match=r"'s'.*key"):
        put_of(store)(5, 1, 5)
    assert b"b" not in store.rows.buffer.rows["s"]

    def stopped(value: bytes) -> bytes:
        raise KeyboardInterrupt

    store = opened(value=serde.pair("stopped", stopped, lambda raw: raw))
    with pytest.raises(KeyboardInterrupt):
        store.put(b"k", b"v", 5)
    assert b"k" not in store.rows.buffer.rows["s"]


def test_a_serde_that_uses_the_store_meanwhile_loses_nothing() -> None:
    store: KeyValueState[Any, Any]
    what: list[str] = []

    def meanwhile(value: bytes) -> bytes:
        step = what.pop() if what else ""
        if step == "put":
            store.put(b"inner", b"1", 3)
        elif step == "same":
            store.put(b"k", b"earlier", 3)
        elif step == "commit":
            store.rows.buffer.settle()
        elif step == "begin":
            store.rows.buffer.begin()
        return value

    for quick in (True, False):
        store = opened(value=serde.pair("meanwhile", meanwhile, lambda raw: raw), quick=quick)
        for step, rows in (
            ("put", {b"first", b"inner", b"k"}),
            ("same", {b"first", b"inner", b"k"}),
            ("commit", {b"k"}),
            ("begin", {b"k"}),
        ):
            what[:] = [step]
            store.put(b"k", step.encode(), 5)
            assert store.rows.buffer.rows["s"].keys() == rows
            assert store.get(b"k") == step.encode()
            assert store.rows.buffer.take_changes()["s"][-1][1] in (step.encode(), b"1")
        store.rows.buffer.rollback()
        assert store.get(b"k") == b"commit", "the savepoint began before the row was entered"


def test_a_store_without_timestamps_cache_or_changelog_keeps_the_python_method() -> None:
    spec = KeyValueStore("s", key=serde.bytes, value=serde.bytes, timestamped=False)
    for given, rows in (
        (spec, StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 7)),
        (opened().spec, StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 7, caching=False)),
        (opened().spec, StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 7, logging=False)),
    ):
        store = KeyValueState(given, rows)
        store.quicken(MODULE)
        assert "put" not in vars(store)


def test_a_store_with_a_compiled_put_is_freed() -> None:
    store = opened()
    seen = weakref.ref(store)
    store.put(b"k", b"v", 5)
    del store
    gc.collect()
    assert seen() is None


def test_puts_leak_no_reference() -> None:
    store = opened()
    key, value, stamp = b"leaked-key", b"leaked-value" * 3, 1_700_000_000_000
    before = [sys.getrefcount(one) for one in (key, value, stamp, store.rows, store.rows.buffer, store.rows.limits)]
    for number in range(2_000):
        store.put(b"%d" % number, value, stamp)
        store.put(key, value, stamp)
        with pytest.raises(InvalidRequest) if number % 100 == 0 else pytest.MonkeyPatch.context():
            store.put(key, value, -1 if number % 100 == 0 else stamp)
    store.rows.buffer.clear()
    after = [sys.getrefcount(one) for one in (key, value, stamp, store.rows, store.rows.buffer, store.rows.limits)]
    assert after == before


def test_a_putter_of_another_shape_is_refused() -> None:
    rows = opened().rows
    for given in (
        (),
        (print, object(), "s", None, None, 208, TIMESTAMP_MAX_MS),
        (print, rows, b"s", None, None, 208, TIMESTAMP_MAX_MS),
        (print, rows, "s", None, None, "208", TIMESTAMP_MAX_MS),
    ):
        with pytest.raises((TypeError, AttributeError)):
            MODULE.putter(*given)
