"""Positions of state in object storage, read from the databases by tasks of Spark before the stores are compared.

    plans with definitions only ──> a task for each place: its commit record ──> plans as of state on this machine

Rules of this file: the database decides. If the file of definitions behind a plan differs from it, the run ends with an
error that names both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from standfast.replication.log import Log
from standfast.restore.spark.files import run_files
from standfast.restore.spark.frames import OnTasks, run_job
from standfast.restore.spark.pipeline import StoreJob
from standfast.restore.spark.places import Described, TaskPlace, contradiction, read_database
from standfast.restore.spark.verify import StoredAt, StorePlan, plan_verify
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.task.commit_record import Position, StoreTimes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = "at int, record string"


@contextmanager
def settled(
    spark: SparkSession, log: Log, plans: Sequence[StorePlan], on_tasks: OnTasks | None = None
) -> Iterator[list[StorePlan]]:
    """The plans with positions. Files that tasks fetch within the block are shared on each machine, then removed."""
    remote = [at.place for plan in plans for at in plan.stored.values() if at.place.remote]
    with run_files(spark, needed=bool(remote)) as run:
        if not run:
            yield list(plans)
            return
        # In the places of later jobs too: their tasks find the fetched files by the run's name.
        plans = [_in_run(plan, run) for plan in plans]
        open_ones = [at.place for plan in plans for at in plan.stored.values() if not at.known]
        # Each place once, however many stores it holds: one task reads the record of all of them.
        places = sorted(set(open_ones), key=lambda place: place.address)
        records = dict(zip(places, _records(spark, places, on_tasks), strict=True)) if places else {}
        yield [_with_positions(log, plan, records) for plan in plans]


@contextmanager
def settled_jobs(spark: SparkSession, log: Log, jobs: Sequence[StoreJob]) -> Iterator[list[StoreJob]]:
    """The jobs of a pipeline with plans that have positions; see `settled`."""
    with settled(spark, log, [job.plan for job in jobs if job.plan is not None]) as plans:
        found = {plan.spec.name: plan for plan in plans}
        yield [
            replace(job, plan=found[job.name], stored=found[job.name].stored) if job.name in found else job
            for job in jobs
        ]


def _in_run(plan: StorePlan, run: str) -> StorePlan:
    stored = {number: at._replace(place=replace(at.place, run=run)) for number, at in plan.stored.items()}
    return replace(plan, stored=stored)


def _with_positions(log: Log, plan: StorePlan, records: Mapping[TaskPlace, Mapping[str, Described]]) -> StorePlan:
    name = plan.spec.name
    if all(at.known for at in plan.stored.values()):
        return plan
    stored = {}
    for number, at in plan.stored.items():
        found = records[at.place].get(name) if not at.known else None
        if not at.known and (found is None or found.definition != at.definition):
            said = {} if found is None else {name: found.definition}
            raise InvalidRequest(contradiction(at.place, {name: at.definition}, said))
        stored[number] = at if found is None else StoredAt(at.place, at.definition, found.position, found.times)
    # Planned again, because a position may show that the log cannot speak for its partition.
    return plan_verify(log, plan.app, name, stored)


def _records(spark: SparkSession, places: Sequence[TaskPlace], on_tasks: OnTasks | None) -> list[dict[str, Described]]:
    """The stores in each task's database, read by a job."""
    asked = list(places)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                record = json.dumps({name: asdict(one) for name, one in read_database(asked[at]).items()})
                yield pa.RecordBatch.from_pydict({"at": pa.array([at], pa.int32()), "record": [record]})

    count = len(asked)
    rows = run_job(spark.range(0, count, 1, count).mapInArrow(read, DDL), on_tasks)
    found = {row["at"]: _described(json.loads(row["record"])) for row in rows}
    if found.keys() != set(range(count)):
        raise InternalError(f"positions: tasks {sorted(set(range(count)) - found.keys())} gave no answer")
    return [found[at] for at in range(count)]


def _described(record: Mapping[str, Any]) -> dict[str, Described]:
    return {
        name: Described(
            one["definition"],
            None if one["position"] is None else Position(*one["position"]),
            StoreTimes(*one["times"]),
        )
        for name, one in record.items()
    }
