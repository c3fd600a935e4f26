"""Checks of the storage of an application's snapshots.

Rules of this file: it reads manifests and lists files; it writes no probe, as the doctor changes nothing.
"""

from __future__ import annotations

from standfast.replication.topics.rules import Finding
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.opening import open_existing
from standfast.store.errors import Corruption, InvalidRequest, Unavailable

PATIENCE_S = 5
SHOWN_MAX = 3


def storage_findings(to: str, app: str) -> list[Finding]:
    """A finding if the storage does not answer, or snapshots in it cannot be read. Raises BadConfig for its address."""
    try:
        storage = open_existing(to, app, patience_s=PATIENCE_S)
    except InvalidRequest:
        return []  # no snapshot was ever made
    where = f"storage {storage.where}"
    try:
        found = listed(storage)
    except (Unavailable, Corruption) as error:
        return [
            Finding(
                "snapshots-unreachable",
                "warning",
                where,
                "cannot be read",
                f"{error}",
                "make it reachable: no snapshot is made meanwhile, and a task without local state reads its changelog",
            )
        ]
    if not found.broken:
        return []
    some = "; ".join(f"{name}: {why}" for name, why in sorted(found.broken.items())[:SHOWN_MAX])
    return [
        Finding(
            "snapshots-unreadable",
            "warning",
            where,
            f"has {len(found.broken)} snapshots that cannot be read, and {len(found.whole)} whole ones",
            f"a restore passes them over: {some}",
            "if reads of this machine come back damaged, correct the network, proxies or disks before the storage: the "
            "log of an instance says so; else make new snapshots, and remove the damaged objects",
            f"standfast snapshot verify --from {to.partition('?')[0]} --app {app}",
        )
    ]
