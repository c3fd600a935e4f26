"""Membership: one process as a member of its application's group, with the tasks that it holds.

    join ──> member, lease runs ──> heartbeat ──> ... ──> leave: others may take over at once
                  ^                     │ Fenced: the lease had run out
                  └─────────────────────┘ joined again; tasks taken over meanwhile are fenced at the log

A state directory whose file INSTANCE is damaged has lost the member's id: `naming_former_id` asks the log for it.

Rules of this file: `heartbeat` comes from the lease's thread, everything else under the session's lock. `managed.py`
and `peers.py` decide about the tasks of a member that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from standfast.replication.leases import IDLE, Busy, lease_in_group_ms
from standfast.replication.log import EnteredView, Group, GroupView
from standfast.replication.tail.open_log import open_log
from standfast.replication.takeover import MemberPlan, Process
from standfast.store.errors import BadConfig, Fenced, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.outside import host_name, new_id, process_id
from standfast.store.task.state_dir import MARKER, LostInstance, StateDir
from standfast.stream.session.lease import LeaseKeeper
from standfast.stream.task.statistics import LEASE_LATE, LEASE_STALLED, SessionCounters

WHERE_CHARS = 120  # the metadata of a member has 4,096 bytes in all


class Membership:
    """This process in its group. `plan` (of the instance) lists the tasks held here; `stale`: not published yet.

    `view` is the group as it was last read, None before the first join.
    """

    def __init__(
        self, group: Group, member: str, lease_ms: int, keeper: LeaseKeeper, counters: SessionCounters, path: Path
    ) -> None:
        self.member = member
        self.view: GroupView | None = None
        self.plan: Callable[[], MemberPlan] = lambda: MemberPlan(frozenset(), frozenset())
        self.stale = False
        self._group = group
        self._lease_ms = lease_ms
        self._keeper = keeper
        self._counters = counters
        self._joined = False
        where = f"process {process_id()} on {host_name()}, {path}"
        self._process = Process(new_id("process", 16), where[:WHERE_CHARS])
        self._before: Process | None = None  # the process that was this member when this one joined
        self._before_seen = 0
        self._written = ""  # the metadata that this process wrote last
        self._younger: Process | None = None

    @property
    def token(self) -> str:
        """The token of this process, in the metadata that it joins with."""
        return self._process.token

    def look(self) -> GroupView:
        """Read and return the group's present view. Raises BadConfig if an older process is this member, too."""
        self.view = self._group.view()
        self._check_alone(self._process_in(self.view))
        return self.view

    @property
    def size(self) -> int:
        """The number of live members, as the group was last read."""
        return 0 if self.view is None else len(self.view.members)

    @property
    def lease_ms(self) -> int:
        """The length of the lease in a group of that size, in milliseconds."""
        return lease_in_group_ms(self._lease_ms, self.size)

    def publish(self) -> None:
        """Join, or publish the tasks that are held here now."""
        # First, so that a join that fails is repeated by the next round.
        self.stale = True
        self._join(self._group)
        self.stale = False

    def looked(self) -> None:
        """Note a look at the placement; a member that has not looked for long loses the lead to one that has."""
        self._keeper.looked()

    def heartbeat(self, group: Group, busy: Busy = IDLE) -> None:
        """Renew the lease; after it ran out, join again (tasks lost meanwhile are fenced at the log)."""
        try:
            self.view = group.heartbeat(self.member, lease_ms=self.lease_ms, busy=busy)
        except Fenced:
            self._join(group)

    def leave(self) -> None:
        """Leave the group."""
        try:
            self._group.leave(self.member)
        except (Unavailable, BadConfig) as error:  # a permission may be gone, too: all other steps are closed
            logger.warning(
                "%s could not leave the group, its lease runs out by itself: %s",
                self.member,
                error,
                extra=as_event("leave_failed", member=self.member),
            )

    def _join(self, group: Group) -> None:
        if not self._joined:
            self._before = self._process_in(group.view())
        self._written = replace(self.plan(), process=self._process).to_json()
        self.view = group.join(self.member, self._written, lease_ms=self.lease_ms)
        # The group did not hold this member any more, although it had joined before.
        if isinstance(self.view, EnteredView) and self._joined:
            reason = LEASE_STALLED if self._keeper.was_stalled() else LEASE_LATE
            self._counters.leases_lost[reason] += 1
            logger.warning(
                "lease of %s had run out (%s): joined again",
                self.member,
                reason,
                extra=as_event("lease_lost", member=self.member),
            )
        self._joined = True

    def _process_in(self, view: GroupView) -> Process | None:
        """The process that wrote this member's metadata last; None if it is no live member, or does not say."""
        found = next((one.metadata for one in view.members if one.member_id == self.member), None)
        if found is None or found == self._written:  # the usual case, ten times a second, which needs no reading
            return None if found is None else self._process
        return MemberPlan.from_json(found).process

    def _check_alone(self, found: Process | None) -> None:
        """Find another process with the same id: of two that write the same member, the younger one stops."""
        if found is None or found == self._process:
            return
        self.stale = True  # this process writes again, so that the other one sees it as well
        if found != self._before:
            if found != self._younger:
                logger.warning(
                    "instance id %s is used by a second process, %s: that one will stop. Its state directory is a copy:"
                    " delete the file INSTANCE there",
                    self.member,
                    found.where,
                    extra=as_event("instance_id_used_twice", member=self.member, other=found.where),
                )
            self._younger = found
            return
        # A killed process may have written its last record late, but it does not write again.
        self._before_seen += 1
        if self._before_seen > 1:
            raise BadConfig(
                [
                    f"instance id {self.member!r} is used by two processes: {found.where} runs, and this one, "
                    f"{self._process.where}, has started later. One of the state directories is a copy: delete the "
                    "file INSTANCE in it, and that instance gets an id of its own"
                ]
            )


def own_directory(
    state_dir: str | Path | StateDir, app: str, address: str, kafka: Mapping[str, Any] | None = None
) -> StateDir:
    """The state directory, locked; one that the caller locked is returned as it is. Raises as StateDir."""
    if isinstance(state_dir, StateDir):
        return state_dir
    with naming_former_id(app, address, kafka):
        return StateDir(state_dir, app)


@contextmanager
def naming_former_id(app: str, address: str, kafka: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Add to the refusal of a state directory without its instance id the id that the log has for its tasks."""
    try:
        yield
    except LostInstance as lost:
        try:
            found = _former_ids(app, lost.path, address, kafka)
        except StandfastError as away:
            known = f"the log could not be asked for that id: {away}"
        else:
            ids = few((f"{one!r} of task {few(tasks)}" for one, tasks in sorted(found.items())), "; ")
            known = f"last owner by the log: {ids}" if ids else "the log knows no owner of its tasks"
            if len(found) > 1:
                known += " (where this instance had a standby, the owner is another one)"
        raise LostInstance(f"{lost}. {known}", lost.path) from None


def _former_ids(app: str, path: Path, address: str, kafka: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """The last owners of the tasks in a state directory, each with its tasks, without those that run elsewhere."""
    tasks = sorted(one.name for one in path.iterdir() if (one / MARKER).is_file())
    with closing(open_log(address, create=False, kafka=kafka)) as log, closing(log.group(app)) as group:
        owners, members = group.owners(), group.view().members
    elsewhere = set()
    for member in members:
        process = MemberPlan.from_json(member.metadata).process
        # A killed process is a member until its lease runs out; its place may have been cut to fit.
        if process is not None and not str(path).startswith(process.where.partition(", ")[2]):
            elsewhere.add(member.member_id)
    found: dict[str, list[str]] = {}
    for task in tasks:
        owner = owners.get(f"{app}-{task.replace('_', '-')}")
        if owner is not None and owner not in elsewhere:
            found.setdefault(owner, []).append(task)
    return found
