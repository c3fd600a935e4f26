"""Errors of the Kafka client as errors of the port, grouped by the action that the caller must take.

    authentication, unknown setting, no permission  BadConfig        fix the settings, the permissions (ACLs)
    record too large, null key                      InvalidRequest   fix the record, the topic
    unknown topic or partition                      UnknownStore
    a newer producer of the transactional id, a     Fenced
    newer generation of the consumer group
    position outside of the log                     StateLost
    everything else: no answer, no leader, ...      Unavailable      retry

Each call of a client lies in a block that lets only the client's own exception out: `client_errors`, or one of the
calls of `Cluster` that use it and translate (`run`, `reading`, ...). The client raises others, too: measured with
confluent-kafka 2.16, a RuntimeError when a topic was deleted amid a question, or when a client was closed meanwhile.

Rules of this file: it maps errors, and does nothing else. Texts of the client hold no secrets (no name that it gets has
one), and no message contains a value of our own settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException

from standfast.replication.kafka.address import KafkaAddress, nearest_setting
from standfast.replication.permissions import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, Need, lack
from standfast.store.errors import BadConfig, Fenced, InvalidRequest, StandfastError, Unavailable, UnknownStore

_E = KafkaError
AUTHENTICATION = frozenset(
    {_E._AUTHENTICATION, _E.SASL_AUTHENTICATION_FAILED, _E.UNSUPPORTED_SASL_MECHANISM, _E.ILLEGAL_SASL_STATE, _E._SSL}
)
PERMISSION = {  # code -> the kind of resource that it refuses
    _E.TOPIC_AUTHORIZATION_FAILED: TOPIC,
    _E.GROUP_AUTHORIZATION_FAILED: GROUP,
    _E.CLUSTER_AUTHORIZATION_FAILED: CLUSTER,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TRANSACTIONAL_ID,
}
# The client gave up and reports the reason elsewhere (see Cluster.reason).
VAGUE = frozenset({_E._FATAL, _E._PURGE_QUEUE, _E._PURGE_INFLIGHT, _E._STATE})
UNKNOWN_TOPIC = frozenset(
    {
        *(_E.UNKNOWN_TOPIC_OR_PART, _E.UNKNOWN_TOPIC_ID, _E.INCONSISTENT_TOPIC_ID),
        *(_E._UNKNOWN_TOPIC, _E._UNKNOWN_PARTITION),
    }
)
FENCED = frozenset({_E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH, _E._FENCED})
# The consumer in the request is not a member of the group, or not in this generation: measured with Kafka 4, for the
# classic and the consumer protocol (a client gets STALE_MEMBER_EPOCH as ILLEGAL_GENERATION).
MEMBER_GONE = frozenset({_E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID, _E.FENCED_INSTANCE_ID, _E.STALE_MEMBER_EPOCH})
TOO_LARGE = frozenset({_E.MSG_SIZE_TOO_LARGE, _E.RECORD_LIST_TOO_LARGE})
REFUSED = frozenset(
    {
        *(_E.INVALID_CONFIG, _E.INVALID_PARTITIONS, _E.INVALID_REPLICATION_FACTOR, _E.POLICY_VIOLATION),
        *(_E.INVALID_REQUEST, _E.TOPIC_EXCEPTION, _E.OFFSET_OUT_OF_RANGE, _E.OFFSET_METADATA_TOO_LARGE),
        *(_E.TOPIC_DELETION_DISABLED, _E.INVALID_TIMESTAMP, _E.INVALID_TRANSACTION_TIMEOUT),
        *(_E._INVALID_ARG, _E.UNSUPPORTED_VERSION, _E.INVALID_GROUP_ID),
    }
)
# A broker that is taking over a partition or group, or does not know a new topic yet: the request is repeated.
PASSING = frozenset(
    {
        *(_E.NOT_LEADER_FOR_PARTITION, _E.LEADER_NOT_AVAILABLE, _E.UNKNOWN_LEADER_EPOCH, _E.FENCED_LEADER_EPOCH),
        *(_E.UNKNOWN_TOPIC_OR_PART, _E.UNKNOWN_TOPIC_ID, _E._UNKNOWN_PARTITION, _E.REPLICA_NOT_AVAILABLE),
        *(_E.COORDINATOR_LOAD_IN_PROGRESS, _E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR, _E.OFFSET_NOT_AVAILABLE),
    }
)
# The connection of a request ended before its answer, as brokers went away or came back. Whether a broker has carried
# the request out is not known, so only requests that change nothing are repeated.
BROKEN = frozenset(
    {
        *(_E._TRANSPORT, _E.NETWORK_EXCEPTION, _E.BROKER_NOT_AVAILABLE),
        getattr(_E, "_DESTROY_BROKER", -137),  # librdkafka before 2.12 has no such name, and _TRANSPORT instead
    }
)
# Exceptions that the client raises beside its own: it failed, or refuses an argument.
_FAILED, _ARGUMENT = (RuntimeError, SystemError), (ValueError, TypeError, OverflowError)
_NO_SETTING = re.compile(r'No such configuration property: "([^"]+)"')


class _ClientErrors:
    """See `client_errors`. A class, because it stands around each batch of records: it takes 0.1 us."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, _FAILED) and isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None  # callbacks ran while the client gave up, which wraps its error
        if isinstance(error, (*_FAILED, *_ARGUMENT)):
            code = _E._FAIL if isinstance(error, _FAILED) else _E._INVALID_ARG
            raise KafkaException(KafkaError(code, f"{type(error).__name__} in the client: {error}")) from error


_CLIENT_ERRORS = _ClientErrors()


def client_errors() -> _ClientErrors:
    """A block around calls of a client: each of its errors becomes KafkaException, the one kind that is translated."""
    return _CLIENT_ERRORS


def error_of(error: BaseException | KafkaError) -> KafkaError:
    """The client's error inside an exception; any other exception becomes `_FAIL` with its text."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


def translated(error: BaseException | KafkaError, what: str) -> StandfastError:
    """The port's error for one of the client; `what` names the action and the log."""
    found = error_of(error)
    code = found.code()
    text = f"{what}: {found.str()} ({found.name()})"
    if code in AUTHENTICATION:
        return BadConfig([f"{text}: check security.protocol, sasl.mechanism, the user and the secret's file"])
    if code in PERMISSION:
        return BadConfig([f"{text}: give this user permission on it (an ACL), or use one that has it"])
    if code in UNKNOWN_TOPIC:
        return UnknownStore(f"{text}: create the topic first")
    if code in FENCED:
        return Fenced(f"{text}: a newer writer was opened, nothing was written, give up the task")
    if code in MEMBER_GONE:
        return Fenced(
            f"{text}: the consumer group has moved on, and nothing was written: give up the task until the group "
            "assigns its partition again"
        )
    if code in TOO_LARGE:
        return InvalidRequest(
            f"{text}: a record is larger than the limit: raise max.message.bytes of the topic and message.max.bytes "
            "of the log address, or write smaller values"
        )
    if code == KafkaError.INVALID_RECORD:
        return InvalidRequest(f"{text}: a compacted topic takes no record without a key: give it a key")
    if code in REFUSED:
        return InvalidRequest(text)
    return Unavailable(f"{text}: try again")


def denied(error: KafkaError, what: str, needs: Iterable[Need], address: KafkaAddress) -> BadConfig:
    """A refused permission, with one problem for each missing permission of `needs`."""
    return BadConfig(
        [f"{what}: {lack(need, address.principal, address.servers)} ({error.name()})" for need in dict.fromkeys(needs)]
    )


def bad_setting(error: BaseException | KafkaError, where: str) -> BadConfig:
    """The error for settings that a client refuses, with the nearest known name for an unknown one."""
    found = error_of(error)
    unknown = _NO_SETTING.search(found.str())
    if unknown:
        return BadConfig([f"{where}: Kafka has no setting {unknown[1]!r}{nearest_setting(unknown[1])}"])
    return BadConfig([f"{where}: {found.str()}"])
