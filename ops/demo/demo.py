"""The command `standfast demo`: a delay board over real flights; a second process joins, and the first one is killed.

    standfast demo [--data sample|full] [--guarantee G] [--dir D] [--json]
    standfast demo --log kafka                                on a real Kafka broker, started and stopped for it
    standfast demo --log kafka://host:9092 [--prefix X]       on a cluster of yours
    standfast demo --no-spark                                 without its last step, which needs the extra `spark`
    standfast demo --limit N                                  first N flights, for a quick look and for tests

Exit codes: 0 all rows are correct, 1 any differs, 2 a folder that is there already or options that do not go together,
69 no broker or none to be had, 78 data that is not installed.

Rules of this file: arguments, folder and exit code; heavy modules are imported when the command runs.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import prints
from standfast.ops.shared.exit_codes import INTERRUPTED, NEGATIVE, OK
from standfast.ops.shared.streams import say
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.demo.result import Json
    from standfast.ops.shared.output import Output

TERMINATED = 143


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        help="a delay board over real flights; one of two processes is killed, and the other takes over",
        description="Runs a delay board over real flights of 2013 in two processes, kills one with SIGKILL half way, "
        "lets its standbys take over, and compares every row with a plain computation from the file.",
    )
    add = parser.add_argument
    data = "flights of January 2013 (sample, the default), or of all of 2013"
    add("--data", choices=("sample", "full"), default="sample", help=data)
    where = (
        "embedded (a file, the default), kafka (a broker is fetched and started for it), or kafka://host:9092 (yours)"
    )
    add("--log", default="embedded", metavar="WHERE", help=where)
    begin = "all names begin with X- (default: standfast-demo)"
    add("--prefix", metavar="X", help=f"on your broker: {begin}")
    again = "(exactly_once); at least once may count flights again after the kill"
    add("--guarantee", choices=("exactly_once", "at_least_once"), default="exactly_once", help=again)
    lease = "milliseconds for which a killed process still counts as alive (1200)"
    add("--lease-ms", type=int, default=1_200, metavar="N", help=lease)
    add("--dir", type=Path, metavar="D", help="keep logs and state here; must be absent or empty")
    add("--no-spark", action="store_true", help="leave out the last step, on Spark")
    add("--limit", type=int, metavar="N", help=argparse.SUPPRESS)
    prints(parser, run, "json")


def run(args: argparse.Namespace, out: Output) -> int:
    """demo. Raises StandfastError for an error that the caller must fix."""
    from standfast.ops.demo.place import check_place
    from standfast.ops.demo.run import run_demo

    check_place(args.log, args.prefix)
    folder, keep = _folder(args.dir), args.dir is not None
    try:
        with _terminated():
            result = run_demo(args, folder, out)
        keep |= not result["ok"]
    except KeyboardInterrupt:
        say("demo stopped, with all of its processes")
        return INTERRUPTED
    except Exception:
        keep |= any(folder.iterdir())
        if keep:
            say(f"note: logs and state of the demo are kept in {folder}")
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return report(result | {"kept_in": str(folder) if keep else None}, out)


def report(result: Json, out: Output) -> int:
    """Print the result, as a card or as one JSON document; returns the exit code."""
    from standfast.ops.demo.result import print_card

    out.document(result)
    print_card(result, out)
    return OK if result["ok"] else NEGATIVE


def _folder(given: Path | None) -> Path:
    """The folder to work in: the given one, or one that stays if the demo fails."""
    if given is None:
        return Path(tempfile.mkdtemp(prefix="standfast-demo-"))
    if given.exists() and (not given.is_dir() or any(given.iterdir())):
        raise InvalidRequest(f"--dir {given} is not an empty folder: give an empty or a new one")
    given.mkdir(parents=True, exist_ok=True)
    return given.absolute()


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM unwind like an exit, so that the demo's processes and its folder go too."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    previous: Any = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
