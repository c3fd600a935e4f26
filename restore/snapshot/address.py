"""Addresses of storages for snapshots: a folder, or a bucket with a prefix.

    /backup/state   file:///backup/state
    s3://bucket/prefix              ?endpoint=http://127.0.0.1:9000&region=eu-west-1&virtual_host=true of another
    gs://bucket/prefix              ?endpoint=http://127.0.0.1:4443 of an emulator
    az://account/container/prefix   ?endpoint=http://127.0.0.1:10000/account of another blob endpoint
    abfss://container@account.dfs.core.windows.net/prefix     the same, as Spark writes it

Rules of this file: text only. Credentials come from the environment (the variables of each service's own tools) or from
the machine's role, never from an address, since addresses are printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from standfast.restore.addresses import holds_login, shown_address
from standfast.store.errors import BadConfig
from standfast.store.outside import Implementations

if TYPE_CHECKING:
    from standfast.restore.snapshot.storage import Storage

S3, GCS, AZURE = "S3", "Google Cloud Storage", "Azure Blob Storage"
SERVICES = {"s3": S3, "s3a": S3, "gs": GCS, "az": AZURE, "azure": AZURE, "abfs": AZURE, "abfss": AZURE}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    S3: {"endpoint": "endpoint", "region": "region", "virtual_host": "virtual_hosted_style_request"},
    GCS: {"endpoint": "base_url"},
    AZURE: {"endpoint": "endpoint"},
}
_LIKE_SECRET = re.compile(r"key|secret|token|pass|sas|sig|credential", re.IGNORECASE)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
_SPARK_HOST = re.compile(
    rf"(?P<container>{_CONTAINER.pattern})@(?P<account>{_ACCOUNT.pattern})\.dfs\.core\.windows\.net"
)
FORMS = "a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX"


@dataclass(frozen=True, slots=True)
class Address:
    """A storage: `folder` of this machine, or `url` of a service with its options. `text` is for people.

    `url` and `options` are as obstore takes them; `bucket` is the bucket, or the container and its account, for people.
    """

    text: str
    folder: Path | None = None
    url: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    service: str = ""
    bucket: str = ""

    @property
    def plain_http(self) -> bool:
        """Whether its endpoint is one without TLS."""
        return any(value.startswith("http://") for value in self.options.values())


# Further storages by scheme: a function from address, application and the bound of repeats, in seconds.
OTHERS: Final = Implementations[Callable[[Address, str, int | None], "Storage"]]("file", *SERVICES)


def parse_storage(text: str) -> Address:
    """The address of a storage. Raises BadConfig, without its query, which may hold a secret."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        if not text or text.startswith("~"):
            raise BadConfig([f"a storage for snapshots is {FORMS}, not {text!r}"])
        return Address(text=str(Path(text).absolute()), folder=Path(text).absolute())
    if scheme in OTHERS:
        return Address(text, service=scheme)
    shown = shown_address(text)
    place = rest.partition("/")[0]
    spark = _SPARK_HOST.fullmatch(place) if scheme in ("abfs", "abfss") else None
    if holds_login(text) and spark is None:
        raise BadConfig(
            [f"the address of a {scheme} storage for snapshots holds credentials: give them by the environment instead"]
        )
    try:
        parts = urlsplit(text)
    except ValueError:
        raise BadConfig([f"{shown!r} is no storage for snapshots: use {FORMS}"]) from None
    if scheme == "file":
        if parts.netloc or parts.query or not parts.path:
            raise BadConfig([f"{shown!r}: a folder is written file:///PATH"])
        return Address(text=text, folder=Path(parts.path))
    service = SERVICES.get(scheme)
    if service is None or not parts.netloc or parts.fragment:
        raise BadConfig([f"{shown!r} is no storage for snapshots: use {FORMS}"])
    if "//" in parts.path:
        raise BadConfig([f"{shown!r}: its prefix has an empty part: write one slash"])
    options = _options(parts, service, shown)
    if service != AZURE:
        return Address(shown, None, shown.rstrip("/"), options, service, f"bucket {parts.netloc!r}")
    if spark is not None:
        account, container, prefix = spark["account"], spark["container"], parts.path
    elif scheme in ("abfs", "abfss"):
        raise BadConfig([f"{shown!r}: write {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"])
    else:
        # The library takes the first part for the container, and the account from its settings.
        account, (container, _, prefix) = parts.netloc, parts.path.lstrip("/").partition("/")
    for what, name, allowed in (("account", account, _ACCOUNT), ("container", container, _CONTAINER)):
        if not allowed.fullmatch(name):
            raise BadConfig([f"{shown!r}: {name!r} is no {what} of {service}: write az://ACCOUNT/CONTAINER/PREFIX"])
    url = f"az://{container}/{prefix.strip('/')}".rstrip("/")
    named = f"container {container!r} of account {account!r}"
    # Else a variable of the environment could send everything to an emulator, whatever the address says.
    options = {**options, "account_name": account, "use_emulator": "false"}
    return Address(shown, None, url, options, service, named)


def _options(parts: SplitResult, service: str, shown: str) -> dict[str, str]:
    """The options of a service by the library's names."""
    known, options = OPTIONS[service], {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            why = "credentials come by the environment" if _LIKE_SECRET.search(name) else f"it is unknown for {service}"
            raise BadConfig([f"{shown!r}: option {name!r} is not usable ({why}): there are {', '.join(known)}"])
        options[known[name]] = _endpoint(value, shown) if name == "endpoint" else value
    return options


def _endpoint(value: str, shown: str) -> str:
    """A service's endpoint, without the slash that would become part of every path."""
    try:
        at = urlsplit(value)
        usable = at.scheme in ("http", "https") and bool(at.hostname) and not (at.query or at.fragment)
        hidden = at.username is not None or at.password is not None
    except ValueError:
        usable = hidden = False
    if hidden:
        raise BadConfig([f"{shown!r}: its endpoint holds credentials: give them by the environment instead"])
    if not usable:
        raise BadConfig([f"{shown!r}: an endpoint is http://HOST:PORT or https://HOST, with a path where there is one"])
    return value.rstrip("/")
