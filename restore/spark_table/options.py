"""Options of `spark.read.format("standfast")` and of writing: text, as Spark passes it, to checked values.

    kind        store (default) | changelog | changes | metadata           the content of the table
    path        a state directory, one of its tasks, or a folder with a manifest; `state` if SQL keeps `path` to itself
    snapshot    a snapshot, `0_3/12-4711` or `latest`, of the storage that `path` names then; it needs `app`
    log, topic  the log, and the changelog (or app and storeName, which name it)

Rules of this file: pure; it reads no file and asks no log. Unknown options are refused, because Spark itself would
ignore a misspelt one. All problems are reported at once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.restore.snapshot.names import join_address, split_address
from standfast.store import serde as serdes
from standfast.store.errors import BadConfig, InvalidRequest, StandfastError
from standfast.store.names import few
from standfast.store.serde import Serde
from standfast.store.specs import SPECS, TRAITS, StoreSpec
from standfast.store.types.key_ranges import EVERY_KEY, KeySpan
from standfast.store.types.kinds import definition_spec

PLACE = ("path", "state", "snapshot", "app", "storeName", "partitions")
TARGET = ("path", "state", "app", "storeName", "partitionCount")
COLUMNS = ("keySerde", "valueSerde", "keySchema", "valueSchema", "decode", "limit")
FILTERS = ("keyFrom", "keyTo", "keyPrefix", "timeFrom", "timeTo", "asOf")
_SETTINGS = {one.option: one for traits in TRAITS.values() for one in traits.settings if not one.local}
STORE = ("definition", "storeKind", "timestamped", *_SETTINGS)
LOG = ("log", "topic", "app", "storeName", "partitions", "startOffsets", "endOffsets")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "store": ("kind", *PLACE, *COLUMNS, *FILTERS),
    "changelog": ("kind", *LOG, *COLUMNS, *STORE),
    "changes": ("kind", *LOG, *COLUMNS, *STORE, "oldValues"),
    "metadata": ("kind", "path", "state", "snapshot", "app"),
    "write": (*TARGET, "log", "keySerde", "valueSerde", "memoryMb", *STORE),
}
FLAGS = ("decode", "timestamped", "oldValues", *(name for name, one in _SETTINGS.items() if one.what == "flag"))
TIMES = ("timeFrom", "timeTo", "asOf", *(name for name, one in _SETTINGS.items() if one.what == "time"))
NUMBERS = (*TIMES, "limit", "memoryMb", "partitionCount")
SERDES = ("bytes", "string", "int64", "float64", "json", "msgpack")
# A reader of a changelog has no use for a retention, and a definition must have one.
RETENTION_UNKNOWN_MS = 2**62


@dataclass(frozen=True, slots=True)
class Filters:
    """Bounds of a read of a store; keys are raw, both ends inclusive, for keys and for times. None: no bound."""

    keys: tuple[KeySpan, ...] = (EVERY_KEY,)
    key_prefix: bytes | None = None
    time_from: int | None = None
    time_to: int | None = None
    as_of: int | None = None
    limit: int | None = None

    def takes(self, key: bytes) -> bool:
        """Whether a key is within the bounds."""
        if self.key_prefix is not None:
            return key.startswith(self.key_prefix)
        return any(span.takes(key) for span in self.keys)


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """Checked options. `values` by the names of OPTIONS: text, a bool for flags, an int for numbers."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """A text option, None if absent."""
        return self.values.get(name)

    def number(self, name: str) -> int | None:
        """A number option, None if absent."""
        return self.values.get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """A flag option, `default` if absent."""
        found: bool = self.values.get(name, default)
        return found

    @property
    def place(self) -> str:
        """The folder. Raises BadConfig if no option names it."""
        # CREATE TABLE takes `path` for the table's own location, and the reader never gets it.
        found = self.text("state") or self.text("path")
        if found is None:
            what = "the one to write to" if self.kind == "write" else "the state directory, or one with a manifest"
            raise BadConfig([f'which folder? name {what}: .load("/var/lib/delays") or option("path", ...)'])
        snapshot = self.text("snapshot")
        if snapshot is None:
            return found
        address = join_address(found, snapshot)
        if split_address(address) != (found.rstrip("/"), snapshot) and split_address(address) != (found, snapshot):
            raise BadConfig(
                [f"snapshot is {snapshot!r:.100}: give TASK/EPOCH-POSITION, such as 0_3/12-4711, or latest"]
            )
        return address

    def need(self, name: str, example: str) -> str:
        """A required text option. Raises BadConfig if absent."""
        found = self.text(name)
        if found is None:
            raise BadConfig([f'option("{name}", ...) is needed here, as in {example}'])
        return found

    def serde(self, part: str) -> Serde[Any] | None:
        """The named serde for "key" or "value", None if absent."""
        name = self.text(f"{part}Serde")
        return None if name is None else serdes.by_name(name)

    def partitions(self) -> list[int] | None:
        """Partitions to read, ascending; None: all."""
        text = self.text("partitions")
        return None if text is None else sorted({int(one) for one in text.split(",")})

    def offsets(self, name: str) -> dict[int, int] | int | None:
        """Offsets by partition, one for all, or None for the log's own bound."""
        text = self.text(name)
        if text is None or text in ("earliest", "latest"):
            return None
        found = json.loads(text)
        return {int(number): offset for number, offset in found.items()} if isinstance(found, dict) else int(found)


def parse(kind: str | None, options: Mapping[str, str]) -> CheckedOptions:
    """Check options for reading `options["kind"]`, or for `kind` "write". Raises BadConfig with every problem."""
    lower = {name.lower(): value for name, value in options.items()}  # names of Spark's options ignore case
    kind = kind or lower.get("kind", "store").lower()
    known = OPTIONS.get(kind)
    if known is None or (kind == "write" and "kind" in lower):
        kinds = ", ".join(name for name in OPTIONS if name != "write")
        raise BadConfig([f"kind is {lower.get('kind')!r}, there are {kinds} to read; writing takes no kind"])
    names = {name.lower(): name for name in known}
    problems: list[str] = []
    values: dict[str, Any] = {}
    for low, text in lower.items():
        name = names.get(low)
        if name is None:
            problems.append(f"{low!r} is not an option of kind {kind!r}{_elsewhere(low) or _nearest(low, known)}")
        elif name != "kind":
            try:
                values[name] = _value(name, text)
            except ValueError as error:
                problems.append(f"{name} is {text!r}: {error}")
    if problems:
        raise BadConfig(problems)
    return CheckedOptions(kind, values)


def described_store(given: CheckedOptions, name: str) -> StoreSpec:
    """The store that options describe: its kept `definition`, or kind and settings one by one. Raises BadConfig."""
    if "definition" in given.values:
        several = [one for one in STORE[1:] if one in given.values]
        if several:
            raise BadConfig([f"definition describes the whole store: leave {few(several)} out"])
        kept = dict(json.loads(given.values["definition"]))
    else:
        kept = _definition(given)
    for part in ("key", "value"):
        serde = given.serde(part)
        if serde is not None:
            kept[part] = serde.name
    try:
        return definition_spec(name, kept)
    except InvalidRequest as error:
        raise BadConfig([str(error)]) from error


def kept_definition(given: CheckedOptions, spec: StoreSpec) -> dict[str, Any]:
    """The definition that a manifest records for a described store: serdes of the application's own by their names."""
    if "definition" not in given.values:
        return spec.definition()
    kept = {name: one for name, one in json.loads(given.values["definition"]).items() if name != "engine"}
    return kept | {part: getattr(spec, part).name for part in ("key", "value") if given.serde(part) is not None}


def _definition(given: CheckedOptions) -> dict[str, Any]:
    kind = given.text("storeKind") or "keyvalue"
    reading = given.kind != "write"
    traits = TRAITS[kind]
    wanted = {one.option: one for one in traits.settings if not one.local}
    allowed = {*wanted, *(("timestamped",) if traits.plain else ())}
    problems = [f"a {kind} store has no {one}" for one in STORE[2:] if one in given.values and one not in allowed]
    stamped = given.flag("timestamped", SPECS[kind].timestamped)
    kept: dict[str, Any] = {"kind": kind, "key": "bytes", "value": "bytes", "timestamped": stamped}
    for option, setting in wanted.items():
        found = given.values.get(option)
        if found is None and setting.needed:
            if not reading:
                problems.append(f"a {kind} store needs {option}, in milliseconds")
            found = RETENTION_UNKNOWN_MS if setting.name == traits.retention else setting.least
        if found is not None:
            kept[setting.name] = found
    if problems:
        raise BadConfig(problems)
    return kept


def _value(name: str, text: str) -> Any:
    if name in FLAGS:
        if text.lower() not in ("true", "false"):
            raise ValueError("give true or false")
        return text.lower() == "true"
    if name in NUMBERS:
        if not text.isdecimal():
            raise ValueError("give a whole number of at least 0")
        return int(text)
    if name == "partitions" and not all(one.strip().isdecimal() for one in text.split(",")):
        raise ValueError("give numbers with commas in between, as 0,3")
    if name in ("keySerde", "valueSerde") and text not in SERDES:
        raise ValueError(f"there are {', '.join(SERDES)}; the application's own serdes are not known here: take bytes")
    if name == "storeKind" and text not in TRAITS:
        raise ValueError(f"there are {', '.join(TRAITS)}")
    if name in ("startOffsets", "endOffsets"):
        _check_offsets(text)
    if name == "definition":
        _check_definition(text)
    if not text:
        raise ValueError("it is empty")
    return text


def _check_offsets(text: str) -> None:
    if text in ("earliest", "latest"):
        return
    wrong = 'give {"0": 120, "1": 80} by partition, one number for all, earliest or latest'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(wrong) from error
    offsets = list(found.values()) if isinstance(found, dict) else [found]
    numbers = [number.isdecimal() for number in found] if isinstance(found, dict) else []
    if not all(numbers) or any(type(one) is not int or one < 0 for one in offsets):
        raise ValueError(wrong)


def _check_definition(text: str) -> None:
    try:
        found = json.loads(text)
        definition_spec("store", found)
    except (ValueError, TypeError, AttributeError, StandfastError) as error:
        raise ValueError(f"give a definition as metadata shows it, in JSON ({error})") from error


def _elsewhere(name: str) -> str:
    kinds = [kind for kind, known in OPTIONS.items() if name in {one.lower() for one in known}]
    return f", it is one of {few(kinds)}" if kinds else ""


def _nearest(name: str, known: Collection[str]) -> str:
    by_low = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name, list(by_low), 1, 0.6)
    return f", did you mean {by_low[near[0]]!r}?" if near else f", there are {few(sorted(known))}"
