"""Which topics of a log belong to an application, told by their names alone.

    <app>-<store>-changelog        of a store
    <app>-<name>-repartition       between its tasks, as are -broadcast and -subscription-...-topic (of Kafka Streams)
    <app>-standfast-members        of its group, on Kafka

A name can be read in two ways: `orders-eu-totals-changelog` is store `totals` of `orders-eu`, or `eu-totals` of
`orders`. It is ours for certain if the store is known; it is another's if that other application is there and its
name is the longer one; it is doubtful if the other's name is the shorter one.

Rules of this file: pure. A source topic is never internal, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

MEMBERS = "-standfast-members"
CHANGELOG = "-changelog"
BETWEEN = ("-repartition", "-broadcast", "-subscription-registration-topic", "-subscription-response-topic")


@dataclass(frozen=True, slots=True)
class AppTopics:
    """`changelogs` and `between` belong to the application; `doubtful` may, and `other` name who else may have them."""

    changelogs: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    doubtful: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str, str], ...] = ()


def app_topics(
    app: str, names: Iterable[str], *, groups: Iterable[str], known: Collection[str], sources: Collection[str]
) -> AppTopics:
    """Sort the topics of a log.

    `groups` are the groups of the log, `known` topics that certainly belong to the application (by its definitions),
    `sources` its source topics.
    """
    prefix = f"{app}-"
    apps = {group for group in groups if group != app}
    longer = sorted((one for one in apps if one.startswith(prefix)), key=len, reverse=True)
    shorter = sorted((one for one in apps if app.startswith(f"{one}-")), key=len, reverse=True)
    changelogs, between, doubtful, others = [], [], [], []
    for name in sorted(set(names)):
        if name in sources or not is_internal(prefix, name):
            continue
        other = next((one for one in longer if is_internal(f"{one}-", name)), None)
        if name not in known and other is not None:
            others.append((name, other))
        elif name not in known and shorter:
            doubtful.append((name, shorter[0]))
        elif name.endswith(CHANGELOG):
            changelogs.append(name)
        else:
            between.append(name)
    members = (f"{app}{MEMBERS}",)
    return AppTopics(tuple(changelogs), tuple(between), members, tuple(doubtful), tuple(others))


def is_internal(prefix: str, name: str) -> bool:
    """Whether a topic is named as one that an application makes for itself; `prefix` is its name and a dash."""
    return name.startswith(prefix) and any(
        name.endswith(suffix) and len(name) > len(prefix) + len(suffix) - 1 for suffix in (CHANGELOG, *BETWEEN)
    )


def store_of(app: str, changelog: str) -> str:
    """The store that a changelog is named for."""
    return changelog.removeprefix(f"{app}-").removesuffix(CHANGELOG)
