"""The command bench: how fast this machine writes, reads and restores, one process, RocksDB, embedded log.

    standfast bench write      put + commit in batches
    standfast bench read       point gets and whole scans of committed rows
    standfast bench restore    an empty directory until the gate is open: distinct keys, and several versions a key
    standfast bench process    an application counts 1,000 keys in windows, beside one whose processor does nothing

Every run is a process of its own (`standfast.ops.bench_child`), started one after the other; the log of a restore is
filled by another one, so the peak memory is that of the restore alone. Rates are records a second: the median over the
runs, with the slowest and fastest beside it. A goal is compared only where the data set is the one it is set for.

Rules of this file: arguments, order of runs, tables; nothing is timed here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.arguments import add_json, printing

if TYPE_CHECKING:
    from standfast.ops.bench_step import Step
    from standfast.ops.output import Output

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.bench/1"
RECORDS_DEFAULT = {"write": 1_000_000, "read": 500_000, "restore": 1_000_000, "process": 1_000_000}
KEY_BYTES, VALUE_BYTES, BATCH, VERSIONS = 16, 100, 1_000, 4
# What the promise is, in records a second, for the sizes above.
GOALS = {"put_commit": 150_000, "restore_distinct": 350_000, "restore_versions_near": 500_000, "process_count": 60_000}
MEMORY_ALLOWANCE_BYTES = 200 << 20  # a restore may take this much beside the memory setting
KEY_BYTES_MAX = 64
READS = {
    "get": "get of keys that are there, in random order",
    "get_absent": "get of keys that are not there",
    "scan": "all(): every row in key order",
    "scan_reverse": "all(reverse=True)",
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure writes, reads and restores on this machine",
        description="Measure one process with RocksDB and the embedded log, in a folder that is removed afterwards.",
    )
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="WHAT")
    for name, text in (
        ("write", "put and commit in batches"),
        ("read", "point gets and scans"),
        ("restore", "restore a store from its changelog"),
        ("process", "count records per key and window"),
    ):
        command = commands.add_parser(name, help=text, description=f"Measure: {text}.")
        add = command.add_argument
        add("--records", type=int, default=RECORDS_DEFAULT[name], metavar="N", help=f"({RECORDS_DEFAULT[name]:,})")
        add("--key-bytes", type=int, default=KEY_BYTES, metavar="N", help=f"size of a key ({KEY_BYTES})")
        add("--value-bytes", type=int, default=VALUE_BYTES, metavar="N", help=f"size of a value ({VALUE_BYTES})")
        add("--batch", type=int, default=BATCH, metavar="N", help=f"write: records of one commit ({BATCH:,})")
        add("--versions", type=int, default=VERSIONS, metavar="N", help=f"restore: records of one key ({VERSIONS})")
        add("--runs", type=int, default=3, metavar="N", help="runs of each measure (3)")
        add("--memory", default="256MiB", metavar="SIZE", help="memory setting of the session (256MiB)")
        add("--dir", type=Path, metavar="D", help="work below this folder (default: the system's temporary one)")
        add_json(command)
        command.set_defaults(handler=printing(run_bench))


def run_bench(args: argparse.Namespace, out: Output) -> int:
    """bench write, read, restore."""
    settings = _settings(args)
    with _folder(args.dir) as folder:
        measure = {"write": _write, "read": _read, "restore": _restore, "process": _process}[args.bench_command]
        measures, ratios = measure(_step(settings, folder), settings, out)
    document = {
        "schema": SCHEMA,
        "bench": args.bench_command,
        "settings": settings,
        "versions": _versions(),
        "measures": measures,
        "ratios": ratios,
    }
    out.document(document)
    show(document, out)
    return 0


def show(document: Json, out: Output) -> None:
    """Tables for people."""
    settings, versions = document["settings"], document["versions"]
    out.line(
        f"{settings['records']:,} records of {settings['key_bytes']} + {settings['value_bytes']} bytes, "
        f"{settings['runs']} run{'s' * (settings['runs'] > 1)}, memory {settings['memory_bytes'] >> 20} MiB, "
        "one process, RocksDB, embedded log (synchronous=full)"
    )
    out.line(", ".join(f"{name} {version}" for name, version in versions.items()))
    columns = ("measure", "records/s", "slowest", "fastest", "goal", "", "waited for CPU", "what")
    rows = [_cells(one) for one in document["measures"]]
    out.table(columns, rows, right=columns[1:5])
    for one in document["measures"]:
        if one.get("peak_rss_bytes") is not None:
            out.line(
                f"{one['name']}: largest resident size {one['peak_rss_bytes'] >> 20} MiB "
                f"(bound {one['peak_rss_bound_bytes'] >> 20} MiB: {_met(one['peak_rss_within_bound'])})"
            )
    for ratio in document["ratios"]:
        out.line(f"{ratio['name']}: {ratio['value']:.2f} ({ratio['what']})")


def _cells(one: Json) -> list[str]:
    rates = [f"{one[name]:,.0f}" for name in ("median", "min", "max")]
    goal = "" if one["goal"] is None else f"{one['goal']:,}"
    waited = "" if one["waited_share"] is None else f"{one['waited_share']:.0%}"
    return [one["name"], *rates, goal, _met(one["goal_met"]), waited, one["what"]]


def _write(step: Step, settings: Json, out: Output) -> tuple[list[Json], list[Json]]:
    runs = _runs(replace(step, step="write"), settings, out, "write")
    what = f"store.put, and task.commit with a source offset every {step.batch:,} records"
    return [_measure("put_commit", what, runs, settings)], []


def _read(step: Step, settings: Json, out: Output) -> tuple[list[Json], list[Json]]:
    runs = _runs(replace(step, step="read"), settings, out, "read")
    return [_measure(name, what, [run[name] for run in runs], settings) for name, what in READS.items()], []


def _restore(step: Step, settings: Json, out: Output) -> tuple[list[Json], list[Json]]:
    cases = [("restore_distinct", "distinct keys", replace(step, versions=1))]
    if step.versions > 1:
        text = f"{step.versions} versions a key"
        cases += [
            ("restore_versions_near", f"{text}, within 10,000 records", replace(step, order="near")),
            ("restore_versions_far", f"{text}, as far apart as the log allows", step),
        ]
    measures, ratios = [], []
    for name, what, case in cases:
        folder = Path(case.folder) / name
        case = replace(case, folder=str(folder))
        _run(replace(case, step="fill"), out, f"fill the log: {what}")
        raw = _runs(replace(case, step="log"), settings, out, f"read the log: {what}")
        runs = _runs(replace(case, step="restore"), settings, out, f"restore: {what}")
        shutil.rmtree(folder)
        restored = _measure(name, f"empty directory until the gate is open; {what}", runs, settings)
        measures.append(restored | _memory(runs, settings))
        fetched = _measure(f"{name}_log", f"the same log fetched and thrown away; {what}", raw, settings)
        measures.append(fetched)
        ratios.append(
            {
                "name": f"{name} / {name}_log",
                "value": restored["median"] / fetched["median"],
                "what": "share of the speed at which the log can be read at all",
            }
        )
    return measures, ratios


def _process(step: Step, settings: Json, out: Output) -> tuple[list[Json], list[Json]]:
    _run(replace(step, step="source"), out, "fill the source topic")
    counted = _runs(replace(step, step="count"), settings, out, "windowed count")
    idle = _runs(replace(step, step="idle"), settings, out, "a processor that does nothing")
    measures = [
        _measure("process_count", "tumbling windows of 60 s over 1,000 keys, cache, exactly once", counted, settings),
        _measure("process_idle", "the same records to a processor that does nothing", idle, settings),
    ]
    ratio = {
        "name": "process_count / process_idle",
        "value": measures[0]["median"] / measures[1]["median"],
        "what": "what is left of the loop's speed with a windowed count in it",
    }
    return measures, [ratio]


def _runs(step: Step, settings: Json, out: Output, what: str) -> list[Json]:
    """Each run in a process and a folder of its own; what it wrote is removed before the next."""
    found = []
    for number in range(settings["runs"]):
        found.append(_run(replace(step, run=number), out, f"{what}, run {number + 1} of {settings['runs']}"))
        shutil.rmtree(Path(step.folder) / f"{step.step}-{number}", ignore_errors=True)
    return found


def _run(step: Step, out: Output, what: str) -> Json:
    from standfast.store.errors import InternalError

    with out.progress(what, 1) as bar:
        command = [sys.executable, "-m", "standfast.ops.bench_child", step.encode()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        bar.advance(1)
    if done.returncode != 0:
        raise InternalError(f"the run {what!r} ended with code {done.returncode}:\n{done.stderr.strip()[-4_000:]}")
    measured: Json = json.loads(done.stdout.splitlines()[-1])
    return measured


def _measure(name: str, what: str, runs: list[Json], settings: Json) -> Json:
    rates = [run["rate"] for run in runs]
    goal = GOALS.get(name) if _comparable(settings) else None
    waited = [run["waited_for_cpu_ms"] for run in runs]
    elapsed_ms = sum(run["elapsed_ms"] for run in runs)
    return {
        "name": name,
        "what": what,
        "unit": "records/s",
        "records": runs[0]["records"],
        "median": median(rates),
        "min": min(rates),
        "max": max(rates),
        "goal": goal,
        "goal_met": None if goal is None else median(rates) >= goal,
        # Time that threads spent ready but without a processor: how busy the machine was with other work.
        "waited_share": None if None in waited else sum(waited) / elapsed_ms,
        "runs": runs,
    }


def _memory(runs: list[Json], settings: Json) -> Json:
    bound = settings["memory_bytes"] + MEMORY_ALLOWANCE_BYTES
    peaks = [run["peak_rss_bytes"] for run in runs if run["peak_rss_bytes"] is not None]
    return {
        "peak_rss_bytes": max(peaks, default=None),
        "peak_rss_bound_bytes": bound,
        "peak_rss_within_bound": max(peaks) <= bound if peaks else None,
    }


def _comparable(settings: Json) -> bool:
    sizes = (settings["key_bytes"], settings["value_bytes"], settings["batch"], settings["versions"])
    return sizes == (KEY_BYTES, VALUE_BYTES, BATCH, VERSIONS)


def _settings(args: argparse.Namespace) -> Json:
    from standfast.ops.config import parse_size
    from standfast.store.errors import InvalidRequest
    from standfast.store.rocks import MEMORY_BYTES_MIN
    from standfast.store.rows import VALUE_MAX_BYTES

    problems = []
    limits = {"value_bytes": VALUE_MAX_BYTES, "key_bytes": KEY_BYTES_MAX, "batch": 10_000, "versions": args.records}
    least = {"value_bytes": 0, "key_bytes": 8}
    names = ("records", "key_bytes", "value_bytes", "batch", "versions", "runs")
    for name in names:
        number, low, high = getattr(args, name), least.get(name, 1), limits.get(name)
        if number < low or (high is not None and number > high):
            upper = "" if high is None else f" to {high}"
            problems.append(f"--{name.replace('_', '-')} is {number}: give {low}{upper or ' or more'}")
    memory_bytes = 0
    try:
        memory_bytes = parse_size(args.memory)
    except ValueError as error:
        problems.append(f"--memory is {args.memory!r}: {error}")
    if memory_bytes and memory_bytes < MEMORY_BYTES_MIN:
        problems.append(f"--memory is {args.memory!r}: give 1MiB or more")
    if problems:
        raise InvalidRequest("; ".join(problems))
    return {name: getattr(args, name) for name in names} | {"memory_bytes": memory_bytes}


def _step(settings: Json, folder: Path) -> Step:
    from standfast.ops.bench_step import Step

    fields = {name: value for name, value in settings.items() if name != "runs"}
    # As many records as fit the number of versions: every key then has exactly that many.
    fields["records"] = max(settings["records"] // settings["versions"], 1) * settings["versions"]
    return Step(step="", folder=str(folder), **fields)


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standfast-bench-", dir=parent) as name:
        yield Path(name).absolute()


def _versions() -> Json:
    import os
    import platform
    from importlib.metadata import version

    from standfast._version import __version__
    from standfast.replication.embedded_db import SQLITE_VERSION

    return {
        "standfast": __version__,
        "python": platform.python_version(),
        "rocksdict": version("rocksdict"),
        "sqlite": SQLITE_VERSION,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def _met(met: bool | None) -> str:
    return "" if met is None else "met" if met else "NOT MET"
