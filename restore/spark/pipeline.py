"""All stores of an application in one Spark session: inspect, rebuild, verify, in one pass over each changelog.

    inspect    records, tombstones, bytes, keys of each changelog
    rebuild    to <out>/rebuilt/<store>: an instance can import it and tail on
    verify     the stored rows: state at rest or snapshot; from a log alone, the rebuilt files

    each partition ── read once ── sort ── files of the rebuild, counts, merge with the state ──> StoreDone

If a store's position is the very offset that its rebuild ends at, both must have one digest: rebuilt = live. From a log
alone, the task that writes files reads them back, and their digest must be that of the log; otherwise a second look
names the rows.

Stores run side by side, as many as fill the cores (`stores.py`).

Rules of this file: order, progress, and the meaning of the steps together; each step's work stands in `both.py`,
`inspect.py`, `rebuild.py` and `verify.py`. A rebuild that an interrupted run completed is kept, not repeated: then the
log is read once to inspect and once to verify.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from standfast.replication.log import Log
from standfast.restore.compare import UnequalRow
from standfast.restore.files.manifest import FILE_NAME, Manifest
from standfast.restore.snapshot.place import names_snapshot
from standfast.restore.spark.both import looked_at_files, rebuild_and_verify
from standfast.restore.spark.folder import Folder, below
from standfast.restore.spark.inspect import Inspected, inspect
from standfast.restore.spark.places import TaskPlace, manifest_of, manifest_places, storage_places
from standfast.restore.spark.rebuild import FILE, FILE_BYTES, Rebuilt, rebuild
from standfast.restore.spark.source import SourceName
from standfast.restore.spark.stores import StoresProgress, StoreWork, each_store
from standfast.restore.spark.verify import (
    Looked,
    StoredAt,
    StorePlan,
    Verified,
    plan_verify,
    stored_stores,
    verify_store,
)
from standfast.restore.verify.preflight import Preflight, preflight
from standfast.restore.verify.verify import StoreVerdict
from standfast.store.errors import InvalidRequest, StateLost, UnknownStore
from standfast.store.failpoint import reach
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import written_name
from standfast.store.types.kinds import definition_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REBUILT = "rebuilt"
REPORT_FILES = ("differences.parquet", "report.html")  # files that a run writes before its last one
SUMMARY = "summary.json"
_REBUILT_FILE = re.compile(rf"{REBUILT}/[^/]+/(?:{FILE.pattern}|{re.escape(FILE_NAME)})")


class Steps(Protocol):
    """Receiver of a pipeline's progress."""

    def step(self, number: int, total: int, what: str) -> None:
        """Step `number` of `total` begins, counted from 1; others may be under way."""
        ...

    def at(self, part: float) -> None:
        """The pipeline's progress, 0.0 to 1.0, never less than before; from any thread, one at a time."""
        ...

    def note(self, text: str) -> None:
        """A remark for the user."""
        ...


@dataclass(frozen=True, slots=True)
class StoreJob:
    """One store: the ranges of its changelog that a rebuild reads (None: `left_out` says why), and its stored state."""

    app: str
    spec: StoreSpec
    what: Preflight | None
    left_out: str = ""
    stored: Mapping[int, StoredAt] = field(default_factory=dict)
    plan: StorePlan | None = None

    @property
    def name(self) -> str:
        """The store's name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Compared:
    """Rebuilt rows against stored ones by digest, over partitions whose position is the end of the rebuild."""

    partitions: tuple[int, ...] = ()
    unequal: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreDone:
    """All results of one store. `kept`: its rebuild is that of an earlier run that was cut short.

    If one pass did both, its time is the rebuild's, and `verify_ms` that of the second look.
    """

    job: StoreJob
    inspected: tuple[Inspected, ...]
    rebuilt: Rebuilt | None
    kept: bool
    verdicts: tuple[StoreVerdict, ...]
    found: tuple[tuple[str, int, UnequalRow], ...]
    compared: Compared
    verify_ms: int = 0
    inspect_ms: int = 0

    @property
    def verdict(self) -> str:
        """different, inconclusive or equal: the worst verdict of the store."""
        found: set[str] = {one.verdict for one in self.verdicts}
        if self.compared.unequal:
            found.add("different")
        if self.rebuilt is None:
            found.add("inconclusive")  # a store that was not rebuilt is not proven
        return worst(found)


@dataclass(frozen=True, slots=True)
class PipelineDone:
    """All stores, by name. Times in milliseconds; `inspect_ms`: of inspections without a rebuild in the same pass."""

    stores: tuple[StoreDone, ...]
    inspect_ms: int
    elapsed_ms: int

    @property
    def verdict(self) -> str:
        """The worst verdict of all stores."""
        return worst({one.verdict for one in self.stores})


@dataclass(frozen=True, slots=True)
class PipelineReader:
    """Source of records, size of files, and whether values of rows that differ are kept.

    Partitions larger than `split_bytes` are split (None: see `split_plan`); `at_once` stores run side by side (None: as
    many as have two tasks for each core).
    """

    source: SourceName = "native"
    options: Mapping[str, str] = field(default_factory=dict)
    file_bytes: int = FILE_BYTES
    include_values: bool = False
    split_bytes: int | None = None
    at_once: int | None = None


def worst(verdicts: set[str]) -> str:
    """The worst of these verdicts: one wrong row outweighs an inconclusive comparison."""
    # Without any verdict, nothing is proven.
    return next((one for one in ("different", "inconclusive", "equal") if one in verdicts), "inconclusive")


def jobs_of_state(log: Log, places: Sequence[TaskPlace], *, allow_truncated: bool = False) -> list[StoreJob]:
    """Jobs for the stores in an application's state, or in folders with manifests; no store may fail the others."""
    found = []
    for name, stored in sorted(stored_stores(places).items()):
        app = next(iter(stored.values())).place.app
        spec = definition_spec(name, next(iter(stored.values())).definition)  # one for all: `stored_stores` refuses two
        what, why = None, ""
        try:
            what = preflight(log, app, spec, partitions=list(stored), allow_truncated=allow_truncated)
        except (StateLost, UnknownStore, InvalidRequest) as error:  # a store whose log is gone or cut off
            why = str(error)
        found.append(StoreJob(app, spec, what, why, stored, plan_verify(log, app, name, stored)))
    return found


def jobs_of_log(
    log: Log,
    app: str,
    specs: Sequence[StoreSpec],
    *,
    partitions: Collection[int] | None = None,
    allow_truncated: bool = False,
) -> list[StoreJob]:
    """Jobs for stores that have only a log. Raises the errors of `preflight`."""
    return [
        StoreJob(app, spec, preflight(log, app, spec, partitions=partitions, allow_truncated=allow_truncated))
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]


def snapshot_places(address: str, app: str | None = None) -> list[TaskPlace]:
    """Places of the partitions in a folder with a manifest, or in all such folders below it, or of snapshots in a
    storage (`ADDRESS/NAME`, of application `app`). Raises InvalidRequest."""
    if names_snapshot(address):
        return storage_places(address, app)
    folder = Folder(address)
    names = [one.name.split("/") for one in folder.list()]
    if any(parts == [FILE_NAME] for parts in names):
        return manifest_places(address)
    inside = sorted(parts[0] for parts in names if len(parts) == 2 and parts[1] == FILE_NAME)
    if not inside:
        raise InvalidRequest(f"neither {folder} nor a folder in it has {FILE_NAME}: it is no snapshot and no rebuild")
    places = [place for name in inside for place in manifest_places(below(folder.address, name))]
    apps = sorted({place.app for place in places})
    if len(apps) > 1:
        raise InvalidRequest(f"{folder} holds stores of several applications ({few(apps)}): name the folder of one")
    return places


def check_out(folder: Folder) -> None:
    """Refuse a folder that holds other files than those left by an interrupted run."""
    for one in folder.list():
        if one.name == SUMMARY:
            raise InvalidRequest(f"{folder} holds a report already ({SUMMARY}): name a new folder")
        written = written_name(one.name)  # a kill may leave any file under its temporary name
        if written not in (*REPORT_FILES, SUMMARY) and not _REBUILT_FILE.fullmatch(written):
            raise InvalidRequest(f"{folder} is not empty (it holds {one.name}): name a new folder")


def run_pipeline(
    spark: SparkSession,
    log: Log,
    jobs: Sequence[StoreJob],
    out: Folder,
    steps: Steps,
    *,
    now_ms: Callable[[], int],
    reader: PipelineReader | None = None,
) -> PipelineDone:
    """Run all steps over all stores, reports excepted. Raises InvalidRequest if `out` holds other files.

    After a failure of a store, stores under way are finished and the first error in order is raised; `steps` gets all
    of them.
    """
    check_out(out)
    out.make()
    reader = reader or PipelineReader()
    began_ms = now_ms()
    progress = StoresProgress(len(jobs), steps.step, steps.at)
    run = _Run(log, out, steps, progress, now_ms, reader)
    works = [
        StoreWork(
            job.name,
            f"{'verifying' if job.what is None else 'rebuilding and verifying'} {job.name}",
            len(job.what.ranges if job.what is not None else job.stored),
            partial(run.store, job),
        )
        for job in jobs
    ]
    done = each_store(spark, works, progress, at_once=reader.at_once, tell=steps.note)
    reach("pipeline.judged")
    return PipelineDone(tuple(done), sum(one.inspect_ms for one in done), now_ms() - began_ms)


@dataclass(frozen=True, slots=True)
class _Run:
    """The parts that the steps of every store share."""

    log: Log
    out: Folder
    steps: Steps
    progress: StoresProgress
    now_ms: Callable[[], int]
    reader: PipelineReader

    def store(self, job: StoreJob, spark: SparkSession) -> StoreDone:
        """All steps of one store."""
        began_ms, target = self.now_ms(), Folder(below(self.out.address, f"{REBUILT}/{job.name}"))
        if job.what is None:
            return self._verified_alone(spark, job, (), None)
        kept = _finished(target, job)
        if kept is not None:
            # The counts of a kept rebuild went with its run, so the log is read once more for them.
            inspected = self._inspected(spark, job.what)
            done = self._verified_alone(spark, job, inspected[job.name], kept)
            return replace(done, inspect_ms=self.now_ms() - began_ms - done.verify_ms)
        made, seen, plan = self._both(spark, job, job.what, target)
        for line in made.warnings:
            self.steps.note(f"{job.name}: {line}")
        took_ms = self.now_ms() - began_ms
        compared = _compared(made.manifest, seen.verdicts, plan)
        inspected_now = _seen(made, job.what)
        verify_ms = max(took_ms - made.elapsed_ms, 0)
        made = replace(made, answers={})  # answers name every file once more; kept, they would add up over all stores
        return StoreDone(job, inspected_now, made, False, seen.verdicts, seen.found, compared, verify_ms)

    def _both(
        self, spark: SparkSession, job: StoreJob, what: Preflight, target: Folder
    ) -> tuple[Rebuilt, Verified, StorePlan]:
        """Rebuild and verify in one pass."""
        reader, on_tasks = self.reader, self.progress.tasks
        if job.plan is not None:
            made, seen = rebuild_and_verify(
                spark,
                self.log,
                what,
                target,
                job.plan,
                now_ms=self.now_ms,
                source=reader.source,
                connector_options=reader.options,
                file_bytes=reader.file_bytes,
                split_bytes=reader.split_bytes,
                include_values=reader.include_values,
                on_tasks=on_tasks,
            )
            return made, seen, job.plan
        made = rebuild(
            spark,
            self.log,
            what,
            target,
            now_ms=self.now_ms,
            source=reader.source,
            connector_options=reader.options,
            file_bytes=reader.file_bytes,
            split_bytes=reader.split_bytes,
            read_back=True,  # no stored rows to compare with: the files themselves are
            on_tasks=on_tasks,
        )
        plan = self._plan_of_files(job, target)
        looked = looked_at_files(made)
        if plan.what is not None:
            # Partitions that were read back are judged over the range of the rebuild, not up to a later end.
            ranges = {**plan.what.ranges, **{n: what.ranges[n] for n in plan.what.ranges if n in looked}}
            plan = replace(plan, what=replace(plan.what, ranges=ranges))
        return made, self._verify(spark, plan, looked), plan

    def _verified_alone(
        self, spark: SparkSession, job: StoreJob, inspected: tuple[Inspected, ...], kept: Rebuilt | None
    ) -> StoreDone:
        """Verify the store's state, or its rebuilt files if it has no state, without a rebuild in the same pass."""
        began_ms, plan = self.now_ms(), job.plan
        if plan is None:
            plan = self._plan_of_files(job, Folder(below(self.out.address, f"{REBUILT}/{job.name}")))
        seen = self._verify(spark, plan, None)
        compared = _compared(kept.manifest, seen.verdicts, plan) if kept is not None else Compared()
        took_ms = self.now_ms() - began_ms
        return StoreDone(job, inspected, kept, kept is not None, seen.verdicts, seen.found, compared, took_ms)

    def _verify(self, spark: SparkSession, plan: StorePlan, looked: Looked | None) -> Verified:
        reader = self.reader
        return verify_store(
            spark,
            self.log,
            plan,
            now_ms=self.now_ms(),
            source=reader.source,
            connector_options=reader.options,
            split_bytes=reader.split_bytes,
            include_values=reader.include_values,
            looked=looked,
            on_tasks=self.progress.tasks,
        )

    def _inspected(self, spark: SparkSession, what: Preflight) -> dict[str, tuple[Inspected, ...]]:
        reader = self.reader
        return inspect(
            spark, [what], source=reader.source, connector_options=reader.options, on_tasks=self.progress.tasks
        )

    def _plan_of_files(self, job: StoreJob, target: Folder) -> StorePlan:
        stored = stored_stores(manifest_places(target.address))
        return plan_verify(self.log, job.app, job.name, stored[job.name])


def _seen(made: Rebuilt, what: Preflight) -> tuple[Inspected, ...]:
    """The inspection of each partition, from counts of the rebuild's own tasks."""
    return tuple(
        Inspected(number, *what.ranges[number], **made.answers[number]["seen"]) for number in sorted(made.answers)
    )


def _finished(target: Folder, job: StoreJob) -> Rebuilt | None:
    """The rebuild that an earlier, interrupted run completed. Raises InvalidRequest for another store's or topic's."""
    # A manifest is written last: without one, no rebuild here is whole.
    if target.read(FILE_NAME) is None:
        return None
    manifest, what = manifest_of(target), job.what
    assert what is not None
    # Everything that makes these files other rows: a recreated topic has the same name, too.
    wanted = (job.app, job.name, job.spec.definition(), what.info.topic_id, sorted(what.ranges))
    numbers = [one.partition for one in manifest.partitions]
    if (manifest.app, manifest.store, manifest.definition, manifest.topic_id, numbers) != wanted:
        raise InvalidRequest(
            f"{target} holds another rebuild ({manifest.app}/{manifest.store}, with another definition, topic or other "
            "partitions): name a new folder"
        )
    return Rebuilt(manifest, str(target), 0)


def _compared(manifest: Manifest, verdicts: Sequence[StoreVerdict], plan: StorePlan) -> Compared:
    """Compare digests of partitions whose rebuild and store are at one offset, if the log could speak for the store."""
    by_number = {one.task.partition: one for one in verdicts}
    same, unequal = [], []
    for part in manifest.partitions:
        verdict, at = by_number.get(part.partition), plan.stored.get(part.partition)
        if verdict is None or at is None or at.position is None or at.position.offset != part.end:
            continue
        # The store's digest excludes indeterminate rows, so it would differ from the rebuild's for no fault.
        if verdict.verdict == "inconclusive" or verdict.indeterminate or part.digest is None:
            continue
        same.append(part.partition)
        if verdict.store_digest.hex() != part.digest:
            unequal.append(part.partition)
    return Compared(tuple(same), tuple(unequal))


def only_partition(places: Sequence[TaskPlace], number: int) -> list[TaskPlace]:
    """The places of one partition. Raises InvalidRequest if none has it."""
    chosen = [place for place in places if place.task.partition == number]
    if not chosen:
        held = few(sorted({place.task.partition for place in places}))
        raise InvalidRequest(f"there is no task of partition {number}, only of {held}")
    return chosen
