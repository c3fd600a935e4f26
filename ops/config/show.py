"""Settings for people and programs: their values, the origin of each, and a JSON Schema of the file.

Rules of this file: pure. Only an allow-list is shown: settings declared `shown`, librdkafka's settings by name, and
addresses without parts that may be secret; everything else is `(hidden)`. A value spelled `${NAME}` in the file is
shown so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from standfast.ops.config.config import Loaded
from standfast.ops.config.types import SECTIONS, StoreConfig, settings_of
from standfast.replication.kafka.address import COMMON, CONSUMER, FILE, PRODUCER, SECRETS, KafkaAddress
from standfast.replication.tail.open_log import parse_address
from standfast.restore.snapshot.address import parse_storage
from standfast.store.errors import BadConfig
from standfast.store.specs import StoreSpec

HIDDEN = "(hidden)"
DEFAULT = "default"
SCHEMA = "standfast.config/2"
JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
KAFKA_SHOWN = (
    (COMMON | CONSUMER | PRODUCER | {name + FILE for name in SECRETS})
    - SECRETS
    # Free text, in which a user may write a password or a key.
    - {
        "sasl.oauthbearer.extensions",
        "sasl.kerberos.kinit.cmd",
    }
)
_VARIABLE = re.compile(r"\$\{[A-Za-z0-9_]+\}")
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_TIMES = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def rows(loaded: Loaded) -> Iterator[tuple[str, Any, str]]:
    """(setting, value as a file spells it, origin) of every setting."""
    for section, kind in SECTIONS.items():
        values = getattr(loaded.config, section)
        for key, one in settings_of(kind).items():
            name = f"{section}.{key}"
            shown = _written(one.name, getattr(values, one.name)) if one.metadata["shown"] else HIDDEN
            if name == "app.log":
                shown = _address(loaded.config.app.log)
            if name == "snapshots.to":  # its query may hold the name of a machine, and no credentials
                to = loaded.config.snapshots.to
                shown = None if to is None else parse_storage(to).text
            yield name, _text(loaded, name, shown), loaded.origins.get(name, DEFAULT)
    for store in loaded.config.stores:
        for name, value in _store_rows(store):
            yield name, _text(loaded, name, value), loaded.origins.get(name, DEFAULT)
    for key, value in sorted(loaded.config.kafka.items()):
        name = f"kafka.{key}"
        yield name, _text(loaded, name, value if key in KAFKA_SHOWN else HIDDEN), loaded.origins.get(name, DEFAULT)


def document(loaded: Loaded, file: Path | None) -> dict[str, Any]:
    """The settings and their origins as a JSON document."""
    found = list(rows(loaded))
    return {
        "schema": SCHEMA,
        "file": None if file is None else str(file),
        "settings": {name: value for name, value, _ in found},
        "origins": {name: origin for name, _, origin in found},
    }


def json_schema() -> dict[str, Any]:
    """A JSON Schema of the file of settings, for editors."""
    sections: dict[str, Any] = {name: _table(kind) for name, kind in SECTIONS.items()}
    sections["stores"] = {
        "type": "object",
        "description": "[stores.NAME]: the stores of the sidecar",
        "additionalProperties": _table(StoreConfig),
    }
    sections["kafka"] = {
        "type": "object",
        "description": "any setting of librdkafka; a secret as the path of its file, NAME_file",
        "not": {"anyOf": [{"required": [name]} for name in sorted(SECRETS)]},
    }
    return {
        "$schema": JSON_SCHEMA,
        "title": "standfast",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
    }


def _table(kind: Any) -> dict[str, Any]:
    properties = {}
    for key, one in settings_of(kind).items():
        default = _written(one.name, one.default)
        told = {} if default is None else {"default": default}
        text = one.metadata["text"]
        own = one.metadata["reader"].schema
        extra = f" ({own['description']})" if "description" in own else ""
        properties[key] = {**own, "description": text + extra, **told}
    about = (kind.__doc__ or "").partition("\n")[0]
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def _text(loaded: Loaded, name: str, shown: Any) -> Any:
    """The text `${NAME}` if the file has just that; text around a variable may be secret where the value may be."""
    text = loaded.texts.get(name)
    whole = isinstance(text, str) and _VARIABLE.fullmatch(text) is not None
    # `${NAME}` alone holds nothing secret, and shows an operator where the value is.
    if text is None or whole:
        return text if whole else shown
    return HIDDEN if shown == HIDDEN or name == "app.log" else text


def _store_rows(store: StoreSpec) -> Iterator[tuple[str, Any]]:
    prefix = f"stores.{store.name}"
    yield f"{prefix}.kind", store.kind
    for key, one in settings_of(StoreConfig).items():
        if key != "kind" and hasattr(store, one.name):
            yield f"{prefix}.{key}", _written(one.name, getattr(store, one.name))


_NONE_WORDS = {"discovery_interval_ms": "off", "commit_interval_ms": "auto"}  # TOML has no null


def _written(name: str, value: Any) -> Any:
    """The value as a file spells it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if name.endswith("_ms"):
        return _NONE_WORDS.get(name) if value is None else _unit(value, _TIMES, "ms")
    return _unit(value, _SIZES, "B") if name.endswith("_bytes") else value


def _unit(value: int | None, units: tuple[tuple[str, int], ...], least: str) -> str | None:
    if value is None:
        return None
    return next((f"{value // size}{unit}" for unit, size in units if value and value % size == 0), f"{value}{least}")


def _address(address: str | None) -> str | None:
    """The address of a log; settings of a broker that are not on the allow-list lose their values."""
    if address is None:
        return None
    try:
        where = parse_address(address)
    except BadConfig:
        return HIDDEN  # where the secret stands in an address of another form is unknown
    if not isinstance(where, KafkaAddress):
        return address
    options = {name: value if name in KAFKA_SHOWN else HIDDEN for name, value in where.options.items()}
    return str(replace(where, options=options))
