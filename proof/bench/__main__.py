"""Benches of the checkout: `python -m bench WHAT`.

    restore    as `standfast bench restore`, beside the speed at which the same log can be read at all
    write      put + commit in batches, on Kafka beside the bare loops of its client
    read       point gets and whole scans of committed rows
    standby    standbys follow the changelogs of several tasks, then take them over
    failover   an application process is killed, until its standby has processed a record
    process    an application counts 1,000 keys in windows, does nothing, or calls a service
    scale      an application with one and several workers, beside as many bare processes
    handover   tasks move while they work, between workers and between instances

Run it from the checkout with `PYTHONPATH=proof`; `make bench BENCHES=...` does that.

Rules of this file: arguments; the measures are made in `bench.measures`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from bench.measures import Bench
from bench.step import BATCH, Step
from standfast.ops.bench.bench import (
    RECORDS,
    RUNS,
    SIZES,
    add_log,
    add_restore,
    add_sizes,
    document_of,
    number,
    numbers,
    opened,
    show,
)
from standfast.ops.cli.arguments import prints
from standfast.ops.command.command_line import EXIT_USAGE, run
from standfast.ops.command.parser import CommandParser
from standfast.ops.config.config import parse_duration
from standfast.ops.demo.place import EMBEDDED
from standfast.ops.shared.output import Output
from standfast.stream.task.settings import LEASE_MIN_MS
from standfast.stream.workers.counts import cores

BENCHES = {
    "restore": "restore a store from its changelog, beside the speed of reading it",
    "write": "put and commit in batches",
    "read": "point gets and scans",
    "standby": "follow changelogs, and take over",
    "failover": "kill an application process, until its standby processes a record",
    "process": "count records per key and window, and call a service",
    "scale": "process 100 us of Python a record in one and several workers",
    "handover": "move tasks between two workers, and between two instances with standbys",
}
NUMBERS = {"read": 500_000, "scale": 100_000, "handover": 36_000}  # of records; else a million
TASKS, TASKS_MAX = {"standby": 16, "handover": 24}, 1_000
WITH_LOG = ("write", "standby", "failover", "handover")  # commands that take `--log`
RUNS_OF = {"failover": 20, "handover": 20}
BATCH_MAX = 10_000
# Arguments that are settings beside sizes and runs; those of FIELDS are fields of a step, too.
FIELDS = ("batch", "tasks", "lease_ms", "versions", "restore_memory_bytes")
OTHERS = ("workers",)


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(prog="python -m bench", description="Measure this machine: figures only.")
    commands = made.add_subparsers(dest="bench_command", required=True, metavar="WHAT")
    for name, text in BENCHES.items():
        command = commands.add_parser(name, help=text, description=f"Measure: {text}.")
        prints(command, partial(measure, name), "json", "wide")
        if name == "restore":
            add_restore(command)
            continue
        add_sizes(command, NUMBERS.get(name, RECORDS), RUNS_OF.get(name, RUNS))
        add, batch = command.add_argument, number(1, BATCH_MAX)
        add("--batch", type=batch, default=BATCH, metavar="N", help=f"write: records of one commit ({BATCH:,})")
        if name in TASKS:
            tasks = number(1, TASKS_MAX)
            add("--tasks", type=tasks, default=TASKS[name], metavar="N", help=f"that share the records ({TASKS[name]})")
        if name in WITH_LOG:
            add_log(command)
        if name == "failover":
            text = "how long a member may be silent, as 500ms (an application's)"
            add("--lease", type=lease, dest="lease_ms", metavar="DURATION", help=text)
        if name == "scale":
            workers = numbers(1, cores())
            add("--workers", type=workers, default=[], metavar="LIST", help="worker processes, as 1,2,4 (1,2)")
    return made


def lease(text: str) -> int:
    """Type of an argument that is a lease."""
    try:
        lease_ms = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if lease_ms < LEASE_MIN_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is not possible: give {LEASE_MIN_MS}ms or more")
    return lease_ms


def measure(name: str, args: argparse.Namespace, out: Output) -> int:
    """Run one bench."""
    given = vars(args)
    if name == "restore":
        # As many records as fit the number of versions: every key then has exactly that many.
        args.records = max(args.records // args.versions, 1) * args.versions
    own = {one: given[one] for one in (*SIZES, *FIELDS) if given.get(one) is not None}
    settings = own | {one: given[one] for one in ("runs", *OTHERS) if one in given}
    with opened(given.get("log", EMBEDDED), args.dir, out) as (place, where):
        bench = Bench(settings, place, Step(step="", **where, **own), out)
        measures, ratios = getattr(bench, name)()
    document = document_of(name, settings, place, measures) | {"ratios": ratios}
    out.document(document)
    show(document, out)
    for one in measures:
        if one.get("p90") is not None:
            out.line(f"{one['name']}: 90 % within {one['p90']:,.0f} ms")
    for one in ratios:
        rounds = f"rounds {one['min']:.2f} to {one['max']:.2f}"
        out.line(f"{one['name']}: {one['value']:.2f} ({rounds}; {one['what']})")
    return 0


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        args = parser().parse_args(arguments)
    except SystemExit as stopped:  # --help, or a usage error that argparse has printed
        return stopped.code if isinstance(stopped.code, int) else EXIT_USAGE
    return run(args)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
