"""The plan of an application's reset, made before anything is changed.

    1  source offsets     committed at the beginning, the end, or a given offset; the kept times go
    2  internal topics    changelogs, topics between tasks, the group's members and placement: deleted
    3  local state        set aside or removed, as chosen

Offsets come first: a user without the right to commit them has then deleted nothing. The same command completes a reset
that was interrupted. Source and output topics are never deleted.

Rules of this file: pure. The lines of a plan are the same in a dry run and in earnest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.topics.app_topics import PLACEMENT, RESTORING, SOURCE_OFFSETS, AppTopics
from standfast.store.errors import BadConfig
from standfast.store.names import few

Local = Literal["aside", "remove", "keep"]
EARLIEST, LATEST = "earliest", "latest"
_SHARED = {PLACEMENT: "placement", RESTORING: "restoring"}  # the other one is that of the members


@dataclass(frozen=True, slots=True)
class Target:
    """An offset to commit for a partition, a topic (`partition` None), or all the rest (`topic` None); `offset` is
    earliest, latest or a number."""

    topic: str | None
    partition: int | None
    offset: str | int


@dataclass(frozen=True, slots=True)
class OffsetStep:
    """A source offset to commit, with metadata that says that it is ours. `before` None: the group has no offset.

    `pieces` of the metadata, if one text is too small for it, go beside offsets of changelogs.
    """

    at: TopicPartition
    before: int | None
    after: int
    metadata: str = CommitMetadata(0).to_text()
    pieces: Mapping[TopicPartition, Committed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteStep:
    """A topic to delete."""

    topic: str
    kind: str


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A directory to move to `target`, or to remove."""

    path: str
    action: Local
    target: str = ""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """All steps of a reset. `left`: (topic, reason) of topics that stay."""

    app: str
    offsets: tuple[OffsetStep, ...] = ()
    deletes: tuple[DeleteStep, ...] = ()
    local: LocalStep | None = None
    left: tuple[tuple[str, str], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.offsets or self.deletes or self.local)

    def lines(self) -> list[str]:
        """One line for each step, in order."""
        lines = [
            f"commit {step.at} at {step.after}"
            + (" (no offset before)" if step.before is None else f" (was {step.before})")
            for step in self.offsets
        ]
        lines += [f"delete {step.kind} topic {step.topic}" for step in self.deletes]
        if self.local is not None:
            target = f" to {self.local.target}" if self.local.target else ""
            lines.append(f"{'move' if target else 'remove'} directory {self.local.path}{target}")
        return lines


def parse_target(text: str) -> Target:
    """Read `earliest`, `latest`, `flights=latest`, `flights-0=4711`. Raises BadConfig."""
    where, equals, offset = text.rpartition("=")
    wrong = f"--to {text!r}: write earliest, latest, TOPIC=latest, TOPIC-PARTITION=latest or TOPIC-PARTITION=4711"
    if not equals:
        if text not in (EARLIEST, LATEST):
            raise BadConfig([wrong])
        return Target(None, None, text)
    if not where or not (offset in (EARLIEST, LATEST) or offset.isdecimal()):
        raise BadConfig([wrong])
    given: str | int = int(offset) if offset.isdecimal() else offset
    # `orders-2=latest` could be a topic `orders-2` too; a topic whose name ends so is named with its partition.
    topic, dash, number = where.rpartition("-")
    if dash and topic and number.isdecimal():
        return Target(topic, int(number), given)
    if isinstance(given, int):
        raise BadConfig([f"--to {text!r}: an offset needs a partition: write {where}-0={given}"])
    return Target(where, None, given)


def make_plan(
    app: str,
    *,
    topics: AppTopics,
    existing: Iterable[str],
    bounds: Mapping[TopicPartition, Bounds | None],
    committed: Mapping[TopicPartition, Committed],
    targets: Sequence[Target],
    local: LocalStep | None,
) -> ResetPlan:
    """Make the plan. `bounds` has every source partition; None: its topic is in another log, which cannot be asked.

    Raises BadConfig with every target that does not fit.
    """
    there = set(existing)
    own = [
        *(DeleteStep(name, "changelog") for name in topics.changelogs),
        *(
            DeleteStep(name, "source offsets" if name.endswith(SOURCE_OFFSETS) else "repartition")
            for name in topics.between
        ),
        *(DeleteStep(name, _SHARED.get(name[name.rfind("-standfast-") :], "members")) for name in topics.members),
    ]
    problems = _target_problems(targets, bounds)
    steps = []
    for at, found in sorted(bounds.items()):
        wanted = _wanted(at, targets)
        try:
            after = _offset(at, wanted, found)
        except ValueError as error:
            problems.append(str(error))
            continue
        steps.append(OffsetStep(at, committed[at].offset if at in committed else None, after))
    if problems:
        raise BadConfig(problems)
    # A name can be read in two ways (`orders-eu-x-changelog`), so a topic that may be another application's stays.
    left = [(name, f"it belongs to application {other!r}") for name, other in topics.others]
    left += [
        (name, f"it may belong to application {other!r}: name its store with --store to have it deleted")
        for name, other in topics.doubtful
    ]
    return ResetPlan(app, tuple(steps), tuple(step for step in own if step.topic in there), local, tuple(left))


def _target_problems(targets: Sequence[Target], bounds: Mapping[TopicPartition, Bounds | None]) -> list[str]:
    names = sorted({at.topic for at in bounds})
    problems = []
    for one in targets:
        if one.topic is None:
            continue
        fits = [at for at in bounds if at.topic == one.topic and one.partition in (None, at.partition)]
        if not fits:
            what = one.topic if one.partition is None else f"{one.topic}-{one.partition}"
            problems.append(
                f"--to {what}=...: not a source of the application (sources: {few(names) or 'none'}): name a "
                "further source with --source"
            )
    if sum(one.topic is None for one in targets) > 1:
        problems.append("--to earliest and --to latest are both given for all other partitions: give one")
    return problems


def _wanted(at: TopicPartition, targets: Sequence[Target]) -> str | int:
    """The target of the partition, else that of its topic, else the one for all, else the beginning."""
    fitting = [one for one in targets if one.topic in (None, at.topic) and one.partition in (None, at.partition)]
    nearest = max(fitting, key=lambda one: (one.topic is not None) + (one.partition is not None), default=None)
    return EARLIEST if nearest is None else nearest.offset


def _offset(at: TopicPartition, wanted: str | int, found: Bounds | None) -> int:
    if found is None:
        if wanted == LATEST:
            raise ValueError(f"--to latest: {at} is in another log, so its end is not known: give --to {at}=OFFSET")
        return 0 if wanted == EARLIEST else int(wanted)
    if wanted in (EARLIEST, LATEST):
        return found.begin if wanted == EARLIEST else found.end
    offset = int(wanted)
    # A consumer at an offset out of range starts at its `auto.offset.reset` instead, unnoticed.
    if not found.begin <= offset <= found.end:
        raise ValueError(f"--to {at}={offset}: the log holds {found.begin} to {found.end}")
    return offset
