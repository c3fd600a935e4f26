"""The command bench: how fast this machine restores: one process, RocksDB, embedded log or Kafka.

    standfast bench restore    an empty directory until the gate is open: distinct keys, and several versions a key

It takes `--log kafka`, or `--log kafka://host:port` for an existing cluster.

Rules of this file: arguments, and tables for people; the measures are made in `standfast.ops.bench.measures`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.bench.log import KAFKA, RUNS_DEFAULT, SQLITE, BenchLog, add_log, bench_log, kind_of
from standfast.ops.bench.step import KEY_BYTES, VALUE_BYTES, VERSIONS
from standfast.ops.cli.arguments import prints

if TYPE_CHECKING:
    from standfast.ops.bench.measures import Bench
    from standfast.ops.bench.step import Step
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.bench/1"
RECORDS = 1_000_000
RUNS_HELP = f"runs of each measure ({RUNS_DEFAULT[SQLITE]}; on Kafka {RUNS_DEFAULT[KAFKA]})"
# Keys are digests of blake2b; shorter ones than 8 bytes would collide.
KEY_BYTES_MIN, KEY_BYTES_MAX = 8, 64
WORKERS_MAX = 99


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure restores on this machine",
        description="Measure one process with RocksDB, in a folder that is removed afterwards, on the embedded log or "
        "on Kafka.",
    )
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="restore")
    text = "restore a store from its changelog"
    command = commands.add_parser("restore", help=text, description=f"Measure: {text}.")
    add_sizes(command, RECORDS, RUNS_HELP)
    add = command.add_argument
    add("--versions", type=int, default=VERSIONS, metavar="N", help=f"records of one key ({VERSIONS})")
    add_log(command)
    add("--workers", metavar="LIST", help="threads of a bulk restore, 0 for batches, as 0,1,2 (a session's)")
    add("--restore-memory", metavar="SIZE", help="memory for rows in all of them, as 512MiB (a session's)")
    prints(command, run_restore, "json", "wide")


def add_sizes(command: argparse.ArgumentParser, records: int, runs: str) -> None:
    """The arguments of every bench; `records` is the default number, `runs` the help of --runs."""
    add = command.add_argument
    add("--records", type=int, default=records, metavar="N", help=f"({records:,})")
    add("--key-bytes", type=int, default=KEY_BYTES, metavar="N", help=f"size of a key ({KEY_BYTES})")
    add("--value-bytes", type=int, default=VALUE_BYTES, metavar="N", help=f"size of a value ({VALUE_BYTES})")
    add("--runs", type=int, metavar="N", help=runs)
    add("--memory", default="256MiB", metavar="SIZE", help="memory setting of the session (256MiB)")
    add("--dir", type=Path, metavar="D", help="work below this folder (default: the system's temporary one)")


def run_restore(args: argparse.Namespace, out: Output) -> int:
    """bench restore."""
    from standfast.ops.bench.measures import Bench
    from standfast.ops.bench.step import Step
    from standfast.stream.task.settings import RESTORE_MEMORY_DEFAULT_BYTES, RESTORE_MEMORY_MIN_BYTES

    settings = Settings(args)
    settings.take_sizes()
    settings.number("versions", 1, args.records)
    settings.size("restore_memory", RESTORE_MEMORY_MIN_BYTES, RESTORE_MEMORY_DEFAULT_BYTES)
    settings.workers()
    return run_bench(settings, out, Bench, Step, "versions", "restore_memory_bytes")


class Settings:
    """The settings of a bench, from its arguments."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.log: str = getattr(args, "log", SQLITE)
        self.found: Json = {}
        self.problems: list[str] = []

    def take_sizes(self, runs: int | None = None) -> None:
        """Those of every bench (`add_sizes`); `runs` is the default number."""
        from standfast.store.rocks.engine import MEMORY_BYTES_MIN
        from standfast.store.rows import VALUE_MAX_BYTES

        if self.args.runs is None:
            self.args.runs = runs or RUNS_DEFAULT[kind_of(self.log)]
        self.number("records")
        self.number("key_bytes", KEY_BYTES_MIN, KEY_BYTES_MAX)
        self.number("value_bytes", 0, VALUE_MAX_BYTES)
        self.number("runs")
        self.size("memory", MEMORY_BYTES_MIN)

    def number(self, name: str, low: int = 1, high: int | None = None) -> None:
        """A number from `low` to `high`."""
        number = self.found[name] = getattr(self.args, name)
        if number < low or (high is not None and number > high):
            upper = " or more" if high is None else f" to {high}"
            self.problems.append(f"--{name.replace('_', '-')} is {number}: give {low}{upper}")

    def size(self, name: str, least: int, default: int = 0) -> None:
        """A size in bytes."""
        from standfast.ops.config.config import parse_size

        text, option = getattr(self.args, name), f"--{name.replace('_', '-')}"
        try:
            size = self.found[f"{name}_bytes"] = default if text is None else parse_size(text)
            if size < least:
                self.problems.append(f"{option} is {text!r}: give {least >> 20}MiB or more")
        except ValueError as error:
            self.problems.append(f"{option} is {text!r}: {error}")

    def workers(self, least: int = 0, most: int = WORKERS_MAX) -> None:
        """Numbers of workers."""
        text = (self.args.workers or "").replace(" ", "")
        numbers = [int(one) for one in text.split(",") if one.isdecimal()]
        if text and (len(numbers) != text.count(",") + 1 or not least <= min(numbers) <= max(numbers) <= most):
            self.problems.append(f"--workers is {text!r}: give numbers from {least} to {most}, as 1,2")
        self.found["workers"] = list(dict.fromkeys(numbers))

    def checked(self) -> Json:
        """All settings. Raises InvalidRequest that has each one that cannot be used."""
        from standfast.store.errors import InvalidRequest

        if self.problems:
            raise InvalidRequest("; ".join(self.problems))
        return self.found


def run_bench(settings: Settings, out: Output, kind: type[Bench], step: type[Step], *fields: str) -> int:
    """Make the measures of the command, and print them. `fields` of the settings are fields of the step, too."""
    args, found = settings.args, settings.checked()
    own = {name: found[name] for name in ("records", "key_bytes", "value_bytes", "memory_bytes", *fields)}
    # As many records as fit the number of versions: every key then has exactly that many.
    versions = found.get("versions", 1)
    own["records"] = max(found["records"] // versions, 1) * versions
    with _folder(args.dir) as folder, bench_log(settings.log, folder, out) as log:
        bench = kind(found, log, step(step="", folder=str(folder), log=log.address, app=log.prefix, **own), out)
        measures, ratios = getattr(bench, args.bench_command)()
        document = {
            "schema": SCHEMA,
            "bench": args.bench_command,
            "settings": found,
            "log": log.document(),
            "versions": _versions(log),
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
    count = f"{settings['records']:,} " if "records" in settings else ""
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

    from standfast.store.base.version import __version__

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
