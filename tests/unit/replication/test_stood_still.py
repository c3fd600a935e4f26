"""A copy whose process stood still for longer than its changelog keeps deletes is read again from the beginning."""

from __future__ import annotations

import standfast as sf
from support.sessions import DAY_MS, Bench

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def rows(session: sf.Session) -> dict[str, str]:
    return dict(session.read("kv", 0, allow_stale=True).store.all())


def suspended(bench: Bench, *, days: int) -> None:
    """Every process stands still, and the log's care has removed deletes that are old enough."""
    bench.embedded.care(bench.clock.wall_ms())
    bench.clock.advance(days * DAY_MS)
    bench.embedded.care(bench.clock.wall_ms())


def standby_beside_owner(bench: Bench) -> tuple[sf.Session, sf.Session]:
    owner = bench.active(stores=STORES)
    standby = bench.session("b", stores=STORES, take_over=False)
    standby.assign(standby=[0])
    put(owner, a="1", b="1")
    bench.settle(standby)
    assert rows(standby) == {"a": "1", "b": "1"}
    return owner, standby


def put(owner: sf.Session, **values: str | None) -> None:
    for key, value in values.items():
        owner.task(0).store("kv").put(key, value)
    owner.task(0).commit()


def test_a_standby_that_was_suspended_for_days_is_read_from_the_beginning(bench: Bench) -> None:
    owner, standby = standby_beside_owner(bench)
    put(owner, a=None, c="1")
    suspended(bench, days=8)
    bench.settle(standby)
    assert rows(standby) == {"b": "1", "c": "1"}


def test_rows_that_a_suspended_standby_had_read_and_not_written_do_not_make_it_look_young(bench: Bench) -> None:
    owner, standby = standby_beside_owner(bench)
    (task,) = standby.all_tasks().values()
    (changelog,) = task.applier.store_of
    put(owner, c="1")
    task.applier.stage(changelog, (), task.stores.cut.positions["kv"].offset + 1)
    put(owner, a=None, d="1")
    suspended(bench, days=8)
    task.applier.write()
    bench.settle(standby)
    assert rows(standby) == {"b": "1", "c": "1", "d": "1"}


def test_a_standby_that_was_suspended_after_it_read_the_end_does_not_look_young(bench: Bench) -> None:
    owner, standby = standby_beside_owner(bench)
    (task,) = standby.all_tasks().values()
    (changelog,) = task.applier.store_of
    read_ms = bench.clock.wall_ms()  # the position is the end
    put(owner, a=None, c="1")
    suspended(bench, days=8)
    task.applier.confirm(changelog, read_ms)
    bench.settle(standby)
    assert rows(standby) == {"b": "1", "c": "1"}


def test_a_standby_that_was_suspended_for_less_goes_on(bench: Bench) -> None:
    owner, standby = standby_beside_owner(bench)
    put(owner, a=None, c="1")
    suspended(bench, days=6)
    bench.settle(standby)
    assert rows(standby) == {"b": "1", "c": "1"}
    assert standby.counters.restored_records.total() == 0
