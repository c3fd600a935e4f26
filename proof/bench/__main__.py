"""Benches beyond that of restores, which the product has (`standfast bench restore`): `python -m bench WHAT`.

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
from standfast.ops.bench.bench import RECORDS, RUNS_HELP, Settings, add_sizes, run_bench
from standfast.ops.bench.log import add_log
from standfast.ops.cli.arguments import prints
from standfast.ops.command.command_line import EXIT_USAGE, run
from standfast.ops.command.parser import CommandParser
from standfast.ops.config.config import parse_duration
from standfast.ops.shared.output import Output
from standfast.stream.task.settings import LEASE_MIN_MS
from standfast.stream.workers.counts import cores

BENCHES = {
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
RUNS = {"failover": 20, "handover": 20}
BATCH_MAX = 10_000


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(prog="python -m bench", description="Measure this machine: figures only.")
    commands = made.add_subparsers(dest="bench_command", required=True, metavar="WHAT")
    for name, text in BENCHES.items():
        command = commands.add_parser(name, help=text, description=f"Measure: {text}.")
        add_sizes(command, NUMBERS.get(name, RECORDS), f"({RUNS[name]})" if name in RUNS else RUNS_HELP)
        add = command.add_argument
        add("--batch", type=int, default=BATCH, metavar="N", help=f"write: records of one commit ({BATCH:,})")
        if name in TASKS:
            add("--tasks", type=int, default=TASKS[name], metavar="N", help=f"that share the records ({TASKS[name]})")
        if name in WITH_LOG:
            add_log(command)
        if name == "failover":
            add("--lease", metavar="DURATION", help="how long a member may be silent, as 500ms (an application's)")
        if name == "scale":
            add("--workers", metavar="LIST", help="numbers of worker processes, as 1,2,4 (1,2)")
        prints(command, partial(measure, name), "json", "wide")
    return made


def measure(name: str, args: argparse.Namespace, out: Output) -> int:
    """Run one bench."""
    settings, fields = Settings(args), ["batch"]
    settings.take_sizes(RUNS.get(name))
    settings.number("batch", 1, BATCH_MAX)
    if name in TASKS:
        settings.number("tasks", 1, TASKS_MAX)
        fields.append("tasks")
    if name == "scale":
        settings.workers(1, cores())
    if name == "failover" and args.lease is not None:
        fields.append("lease_ms")
        try:
            lease_ms = settings.found["lease_ms"] = parse_duration(args.lease)
            if lease_ms < LEASE_MIN_MS:
                settings.problems.append(f"--lease is {args.lease!r}: give {LEASE_MIN_MS}ms or more")
        except ValueError as error:
            settings.problems.append(f"--lease is {args.lease!r}: {error}")
    return run_bench(settings, out, Bench, Step, *fields)


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        args = parser().parse_args(arguments)
    except SystemExit as stopped:  # --help, or a usage error that argparse has printed
        return stopped.code if isinstance(stopped.code, int) else EXIT_USAGE
    return run(args)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
