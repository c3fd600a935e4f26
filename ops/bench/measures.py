"""The measures of the command bench: its runs, their order, and the figures made of them.

Every run is a process of its own (`standfast.ops.bench.child`), started one after the other; the log of a restore is
filled by another one, so the peak memory is that of the restore alone. Compared sides run in rounds, each of them every
side once and every other round the other way round, so that other work on the machine meets all alike.
Rates are records a second: the median over the runs, with the slowest and fastest beside it.

Rules of this file: nothing is timed here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.bench.log import SQLITE, BenchLog
from standfast.ops.bench.step import APP, Step, start
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
LOOK_MS = 1_000
MEMORY_ALLOWANCE_BYTES = 200 << 20  # a restore may take this much beside the memory setting
GUARANTEES = {
    "exactly_once": "one log transaction over changelog and source offset, then the local batch",
    "at_least_once": "changelog acknowledged, then the local batch, then the source offset",
}
WRITES = ("write", "produce", "transact")  # steps that write to topics of their own
READS = {
    "get": "get of present keys, in random order",
    "get_absent": "get of absent keys",
    "scan": "all(): every row in key order",
    "scan_reverse": "all(reverse=True)",
}


@dataclass(frozen=True)
class Bench:
    """One call of the command: its settings, its log, and the step that all its runs vary."""

    settings: Json
    log: BenchLog
    step: Step
    out: Output

    def write(self) -> tuple[list[Json], list[Json]]:
        """Put and commit; on Kafka under both guarantees, beside the client's bare produce loop and transactions."""
        puts = f"store.put, and task.commit with a source offset every {self.step.batch:,} records"
        if self.log.kind == SQLITE:
            (runs,) = self._rounds([("write", replace(self.step, step="write"))])
            return [self._measure("put_commit", puts, runs)], []
        steps = [(name, replace(self.step, step="write", guarantee=name)) for name in GUARANTEES]
        steps += [("the bare produce loop", replace(self.step, step="produce"))]
        steps += [("the bare transactions", replace(self.step, step="transact"))]
        *found, bare, transacted = self._rounds(steps)
        measures = [
            self._measure(f"put_commit_{name}", f"{puts}; {what}", runs)
            for (name, what), runs in zip(GUARANTEES.items(), found, strict=True)
        ]
        loop = f"produce of the Kafka client alone, and flush every {self.step.batch:,} records"
        produced = self._measure("produce_bare", loop, bare)
        share = "share of the speed at which the client alone writes the same records"
        alone = f"transactions of the Kafka client alone, each of {self.step.batch:,} records and the source offset"
        wholes = self._measure("transact_bare", alone, transacted)
        ratios = [self._ratio(one, produced, share) for one in (*measures, wholes)]
        ratios.append(self._ratio(measures[0], wholes, "share of the speed of the client's own transactions"))
        return [*measures, produced, wholes], ratios

    def read(self) -> tuple[list[Json], list[Json]]:
        """Point gets and scans."""
        (runs,) = self._rounds([("read", replace(self.step, step="read"))])
        return [self._measure(name, what, [run[name] for run in runs]) for name, what in READS.items()], []

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

    def standby(self) -> tuple[list[Json], list[Json]]:
        """Speed of standbys, and the time until they run, beside an instance with an empty directory."""
        tasks = self.settings["tasks"]
        self._run(replace(self.step, step="fill", versions=1), f"fill the changelogs of {tasks} tasks")
        warm, cold = self._rounds(
            [
                ("standbys take over", replace(self.step, step="standby")),
                ("an empty directory takes over", replace(self.step, step="cold")),
            ]
        )
        self.log.forget(self.step.app)
        what = f"{tasks} tasks assigned until the gate is open"
        tailed = self._measure(
            "standby_tail", "empty directory to the ends of the changelogs", [one["tail"] for one in warm]
        )
        followed, started = (
            self._measure(f"take_over_{name}", f"{what}; {text}", [one["take_over"] for one in runs], "ms")
            for name, text, runs in (("standby", "standbys at the ends", warm), ("cold", "an empty directory", cold))
        )
        return [tailed, followed, started], [self._ratio(followed, started, "how many times faster a standby runs")]

    def failover(self) -> tuple[list[Json], list[Json]]:
        """Kill an application process, again and again."""
        from standfast.ops.bench.failover import measures, rounds
        from standfast.stream.task.settings import LEASE_DEFAULT_MS

        runs, lease_ms = self.settings["runs"], self.step.lease_ms or LEASE_DEFAULT_MS
        with self.out.progress(f"kill the owner {runs} times, lease {lease_ms} ms", runs) as bar:
            found = rounds(self.step, runs, lease_ms, bar.advance)
        self.log.forget(self.step.app)
        return measures(found), []

    def handover(self) -> tuple[list[Json], list[Json]]:
        """Move tasks while they work."""
        from standfast.ops.bench.handover import between_instances, between_workers, measures
        from standfast.ops.bench.restarts import INSTANCES, PARTS, rolling

        runs = self.settings["runs"]
        with self.out.progress(f"move {runs} tasks between two workers", runs) as bar:
            moved = between_workers(self.step, runs, bar.advance)
        with self.out.progress(f"move {runs} tasks between two instances", runs) as bar:
            left, joined = between_instances(self.step, runs, bar.advance)
        with self.out.progress(f"restart {INSTANCES} instances, one after the other", INSTANCES) as bar:
            restarted = rolling(self.step, bar.advance)
        self.log.forget(self.step.app)
        found = {"workers": moved, "instance_joins": joined, "instance_leaves": left}
        measured = [one for name, figures in found.items() for one in measures(name, figures)]
        return [*measured, *measures("restarts", restarted, PARTS)], []

    def process(self) -> tuple[list[Json], list[Json]]:
        """A windowed count beside a processor that does nothing; and calls to a service."""
        self._run(replace(self.step, step="source"), "fill the source topic")
        sides = [("windowed count", replace(self.step, step="count"))]
        sides += [("a processor that does nothing", replace(self.step, step="idle"))]
        sides += [("calls to a service", replace(self.step, step="calls"))]
        counted, idle, asked = self._rounds(sides)
        measures = [
            self._measure("process_count", "tumbling windows of 60 s over 1,000 keys, cache, exactly once", counted),
            self._measure("process_idle", "the same records to a processor that does nothing", idle),
            self._measure(
                "process_calls",
                "map_values_async(parallel=32), one task, a service that answers after 20 ms: at most 1,600 a second",
                asked,
            ),
        ]
        return measures, [
            self._ratio(measures[0], measures[1], "share of the loop's speed with a windowed count in it")
        ]

    def scale(self) -> tuple[list[Json], list[Json]]:
        """Applications with workers, and as many bare processes."""
        numbers = sorted(set(self.settings["workers"]) or {1, 2})
        turns = self._run(replace(self.step, step="pace"), "how much work is 100 us")["turns"]
        sides = [
            (f"{what}, {number}", replace(self.step, step=step, workers=number, turns=turns, app=f"{APP}-{number}"))
            for step, what in (("scale", "workers"), ("turns", "bare processes"))
            for number in numbers
        ]
        found = self._rounds(sides)
        apps, bare = (
            [
                self._measure(f"scale_{name}_{number}", f"{text}{number}", runs)
                for number, runs in zip(numbers, part, strict=True)
            ]
            for name, text, part in (
                (
                    "workers",
                    "100 us of Python, then a count in windows of 60 s; 12 tasks, workers: ",
                    found[: len(numbers)],
                ),
                ("bare", "the same 100 us in processes without standfast: ", found[len(numbers) :]),
            )
        )
        ratios = []
        for app, alone in zip(apps[1:], bare[1:], strict=True):
            gain = self._ratio(app, apps[0], "gain of the workers")
            other = self._ratio(alone, bare[0], "gain of the bare processes")
            shares = [one / two for one, two in zip(gain["rounds"], other["rounds"], strict=True)]
            share = {"name": f"gain of {app['name']}", "value": median(shares), "min": min(shares), "max": max(shares)}
            ratios += [gain, other, share | {"rounds": shares, "what": "share of the bare processes' gain"}]
        return [*apps, *bare], ratios

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _rounds(self, sides: list[tuple[str, Step]]) -> list[list[Json]]:
        """Runs of each side, one a round; the files of a run are removed before the next."""
        found: list[list[Json]] = [[] for _ in sides]
        runs = self.settings["runs"]
        for number in range(runs):
            # Alternating: other work on the machine moves either side by a third.
            order = list(enumerate(sides))
            for at, (what, step) in order if number % 2 == 0 else reversed(order):
                own = replace(step, run=number)
                writes = step.step in WRITES
                if writes:
                    # Topics of its own: a run must not find the rows of the one before.
                    own = replace(own, app=f"{self.log.prefix}-{step.step}-{step.guarantee}-{number}")
                found[at].append(self._run(own, f"{what}, run {number + 1} of {runs}"))
                shutil.rmtree(Path(step.folder) / f"{step.step}-{number}", ignore_errors=True)
                if writes:
                    self.log.forget(own.app)
        return found

    def _run(self, step: Step, what: str) -> Json:
        from standfast.store.errors import InternalError

        with self.out.progress(what, 1) as bar, start(step) as child:
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
