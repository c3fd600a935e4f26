"""The measures of a bench: its runs, their order, and the figures made of them.

Every run is a process of its own (`program`), started one after the other; the log of a restore is
filled by another one, so the peak memory is that of the restore alone. Compared sides run in rounds, each of them every
side once and every other round the other way round, so that other work on the machine meets all alike.
Rates are records a second: the median over the runs, with the slowest and fastest beside it.

Rules of this file: nothing is timed here.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, TypeAlias

from standfast.ops.bench.step import BenchStep, start
from standfast.ops.demo.place import DemoPlace
from standfast.ops.shared.output import Output
from standfast.store.errors import InternalError

Json: TypeAlias = dict[str, Any]
LOOK_MS = 1_000


@dataclass(frozen=True)
class Bench:
    """One call of the command: its settings, its log, and the step that all its runs vary."""

    program: ClassVar[str] = "standfast.ops.bench.step"
    settings: Json
    place: DemoPlace
    step: BenchStep
    out: Output

    def restores(self) -> list[Json]:
        """Restores of each case."""
        measures = []
        for name, (what, case) in self._cases().items():
            case = replace(case, folder=str(Path(case.folder) / name), app=f"{case.app}-{name}")
            self._run(replace(case, step="fill"), f"fill the log: {what}")
            sides = self._sides(name, case)
            found = self._rounds([(f"{side}: {what}", step) for side, step in sides.items()])
            measures += [self._measure(side, what, runs) for side, runs in zip(sides, found, strict=True)]
            shutil.rmtree(case.folder, ignore_errors=True)
            self.place.forget(case.app)
        return measures

    def _cases(self) -> dict[str, tuple[str, BenchStep]]:
        """The changelogs by name, in words and as a step: distinct keys, and several versions a key."""
        cases = {"restore_distinct": ("distinct keys", replace(self.step, versions=1))}
        if self.step.versions > 1:
            cases["restore_versions_near"] = (f"{self.step.versions} versions a key, near each other", self.step)
        return cases

    def _sides(self, name: str, case: BenchStep) -> dict[str, BenchStep]:
        """The restores of a case by name: as a session does it, or with each number of workers in the arguments."""
        ways = {f"{name}_workers_{number}": number for number in self.settings["workers"]} or {name: None}
        return {way: replace(case, step="restore", workers=workers) for way, workers in ways.items()}

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _rounds(self, sides: Sequence[tuple[str, BenchStep]]) -> list[list[Json]]:
        """Runs of each side, one a round; the files of a run are removed before the next."""
        found: list[list[Json]] = [[] for _ in sides]
        runs = self.settings["runs"]
        for number in range(runs):
            # Alternating: other work on the machine moves either side by a third.
            order = list(enumerate(sides))
            for at, (what, step) in order if number % 2 == 0 else reversed(order):
                found[at].append(self._once(replace(step, run=number), f"{what}, run {number + 1} of {runs}"))
        return found

    def _once(self, step: BenchStep, what: str) -> Json:
        found = self._run(step, what)
        shutil.rmtree(Path(step.folder) / f"{step.step}-{step.run}", ignore_errors=True)
        return found

    def _run(self, step: BenchStep, what: str) -> Json:
        with self.out.progress(what, 1) as bar, start(self.program, step) as child:
            found: list[Json] = []
            while child.ended is None:
                found += child.poll(LOOK_MS)
            bar.advance(1)
        if child.ended.code != 0:
            raise InternalError(f"the run {what!r} ended with {child.ended}:\n{child.ended.words}")
        return found[-1]

    # -- figures ------------------------------------------------------------------------------------------------------

    def _measure(self, name: str, what: str, runs: list[Json]) -> Json:
        """The figures of runs."""
        rates, peaks = [run["rate"] for run in runs], [run.get("peak_rss_bytes", 0) for run in runs]
        used = [run["cpu_ms"] * 1_000 / run["records"] for run in runs if run.get("cpu_ms") is not None]
        return {
            "name": name,
            "what": what,
            "unit": "records/s",
            "records": runs[0]["records"],
            "median": median(rates),
            "min": min(rates),
            "max": max(rates),
            # Of all threads of the process: other work on the machine moves it less than the rate.
            "cpu_us": median(used) if used else None,
            "peak_rss_bytes": max(peaks) or None,
            "runs": runs,
        }
