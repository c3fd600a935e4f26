"""Stores whose changelogs can be folded, and keys and times of their records for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from standfast.store import serde, session_key, window_key
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, WindowStore

TEXT = serde.string
SPECS: dict[str, StoreSpec] = {
    "kv": KeyValueStore("kv", TEXT, TEXT),
    "plain": KeyValueStore("plain", TEXT, TEXT, timestamped=False),
    "win": WindowStore("win", TEXT, TEXT, window_size_ms=60_000, retention_ms=120_000),
    "dup": WindowStore("dup", TEXT, TEXT, window_size_ms=60_000, retention_ms=120_000, retain_duplicates=True),
    "ses": SessionStore("ses", TEXT, TEXT, retention_ms=120_000),
}
keys = st.binary(max_size=3) | st.sampled_from([b"", b"\0", b"same-prefix-1", b"same-prefix-2", b"same-prefix-" * 3])
times = st.integers(0, 8).map(lambda minute: minute * 45_000)


def row_key(spec: StoreSpec, key: bytes, time: int, sequence: int) -> bytes:
    """The key of a row of a store, as its changelog has it."""
    if spec.kind == "keyvalue":
        return key
    if spec.kind == "session":
        return session_key.pack(key, time // 2, time)
    return window_key.pack(key, time, sequence if spec.numbered else 0)
