"""Opening a log by its address.

    sqlite:///relative/path?synchronous=normal      sqlite:////absolute/path
    kafka://host:9092,other:9092?security.protocol=SSL      see replication/kafka/address.py

Rules of this file: the only place that maps a scheme to an implementation. It must import only the implementation of
the given address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from standfast.replication.kafka.address import KafkaAddress, parse_kafka_address
from standfast.replication.kafka.callbacks import functions_of, with_settings
from standfast.replication.log import Log
from standfast.store.arguments import checked_call
from standfast.store.clock import Clock
from standfast.store.disk import LOG, STATE, DiskGuard
from standfast.store.errors import BadConfig
from standfast.store.names import few
from standfast.store.outside import Implementations

_SQLITE = "sqlite"
_KAFKA = "kafka"
_SCHEMES = (_SQLITE, _KAFKA)
_OPTIONS = {"synchronous": ("full", "normal")}
_EXAMPLE = "write sqlite:///./log (relative), sqlite:////var/lib/app/log (absolute) or kafka://host:9092"


class SqliteAddress(NamedTuple):
    """A parsed address of the embedded log."""

    path: str
    synchronous: str = "full"


class OtherAddress(NamedTuple):
    """A parsed address of one of `OTHERS`."""

    scheme: str
    log: Any  # the result of the scheme's `parse`


class Scheme(NamedTuple):
    """A kind of logs beside the two of this library."""

    parse: Callable[[str], Any]  # raises BadConfig for an unusable address, and opens nothing
    open: Callable[[Any, Clock | None], Log]  # takes the result of `parse`
    # The address, as of Kafka, that consumers of an application's own use; None: they cannot read such a log.
    consumers_at: Callable[[Any], str] | None = None


OTHERS: Final = Implementations[Scheme](*_SCHEMES)


def parse_address(address: str) -> SqliteAddress | KafkaAddress | OtherAddress:
    """Check an address without opening anything. Raises BadConfig with every problem."""
    if not isinstance(address, str):
        raise BadConfig([f"log address {address!r} is not text: {_EXAMPLE}"])
    scheme, separator, rest = address.partition("://")
    if not separator:
        raise BadConfig([f"log address {address!r} has no scheme: {_EXAMPLE}"])
    if scheme == _KAFKA:
        return parse_kafka_address(address)
    if scheme in OTHERS:
        return OtherAddress(scheme, OTHERS[scheme].parse(address))
    if scheme != _SQLITE:
        raise BadConfig([f"log address {address!r}: unknown scheme {scheme!r}{_nearest(scheme, _SCHEMES)}: {_EXAMPLE}"])
    location, _, query = rest.partition("?")
    problems: list[str] = []
    path = unquote(location[1:])  # the third slash separates, a fourth one begins an absolute path
    if not location.startswith("/"):
        problems.append(f"log address {address!r} needs three slashes, or four for an absolute path: {_EXAMPLE}")
    elif not path or path == ":memory:" or "\0" in path:
        problems.append(f"log address {address!r} names no file, and processes share the log by its file: {_EXAMPLE}")
    options: dict[str, str] = {}
    # Blank values are kept, so that an option without a value is an error and not ignored.
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            problems.append(f"log address {address!r}: unknown option {name!r}{_nearest(name, tuple(_OPTIONS))}")
        elif value not in _OPTIONS[name]:
            problems.append(f"log address {address!r}: option {name} is {value!r}, use {' or '.join(_OPTIONS[name])}")
        else:
            options[name] = value
    if problems:
        raise BadConfig(problems)
    return SqliteAddress(path, **options)


def log_folder(address: str) -> Path | None:
    """The folder of an embedded log; None for a log on other machines. Raises BadConfig."""
    where = parse_address(address)
    return Path(where.path).absolute().parent if isinstance(where, SqliteAddress) else None


def consumers_at(address: str) -> str | None:
    """The `kafka://` address that consumers of an application's own use; None: they cannot read this log."""
    where = parse_address(address)
    if isinstance(where, OtherAddress):
        found = OTHERS[where.scheme].consumers_at
        return None if found is None else found(where.log)
    return address if isinstance(where, KafkaAddress) else None


@checked_call(BadConfig)
def open_log(
    address: str,
    *,
    clock: Clock | None = None,
    patient: bool = True,
    create: bool = True,
    kafka: Mapping[str, Any] | None = None,
) -> Log:
    """Open the log at this address and create an absent embedded log. `patient`, `create`: see EmbeddedLog.

    `kafka`: settings of the Kafka clients beside those of the address, functions among them.
    Raises BadConfig for a bad address or setting, Unavailable if no broker answers.
    """
    where = parse_address(with_settings(address, kafka))
    if isinstance(where, KafkaAddress):
        # Imported here: an application on the embedded log must not load librdkafka, nor one on Kafka SQLite.
        from standfast.replication.kafka.log import KafkaLog

        return KafkaLog(where, clock=clock, functions=functions_of(kafka))
    if isinstance(where, OtherAddress):
        return OTHERS[where.scheme].open(where.log, clock)
    from standfast.replication.embedded.log import EmbeddedLog

    return EmbeddedLog(where.path, synchronous=where.synchronous, clock=clock, patient=patient, create=create)


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib  # its modules are for errors alone

    near = difflib.get_close_matches(name, known, 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else f", known are {few(known)}"


def disk_guard(state_path: Path, log: str | None, floor_bytes: int) -> DiskGuard:
    """A guard of the state directory, and of the log's folder where it is on this machine."""
    folder = None if log is None else log_folder(log)
    places = {STATE: state_path, **({} if folder is None else {LOG: folder})}
    return DiskGuard(places, floor_bytes)
