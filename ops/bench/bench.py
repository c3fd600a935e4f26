"""The command bench: how fast this machine restores: one process, RocksDB, embedded log or Kafka.

    standfast bench restore    an empty directory until the gate is open: distinct keys, and several versions a key

It takes `--log kafka`, or `--log kafka://host:port` for an existing cluster.

Rules of this file: arguments, and tables for people; the measures are made in `standfast.ops.bench.measures`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import prints

if TYPE_CHECKING:
    from standfast.ops.bench.measures import Bench
    from standfast.ops.bench.step import Step
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.bench/2"
RECORDS = 1_000_000
SIZES = ("records", "key_bytes", "value_bytes", "memory_bytes")
# Keys are digests of blake2b; shorter ones than 8 bytes would collide.
KEY_BYTES_MIN, KEY_BYTES_MAX = 8, 64
VALUE_BYTES_MAX = 1_000_000
MEMORY_BYTES_MIN = 16 << 20
KEY_BYTES, VALUE_BYTES, VERSIONS = 16, 100, 4  # the data set of the figures in README
WORKERS_MAX = 99
RUNS = 3
MIB = 1 << 20


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
    add_sizes(command)
    add_log(command)
    add = command.add_argument
    add("--versions", type=number(), default=VERSIONS, metavar="N", help=f"records of one key ({VERSIONS})")
    add(
        "--workers",
        type=numbers(0, WORKERS_MAX),
        default=[],
        metavar="LIST",
        help="threads of a bulk restore, 0 for batches, as 0,1,2 (a session's)",
    )
    add(
        "--restore-memory",
        dest="restore_memory_bytes",
        type=size,
        default=512 * MIB,
        metavar="SIZE",
        help="memory for rows in all of them (512MiB)",
    )
    prints(command, run_restore, "json", "wide")


def add_sizes(command: argparse.ArgumentParser, records: int = RECORDS, runs: int = RUNS) -> None:
    """The arguments of every bench; `records` and `runs` are the default numbers."""
    add, key, value = command.add_argument, number(KEY_BYTES_MIN, KEY_BYTES_MAX), number(0, VALUE_BYTES_MAX)
    add("--records", type=number(), default=records, metavar="N", help=f"({records:,})")
    add("--key-bytes", type=key, default=KEY_BYTES, metavar="N", help=f"size of a key ({KEY_BYTES})")
    add("--value-bytes", type=value, default=VALUE_BYTES, metavar="N", help=f"size of a value ({VALUE_BYTES})")
    add("--runs", type=number(), default=runs, metavar="N", help=f"runs of each measure ({runs})")
    memory = "memory setting of the session (256MiB)"
    add("--memory", dest="memory_bytes", type=size, default=256 * MIB, metavar="SIZE", help=memory)
    add("--dir", type=Path, metavar="D", help="work below this folder (default: the system's temporary one)")


def add_log(command: argparse.ArgumentParser) -> None:
    """Add `--log`."""
    text = "embedded (the default), kafka (a broker is started for it), or kafka://host:port (topics of its own there)"
    command.add_argument("--log", default="embedded", metavar="LOG", help=text)


def number(low: int = 1, high: int | None = None) -> Callable[[str], int]:
    """Type of an argument that is a number from `low` to `high`."""

    def parse(text: str) -> int:
        found = int(text) if text.isdecimal() else -1
        if found < low or (high is not None and found > high):
            raise argparse.ArgumentTypeError(
                f"is {text!r}: give {low}" + (" or more" if high is None else f" to {high}")
            )
        return found

    return parse


def numbers(low: int, high: int) -> Callable[[str], list[int]]:
    """Type of an argument that is a list of numbers, as 1,2."""
    one = number(low, high)
    return lambda text: list(dict.fromkeys(map(one, text.split(","))))


def size(text: str) -> int:
    """Type of an argument that is a size in bytes."""
    from standfast.ops.config.config import parse_size

    try:
        found = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is {text!r}: {error}") from None
    if found < MEMORY_BYTES_MIN:
        raise argparse.ArgumentTypeError(f"is {text!r}: give {MEMORY_BYTES_MIN // MIB}MiB or more")
    return found


def run_restore(args: argparse.Namespace, out: Output) -> int:
    """bench restore."""
    from standfast.ops.bench.measures import Bench
    from standfast.ops.bench.step import Step

    # As many records as fit the number of versions: every key then has exactly that many.
    args.records = max(args.records // args.versions, 1) * args.versions
    return run_bench(args, out, Bench, Step, ("versions", "restore_memory_bytes"), ("workers",))


def run_bench(
    args: argparse.Namespace,
    out: Output,
    kind: type[Bench],
    step: type[Step],
    fields: tuple[str, ...],
    others: tuple[str, ...] = (),
) -> int:
    """Make the measures of the command, and print them. `fields` of the arguments are fields of the step, too."""
    from standfast.ops.demo.place import EMBEDDED, check_place, place_for

    check_place(log := getattr(args, "log", EMBEDDED))
    own = {name: getattr(args, name) for name in (*SIZES, *fields)}
    settings = own | {name: getattr(args, name) for name in ("runs", *others)}
    with _folder(args.dir) as folder, place_for(log, "standfast-bench", folder, out.note) as place:
        address = "" if place.kind == EMBEDDED else place.address
        first = step(step="", folder=str(folder), log=address, app=place.prefix or "bench", **own)
        measures, ratios = getattr(kind(settings, place, first, out), args.bench_command)()
    document = {
        "schema": SCHEMA,
        "bench": args.bench_command,
        "settings": settings,
        "log": {"kind": place.kind, "kafka": place.kafka},
        "versions": _versions(),
        "measures": measures,
        "ratios": ratios,
    }
    out.document(document)
    show(document, out)
    return 0


def show(document: Json, out: Output) -> None:
    """Tables for people."""
    # Figures without goals: machine, load and needs of users are others than those that our goals are set for.
    settings = document["settings"]
    out.line(
        f"{settings['records']:,} records of {settings['key_bytes']} + {settings['value_bytes']} bytes, "
        f"{settings['runs']} run{'s' * (settings['runs'] > 1)}, memory {settings['memory_bytes'] // MIB} MiB, "
        f"{document['log']['kind']} log"
    )
    out.line(", ".join(f"{name} {version}" for name, version in document["versions"].items()))
    columns = ("measure", "median", "slowest", "fastest", "unit", "CPU us a record", "peak MiB", "what")
    rows = [_cells(one) for one in document["measures"]]
    out.table(columns, rows, right=(*columns[1:4], *columns[5:7]), fold=("what",), wide=("what",))
    for ratio in document["ratios"]:
        out.line(
            f"{ratio['name']}: {ratio['value']:.2f} (rounds {ratio['min']:.2f} to {ratio['max']:.2f}; {ratio['what']})"
        )


def _cells(one: Json) -> list[str]:
    # For milliseconds the largest is the slowest, for rates the smallest.
    slowest, fastest = ("max", "min") if one["unit"] == "ms" else ("min", "max")
    figures = [f"{one[name]:,.0f}" for name in ("median", slowest, fastest)]
    used = "" if one.get("cpu_us") is None else f"{one['cpu_us']:.1f}"
    peak = "" if one.get("peak_rss_bytes") is None else str(one["peak_rss_bytes"] // MIB)
    return [one["name"], *figures, one["unit"], used, peak, one["what"]]


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standfast-bench-", dir=parent) as name:
        yield Path(name).absolute()


def _versions() -> Json:
    import os
    import platform

    from standfast._version import __version__

    versions = {"standfast": __version__, "python": platform.python_version()}
    return versions | {"platform": platform.platform(), "cores": os.cpu_count()}
