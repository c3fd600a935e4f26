"""Every setting, typed, in one place: its name, its default, its reader, its purpose.

    section.key of the file   =   a section below, and a field of it without its unit: `lease_ms` is written `lease`
    [stores.NAME]                 one store of the sidecar; bytes to bytes, the servers do not look into them
    [kafka]                       any setting of librdkafka, for a log at kafka://; secrets only as `NAME_file`

Rules of this file: plain frozen data. A setting is `shown` (its value may be printed) or `hidden`: a field that is
neither cannot be written, so a secret is never printed by forgetting. Secrets are in files; only paths stand here.
Sizes in bytes, times in milliseconds; None where nothing was set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from standfast.ops.config.values import (
    DURATION,
    GROUP,
    PATH,
    SIZE,
    SWITCH,
    TEXT,
    ValueReader,
    at_least,
    list_of,
    mapping_of_text,
    named,
    number,
    one_of,
    or_auto,
    or_off,
)
from standfast.replication.kafka.address import FILE, KafkaAddress
from standfast.replication.tail.open_log import parse_address
from standfast.restore.snapshot.address import parse_storage
from standfast.restore.snapshot.policy import GRACE_DEFAULT_MS, KEEP_DEFAULT, SnapshotPolicy
from standfast.store import serde
from standfast.store.errors import BadConfig
from standfast.store.specs import SPECS, TRAITS, StoreSpec

Guarantee = Literal["exactly_once", "at_least_once"]
SOCKET_NAME = "resp.sock"
INFO_NAME = "INFO.json"


def shown(default: Any, reader: ValueReader, text: str) -> Any:
    """A setting whose value may be printed."""
    return field(default=default, metadata={"reader": reader, "text": text, "shown": True})


def hidden(default: Any, reader: ValueReader, text: str) -> Any:
    """A setting whose value is never printed."""
    return field(default=default, metadata={"reader": reader, "text": text, "shown": False})


def _log_address(value: Any) -> str:
    # Before the check below, whose error repeats the address: user and password must not come into a message.
    if isinstance(value, str) and value.partition("://")[0] not in ("sqlite", "kafka") and "@" in value:
        raise ValueError("expected sqlite:///PATH or kafka://HOST:PORT, without user and password")
    parse_address(value)
    return str(value)


def _storage_address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a folder or an address, in quotes")
    parse_storage(value)
    return value


_INTERVAL = at_least(DURATION, "1ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSection:
    """[app]: the application, its log, and the folder of its state."""

    name: str | None = shown(None, named("application"), "name of the application; begins the names of its changelogs")
    log: str | None = hidden(
        None, ValueReader(_log_address, {"type": "string"}), "address of the log: sqlite:/// or kafka://"
    )
    state_dir: Path | None = shown(None, PATH, "folder of the stores' files")
    guarantee: Guarantee = shown(
        "exactly_once", one_of("exactly_once", "at_least_once"), "whether records may be processed again after a crash"
    )
    standby_replicas: int = shown(0, number(0), "standbys of each task")
    partitions: int | None = shown(
        None, number(1), "number of tasks; left out: as many as the changelogs have partitions"
    )
    commit_interval_ms: int | None = shown(
        None,
        or_auto(_INTERVAL),
        "time between the commits of an application's tasks; auto: 1s at least once, 100ms and more exactly once",
    )
    gate: Literal["all", "task"] = shown(
        "all", one_of("all", "task"), "process when all tasks are restored, or each task on its own"
    )
    # "off" and not a missing value, because TOML has no null.
    discovery_interval_ms: int | None = shown(
        60_000, or_off(_INTERVAL), "time between two checks for new source partitions"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSection:
    """[store]: memory of all stores together."""

    memory_bytes: int = shown(256 << 20, at_least(SIZE, "1MiB"), "memory of block cache and write buffers")
    cache_bytes: int = shown(10 << 20, SIZE, "record caches of all tasks; 0: every put is logged")
    # Below the 1,048,588 bytes of a batch that a Kafka broker takes by default.
    value_max_bytes: int = shown(1_000_000, at_least(SIZE, "1B"), "largest size of a value")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSection:
    """[group]: how the members of an application watch each other."""

    # Short because a process renews the lease: RocksDB replaying a WAL holds the interpreter, and every thread in it.
    lease_ms: int = shown(1_500, at_least(DURATION, "100ms"), "how long a member may be silent")
    # The process that renews would go on for an owner that hangs, and no standby would take over.
    max_stall_ms: int = shown(
        30_000, at_least(DURATION, "100ms"), "after this time without progress a member stops renewing its lease"
    )
    max_tasks: int | None = shown(
        None, number(1), "active tasks that an instance of an application may run; left out: no bound"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsSection:
    """[ops]: the small read-only HTTP server of an instance that is a library in an application's process."""

    host: str = shown("127.0.0.1", TEXT, "address of the server")
    metrics_port: int | None = shown(None, number(0, 65_535), "port of the server; 0 takes a free one")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSection:
    """[state]: the disk, and restores."""

    # Writes end before the disk is full, so that deletes, commits and flushes, which make room, can go on.
    disk_floor_bytes: int = shown(256 << 20, SIZE, "below this free space the sidecar is not ready and refuses writes")
    restore_workers: int | None = shown(
        None, number(0, 64), "threads of a bulk restore; left out: one per core, at most 4"
    )
    # Much memory makes few files (500,000 rows of 112 bytes make two), and compacting many costs as much as folding.
    restore_memory_bytes: int = shown(
        512 << 20, at_least(SIZE, "16MiB"), "memory for rows in all threads of a bulk restore"
    )
    # Below a million records, batches are faster than workers on two cores.
    bulk_restore_records: int | None = shown(
        None, number(1), "number of records from which a cold store is restored in bulk"
    )
    # Consent to data loss, which nothing else may give: rows beside an empty log may be the last copy, and below the
    # head of a compacted log records are missing because a person removed them.
    accept_empty_log: bool = shown(False, SWITCH, "the operator's consent to lose rows beside an empty log")
    accept_missing_history: bool = shown(False, SWITCH, "the operator's consent to restore from a log without its head")
    accept_unreadable_rows: bool = shown(
        False, SWITCH, "the operator's consent to lose damaged rows of a store without a changelog"
    )
    accept_foreign_offsets: bool = shown(
        False,
        SWITCH,
        "the operator's consent to go on from offsets that another client of the group committed; a sidecar, whose "
        "client reads by a consumer of the group, follows them",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsSection:
    """[snapshots]: copies of tasks in a folder or in object storage, as SnapshotPolicy has them."""

    # Hidden, though credentials are refused in it: an address that is refused may hold some.
    to: str | None = hidden(
        None,
        ValueReader(_storage_address, {"type": "string"}),
        "a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX; left out: no snapshots",
    )
    every_ms: int | None = shown(None, or_off(_INTERVAL), "time between two snapshots of a task; off: time makes none")
    every_records: int | None = shown(
        None, number(1), "records and source offsets by which a task moves on between two snapshots"
    )
    keep: int = shown(KEEP_DEFAULT, number(1), "newest snapshots of each task that stay")
    keep_for_ms: int | None = shown(None, or_off(DURATION), "time for which older ones stay, too")
    grace_ms: int = shown(
        GRACE_DEFAULT_MS, at_least(DURATION, "1s"), "time for which files of an unfinished upload stay"
    )
    upload_rate_bytes: int | None = shown(
        None, or_off(at_least(SIZE, "1B")), "most bytes a second that uploads send on average"
    )
    restore: bool = shown(True, SWITCH, "whether a task without local state begins with its newest snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSection:
    """[serve]: the sidecar's process and its RESP server."""

    run_dir: Path | None = shown(None, PATH, "folder of sockets, lock and info file; left out: STATE_DIR/APP/run")
    socket: str = shown(SOCKET_NAME, named("socket"), "socket file of the RESP server in the run folder")
    # The default run directory lies below the application's, of mode 0700, which the group cannot enter.
    group: str | None = shown(None, GROUP, "group that may use the socket (mode 0660); needs its own run_dir")
    uids: tuple[int, ...] = shown(
        (),
        list_of(number(0, (1 << 32) - 2)),
        "users that may connect besides root and the sidecar's own; empty: the group",
    )
    lease_ms: int = shown(
        10_000, at_least(DURATION, "100ms"), "how long the application may be silent before its tasks close"
    )
    # One deadline for all steps: several that overlap add up to no bound at all.
    drain_timeout_ms: int = shown(20_000, _INTERVAL, "one deadline for all steps of an orderly stop")
    workers: int = shown(1, number(1, 64), "processes for restores and standbys")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSection:
    """[http]: control, health, metrics and the page."""

    host: str = shown("127.0.0.1", TEXT, "address; beyond loopback only with allow_remote, TLS and tokens")
    port: int = shown(0, number(0, 65_535), "port; 0 takes a free one, which the info file names")
    allow_remote: bool = shown(False, SWITCH, "whether host may be reachable from other machines")
    tls_certificate: Path | None = shown(None, PATH, "certificate of the server and its chain, PEM")
    tls_key_file: Path | None = shown(None, PATH, "private key of the certificate, PEM")
    # Secrets by file only: values of settings reach logs, process lists and `config show`.
    tls_key_password_file: Path | None = shown(None, PATH, "password of the private key")
    client_ca: Path | None = shown(None, PATH, "authorities of clients' certificates, PEM: turns mutual TLS on")
    client_names: tuple[str, ...] = shown(
        (), list_of(TEXT), "clients that may connect, as DNS:name, URI:address or IP:number of the SAN"
    )
    origins: tuple[str, ...] = shown((), list_of(TEXT), "other origins whose pages may make changes, https://host:port")
    page: bool = shown(True, SWITCH, "whether the ops page is served")
    allow_quit: bool = shown(False, SWITCH, "whether POST /quitquitquit drains as POST /v1/drain does")
    # Off, because no other page, log line or metric shows a key or a value.
    peek: bool = shown(False, SWITCH, "whether the page may show the newest records of a changelog, keys and values")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection:
    """[limits]: bounds for everything that a client can make the sidecar hold or wait for."""

    connections: int = shown(1_000, number(1, 100_000), "connections of the RESP server")
    # Not for connections that took part in their task's session: a quiet topic must end no application.
    idle_timeout_ms: int = shown(
        300_000, at_least(DURATION, "1s"), "a connection idle for so long is closed, unless it writes"
    )
    command_timeout_ms: int = shown(10_000, at_least(DURATION, "100ms"), "time for one command to arrive whole")
    key_max_bytes: int = shown(64 << 10, at_least(SIZE, "1B"), "the largest key; with its 16 bytes of times")
    # Checked at the headers, since hiredis makes room for their numbers: 12 bytes reserved 0.8 GB.
    command_max_bytes: int = shown(8 << 20, at_least(SIZE, "1KiB"), "one command with all its arguments")
    batch_ops: int = shown(10_000, number(1, 1 << 20), "commands of one MULTI, or keys of one command")
    batch_max_bytes: int = shown(16 << 20, at_least(SIZE, "1KiB"), "bytes of all commands of one MULTI")
    reply_max_bytes: int = shown(
        32 << 20, at_least(SIZE, "1KiB"), "unread replies of one client; more closes its connection"
    )
    # Twenty clients that read nothing took 1.1 GB, and forty with open MULTIs 736 MB, each within its own limit.
    replies_max_bytes: int = shown(
        256 << 20,
        at_least(SIZE, "64KiB"),
        "MULTIs, requests and unread replies of all clients; beyond, MULTIs are refused and the most unread is closed",
    )
    uncommitted_max_bytes: int = shown(
        64 << 20, at_least(SIZE, "64KiB"), "writes of one task that are not committed yet"
    )
    http_connections: int = shown(64, number(1, 10_000), "connections of the HTTP server")
    http_head_max_bytes: int = shown(32 << 10, at_least(SIZE, "1KiB"), "request line and headers")
    http_body_max_bytes: int = shown(1 << 20, at_least(SIZE, "1KiB"), "body of a request")
    http_timeout_ms: int = shown(10_000, at_least(DURATION, "100ms"), "time for one request to arrive whole")
    wait_max_ms: int = shown(60_000, at_least(DURATION, "1ms"), "longest wait that a client may ask for")
    event_streams: int = shown(16, number(1, 1_000), "event streams that are open at a time")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSection:
    """[auth]: permissions of clients, where a socket's mode does not settle them."""

    tokens_file: Path | None = shown(None, PATH, "tokens with their roles, mode 0600; left out: clients need no token")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSection:
    """[logging]: lines on stderr."""

    level: Literal["debug", "info", "warning", "error"] = shown(
        "info", one_of("debug", "info", "warning", "error"), "least severe lines that are logged; read again at SIGHUP"
    )
    format: Literal["text", "json"] = shown("text", one_of("text", "json"), "lines for people or for programs")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """[stores.NAME]: one store. Its kind decides which of the times it needs."""

    kind: str = shown("keyvalue", one_of(*TRAITS), "keyvalue, window, ...")
    timestamped: bool | None = shown(None, SWITCH, "whether each value carries a timestamp; left out: as the kind does")
    engine: Literal["rocksdb", "memory"] = shown(
        "rocksdb", one_of("rocksdb", "memory"), "where the store keeps its rows"
    )
    caching: bool | None = shown(None, SWITCH, "whether puts of one key are joined before they are logged")
    logging: bool = shown(True, SWITCH, "whether the store has a changelog; without it a lost disk is a lost store")
    source_topic: str | None = shown(None, TEXT, "keyvalue: a topic that serves as the changelog")
    window_size_ms: int | None = shown(None, _INTERVAL, "window: length of a window")
    retention_ms: int | None = shown(None, _INTERVAL, "window, session: how long rows are kept")
    retain_duplicates: bool | None = shown(None, SWITCH, "window: whether rows of one key and window are all kept")
    history_retention_ms: int | None = shown(None, DURATION, "versioned: how long old versions are kept")
    changelog: Mapping[str, str] | None = shown(None, mapping_of_text(), "settings of the changelog's topic")

    def spec(self, name: str) -> StoreSpec:
        """The definition of a store of this name. Raises BadConfig with every problem, InvalidRequest for the name."""
        own = {one.name: one.needed for one in TRAITS[self.kind].settings}
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "kind"}
        chosen = {key: value for key, value in given.items() if value is not None}
        problems = [
            f"{setting_name(key)} does not go with kind {self.kind}: leave it out"
            for key in sorted(chosen.keys() & _OF_SOME_KINDS - own.keys())
        ]
        problems += [
            f"kind {self.kind} needs {setting_name(key)}" for key, needed in own.items() if needed and key not in chosen
        ]
        if problems:
            raise BadConfig(problems)
        return SPECS[self.kind](name, serde.bytes, serde.bytes, **chosen)


_OF_SOME_KINDS = {one.name for traits in TRAITS.values() for one in traits.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. `kafka` holds librdkafka's settings by name; `NAME.file` is the file of a secret."""

    app: AppSection = field(default_factory=AppSection)
    store: StoreSection = field(default_factory=StoreSection)
    group: GroupSection = field(default_factory=GroupSection)
    ops: OpsSection = field(default_factory=OpsSection)
    state: StateSection = field(default_factory=StateSection)
    snapshots: SnapshotsSection = field(default_factory=SnapshotsSection)
    serve: ServeSection = field(default_factory=ServeSection)
    http: HttpSection = field(default_factory=HttpSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    auth: AuthSection = field(default_factory=AuthSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
    stores: tuple[StoreSpec, ...] = ()
    kafka: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_address(self) -> str | None:
        """The address that opens the log: app.log with the settings of [kafka]."""
        if self.app.log is None or not self.kafka:
            return self.app.log
        where = parse_address(self.app.log)
        assert isinstance(where, KafkaAddress), "checked when it was read"
        files = {name.removesuffix(FILE): path for name, path in self.kafka.items() if name.endswith(FILE)}
        options = {name: value for name, value in self.kafka.items() if not name.endswith(FILE)}
        return str(replace(where, options={**where.options, **options}, secret_files={**where.secret_files, **files}))

    @property
    def snapshot_policy(self) -> SnapshotPolicy | None:
        """The policy of [snapshots]; None without an address."""
        given = self.snapshots
        if given.to is None:
            return None
        return SnapshotPolicy(
            to=given.to,
            every_ms=given.every_ms,
            every_records=given.every_records,
            keep=given.keep,
            keep_ms=given.keep_for_ms,
            grace_ms=given.grace_ms,
            bytes_per_s=given.upload_rate_bytes,
            restore=given.restore,
        )

    @property
    def run_dir(self) -> Path | None:
        """The folder of sockets, lock and info file; None without a state directory or a name."""
        if self.serve.run_dir is not None or self.app.state_dir is None or self.app.name is None:
            return self.serve.run_dir
        return self.app.state_dir / self.app.name / "run"

    @property
    def tls(self) -> bool:
        """Whether the HTTP server speaks TLS."""
        return self.http.tls_certificate is not None


SECTIONS: dict[str, Any] = {
    "app": AppSection,
    "store": StoreSection,
    "group": GroupSection,
    "ops": OpsSection,
    "state": StateSection,
    "snapshots": SnapshotsSection,
    "serve": ServeSection,
    "http": HttpSection,
    "limits": LimitsSection,
    "auth": AuthSection,
    "logging": LoggingSection,
}


def setting_name(field_name: str) -> str:
    """`lease_ms` is written `lease` in the file: the value says its unit."""
    return field_name.removesuffix("_ms").removesuffix("_bytes")


def settings_of(section: Any) -> dict[str, Field[Any]]:
    """The settings of a section, by name in the file."""
    return {setting_name(one.name): one for one in fields(section)}
