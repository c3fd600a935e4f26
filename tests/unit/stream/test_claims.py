"""Two applications whose names run into one internal topic: one of them runs, and no row of the other is touched."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.ops.sidecar.worker.session import SidecarSession
from standfast.replication.log import TopicPolicy
from standfast.replication.topics.claims import CLAIM, claims_of
from standfast.replication.topics.settings import OWN_TIMESTAMPS
from standfast.store.errors import BadConfig
from support.apps import Running, create, text_of, write, written
from support.sessions import Bench

TEXT, INT = sf.serde.string, sf.serde.int64
SHARED = "orders-eu-x-changelog"


def session(bench: Bench, app: str, store: str, kind: type[sf.Session] = sf.Session, **given: Any) -> sf.Session:
    """A session of one task with one store."""
    arguments: dict[str, Any] = {
        "log": bench.address,
        "state_dir": bench.root / app,
        "stores": [sf.KeyValueStore(store, TEXT, TEXT)],
        "partitions": 1,
        "background": False,
        "clock": bench.clock,
    }
    made = kind(app, **{**arguments, **given})
    bench.opened.append(made)
    return made


def run(made: sf.Session) -> Any:
    """Its task, restored."""
    made.assign(active=[0])
    made.wait_ready(30)
    return made.task(0)


def topics(bench: Bench) -> set[str]:
    return set(bench.log.admin.topic_names())


def claimed(bench: Bench, app: str) -> dict[str, tuple[str, str]]:
    """Kind and form of keys of each claimed topic."""
    return {name: (one.kind, one.keys) for name, one in claims_of(bench.log.group(app).notes()).items()}


def count_by_value(store: str) -> Any:
    """An application that counts equal values, through a repartition topic named after the store."""

    def make(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=TEXT).group_by(lambda _, value: value).count(store).to("out")

    return make


@pytest.mark.parametrize("kind", [sf.Session, SidecarSession])
def test_an_application_whose_name_runs_into_a_claimed_changelog_is_refused(
    bench: Bench, kind: type[sf.Session]
) -> None:
    task = run(session(bench, "orders", "eu-x", kind))
    task.store("eu-x").put("customer", "of orders", timestamp=1)
    task.commit()
    with pytest.raises(BadConfig, match="belongs to application 'orders'") as refused:
        session(bench, "orders-eu", "x", kind)
    assert "'orders-eu'" in str(refused.value) and SHARED in str(refused.value)
    bench.close()
    again = run(session(bench, "orders", "eu-x", kind))
    assert dict(again.store("eu-x").all()) == {"customer": "of orders"}


def test_a_refused_start_creates_no_topic_and_keeps_no_claim(bench: Bench) -> None:
    run(session(bench, "orders", "eu-x"))
    before = topics(bench)
    both = [sf.KeyValueStore("other", TEXT, TEXT), sf.KeyValueStore("x", TEXT, TEXT)]
    with pytest.raises(BadConfig):
        session(bench, "orders-eu", "x", stores=both)
    assert topics(bench) == before
    assert bench.log.group("orders-eu").notes() == {}


def test_a_session_that_learns_its_partitions_later_claims_when_it_opens_a_task(bench: Bench) -> None:
    run(session(bench, "orders", "eu-x", partitions=None))
    assert set(claimed(bench, "orders")) == {SHARED}
    before = topics(bench)
    both = [sf.KeyValueStore("other", TEXT, TEXT), sf.KeyValueStore("x", TEXT, TEXT)]
    other = session(bench, "orders-eu", "x", stores=both, partitions=None)
    with pytest.raises(BadConfig, match="belongs to application 'orders'"):
        other.assign(active=[0])
    assert topics(bench) == before


def test_a_refused_application_creates_no_topic_between_its_tasks(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    session(bench, "orders", "eu-x")
    before = topics(bench)
    app = sf.App("orders-eu", log=bench.address, state_dir=bench.root / "b", stores=[sf.KeyValueStore("x", TEXT, INT)])
    count_by_value("x")(app)
    with pytest.raises(BadConfig, match="'orders'"):
        app.assemble()
    assert topics(bench) == before


def test_topics_between_tasks_are_claimed_too(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    given: dict[str, Any] = {"name": "orders", "stores": [sf.KeyValueStore("eu-x", TEXT, INT)]}
    one = Running(bench, count_by_value("eu-x"), **given)
    write(bench, "in", ("k", "word", 1))
    one.run()
    one.commit()
    assert [key for key, _, _ in text_of(written(bench, "out"))] == ["word"]
    assert claimed(bench, "orders") == {
        SHARED: ("changelog", "plain"),
        "orders-eu-x-repartition": ("repartition", "plain"),
    }
    bench.log.admin.delete_topic(SHARED)
    app = sf.App("orders-eu", log=bench.address, state_dir=bench.root / "b", stores=[sf.KeyValueStore("x", TEXT, INT)])
    count_by_value("x")(app)
    with pytest.raises(BadConfig, match="orders-eu-x-repartition belongs to application 'orders'"):
        app.assemble()


def test_every_kind_of_store_has_its_form_of_keys_in_its_claim(bench: Bench) -> None:
    bench.session()
    assert claimed(bench, "app") == {
        "app-kv-changelog": ("changelog", "plain"),
        "app-win-changelog": ("changelog", "window"),
        "app-ses-changelog": ("changelog", "session"),
        "app-ver-changelog": ("changelog", "plain"),
    }


def test_a_topic_from_before_claims_is_claimed_at_the_next_start(bench: Bench) -> None:
    first = session(bench, "orders", "eu-x")
    task = run(first)
    task.store("eu-x").put("customer", "of orders", timestamp=1)
    task.commit()
    first.close()
    bench.log.group("orders").note({(CLAIM, SHARED): None})  # as a version without claims has left it
    again = session(bench, "orders", "eu-x")
    assert dict(run(again).store("eu-x").all()) == {"customer": "of orders"}
    assert set(claimed(bench, "orders")) == {SHARED}
    with pytest.raises(BadConfig):
        session(bench, "orders-eu", "x")


def test_a_changelog_that_is_recreated_while_the_application_runs_is_claimed_again(bench: Bench) -> None:
    one = session(bench, "orders", "eu-x", accept_empty_log=True)
    one.assign(active=[0])
    old = claims_of(bench.log.group("orders").notes())[SHARED].topic_id
    one.assign()
    bench.log.admin.delete_topic(SHARED)
    one.assign(active=[0])
    new = claims_of(bench.log.group("orders").notes())[SHARED].topic_id
    assert new != old
    with pytest.raises(BadConfig):
        session(bench, "orders-eu", "x")


def test_a_refusal_comes_before_advice_to_change_the_topic_of_the_other_application(bench: Bench) -> None:
    window = sf.WindowStore("eu-x", TEXT, TEXT, window_size_ms=60_000, retention_ms=120_000)
    session(bench, "orders", "eu-x", stores=[window])
    with pytest.raises(BadConfig) as refused:
        session(bench, "orders-eu", "x")
    assert "belongs to application 'orders'" in str(refused.value) and "cleanup.policy" not in str(refused.value)


def test_a_source_topic_that_serves_as_changelog_is_no_claim(bench: Bench) -> None:
    bench.log.admin.create_topic(SHARED, 1, TopicPolicy(frozenset({"compact"}), extra=OWN_TIMESTAMPS))
    session(bench, "orders", "unused", stores=[sf.KeyValueStore("table", TEXT, TEXT, source_topic=SHARED)])
    assert bench.log.group("orders").notes() == {}
    session(bench, "orders-eu", "x")


def test_a_replica_claims_nothing_and_is_never_refused(bench: Bench) -> None:
    session(bench, "orders", "eu-x")
    before = bench.log.group("orders").notes()
    replica = sf.Replica(
        "orders-eu",
        log=bench.address,
        state_dir=bench.root / "replica",
        stores=[sf.KeyValueStore("x", TEXT, TEXT)],
        clock=bench.clock,
        background=False,
    )
    replica.close()
    assert bench.log.group("orders").notes() == before
    assert bench.log.group("orders-eu").notes() == {}


def test_a_second_start_writes_nothing_to_the_log_for_its_claims(bench: Bench) -> None:
    session(bench, "orders", "eu-x").close()
    before = bench.log.group("orders").notes()
    bench.clock.advance(1_000)
    session(bench, "orders", "eu-x").close()
    assert bench.log.group("orders").notes() == before
