"""Records of the members topic: bytes as earlier versions wrote them, later fields, and foreign records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.kafka.members import Members, Owner, claim, member_key, member_value, note_key
from standfast.replication.log import Note, Record
from standfast.store.errors import InvalidRequest

BEAT = b'{"kind":"beat","session":"s","lease_ms":5,"generation":2,"metadata":"{\\"a\\":\\"\\u00e4\\"}","plan":1}'


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record(0, 0, key, value)


def test_records_keep_their_bytes() -> None:
    assert member_key("m\u00e4") == b'["member", "m\\u00e4"]'
    assert member_value("beat", "s", 5, 2, '{"a":"\u00e4"}', 1) == BEAT
    assert claim("t", "o", 3) == (b'["writer", "t", "o"]', b'{"epoch": 3}')


def test_fields_of_a_later_version_are_passed_over_and_a_plan_may_be_missing() -> None:
    members = Members()
    join = BEAT.replace(b'"beat"', b'"join"')
    members.apply([record(member_key("a"), join[:-1] + b',"newer":[1]}')], 0, old=False)
    members.apply([record(member_key("b"), join.replace(b',"plan":1', b""))], 0, old=False)
    assert {name: lease.plan for name, lease in members.leases.items()} == {"a": 1, "b": 0}
    members.apply([record(b'["writer", "t", "o"]', b'{"epoch": 3, "newer": 1}')], 0, old=False)
    assert members.owners == {"t": Owner("o", 3)}


def test_notes_keep_their_bytes_and_their_time_and_forms_of_later_versions_are_passed_over() -> None:
    assert note_key("claim", "m\u00e4") == b'["claim", "m\\u00e4"]'
    members = Members()
    members.apply([Record(0, 7, b'["claim", "t"]', b"text")], 0, old=False)
    later = [record(b'["claim"]', b"x"), record(b'["claim", "t", "more"]', b"x"), record(b'["writer", "t"]', b"x")]
    members.apply([*later, record(b'["claim", "never"]', None)], 0, old=False)
    assert members.notes == {("claim", "t"): Note("text", 7)}
    members.apply([record(b'["claim", "t"]', None)], 0, old=False)
    assert members.notes == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, BEAT),
        (b"", BEAT),
        (b"no JSON", BEAT),
        (b"[]", BEAT),
        (b"[1]", BEAT),
        (b'{"member": "m"}', BEAT),
        (b"[" * 100_000, BEAT),
        (member_key("m"), b""),
        (member_key("m"), b"[]"),
        (member_key("m"), b"{}"),
        (member_key("m"), BEAT.replace(b"5", b'"5"')),
        (member_key("m"), BEAT.replace(b"5", b"true")),
        (member_key("m"), b'{"a":' * 100_000),
        (b'["writer", "t", "o"]', b"{}"),
        (b'["writer", "t", "o"]', b'{"epoch": "3"}'),
    ],
)
def test_record_that_no_member_wrote_is_refused_with_what_to_do(key: bytes | None, value: bytes) -> None:
    members = Members()
    with pytest.raises(InvalidRequest, match="which no member wrote: keep other programs from writing"):
        members.apply([record(key, value)], 0, old=False)
    assert members.leases == {} and members.owners == {}


class Plain(Members):
    """Without the short way for repeated beats."""

    def _repeats(self, record: Record, now_ms: int, old: bool) -> bool:
        return False


NAMES = st.sampled_from("ab")
STEPS = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(["join", "beat", "beat", "beat", "leave", "removal"]),
        st.sampled_from(["s", "t"]),
        st.integers(1, 2),  # plan, which is the metadata, too
        st.integers(0, 3),  # generation
        st.booleans(),  # the next batch begins here
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 30))
def test_repeated_beats_leave_what_reading_each_of_them_leaves(steps: list[tuple[Any, ...]], end: int) -> None:
    short, plain = Members(), Plain()
    batch: list[Record] = []
    for offset, (name, kind, session, plan, generation, cut) in enumerate(steps):
        value, headers = None, ()
        if kind == "removal":
            headers = (("seen", str(max(offset - 2, 0)).encode()),)
        elif kind != "leave":
            value = member_value(kind, session, 50, generation, str(plan), plan)
        batch.append(Record(offset, 1_000 + 7 * offset, member_key(name), value, headers))
        if cut or offset == len(steps) - 1:
            for members in (short, plain):
                members.apply([one for one in batch if one.offset < end], 10 * offset, old=True)
                members.apply([one for one in batch if one.offset >= end], 10 * offset, old=False)
            batch.clear()
            assert (short.leases, short.generation, short.view()) == (plain.leases, plain.generation, plain.view())
