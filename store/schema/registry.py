"""A schema registry: its address, settings and client, which several serdes may share.

    Registry("http://host:8081")                                       no login
    Registry("https://host", {"basic.auth.user.info": "user:secret"})  the Kafka client's own settings

Rules of this file: it is imported without the extra `schema`, and loads the client when the first serde is declared.
Every request has a bound. Neither an error nor a `repr` contains a setting's value: the address is shown without the
user and the secret in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from standfast.store.arguments import checked
from standfast.store.errors import BadConfig, Closed, StandfastError

if TYPE_CHECKING:
    from standfast.store.schema.client import RegistryClient

Made = TypeVar("Made")

TIMEOUT_MS = 10_000
TIMEOUT_MAX_MS = 600_000
ATTEMPTS = 2  # of a request that got no answer, or that a registry could not serve just now
LATEST_TTL_S = 300  # how long the latest version of a subject counts as such
USER_INFO = "basic.auth.user.info"
EXAMPLE = "write http://host:8081, or several addresses with commas between them"
INSTALL = 'pip install "standfast[schema]"'


@checked(BadConfig)
class Registry:
    """A schema registry. Serdes that share one ask it once for each schema. Any thread may use it.

    url         `http://host:8081`, or several addresses of one registry, with commas between them
    settings    settings of the Kafka client's SchemaRegistryClient, such as {"basic.auth.user.info": "user:secret"}
    timeout_ms  milliseconds that a request may take, its repetition included, for each address

    It connects when a serde needs a schema. Raises BadConfig for settings that cannot be used.
    """

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None, *, timeout_ms: int = TIMEOUT_MS) -> None:
        given = {} if settings is None else settings
        problems = _problems(url, given, timeout_ms)
        if problems:
            raise BadConfig([f"schema registry: {problem}" for problem in problems])
        first, *others = (one.strip().rstrip("/") for one in url.split(","))
        parts = urlsplit(first)
        login: dict[str, Any] = {}
        if parts.username is not None:
            # In the settings, because the client's HTTP library logs the addresses of its requests.
            login[USER_INFO] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            first = first.replace(f"{parts.netloc.rpartition('@')[0]}@", "", 1)
        self.where = ",".join([first, *others])
        self._settings = {
            "timeout": timeout_ms / 1_000 / ATTEMPTS,
            "max.retries": ATTEMPTS - 1,
            "retries.wait.ms": 100,
            "retries.max.wait.ms": 1_000,
            "cache.latest.ttl.sec": LATEST_TTL_S,
            **given,
            **login,
            "url": self.where,
        }
        self._lock = threading.Lock()
        self._client: RegistryClient | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Registry({self.where!r})"

    def client(self) -> RegistryClient:
        """The client, one for all serdes. Raises BadConfig without the extra `schema`, and for refused settings."""
        with self._lock:
            if self._closed:
                raise Closed(f"schema registry {self.where} is closed: declare the serde with another Registry")
            if self._client is None:
                make = required("standfast.store.schema.client").RegistryClient
                made: RegistryClient = refusing(
                    f"schema registry {self.where}", lambda: make(self._settings, self.where)
                )
                self._client = made
            return self._client

    def close(self) -> None:
        """Close the connections, when its serdes are of no more use: these raise Closed then. Twice is fine."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()


RegistryLike: TypeAlias = str | Mapping[str, Any] | Registry


def registry_of(given: RegistryLike) -> Registry:
    """The registry of an argument: its address, the client's settings with "url" among them, or the registry itself."""
    if isinstance(given, Registry):
        return given
    if isinstance(given, str):
        return Registry(given)
    if isinstance(given, Mapping) and isinstance(given.get("url"), str):
        return Registry(given["url"], {name: value for name, value in given.items() if name != "url"})
    # Without its value, which may hold secrets.
    raise BadConfig(
        [
            f'registry must be an address such as http://host:8081, a dict of settings with its "url", or a '
            f"standfast.serde.Registry, not {type(given).__name__}"
        ]
    )


def required(module: str) -> Any:
    """A module over the client's serializers. Raises BadConfig with the line that installs them."""
    try:
        return import_module(module)
    except ImportError as error:
        named = "" if error.name is None else f" {error.name!r}"
        raise BadConfig([f"serdes of a schema registry need the library{named}: {INSTALL} ({error})"]) from error


def refusing(what: str, make: Callable[[], Made]) -> Made:
    """The result of `make`; BadConfig for a setting or a schema that the client refuses."""
    try:
        return make()
    except StandfastError:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise BadConfig(
            [f"{what}: the Kafka client refuses it ({type(error).__name__}: {first}): correct it"]
        ) from error


def _problems(url: object, settings: object, timeout_ms: object) -> list[str]:
    problems = []
    if not isinstance(url, str):
        return [f"url must be its address as text, not {type(url).__name__}: {EXAMPLE}"]
    for number, one in enumerate(url.split(",")):
        try:
            parts = urlsplit(one.strip())
            bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        except ValueError:
            bad, parts = True, urlsplit("")
        # An address with an @ may contain a secret, which no error may show.
        shown = "one with a user in it" if "@" in one else repr(one.strip())
        if bad:
            problems.append(f"address {shown} is not http://host:port: {EXAMPLE}")
        elif parts.username is not None and (number or (isinstance(settings, Mapping) and USER_INFO in settings)):
            problems.append(f"give the user once: in {USER_INFO}, or in the first address")
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        problems.append(f"settings must be a dict by the client's names, not {type(settings).__name__}")
    elif "timeout" in settings and not _positive(settings["timeout"]):
        problems.append("timeout must be a number of seconds above 0: without it a request could wait for ever")
    elif "url" in settings:
        problems.append("give the address once: not in the settings, too")
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool) or not 0 < timeout_ms <= TIMEOUT_MAX_MS:
        problems.append(f"timeout_ms must be whole milliseconds from 1 to {TIMEOUT_MAX_MS}, not {timeout_ms!r}")
    return problems


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
