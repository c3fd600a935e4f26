"""The result of the demo: one JSON document, whether it is good, and the card that closes the demo.

    log           the place (place.py)
    fed           the data: flights, and those out of order by schedule; grace and retention; the guarantee
    joined        tasks that B took by warm hand-overs; `longest_pause_ms` of one, in which no process processed it
    takeover      the kill of A and the take-over of its tasks (course.py)
    returned      the same as `joined`, of A after it came back
    board         the live board at the end
    stores        each store against the plain computation, with its digest; finals: results against it (check.py)
    committed, verify, cold_restore    the other checks (check.py)
    spark         the run of Spark (spark.py); null: it was left out

Rules of this file: plain data and words; times in milliseconds as named, JSON names are a contract ("schema").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.demo/4"
TEXT_AT = 16


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
    if result["committed"] != fed["records"]:
        found.append(f"{result['committed']} flights are committed, {fed['records']} were fed")
    if verified["unequal"]:
        found.append(f"{verified['unequal']} stores differ from their changelogs")
    if not result["cold_restore"]["equal"]:
        found.append("the cold restore has other digests than the live stores")
    if spark and spark["verdict"] != "equal":
        found.append(f"Spark: {spark['differences']} rows differ, {spark['verdict']}")
    if spark and spark["same_digest"] != spark["rebuilt"]:
        found.append("rows that Spark rebuilt have other digests")
    return found


def differences(compared: Json) -> int:
    """Rows of a comparison that differ in any way."""
    return int(compared["missing"] + compared["extra"] + compared["different"])


def print_card(result: Json, out: Output) -> None:
    """Print the card, wrapped on a terminal: a label and a text a line."""
    equal = "every row is equal" if result["fed"]["guarantee"] == "exactly_once" else "nothing is lost"
    took = f"{equal}; standbys took over in {_seconds(result['takeover']['to_running_ms'])}"
    out.text(f"standfast demo: {took if result['ok'] else 'NOT equal: see the problems'}")
    for label, text in _lines(result):
        out.text(f"  {label:<{TEXT_AT - 3}} {text}", TEXT_AT)


def _lines(result: Json) -> Iterator[tuple[str, str]]:
    fed, stores, takeover, finals = (result[name] for name in ("fed", "stores", "takeover", "finals"))
    log, cold, before = result["log"], result["cold_restore"], takeover["finals_before"]
    yield from (("problem", problem) for problem in result["problems"])
    broker = f", Kafka {log['kafka']} started for it" if log["kafka"] else ""
    yield "log", f"{log['kind']}, {log['address']}{broker}"
    decided, lacked = _seconds(takeover["to_decided_ms"]), takeover["lacked"]
    yield "take-over", f"decided {decided} after the kill; the standbys lacked {lacked:,} changes"
    rows = " + ".join(f"{one['expected']:,} {name}" for name, one in stores.items())
    differ = sum(map(differences, stores.values()))
    yield "file", f"{rows} rows compared, {differ} differences"
    counted = result["board"]["flights"]
    yield fed["guarantee"].replace("_", " "), f"{counted:,} flights counted of {fed['records']:,} fed"
    once = f"{finals['repeated']} again" if finals["repeated"] else "each once"
    given = f"{before:,} before the kill, {finals['records'] - before:,} after it"
    yield "final results", f"{finals['expected']:,} hours closed, {once}: {given}"
    verified = result["verify"]
    yield "changelogs", f"{verified['rows']:,} rows verified, {verified['unequal']} stores unequal"
    took = _seconds(cold["duration_ms"])
    same = "same" if cold["equal"] else "OTHER"
    yield "cold restore", f"{cold['records']:,} changes in {took}, {same} digests"
    if spark := result["spark"]:
        took = _seconds(spark["elapsed_ms"])
        rows = f"{spark['rows']:,} rows equal, {spark['differences']} differences"
        yield "Spark", f"{spark['stores']} stores rebuilt and verified in {took}: {rows}"
    yield from (("digest", f"{name} {one['digest']}") for name, one in stores.items())
    yield from (("left out", text) for text in result["left_out"])
    if result["kept_in"]:
        yield "kept in", result["kept_in"]
    yield "took", f"{result['duration_ms'] / 1_000:.1f} s"


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:.2f} s"
