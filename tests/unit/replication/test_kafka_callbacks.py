"""`kafka=` of applications, sessions and logs: functions are passed on, chained or refused; the rest is text."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

import standfast as sf
from standfast.replication.kafka.callbacks import Callbacks, functions_of, of_consumer, with_settings
from standfast.stream.task.settings import SessionSettings

LOG = "kafka://host:9092?security.protocol=SASL_SSL"
STORE = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
OAUTH = {"sasl.mechanism": "OAUTHBEARER"}


def token(_: str) -> tuple[str, float]:
    return "secret-token", time.time() + 60


async def later(_: Any) -> None: ...


def test_settings_that_are_no_functions_become_part_of_the_address() -> None:
    given = {
        **OAUTH,
        "client.id": "a&b=c",
        "ssl.crl.location": "/x y",
        "log_level": 3,
        "check.crcs": True,
        "oauth_cb": token,
    }
    address = with_settings(LOG, given)
    assert address == (
        "kafka://host:9092?check.crcs=true&client.id=a%26b%3Dc&log_level=3&sasl.mechanism=OAUTHBEARER"
        "&security.protocol=SASL_SSL&ssl.crl.location=/x%20y"
    )
    assert with_settings(address, given) == address
    assert with_settings(f"{LOG}&client.id=other", {"client.id": "mine"}).count("client.id=mine") == 1
    assert functions_of(given) == {"oauth_cb": token}
    assert with_settings(LOG, None) == with_settings(LOG, {}) == LOG


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_commit": print}, "'on_commit' cannot be given: standfast commits offsets itself"),
        ({"on_delivery": print}, "'on_delivery' cannot be given: standfast waits for each delivery itself"),
        ({"logger": logging.getLogger()}, "'logger' cannot be given: .*the logger `standfast`"),
        ({"partitioner": print}, r"'partitioner' cannot be given: a sink names the partition: give .to\("),
        ({"no_cb": print}, "'no_cb' takes no function: functions are oauth_cb, error_cb, throttle_cb"),
        ({"oauth_cb": "f"}, "'oauth_cb' must be a function, not str"),
        ({"error_cb": later}, "'error_cb' must be a plain function, not a coroutine"),
        ({"client.id": None}, "'client.id' must be text, a number, True or False, not NoneType"),
        ({"oauth_cb": token}, "'oauth_cb' would never be called: it needs sasl.mechanism=OAUTHBEARER beside it"),
        ({"stats_cb": print}, r"'stats_cb' cannot be given: not all clients are polled.*session.statistics\(\)"),
        ({"sasl.password": "hunter2"}, "sasl.password is a secret.*sasl.password.file=/path/of/it"),
        ({"acks": "1"}, "acks is set by standfast"),
        ([], None),
        (7, "kafka must be a dict"),
    ],
)
def test_settings_that_cannot_be_used_are_named_with_the_fix(given: Any, said: str | None) -> None:
    if said is None:
        assert with_settings(LOG, given) == LOG
        return
    with pytest.raises(sf.BadConfig, match=said) as caught:
        with_settings(LOG, given)
    assert "hunter2" not in str(caught.value)


def test_wrong_settings_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    given: dict[str, Any] = {"kafka": {"on_commit": print, "no_cb": print}}
    for make in (
        lambda: sf.App("app", log=LOG, state_dir=tmp_path / "s", **given),
        lambda: sf.Session("app", log=LOG, state_dir=tmp_path / "s", **given),
        lambda: sf.Replica("app", log=LOG, state_dir=tmp_path / "s", stores=[STORE], **given),
        lambda: sf.open_log(LOG, **given),
    ):
        with pytest.raises(sf.BadConfig) as caught:
            make()
        assert len(caught.value.problems) == 2
    with pytest.raises(sf.BadConfig, match="this log is none of Kafka"):
        sf.Session("app", log=f"sqlite:///{tmp_path}/log", state_dir=tmp_path / "s", kafka={"client.id": "a"})
    assert list(tmp_path.iterdir()) == []


def test_with_a_login_by_function_restores_are_in_bulk_as_ever() -> None:
    for workers in (None, 0, 2):
        given = SessionSettings(kafka={**OAUTH, "oauth_cb": token}, restore_workers=workers)
        assert not given.problems()
        assert given.bulk().workers == SessionSettings(restore_workers=workers).bulk().workers


def test_test_driver_runs_an_application_that_logs_in_by_a_function() -> None:
    app = sf.App("app", log=LOG, kafka={**OAUTH, "oauth_cb": token})
    app.stream("in").to("out")
    with sf.testing.Driver(app) as driver:
        driver.pipe("in", "a", 1, 1)
        assert [one.value for one in driver.read("out")] == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda _: 1 / 0, r"<lambda> gave no token \(ZeroDivisionError: division by zero\)"),
        (lambda _: "secret-token", r"TypeError: it must return \(token, expiry.*not str"),
        (lambda _: ("secret-token", "soon"), "TypeError: it must return"),
        (lambda _: ("secret-token", time.time() - 1), "ValueError: its token expired"),
        (lambda _: ("secret-token", time.time() * 1_000), "would last for more than ten years.*seconds"),
    ],
)
def test_function_that_gives_no_token_is_named_without_a_token(
    given: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Callbacks({"oauth_cb": given}, lambda error: None)
    with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
        ours.settings()["oauth_cb"]("")
    assert re.search(said, ours.no_token)
    assert ours.no_token in caplog.text
    assert "secret-token" not in caplog.text + ours.no_token


def test_next_token_ends_the_trouble_of_the_one_before() -> None:
    answers: list[Any] = [ValueError("vault is shut"), ("t", time.time() + 60)]

    def give(_: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    noted: list[Any] = []
    ours = Callbacks({"oauth_cb": give}, noted.append)
    with pytest.raises(ValueError, match="vault"):
        ours.settings()["oauth_cb"]("")
    # The client reports it as a refused login, which would outlive the trouble.
    refused = KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: vault is shut")
    ours.settings()["error_cb"](refused)
    assert noted == [] and "vault is shut" in ours.no_token
    ours.settings()["oauth_cb"]("")
    assert ours.no_token == ""
    Callbacks({}, noted.append).settings()["error_cb"](refused)
    assert noted == [refused]


def test_errors_reach_standfast_first_and_then_the_users_function(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def fail(error: Any) -> None:
        seen.append("user")
        raise ValueError("no")

    error = KafkaError(KafkaError._TRANSPORT, "away")
    Callbacks({"error_cb": fail}, lambda _: seen.append("standfast")).settings()["error_cb"](error)
    assert seen == ["standfast", "user"]
    assert "error_cb" in caplog.text and "fail failed" in caplog.text and "ValueError: no" in caplog.text


def test_functions_for_a_consumer_of_ones_own_serve_the_blocking_and_the_asyncio_client() -> None:
    seen: list[Any] = []
    made = of_consumer({**OAUTH, "oauth_cb": token, "error_cb": seen.append})
    assert made["oauth_cb"] is token

    async def as_asyncio_does() -> None:
        await made["error_cb"]("second")

    made["error_cb"]("first")
    asyncio.run(as_asyncio_does())
    assert seen == ["first", "second"]
