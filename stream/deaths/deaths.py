"""Records that had processes in hand which died: notes of an application's group, until a commit is past the record.

    note ("death", "0_3 1f3a9c2e")   {"task":"0_3","topic":...,"partition":...,"offset":...,"how":...,...}

    one death                       noted by the supervisor of the process, or by the next owner of its directory
    DEATHS_MAX at one offset        the task is given up; or the record is left out, if all of them were its own doing
    a commit past the offset        the notes are removed

Rules of this file: values and decisions; a group of the log is given. A later version may add fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from standfast.replication.log import Group, Notes
from standfast.replication.offsets import TopicPartition
from standfast.replication.shapes import Shape, dump, read
from standfast.store.outside import new_id
from standfast.store.process.in_hand import DESERIALIZE, HeldRecord

KIND = "death"
DEATHS_MAX = 5


class Death(Shape, frozen=True, forbid_unknown_fields=False):
    """A process died with this record in hand. `position`: behind the record; `own`: by the doing of its code.

    `sure`: no other record was in work beside it. `step`: one with a policy of its own, or DESERIALIZE.
    """

    task: str
    topic: str
    partition: int
    offset: int
    position: int
    how: str
    own: bool = False
    sure: bool = True
    step: str = ""
    member: str = ""
    stack: str = ""

    @property
    def counts(self) -> bool:
        """Whether it may be of this very record: of several that are decoded at once the next process finds it."""
        return self.sure or self.step != DESERIALIZE

    def __str__(self) -> str:
        return f"{self.how} on instance {self.member}"


class RecordPlace(NamedTuple):
    """A record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


@dataclass(frozen=True, slots=True)
class TaskDeaths:
    """The deaths of one task: by record, and the names of all notes that a commit has passed."""

    places: Mapping[RecordPlace, list[Death]]
    over: tuple[str, ...] = ()

    def at_limit(self) -> dict[RecordPlace, list[Death]]:
        """The records that must not be processed again."""
        counted = {place: [one for one in deaths if one.counts] for place, deaths in self.places.items()}
        return {place: deaths for place, deaths in counted.items() if len(deaths) >= DEATHS_MAX}


def death_of(record: HeldRecord, how: str, member: str, *, own: bool, stack: str = "") -> Death:
    """The death of a process that had this record in hand."""
    return Death(
        record.task,
        record.topic,
        record.partition,
        record.offset,
        record.position,
        how,
        own=own and record.sure,
        sure=record.sure,
        step=record.step,
        member=member,
        stack=stack,
    )


def note_death(group: Group, death: Death) -> int:
    """Note a death, unless the record is committed meanwhile; returns how many there are at the record then.

    Raises Unavailable.
    """
    at = TopicPartition(death.topic, death.partition)
    committed = group.committed([at]).get(at)
    if committed is not None and committed.offset >= death.position:
        return 0
    group.note({(KIND, f"{death.task} {new_id('death', 12)}"): dump(death).decode()})
    place = RecordPlace(death.topic, death.partition, death.offset)
    return len(find_deaths(group.notes(), death.task, {}).places.get(place, ()))


def find_deaths(notes: Notes, task: str, positions: Mapping[TopicPartition, int]) -> TaskDeaths:
    """The deaths of a task whose next positions are these."""
    places: dict[RecordPlace, list[Death]] = {}
    over = []
    for (kind, name), note in notes.items():
        if kind != KIND or name.partition(" ")[0] != task:
            continue
        try:
            death = read(note.text, Death)
        except ValueError:
            continue  # of a later version, which knows what to do with it
        if positions.get(TopicPartition(death.topic, death.partition), -1) >= death.position:
            over.append(name)
        else:
            places.setdefault(RecordPlace(death.topic, death.partition, death.offset), []).append(death)
    return TaskDeaths(places, tuple(over))


def all_deaths(group: Group) -> dict[str, Death]:
    """Every death that is noted, by the name of its note."""
    found = {}
    for (kind, name), note in group.notes().items():
        if kind == KIND:
            try:
                found[name] = read(note.text, Death)
            except ValueError:
                continue
    return found


def forget_deaths(group: Group, names: Iterable[str]) -> None:
    """Remove notes. Raises Unavailable."""
    group.note(dict.fromkeys(((KIND, name) for name in names), None))


def told_deaths(deaths: Collection[Death]) -> str:
    """The deaths at one record, in words."""
    step = next((one.step for one in deaths if one.step), "")
    ways = "; ".join(f"{count} by {how}" for how, count in Counter(map(str, deaths)).items())
    return f"{len(deaths)} processes died with it in hand{f', in step {step!r}' * bool(step)} ({ways})"
