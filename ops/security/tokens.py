"""Tokens: the actor behind a call, and its permissions.

    [[tokens]]                                 # a file of mode 0600; several tokens of one name may hold at a time
    name = "flights-app"                       # the actor, for the audit; never the token itself
    role = "write"                             # read < write < admin
    stores = ["aircraft", "delays"]            # omitted: every store
    sha256 = "5e8848..."                       # of the token's UTF-8 bytes; or token = "..." itself, from 16 characters

    Rotation: add the new token, reload (SIGHUP), let clients change, remove the old one, reload.

Rules of this file: a token is compared by digest with every entry, so that the time says nothing of where it differs. A
file that cannot be used leaves the tokens that were there. No token is ever part of a message.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from standfast.ops.shared.secret_file import secret_bytes
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_name, printable

FILE_BYTES_MAX = 256 << 10
TOKENS_MAX = 1_000
TOKEN_CHARS_MIN = 16
TOKEN_BYTES_MAX = 1_024
FIELDS = frozenset({"name", "role", "stores", "token", "sha256"})
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Role(IntEnum):
    """The rights of an actor; a higher role has those of a lower one."""

    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller. `stores` None: every store."""

    name: str
    role: Role
    stores: frozenset[str] | None = None

    def may(self, role: Role, store: str | None = None) -> bool:
        """Whether this actor may make a call that needs `role`, on that store if one is named.

        An actor with a list of stores may take part (assign, commit), and has none of the rights of an administrator.
        """
        if self.role < role or (self.stores is not None and role is Role.ADMIN):
            return False
        return self.stores is None or store is None or store in self.stores


OWNER = Actor("owner", Role.ADMIN)  # admitted by the mode of a socket, or of the info file
READER = Actor("anyone", Role.READ)


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    actor: Actor


class Tokens:
    """The tokens of a file, and those that the process itself gave out; without a file only the latter.

    `alone`: the file holds one token on one line and nothing else, and this is its actor.
    """

    def __init__(self, path: Path | None = None, *, alone: Actor | None = None) -> None:
        self._path = path
        self._alone = alone
        self._own: tuple[_Entry, ...] = ()
        self._of_file: tuple[_Entry, ...] = ()
        self.revision = 0  # grows whenever the file was read
        self.reload()

    def __len__(self) -> int:
        return len(self._of_file) + len(self._own)

    @property
    def from_file(self) -> bool:
        """Whether an operator gave tokens out."""
        return self._path is not None

    def issue(self, actor: Actor = OWNER) -> str:
        """A new token that lives as long as this process, for a file that only its owner can read."""
        token = secrets.token_urlsafe(32)
        self._own = (*self._own, _Entry(_digest(token.encode()), actor))
        return token

    def reload(self) -> None:
        """Read the file again. Raises BadConfig with every problem; then the tokens stay as they were."""
        if self._path is not None:
            # Read whole before it is swapped: a bad file leaves the old tokens.
            raw = _secret(self._path)
            alone = self._alone
            self._of_file = tuple(_read(self._path, raw) if alone is None else [_only(self._path, raw, alone)])
            self.revision += 1

    def find(self, token: str | bytes) -> Actor | None:
        """The actor of a token, or None."""
        raw = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
        found: Actor | None = None
        digest = _digest(raw[:TOKEN_BYTES_MAX]) if len(raw) <= TOKEN_BYTES_MAX else b""
        for entry in (*self._own, *self._of_file):  # all of them, always
            if hmac.compare_digest(entry.digest, digest):
                found = entry.actor
        return found


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def _secret(path: Path) -> bytes:
    raw = secret_bytes(path, FILE_BYTES_MAX)
    if len(raw) > FILE_BYTES_MAX:
        raise BadConfig([f"{printable(path)}: larger than {FILE_BYTES_MAX >> 10} KiB"])
    return raw


def _only(path: Path, raw: bytes, actor: Actor) -> _Entry:
    token = raw.strip()  # editors end a file with a line break
    # As the command line takes it from its own file, where a control character could end a header.
    fits = TOKEN_CHARS_MIN <= len(token) <= TOKEN_BYTES_MAX // 4 and token.isascii() and token.decode().isprintable()
    if not fits:
        raise BadConfig(
            [
                f"{printable(path)}: holds no token: write one line of {TOKEN_CHARS_MIN} to {TOKEN_BYTES_MAX // 4} "
                "ASCII characters"
            ]
        )
    return _Entry(_digest(token), actor)


def _read(path: Path, raw: bytes) -> list[_Entry]:
    try:
        content = tomllib.loads(raw.decode())
    except (ValueError, RecursionError):  # the reader's own message may repeat a token
        raise BadConfig([f"{printable(path)}: not a TOML file of UTF-8 text"]) from None
    return _entries(path, content)


def _entries(path: Path, content: dict[str, Any]) -> list[_Entry]:
    given = content.pop("tokens", [])
    problems = [f"{printable(path)}: {name!r}: no such table: tokens are in [[tokens]]" for name in content]
    if not isinstance(given, list) or len(given) > TOKENS_MAX:
        raise BadConfig([*problems, f"{printable(path)}: tokens are in [[tokens]], {TOKENS_MAX} at most"])
    entries = []
    for number, one in enumerate(given, 1):
        try:
            entries.append(_entry(one))
        except (ValueError, InvalidRequest) as error:
            problems.append(f"{printable(path)}: token {number}: {error}")
    if problems:
        raise BadConfig(problems)
    return entries


def _entry(one: Any) -> _Entry:
    if not isinstance(one, dict):
        raise ValueError("is not a table: write [[tokens]]")
    unknown = sorted(one.keys() - FIELDS)
    if unknown:
        raise ValueError(
            f"has unknown fields: {', '.join(map(repr, unknown))}; a token has {', '.join(sorted(FIELDS))}"
        )
    roles = {role.name.lower(): role for role in Role}
    role = one.get("role")
    if not isinstance(role, str) or role not in roles:
        raise ValueError(f"role must be one of {', '.join(roles)}")
    actor = Actor(check_name("token", one.get("name", "")), roles[role])
    if "stores" in one:
        stores = one["stores"]
        if not isinstance(stores, list) or not stores:
            raise ValueError("stores must be a list of names; omit it for all stores")
        actor = replace(actor, stores=frozenset(check_name("store", store) for store in stores))
    return _Entry(_digest_of(one), actor)


def _digest_of(one: dict[str, Any]) -> bytes:
    token, digest = one.get("token"), one.get("sha256")
    if (token is None) == (digest is None):
        raise ValueError("needs either token or sha256")
    if digest is not None:
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest.lower()):
            raise ValueError("sha256 must be 64 hex digits")
        return bytes.fromhex(digest)
    if not isinstance(token, str) or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_BYTES_MAX // 4:
        raise ValueError(f"token must be text of {TOKEN_CHARS_MIN} to {TOKEN_BYTES_MAX // 4} characters")
    return _digest(token.encode("utf-8", "surrogatepass"))


def bearer(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The token of an `Authorization` header: `Bearer TOKEN`, or the password of `Basic`, which browsers ask for.

    None without such a header, "" for one that cannot be read (which is no token).
    """
    given = [value for name, value in headers if name.lower() == b"authorization"]
    if not given:
        return None
    scheme, _, rest = given[0].strip().partition(b" ")
    if len(given) > 1 or len(rest) > 4 * TOKEN_BYTES_MAX:
        return ""
    if scheme.lower() == b"bearer":
        return rest.strip().decode("latin-1")
    if scheme.lower() != b"basic":
        return ""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2].decode()
    except ValueError:
        return ""
