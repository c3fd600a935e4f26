"""The measures of the benches: restores beside the speed of reading, and all others; ratios of their figures.

Rules of this file: as `standfast.ops.bench.measures`, whose rounds and figures it takes; nothing is timed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any, ClassVar, TypeAlias

from bench import failover, handover, restarts
from bench.feed import measures_ms
from bench.step import Step
from standfast.ops.bench import measures
from standfast.ops.bench import step as restores
from standfast.ops.bench.step import APP
from standfast.ops.demo.place import EMBEDDED
from standfast.store.errors import InvalidRequest
from standfast.stream.task.settings import LEASE_DEFAULT_MS

Json: TypeAlias = dict[str, Any]
GUARANTEES = {
    "exactly_once": "one log transaction over changelog and source offset, then the local batch",
    "at_least_once": "changelog acknowledged, then the local batch, then the source offset",
}
YARDSTICKS = ("_log", "_bare")  # of restores: the log's own reader; on Kafka its client alone
WRITES = ("write", "produce", "transact")  # steps that write to topics of their own
READS = {
    "get": "get of present keys, in random order",
    "get_absent": "get of absent keys",
    "scan": "all(): every row in key order",
    "scan_reverse": "all(reverse=True)",
}


@dataclass(frozen=True)
class Bench(measures.Bench):
    """One call of the command: its settings, its log, and the step that all its runs vary."""

    program: ClassVar[str] = "bench.child"
    step: Step

    def restore(self) -> tuple[list[Json], list[Json]]:
        """Restores as `standfast bench restore`, each beside the speed at which the same log can be read at all."""
        measures = self.restores()
        named = {one["name"]: one for one in measures}
        restored = [one for one in measures if not one["name"].endswith(YARDSTICKS)]
        ratios = []
        for one in restored:
            case = one["name"].partition("_workers_")[0]
            read = next(named[case + yardstick] for yardstick in YARDSTICKS if case + yardstick in named)
            ratios.append(self._ratio(one, read, "share of the speed at which the log can be read at all"))
            batches = named.get(f"{case}_workers_0")
            if batches is not None and one is not batches:
                ratios.append(self._ratio(one, batches, "bulk beside batches"))
        return measures, ratios

    def _cases(self) -> dict[str, tuple[str, restores.BenchStep]]:
        cases = super()._cases()
        if self.step.versions > 1:
            text = f"{self.step.versions} versions a key, as far apart as the log allows"
            cases["restore_versions_far"] = (text, replace(self.step, order="far"))
        return cases

    def _sides(self, name: str, case: restores.BenchStep) -> dict[str, restores.BenchStep]:
        yardstick = YARDSTICKS[self.place.kind != EMBEDDED]
        return super()._sides(name, case) | {name + yardstick: replace(case, step=yardstick.removeprefix("_"))}

    def write(self) -> tuple[list[Json], list[Json]]:
        """Put and commit; on Kafka under both guarantees, beside the client's bare produce loop and transactions."""
        puts = f"store.put, and task.commit with a source offset every {self.step.batch:,} records"
        if self.place.kind == EMBEDDED:
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

    def standby(self) -> tuple[list[Json], list[Json]]:
        """Speed of standbys, and the time until they run, beside an instance with an empty directory."""
        tasks = self.settings["tasks"]
        # In the order of their numbers, so that each task's keys are known.
        self._run(replace(self.step, step="fill", versions=1, order="far"), f"fill the changelogs of {tasks} tasks")
        warm, cold = self._rounds(
            [
                ("standbys take over", replace(self.step, step="standby")),
                ("an empty directory takes over", replace(self.step, step="cold")),
            ]
        )
        self.place.forget(self.step.app)
        what = f"{tasks} tasks assigned until the gate is open"
        tailed = self._measure(
            "standby_tail", "empty directory to the ends of the changelogs", [one["tail"] for one in warm]
        )
        followed, started = (
            self._measure_ms(f"take_over_{name}", f"{what}; {text}", [one["take_over"] for one in runs])
            for name, text, runs in (("standby", "standbys at the ends", warm), ("cold", "an empty directory", cold))
        )
        return [tailed, followed, started], [self._ratio(followed, started, "how many times faster a standby runs")]

    def failover(self) -> tuple[list[Json], list[Json]]:
        """Kill an application process, again and again."""
        runs, lease_ms = self.settings["runs"], self.step.lease_ms or LEASE_DEFAULT_MS
        with self.out.progress(f"kill the owner {runs} times, lease {lease_ms} ms", runs) as bar:
            found = failover.rounds(self.step, runs, lease_ms, bar.advance)
        self.place.forget(self.step.app)
        return measures_ms({name: [one[name] for one in found] for name in failover.PARTS}, failover.PARTS), []

    def handover(self) -> tuple[list[Json], list[Json]]:
        """Move tasks while they work."""
        runs = self.settings["runs"]
        with self.out.progress(f"move {runs} tasks between two workers", runs) as bar:
            moved = handover.between_workers(self.step, runs, bar.advance)
        with self.out.progress(f"move {runs} tasks between two instances", runs) as bar:
            left, joined = handover.between_instances(self.step, runs, bar.advance)
        with self.out.progress(
            f"restart {restarts.INSTANCES} instances, one after the other", restarts.INSTANCES
        ) as bar:
            restarted = restarts.rolling(self.step, bar.advance)
        self.place.forget(self.step.app)
        found = {"workers": moved, "instance_joins": joined, "instance_leaves": left}
        measured = [one for name, figures in found.items() for one in measures_ms(figures, handover.PARTS, f"{name}_")]
        return [*measured, *measures_ms(restarted, restarts.PARTS, "restarts_")], []

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

    # -- figures ------------------------------------------------------------------------------------------------------

    def _measure_ms(self, name: str, what: str, runs: list[Json]) -> Json:
        """The figures of runs whose time is the measure, and no rate."""
        took = [run["elapsed_ms"] for run in runs]
        figures = {"unit": "ms", "median": median(took), "min": min(took), "max": max(took), "cpu_us": None}
        return self._measure(name, what, runs) | figures

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

    def _once(self, step: restores.BenchStep, what: str) -> Json:
        if not isinstance(step, Step) or step.step not in WRITES:
            return super()._once(step, what)
        # Topics of its own: a run must not find the rows of the one before.
        own = replace(step, app=f"{self.step.app}-{step.step}-{step.guarantee}-{step.run}")
        found = super()._once(own, what)
        self.place.forget(own.app)
        return found
