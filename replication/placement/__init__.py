"""Placement of tasks: managed by a leader (`place`), or of standbys beside a consumer group (`place_standbys`).

model  <── look <── actives (quotas) <── standbys <── place      a round of managed placement
reasons                                                          the words of its choices
records, explained (ranges, formats) <── topic                   the placement topic
seen                                                             a placement as people see it
group_standbys                                                   placement `group`: every member works it out alike
workers                                                          the tasks of one instance over its worker processes
"""

from standfast.replication.placement.group_standbys import PlacedStandbys, may_release, place_standbys
from standfast.replication.placement.model import (
    Assignment,
    Away,
    Copy,
    CopyState,
    Move,
    MoveKind,
    PlacedMember,
    PlacementSettings,
    Reason,
    Round,
    View,
)
from standfast.replication.placement.place import is_changed, place
from standfast.replication.placement.reasons import words

__all__ = [
    "Assignment",
    "Away",
    "Copy",
    "CopyState",
    "PlacedMember",
    "Move",
    "MoveKind",
    "PlacedStandbys",
    "Reason",
    "Round",
    "PlacementSettings",
    "View",
    "is_changed",
    "may_release",
    "place",
    "place_standbys",
    "words",
]
