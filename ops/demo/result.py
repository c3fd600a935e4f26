"""The result of the demo: one JSON document, from which `--json` and the card are made, and whether it is good.

    log           the place (place.py)
    fed           the data: rows of the file, those skipped, and those fed; grace and retention; the guarantee
    joined        tasks that B took by warm hand-overs; `longest_pause_ms` of one, in which no process processed it
    takeover      the kill of A and the take-over of its tasks (course.py)
    returned      the same as `joined`, of A after it came back
    board         the live board at the end
    stores        each store against the plain computation, with its digest; finals: results against it (compare.py)
    offsets, verify, cold_restore    the other checks (check.py)
    spark         the run of Spark (spark.py); null: it was left out

Rules of this file: plain data; times in milliseconds as named, JSON names are a contract ("schema").
"""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.demo/4"


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
    finals, verified, spark, fed = (result[name] for name in ("finals", "verify", "spark", "fed"))
    exact, compared = fed["guarantee"] == "exactly_once", [*result["stores"].values(), finals]
    found = [example for one in compared for example in one["examples"]]
    if differs := sum(map(differences, compared)):
        found.append(f"{differs} differences to the plain computation")
    if exact and finals["repeated"]:
        found.append(f"{finals['repeated']} final results were given again")
    counted = result["board"]["flights"]
    if counted < fed["records"] or (exact and counted > fed["records"]):
        found.append(f"{counted} flights were counted, {fed['records']} were fed")
    if result["offsets"]["committed"] != result["offsets"]["expected"]:
        found.append("committed offsets {committed} are not the records fed {expected}".format(**result["offsets"]))
    if verified["unequal"]:
        found.append(f"{verified['unequal']} of {verified['stores']} stores are not equal to their changelogs")
    if not result["cold_restore"]["equal"]:
        found.append("the cold restore has other digests than the live stores")
    if spark and spark["verdict"] != "equal":
        found.append(f"the run of Spark ended {spark['verdict']}: {spark['differences']} rows differ")
    if spark and spark["same_digest"] != spark["rebuilt"]:
        found.append("rows that Spark rebuilt have other digests than the live stores")
    return found


def differences(compared: Json) -> int:
    """Rows of a comparison that differ in any way."""
    return int(compared["missing"] + compared["extra"] + compared["different"])
