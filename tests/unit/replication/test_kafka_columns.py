"""Outgoing records as columns for the Kafka client: the compiled check of a batch says the same as that in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.kafka.records import LEAST_TIMESTAMP_MS, Columns, checked
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest
from standfast.store.native_module import SWITCH, compiled
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.value_timestamp import TIMESTAMP, RowChanges

AT = TopicPartition("t", 1)
BOUNDS = (LEAST_TIMESTAMP_MS, TIMESTAMP_MAX_MS)
cells = st.one_of(st.none(), st.binary(max_size=3), st.binary(max_size=3).map(bytearray), st.just("text"))
stamps = st.sampled_from([0, 1, 5, TIMESTAMP_MAX_MS, TIMESTAMP_MAX_MS + 1, 1 << 70, -1, True, 1.5, None])
headers = st.sampled_from([(), None, [], (("a", b"1"),), [("a", None)], (("a", 5),), ((5, b"b"),), 7])
fine = st.tuples(st.sampled_from([None, b"", b"k"]), st.sampled_from([None, b"v"]), st.just(3), st.just(()))
odd = st.one_of(st.tuples(cells, cells, stamps, headers), st.tuples(cells, cells, stamps), st.just(()), st.just("row"))


def answer(batch: Any) -> Columns | str:
    """The columns, or the refusal."""
    try:
        return checked(AT, batch)
    except InvalidRequest as error:
        return str(error)


@given(st.one_of(st.lists(fine, max_size=4), st.lists(st.one_of(fine, odd), max_size=4)))
def test_both_checks_take_the_same_batches_and_refuse_in_the_same_words(batch: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = answer(batch)
        patch.setenv(SWITCH, "0")
        assert answer(batch) == found


def test_sound_rows_become_columns_without_python_and_others_are_left_to_it() -> None:
    columns_of = compiled().module.columns_of
    rows = [(b"a", b"1", 1, ()), Outgoing(None, None, 2), (b"", b"", TIMESTAMP_MAX_MS)]
    assert columns_of(rows, *BOUNDS) == ((b"a", None, b""), (b"1", None, b""), (1, 2, TIMESTAMP_MAX_MS))
    assert columns_of([], *BOUNDS) == ((), (), ())
    for other in (
        tuple(rows),
        [*rows, (b"a", b"1", 0, ())],
        [*rows, (b"a", b"1", 1 << 80, ())],
        [*rows, (b"a", b"1", True, ())],
        [*rows, (b"a", bytearray(b"1"), 1, ())],
        [*rows, (b"a", b"1", 1, (("h", b"v"),))],
        [*rows, (b"a", b"1")],
        [*rows, [b"a", b"1", 1, ()]],
        None,
    ):
        assert columns_of(other, *BOUNDS) is None
    with pytest.raises(TypeError):
        columns_of(rows)


class Rows(list[Any]):
    """A list whose own method gives other items than it holds."""

    def __iter__(self) -> Any:
        return iter([(b"other", b"1", 1, ())])

    def __getitem__(self, at: Any) -> Any:
        return bytes(1_000)


class Cells(tuple[Any, ...]):
    """As `Rows`."""

    def __getitem__(self, at: Any) -> Any:
        return bytes(1_000)


@pytest.mark.parametrize("switch", ["0", "1"])
def test_batch_of_a_class_that_gives_other_rows_than_it_holds_is_what_it_gives(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    assert checked(AT, Rows([(b"held", b"1", 1, ())])).keys == (b"other",)


def test_compiled_columns_are_lists_and_tuples_themselves_whose_cells_stay_where_they_are() -> None:
    part_of = compiled().module.part_of
    for keys, values in (
        (Rows([b"k"]), [b"v"]),
        ([b"k"], Rows([b"v"])),
        (Cells([b"k"]), [b"v"]),
        ((b"k",), Cells("v")),
    ):
        with pytest.raises(TypeError, match="lists or tuples, and none of a subclass"):
            part_of("t", 0, [0], [1], keys, values)
    assert part_of("t", 0, range(1), (1,), (b"k",), [None]).columns(0, 1)[2:4] == ([b"k"], [None])


changed = st.dictionaries(
    st.binary(max_size=3),
    st.tuples(st.sampled_from([0, 1, 5, 1_700_000_000_000, TIMESTAMP_MAX_MS]), st.none() | st.binary(max_size=20)),
    max_size=5,
)


def rows_of(changes: dict[bytes, tuple[int, bytes | None]]) -> RowChanges:
    """The changes as a store's rows."""
    rows = {key: None if value is None else TIMESTAMP.pack(stamp) + value for key, (stamp, value) in changes.items()}
    return RowChanges(rows, {key: stamp for key, (stamp, value) in changes.items() if value is None})


@given(changed)
def test_rows_of_a_store_are_the_columns_of_their_changes(changes: dict[bytes, tuple[int, bytes | None]]) -> None:
    batch = rows_of(changes)
    plain = [(key, value, stamp, ()) for key, (stamp, value) in changes.items()]
    assert list(batch) == plain
    assert batch == plain
    assert [batch[number] for number in range(len(batch))] == plain
    with pytest.MonkeyPatch.context() as patch:
        for switch in ("1", "0"):
            patch.setenv(SWITCH, switch)
            wanted, found = answer(plain), answer(batch)
            if isinstance(wanted, str) or isinstance(found, str):
                assert found == wanted
                continue
            assert (found.keys, *found.plain(), found.headers) == (wanted.keys, *wanted.plain(), None)
            assert [found.size_of(number) for number in range(len(found))] == [
                wanted.size_of(number) for number in range(len(wanted))
            ]


@pytest.mark.parametrize("switch", ["0", "1"])
def test_key_of_a_store_that_is_no_bytes_is_refused_as_in_any_batch(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serde that returns text: the client would write it, or raise an error of its own."""
    monkeypatch.setenv(SWITCH, switch)
    changes: Any = {b"a": (1, b"v"), "text": (2, b"w")}
    plain = [(key, value, stamp, ()) for key, (stamp, value) in changes.items()]
    assert answer(rows_of(changes)) == answer(plain)
    assert "record 1 of the batch has a key of type str" in str(answer(plain))


def test_rows_go_to_the_compiled_client_as_they_are_if_each_has_a_sound_timestamp() -> None:
    headed = compiled().module.headed
    row = TIMESTAMP.pack(1) + b"v"
    assert checked(AT, rows_of({b"a": (1, b"v")})) == Columns((b"a",), (row,), None)  # type: ignore[arg-type]
    assert headed((b"a", b""), (row, TIMESTAMP.pack(TIMESTAMP_MAX_MS)), *BOUNDS)
    assert headed((), (), *BOUNDS)
    for keys, rows in (
        ((b"a",), (TIMESTAMP.pack(0) + b"v",)),
        ((b"a",), (TIMESTAMP.pack(-1) + b"v",)),
        ((b"a",), (TIMESTAMP.pack(TIMESTAMP_MAX_MS + 1) + b"v",)),
        ((b"a",), (row[:7],)),
        ((b"a",), (b"",)),
        ((b"a",), (None,)),
        ((b"a",), (bytearray(row),)),
        ((None,), (row,)),
        (("a",), (row,)),
        ((b"a",), (row, row)),
        ((b"a", b"b"), (row,)),
    ):
        assert not headed(keys, rows, *BOUNDS)
    with pytest.raises(TypeError):
        headed([b"a"], [row], *BOUNDS)
