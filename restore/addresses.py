"""Addresses of storages, folders and snapshots as people are shown them: without login and without options.

    s3://KEY:SECRET@bucket/prefix?token=T      s3://bucket/prefix

Rules of this file: text only. Every message and document shows an address by `shown_address`, and by nothing else.
"""

from __future__ import annotations

import re
from pathlib import PurePath

_PORT = re.compile(r"[^:\[\]]*(?::[0-9]*)?|\[[^\[\]]*\](?::[0-9]*)?").fullmatch
_SPARK = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+\.core\.windows\.net").fullmatch  # container and account, and no login


def shown_address(address: str | PurePath) -> str:
    """The address without what stands before its `@`, and without what follows its `?` or `#`."""
    scheme, mark, rest = str(address).partition("://")
    if not mark:
        return str(address)  # a folder of this machine
    head, _, _ = rest.partition("/")
    if _SPARK(head.partition("?")[0]):
        return f"{scheme}://{re.split('[?#]', rest, maxsplit=1)[0]}"
    # A secret may hold slashes and marks: of what looks like a login the last @ counts, wherever it stands.
    if "@" in head or not _PORT(re.split("[?#]", head, maxsplit=1)[0]):
        rest = rest.rpartition("@")[2] if "@" in rest else "..."
    return f"{scheme}://{re.split('[?#]', rest, maxsplit=1)[0]}"


def holds_login(address: str) -> bool:
    """Whether the address holds a user or a password."""
    scheme, mark, rest = address.partition("://")
    return bool(mark) and shown_address(address) != f"{scheme}://{re.split('[?#]', rest, maxsplit=1)[0]}"
