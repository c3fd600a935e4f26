"""Records of the members topic: bytes as earlier versions wrote them, later fields, and foreign records."""

from __future__ import annotations

import pytest

from standfast.replication.kafka.members import Members, Owner, claim, member_key, member_value
from standfast.replication.log import Record
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
