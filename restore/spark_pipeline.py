"""All stores of an application in one Spark session: inspect, rebuild, verify.

    inspect    one job over all changelogs: records, tombstones, bytes, keys
    rebuild    for each store, to <out>/rebuilt/<store>: an instance can take it in and tail on
    verify     for each store, what there is of it: state at rest or snapshot; from a log alone, the rebuilt files

Where a store stands at the very offset that its rebuild ends at, both must have one digest: rebuilt = live.

Rules of this file: order, progress, and what the steps mean together; each step's work stands in `spark_inspect`,
`spark_rebuild` and `spark_verify`. A rebuild that an interrupted run completed is kept, not made again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from standfast.replication.log import Log
from standfast.restore.manifest import FILE_NAME, Manifest
from standfast.restore.preflight import Preflight, preflight
from standfast.restore.spark_folder import Folder, below
from standfast.restore.spark_inspect import Inspected, inspect
from standfast.restore.spark_merge import Found
from standfast.restore.spark_places import Place, manifest_of, manifest_places
from standfast.restore.spark_rebuild import FILE, FILE_BYTES, Rebuilt, rebuild
from standfast.restore.spark_source import SourceName
from standfast.restore.spark_verify import StoredAt, StorePlan, plan_verify, stored_stores, verify_store
from standfast.restore.verify import StoreVerdict
from standfast.store.errors import InvalidRequest, StateLost, UnknownStore
from standfast.store.kinds import definition_spec
from standfast.store.specs import StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REBUILT = "rebuilt"
REPORT_FILES = ("differences.parquet", "report.html")  # what a run writes before its last file
SUMMARY = "summary.json"
_REBUILT_FILE = re.compile(rf"{REBUILT}/[^/]+/(?:{FILE.pattern}|{re.escape(FILE_NAME)})")


class Steps(Protocol):
    """Who is told how far it is."""

    def step(self, number: int, total: int, what: str) -> None:
        """Step `number` of `total` begins, counted from 1."""
        ...

    def tasks(self, done: int, total: int) -> None:
        """How many of Spark's tasks of this step are done; from another thread, now and then."""
        ...

    def note(self, text: str) -> None:
        """Something to know."""
        ...


@dataclass(frozen=True, slots=True)
class StoreJob:
    """One store: what is read of its changelog to rebuild it (None: why not is in `left_out`), and its stored state."""

    app: str
    spec: StoreSpec
    what: Preflight | None
    left_out: str = ""
    stored: Mapping[int, StoredAt] = field(default_factory=dict)
    plan: StorePlan | None = None

    @property
    def name(self) -> str:
        """Of the store."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Compared:
    """Rebuilt rows against stored ones by digest, over partitions that stand at the offset that the rebuild ends at."""

    partitions: tuple[int, ...] = ()
    unequal: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreDone:
    """Everything that was found of one store. `kept`: its rebuild is that of an earlier run that was cut short."""

    job: StoreJob
    inspected: tuple[Inspected, ...]
    rebuilt: Rebuilt | None
    kept: bool
    verdicts: tuple[StoreVerdict, ...]
    found: tuple[tuple[str, int, Found], ...]
    compared: Compared
    verify_ms: int = 0

    @property
    def verdict(self) -> str:
        """different, inconclusive or equal: the worst that was found."""
        found: set[str] = {one.verdict for one in self.verdicts}
        if self.compared.unequal:
            found.add("different")
        if self.rebuilt is None:
            found.add("inconclusive")
        return worst(found)


@dataclass(frozen=True, slots=True)
class PipelineDone:
    """All stores, by name. Times in milliseconds."""

    stores: tuple[StoreDone, ...]
    inspect_ms: int
    elapsed_ms: int

    @property
    def verdict(self) -> str:
        """The worst of all stores."""
        return worst({one.verdict for one in self.stores})


@dataclass(frozen=True, slots=True)
class Reader:
    """How records are read, how large files are made, and whether values of rows that differ are kept."""

    source: SourceName = "native"
    options: Mapping[str, str] = field(default_factory=dict)
    file_bytes: int = FILE_BYTES
    include_values: bool = False


def worst(verdicts: set[str]) -> str:
    """One wrong row outweighs what could not be told."""
    return next((one for one in ("different", "inconclusive", "equal") if one in verdicts), "inconclusive")


def jobs_of_state(log: Log, places: Sequence[Place], *, allow_truncated: bool = False) -> list[StoreJob]:
    """Stores of an application as its state, or folders with manifests, have them; no store may fail the others."""
    found = []
    for name, stored in sorted(stored_stores(places).items()):
        app = next(iter(stored.values())).place.app
        spec = definition_spec(name, next(iter(stored.values())).definition)
        what, why = None, ""
        try:
            what = preflight(log, app, spec, partitions=list(stored), allow_truncated=allow_truncated)
        except (StateLost, UnknownStore, InvalidRequest) as error:
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
    """Stores of which there is only the log. Raises what `preflight` raises."""
    return [
        StoreJob(app, spec, preflight(log, app, spec, partitions=partitions, allow_truncated=allow_truncated))
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]


def snapshot_places(address: str) -> list[Place]:
    """Partitions of a folder with a manifest, or of all such folders in it. Raises InvalidRequest."""
    folder = Folder(address)
    names = [one.name.split("/") for one in folder.list()]
    if any(parts == [FILE_NAME] for parts in names):
        return manifest_places(address)
    inside = sorted(parts[0] for parts in names if len(parts) == 2 and parts[1] == FILE_NAME)
    if not inside:
        raise InvalidRequest(f"{folder} has no {FILE_NAME}, nor has a folder in it: it is no snapshot and no rebuild")
    places = [place for name in inside for place in manifest_places(below(folder.address, name))]
    apps = sorted({place.app for place in places})
    if len(apps) > 1:
        raise InvalidRequest(f"{folder} holds stores of several applications ({', '.join(apps)}): name one's folder")
    return places


def check_out(folder: Folder) -> None:
    """Refuse a folder that holds anything but what a run that was cut short left."""
    for one in folder.list():
        if one.name == SUMMARY:
            raise InvalidRequest(f"{folder} holds a report already ({SUMMARY}): name a new folder")
        if one.name not in REPORT_FILES and not _REBUILT_FILE.fullmatch(one.name):
            raise InvalidRequest(f"{folder} is not empty (it holds {one.name}): name a new folder")


def run_pipeline(
    spark: SparkSession,
    log: Log,
    jobs: Sequence[StoreJob],
    out: Folder,
    steps: Steps,
    *,
    now_ms: Callable[[], int],
    reader: Reader | None = None,
) -> PipelineDone:
    """All steps over all stores, reports excepted. Raises InvalidRequest if `out` holds something else."""
    check_out(out)
    out.make()
    reader = reader or Reader()
    began_ms, total = now_ms(), 1 + 2 * len(jobs)
    steps.step(1, total, "inspecting all changelogs")
    inspected = inspect(
        spark,
        [job.what for job in jobs if job.what is not None],
        source=reader.source,
        connector_options=reader.options,
        on_tasks=steps.tasks,
    )
    inspect_ms = now_ms() - began_ms
    run = _Run(spark, log, out, steps, now_ms, reader)
    done = []
    for index, job in enumerate(jobs):
        steps.step(2 + 2 * index, total, f"rebuilding {job.name}")
        made, kept = run.rebuild(job)
        steps.step(3 + 2 * index, total, f"verifying {job.name}")
        done.append(run.verify(job, inspected.get(job.name, ()), made, kept))
    return PipelineDone(tuple(done), inspect_ms, now_ms() - began_ms)


@dataclass(frozen=True, slots=True)
class _Run:
    """What the steps of every store need."""

    spark: SparkSession
    log: Log
    out: Folder
    steps: Steps
    now_ms: Callable[[], int]
    reader: Reader

    def rebuild(self, job: StoreJob) -> tuple[Rebuilt | None, bool]:
        """The store's files, and whether an earlier run made them; None where the log cannot give them."""
        if job.what is None:
            return None, False
        target = self._target(job)
        made = _finished(target, job)
        if made is not None:
            return made, True
        made = rebuild(
            self.spark,
            self.log,
            job.what,
            target,
            now_ms=self.now_ms,
            source=self.reader.source,
            connector_options=self.reader.options,
            file_bytes=self.reader.file_bytes,
            on_tasks=self.steps.tasks,
        )
        for line in made.warnings:
            self.steps.note(f"{job.name}: {line}")
        return made, False

    def verify(self, job: StoreJob, inspected: tuple[Inspected, ...], made: Rebuilt | None, kept: bool) -> StoreDone:
        """The store's state, or its rebuilt files where there is no state, against the log."""
        began_ms, plan = self.now_ms(), job.plan
        if plan is None:
            stored = stored_stores(manifest_places(self._target(job).address))
            plan = plan_verify(self.log, job.app, job.name, stored[job.name])
        seen = verify_store(
            self.spark,
            self.log,
            plan,
            now_ms=began_ms,
            source=self.reader.source,
            connector_options=self.reader.options,
            include_values=self.reader.include_values,
            on_tasks=self.steps.tasks,
        )
        compared = _compared(made.manifest, seen.verdicts, plan) if made is not None else Compared()
        took_ms = self.now_ms() - began_ms
        return StoreDone(job, inspected, made, kept, seen.verdicts, seen.found, compared, took_ms)

    def _target(self, job: StoreJob) -> Folder:
        return Folder(below(self.out.address, f"{REBUILT}/{job.name}"))


def _finished(target: Folder, job: StoreJob) -> Rebuilt | None:
    """What an earlier run, cut short later, has rebuilt already. Raises InvalidRequest if it is of something else."""
    if target.read(FILE_NAME) is None:
        return None
    manifest, what = manifest_of(target), job.what
    assert what is not None
    wanted = (job.app, job.name, job.spec.definition(), what.info.topic_id, sorted(what.ranges))
    numbers = [one.partition for one in manifest.partitions]
    if (manifest.app, manifest.store, manifest.definition, manifest.topic_id, numbers) != wanted:
        raise InvalidRequest(
            f"{target} holds a rebuild of something else ({manifest.app}/{manifest.store}, another definition, topic "
            "or other partitions): name a new folder"
        )
    return Rebuilt(manifest, str(target), 0)


def _compared(manifest: Manifest, verdicts: Sequence[StoreVerdict], plan: StorePlan) -> Compared:
    """Digests of both where both stand at one offset and the log could speak for the store."""
    by_number = {one.task.partition: one for one in verdicts}
    same, unequal = [], []
    for part in manifest.partitions:
        verdict, at = by_number.get(part.partition), plan.stored.get(part.partition)
        if verdict is None or at is None or at.position is None or at.position.offset != part.end:
            continue
        if verdict.verdict == "inconclusive" or verdict.indeterminate or part.digest is None:
            continue
        same.append(part.partition)
        if verdict.store_digest.hex() != part.digest:
            unequal.append(part.partition)
    return Compared(tuple(same), tuple(unequal))


def only_partition(places: Sequence[Place], number: int) -> list[Place]:
    """The places of one partition. Raises InvalidRequest if there is none."""
    chosen = [place for place in places if place.task.partition == number]
    if not chosen:
        held = ", ".join(map(str, sorted({place.task.partition for place in places})))
        raise InvalidRequest(f"there is no task of partition {number}, there are {held}")
    return chosen
