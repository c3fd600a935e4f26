"""The shared access of a Kafka log's parts to its cluster: clients with the log's settings, topics, bounds.

    KafkaAddress ── consumer()   read committed, from explicit positions, never joins a group
                 ── producer()   acks from all replicas, idempotent; compiled where that can be
                 ── admin        one for the log; used by several threads

Rules of this file: every wait has a bound (`timeout.ms` of the address) and ends as Unavailable that names the
address and the client's last complaint; a refused login is BadConfig. Clients complain through callbacks, which this
file keeps, so that nothing is printed. It must not know of records, nor of offsets (bounds.py).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    libversion,
)
from confluent_kafka.admin import AdminClient

from standfast.replication.fetch_limits import LIMITS
from standfast.replication.kafka.address import KafkaAddress, options_of
from standfast.replication.kafka.callbacks import Callbacks, Functions
from standfast.replication.kafka.clients import Askers, Clients
from standfast.replication.kafka.errors import (
    AUTHENTICATION,
    BROKEN,
    PASSING,
    PERMISSION,
    UNKNOWN_TOPIC,
    VAGUE,
    bad_setting,
    client_errors,
    denied,
    error_of,
    translated,
)
from standfast.replication.kafka.native_library import module_for
from standfast.replication.kafka.native_producer import NativeProducer
from standfast.replication.kafka.producer import ProducerClient, PythonProducer
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import CLUSTER, TOPIC, Need, lack
from standfast.replication.record_limits import CLIENT_BATCH_BYTES, TopicLimits
from standfast.store.clock import SystemClock
from standfast.store.errors import BadConfig, StandfastError, Unavailable, UnknownStore
from standfast.store.log import logger
from standfast.store.names import few, is_topic
from standfast.store.timestamps import duration_text

Key = TypeVar("Key")
Result = TypeVar("Result")

RETRY_MS = 20
FIRST_ANSWER_MS = 3_000  # wait for the admin client; then a new one asks
ANSWER_EXTRA_S = 5.0  # the client ends its requests by itself, but on a starved machine it may be late
GROWING_MS = 200
TROUBLED_MS = 30_000  # for so long after trouble a broker may answer that has not joined its cluster again
LIVE_S = 0.5
KNOWN_MS = 1_000  # how long a partition that was found counts as present
INTERNAL = "__"  # Kafka's own topics
QUEUE_SETTING = "queued.max.messages.kbytes"
NOT_SET = "OAuth token not set"  # in the error of a client whose `oauth_cb` did not return in time
NO_ANSWER = BROKEN | {KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}

# Measured: the default back-off of a full queue stalls a fast reader for a second at a time.
_CONSUMER = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    "fetch.queue.backoff.ms": "1",
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "100",
    QUEUE_SETTING: str(LIMITS.client_kib),
    "queued.min.messages": str(LIMITS.client_records),
    "fetch.max.bytes": "52428800",
    "max.partition.fetch.bytes": str(LIMITS.client_partition_bytes),
}
# Each write flushes, which sends the collected records at once. Measured: 1,000 records took 3 ms and a third of the
# processor time, instead of 10 ms when the client sent each record as soon as it got it.
LINGER_MS = 20
LAST_MS = 100  # for each call after the time of the last ones is over: brokers that answer do so within it
_PRODUCER = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": str(LINGER_MS),
    "queue.buffering.max.messages": "1000000",
    "message.max.bytes": str(64 << 20),  # the topic's own limit decides
}
# The broker ends a committed transaction in the background; until then the client repeats the next one's first request
# after `retry.backoff.ms`.
_COMMON = {
    "retry.backoff.ms": "2",
    # A new client delays its second connection, the one that it works with, by half of the first back-off. Measured:
    # a writer opens in 17 ms, with the default of 100 ms in 55.
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "1000",  # a broker that is back is found again within a second
    "enable.metrics.push": "false",
    "client.id": "standfast",
    "log_level": "2",  # at higher levels each refused connection is a line; our errors get the reason by callback
}
# An admin client must know leaders for longer than a request to them takes, see `KafkaAdmin.delete_records`.
_ADMIN = {"metadata.max.age.ms": "900000"}
# Measured with librdkafka 2.16: a transactional producer that re-bootstrapped, because no broker had answered for long,
# blocks in begin_transaction for ever; writers recreate their producers after a failure anyhow. Admin clients and
# consumers must re-bootstrap: with a broker list that has no live broker, they would never ask any broker again.
_NO_REBOOTSTRAP = {"metadata.recovery.strategy": "none"} if libversion()[1] >= 0x020A0000 else {}


class Cluster:
    """Factory of clients, and answers about topics and offsets. Several threads may use it."""

    def __init__(self, address: KafkaAddress, functions: Functions | None = None) -> None:
        """Connect. Raises BadConfig for refused settings or a refused login, Unavailable if no broker answers."""
        self._clients = Clients(self)
        # Weak: clients hold their callbacks, and must not hold their owner.
        noted = weakref.WeakMethod(self._note)
        self._callbacks = Callbacks(functions or {}, lambda error: None if (note := noted()) is None else note(error))
        self.where = str(KafkaAddress(address.servers))
        self._address = address
        self._timeout_ms = address.timeout_ms
        self._last_ms: int | None = None  # when all waits end, once the log is about to be closed
        self._options = {**_COMMON, **address.options}
        self._options |= {"bootstrap.servers": address.servers, **address.read_secrets()}
        self._transaction_ms = _whole(self._options.get("transaction.timeout.ms", "10000"), self.where)
        # The client refuses a socket timeout above the transaction timeout.
        self._options.setdefault("socket.timeout.ms", str(min(max(address.timeout_ms, 1_000), self._transaction_ms)))
        self._options.setdefault("socket.connection.setup.timeout.ms", str(max(address.timeout_ms, 1_000)))
        self._clock = SystemClock()  # for waits
        self.limits = _limits(self.producer_options())
        self._found_ms: dict[TopicPartition, int] = {}  # partitions that `check` found, with the time
        self._mutex = threading.Lock()
        self._logged_in = False
        self._complaint: KafkaError | None = None
        self._troubled_ms = -TROUBLED_MS  # when a client last complained, or a question had no answer
        self.admin: AdminClient = self._make(AdminClient, options_of(self._options) | _ADMIN)
        self.askers = Askers(self._asker, self.release)
        self._retired: list[tuple[int, AdminClient]] = []
        self._check_settings()
        self.reading("connecting", lambda left_s: self.admin.list_topics(topic=INTERNAL, timeout=left_s), renews=True)
        self._logged_in = True

    @property
    def timeout_ms(self) -> int:
        """The longest wait for an answer, for a call that begins now."""
        if self._last_ms is None:
            return self._timeout_ms
        return min(max(self._last_ms - self._clock.monotonic_ms(), LAST_MS), self._timeout_ms)

    @property
    def timeout_s(self) -> float:
        """`timeout_ms` in seconds."""
        return self.timeout_ms / 1_000

    def patience_s(self, wanted_s: float) -> float:
        """A wait of `wanted_s` seconds, which may be longer than that for an answer, but ends with the last calls."""
        return wanted_s if self._last_ms is None else min(wanted_s, self.timeout_s)

    def hasten(self) -> None:
        """Let all calls from now on share the time of one: brokers that hang keep a close for no longer."""
        if self._last_ms is None:
            self._last_ms = self._clock.monotonic_ms() + self._timeout_ms

    # -- clients ------------------------------------------------------------------------------------------------------

    def consumer(self, group: str | None = None, *, narrow: bool = False, **settings: str) -> Consumer:
        """A consumer that never joins a group; `settings` have _ for the dots."""
        return self._make(Consumer, self.consumer_options(group, narrow=narrow) | _dotted(settings))

    def consumer_options(self, group: str | None = None, *, narrow: bool = False) -> dict[str, str]:
        """Settings of such a consumer without callbacks. `narrow`: it fetches less ahead, unless the address says."""
        options = _CONSUMER | ({QUEUE_SETTING: str(LIMITS.narrow_client_kib)} if narrow else {})
        options |= options_of(self._options, consumer=True)
        if group is not None:
            options["group.id"] = group
        options.setdefault("group.id", "standfast")
        return options

    @property
    def callbacks(self) -> Callbacks:
        """The functions that this log's clients call."""
        return self._callbacks

    def keep(self, client: Result) -> Result:
        """Keep a client that was made elsewhere until `release`, or until this log is gone; returns it."""
        return self._clients.keep(client)

    def producer_options(self) -> dict[str, str]:
        """Settings of a producer without callbacks."""
        options = _PRODUCER | _NO_REBOOTSTRAP | options_of(self._options, producer=True)
        if "delivery.timeout.ms" not in options:
            options.setdefault("message.timeout.ms", str(min(self._timeout_ms, self._transaction_ms)))
        return options

    def producer(self, **settings: str) -> ProducerClient:
        """A producer; `settings` have _ for the dots."""
        options = self.producer_options() | _dotted(settings)
        module = module_for(self._callbacks.named())
        if module is None:
            return self._make(PythonProducer, options)
        return self._made(lambda: NativeProducer(module, options, self._callbacks))

    def transactional(self, transactional_id: str) -> ProducerClient:
        """A new transactional producer, which begins to connect."""
        return self.producer(transactional_id=transactional_id, transaction_timeout_ms=str(self.transaction_ms))

    def connected(self, producer: ProducerClient) -> ProducerClient:
        """The same producer, once it is connected. Raises Unavailable; the producer is released then.

        Measured: a producer without a connection asks for its id in vain, and again only after half a second. After
        two answers, in 60 ms, it has a connection.
        """
        with self.released_on_error(producer):
            for _ in range(2):
                self.reading("connecting", lambda left_s: producer.learn(INTERNAL, left_s))
        return producer

    def release(self, *clients: object) -> None:
        """Destroy clients made here that are not used any more; None and one that was released are fine."""
        for client in clients:
            self._clients.release(client)

    @contextmanager
    def released_on_error(self, client: Consumer | ProducerClient) -> Iterator[None]:
        """Release a client if the block raises."""
        try:
            yield
        except BaseException:
            self.release(client)
            raise

    def _make(self, kind: Callable[..., Result], options: Mapping[str, str]) -> Result:
        return self._made(lambda: kind({**options, **self._callbacks.settings(), "logger": logger}))

    def _made(self, make: Callable[[], Result]) -> Result:
        try:
            with client_errors():
                return self._clients.keep(make())
        except KafkaException as error:
            raise self._tokenless("connecting", error_of(error)) or bad_setting(error, self.where) from error

    def _asker(self, level: str) -> Consumer:
        return self.consumer(narrow=True, isolation_level=level)

    def _check_settings(self) -> None:
        # Without this, a setting that only one kind of client knows would be refused in the middle of the work.
        self.release(self.consumer())
        self.release(self.transactional("standfast"))

    @property
    def transaction_ms(self) -> int:
        """Transaction timeout in milliseconds: for so long a killed writer's transaction may hold readers back."""
        return self._transaction_ms

    def _note(self, error: KafkaError) -> None:
        with self._mutex:
            self._troubled_ms = self._clock.monotonic_ms()
            # A refused login is the cause, and later complaints (no broker reached) are only its consequences.
            # With tokens it passes by itself, so that a later complaint is the one that counts.
            last = self._complaint
            if last is None or last.code() not in AUTHENTICATION or self._callbacks.gives_tokens:
                self._complaint = error

    # -- waiting and errors -------------------------------------------------------------------------------------------

    def run(self, what: str, call: Callable[[], Result], *needs: Need) -> Result:
        """Call the client and raise its errors as the port's; `what` names the action, `needs` its permissions."""
        with self.translating(what, *needs):
            return call()

    @contextmanager
    def translating(self, what: str, *needs: Need) -> Iterator[None]:
        """Like `run`, for a block."""
        try:
            with client_errors():
                yield
        except KafkaException as error:
            raise self.translate(error, what, *needs) from error

    def patiently(
        self, what: str, call: Callable[[], Result], *needs: Need, passing: frozenset[int] = PASSING
    ) -> Result:
        """Like `run`, but repeat a call that a broker refuses while it takes over a partition or a group.

        `passing` are the errors after which it is repeated: those of `BROKEN`, too, only for a call that reads.
        """
        whole_ms = self.timeout_ms
        deadline_ms = self._clock.monotonic_ms() + whole_ms
        while True:
            try:
                with client_errors():
                    return call()
            except KafkaException as error:
                if not self._passes(error, passing, deadline_ms):
                    raise self.translate(error, what, *needs, waited_ms=whole_ms if passing >= BROKEN else 0) from error

    def reading(
        self,
        what: str,
        call: Callable[[float], Result],
        *needs: Need,
        renews: bool = False,
        passing: frozenset[int] = BROKEN,
    ) -> Result:
        """Like `run`, for a call that changes nothing: repeated while its connection breaks, or after other `passing`.

        `call` gets the time for its answer, in seconds. `renews`: it asks the admin client, and after a part of the
        time without an answer a new one: the old one may be stuck (see `answer`), or know of no broker any more.
        """
        began_ms = self._clock.monotonic_ms()
        whole_ms = self.timeout_ms  # once, because it shrinks while the log is about to be closed
        deadline_ms = began_ms + whole_ms
        first_ms = began_ms + min(FIRST_ANSWER_MS, whole_ms // 2)
        while True:
            asked = self.admin
            end_ms = first_ms if renews else deadline_ms
            try:
                with client_errors():
                    return call(max(end_ms - self._clock.monotonic_ms(), 1) / 1_000)
            except KafkaException as error:
                code, now_ms = error_of(error).code(), self._clock.monotonic_ms()
                if code in NO_ANSWER:
                    self._troubled_ms = now_ms
                silent = code == KafkaError._TIMED_OUT or (code in NO_ANSWER and now_ms >= first_ms)
                if renews and silent and now_ms < deadline_ms and not self._login_refused():
                    renews = False
                    if self.admin is asked:
                        self._renew()
                elif not self._passes(error, passing, deadline_ms):
                    raise self.translate(error, what, *needs, waited_ms=whole_ms) from error

    def answers(
        self, what: str, ask: Callable[[float], Mapping[Key, Future[Result]]]
    ) -> dict[Key, Result | KafkaException]:
        """The answers of the admin client to a request that changes nothing: a result or the brokers' refusal, by key.

        `ask` makes the request, with the time for its answer in seconds, and again as in `reading`. Raises Unavailable.
        """
        return self.reading(what, lambda left_s: self._outcomes(ask(left_s)), renews=True)

    def _outcomes(self, futures: Mapping[Key, Future[Result]]) -> dict[Key, Result | KafkaException]:
        """The result, or the refusal of the brokers, by key. Raises the client's error if they gave no answer."""
        found: dict[Key, Result | KafkaException] = {}
        for key, future in futures.items():
            try:
                answer = self.answer(future)
                found[key] = answer
            except KafkaException as error:
                if error_of(error).code() in NO_ANSWER:
                    raise
                found[key] = error
        return found

    def _passes(self, error: KafkaException, passing: frozenset[int], deadline_ms: int) -> bool:
        """Whether a call may be repeated after this error; if so, waits a moment."""
        if error_of(error).code() not in passing or self._clock.monotonic_ms() >= deadline_ms:
            return False
        if error_of(error).code() in NO_ANSWER and self._login_refused():
            return False
        self._clock.sleep_ms(RETRY_MS)
        return True

    def _login_refused(self) -> bool:
        """Whether brokers break the connections because they refuse the login: only another setting helps then."""
        self._hear()
        complaint = self._complaint
        refused = complaint is not None and complaint.code() in AUTHENTICATION
        return refused and not self._callbacks.gives_tokens

    def wait(self, what: str, future: Future[Result], *needs: Need) -> Result:
        """Wait for the result of a request under way; errors as in `run`."""
        return self.run(what, lambda: self.answer(future), *needs)

    def answer(self, future: Future[Result]) -> Result:
        """Like `wait`, with the client's own errors. A request that the client never ends counts as timed out, too.

        After a time-out a new client asks the next question: measured, a client that met a stalled broker may wait for
        its controller for ever.
        """
        try:
            with client_errors():
                return future.result(self.timeout_s + ANSWER_EXTRA_S)
        except TimeoutError as error:
            self._renew()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        except KafkaException as error:
            if error_of(error).code() == KafkaError._TIMED_OUT:
                self._renew()
            raise

    def _renew(self) -> None:
        made = self._make(AdminClient, options_of(self._options) | _ADMIN)
        now_ms = self._clock.monotonic_ms()
        with self._mutex:
            # Another thread may be in a call of the old one, and no call lasts for so long.
            last_ms = now_ms + self._timeout_ms + round(ANSWER_EXTRA_S * 1_000)
            retired = [*self._retired, (last_ms, self.admin)]
            self.admin = made
            self._retired = [one for one in retired if one[0] > now_ms]
        for last_ms, client in retired:
            if last_ms <= now_ms:
                self._clients.release(client)

    def translate(
        self, error: KafkaException | KafkaError, what: str, *needs: Need, waited_ms: int = 0
    ) -> StandfastError:
        """The port's error for the client's, with the client's last complaint if no broker answered.

        `needs` are the permissions that the call takes; the error names the missing ones. `waited_ms` is the time for
        which a call was repeated; 0: it was made once.
        """
        found = error_of(error)
        if (tokenless := self._tokenless(what, found)) is not None:
            return tokenless
        missing = self._missing(found, needs) if found.code() in PERMISSION else ()
        if missing:
            return denied(found, f"{self.where}: {what}", missing, self._address)
        if found.code() not in NO_ANSWER:
            return translated(error, f"{self.where}: {what}")
        self._hear()
        with self._mutex:
            complaint, self._complaint = self._complaint, None
        if complaint is not None and complaint.code() in AUTHENTICATION:
            return self._tokenless(what, complaint) or translated(complaint, f"{self.where}: {what}")
        said = f" ({complaint.str()})" if complaint is not None else ""
        return Unavailable(f"{self.where}: {what}: {self._silence(found, waited_ms)}{said}: try again")

    def _hear(self) -> None:
        """Run the callbacks that bring complaints. A client that cannot has none."""
        with suppress(KafkaException), client_errors():
            self.admin.poll(0)

    def _silence(self, error: KafkaError, waited_ms: int) -> str:
        """How a call got no answer."""
        code = error.code()
        if code == KafkaError._ALL_BROKERS_DOWN:
            return "no broker can be reached"
        if waited_ms or code == KafkaError._TIMED_OUT:
            broke = f", and its connections broke ({error.name()})" if code in BROKEN else ""
            return f"no answer within {duration_text(waited_ms or self._timeout_ms)}{broke}"
        return f"the connection broke before an answer, so the brokers may have done it or not ({error.name()})"

    def _tokenless(self, what: str, error: KafkaError) -> Unavailable | None:
        """The error of a client without a good token of the user's `oauth_cb`; None if that is not the reason.

        A refused login is a wrong setting, but not with tokens, once one was taken: it has expired, and the client has
        not got the next one yet.
        """
        refused = error.code() in AUTHENTICATION
        if not self._callbacks.gives_tokens or not (refused or error.code() in NO_ANSWER):
            return None
        why = self._callbacks.no_token
        if not why and refused and NOT_SET in error.str():
            why = f"oauth_cb gave no token ({error.str()})"
        if not why and refused and self._logged_in:
            why = f"the brokers refuse a token of oauth_cb, which may have expired ({error.str()})"
        if not why:
            return None
        return Unavailable(f"{self.where}: {what}: {why}: correct the function, or the service that it asks")

    def reason(
        self, producer: ProducerClient, error: KafkaException | KafkaError, *, transactional: bool
    ) -> KafkaError:
        """The reason why a producer gave up, if its error does not name one; else that error.

        Measured with librdkafka 2.16: one refused permission fails every record of a transaction as "purged", and a
        fatal error fails `produce` as "fatal". The reason comes by callback, or with the next step of a transaction;
        `begin` is the step that changes nothing if the broker allows it after all.
        """
        found = error_of(error)
        if found.code() not in VAGUE:
            return found
        try:
            producer.poll()
            if transactional:
                producer.begin()
        except KafkaException as why:
            if error_of(why).code() not in VAGUE:
                return error_of(why)
        return found

    # -- permissions --------------------------------------------------------------------------------------------------

    def lacking(self, needs: Iterable[Need]) -> list[str]:
        """The operations on topics that this user may not do, in sentences; skips topics that do not exist."""
        # Asked before any use: some permissions are needed for the first time in the worst moment, such as READ of a
        # changelog when another instance has failed.
        missing = self._refused(list(needs))
        return [f"{self.where}: {lack(need, self._address.principal, self._address.servers)}" for need in missing]

    def _missing(self, error: KafkaError, needs: Sequence[Need]) -> Sequence[Need]:
        """The missing ones of several permissions: the broker's error names only the kind of resource."""
        kind = PERMISSION[error.code()]
        asked = [need for need in needs if need.resource == kind]
        topics = [need for need in needs if need.resource == TOPIC]
        # Since Kafka 2.8 a user with WRITE on any topic needs no IDEMPOTENT_WRITE: WRITE on the topic is missing.
        candidates = topics if kind in (TOPIC, CLUSTER) else asked
        if kind == CLUSTER or len(candidates) > 1:
            try:
                return self._refused(candidates) or asked
            except (Unavailable, BadConfig):
                pass  # unknown then; the error names all of these
        return asked

    def _refused(self, needs: Sequence[Need]) -> list[Need]:
        # Topics only: librdkafka's admin calls for groups have ended the process before.
        allowed = self._allowed({need.name for need in needs if need.resource == TOPIC})
        return [need for need in needs if (found := allowed.get(need.name)) is not None and need.operation not in found]

    def _allowed(self, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Operations that this user may do, by topic; None if it does not exist, or the broker does not say."""
        wanted = sorted(filter(is_topic, set(names)))
        if not wanted:
            return {}
        answers = self.answers(
            "describing permissions",
            lambda left_s: self._describing(wanted, left_s, include_authorized_operations=True),
        )
        found: dict[str, frozenset[str] | None] = {}
        for name, answer in answers.items():
            if isinstance(answer, KafkaException):
                code = error_of(answer).code()
                if code not in UNKNOWN_TOPIC and code not in PERMISSION:
                    raise self.translate(answer, f"describing topic {name!r}") from answer
                found[name] = _NOT_IMPLYING if code in PERMISSION else None
                continue
            operations = answer.authorized_operations
            found[name] = None if operations is None else frozenset(one.name for one in operations)
        return found

    # -- topics -------------------------------------------------------------------------------------------------------

    def describe(self, names: Iterable[str], operation: str | Mapping[str, str] = "DESCRIBE") -> dict[str, Any | None]:
        """Topics by name; None for one that does not exist. `operation`: see `check`."""
        wanted = sorted(set(names), key=str)
        what = f"describing topics {few(map(repr, wanted))}"
        found: dict[str, Any | None] = dict.fromkeys(wanted)
        for name, answer in self.answers(what, partial(self.describe_later, wanted)).items():
            if not isinstance(answer, KafkaException):
                found[name] = answer
            elif error_of(answer).code() not in UNKNOWN_TOPIC:
                need = Need(TOPIC, name, operation if isinstance(operation, str) else operation[name])
                raise self.translate(answer, f"describing topic {name!r}", need) from answer
        return found

    def describe_later(self, names: Iterable[str], timeout_s: float | None = None) -> dict[str, Future[Any]]:
        """Like `describe`, without waiting: futures by name, of those names that a topic can have."""
        # Measured with librdkafka 2.16: a name that is no UTF-8 ends the process (SIGSEGV in `describe_topics`).
        asked = sorted(filter(is_topic, set(names)))
        if not asked:
            return {}
        return self._describing(asked, timeout_s or self.timeout_s)

    def _describing(self, topics: list[str], timeout_s: float, **options: Any) -> dict[str, Future[Any]]:
        """`describe_topics` of the admin client; each future fails at once while brokers answer without a live one.

        Just after a restart a broker knows of none, and librdkafka 2.16 takes such an answer for a result that it has
        not made: its assertion ends the process. So metadata are asked first for a while after any trouble.
        """
        if self.is_troubled:
            try:
                self.live_brokers(LIVE_S)
            except KafkaException:
                failed: Future[Any] = Future()
                failed.set_exception(KafkaException(KafkaError(KafkaError.BROKER_NOT_AVAILABLE)))
                return dict.fromkeys(topics, failed)
        with client_errors():
            found: dict[str, Future[Any]] = self.admin.describe_topics(
                TopicCollection(topics), request_timeout=timeout_s, **options
            )
        return found

    @property
    def is_troubled(self) -> bool:
        """Whether a client has complained, or a question had no answer, within the last TROUBLED_MS."""
        return self._clock.monotonic_ms() - self._troubled_ms < TROUBLED_MS

    def live_brokers(self, timeout_s: float) -> Iterable[int]:
        """Ids of the live brokers. Raises the client's error, also for an answer that names none."""
        with client_errors():
            found = self.admin.list_topics(topic=INTERNAL, timeout=timeout_s).brokers
        if not found:
            raise KafkaException(KafkaError(KafkaError.BROKER_NOT_AVAILABLE))
        return found

    def names(self) -> list[str]:
        """Names of all topics except Kafka's own."""
        found = self.reading("listing topics", lambda left_s: self.admin.list_topics(timeout=left_s), renews=True)
        return sorted(name for name in found.topics if not name.startswith(INTERNAL))

    def partitions(self) -> list[TopicPartition]:
        """All partitions of all topics except Kafka's own."""
        found = self.reading("listing topics", lambda left_s: self.admin.list_topics(timeout=left_s), renews=True)
        names = sorted(name for name in found.topics if not name.startswith(INTERNAL))
        return [TopicPartition(name, number) for name in names for number in sorted(found.topics[name].partitions)]

    def check(
        self, partitions: Iterable[TopicPartition], operation: str | Mapping[str, str] = "DESCRIBE"
    ) -> dict[str, Any]:
        """The topics of these partitions. Raises UnknownStore naming the topics that exist.

        A user who may not describe a topic lacks each permission that implies it: the error names `operation` (of each
        topic, if that is a mapping), which the caller needs there, so that one permission given is enough.
        """
        wanted = [TopicPartition(*source) for source in partitions]
        topics = {source.topic for source in wanted}
        described = self.describe(topics, operation)
        if any(number >= _count(described[topic]) for topic, number in wanted):
            # Brokers learn of an added partition one after the other, and this one may not know it yet.
            self._clock.sleep_ms(GROWING_MS)
            described = self.describe(topics, operation)
        found: dict[str, Any] = {}
        for topic, number in wanted:
            description = described[topic]
            if description is None:
                raise self.unknown(topic)
            if not 0 <= number < len(description.partitions):
                raise UnknownStore(
                    f"topic {topic!r} has no partition {number}, only 0 to {len(description.partitions) - 1}"
                )
            found[topic] = description
        self._found_ms.update(dict.fromkeys(wanted, self._clock.monotonic_ms()))
        return found

    def check_new(self, partitions: Iterable[TopicPartition], operation: str | Mapping[str, str] = "DESCRIBE") -> None:
        """`check` partitions that were not found within KNOWN_MS, by any part of this log."""
        least_ms = self._clock.monotonic_ms() - KNOWN_MS
        wanted = map(TopicPartition._make, partitions)
        unsure = [source for source in wanted if self._found_ms.get(source, -KNOWN_MS) <= least_ms]
        if unsure:
            self.check(unsure, operation)

    def check_unfound(self, partitions: Iterable[TopicPartition], operation: str = "DESCRIBE") -> None:
        """`check` partitions that were never found, or were forgotten since."""
        unfound = [source for source in partitions if source not in self._found_ms]
        if unfound:
            self.check(unfound, operation)

    def forget(self, topic: str) -> None:
        """Check this topic again before it is used: it may be gone."""
        for source in [one for one in self._found_ms.copy() if one.topic == topic]:
            self._found_ms.pop(source, None)

    def unknown(self, topic: str) -> UnknownStore:
        """The error for a topic that does not exist."""
        names = self.names()
        if not names:
            return UnknownStore(f"there is no topic {topic!r}, {self.where} has no topics yet: create it first")
        import difflib  # its modules are for errors alone

        near = difflib.get_close_matches(str(topic), names, 1)
        hint = f", did you mean {near[0]!r}?" if near else "."
        return UnknownStore(f"there is no topic {topic!r}{hint} {self.where} has: {few(names)}")


# A user that may not describe a topic has no operation that implies DESCRIBE; of these the broker says nothing.
_NOT_IMPLYING = frozenset({"CREATE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"})


def _limits(options: Mapping[str, str]) -> TopicLimits:
    """The limits of topics, beside a producer with these settings."""
    sizes = (options.get("batch.size", str(CLIENT_BATCH_BYTES)), options["message.max.bytes"])
    compression = options.get("compression.type", options.get("compression.codec", "none"))
    return TopicLimits(
        # One that is no number is refused by the client.
        batch_bytes=min((int(size) for size in sizes if size.isdecimal()), default=CLIENT_BATCH_BYTES),
        compresses=compression != "none",
    )


def _whole(text: str, where: str) -> int:
    if not text.isdecimal() or not int(text):
        raise BadConfig([f"{where}: transaction.timeout.ms is {text!r}: give whole milliseconds, 1000 or more"])
    return int(text)


def _count(description: Any | None) -> int:
    """Number of partitions; no limit for an absent topic, which `check` reports in another way."""
    return 1 << 31 if description is None else len(description.partitions)


def _dotted(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}
