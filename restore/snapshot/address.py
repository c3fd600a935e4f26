"""Addresses of storages for snapshots: a folder, or a bucket with a prefix.

    /backup/state   file:///backup/state   s3://bucket/prefix   gs://bucket/prefix   az://account/container/prefix

    ?endpoint=http://127.0.0.1:9000&region=eu-west-1&virtual_host=true      of a service that is S3-compatible

Rules of this file: text only. Credentials come
from the environment (the variables of each service's own tools) or from the machine's role, never from an address,
since addresses are printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from standfast.store.errors import BadConfig

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
OPTIONS = {"endpoint": "endpoint", "region": "region", "virtual_host": "virtual_hosted_style_request"}
_LIKE_SECRET = re.compile(r"key|secret|token|pass|sas|sig|credential", re.IGNORECASE)
FORMS = "a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX"


@dataclass(frozen=True, slots=True)
class Address:
    """A storage: `folder` of this machine, or `url` of a service with its options. `text` is for people."""

    text: str
    folder: Path | None = None
    url: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


def parse_storage(text: str) -> Address:
    """The address of a storage. Raises BadConfig, without its query, which may hold a secret."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        if not text or text.startswith("~"):
            raise BadConfig([f"a storage for snapshots is {FORMS}, not {text!r}"])
        return Address(text=str(Path(text).absolute()), folder=Path(text).absolute())
    shown = text.partition("?")[0]
    if "@" in rest.partition("/")[0]:
        raise BadConfig(
            [f"the address of a {scheme} storage for snapshots holds credentials: give them by the environment instead"]
        )
    parts = urlsplit(text)
    if scheme == "file":
        if parts.netloc or parts.query or not parts.path:
            raise BadConfig([f"{shown!r}: a folder is written file:///PATH"])
        return Address(text=text, folder=Path(parts.path))
    if scheme not in SCHEMES or not parts.netloc or parts.fragment:
        raise BadConfig([f"{shown!r} is no storage for snapshots: use {FORMS}"])
    options = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            why = "credentials come by the environment" if _LIKE_SECRET.search(name) else "it is unknown"
            raise BadConfig([f"{shown!r}: option {name!r} is not usable ({why}): there are {', '.join(OPTIONS)}"])
        options[OPTIONS[name]] = value
    return Address(text=shown, url=shown.rstrip("/"), options=options)
