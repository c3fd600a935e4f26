"""The data door over a real Unix socket: commands, bindings, commits, refusals."""

from __future__ import annotations

from fix_door import DoorBench


def test_a_value_that_was_set_is_read_back(door_bench: DoorBench) -> None:
    door_bench.open()
    client = door_bench.client()
    assert client("SET", "k", "v") == b"OK"
    assert client("GET", "k") == b"v"
    assert client("SF.COMMIT", "SEQ", 1, "GROUP", "app", "OFFSETS", "flights", 0, 12) == [1, 1, 1]
    print(client("SF.STATUS"))
    print(client("SF.OFFSETS"))
