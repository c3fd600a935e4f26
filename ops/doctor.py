"""What the doctor needs to know of an application, from everywhere it is told.

    --store NAME:KIND      the command line           ┐
    state directory        definitions kept there     ├──> Application (what is needed) ──> rules ──> findings
    the log                its names, its group       ┘     survey (what is there)

Rules of this file: it asks and changes nothing; what is wrong is said by `standfast.replication.topic_rules` and, for
files, by `standfast.ops.doctor_local`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from standfast.ops.offline import OfflineTask, open_tasks, tasks_of
from standfast.ops.store_argument import StoreArgument, store_spec
from standfast.replication.app_topics import app_topics
from standfast.replication.changelog import changelog_need
from standfast.replication.log import Log, LogSurvey, TopicPolicy
from standfast.replication.topic_rules import Application, Changelog
from standfast.store.cut import parse_source_key
from standfast.store.errors import StandfastError
from standfast.store.kinds import definition_spec
from standfast.store.names import changelog_topic

_UNTOLD_MS = 10 * 24 * 3_600_000  # stands in for a time that was not given, and is not judged


@dataclass(frozen=True, slots=True)
class Known:
    """What state directories tell: stores, and the source topics of each group of tasks."""

    changelogs: tuple[Changelog, ...] = ()
    topics: Mapping[int, frozenset[str]] | None = None
    unreadable: tuple[tuple[str, str], ...] = ()  # directory of a task, why


@dataclass(frozen=True, slots=True)
class Looked:
    """An application and its log as they are."""

    application: Application
    survey: LogSurvey
    doubtful: tuple[tuple[str, str], ...]


def look(
    log: Log, app: str, *, stores: Sequence[StoreArgument], sources: Sequence[str], known: Known, value_max_bytes: int
) -> Looked:
    """Describe everything that belongs to an application. Raises Unavailable if the log does not answer."""
    named = [need_of(app, one) for one in stores]
    given = {one.store for one in named}
    changelogs = (*named, *(one for one in known.changelogs if one.store not in given))
    own = {one.topic for one in changelogs}
    committed = {at.topic for at in log.group(app).committed()}
    read = {topic for topics in (known.topics or {}).values() for topic in topics}
    from_source = {one.topic for one in changelogs if one.from_source}
    names, groups = [info.name for info in log.admin.topics()], log.admin.groups()
    internal = app_topics(app, names, groups=groups, known=own - from_source, sources=sources)
    inputs = sorted({*sources, *from_source, *((committed | read) - set(internal.between))})
    found = app_topics(app, names, groups=groups, known=own - from_source, sources=inputs)
    application = Application(
        app,
        changelogs,
        tuple(inputs),
        found.between,
        found.members,
        tuple(name for name in found.changelogs if name not in own),
        groups=known.topics,
        has_run=bool(committed) or bool(known.changelogs),
        value_max_bytes=value_max_bytes,
    )
    return Looked(application, log.admin.survey(application.topics), found.doubtful)


def need_of(app: str, store: StoreArgument) -> Changelog:
    """What a store of the command line needs of its changelog; times that were not given need nothing."""
    untold = {"window": "retention", "session": "retention", "versioned": "history"}.get(store.kind)
    given = store.options
    if untold is not None and untold not in given:
        given = {**given, untold: max(_UNTOLD_MS, given.get("size", 0))}
    need = changelog_need(app, store_spec(replace(store, options=given), TopicPolicy()))
    if untold is None or untold in store.options:
        return need
    return replace(need, policy=replace(need.policy, retention_ms=0, min_compaction_lag_ms=0))


def known_of(app: str, tasks: Iterable[OfflineTask]) -> Known:
    """What the tasks' own records say."""
    changelogs: dict[str, Changelog] = {}
    topics: dict[int, set[str]] = {}
    unreadable = []
    for task in tasks:
        try:
            with open_tasks([task]) as (opened,):
                read = {parse_source_key(key)[0] for key in opened.cut.sources}
                topics.setdefault(task.task.group, set()).update(read)
                for name, definition in opened.definitions.items():
                    need = _need_of_definition(app, name, definition, task.task.group)
                    if need is not None:
                        changelogs[name] = need
        except StandfastError as error:
            unreadable.append((str(task.path), str(error)))
    return Known(
        tuple(changelogs.values()),
        {number: frozenset(names) for number, names in topics.items() if names} or None,
        tuple(unreadable),
    )


def _need_of_definition(app: str, name: str, definition: dict[str, Any], group: int) -> Changelog | None:
    if not definition.get("logging", True):
        return None
    need = changelog_need(app, definition_spec(name, definition), group)
    assert need.from_source or need.topic == changelog_topic(app, name)
    return need


def app_tasks(state_dir: Path, app: str) -> list[OfflineTask]:
    """Tasks of an application below a state directory; none where it has none."""
    return tasks_of(app, state_dir / app)
