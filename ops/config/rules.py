"""Settings that must fit each other, and names of librdkafka's settings.

Rules of this file: pure but for the working directory; a rule is about two settings or more (or about one whose reader
lacks the facts), and names the setting to change with its origin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from standfast.ops.config.types import Config
from standfast.ops.shared.loopback import is_loopback
from standfast.replication.kafka.address import COMMON, CONSUMER, FILE, OURS, PRODUCER, SECRETS
from standfast.store.buffer.rows import KEY_MAX_BYTES

SOCKET_PATH_MAX = 107  # Linux: `sun_path` has 108 bytes, with the 0 at its end
RUN_FILES = ("LOCK", "INFO.json", "TOKEN")  # a socket of such a name would replace the file
_SAN = re.compile(r"(DNS|URI|IP):\S+")
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_OPEN_NAMES = {name.replace(".", "_"): name for name in COMMON | CONSUMER | PRODUCER}
_KAFKA_NAME = re.compile(r"[a-z0-9][a-z0-9._]{0,127}")


def kafka_name(name: str, folded: bool = False) -> str:
    """The name of a setting of [kafka]; a `folded` name has _ for dots, as in variables. Raises ValueError.

    The file of a secret may be spelled `sasl.password_file` or `sasl.password.file`.
    """
    if folded:
        # Known names first, since some of librdkafka's have an underscore of their own.
        secrets = {one.replace(".", "_") + "_file": one + FILE for one in SECRETS}
        plain = {one.replace(".", "_"): one for one in SECRETS}
        name = (_OPEN_NAMES | secrets | plain).get(name, name.replace("_", "."))
    for secret in SECRETS:
        if name in (f"{secret}_file", secret + FILE):
            return secret + FILE
    if name in SECRETS:
        raise ValueError(
            f"a settings file must not hold a secret: put it into a file of its own, and its path into {name}_file"
        )
    if name in OURS:
        raise ValueError("is set by standfast and cannot be changed (app.log names the brokers): leave it out")
    if not _KAFKA_NAME.fullmatch(name):
        raise ValueError("is not the name of a librdkafka setting")
    return name


def together(config: Config, origins: Mapping[str, str]) -> Iterator[str]:
    """Each problem of settings that do not fit each other, as a line with its origin."""
    for name, problem in (
        *_of_log(config),
        *_of_http(config),
        *_of_serve(config),
        *_of_limits(config),
        *_of_snapshots(config),
    ):
        where = origins.get(name, "default")
        yield f"{where}: {name}: {problem}"


Problems = Iterator[tuple[str, str]]


def _of_log(config: Config) -> Problems:
    log = config.app.log or ""
    if config.kafka and not log.startswith("kafka://"):
        yield f"kafka.{next(iter(config.kafka))}", "needs a log at kafka://: set app.log, or leave [kafka] out"


def _of_http(config: Config) -> Problems:
    http = config.http
    # allow_remote alone is not enough: control calls and tokens must not cross a network in plain text.
    if not is_loopback(http.host):
        if not http.allow_remote:
            yield "http.host", "is reachable from other machines: use 127.0.0.1, or set http.allow_remote = true"
        if http.tls_certificate is None:
            yield "http.host", "is reachable from other machines: set http.tls_certificate and http.tls_key_file"
        if config.auth.tokens_file is None:
            yield "http.host", "is reachable from other machines: set auth.tokens_file"
    if (http.tls_certificate is None) != (http.tls_key_file is None):
        given = "tls_certificate" if http.tls_key_file is None else "tls_key_file"
        yield f"http.{given}", "http.tls_certificate and http.tls_key_file go together: set both"
    if http.tls_key_password_file is not None and http.tls_key_file is None:
        yield "http.tls_key_password_file", "is the password of http.tls_key_file, which is not set"
    if http.client_ca is not None and http.tls_certificate is None:
        yield "http.client_ca", "mutual TLS needs http.tls_certificate and http.tls_key_file"
    # An authority signs many clients; without names each of them would be let in.
    if (http.client_ca is None) != (not http.client_names):
        given = "client_ca" if http.client_names == () else "client_names"
        yield (
            f"http.{given}",
            "http.client_ca and http.client_names go together: set both (clients are allowed by name)",
        )
    for name in http.client_names:
        if not _SAN.fullmatch(name):
            yield "http.client_names", f"{name!r} is not DNS:name, URI:address or IP:number"
    for origin in http.origins:
        if not _ORIGIN.fullmatch(origin):
            yield "http.origins", f"{origin!r} is not an origin such as https://ops.example:8443"


def _of_serve(config: Config) -> Problems:
    serve = config.serve
    # The mode of the state directory stays 0700, since its files hold every row.
    if serve.group is not None and _below_state(config):
        yield (
            "serve.group",
            "its users cannot enter the run directory inside the private state directory: set serve.run_dir",
        )
    if serve.socket in RUN_FILES:
        yield "serve.socket", f"{serve.socket} is the name of another file of the run directory: choose another name"
    # A default below a long state directory is the server's concern alone: commands about an instance need no socket.
    if serve.run_dir is not None and (problem := socket_problem(config)) is not None:
        yield "serve.run_dir", problem


def socket_problem(config: Config) -> str | None:
    """Why no socket can lie in the run directory, if so."""
    if config.run_dir is None:
        return None
    length = len(os.fsencode(config.run_dir.absolute() / config.serve.socket))
    if length <= SOCKET_PATH_MAX:
        return None
    return f"the path of the socket has {length} bytes, {SOCKET_PATH_MAX} at most: set a shorter one"


def _of_snapshots(config: Config) -> Problems:
    given = config.snapshots
    # A schedule without a storage would make nothing, without a word.
    for name, value in (("every", given.every_ms), ("every_records", given.every_records)):
        if value is not None and given.to is None:
            yield f"snapshots.{name}", "needs a storage: set snapshots.to"


def _below_state(config: Config) -> bool:
    """Whether the run directory lies within the application's directory, which has mode 0700."""
    app, run_dir = config.app, config.run_dir
    if app.state_dir is None or app.name is None or run_dir is None:
        return False
    return run_dir.absolute().is_relative_to((app.state_dir / app.name).absolute())


def _of_limits(config: Config) -> Problems:
    limits, value_max = config.limits, config.store.value_max_bytes
    # A key or value above these could never be written, by any client.
    if limits.key_max_bytes > KEY_MAX_BYTES:
        yield "limits.key_max", f"{limits.key_max_bytes} bytes are more than a store takes: {KEY_MAX_BYTES} at most"
    for name, number, upper_name, upper in (
        ("limits.key_max", limits.key_max_bytes, "limits.command_max", limits.command_max_bytes),
        ("store.value_max", value_max, "limits.command_max", limits.command_max_bytes),
        ("store.value_max", value_max, "limits.uncommitted_max", limits.uncommitted_max_bytes),
    ):
        if number > upper:
            yield name, f"{number} bytes are more than {upper_name} allows ({upper}): lower it, or raise {upper_name}"
