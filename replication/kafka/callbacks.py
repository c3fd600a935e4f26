"""Settings of Kafka clients that are given beside the address, functions among them.

    kafka={"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}

    text, numbers, True and False    become part of the address, so that commands and other processes have them too
    oauth_cb                         gives each client its login; its own errors are in those of the log
    error_cb, throttle_cb            called for every client, after standfast's own; their own errors are logged
    any other function               refused, with the reason

A function exists in this process only. A process that standfast starts logs in for itself, so that with `oauth_cb` none
is started: a thread renews the lease (see `needs_this_process`).

Rules of this file: it calls the given functions, reads the clock by which tokens expire, and does nothing else; it must
not know the client library. Every problem is reported at once, and none contains a setting's value.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

from standfast.replication.kafka.address import SCHEME, parse_kafka_address
from standfast.store.clock import SystemClock
from standfast.store.errors import BadConfig
from standfast.store.log import as_event, logger

Functions: TypeAlias = Mapping[str, Callable[..., Any]]

OAUTH = "oauth_cb"
ERROR = "error_cb"
GIVEN = (OAUTH, ERROR, "throttle_cb")
LIFE_S_MAX = 10 * 365 * 86_400  # a longer one is an expiry in milliseconds: the client would never ask again
TOKENLESS = "Failed to acquire SASL OAUTHBEARER token"  # begins the client's error for an `oauth_cb` that raised
_REFUSED = {
    "on_commit": "standfast commits offsets itself, together with the state: leave it out",
    "on_delivery": "standfast waits for each delivery itself: leave it out",
    "dr_cb": "standfast waits for each delivery itself: leave it out",
    "dr_msg_cb": "standfast waits for each delivery itself: leave it out",
    # Reports wait in a client until it is polled, and an idle writer or admin client is not: they would pile up.
    "stats_cb": "not all clients are polled all the time: read session.statistics() or the metrics",
    "logger": "lines of the clients go through the logger `standfast`: set that up",
    "partitioner": "a sink names the partition: give .to(..., partitioner=...) or @app.sink(..., partitioner=...)",
}
_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")


def kafka_problems(given: object) -> list[str]:
    """The problems of `kafka=` that are wrong for any address."""
    if given is None:
        return []
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        return [f'kafka must be a dict of settings of the Kafka client, as {{"oauth_cb": f}}, not {given!r:.100}']
    problems = []
    for name, value in given.items():
        where = f"kafka setting {name!r}"
        if name in GIVEN and not callable(value):
            problems.append(f"{where} must be a function, not {type(value).__name__}")
        elif name in GIVEN and inspect.iscoroutinefunction(value):
            problems.append(
                f"{where} must be a plain function, not a coroutine: clients call it in threads of their own"
            )
        elif name in _REFUSED and (callable(value) or name != "partitioner"):
            problems.append(f"{where} cannot be given: {_REFUSED[name]}")
        elif name not in GIVEN and callable(value):
            problems.append(f"{where} takes no function: functions are {', '.join(GIVEN)}")
        elif name not in GIVEN and not isinstance(value, str | int | float):
            problems.append(f"{where} must be text, a number, True or False, not {type(value).__name__}")
    return problems


def with_settings(address: str, given: Mapping[str, Any] | None) -> str:
    """The address with the settings that are not functions; they count before those that it has. Raises BadConfig."""
    if not given:
        return address
    problems = kafka_problems(given)
    if not problems and not address.startswith(f"{SCHEME}://"):
        problems.append("kafka=... has settings of Kafka clients, and this log is none of Kafka: leave it out")
    if problems:
        raise BadConfig(problems)
    plain = {name: value for name, value in given.items() if name not in GIVEN}
    text = "&".join(f"{quote(name)}={quote(_text(value), safe='')}" for name, value in plain.items())
    separator = "&" if "?" in address else "?"
    where = parse_kafka_address(f"{address}{separator}{text}" if text else address)
    mechanism = next((where.options[one] for one in _MECHANISMS if one in where.options), "")
    if OAUTH in given and mechanism.upper() != "OAUTHBEARER":
        raise BadConfig(
            [f"kafka setting {OAUTH!r} would never be called: it needs sasl.mechanism=OAUTHBEARER beside it"]
        )
    return str(where)


def functions_of(given: Mapping[str, Any] | None) -> Functions:
    """The functions among the settings."""
    return {name: given[name] for name in GIVEN if name in given} if given else {}


def needs_this_process(given: Mapping[str, Any] | None) -> bool:
    """Whether no other process can log in with these settings."""
    return OAUTH in functions_of(given)


class Callbacks:
    """The functions of one log as its clients take them. Clients call them in any thread."""

    def __init__(self, functions: Functions, note: Callable[[Any], None]) -> None:
        """`note` receives each error that a client reports, before the function of the user."""
        self._functions = functions
        self._note = note
        self._mutex = threading.Lock()
        self._no_token = ""

    def settings(self) -> dict[str, Callable[..., Any]]:
        """Settings of a client."""
        found = {name: self._guarded(name, function) for name, function in self._functions.items()}
        if OAUTH in self._functions:
            found[OAUTH] = self._token
        found[ERROR] = self.report
        return found

    def named(self) -> frozenset[str]:
        """Names of the user's functions."""
        return frozenset(self._functions)

    @property
    def gives_tokens(self) -> bool:
        """Whether clients log in by `oauth_cb`."""
        return OAUTH in self._functions

    @property
    def no_token(self) -> str:
        """Why the last call of `oauth_cb` gave no token, with its name; empty if it gave one, or if there is none."""
        with self._mutex:
            return self._no_token

    def _token(self, config: str) -> Any:
        function = self._functions[OAUTH]
        try:
            token = function(config)
            _check_token(token, SystemClock().wall_ms())
        except Exception as error:
            why = f"oauth_cb {_name(function)} gave no token ({type(error).__name__}: {error})"
            with self._mutex:
                self._no_token = why
            logger.warning("%s: the client asks again", why, extra=as_event("token_missing"))
            raise
        with self._mutex:
            self._no_token = ""
        return token

    def report(self, error: Any) -> None:
        """Take a client's error: for our own text, then for the function of the user."""
        # `no_token` says it better, and no longer than it is true.
        if OAUTH not in self._functions or not str(error.str()).startswith(TOKENLESS):
            self._note(error)
        function = self._functions.get(ERROR)
        if function is not None:
            self._guarded(ERROR, function)(error)

    @staticmethod
    def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> None:
            try:
                function(*given)
            except Exception:  # noqa: BLE001 - in the client it would end the call that runs callbacks just now
                logger.exception("%s %s failed", name, _name(function), extra=as_event("callback_failed", setting=name))

        return call


class _Done:
    """The result of a callback for either client: the asyncio one awaits it, the blocking one drops it."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def of_consumer(given: Mapping[str, Any] | None) -> dict[str, Callable[..., Any]]:
    """The functions for a consumer of the application's own, blocking or of asyncio."""

    def either(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> _Done:
            function(*arguments)
            return _Done()

        return call

    # Of these the asyncio client awaits all but `oauth_cb`.
    return {name: one if name == OAUTH else either(one) for name, one in functions_of(given).items()}


def _check_token(token: object, now_ms: int) -> None:
    """Refuse a result that is no token, without the value: it may hold one."""
    parts: list[object] = list(token) if isinstance(token, tuple) else []
    expiry = parts[1] if 2 <= len(parts) <= 4 and isinstance(parts[0], str) else None
    if not isinstance(expiry, int | float) or isinstance(expiry, bool):
        raise TypeError(
            "it must return (token, expiry in seconds since the epoch), or that with the principal and a dict of "
            f"extensions, not {type(token).__name__}"
        )
    left_s = expiry - now_ms / 1_000
    if not 0 < left_s < LIFE_S_MAX:
        why = "expired" if left_s <= 0 else "would last for more than ten years"
        raise ValueError(f"its token {why}: the expiry {expiry!r} must be in seconds since the epoch")


def _name(function: Callable[..., Any]) -> str:
    named = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '') or ''}.{named}".lstrip(".")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
