"""Facts about an application for the doctor, from all of their sources.

    --store NAME:KIND      the command line           ┐
    state directory        definitions kept there     ├──> Application (the needs) ──> rules ──> findings
    the log                its names, its group       ┘     survey (the topics as they are)

Rules of this file: it asks and changes nothing; `standfast.replication.topics.rules` judges the topics,
`standfast.ops.doctor.local` the files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from standfast.ops.config.store_argument import StoreArgument, store_spec
from standfast.ops.doctor.state import StoreOnDisk
from standfast.ops.observe.offline import OfflineStores, open_tasks
from standfast.replication.log import Log, LogSurvey, TopicPolicy
from standfast.replication.metadata_parts import source_offsets
from standfast.replication.topics.app_topics import CHANGELOG, app_topics, is_internal
from standfast.replication.topics.changelog import changelog_need
from standfast.replication.topics.claims import claimants
from standfast.replication.topics.rules import Application, Changelog
from standfast.restore.verify.at_rest import TaskAtRest, tasks_of
from standfast.store.errors import StandfastError, UnknownStore
from standfast.store.names import changelog_topic, few
from standfast.store.task.commit_record import parse_source_key
from standfast.store.types.kinds import definition_spec

_UNKNOWN_MS = 10 * 24 * 3_600_000  # replaces a time that was not given, and is not judged


@dataclass(frozen=True, slots=True)
class Known:
    """Facts from state directories: stores, the source topics of each group of tasks, the position of each store."""

    changelogs: tuple[Changelog, ...] = ()
    topics: Mapping[int, frozenset[str]] | None = None
    unreadable: tuple[tuple[str, str], ...] = ()  # (directory of a task, reason)
    kept: tuple[StoreOnDisk, ...] = ()


@dataclass(frozen=True, slots=True)
class DoctorView:
    """An application and its log at one moment."""

    application: Application
    survey: LogSurvey
    doubtful: tuple[tuple[str, str], ...]


def look(
    log: Log,
    app: str,
    *,
    stores: Sequence[StoreArgument],
    sources: Sequence[str],
    known: Known,
    value_max_bytes: int,
    outputs: Sequence[str] = (),
) -> DoctorView:
    """Describe everything that belongs to an application.

    Raises Unavailable if the log does not answer, UnknownStore if it has nothing of the application and the command
    line names no store.
    """
    # The command line goes before the kept definitions: it may name a store as it is going to be.
    named = [need_of(app, one) for one in stores]
    given = {one.store for one in named}
    changelogs = (*named, *(one for one in known.changelogs if one.store not in given))
    own = {one.topic for one in changelogs}
    committed = {at.topic for at in source_offsets(log.group(app).committed())}
    read = {topic for topics in (known.topics or {}).values() for topic in topics}
    from_source = {one.topic for one in changelogs if one.from_source}
    infos, groups = log.admin.topics(), log.admin.groups()
    names = [info.name for info in infos]
    claimed = claimants(log, app, {info.name: info.topic_id for info in infos if is_internal(f"{app}-", info.name)})
    # Twice: the inputs are known only once the topics between tasks are, which the group has committed offsets of too;
    # and with the inputs known, none of them is taken for a topic of the application's own.
    internal = app_topics(app, names, groups=groups, known=own - from_source, sources=sources, claimed=claimed)
    inputs = sorted({*sources, *from_source, *((committed | read) - set(internal.between))})
    found = app_topics(app, names, groups=groups, known=own - from_source, sources=inputs, claimed=claimed)
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
        outputs=tuple(dict.fromkeys(outputs)),
    )
    survey = log.admin.survey(application.topics)
    own = {*found.changelogs, *found.between, *found.members, *own}
    # A mistyped name must be an error, not an application with "0 wrong".
    there = application.has_run or app in groups or any(survey.topics.get(name) is not None for name in own)
    if not there and not stores:
        raise UnknownStore(f"{log.address} has nothing of application {app!r}{_nearest(app, groups, names)}")
    return DoctorView(application, survey, found.doubtful)


def _nearest(app: str, groups: Sequence[str], names: Sequence[str]) -> str:
    near = difflib.get_close_matches(app, groups, 1, 0.6)
    if near:
        return f": did you mean {near[0]!r}?"
    # A group is gone once its offsets have expired; the changelogs still have the application's name.
    changelogs = [name for name in names if name.endswith(CHANGELOG)]
    near = difflib.get_close_matches(f"{app}-", [name[: len(app) + 2] for name in changelogs], 1, 0.6)
    if near:
        topic = next(name for name in changelogs if name.startswith(near[0]))
        return f": did you mean the application of topic {topic!r}?"
    known = few(groups)
    before = "before its first start, name its stores with --store NAME:KIND"
    return f", it has {known or 'none at all'}: check --app and --log; {before}"


def need_of(app: str, store: StoreArgument) -> Changelog:
    """The needs of a store of the command line for its changelog; missing times need nothing."""
    given = store.options
    # A definition needs all of its times: the missing ones get a stand-in, whose needs are taken out again below.
    unknown = [one.word for one in store.from_topic if one.word not in given]
    given = {**given, **dict.fromkeys(unknown, max(_UNKNOWN_MS, given.get("size", 0)))}
    need = changelog_need(app, store_spec(replace(store, options=given), TopicPolicy()))
    if not unknown:
        return need
    return replace(need, policy=replace(need.policy, retention_ms=0, min_compaction_lag_ms=0))


def known_of(app: str, tasks: Iterable[TaskAtRest]) -> Known:
    """The facts from the tasks' own records."""
    changelogs: dict[str, Changelog] = {}
    topics: dict[int, set[str]] = {}
    unreadable = []
    kept: list[StoreOnDisk] = []
    for task in tasks:
        try:
            with open_tasks([task]) as (opened,):
                read = {parse_source_key(key)[0] for key in opened.cut.sources}
                topics.setdefault(task.task.group, set()).update(read)
                for name, definition in opened.definitions.items():
                    need = _need_of_definition(app, name, definition, task.task.group)
                    if need is not None:
                        changelogs[name] = need
                        kept += _kept_of(opened, name, need)
        except StandfastError as error:  # a finding about this task; the others are still worth a look
            unreadable.append((str(task.path), str(error)))
    return Known(
        tuple(changelogs.values()),
        {number: frozenset(names) for number, names in topics.items() if names} or None,
        tuple(unreadable),
        tuple(kept),
    )


def _kept_of(opened: OfflineStores, name: str, need: Changelog) -> list[StoreOnDisk]:
    # A store in memory is always restored from the beginning, so its position cannot be wrong.
    position = opened.cut.positions.get(name)
    if position is None or opened.definitions[name]["engine"] == "memory":
        return []
    at = opened.task
    return [StoreOnDisk(at.task, at.path, name, need.topic, need.from_source, position, opened.has_rows(name))]


def _need_of_definition(app: str, name: str, definition: dict[str, Any], group: int) -> Changelog | None:
    if not definition.get("logging", True):
        return None
    need = changelog_need(app, definition_spec(name, definition), group)
    assert need.from_source or need.topic == changelog_topic(app, name)
    return need


def app_tasks(state_dir: Path, app: str) -> list[TaskAtRest]:
    """Tasks of an application below a state directory; may be empty."""
    return tasks_of(app, state_dir / app)
