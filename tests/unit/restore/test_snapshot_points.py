"""Points in time, decided: whatever a cleaner removed, a point that is chosen is the log folded to it."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from standfast.restore.snapshot.names import SnapshotName
from standfast.restore.snapshot.points import Candidate, Chosen, OffsetSpan, TailSeen, UnreachablePoint, Witness, choose

State = dict[bytes, bytes | None]


class Entry(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


def folded(entries: list[Entry], state: State | None = None) -> State:
    """The last value of each key; deletes go."""
    rows: State = dict(state or {})
    for entry in entries:
        rows[entry.key] = entry.value
    return {key: value for key, value in rows.items() if value is not None}


def cleaned(entries: list[Entry], end: int, until: int) -> list[Entry]:
    """The records that a cleaner leaves: it works from the head on, knows keys below `end`, is done below `until`."""
    latest = {entry.key: entry.offset for entry in entries if entry.offset < end}
    return [entry for entry in entries if entry.offset >= min(end, until) or latest[entry.key] == entry.offset]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entry], int]:
    """Records with the gaps of transactions' markers and of aborted records, and the end."""
    entries, offset = [], 0
    markers = draw(st.booleans())
    for number in range(draw(st.integers(1, 25))):
        key = draw(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
        entries.append(Entry(offset, key, draw(st.sampled_from([None, b"%d" % number, b"%d!" % number]))))
        offset += 1 + (draw(st.sampled_from([0, 0, 1, 3])) if markers else 0)
    return entries, offset


@given(
    logs(),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=3),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 7),
)
def test_a_point_that_is_proved_is_the_log_folded_to_it(
    log: tuple[list[Entry], int], passes: list[tuple[int, int]], base: int, stop: int, step: int
) -> None:
    written, end = log
    base, stop = min(base, end), min(max(stop, base), end)
    left = written
    for upto, until in passes:
        left = cleaned(left, upto, until)
    seen = TailSeen(base, compacted=True)
    tail = [entry for entry in left if base <= entry.offset < stop]
    for at in range(0, len(tail), step):
        part = tail[at : at + step]
        seen.add(((entry.offset, entry.key) for entry in part), part[-1].offset + 1)
    seen.add((), stop)
    seen.at_end = stop == end  # a cleaner beyond the end has cleaned up to the end
    snapshot = folded([entry for entry in written if entry.offset < base])
    for point in range(base, stop + 1):
        if seen.reaches(point):
            reached = folded([entry for entry in tail if entry.offset < point], snapshot)
            assert reached == folded([entry for entry in written if entry.offset < point])
    assert seen.reaches(base)


@given(logs(), st.integers(0, 40))
def test_every_point_of_a_log_that_only_deletes_its_head_is_reached(log: tuple[list[Entry], int], base: int) -> None:
    written, end = log
    base = min(base, end)
    seen = TailSeen(base, compacted=False)
    seen.add(((entry.offset, entry.key) for entry in written if entry.offset >= base), end)
    assert seen.spans == (OffsetSpan(base, end),)


def test_behind_a_gap_only_a_repeated_key_of_the_part_before_proves_anything() -> None:
    seen = TailSeen(10, compacted=True)
    seen.add([(10, b"a"), (11, b"b"), (13, b"c"), (14, b"c")], 15)
    assert (seen.gap, seen.witness, seen.spans) == (12, None, (OffsetSpan(10, 12),))  # c began behind the gap
    seen.add([(15, b"b"), (17, b"d")], 20)
    assert seen.witness == Witness(11, 15)
    assert seen.spans == (OffsetSpan(10, 12), OffsetSpan(15, 20))
    assert not seen.at_end
    assert [offset for offset in range(10, 21) if seen.reaches(offset)] == [10, 11, 12, 15, 16, 17, 18, 19, 20]


def test_a_repeated_key_before_the_gap_proves_everything() -> None:
    seen = TailSeen(0, compacted=True)
    seen.add([(0, b"a"), (1, b"a"), (3, b"b")], 5)
    assert seen.spans == (OffsetSpan(0, 5),)


def test_the_end_of_the_log_is_always_reached() -> None:
    seen = TailSeen(10, compacted=True)
    seen.add([(12, b"a"), (14, b"b")], 15)
    assert seen.spans == (OffsetSpan(10, 10),)
    seen.at_end = True
    assert seen.spans == (OffsetSpan(10, 10), OffsetSpan(15, 15))


def candidate(position: int, *spans: OffsetSpan, reason: str = "") -> Candidate:
    return Candidate(SnapshotName("0_0", 1, position), {"kv": position}, {"kv": spans} if spans else {}, reason)


def test_the_snapshot_with_the_least_tail_is_chosen() -> None:
    older, newer = candidate(10, OffsetSpan(10, 50)), candidate(30, OffsetSpan(30, 50))
    assert choose({"kv": 40}, [older, newer]) == Chosen(newer.name, 10)
    assert choose({"kv": 20}, [older, newer]) == Chosen(older.name, 10)
    assert choose({"kv": 30}, [newer, older]) == Chosen(newer.name, 0)


def test_a_refusal_names_the_reason_and_the_nearest_points_on_both_sides() -> None:
    found = choose({"kv": 20}, [candidate(10, OffsetSpan(10, 14), OffsetSpan(25, 60)), candidate(70)])
    assert isinstance(found, UnreachablePoint)
    assert (found.below, found.above) == ({"kv": 14}, {"kv": 25})
    assert "compaction may have removed" in found.message
    assert "nearest point below is kv=14, the nearest point above is kv=25" in found.message

    early = choose({"kv": 5}, [candidate(10)])
    assert isinstance(early, UnreachablePoint)
    assert "no usable snapshot lies at or below kv=5" in early.message
    assert (early.below, early.above) == (None, {"kv": 10})

    nothing = choose({"kv": 5}, [candidate(3, reason="it is of another log")])
    assert isinstance(nothing, UnreachablePoint)
    assert nothing.message.endswith("no other point can be reached either")
    assert "it is of another log" in nothing.message


def test_every_store_of_a_task_must_reach_its_offset() -> None:
    name = SnapshotName("0_0", 1, 3)
    both = Candidate(name, {"a": 1, "b": 2}, {"a": (OffsetSpan(1, 9),), "b": (OffsetSpan(2, 4),)})
    assert choose({"a": 9, "b": 4}, [both]) == Chosen(name, 10)
    found = choose({"a": 9, "b": 5}, [both])
    assert isinstance(found, UnreachablePoint)
    assert (found.below, found.above) == ({"a": 9, "b": 4}, None)
    lacking = choose({"a": 9}, [both])
    assert isinstance(lacking, UnreachablePoint)
    assert "one offset of each changelog" in lacking.message
