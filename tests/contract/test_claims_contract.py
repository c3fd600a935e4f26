"""The contract of claims of internal topics, on every log: no two applications have one topic.

Rules of this file: claims are made as a start makes them (`Claims.take`); notes that an instance would have left at
the moment of its death, or while another one stands still, are written by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from standfast.replication.log import Log, TopicPolicy
from standfast.replication.shapes import dump
from standfast.replication.topics import claims as module
from standfast.replication.topics.claims import (
    ASK,
    CLAIM,
    Ask,
    Claim,
    Claims,
    claim_of,
    claimants,
    claims_of,
    sorted_in,
)
from standfast.store.clock import ManualClock
from standfast.store.errors import BadConfig

TOPIC = "orders-eu-x-changelog"  # store `eu-x` of `orders`, or store `x` of `orders-eu`
OTHER = "orders-eu-x-y-repartition"


def made(log: Log, *names: str) -> dict[str, Claim]:
    """The claims of topics, created if they are absent."""
    return {name: claim_of(name, log.admin.create_topic(name, 1, TopicPolicy()).topic_id) for name in names or (TOPIC,)}


def claims(log: Log, app: str, instance: str = "i") -> Claims:
    """The claims of an application as a new process makes them."""
    return Claims(app, log, log.group(app), instance, ManualClock(0))


def kept(log: Log, app: str) -> dict[tuple[str, str], str]:
    return {key: note.text for key, note in (log.notes_of([app])[app] or {}).items()}


def ask(log: Log, app: str, claim: Claim) -> None:
    """Leave the ask of an instance that was killed, or stands still, before its look."""
    log.group(app).note({(ASK, f"other/{TOPIC}"): dump(Ask(claim.topic_id)).decode()})


@pytest.mark.parametrize(("first", "second"), [("orders", "orders-eu"), ("orders-eu", "orders")])
def test_a_claimed_topic_refuses_every_other_application_and_names_both(log: Log, first: str, second: str) -> None:
    wanted = made(log)
    claims(log, first).take(wanted)
    with pytest.raises(BadConfig) as refused:
        claims(log, second).take(wanted)
    text = str(refused.value)
    assert all(part in text for part in (TOPIC, repr(first), repr(second), f"standfast reset --app {first}"))
    assert f"standfast topic release {TOPIC} --app {first}" in text


def test_a_refused_application_leaves_no_claim_and_no_ask(log: Log, reopen: Callable[[], Log]) -> None:
    wanted = made(log)
    claims(log, "orders").take(wanted)
    with pytest.raises(BadConfig):
        claims(reopen(), "orders-eu").take(wanted)
    assert kept(log, "orders-eu") == {}
    claims(reopen(), "orders").take(wanted)  # the next start of the application that has it


def test_every_problem_is_named_at_once(log: Log) -> None:
    wanted = made(log, TOPIC, OTHER)
    claims(log, "orders").take(wanted)
    with pytest.raises(BadConfig) as refused:
        claims(log, "orders-eu").take(wanted)
    assert len(refused.value.problems) == 2


def test_instances_of_one_application_share_its_claim(log: Log, reopen: Callable[[], Log]) -> None:
    wanted = made(log)
    for number in range(3):
        claims(reopen(), "orders", f"instance-{number}").take(wanted)
    assert set(kept(log, "orders")) == {(CLAIM, TOPIC)}
    assert claims_of(log.group("orders").notes()) == wanted


def test_a_claim_keeps_kind_and_form_of_keys_and_follows_a_change_of_them(log: Log) -> None:
    topic_id = made(log)[TOPIC].topic_id
    claims(log, "orders").take({TOPIC: claim_of(TOPIC, topic_id)})
    claims(log, "orders").take({TOPIC: claim_of(TOPIC, topic_id, "window")})
    assert claims_of(log.group("orders").notes()) == {TOPIC: Claim(topic_id, "changelog", "window")}


def test_a_topic_id_that_is_gone_claims_nothing(log: Log, reopen: Callable[[], Log]) -> None:
    claims(log, "orders").take(made(log))
    log.admin.delete_topic(TOPIC)
    wanted = made(log)
    claims(reopen(), "orders-eu").take(wanted)
    with pytest.raises(BadConfig, match="'orders-eu'"):
        claims(reopen(), "orders").take(wanted)


def test_an_ask_of_an_application_that_is_first_by_name_refuses_a_later_one(log: Log) -> None:
    wanted = made(log)
    ask(log, "orders", wanted[TOPIC])
    with pytest.raises(BadConfig, match="'orders' starts at this moment"):
        claims(log, "orders-eu").take(wanted)
    assert kept(log, "orders-eu") == {}


def test_an_application_that_is_first_by_name_waits_for_an_ask_and_is_refused_if_that_does_not_end(log: Log) -> None:
    wanted = made(log)
    ask(log, "orders-eu", wanted[TOPIC])
    with pytest.raises(BadConfig, match="'orders-eu' starts at this moment"):
        claims(log, "orders").take(wanted)
    assert kept(log, "orders") == {}


def test_the_ask_of_a_killed_instance_is_void_after_its_time(
    log: Log, pass_time_ms: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_MS", 0)
    wanted = made(log)
    ask(log, "orders", wanted[TOPIC])
    pass_time_ms(1)
    claims(log, "orders-eu").take(wanted)
    assert claims_of(log.group("orders-eu").notes()) == wanted


def test_an_ask_never_stops_an_application_that_has_its_claim(log: Log, reopen: Callable[[], Log]) -> None:
    wanted = made(log)
    claims(log, "orders-eu").take(wanted)
    ask(log, "orders", wanted[TOPIC])
    claims(reopen(), "orders-eu").take(wanted)


def test_of_two_that_stood_still_until_their_asks_were_void_neither_runs(log: Log, reopen: Callable[[], Log]) -> None:
    wanted = made(log)
    for app in ("orders", "orders-eu"):
        log.group(app).note({(CLAIM, TOPIC): dump(wanted[TOPIC]).decode()})
    for app in ("orders", "orders-eu"):
        with pytest.raises(BadConfig, match="belongs to application"):
            claims(reopen(), app).take(wanted)


def race(wanted: dict[str, Claim], logs: dict[tuple[str, str], Log]) -> set[str]:
    """Start all of these (application, instance) at once; returns the applications that run."""
    ran: set[str] = set()
    barrier = threading.Barrier(len(logs))

    def start(app: str, instance: str, log: Log) -> None:
        mine = claims(log, app, instance)
        barrier.wait(30)
        try:
            mine.take(wanted)
        except BadConfig:
            return
        ran.add(app)

    threads = [threading.Thread(target=start, args=(*name, log)) for name, log in logs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ran


def test_of_two_that_start_at_once_at_most_one_runs(log: Log, reopen: Callable[[], Log]) -> None:
    logs = {(app, instance): reopen() for app in ("orders", "orders-eu") for instance in "ab"}
    for number in range(4):
        assert len(race(made(log, f"orders-eu-{number}-changelog"), logs)) <= 1
    assert {kind for app in ("orders", "orders-eu") for kind, _ in kept(log, app)} <= {CLAIM}


def test_claims_leave_no_doubt_to_whom_a_topic_belongs(log: Log) -> None:
    wanted = made(log, TOPIC, OTHER)
    claims(log, "orders-eu").take({TOPIC: wanted[TOPIC]})
    ids = {name: claim.topic_id for name, claim in wanted.items()}
    assert claimants(log, "orders", ids) == claimants(log, "orders-eu", ids) == {TOPIC: "orders-eu"}


def test_a_note_that_is_no_claim_claims_nothing(log: Log) -> None:
    log.group("orders").note({(CLAIM, TOPIC): "[]"})
    claims(log, "orders-eu").take(made(log))


def test_the_first_claim_of_a_topic_settles_the_form_of_its_keys(log: Log, reopen: Callable[[], Log]) -> None:
    (topic, claim), *_ = made(log).items()
    asking = {topic: claim.as_kept(True)}

    def taken(on: Log, is_new: bool) -> bool:
        mine = Claims("orders", on, on.group("orders"), "i", ManualClock(0), lambda _: is_new)
        mine.take(asking)
        assert sorted_in(on, "orders", {topic: claim.topic_id}) == ({topic} if mine.is_sorted(topic) else set())
        return mine.is_sorted(topic)

    assert taken(log, True) and taken(reopen(), False)  # it has records by then
    claims(log, "orders").take({topic: claim})  # a program that does not ask for it leaves it
    assert claims_of(log.group("orders").notes())[topic].is_sorted
    log.group("orders").note({(CLAIM, topic): dump(claim).decode()})  # of a version without forms
    assert not taken(reopen(), True)
