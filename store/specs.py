"""Store definitions: the user's declaration, and the form kept beside the data to recognise a change.

Rules of this file: plain frozen data, checked on construction, so an invalid definition cannot exist. A new
store type is one class here with its traits, one module with its codec, one line and one overload in
`standfast.store.types.kinds`, and one row in `standfast.ops.shared.kinds` with its verbs.
Source of the limits: Kafka Streams' Stores and WindowBytesStoreSupplier checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

from standfast.store.arguments import checked, flag_problems
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import changelog_topic, check_name, check_topic, setting_problems
from standfast.store.serde import Serde, json_sorted, sorted_keys
from standfast.store.traits import SESSION_TIMES, WINDOW_TIMES, Setting, Traits
from standfast.store.window_key import TIME_MAX

# Types of a store's keys and values: those of its serdes. Without them, as in an annotation `StoreSpec`, they are Any;
# `typing.TypeVar` takes no default before Python 3.13.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")

EngineKind = Literal["rocksdb", "memory"]


@checked(BadConfig)
@dataclass(frozen=True)
class StoreSpec(Generic[K, V]):
    """The declaration common to all stores. `changelog` overrides settings of its topic by the log's own names."""

    kind: ClassVar[str]
    traits: ClassVar[Traits]
    in_words: ClassVar[str] = "the definition of a store"

    name: str
    key: Serde[K]
    value: Serde[V]
    timestamped: bool = field(default=True, kw_only=True)
    engine: EngineKind = field(default="rocksdb", kw_only=True)
    caching: bool = field(default=True, kw_only=True)
    logging: bool = field(default=True, kw_only=True)
    changelog: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        check_name("store", self.name)
        problems = list(self._problems())
        if problems:
            raise BadConfig([f"store {self.name!r}: {problem}" for problem in problems])

    def _problems(self) -> list[str]:
        problems = []
        for part in ("key", "value"):
            if not isinstance(getattr(self, part), Serde):
                problems.append(f"{part} must be a serde such as standfast.serde.string, not {getattr(self, part)!r}")
        problems += flag_problems(timestamped=self.timestamped, caching=self.caching, logging=self.logging)
        settings = self.changelog if isinstance(self.changelog, Mapping) else None
        if settings is None or not all(isinstance(one, str) for pair in settings.items() for one in pair):
            problems.append(
                'changelog must be settings of the topic, as {"cleanup.policy": "delete"}, names and values text, '
                f"not {self.changelog!r:.100}"
            )
        else:
            problems += setting_problems("changelog", settings)
        if self.name == DEFAULT_FAMILY:
            problems.append("this name is kept for the task's own record; choose another")
        if self.engine not in ("rocksdb", "memory"):
            problems.append(f'engine must be "rocksdb" or "memory", not {self.engine!r}')
        return problems

    def _times(self, *names: str, least: int = 1) -> list[str]:
        given = {name: getattr(self, name) for name in names}
        return [
            f"{name} must be a whole number of milliseconds from {least} to 2**63-1, not {value!r}"
            for name, value in given.items()
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= TIME_MAX
        ]

    @property
    def from_source(self) -> bool:
        """Whether a source topic serves as the changelog: the store's own puts are in it already."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether several rows of one key and time are kept, each with its own sequence number."""
        return False

    @property
    def kept_ms(self) -> int:
        """Retention of rows in ms of observed stream time; TIME_MAX for stores that keep rows for ever."""
        return getattr(self, self.traits.retention) if self.traits.retention else TIME_MAX

    def changelog_of(self, app: str) -> str:
        """Name of the topic from which this application restores the store."""
        return changelog_topic(app, self.name)

    def definition(self) -> dict[str, Any]:
        """The form kept beside the data: every setting that the stored bytes depend on, as JSON values."""
        own = {one.name: getattr(self, one.name) for one in self.traits.settings}
        return {
            "kind": self.kind,
            "key": self.key.name,
            "value": self.value.name,
            "timestamped": self.timestamped,
            "logging": self.logging,
            # Without settings of None, so that definitions kept by earlier versions stay equal.
            **{name: value for name, value in own.items() if value is not None},
        }

    def declaration(self) -> dict[str, Any]:
        """As `definition`, as a program declares it: without the form of keys, which a store has from its making."""
        return self.definition() | {"key": sorted_keys(self.key, False).name}

    def placed_definition(self) -> dict[str, Any]:
        """As `definition`, with the engine that holds the rows."""
        return self.definition() | {"engine": self.engine}


@checked(BadConfig)
@dataclass(frozen=True)
class KeyValueStore(StoreSpec[K, V]):
    """Key to value; with `timestamped` each value carries the timestamp of its newest input.

    With `source_topic` the store holds that topic as a table: it has no changelog of its own and restores from the
    topic, up to the group's committed offset. Put each record of the topic, with its own key, value and timestamp.
    """

    kind: ClassVar[str] = "keyvalue"
    traits: ClassVar[Traits] = Traits(
        settings=(Setting("source_topic", "source", "text", needed=False, local=True),),
        plain=True,
    )

    source_topic: str | None = field(default=None, kw_only=True)

    @property
    def from_source(self) -> bool:
        """Whether a source topic serves as the changelog."""
        return self.source_topic is not None

    def changelog_of(self, app: str) -> str:
        """The source topic, or the store's own changelog."""
        return super().changelog_of(app) if self.source_topic is None else self.source_topic

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if self.source_topic is None:
            return problems
        try:
            check_topic(self.source_topic)
        except InvalidRequest as error:
            problems.append(f"source_topic: {error}")
        if not self.logging:
            problems.append("logging=False cannot go with source_topic, which the store is restored from: leave it out")
        if self.changelog:
            problems.append("changelog settings cannot go with source_topic: the topic is not the store's own")
        return problems


@checked(BadConfig)
@dataclass(frozen=True)
class WindowStore(StoreSpec[K, V]):
    """(key, window start) to value, kept for `retention_ms` of observed stream time."""

    kind: ClassVar[str] = "window"
    traits: ClassVar[Traits] = Traits(
        settings=(
            Setting("window_size_ms", "size"),
            Setting("retention_ms", "retention"),
            Setting("retain_duplicates", "duplicates", "flag", needed=False),
        ),
        plain=True,
        retention="retention_ms",
        cleanup=frozenset({"compact", "delete"}),
        kept_by="retention.ms",
        times=WINDOW_TIMES,
    )

    window_size_ms: int = field(kw_only=True)
    retention_ms: int = field(kw_only=True)
    retain_duplicates: bool = field(default=False, kw_only=True)

    @property
    def numbered(self) -> bool:
        """Whether duplicates are retained."""
        return self.retain_duplicates

    def _problems(self) -> list[str]:
        problems = super()._problems() + self._times("window_size_ms", "retention_ms")
        problems += flag_problems(retain_duplicates=self.retain_duplicates)
        if not problems and self.retention_ms < self.window_size_ms:
            problems.append(
                f"retention_ms {self.retention_ms} is below window_size_ms {self.window_size_ms}: a window would "
                "expire while it is still open; retention must be at least window size plus grace"
            )
        return problems


@checked(BadConfig)
@dataclass(frozen=True)
class SessionStore(StoreSpec[K, V]):
    """(key, session start, session end) to value. Session values carry no timestamp of their own."""

    kind: ClassVar[str] = "session"
    traits: ClassVar[Traits] = Traits(
        settings=(Setting("retention_ms", "retention"),),
        retention="retention_ms",
        cleanup=frozenset({"compact", "delete"}),
        kept_by="retention.ms",
        times=SESSION_TIMES,
    )

    timestamped: bool = field(default=False, kw_only=True)  # as in Kafka Streams: the key has the session's times
    retention_ms: int = field(kw_only=True)

    def _problems(self) -> list[str]:
        problems = super()._problems() + self._times("retention_ms")
        if self.timestamped:
            problems.append("a session store keeps no timestamps: its key holds start and end; leave timestamped out")
        return problems


@checked(BadConfig)
@dataclass(frozen=True)
class VersionedStore(StoreSpec[K, V]):
    """Key to a history of values, each valid from its timestamp, kept for `history_retention_ms`.

    With 0 reads give only the latest version of a key, and a put older than the observed stream time is refused.
    """

    kind: ClassVar[str] = "versioned"
    traits: ClassVar[Traits] = Traits(
        settings=(Setting("history_retention_ms", "history", least=0),),
        retention="history_retention_ms",
        kept_by="min.compaction.lag.ms",
        versions=True,
    )

    # Each version must reach the changelog, so a versioned store is never cached (as in Kafka Streams).
    caching: bool = field(default=False, kw_only=True)
    history_retention_ms: int = field(kw_only=True)

    def _problems(self) -> list[str]:
        problems = super()._problems() + self._times("history_retention_ms", least=0)
        if self.caching:
            problems.append("a versioned store cannot be cached: every version is logged; leave caching out")
        if not self.timestamped:
            problems.append("a versioned store always keeps timestamps; leave timestamped out")
        return problems


SPECS: Mapping[str, type[StoreSpec]] = {
    spec.kind: spec for spec in (KeyValueStore, WindowStore, SessionStore, VersionedStore)
}
TRAITS: Mapping[str, Traits] = {kind: spec.traits for kind, spec in SPECS.items()}


def store_name(store: str | StoreSpec) -> str:
    """The name of a store, given by its name or its definition."""
    return store.name if isinstance(store, StoreSpec) else store


def with_sorted_keys(spec: StoreSpec, on: bool) -> StoreSpec:
    """The store with the sorted form of its keys, or with the declared one; the same object if nothing changes."""
    key = sorted_keys(spec.key, on)
    return spec if key is spec.key else replace(spec, key=key)


def as_stored(specs: Mapping[str, StoreSpec], stored: Mapping[str, Any], *, looks: bool) -> dict[str, StoreSpec]:
    """The stores with the form of keys that their rows have, where it is the rows that say it.

    That is for rows without a log, and for every store where the caller only `looks`.
    """
    return {
        name: with_sorted_keys(spec, stored[name]["key"] == json_sorted.name)
        if name in stored and (looks or not spec.logging)
        else spec
        for name, spec in specs.items()
    }


def definition_changes(stored: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """Differences between a kept definition and the declared one, as `name: old -> new`."""
    return [
        f"{name}: {stored.get(name)!r} -> {declared.get(name)!r}"
        for name in sorted({*stored, *declared})
        if stored.get(name) != declared.get(name)
    ]
