"""Take-over of tasks without an owner: every member decides it, with the same result, from the same view of the group.

    lost its owner -- a live member stands by for it --> the first such member by id; of several an idle one
        |
        +------------ no member does ------------------> the first live member by id that takes any task
    never owned -----------------------------------------^   (no member takes any: the task stays unowned)

    A task without any earlier owner has no lease to run out: a mere standby waits for its first owner.

    metadata of a member's join, compact JSON, names in this order:
    {"standfast":1,"active":["0_0","0_1"],"standby":["0_2"],"takes_any":false}   and "warm":["0_2"] if any is,
    "managed":{"slots":1,"tags":{},...} of one that a leader assigns tasks to, which are in the placement topic
    "process":["5f0c2a9b1d3e4f60","process 17 on host-1, /srv/state/app"]; older versions write none

Where a leader places the tasks, the copies of an instance that is gone do not wait for its decision:

    valid generation: task ── active on an instance that is gone
        ├── the log gave it to another live instance since ──────────────────────> that one runs it
        ├── a copy here, near the end, the first of the live ones ───────────────> claimed now, if it is free
        ├── the k-th of them ────────────────────────────────────────────────────> k times 50 ms later, likewise
        └── none ────────────────────────────────────────────────────────────────> the leader decides

    claimed ──> it runs here, beside the generation ──> the next one of the leader, which reads the claim and keeps it

Where the leader decides before it reads a claim, and gives the task to another copy, the task moves again, in order.

Rules of this file: pure; no group, clock or lease. A member in the view is live: its lease has not run out. Two
members may see different views for a moment; the log's `writer(..., if_free=True)` then lets only one of them win.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import GroupView
from standfast.replication.offsets import TaskId
from standfast.store.errors import InvalidRequest

FORMAT = 1
TURN_MS = 50  # between the claims of two copies: the first one is in the log by then


class Free(IntEnum):
    """Whether a task may be opened here, as far as the group and the reports of its members say."""

    NO = 0
    UNOWNED = 1  # no live instance owns it: it is claimed only if that is so at the log as well
    GIVEN = 2  # its owner reports that it runs the task no more, or is this instance


@dataclass(frozen=True, slots=True)
class MemberTraits:
    """Facts about an instance that its leader needs, and that do not change while it runs.

    `program` stands for the groups of its tasks, with their topics and stores: only equal ones may share tasks.
    `max_tasks`: the bound of its active tasks; None for no bound, and then left out of the text, as in older versions.
    """

    slots: int = 1
    tags: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    max_tasks: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """The process that wrote a member's metadata: a random token, and words that name it."""

    token: str
    where: str


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member's active tasks and standbys (`warm`: caught up), and whether it offers to take any task.

    `managed`: a leader assigns its tasks, which the other fields do not list.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    takes_any: bool = False
    warm: frozenset[TaskId] = frozenset()
    managed: MemberTraits | None = None
    process: Process | None = None

    def to_json(self) -> str:
        """The text to join the group with."""
        content: dict[str, Any] = {
            "standfast": FORMAT,
            "active": [str(task) for task in sorted(self.active)],
            "standby": [str(task) for task in sorted(self.standby)],
            "takes_any": self.takes_any,
        }
        if self.warm:  # left out when empty, so that the text stays that of versions that know no warm standbys
            content["warm"] = [str(task) for task in sorted(self.warm)]
        if self.managed:
            content["managed"] = {name: one for name, one in asdict(self.managed).items() if one is not None}
        if self.process:
            content["process"] = [self.process.token, self.process.where]
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> MemberPlan:
        """Inverse of to_json; an empty text is an empty plan. Raises InvalidRequest for any other text."""
        if not text:
            return cls()
        try:
            content = json.loads(text)
            if content["standfast"] != FORMAT:
                raise InvalidRequest(
                    f"member metadata has format {content['standfast']!r}, this version reads {FORMAT}: "
                    "run the same version of standfast on all members of a group"
                )
            told = (content["active"], content["standby"], content.get("warm", ()))
            active, standby, warm = (frozenset(map(TaskId.parse, tasks)) for tasks in told)
            managed = content.get("managed")
            traits = None if managed is None else _traits(managed)
            token, where = content.get("process", ("", ""))
            process = Process(str(token), str(where)) if token else None
            return cls(active, standby, content["takes_any"] is True, warm, traits, process)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(
                f"member metadata {text[:200]!r} is not a standfast plan ({error!r}): "
                "give this group a name that no other software uses"
            ) from error


def _traits(told: Mapping[str, Any]) -> MemberTraits:
    bound = told.get("max_tasks")
    return MemberTraits(
        int(told["slots"]), dict(told["tags"]), str(told["program"]), None if bound is None else max(int(bound), 1)
    )


def plans(view: GroupView) -> dict[str, MemberPlan]:
    """Plans of the live members by id. Raises InvalidRequest naming a member with unreadable metadata."""
    found = {}
    for member in view.members:
        try:
            found[member.member_id] = MemberPlan.from_json(member.metadata)
        except InvalidRequest as error:
            raise InvalidRequest(f"member {member.member_id!r}: {error}") from error
    return found


def decide(
    me: str,
    members: Mapping[str, MemberPlan],
    owners: Mapping[TaskId, str],
    tasks: Iterable[TaskId],
    busy: Mapping[str, Busy] = MappingProxyType({}),
) -> frozenset[TaskId]:
    """Those of `tasks` that `me` must take now.

    `members` are the live ones. A task is owned while its last owner is among them, or while one of them runs it by
    its own plan (it may not have opened its writer yet). `me` takes back tasks that it owned and does not run: it was
    restarted before its lease ran out. If `me` is not in `members`, it has lost its own lease and takes no task: it
    must join again first. `busy`: members with a record in hand; of several standbys the idle one takes over.
    """
    if me not in members:
        return frozenset()
    running = frozenset().union(*(plan.active for plan in members.values()))
    # Also without an owner: a member publishes its plan before it opens the writer.
    free = [task for task in tasks if task not in running]
    mine = frozenset(task for task in free if owners.get(task) == me)
    lost = (task for task in free if owners.get(task) not in members)
    return mine | frozenset(task for task in lost if _taker(task, members, busy, lost=task in owners) == me)


def standby_wanted(me: str, members: Iterable[str], owner: str | None, replicas: int) -> bool:
    """Whether `me` is one of the `replicas` members that stand by for a task of `owner`: the first others by id.

    With fewer members than replicas + 1 every other member stands by.
    """
    others = sorted(member for member in members if member != owner)
    return owner is not None and me in others[:replicas]


def _taker(task: TaskId, members: Mapping[str, MemberPlan], busy: Mapping[str, Busy], *, lost: bool) -> str | None:
    standing_by = (member for member, plan in members.items() if task in plan.standby and (lost or plan.takes_any))
    takes_any = (member for member, plan in members.items() if plan.takes_any)
    # Standbys first: their stores have nearly all rows, so the task goes on soonest there.

    def rank(member: str) -> tuple[int, str]:
        return busy.get(member, IDLE).of_worker(None), member

    return min(standing_by, key=rank, default=None) or min(takes_any, key=rank, default=None)


def orphans(active: Mapping[TaskId, str], members: Collection[str]) -> dict[TaskId, str]:
    """The tasks of a generation whose instances are gone, and these."""
    gone = set(active.values()).difference(members)
    return {task: owner for task, owner in active.items() if owner in gone} if gone else {}


def claimed(
    orphans: Iterable[TaskId], standbys: Mapping[TaskId, Sequence[str]], owners: Mapping[TaskId, str]
) -> dict[TaskId, str]:
    """Those of the tasks that a copy has claimed by the log, and its instance."""
    found = ((task, owners.get(task)) for task in orphans)
    return {task: owner for task, owner in found if owner is not None and owner in standbys.get(task, ())}


def to_claim(
    orphans: Mapping[TaskId, str],
    standbys: Mapping[TaskId, Sequence[str]],
    me: str,
    members: Collection[str],
    owners: Mapping[TaskId, str],
    *,
    ready: Collection[TaskId],
    places: int | None,
    gone_ms: Mapping[str, int],
) -> frozenset[TaskId]:
    """The tasks that instance `me` is to run before the leader has decided.

    `ready`: tasks whose copies here are near the end and can begin now; `places`: how many more it takes, None: any
    number; `gone_ms`: for how long each instance has been gone, as far as this one has seen.
    """
    kept, coming = [], []
    for task, owner in sorted(orphans.items()):
        copies = [name for name in standbys.get(task, ()) if name in members]
        if me not in copies:
            continue
        if owners.get(task) == me:
            kept.append(task)
        elif task in ready and owners.get(task) not in members and gone_ms.get(owner, 0) >= TURN_MS * copies.index(me):
            coming.append(task)
    return frozenset([*kept, *(coming if places is None else coming[: max(places, 0)])])
