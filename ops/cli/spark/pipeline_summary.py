"""The results of a pipeline as one JSON document: `summary.json`, the output of --json, and the input of the page.

Rules of this file: plain data from results; JSON names are a contract ("schema").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.spark.verify import COUNTS, store_document

if TYPE_CHECKING:
    from standfast.restore.spark.inspect import Inspected
    from standfast.restore.spark.pipeline import PipelineDone, StoreDone

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.pipeline/1"


def summary_of(done: PipelineDone, about: Mapping[str, Any]) -> Json:
    """The document. `about` describes the run: app, log, state, looked_at, source, spark, master, out."""
    return {
        "schema": SCHEMA,
        **about,
        "verdict": done.verdict,
        "records": sum(part.records for one in done.stores for part in one.inspected),
        "rows": sum(one.matched for store in done.stores for one in store.verdicts),
        "differences": sum(_wrong(one) for one in done.stores),
        "indeterminate": sum(one.indeterminate for store in done.stores for one in store.verdicts),
        "inspect_ms": done.inspect_ms,
        "elapsed_ms": done.elapsed_ms,
        "stores": [_store(one) for one in done.stores],
    }


def _wrong(done: StoreDone) -> int:
    return sum(one.missing + one.extra + one.different + one.stale for one in done.verdicts)


def _store(done: StoreDone) -> Json:
    spec, compared = done.job.spec, done.compared
    return {
        "store": spec.name,
        "kind": spec.kind,
        "topic": spec.changelog_of(done.job.app),
        "verdict": done.verdict,
        **{name: sum(getattr(one, name) for one in done.verdicts) for name in COUNTS},
        "inspected": [_inspected(part) for part in done.inspected],
        "rebuilt": _rebuilt(done),
        "rebuild_left_out": done.job.left_out,
        "verified": [store_document(one) for one in done.verdicts],
        "verify_ms": done.verify_ms,
        "same_position": list(compared.partitions),
        "rebuilt_differs": list(compared.unequal),
    }


def _inspected(part: Inspected) -> Json:
    names = ("partition", "begin", "end", "records", "gaps", "tombstones", "keys", "bytes", "value_max_bytes")
    times = {name: None if getattr(part, name) < 0 else getattr(part, name) for name in ("first_ms", "last_ms")}
    return {name: getattr(part, name) for name in names} | times


def _rebuilt(done: StoreDone) -> Json | None:
    made = done.rebuilt
    if made is None:
        return None
    parts = made.manifest.partitions
    return {
        "folder": made.folder,
        "kept": done.kept,
        "elapsed_ms": made.elapsed_ms,
        "records": made.records,
        "rows": made.digest.count,
        "files": sum(len(part.files) for part in parts),
        "bytes": sum(file.bytes for part in parts for file in part.files),
        "digest": made.digest.hex(),
        "partitions": [
            {
                "partition": part.partition,
                "end": part.end,
                "converge_offset": part.converge_offset,
                "rows": part.entries,
                "tombstones": part.tombstones,
                "superseded": part.superseded,
                "expired": part.expired,
                "skipped": part.skipped,
                "bytes": sum(file.bytes for file in part.files),
                "digest": part.digest,
            }
            for part in parts
        ],
        "warnings": list(made.warnings),
    }
