"""The result of the demo: one JSON document, from which `--json` and the card are made, and whether it is good.

    fed           the data: rows of the file, those skipped, and those fed
    scale_out     tasks that C took by warm hand-overs; `longest_pause_ms` of one, from its close to its start at C
    takeover      the kill of A and the take-over of its tasks (course.py)
    processed     flights by process; those that A had not committed when it was killed twice
    board         effects of windows and punctuation (run.py)
    returned      A after it came back: changelog records it had missed, tasks that it got, whether its stores are equal
    comparison    stores against the plain computation, finals: results against it (compare.py)
    offsets, verify, cold_restore, digests    the other checks (check.py)
    spark         the run of Spark (spark.py); null: it was left out

Rules of this file: plain data; times in milliseconds as named, JSON names are a contract ("schema").
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.demo/3"


@dataclass(frozen=True, slots=True)
class LogUsed:
    """The log. `kind` is embedded or kafka; a broker that the demo started has its version, pid and time to start.

    On a shared cluster all names begin with `prefix`, `topics` are those that the demo makes there, and `removed`
    says whether they were deleted at the end.
    """

    kind: str
    address: str
    prefix: str = ""
    kafka: str | None = None
    pid: int | None = None
    started_ms: int | None = None
    topics: tuple[str, ...] = ()
    removed: bool = False


def judged(result: Json, spark: str) -> Json:
    """The document that `--json` prints, of all parts of a result; `spark` says how to turn that step on."""
    left = ["the other eleven months of 2013: --data full"] if result["fed"]["data"] == "sample" else []
    if result["log"]["kind"] == "embedded":
        left.append("the same on Kafka: --log kafka")
    if result["spark"] is None:
        left.append(f"all stores rebuilt and verified on Spark: {spark}")
    found = problems(result)
    return {"schema": SCHEMA, "ok": not found, "problems": found, **result, "left_out": left}


def problems(result: Json) -> list[str]:
    """Every deviation of the result from the expected one; empty if all is well."""
    compared, finals, board, verified = (result[name] for name in ("comparison", "finals", "board", "verify"))
    offsets, spark, late = result["offsets"], result["spark"], board["late_windows"] + board["late_dropped"]
    found = [example for one in compared["stores"].values() for example in one["examples"]]
    if compared["differences"]:
        found.append(f"{compared['differences']} differences to the plain computation")
    found += finals["examples"]
    if finals["differences"]:
        found.append(f"{finals['differences']} final results are not given once, in order and with the right values")
    if late:
        found.append(f"{late} updates came too late for their window")
    if not offsets["equal"]:
        found.append(f"committed offsets {offsets['committed']} are not the records fed {offsets['expected']}")
    if verified["unequal"] or verified["mismatches"]:
        found.append(
            f"{verified['mismatches']} rows differ between stores and changelogs; "
            f"{verified['unequal']} of {verified['stores']} stores were not found equal"
        )
    if not result["cold_restore"]["equal"]:
        found.append("the cold restore has other digests than the live stores")
    if spark and spark["verdict"] != "equal":
        found.append(f"the run of Spark ended {spark['verdict']}: {spark['differences']} rows differ")
    if spark and spark["same_digest"] != spark["rebuilt"]:
        found.append("rows that Spark rebuilt have other digests than the live stores")
    if not result["returned"]["equal"]:
        found.append("the stores of A, which came back, have other digests than those of B")
    return found


def removal_line(address: str, prefix: str) -> str:
    """The command that lists, and with --yes removes, all topics of a demo with this prefix."""
    return f"standfast demo --log {quote(address)} --prefix {prefix} --remove"
