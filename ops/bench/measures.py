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
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from standfast.ops.bench.log import SQLITE, BenchLog
from standfast.ops.bench.step import Step, start
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
LOOK_MS = 1_000
MEMORY_ALLOWANCE_BYTES = 200 << 20  # a restore may take this much beside the memory setting


@dataclass(frozen=True)
class Bench:
    """One call of the command: its settings, its log, and the step that all its runs vary."""

    program: ClassVar[str] = "standfast.ops.bench.child"
    settings: Json
    log: BenchLog
    step: Step
    out: Output

    def restore(self) -> tuple[list[Json], list[Json]]:
        """Restores, each beside the speed at which the same log can be read at all."""
        cases = [("restore_distinct", "distinct keys", replace(self.step, versions=1))]
        if self.step.versions > 1:
            text = f"{self.step.versions} versions a key"
            cases += [
                ("restore_versions_near", f"{text}, within 10,000 records", replace(self.step, order="near")),
                ("restore_versions_far", f"{text}, as far apart as the log allows", self.step),
            ]
        measures, ratios = [], []
        for name, what, case in cases:
            folder = Path(case.folder) / name
            case = replace(case, folder=str(folder), app=f"{self.log.prefix}-{name.removeprefix('restore_')}")
            self._run(replace(case, step="fill"), f"fill the log: {what}")
            yardstick, read = (
                ("log", "fetched and discarded") if self.log.kind == SQLITE else ("bare", "consumed by a bare loop")
            )
            ways = self._ways(name, case)
            sides = [(f"{yardstick}: {what}", replace(case, step=yardstick))]
            sides += [(f"{way}: {what}", one) for way, one in ways.items()]
            raw, *found = self._rounds(sides)
            shutil.rmtree(folder, ignore_errors=True)
            self.log.forget(case.app)
            fetched = self._measure(f"{name}_{yardstick}", f"the same log {read}; {what}", raw)
            restored = {
                way: self._measure(way, f"empty directory until the gate is open; {what}", runs) | self._memory(runs)
                for way, runs in zip(ways, found, strict=True)
            }
            measures += [*restored.values(), fetched]
            share = "share of the speed at which the log can be read at all"
            ratios += [self._ratio(one, fetched, share) for one in restored.values()]
            batches = restored.pop(f"{name}_workers_0", None)
            if batches is not None:
                ratios += [self._ratio(one, batches, "bulk beside batches") for one in restored.values()]
        return measures, ratios

    def _ways(self, name: str, case: Step) -> dict[str, Step]:
        """The restores of a case by name: as a session does it, or with each number of workers in the arguments."""
        case = replace(case, step="restore")
        workers = self.settings["workers"]
        if not workers:
            return {name: case}
        return {f"{name}_workers_{number}": replace(case, workers=number) for number in workers}

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _rounds(self, sides: Sequence[tuple[str, Step]]) -> list[list[Json]]:
        """Runs of each side, one a round; the files of a run are removed before the next."""
        found: list[list[Json]] = [[] for _ in sides]
        runs = self.settings["runs"]
        for number in range(runs):
            # Alternating: other work on the machine moves either side by a third.
            order = list(enumerate(sides))
            for at, (what, step) in order if number % 2 == 0 else reversed(order):
                found[at].append(self._once(replace(step, run=number), f"{what}, run {number + 1} of {runs}"))
        return found

    def _once(self, step: Step, what: str) -> Json:
        found = self._run(step, what)
        shutil.rmtree(Path(step.folder) / f"{step.step}-{step.run}", ignore_errors=True)
        return found

    def _run(self, step: Step, what: str) -> Json:
        from standfast.store.errors import InternalError

        with self.out.progress(what, 1) as bar, start(self.program, step) as child:
            found: list[Json] = []
            while child.ended is None:
                found += child.poll(LOOK_MS)
            bar.advance(1)
        if child.ended.code != 0:
            raise InternalError(f"the run {what!r} ended with {child.ended}:\n{child.ended.words}")
        return found[-1]

    # -- figures ------------------------------------------------------------------------------------------------------

    def _measure(self, name: str, what: str, runs: list[Json], unit: str = "records/s") -> Json:
        """The figures of runs; `unit` is "records/s", or "ms" for a measure that is no rate."""
        figures = [run["rate" if unit == "records/s" else "elapsed_ms"] for run in runs]
        waited = [run["waited_for_cpu_ms"] for run in runs]
        elapsed_ms = sum(run["elapsed_ms"] for run in runs)
        used = [run.get("cpu_ms") for run in runs]
        return {
            "name": name,
            "what": what,
            "unit": unit,
            "records": runs[0]["records"],
            "median": median(figures),
            "min": min(figures),
            "max": max(figures),
            # Of all threads of the process: other work on the machine moves it less than the rate.
            "cpu_us": None
            if unit == "ms" or None in used
            else median(run["cpu_ms"] * 1_000 / run["records"] for run in runs),
            # Time that threads spent ready but without a processor: how busy the machine was with other work.
            "waited_share": None if None in waited else sum(waited) / elapsed_ms,
            "runs": runs,
        }

    def _ratio(self, measure: Json, other: Json, what: str) -> Json:
        """The median over the rounds: sides of one round meet the same other work of the machine, runs apart do not."""
        if not all(run["rate"] for run in other["runs"]):
            raise InvalidRequest(
                f"{other['name']}: no record was processed in the time that counts, so nothing stands beside it: give "
                "more --records, or run it while the machine is less busy"
            )
        rounds = [one["rate"] / two["rate"] for one, two in zip(measure["runs"], other["runs"], strict=True)]
        return {
            "name": f"{measure['name']} / {other['name']}",
            "value": median(rounds),
            "min": min(rounds),
            "max": max(rounds),
            "rounds": rounds,
            "what": what,
        }

    def _memory(self, runs: list[Json]) -> Json:
        """Peak memory of the process that restores, and its bound."""
        bound = self.settings["memory_bytes"] + MEMORY_ALLOWANCE_BYTES
        in_bulk = any(run["runs_ingested"] for run in runs)
        # The workers of a bulk restore have a budget of their own.
        if in_bulk:
            bound += self.settings["restore_memory_bytes"]
        peaks = [run["peak_rss_bytes"] for run in runs if run["peak_rss_bytes"] is not None]
        return {
            "peak_rss_bytes": max(peaks, default=None),
            "peak_rss_bound_bytes": bound,
            "peak_rss_within_bound": max(peaks) <= bound if peaks else None,
        }
