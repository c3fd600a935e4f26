"""Promises, judged on what happened in a world; each broken one names its checker and says what was seen.

    at each record   its row is the plain count of the records before it              row
    at each look     the log has every acknowledged commit                            commits
    at each event    a standby's position, the gate, a wipe without a word            limits, gate, wipe
    at rest          every task runs, every standby is at the end, all is processed   rest
    at the end       results equal the plain computation                              results
                     each window once                                                 windows
                     the store is its changelog, folded to the store's position       fold
                     one writer at a time: epochs in a changelog never fall           writers

Rules of this file: no product but its plain values; it reads a world and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from simulator.programs import GRACE_MS, WINDOW_MS, Truth
from standfast.replication.log import Record


class Alarm(NamedTuple):
    """A broken promise."""

    checker: str
    text: str

    def __str__(self) -> str:
        return f"{self.checker}: {self.text}"


class History:
    """What a world's processes did, judged as it happens. `exact`: exactly once is promised."""

    def __init__(self, truth: Truth, *, exact: bool) -> None:
        self.alarms: list[Alarm] = []
        self.acknowledged: dict[tuple[str, int], int] = {}
        self._truth = truth
        self.exact = exact

    def alarm(self, checker: str, text: str) -> None:
        """Note a broken promise."""
        self.alarms.append(Alarm(checker, text))

    def seen(self, who: str, partition: int, number: int, before: int, *, owns: Callable[[], bool]) -> None:
        """A process has read the row of a record's key, before it processes the record.

        One that was taken over and does not know it yet reads old rows: whatever it writes is fenced. `owns`: whether
        the task is its own.
        """
        right = self._truth.before(partition, number)
        if (before < right or (self.exact and before > right)) and owns():
            which = "less" if before < right else "more"
            record = f"record {number} of partition {partition}"
            self.alarm("row", f"{who} counts {before} before {record}: {which} than {right}")

    def commit(self, topic: str, partition: int, offset: int) -> None:
        """A process knows of a commit: the log must have it, or a later one, from now on."""
        at = topic, partition
        self.acknowledged[at] = max(offset, self.acknowledged.get(at, 0))

    def in_log(self, topic: str, partition: int, offset: int) -> None:
        """The committed offset of a partition now."""
        known = self.acknowledged.get((topic, partition), 0)
        if offset < known:
            self.alarm("commits", f"{topic}-{partition} is committed at {offset}, and was at {known}")
        self.commit(topic, partition, offset)


def result_alarms(found: Counter[tuple[str, str]], truth: Truth, program: str, *, exact: bool) -> Iterator[Alarm]:
    """Compare the results in the log with the plain computation."""
    right = truth.results(program)
    checker = "windows" if program == "windows" else "results"
    missing, extra = right - found, found - right
    if exact and (missing or extra):
        yield Alarm(checker, f"missing {_some(missing)}, not expected {_some(extra)}")
    if not exact:  # records are processed again after a failure, and may be counted twice; none is left out
        lost = _keys(right) - _keys(found)
        if lost:
            yield Alarm(checker, f"no result for {sorted(lost)[:5]}")


def _keys(results: Counter[tuple[str, str]]) -> set[str]:
    return {key for key, _ in results}


def _some(results: Counter[tuple[str, str]]) -> str:
    shown = ", ".join(f"{key}={value} x{count}" for (key, value), count in sorted(results.items())[:4])
    return f"{sum(results.values())} ({shown})" if results else "nothing"


def fold_alarms(who: str, rows: Mapping[Any, Any], changes: Iterable[Record], program: str) -> Iterator[Alarm]:
    """Compare a store's rows with its whole changelog, at rest."""
    folded: dict[Any, Any] = {}
    for one in changes:
        key = one.key if program != "windows" else (one.key[:-12], int.from_bytes(one.key[-12:-4]))
        folded.pop(key, None)
        if one.value is not None:
            folded[key] = int.from_bytes(one.value)
    if program == "windows":
        have = {(one.key.encode(), one.start): value for one, value in rows.items()}
        # Windows behind the retention leave the store by themselves, each copy in its own time.
        newest = max((start for _, start in folded), default=0) - WINDOW_MS - GRACE_MS
        folded = {key: value for key, value in folded.items() if key[1] > newest or key in have}
    else:
        have = {key.encode(): value for key, value in rows.items()}
    if have != folded:
        wrong = sorted(key for key in have.keys() | folded.keys() if have.get(key) != folded.get(key))
        told = [(key, have.get(key), folded.get(key)) for key in wrong[:3]]
        yield Alarm("fold", f"{who}: {len(wrong)} rows differ from the changelog (key, row, changelog): {told}")


def writer_alarms(changelog: str, epochs: Iterable[tuple[int, int]]) -> Iterator[Alarm]:
    """(offset, epoch of the writer) of a changelog's records, in the order of the log."""
    newest = -1
    for offset, epoch in epochs:
        if epoch < newest:
            yield Alarm("writers", f"{changelog}: epoch {epoch} wrote at {offset}, after epoch {newest}")
            return
        newest = epoch
