"""Finds the topics of a log that belong to an application, by their names alone.

    <app>-<store>-changelog        of a store
    <app>-<name>-repartition       between its tasks, as are -broadcast and -subscription-...-topic (of Kafka Streams)
    <app>-<name>-source-offsets    without records: offsets of a source of one's own are committed as this topic's
    <app>-standfast-members        of its group, on Kafka
    <app>-standfast-placement      of its instances, with managed placement
    <app>-standfast-restoring      while it is restored under a new name

A name can have two readings: `orders-eu-totals-changelog` is store `totals` of `orders-eu`, or `eu-totals` of `orders`.
The topic is certainly ours if the store is known; it is another application's if that one exists and has the longer
name; it is doubtful if the other one's name is the shorter one.

Rules of this file: pure. A source topic is never internal, even with such a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

MEMBERS = "-standfast-members"
PLACEMENT = "-standfast-placement"
RESTORING = "-standfast-restoring"
CHANGELOG = "-changelog"
SOURCE_OFFSETS = "-source-offsets"
BETWEEN = (
    "-repartition",
    "-broadcast",
    "-subscription-registration-topic",
    "-subscription-response-topic",
    SOURCE_OFFSETS,
)


@dataclass(frozen=True, slots=True)
class AppTopics:
    """`changelogs` and `between` belong to the application; `doubtful` and `others` are (topic, other application)."""

    changelogs: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    doubtful: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str, str], ...] = ()


def app_topics(
    app: str,
    names: Iterable[str],
    *,
    groups: Iterable[str],
    known: Collection[str],
    sources: Collection[str],
    claimed: Mapping[str, str] | None = None,
) -> AppTopics:
    """Sort the topics of a log.

    `groups` are the groups of the log, `known` topics that certainly belong to the application (by its definitions),
    `sources` its source topics, `claimed` the application that has claimed a topic.
    """
    # A reset deletes these topics, so another group's name counts as an application, even if it is only a consumer's.
    prefix = f"{app}-"
    apps = {group for group in groups if group != app}
    longer = sorted((one for one in apps if one.startswith(prefix)), key=len, reverse=True)
    shorter = sorted((one for one in apps if app.startswith(f"{one}-")), key=len, reverse=True)
    changelogs, between, doubtful, others = [], [], [], []
    for name in sorted(set(names)):
        if name in sources or not is_internal(prefix, name):
            continue
        owner = (claimed or {}).get(name, app if name in known else None)
        other = next((one for one in longer if is_internal(f"{one}-", name)), None)
        if owner not in (None, app):
            others.append((name, owner))
        elif owner is None and other is not None:
            others.append((name, other))
        elif owner is None and shorter:
            doubtful.append((name, shorter[0]))
        elif name.endswith(CHANGELOG):
            changelogs.append(name)
        else:
            between.append(name)
    members = (f"{app}{MEMBERS}", f"{app}{PLACEMENT}", f"{app}{RESTORING}")
    return AppTopics(tuple(changelogs), tuple(between), members, tuple(doubtful), tuple(others))


def is_internal(prefix: str, name: str) -> bool:
    """Whether a topic has the name of an application's own topics; `prefix` is the application's name and a dash."""
    # The length test refuses `<app>-changelog`, in which prefix and suffix share a dash.
    return name.startswith(prefix) and any(
        name.endswith(suffix) and len(name) > len(prefix) + len(suffix) - 1 for suffix in (CHANGELOG, *BETWEEN)
    )


def store_of(app: str, changelog: str) -> str:
    """The store in a changelog's name."""
    return changelog.removeprefix(f"{app}-").removesuffix(CHANGELOG)
