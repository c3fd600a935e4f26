"""Findings about the claims of internal topics, where more than one application's name fits a topic.

Rules of this file: it asks the log and judges; `standfast.replication.topics.claims` says what a claim is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from standfast.replication.log import Log, TopicSurvey
from standfast.replication.topics.claims import Rival, claimants, other_readings, refusal
from standfast.replication.topics.rules import Application, Finding
from standfast.store.names import few


def claim_findings(log: Log, app: Application, topics: Mapping[str, TopicSurvey | None]) -> Iterator[Finding]:
    """Topics that another application claims, or that this one has not claimed, and claims that cannot be read."""
    own = [one.topic for one in app.changelogs if not one.from_source]
    there = {name: topic.info.topic_id for name in (*own, *app.repartitions) if (topic := topics.get(name)) is not None}
    others = {name: found for name in there if (found := other_readings(app.name, name))}
    claimed = claimants(log, app.name, {name: there[name] for name in others})
    for name, owner in sorted(claimed.items()):
        if owner != app.name:
            yield Finding(
                "topic-claimed",
                "error",
                f"topic {name}",
                f"is claimed by application {owner!r}",
                f"the names of both applications fit it, and {app.name} refuses to start",
                refusal(app.name, Rival(name, owner, asks=False)),
            )
    if free := sorted(others.keys() - claimed.keys()):
        names = few(sorted({one for name in free for one in others[name]}))
        yield Finding(
            "topic-unclaimed",
            "warning",
            f"topics {few(free)}",
            f"are not claimed by application {app.name!r}",
            f"an application {names} would take them for its own, since its name fits them as well: an application "
            "claims its topics at its first start with a version that has claims, and one of Kafka Streams never does",
            "start the application again",
        )
    hidden = [one for one, notes in log.notes_of({one for found in others.values() for one in found}).items()
              if notes is None]  # fmt: skip
    if hidden:
        yield Finding(
            "claims-unreadable",
            "warning",
            f"applications {few(hidden)}",
            "may have claimed topics whose names fit this one as well, and this login may not read their claims",
            f"{app.name} starts although such a topic may be another application's",
            f"allow READ of {few(f'{one}-standfast-members' for one in hidden)}, unless there is no such application",
        )
