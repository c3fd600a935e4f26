"""Settings: a TOML file, then STANDFAST_SECTION__KEY from the environment, then flags; the later one wins.

    file, environment, flags ──sources.py──> values with their places ──here──> Config of types.py, or BadConfig

Rules of this file: it merges and checks; the settings stand in `types.py`. Every problem of all three sources is
reported at once, as `file:line: section.key: problem, and the value`; an unknown name comes with the nearest known one;
a value that may be a secret is never repeated. Nothing is opened or created. Relative paths are relative to the working
directory.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from standfast.ops.config.rules import kafka_name, together
from standfast.ops.config.sources import GivenValue, from_env, from_file, from_flags
from standfast.ops.config.types import SECTIONS, Config, StoreConfig, settings_of
from standfast.ops.config.values import parse_duration, parse_size, plain_text
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_name, few
from standfast.store.specs import StoreSpec

__all__ = ["Loaded", "Settings", "load_config", "load_settings", "parse_duration", "parse_size"]

VALUE_SHOWN_MAX = 80
PROBLEMS_MAX = 100  # a file of another kind has thousands, and looking for near names costs time for each
STORES = "stores"
KAFKA = "kafka"
CHANGELOG = "changelog"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that commands of an instance need, flat. Sizes in bytes, times in milliseconds."""

    app: str | None = None
    log: str | None = None
    state_dir: Path | None = None
    guarantee: str = "exactly_once"
    standby_replicas: int = 0
    partitions: int | None = None
    commit_interval_ms: int | None = None
    gate: str = "all"
    discovery_interval_ms: int | None = 60_000
    memory_bytes: int = 256 << 20
    cache_max_bytes: int = 10 << 20
    value_max_bytes: int = 1_000_000
    lease_ms: int = 1_500
    max_stall_ms: int = 30_000
    host: str = "127.0.0.1"
    metrics_port: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with their origins; a setting without an origin is a default. `texts`: values as the file spells
    them."""

    config: Config
    origins: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, Any] = field(default_factory=dict)


def load_config(path: Path | None, env: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Loaded:
    """Read all sources. `flags` maps `section.key` to a value, None meaning not given.

    Raises BadConfig with every problem of the file, the environment and the flags.
    """
    reading = _Reading()
    problems = reading.problems
    for one in (*from_file(path, env, problems), *from_env(env), *from_flags(flags or {})):
        reading.take(one)
    loaded = reading.loaded()
    if not problems:  # a value that was refused stands at its default, which must not be judged beside the others
        problems += together(loaded.config, loaded.origins)
    if problems:
        more = len(problems) - PROBLEMS_MAX
        raise BadConfig(problems[:PROBLEMS_MAX] + ([f"and {more} more problems"] if more > 0 else []))
    return loaded


def load_settings(path: Path | None, env: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings for commands that talk to an instance, a log or files. Raises BadConfig."""
    config = load_config(path, env, flags).config
    return Settings(
        app=config.app.name,
        log=config.log_address,
        state_dir=config.app.state_dir,
        guarantee=config.app.guarantee,
        standby_replicas=config.app.standby_replicas,
        partitions=config.app.partitions,
        commit_interval_ms=config.app.commit_interval_ms,
        gate=config.app.gate,
        discovery_interval_ms=config.app.discovery_interval_ms,
        memory_bytes=config.store.memory_bytes,
        cache_max_bytes=config.store.cache_bytes,
        value_max_bytes=config.store.value_max_bytes,
        lease_ms=config.group.lease_ms,
        max_stall_ms=config.group.max_stall_ms,
        host=config.ops.host,
        metrics_port=config.ops.metrics_port,
    )


class _Reading:
    """The values of all sources by section; later values replace earlier ones."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        self._stores: dict[str, dict[str, Any]] = {}
        self._store_places: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        self._origins: dict[str, str] = {}
        self._texts: dict[str, Any] = {}

    def take(self, given: GivenValue) -> None:
        section, *rest = given.name
        if section == KAFKA and rest:
            self._take_kafka(given)
        elif section == STORES and rest and (len(rest) > 1 or given.value == {}):
            self._take_store(given)
        # A section's table without values is fine, and so is the empty table of a store: it has a default kind.
        elif section in SECTIONS and rest:
            self._take_setting(given, settings_of(SECTIONS[section]), self._sections[section], section, ".".join(rest))
        elif given.value != {} or section not in (*SECTIONS, STORES, KAFKA):
            self._unknown(given)

    def loaded(self) -> Loaded:
        """The merged settings; invalid stores are added to `problems`."""
        sections = {name: SECTIONS[name](**values) for name, values in self._sections.items()}
        config = Config(**sections, stores=tuple(self._specs()), kafka=self._kafka)
        return Loaded(config, self._origins, self._texts)

    def _take_setting(
        self, given: GivenValue, known: Mapping[str, Any], into: dict[str, Any], prefix: str, key: str
    ) -> None:
        setting = known.get(key)
        name = f"{prefix}.{key}"
        if setting is None:
            self._unknown(given)
            return
        try:
            into[setting.name] = setting.metadata["reader"].parse(given.value)
        except BadConfig as error:
            self.problems += [f"{given.where}: {name}: {problem}" for problem in error.problems]
        except (ValueError, InvalidRequest) as error:
            # A value that `${NAME}` put in may be a secret, whichever setting it was written at.
            shown = setting.metadata["shown"] and given.text is None
            self.problems.append(f"{given.where}: {name}: {error}{_got(given.value) if shown else ''}")
        else:
            self._came_from(name, given)

    def _take_store(self, given: GivenValue) -> None:
        store, *rest = given.name[1:]
        if "environment" in given.where:  # names of variables have no case and no dashes: find the store meant
            same = (name for name in self._stores if name.lower().replace("-", "_").replace(".", "_") == store)
            store = next(same, store)
        try:
            check_name("store", store)
        except InvalidRequest as error:
            self.problems.append(f"{given.where}: stores: {error}")
            return
        values = self._stores.setdefault(store, {})
        self._store_places.setdefault(store, given.where)
        if rest[:1] == [CHANGELOG] and len(rest) > 1:
            try:
                values.setdefault(CHANGELOG, {})[".".join(rest[1:])] = plain_text(given.value)
                self._came_from(f"{STORES}.{store}.{CHANGELOG}", given._replace(text=None))
            except ValueError as error:
                self.problems.append(f"{given.where}: {_plain('.'.join(given.name))}: {error}")
        elif rest:
            self._take_setting(given, settings_of(StoreConfig), values, f"{STORES}.{store}", ".".join(rest))

    def _take_kafka(self, given: GivenValue) -> None:
        try:
            name, value = kafka_name(".".join(given.name[1:]), "environment" in given.where), plain_text(given.value)
        except ValueError as error:  # without the value, which may be a secret
            self.problems.append(f"{given.where}: {_plain('.'.join(given.name))}: {error}")
            return
        self._kafka[name] = value
        self._came_from(f"{KAFKA}.{name}", given)

    def _came_from(self, name: str, given: GivenValue) -> None:
        self._origins[name] = given.where
        self._texts.pop(name, None)  # a flag over `${NAME}` of the file: the file's text shows no longer
        if given.text is not None:
            self._texts[name] = given.text

    def _specs(self) -> Iterable[StoreSpec]:
        for name, values in self._stores.items():
            try:
                yield StoreConfig(**values).spec(name)
            except BadConfig as error:
                where = f"{self._store_places[name]}: {STORES}.{name}"
                self.problems += [f"{where}: {one.removeprefix(f'store {name!r}: ')}" for one in error.problems]
            except InvalidRequest as error:
                self.problems.append(f"{self._store_places[name]}: {STORES}.{name}: {error}")

    def _unknown(self, given: GivenValue) -> None:
        name = _plain(".".join(given.name))
        what = "no such setting" if len(given.name) > 1 else "a setting outside a section"
        if name in OF_PROGRAM:
            self.problems.append(f"{given.where}: {name}: {what}: {OF_PROGRAM[name]}")
            return
        hint = _nearest(given.name) if len(self.problems) < PROBLEMS_MAX else ""  # no more problems are reported
        self.problems.append(f"{given.where}: {name}: {what}{hint}")


_CLIENTS = "the clients of a sidecar process the records"
# Features of an application's program, which people look for here.
OF_PROGRAM: Mapping[str, str] = {
    "app.sources": f"sources of one's own are for sf.App, in the program; {_CLIENTS}, and read their own sources",
    "app.steps": f"asynchronous steps are for sf.App, in the program; {_CLIENTS}, and make their own calls",
    "app.on_error": f"it is an argument of sources and steps, in the program; {_CLIENTS}, and write dead letters",
    "app.tracing": f"it is an argument of sf.App, in the program; {_CLIENTS}, and make their spans",
    "snapshots.checkpoint_every": "checkpoint_every_ms= of SnapshotPolicy, in the program of an sf.App, whose leader "
    "takes one cut over all tasks; a sidecar has no leader",
}


def _got(value: Any) -> str:
    text = repr(value)
    return f", got {text if len(text) <= VALUE_SHOWN_MAX else text[:VALUE_SHOWN_MAX] + '...'}"


def _plain(name: str) -> str:
    """A name that is safe to print on a terminal."""
    name = name if len(name) <= VALUE_SHOWN_MAX else name[:VALUE_SHOWN_MAX] + "..."
    return name if name.isprintable() else repr(name)


def _nearest(name: tuple[str, ...]) -> str:
    section, key = name[0], name[-1]
    if section == STORES and len(name) > 2:
        own = list(settings_of(StoreConfig))
        near = difflib.get_close_matches(key[:VALUE_SHOWN_MAX], own, 1, 0.6)
        return f", did you mean {near[0]!r}?" if near else f"; a store has {few(own)}"
    known = [f"{one}.{setting}" for one in SECTIONS for setting in settings_of(SECTIONS[one])]
    near = difflib.get_close_matches(".".join(name)[:VALUE_SHOWN_MAX], known, 1, 0.6)
    if not near:  # the key may stand in another section
        near = [one for one in known if one.partition(".")[2] == key]
    if near:
        return f", did you mean {near[0]!r}?"
    inside = [one for one in known if one.startswith(f"{section}.")]
    return f"; there are {few(inside)}" if inside else f"; the sections are {', '.join([*SECTIONS, STORES, KAFKA])}"


assert {one.name for one in fields(Config)} == {*SECTIONS, STORES, KAFKA}, "a section that is not read"
