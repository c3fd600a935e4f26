"""The form of the keys of an application's stores and topics between tasks: those of `serde.json`, sorted or not.

    changelog, topic between tasks      its claim says it, for good; without a claim: sorted if the topic is new
    store without a changelog           its definition beside the rows says it (`TaskStores`); a new one is sorted
    table over a source topic           never: its bytes are the topic's, as those of sources and sinks are

A topic is new if the log never had a record of it and no task of this state directory knows its store. The log is asked
before the claims are read: another instance claims a topic before it writes the first record.

A topic between tasks is sorted only if everything is that its records meet: its task reads no other topic, whose keys
may stand in another partition and under other bytes, and has no table over one, and no store whose keys are not sorted.

Rules of this file: it asks nothing for keys of other serdes; it decides, and `Claims` writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from standfast.replication.log import Log, LogReader, TopicInfo
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.changelog import keys_of
from standfast.replication.topics.claims import PLAIN, SORTED, Claim, Claims, claim_of, sorted_in
from standfast.store.serde import json_sorted
from standfast.store.specs import StoreSpec, with_sorted_keys
from standfast.store.task.definitions_file import STORES_FILE, parse
from standfast.stream.task.groups import TaskGroup

Infos = Mapping[str, TopicInfo]


class KeyForms:
    """The forms of one application, as one of its instances finds them. `claims` None: another one's, only read."""

    def __init__(
        self,
        app: str,
        log: Log,
        reader: LogReader,
        path: Path,
        claims: Callable[[Callable[[str], bool]], Claims] | None,
    ) -> None:
        self._app = app
        self._log = log
        self._reader = reader
        self._path = path  # of the application's state directory
        self.claims = None if claims is None else claims(self._is_new)

    def wanted(self, spec: StoreSpec) -> StoreSpec:
        """The store as a new one would be."""
        return spec if spec.from_source else with_sorted_keys(spec, True)

    def of_stores(self, specs: Sequence[StoreSpec], topics: Infos) -> tuple[StoreSpec, ...]:
        """The stores with the forms of their keys; `topics` are their changelogs by store, which are claimed."""
        wanted = {spec.name: self.wanted(spec) for spec in specs}
        open_ = [spec for spec in specs if wanted[spec.name] is not spec and spec.logging]
        kept = self._sorted({topics[spec.name].name: topics[spec.name].topic_id for spec in open_})
        plain = {spec.name for spec in open_ if topics[spec.name].name not in kept}
        return tuple(spec if spec.name in plain else wanted[spec.name] for spec in specs)

    def claims_of(self, group: TaskGroup, topics: Mapping[str, str]) -> dict[str, Claim]:
        """The claims of those topics of a group that exist (name -> topic id), with the forms that new ones get."""
        found = {}
        for spec in group.specs:
            name = spec.changelog_of(self._app)
            if spec.logging and not spec.from_source and name in topics:
                found[name] = claim_of(name, topics[name], keys_of(self.wanted(spec)))
        between = {name: topics[name] for name in group.between if name in topics}
        sorting = bool(group.sorting & between.keys()) and self._all_sorted(group, found, between)
        for name, topic_id in between.items():
            keys = f"{PLAIN} {SORTED}" if sorting and name in group.sorting else PLAIN
            found[name] = claim_of(name, topic_id, keys)
        return found

    def topic_is_sorted(self, topic: str) -> bool:
        """Whether the keys of a topic between tasks are sorted, as it was claimed at the start."""
        return self.claims is not None and self.claims.is_sorted(topic)

    def _all_sorted(self, group: TaskGroup, changelogs: Mapping[str, Claim], between: Mapping[str, str]) -> bool:
        assert self.claims is not None
        met = {name: one.topic_id for name, one in changelogs.items() if one.is_sorted}
        met |= {name: topic_id for name, topic_id in between.items() if name in group.sorting}
        return self.claims.are_sorted_or_new(met)

    def _sorted(self, topics: Mapping[str, str]) -> set[str]:
        if self.claims is None:
            return sorted_in(self._log, self._app, topics)
        return {name for name in topics if self.claims.is_sorted(name)}

    def _is_new(self, topic: str) -> bool:
        if (kept := self._kept_serde(topic.removeprefix(f"{self._app}-").removesuffix("-changelog"))) is not None:
            return kept == json_sorted.name
        info = self._log.admin.describe_topic(topic)
        if info is None:
            return True
        ends = self._reader.written_ends(TopicPartition(topic, number) for number in range(info.partitions))
        return not any(ends.values())

    def _kept_serde(self, store: str) -> str | None:
        """The name of the key serde of a store that a task of this state directory has; None: no task has it."""
        for path in self._path.glob(f"*/{STORES_FILE}"):
            with suppress(OSError):  # another process may remove the task meanwhile
                kept = (parse(path.read_bytes()).stores or {}).get(store)
                if kept is not None:
                    return str(kept["key"])
        return None
