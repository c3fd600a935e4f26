"""Puts of a key-value store over the compiled buffer and over that in Python: the same calls and the same refusals.

`tests/contract/test_buffer_contract.py` plays random programs on both.
"""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from types import FrameType
from typing import Any

import pytest

from standfast.store import serde
from standfast.store.buffer.part import ENTRY_BYTES
from standfast.store.buffer.rows import RowLimits, StoreRows
from standfast.store.buffer.twins import compiled_buffer
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import Backpressure, Closed, Fenced, InvalidRequest, TooLarge, Unavailable
from standfast.store.memory import MemoryEngine
from standfast.store.native_module import compiled
from standfast.store.specs import KeyValueStore
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.value_timestamp import TIMESTAMP
from support.interruption import Point, traced

MODULE = compiled().module
BOTH = pytest.mark.parametrize("quick", [False, True], ids=["python", "compiled"])


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
    buffer = compiled_buffer(MODULE)() if quick else WriteBuffer()
    rows = StoreRows("s", MemoryEngine(), buffer, now_ms=lambda: 7, limits=limits or RowLimits())
    store = KeyValueState(spec, rows)
    rows.writer.put("s", b"first", b"1", 1)
    return store


def counted(store: KeyValueState[Any, Any]) -> tuple[int, int, int]:
    """Puts, deletes and bytes."""
    return store.rows.writer.puts, store.rows.writer.deletes, store.rows.buffer.size_bytes


def causes_of(error: BaseException) -> list[traceback.FrameSummary]:
    """Frames in which the cause of an error was raised."""
    assert error.__cause__ is not None
    return list(traceback.extract_tb(error.__cause__.__traceback__))


def put_of(store: KeyValueState[Any, Any]) -> Any:
    """The method without its type: wrong calls, too."""
    return store.put


class Odd(bytes):
    """Bytes whose own methods do not work."""

    def __hash__(self) -> int:
        raise AssertionError

    __eq__ = __len__ = __bytes__ = __hash__  # type: ignore[assignment]


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
        put_of(store)(Odd(b"g"), Odd(b"of its class"), 8)
        put_of(store)(b"b", None, 9)
    buffers = [store.rows.buffer for store in (one, other)]
    assert buffers[0].rows == buffers[1].rows
    assert list(buffers[0].rows["s"]) == list(buffers[1].rows["s"])
    assert buffers[0].size_bytes == buffers[1].size_bytes
    assert buffers[0].take_changes() == buffers[1].take_changes()
    assert counted(one) == counted(other)
    assert {type(cell) for row in buffers[0].rows["s"].items() for cell in row} == {bytes, type(None)}


@pytest.mark.parametrize(
    "given",
    [
        (None, b"v", 5),
        (5, b"v", 5),
        (b"k", "text", 5),
        (Odd(b"k"), "text", 5),
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
    assert counted(store) == counted(plain)


@pytest.mark.parametrize(
    ("given", "named", "error", "says"),
    [
        ((), {}, InvalidRequest, "KeyValueState.put: an argument is missing"),
        ((b"k",), {}, InvalidRequest, "KeyValueState.put: an argument is missing"),
        ((b"k", b"v", 1, 2), {}, TypeError, r"put\(\)"),
        ((b"k", b"v", 1), {"other": 1}, InvalidRequest, "KeyValueState.put: there is no setting 'other'"),
    ],
)
def test_a_wrong_call_raises_as_the_python_method_does(
    given: tuple[Any, ...], named: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
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


@BOTH
def test_each_serde_of_a_put_runs_once_whatever_becomes_of_it(quick: bool) -> None:
    runs: list[str] = []

    def noted(part: str) -> serde.Serde[Any]:
        def serialize(given: bytes) -> bytes:
            runs.append(part)
            if given == b"refused":
                raise ValueError("no")
            return given

        return serde.pair("noted", serialize, lambda raw: raw)

    limits = RowLimits(value_bytes=20)
    store = opened(noted("key"), noted("value"), limits=limits, quick=quick)

    def run_by(*given: Any) -> list[str]:
        runs.clear()
        try:
            store.put(*given)
        except (InvalidRequest, TooLarge, Backpressure):
            runs.append("raised")
        return list(runs)

    once = ["key", "value"]
    assert run_by(b"a", b"new", 5) == once
    assert run_by(b"a", b"of a key that the buffer has", 5) == [*once, "raised"]
    assert run_by(b"a", b"replaced", 5) == once
    assert run_by(b"a", None, 5) == ["key"]
    assert run_by(b"b", b"v" * 21, 5) == [*once, "raised"]
    assert run_by(b"b", b"v", TIMESTAMP_MAX_MS + 1) == [*once, "raised"]
    assert run_by(b"refused", b"v", 5) == ["key", "raised"]
    assert run_by(b"b", b"refused", 5) == [*once, "raised"]
    store.rows.buffer.refuse_bytes = 1
    assert run_by(b"b", b"no room", 5) == [*once, "raised"]
    store.rows.buffer.take()
    store.rows.buffer.settle()
    assert run_by(b"a", b"the first one", 5) == once
    assert store.rows.buffer.take_changes() == {"s": [(b"a", b"the first one", 5, ())]}


@BOTH
def test_a_serde_that_returns_no_bytes_changes_nothing(quick: bool) -> None:
    wrong: serde.Serde[Any] = serde.Serde("wrong", lambda value: value, lambda raw: raw)
    store = opened(value=wrong, quick=quick)
    before = counted(store)
    for value in ("text", 5):
        with pytest.raises(TypeError):
            store.put(b"k", value, 5)
    assert counted(store) == before
    assert store.rows.buffer.rows["s"].keys() == {b"first"}


def test_errors_of_serdes_are_those_of_the_python_method() -> None:
    def refuse(given: Any) -> bytes:
        raise (KeyError if given == "key" else OSError)(given)

    for key, value in (("key", b"v"), ("file", b"v"), (b"k", "text")):
        found = []
        for quick in (False, True):
            with pytest.raises(InvalidRequest) as raised:
                opened(serde.bytes if key == b"k" else serde.pair("r", refuse, refuse), quick=quick).put(key, value, 5)
            found.append((str(raised.value), repr(raised.value.__cause__)))
            assert any(frame.name == "refuse" for frame in causes_of(raised.value)) is (key != b"k")
        assert found[0] == found[1]
    away = Unavailable("the service")

    def ask(given: Any) -> bytes:
        raise away

    for quick in (False, True):
        with pytest.raises(Unavailable, match="service") as unavailable:
            opened(value=serde.pair("asks", ask, ask), quick=quick).put(b"k", b"v", 5)
        assert unavailable.value.__cause__ is away


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
            store.rows.buffer.take()
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


def test_a_range_finds_each_row_whichever_moment_of_it_a_compiled_put_comes_at() -> None:
    moment, passed = 0, True
    while passed:
        moment, passed = moment + 1, False
        store, met = opened(), 0
        list(store.all())  # orders the rows so far; those that come now are ordered by the next range
        store.put(b"second", b"2")

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal met, passed
            if frame.f_code.co_name not in {"pending", "_within", "__len__"}:
                return None
            frame.f_trace_opcodes = True
            met += event == "opcode"
            # Another thread's: as long as the buffer lets it in without the latch, which the range has.
            if met == moment and not passed:  # noqa: B023 - within this turn
                passed = True
                if store.rows.buffer.open:  # noqa: B023
                    store.put(b"beside", b"3")  # noqa: B023
            return trace

        before = sys.gettrace()  # that of a run under coverage
        sys.settrace(trace)
        try:
            found = list(store.all())
        finally:
            sys.settrace(before)
        assert {b"first", b"second"} <= {key for key, _ in found}, moment
        store.put(b"third", b"4")
        expected = sorted(store.rows.buffer.rows["s"])
        assert [key for key, _ in store.all()] == expected, moment


@pytest.mark.parametrize("given", [(b"new", b"v"), (b"first", b"longer"), (b"deleted", b"v"), (b"first", None)])
def test_size_counts_a_compiled_put_whichever_moment_of_another_put_it_comes_at(given: tuple[bytes, Any]) -> None:
    moment, passed = 0, True
    while passed:
        moment, passed = moment + 1, False
        store, met = opened(), 0
        store.put(b"deleted", None)

        def meet(_: Point) -> None:
            nonlocal met, passed
            met += 1
            if met == moment:  # noqa: B023 - within this turn
                passed = True
                store.put(b"beside", b"of another thread")  # noqa: B023

        traced(lambda: store.put(*given, timestamp=5), meet)  # noqa: B023
        buffer = store.rows.buffer
        sizes = [2 * len(key) + (2 * len(row) - 8 if row else 0) for key, row in buffer.rows["s"].items()]
        assert buffer.size_bytes == sum(ENTRY_BYTES + size for size in sizes), moment


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


def test_parts_of_another_shape_are_refused() -> None:
    writer: Any = opened().rows.writer
    wrong: list[tuple[Any, tuple[Any, ...]]] = [
        (MODULE.putter, ()),
        (MODULE.putter, (object(), "s", print, print, print)),
        (MODULE.putter, (writer, b"s", print, print, print)),
        (MODULE.encoder, (print,)),
        (MODULE.Writer, (WriteBuffer(), "s", print)),
        (MODULE.Writer, (compiled_buffer(MODULE)(), b"s", print)),
        (writer.put, ("s", b"k", b"v")),
        (writer.put, ("s", "k", b"v", 1)),
        (writer.put, ("s", b"k", "v", 1)),
        (writer.put_all, ("s", [(b"k",)], 1)),
        (writer.put_all, ("s", [[b"k", b"v"]], 1)),
        (writer.put_all, ("s", 5, 1)),
        (writer.enter, ("s", {"k": b"v"}, b"k", b"v", 1)),
        (writer.enter, ("s", [], b"k", b"v", 1)),
    ]
    for call, given in wrong:
        with pytest.raises((TypeError, AttributeError, SystemError)):
            call(*given)
    assert counted(opened()) == (1, 0, writer_bytes())


def writer_bytes() -> int:
    return opened(quick=False).rows.buffer.size_bytes
