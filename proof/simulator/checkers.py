"""Promises, judged on what happened in a world; each broken one names its checker and says what was seen.

    at each record    its row is the plain count of the records before it              row
                      with gate="all" no task of the process restores                  gate
    at each commit    the log has it, and has it from then on                          commits
    at each look      the changelog has the counts of the records below the offset    offsets
                      stream times and progress never go back                          times
    at each opening   the store is its changelog, folded to the store's position       fold
                      no row and no position went without a word in the log            wipe
    at a task's run   its stores are whole, and so are its clocks                      gate, times
    at each batch     a standby stays below the committed offset of a source topic     limits
    at each write     no owner writes after a newer one                                writers
    at each claim     the owner before has died, or given the task up                  claims
    at rest           every task runs, every standby is at the end, all is processed   rest
    at the end        results equal the plain computation                              results
                      each window once                                                 windows
                      complete checkpoints are one cut                                 checkpoints
                      the store is its changelog, folded                               fold

Rules of this file: no product but its plain values; it reads a world and changes nothing. `witness.py` brings it what a
process does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from simulator.programs import BY_RECORD, GRACE_MS, LATEST, WINDOW_MS, Truth
from standfast.replication.offsets import TopicPartition

TOLD_MAX = 5  # alarms of one checker: the first ones tell the story
Change = tuple[int, bytes, bytes | None]  # offset, key and value of a changelog's record
Times = Mapping[str, int]  # stream times, or progress


class Alarm(NamedTuple):
    """A broken promise."""

    checker: str
    text: str

    def __str__(self) -> str:
        return f"{self.checker}: {self.text}"


class History:
    """What a world's processes did, judged as it happens. `exact`: exactly once is promised."""

    def __init__(self, truth: Truth, program: str, *, exact: bool) -> None:
        self.alarms: list[Alarm] = []
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.times: dict[tuple[str, int], dict[str, int]] = {}  # by source partition, as committed
        self.positions: dict[tuple[int, str, str], int] = {}  # machine, task, store -> the last one that is known
        self.given_up: set[int] = set()  # partitions whose rows went with a person's consent
        # Of changelogs: records that people removed, and their deletes.
        self.gone: dict[TopicPartition, list[Change]] = {}
        self.unfenced: set[int] = set()  # partitions whose former owner may still commit an offset, at least once
        # At least once on a log like Kafka: partitions whose former owner appended behind the newer owner's records.
        self.late: set[int] = set()
        self._truth = truth
        self._program = program
        self._epochs: dict[str, int] = {}
        self._counts: dict[int, tuple[Counter[str], Counter[str]]] = {}  # by partition: plain ones, those of the log
        self.exact = exact

    def alarm(self, checker: str, text: str) -> None:
        """Note a broken promise."""
        if sum(one.checker == checker for one in self.alarms) < TOLD_MAX:
            self.alarms.append(Alarm(checker, text))

    def seen(self, who: str, partition: int, number: int, before: int, *, owns: Callable[[], bool]) -> None:
        """A process has read the row of a record's key, before it processes the record.

        One that was taken over and does not know it yet reads old rows: whatever it writes is fenced. `owns`: whether
        the task is its own.
        """
        if self._is_excused(partition) or (self._truth.deletes and not self.exact):
            return  # a record that is processed again may meet the delete between
        right = self._truth.before(partition, number)
        if (before < right or (self.exact and before > right)) and owns():
            which = "less" if before < right else "more"
            record = f"record {number} of partition {partition}"
            self.alarm("row", f"{who} counts {before} before {record}: {which} than {right}")

    def _is_excused(self, partition: int) -> bool:
        return partition in self.given_up or partition in self.late

    def commit(self, topic: str, partition: int, offset: int) -> None:
        """A process knows of a commit: the log must have it, or a later one, from now on."""
        at = topic, partition
        self.acknowledged[at] = max(offset, self.acknowledged.get(at, 0))

    def in_log(self, topic: str, partition: int, offset: int) -> None:
        """The committed offset of a partition now."""
        known = self.acknowledged.get((topic, partition), 0)
        if offset < known and partition in self.unfenced:
            self.acknowledged[topic, partition] = offset
        elif offset < known:
            self.alarm("commits", f"{topic}-{partition} is committed at {offset}, and was at {known}")
        self.commit(topic, partition, offset)

    def committed_times(self, topic: str, partition: int, found: Times) -> None:
        """The stream times and progress numbers that lie beside a committed offset now."""
        if partition not in self.unfenced:  # a late commit has the times of its offsets
            self.not_back(f"{topic}-{partition} in the log", topic, partition, found)
        self.times.setdefault((topic, partition), {}).update(found)

    def not_back(self, who: str, topic: str, partition: int, found: Times) -> None:
        """A clock is never behind the committed one."""
        for name, known in self.times.get((topic, partition), {}).items():
            if found.get(name, -1) < known:
                self.alarm("times", f"{who}: {name} is {found.get(name, -1)}, and was {known}")

    def position(self, machine: int, task: str, store: str, offset: int) -> None:
        """A store is on disk up to an offset of its changelog."""
        self.positions[machine, task, store] = offset

    def lost(self, machine: int, task: str | None = None, stores: Iterable[str] | None = None) -> None:
        """Rows of a machine went with a word: of all tasks, of a task, or of some of its stores."""
        gone = None if stores is None else set(stores)
        for one in list(self.positions):
            if one[0] == machine and task in (None, one[1]) and (gone is None or one[2] in gone):
                del self.positions[one]

    def opened(self, machine: int, who: str, task: str, store: str, offset: int) -> None:
        """A process found a store on its disk up to this offset."""
        known = self.positions.get((machine, task, store), 0)
        if offset < known:
            self.alarm("wipe", f"{who}: {store} of {task} is at {offset}, was at {known}, and no log line says why")
        self.position(machine, task, store, offset)

    def processed(self, partition: int, committed: int, changes: Iterable[Change]) -> None:
        """The committed offset of a source partition, and what its counts got in the log since the last look.

        At least once a process that was taken over may still append counts to a log like Kafka: the largest one counts.
        """
        if self._is_excused(partition):
            return
        plain, logged = self._counts.setdefault(partition, (Counter(), Counter()))
        touched: dict[str, None] = {}
        for one in self._truth.records[partition][plain.total() : self._truth.below(partition, committed)]:
            plain[one.key] += 1
            touched[one.key] = None
        for _, raw, value in changes:
            key, count = raw.decode(), int.from_bytes(value or b"")
            logged[key] = max(count, logged[key])
            touched[key] = None
        for key in touched:
            if logged[key] < plain[key] or (self.exact and logged[key] > plain[key]):
                what = f"{logged[key]} of {key} in the changelog, {plain[key]} records below the committed offset"
                self.alarm("offsets", f"partition {partition}, committed at {committed}: {what}")

    def folded(
        self, who: str, store: str, rows: Mapping[Any, Any], at: TopicPartition, changes: Iterable[Change], end: int
    ) -> list[Alarm]:
        """As `fold_alarms`; a store has read what people removed later, or was built without it by consent."""
        if at.partition in self.late:
            return []  # the newer owner finds those records at its next commit, and a world may end before
        gone, left = self.gone.get(at, []), list(changes)
        found = list(fold_alarms(who, store, rows, sorted({*gone, *left}, key=itemgetter(0)), end, self._program))
        if found and gone and at.partition in self.given_up:
            found = list(fold_alarms(who, store, rows, left, end, self._program))
        return found

    def wrote(self, name: str, epoch: int) -> None:
        """The owner of an id with this epoch wrote to the log."""
        newest = self._epochs.setdefault(name, epoch)
        if epoch < newest:
            self.alarm("writers", f"epoch {epoch} of {name} wrote after epoch {newest}")
        self._epochs[name] = max(epoch, newest)


def result_alarms(
    found: Counter[tuple[str, str]], truth: Truth, program: str, *, exact: bool, given_up: Collection[int] = ()
) -> Iterator[Alarm]:
    """Compare the results in the log with the plain computation; of partitions that were given up with none."""
    if given_up and program not in BY_RECORD:
        return  # their results do not say from which partition they come
    gone = tuple(f"{partition}/" for partition in given_up)
    found, right = (
        Counter({one: count for one, count in results.items() if not one[1].startswith(gone)})
        for results in (found, truth.results(program))
    )
    checker = "windows" if program == "windows" else "results"
    missing, extra = right - found, found - right
    if exact and (missing or extra):
        yield Alarm(checker, f"missing {_some(missing)}, not expected {_some(extra)}")
    if not exact:  # records are processed again after a failure, and may be counted twice; none is left out
        lost = {key for key, _ in right} - {key for key, _ in found}
        if lost:
            yield Alarm(checker, f"no result for {sorted(lost)[:5]}")


def checkpoint_alarms(objects: Mapping[str, tuple[bytes, int]]) -> Iterator[Alarm]:
    """What parts of group 1 have consumed is what those of group 0 wrote: a record for each one that they consumed.

    That is so exactly once, on a log whose offsets have no gaps.
    """
    for key, (content, _) in objects.items():
        if not key.endswith("/outcome.json") or (outcome := json.loads(content))["state"] != "complete":
            continue
        read: Counter[str] = Counter()
        for part in outcome["parts"]:
            read[part["task"].partition("_")[0]] += sum(part["cut"]["sources"].values())
        if read["0"] != read["1"]:
            yield Alarm("checkpoints", f"{key}: group 0 has read {read['0']} records, group 1 {read['1']} of them")


def _some(results: Counter[tuple[str, str]]) -> str:
    shown = ", ".join(f"{key}={value} x{count}" for (key, value), count in sorted(results.items())[:4])
    return f"{sum(results.values())} ({shown})" if results else "nothing"


def fold_alarms(
    who: str, store: str, rows: Mapping[Any, Any], changes: Iterable[Change], end: int, program: str
) -> Iterator[Alarm]:
    """Compare a store's rows with those of its changelog below an offset; `changes` are all that are in it."""
    windows, newest = program == "windows", 0
    folded: dict[Any, Any] = {}
    for offset, raw, value in changes:
        key = (raw[:-12], int.from_bytes(raw[-12:-4])) if windows else raw
        newest = max(newest, key[1] if windows else 0)
        if offset < end:
            folded.pop(key, None)
            if value is not None:
                folded[key] = value.decode() if store == LATEST else int.from_bytes(value)
    have = {(one.key.encode(), one.start) if windows else one.encode(): value for one, value in rows.items()}
    if windows:
        # Windows behind the retention leave the store by themselves, each copy in its own time. Their removal outlives
        # a loss of power, which the position that came with it may not: so the time of the whole log counts.
        gone = newest - WINDOW_MS - GRACE_MS
        folded = {key: value for key, value in folded.items() if key[1] > gone or key in have}
    if have == folded:
        return
    if not have:
        yield Alarm("wipe", f"{who}: no row of {store} is there, of {len(folded)}")
        return
    wrong = sorted(key for key in have.keys() | folded.keys() if have.get(key) != folded.get(key))
    told = [(key, have.get(key), folded.get(key)) for key in wrong[:3]]
    yield Alarm("fold", f"{who}: {len(wrong)} rows of {store} differ from its log (key, row, log): {told}")
