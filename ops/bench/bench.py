"""The command bench: how fast this machine restores: one process, RocksDB, embedded log or Kafka.

    standfast bench restore    an empty directory until the gate is open: distinct keys, and several versions a key

It takes `--log kafka`, or `--log kafka://host:port` for an existing cluster.

Rules of this file: arguments, and tables for people; the measures are made in `standfast.ops.bench.measures`.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import prints
from standfast.store.base.version import __version__

if TYPE_CHECKING:
    from standfast.ops.demo.place import DemoPlace
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.bench/2"
RECORDS, RUNS = 1_000_000, 3
# Keys are digests of blake2b; shorter ones than 8 bytes would collide.
KEY_BYTES_MIN, KEY_BYTES_MAX = 8, 64
VALUE_BYTES_MAX = 1_000_000
KEY_BYTES, VALUE_BYTES, VERSIONS = 16, 100, 4  # the data set of the figures in README
MIB = 1 << 20
MEMORY_BYTES_MIN = 16 * MIB
WORKERS_MAX = 99
SIZES = ("records", "key_bytes", "value_bytes", "memory_bytes")  # fields of every step


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure restores on this machine",
        description="Measure one process with RocksDB, in a folder that is removed afterwards.",
    )
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="restore")
    text = "restore a store from its changelog"
    command = commands.add_parser("restore", help=text, description=text)
    add_restore(command)
    prints(command, run_restore, "json", "wide")


def add_restore(command: argparse.ArgumentParser) -> None:
    """The arguments of the bench of restores."""
    add_sizes(command)
    add_log(command)
    add, workers = command.add_argument, numbers(0, WORKERS_MAX)
    add("--versions", type=number(), default=VERSIONS, metavar="N", help=f"records of one key ({VERSIONS})")
    text = "threads of a bulk restore, 0 for batches, as 0,1,2 (a session's)"
    add("--workers", type=workers, default=[], metavar="LIST", help=text)
    text = "memory for rows in all of them (512MiB)"
    add("--restore-memory", dest="restore_memory_bytes", type=size, default=512 * MIB, metavar="SIZE", help=text)


def add_sizes(command: argparse.ArgumentParser, records: int = RECORDS, runs: int = RUNS) -> None:
    """The arguments of every bench; `records` and `runs` are the default numbers."""
    add, key, value = command.add_argument, number(KEY_BYTES_MIN, KEY_BYTES_MAX), number(0, VALUE_BYTES_MAX)
    add("--records", type=number(), default=records, metavar="N", help=f"({records:,})")
    add("--key-bytes", type=key, default=KEY_BYTES, metavar="N", help=f"size of a key ({KEY_BYTES})")
    add("--value-bytes", type=value, default=VALUE_BYTES, metavar="N", help=f"size of a value ({VALUE_BYTES})")
    add("--runs", type=number(), default=runs, metavar="N", help=f"runs of each measure ({runs})")
    memory = "memory setting of the session (256MiB)"
    add("--memory", dest="memory_bytes", type=size, default=256 * MIB, metavar="SIZE", help=memory)
    add("--dir", type=Path, metavar="D", help="work below this folder")


def add_log(command: argparse.ArgumentParser) -> None:
    """Add `--log`."""
    text = "embedded (the default), kafka (a broker is started for it), or kafka://host:port"
    command.add_argument("--log", default="embedded", metavar="LOG", help=text)


def number(low: int = 1, high: int | None = None) -> Callable[[str], int]:
    """Type of an argument that is a number from `low` to `high`."""

    def parse(text: str) -> int:
        found = int(text) if text.isdecimal() else -1
        if found < low or (high is not None and found > high):
            most = " or more" if high is None else f" to {high}"
            raise argparse.ArgumentTypeError(f"{text!r} is not possible: give {low}{most}")
        return found

    return parse


def numbers(low: int, high: int) -> Callable[[str], list[int]]:
    """Type of an argument that is a list of numbers, as 1,2."""
    one = number(low, high)
    return lambda text: list(dict.fromkeys(map(one, text.split(","))))


def size(text: str) -> int:
    """Type of an argument that is a size of memory in bytes."""
    from standfast.ops.config.config import parse_size

    try:
        found = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found < MEMORY_BYTES_MIN:
        raise argparse.ArgumentTypeError(f"{text!r} is below {MEMORY_BYTES_MIN // MIB}MiB")
    return found


def run_restore(args: argparse.Namespace, out: Output) -> int:
    """bench restore."""
    from standfast.ops.bench.measures import Bench
    from standfast.ops.bench.step import BenchStep

    # As many records as fit the number of versions: every key then has exactly that many.
    args.records = max(args.records // args.versions, 1) * args.versions
    own = {name: getattr(args, name) for name in (*SIZES, "versions", "restore_memory_bytes")}
    settings = own | {"runs": args.runs, "workers": args.workers}
    with opened(args.log, args.dir, out) as (place, where):
        measures = Bench(settings, place, BenchStep(step="", **where, **own), out).restores()
    document = document_of("restore", settings, place, measures)
    out.document(document)
    show(document, out)
    return 0


@contextmanager
def opened(log: str, parent: Path | None, out: Output) -> Iterator[tuple[DemoPlace, Json]]:
    """The log of a bench, and the fields of a step that say where it works."""
    from standfast.ops.demo.place import EMBEDDED, check_place, place_for

    check_place(log)
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standfast-bench-", dir=parent) as name:
        folder = Path(name).absolute()
        with place_for(log, "standfast-bench", folder, out.note) as place:
            address = "" if place.kind == EMBEDDED else place.address
            yield place, {"folder": str(folder), "log": address, "app": place.prefix or "bench"}


def document_of(bench: str, settings: Json, place: DemoPlace, measures: list[Json]) -> Json:
    """The document of a bench."""
    return {
        "schema": SCHEMA,
        "bench": bench,
        "settings": settings,
        "log": {"kind": place.kind, "kafka": place.kafka},
        "versions": {"standfast": __version__, "python": platform.python_version(), "cores": os.cpu_count()},
        "measures": measures,
    }


def show(document: Json, out: Output) -> None:
    """Tables for people."""
    # Figures without goals: machine, load and needs of users are others than those that our goals are set for.
    settings, versions = document["settings"], document["versions"]
    out.line(
        f"{settings['records']:,} records of {settings['key_bytes']} + {settings['value_bytes']} bytes, "
        f"{settings['runs']} run{'s' * (settings['runs'] > 1)}, memory {settings['memory_bytes'] // MIB} MiB, "
        f"{document['log']['kind']} log"
    )
    out.line(", ".join(f"{name} {version}" for name, version in versions.items()))
    columns = ("measure", "median", "slowest", "fastest", "unit", "CPU us a record", "peak MiB", "what")
    rows = [_cells(one) for one in document["measures"]]
    out.table(columns, rows, right=(*columns[1:4], *columns[5:7]), fold=("what",), wide=("what",))


def _cells(one: Json) -> list[str]:
    # For milliseconds the largest is the slowest, for rates the smallest.
    slowest, fastest = ("max", "min") if one["unit"] == "ms" else ("min", "max")
    figures = [f"{one[name]:,.0f}" for name in ("median", slowest, fastest)]
    used = "" if one.get("cpu_us") is None else f"{one['cpu_us']:.1f}"
    peak = "" if one.get("peak_rss_bytes") is None else str(one["peak_rss_bytes"] // MIB)
    return [one["name"], *figures, one["unit"], used, peak, one["what"]]
