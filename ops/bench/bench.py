"""The command bench: how fast this machine writes, reads and restores: one process, RocksDB, embedded log or Kafka.

    standfast bench write      put + commit in batches, on Kafka beside the bare loops of its client
    standfast bench read       point gets and whole scans of committed rows
    standfast bench restore    an empty directory until the gate is open: distinct keys, and several versions a key
    standfast bench standby    standbys follow the changelogs of several tasks, then take them over
    standfast bench failover   an application process is killed, until its standby has processed a record
    standfast bench process    an application counts 1,000 keys in windows, does nothing, or calls a service
    standfast bench scale      an application with one and several workers, beside as many bare processes
    standfast bench handover   tasks move while they work, between workers and between instances

`write`, `restore`, `standby` and `failover` take `--log kafka`, or `--log kafka://host:port` for an existing cluster.

Rules of this file: arguments, and tables for people; the measures are made in `standfast.ops.bench.measures`.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.bench.log import KAFKA, RUNS_DEFAULT, SQLITE, BenchLog, add_log, bench_log, kind_of
from standfast.ops.bench.step import BATCH, KEY_BYTES, VALUE_BYTES, VERSIONS
from standfast.ops.cli.arguments import prints

if TYPE_CHECKING:
    from standfast.ops.bench.step import Step
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.bench/1"
RECORDS_DEFAULT = {"read": 500_000, "scale": 100_000, "handover": 36_000}  # else a million
TASKS, TASKS_MAX = {"standby": 16, "handover": 24}, 1_000
WITH_LOG = ("write", "restore", "standby", "failover", "handover")  # commands that take `--log`
RUNS_FAILOVER = 20
RUNS_HELP = (
    f"runs of each measure ({RUNS_DEFAULT[SQLITE]}; on Kafka {RUNS_DEFAULT[KAFKA]}; failovers, moves {RUNS_FAILOVER})"
)
# The largest digest of blake2b, which makes the keys.
KEY_BYTES_MAX = 64


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure writes, reads and restores on this machine",
        description="Measure one process with RocksDB, in a folder that is removed afterwards, on the embedded log or "
        "on Kafka.",
    )
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="WHAT")
    for name, text in (
        ("write", "put and commit in batches"),
        ("read", "point gets and scans"),
        ("restore", "restore a store from its changelog"),
        ("standby", "follow changelogs, and take over"),
        ("failover", "kill an application process, until its standby processes a record"),
        ("process", "count records per key and window, and call a service"),
        ("scale", "process 100 us of Python a record in one and several workers"),
        ("handover", "move tasks between two workers, and between two instances with standbys"),
    ):
        command = commands.add_parser(name, help=text, description=f"Measure: {text}.")
        add = command.add_argument
        records = RECORDS_DEFAULT.get(name, 1_000_000)
        add("--records", type=int, default=records, metavar="N", help=f"({records:,})")
        add("--key-bytes", type=int, default=KEY_BYTES, metavar="N", help=f"size of a key ({KEY_BYTES})")
        add("--value-bytes", type=int, default=VALUE_BYTES, metavar="N", help=f"size of a value ({VALUE_BYTES})")
        add("--batch", type=int, default=BATCH, metavar="N", help=f"write: records of one commit ({BATCH:,})")
        add("--versions", type=int, default=VERSIONS, metavar="N", help=f"restore: records of one key ({VERSIONS})")
        add("--runs", type=int, metavar="N", help=RUNS_HELP)
        if name in TASKS:
            tasks = TASKS[name]
            add("--tasks", type=int, default=tasks, metavar="N", help=f"tasks that share the records ({tasks})")
        if name in WITH_LOG:
            add_log(command)
        if name == "failover":
            add("--lease", metavar="DURATION", help="how long a member may be silent, as 500ms (an application's)")
        if name == "restore":
            add("--workers", metavar="LIST", help="threads of a bulk restore, 0 for batches, as 0,1,2 (a session's)")
            add("--restore-memory", metavar="SIZE", help="memory for rows in all of them, as 512MiB (a session's)")
        if name == "scale":
            add("--workers", metavar="LIST", help="numbers of worker processes, as 1,2,4 (1,2)")
        add("--memory", default="256MiB", metavar="SIZE", help="memory setting of the session (256MiB)")
        add("--dir", type=Path, metavar="D", help="work below this folder (default: the system's temporary one)")
        prints(command, run_bench, "json", "wide")


def run_bench(args: argparse.Namespace, out: Output) -> int:
    """bench write, read, restore, standby, failover, process, scale, handover."""
    from standfast.ops.bench.measures import Bench

    settings = _settings(args)
    with _folder(args.dir) as folder, bench_log(_log(args), folder, out) as log:
        bench = Bench(settings, log, _step(settings, folder, log), out)
        measures, ratios = getattr(bench, args.bench_command)()
        versions = _versions(log)
    document = {
        "schema": SCHEMA,
        "bench": args.bench_command,
        "settings": settings,
        "log": log.document(),
        "versions": versions,
        "measures": measures,
        "ratios": ratios,
    }
    out.document(document)
    show(document, out)
    return 0


def show(document: Json, out: Output) -> None:
    """Tables for people."""
    # Figures without goals: machine, load and needs of users are others than those that our goals are set for.
    settings, versions, log = document["settings"], document["versions"], document["log"]
    kafka = log["kind"] != SQLITE
    where = (
        f"log {log['address']}" + " of its own" * bool(log["broker"]) if kafka else "embedded log (synchronous=full)"
    )
    count = "" if document["bench"] == "failover" else f"{settings['records']:,} "
    out.line(
        f"{count}records of {settings['key_bytes']} + {settings['value_bytes']} bytes, "
        f"{settings['runs']} run{'s' * (settings['runs'] > 1)}, "
        + (f"{settings['tasks']} tasks, " if "tasks" in settings else "")
        + f"memory {settings['memory_bytes'] >> 20} MiB, "
        f"RocksDB, {where}"
    )
    out.line(", ".join(f"{name} {version}" for name, version in versions.items()))
    columns = ("measure", "median", "slowest", "fastest", "unit", "CPU us a record", "waited for CPU", "what")
    rows = [_cells(one) for one in document["measures"]]
    numbers = ("median", "slowest", "fastest", "CPU us a record", "waited for CPU")
    out.table(columns, rows, right=numbers, fold=("what",), wide=("waited for CPU", "what"))
    for one in document["measures"]:
        if one.get("p90") is not None:
            out.line(f"{one['name']}: 90 % within {one['p90']:,.0f} ms")
        if one.get("peak_rss_bytes") is not None:
            out.line(
                f"{one['name']}: largest resident size {one['peak_rss_bytes'] >> 20} MiB "
                f"(its memory settings and the allowance beside them: {one['peak_rss_bound_bytes'] >> 20} MiB)"
            )
    for ratio in document["ratios"]:
        out.line(
            f"{ratio['name']}: {ratio['value']:.2f} (rounds {ratio['min']:.2f} to {ratio['max']:.2f}; {ratio['what']})"
        )


def _cells(one: Json) -> list[str]:
    # For milliseconds the largest is the slowest, for rates the smallest.
    slowest, fastest = ("max", "min") if one["unit"] == "ms" else ("min", "max")
    figures = [f"{one[name]:,.0f}" for name in ("median", slowest, fastest)]
    waited = "" if one["waited_share"] is None else f"{one['waited_share']:.0%}"
    used = "" if one.get("cpu_us") is None else f"{one['cpu_us']:.1f}"
    return [one["name"], *figures, one["unit"], used, waited, one["what"]]


def _settings(args: argparse.Namespace) -> Json:
    from standfast.ops.config.config import parse_duration, parse_size
    from standfast.store.errors import InvalidRequest
    from standfast.store.rocks.engine import MEMORY_BYTES_MIN
    from standfast.store.rows import VALUE_MAX_BYTES
    from standfast.stream.task.settings import LEASE_MIN_MS, RESTORE_MEMORY_DEFAULT_BYTES, RESTORE_MEMORY_MIN_BYTES
    from standfast.stream.workers.counts import cores

    problems = []
    if args.runs is None:
        moves = args.bench_command in ("failover", "handover")
        args.runs = RUNS_FAILOVER if moves else RUNS_DEFAULT[kind_of(_log(args))]
    limits = {"value_bytes": VALUE_MAX_BYTES, "key_bytes": KEY_BYTES_MAX, "batch": 10_000, "versions": args.records}
    # Shorter keys would collide.
    least, limits["tasks"] = {"value_bytes": 0, "key_bytes": 8}, TASKS_MAX
    names = ["records", "key_bytes", "value_bytes", "batch", "versions", "runs", "tasks"]
    if not hasattr(args, "tasks"):
        names.remove("tasks")
    for name in names:
        number, low, high = getattr(args, name), least.get(name, 1), limits.get(name)
        if number < low or (high is not None and number > high):
            upper = "" if high is None else f" to {high}"
            problems.append(f"--{name.replace('_', '-')} is {number}: give {low}{upper or ' or more'}")
    sizes = {"restore_memory_bytes": RESTORE_MEMORY_DEFAULT_BYTES}
    least_bytes = {"memory": MEMORY_BYTES_MIN, "restore_memory": RESTORE_MEMORY_MIN_BYTES}
    for name, fewest in least_bytes.items():
        given, option = getattr(args, name, None), f"--{name.replace('_', '-')}"
        if given is None:
            continue
        try:
            sizes[f"{name}_bytes"] = parse_size(given)
            if sizes[f"{name}_bytes"] < fewest:
                problems.append(f"{option} is {given!r}: give {fewest >> 20}MiB or more")
        except ValueError as error:
            problems.append(f"{option} is {given!r}: {error}")
    if getattr(args, "lease", None) is not None:
        try:
            sizes["lease_ms"] = parse_duration(args.lease)
            if sizes["lease_ms"] < LEASE_MIN_MS:
                problems.append(f"--lease is {args.lease!r}: give {LEASE_MIN_MS}ms or more")
        except ValueError as error:
            problems.append(f"--lease is {args.lease!r}: {error}")
    workers = (getattr(args, "workers", None) or "").replace(" ", "")
    if not re.fullmatch(r"(\d{1,2}(,\d{1,2})*)?", workers):
        problems.append(f"--workers is {workers!r}: give numbers of workers, as 0,1,2")
    elif args.bench_command == "scale":
        problems += [
            f"--workers is {workers!r}: give numbers from 1 to the {cores()} cores that this process may use"
            for number in workers.split(",")
            if workers and not 1 <= int(number) <= cores()
        ][:1]
    if problems:
        raise InvalidRequest("; ".join(problems))
    counts = list(dict.fromkeys(map(int, workers.split(",")))) if workers else []
    return {name: getattr(args, name) for name in names} | sizes | {"workers": counts}


def _log(args: argparse.Namespace) -> str:
    log: str = getattr(args, "log", SQLITE)
    return log


def _step(settings: Json, folder: Path, log: BenchLog) -> Step:
    from standfast.ops.bench.step import Step

    fields = {name: value for name, value in settings.items() if name not in ("runs", "workers")}
    # As many records as fit the number of versions: every key then has exactly that many.
    fields["records"] = max(settings["records"] // settings["versions"], 1) * settings["versions"]
    return Step(step="", folder=str(folder), log=log.address, app=log.prefix, **fields)


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standfast-bench-", dir=parent) as name:
        yield Path(name).absolute()


def _versions(log: BenchLog) -> Json:
    import os
    import platform
    from importlib.metadata import version

    from standfast._version import __version__

    if log.kind == SQLITE:
        from standfast.replication.embedded.db import SQLITE_VERSION

        of_log = {"sqlite": SQLITE_VERSION}
    else:
        of_log = {"kafka": log.broker or "not known", "confluent-kafka": version("confluent-kafka")}
    return {
        "standfast": __version__,
        "python": platform.python_version(),
        "rocksdict": version("rocksdict"),
        **of_log,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
