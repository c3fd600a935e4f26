"""The address of a Kafka log, and the settings that each kind of client gets from it.

    kafka://host:port,host:port?security.protocol=SASL_SSL&sasl.username=app&sasl.password.file=/run/secrets/kafka

    timeout.ms           ours: the longest wait for the answer to one request, in milliseconds (10,000)
    <secret>.file        a file whose text is the value of a secret setting, without its line end
    anything else        a setting of librdkafka, passed to the clients that know it

Rules of this file: pure except for reading secret files; it must not know the client library. A secret is never part of
an address, because addresses are printed, logged and seen in lists of processes: it comes from a file. Names in none
of these lists go to every client, since a newer librdkafka may know them; the client refuses unknown names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote

from standfast.store.errors import BadConfig
from standfast.store.names import printable

SCHEME = "kafka"
TIMEOUT = "timeout.ms"
TIMEOUT_DEFAULT_MS = 10_000
TIMEOUT_MIN_MS = 100
TIMEOUT_MAX_MS = 600_000
FILE = ".file"
EXAMPLE = "write kafka://host:9092 or kafka://host:9092,other:9092?security.protocol=SSL"

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

SECRETS = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)

# Settings on which the log itself depends: another value would break a promise of the port.
OURS = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "transactional.id", "enable.idempotence", "isolation.level"),
        *("auto.offset.reset", "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"),
        *("enable.partition.eof", "group.instance.id", "group.protocol", "allow.auto.create.topics", "acks"),
        *("request.required.acks", "delivery.report.only.error", "enable.gapless.guarantee", "queuing.strategy"),
    }
)

CONSUMER = frozenset(
    {
        *("auto.commit.enable", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "enable.auto.commit"),
        *("consume.callback.max.messages", "coordinator.query.interval.ms", "enable.auto.offset.store"),
        *("enable.partition.eof", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes"),
        *("fetch.min.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id", "group.instance.id"),
        *("group.protocol", "group.protocol.type", "group.remote.assignor", "heartbeat.interval.ms"),
        *("isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms", "offset.store.method"),
        *("partition.assignment.strategy", "queued.max.messages.kbytes", "queued.min.messages", "session.timeout.ms"),
    }
)

PRODUCER = frozenset(
    {
        *("acks", "batch.num.messages", "batch.size", "compression.codec", "compression.level", "compression.type"),
        *("delivery.report.only.error", "delivery.timeout.ms", "enable.gapless.guarantee", "enable.idempotence"),
        *("linger.ms", "message.send.max.retries", "message.timeout.ms", "partitioner", "queue.buffering.max.kbytes"),
        *("queue.buffering.backpressure.threshold", "queue.buffering.max.messages", "queue.buffering.max.ms"),
        *("queuing.strategy", "request.required.acks", "request.timeout.ms", "retries"),
        *("sticky.partitioning.linger.ms", "transaction.timeout.ms", "transactional.id"),
    }
)

COMMON = frozenset(
    {
        *("api.version.fallback.ms", "api.version.request", "api.version.request.timeout.ms", "broker.address.family"),
        *("broker.address.ttl", "broker.version.fallback", "builtin.features", "client.dns.lookup", "client.id"),
        *("client.rack", "connections.max.idle.ms", "debug", "enable.metrics.push", "enable.random.seed"),
        *("enable.sasl.oauthbearer.unsecure.jwt", "enable.ssl.certificate.verification", "https.ca.location"),
        *("https.ca.pem", "interceptors", "log.connection.close", "log.thread.name", "log_level", "max.in.flight"),
        *("max.in.flight.requests.per.connection", "message.copy.max.bytes", "message.max.bytes"),
        *("metadata.max.age.ms", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy"),
        *("plugin.library.paths", "receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
        *("retry.backoff.max.ms", "retry.backoff.ms", "sasl.kerberos.keytab", "sasl.kerberos.kinit.cmd"),
        *("sasl.kerberos.min.time.before.relogin", "sasl.kerberos.principal", "sasl.kerberos.service.name"),
        *("sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.assertion.algorithm", "sasl.username"),
        *("sasl.oauthbearer.assertion.claim.aud", "sasl.oauthbearer.assertion.claim.exp.seconds"),
        *("sasl.oauthbearer.assertion.claim.iss", "sasl.oauthbearer.assertion.claim.jti.include"),
        *("sasl.oauthbearer.assertion.claim.nbf.seconds", "sasl.oauthbearer.assertion.claim.sub"),
        *("sasl.oauthbearer.assertion.file", "sasl.oauthbearer.assertion.jwt.template.file"),
        *("sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.client.credentials.client.id"),
        *("sasl.oauthbearer.client.id", "sasl.oauthbearer.extensions", "sasl.oauthbearer.grant.type"),
        *("sasl.oauthbearer.metadata.authentication.type", "sasl.oauthbearer.method", "sasl.oauthbearer.scope"),
        *("sasl.oauthbearer.sub.claim.name", "sasl.oauthbearer.token.endpoint.url", "security.protocol"),
        *("socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails"),
        *("socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms"),
        *("ssl.ca.certificate.stores", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location"),
        *("ssl.certificate.pem", "ssl.cipher.suites", "ssl.crl.location", "ssl.curves.list"),
        *("ssl.endpoint.identification.algorithm", "ssl.engine.id", "ssl.engine.location", "ssl.key.location"),
        *("ssl.keystore.location", "ssl.providers", "ssl.sigalgs.list", "topic.blacklist"),
        *("topic.metadata.propagation.max.ms", "topic.metadata.refresh.fast.interval.ms"),
        *("topic.metadata.refresh.interval.ms", "topic.metadata.refresh.sparse"),
    }
)

_NAMED_BY_BROKER = frozenset({"GSSAPI", "OAUTHBEARER"})  # mechanisms whose principal is not sasl.username
_CERTIFICATE_FILES = ("ssl.certificate.location", "ssl.keystore.location")
_CERTIFICATES = (*_CERTIFICATE_FILES, "ssl.certificate.pem")
_OFFERED = sorted((COMMON | CONSUMER | PRODUCER) - OURS | {name + FILE for name in SECRETS} | {TIMEOUT})


@dataclass(frozen=True)
class KafkaAddress:
    """A parsed address. `options` are librdkafka's settings; secrets are still in their files."""

    servers: str
    timeout_ms: int = TIMEOUT_DEFAULT_MS
    options: Mapping[str, str] = field(default_factory=dict)
    secret_files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The address that opens the log again."""
        query = dict(self.options) | {name + FILE: path for name, path in self.secret_files.items()}
        if self.timeout_ms != TIMEOUT_DEFAULT_MS:
            query[TIMEOUT] = str(self.timeout_ms)
        text = "&".join(f"{name}={quote(value, safe='/,:')}" for name, value in sorted(query.items()))
        return f"{SCHEME}://{self.servers}" + (f"?{text}" if text else "")

    @property
    def principal(self) -> str:
        """The client's principal as ACLs name it: `User:name`, or a description where only the brokers know it."""
        protocol = self.options.get("security.protocol", "plaintext").upper()
        if protocol.startswith("SASL"):
            mechanism = self.options.get("sasl.mechanism", self.options.get("sasl.mechanisms", "GSSAPI")).upper()
            if mechanism not in _NAMED_BY_BROKER and self.options.get("sasl.username"):
                return f"User:{self.options['sasl.username']}"
            kerberos = self.options.get("sasl.kerberos.principal") if mechanism == "GSSAPI" else None
            return f"the client's principal (Kerberos {kerberos})" if kerberos else "the client's principal"
        # For a certificate, Kerberos and OAuth only the brokers know the principal, so the text says so.
        named = (name for name in _CERTIFICATES if name in self.options or name in self.secret_files)
        found = next(named, None) if protocol == "SSL" else None
        if found is None:
            return "User:ANONYMOUS"
        at = self.options[found] if found in _CERTIFICATE_FILES else found
        return f"the client's principal (the subject of its certificate, {at})"

    def read_secrets(self) -> dict[str, str]:
        """Values of the secret settings. Raises BadConfig naming every file that cannot be read; never a value."""
        found: dict[str, str] = {}
        problems = []
        for name, path in self.secret_files.items():
            try:
                found[name] = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError:
                problems.append(f"{name}{FILE}: {printable(path)} does not hold UTF-8 text")
            except OSError as error:
                problems.append(f"{name}{FILE}: {printable(path)} cannot be read: {error.strerror}")
        if problems:
            raise BadConfig(problems)
        return found


def parse_kafka_address(address: str) -> KafkaAddress:
    """Check an address without connecting or reading files. Raises BadConfig with every problem, never a secret."""
    servers, _, query = address.removeprefix(f"{SCHEME}://").partition("?")
    # With an @ the servers may contain a password, which no error may show.
    where = f"log address {SCHEME}://{'...' if '@' in servers else servers}"
    problems = []
    if "@" in servers:
        problems.append(f"{where}: the address takes no user or password: use sasl.username and sasl.password{FILE}")
    elif not servers:
        problems.append(f"{where} names no broker: {EXAMPLE}")
    else:
        problems += [
            f"{where}: {server!r} is not host:port: {EXAMPLE}"
            for server in servers.rstrip("/").split(",")
            if not (match := _SERVER.fullmatch(server)) or not 0 < int(match[2]) < 1 << 16
        ]
    options: dict[str, str] = {}
    files: dict[str, str] = {}
    timeout_ms = TIMEOUT_DEFAULT_MS
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == TIMEOUT:
            if value.isdecimal() and TIMEOUT_MIN_MS <= int(value) <= TIMEOUT_MAX_MS:
                timeout_ms = int(value)
            else:
                problems.append(f"{where}: {TIMEOUT} is {value!r}, use {TIMEOUT_MIN_MS} to {TIMEOUT_MAX_MS}")
        elif name in SECRETS:
            problems.append(
                f"{where}: {name} is a secret, and addresses are printed: put it into a file and write "
                f"{name}{FILE}=/path/of/it"
            )
        elif name.removesuffix(FILE) in SECRETS:
            files[name.removesuffix(FILE)] = value
        elif name in OURS:
            problems.append(f"{where}: {name} is set by standfast and cannot be changed: leave it out")
        else:
            options[name] = value
    if problems:
        raise BadConfig(problems)
    return KafkaAddress(servers.rstrip("/"), timeout_ms, options, files)


def options_of(options: Mapping[str, str], *, consumer: bool = False, producer: bool = False) -> dict[str, str]:
    """The settings that a client of this kind understands, and every setting that is in no list."""
    other = (frozenset() if consumer else CONSUMER) | (frozenset() if producer else PRODUCER)
    return {name: value for name, value in options.items() if name not in other}


def nearest_setting(name: str) -> str:
    """`, did you mean 'x'?` for the nearest known setting, or an empty text."""
    import difflib  # its modules are for errors alone

    near = difflib.get_close_matches(name, _OFFERED, 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else ""
