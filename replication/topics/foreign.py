"""Look-up of another application's changelogs: it creates no topics and does not judge their settings.

Rules of this file: it asks the admin of a log, and its errors name existing changelogs in place of an absent one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from standfast.replication.log import LogAdmin, TopicInfo
from standfast.store.errors import BadConfig, UnknownStore
from standfast.store.names import few
from standfast.store.specs import StoreSpec


def foreign_changelog(admin: LogAdmin, app: str, store: str, topic: str) -> TopicInfo:
    """The changelog of a store. Raises UnknownStore, which lists the changelogs that the application has."""
    info = admin.describe_topic(topic)
    if info is not None:
        return info
    # All topics are listed only for the error: on a large cluster that is many.
    prefix, suffix = f"{app}-", "-changelog"
    names = (each.name for each in admin.topics())
    has = [name[len(prefix) : -len(suffix)] for name in names if name.startswith(prefix) and name.endswith(suffix)]
    known = f"it has changelogs of {few(sorted(has))}" if has else "it has none: check the id, or start it first"
    raise UnknownStore(f"there is no changelog {topic!r} for store {store!r} of application {app!r}; {known}")


def foreign_changelogs(
    admin: LogAdmin, app: str, specs: Iterable[StoreSpec], partitions: int
) -> Mapping[str, TopicInfo]:
    """The changelogs of stores, by store. Raises UnknownStore; BadConfig for another number of partitions."""
    found = {spec.name: foreign_changelog(admin, app, spec.name, spec.changelog_of(app)) for spec in specs}
    problems = [
        f"changelog {info.name} of store {name!r} has {info.partitions} partitions, and had {partitions} when the "
        "replica was opened: open it again"
        for name, info in found.items()
        if info.partitions != partitions
    ]
    if problems:
        raise BadConfig(problems)
    return found
