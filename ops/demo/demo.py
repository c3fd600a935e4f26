"""The command `standfast demo`: a delay board over real flights; a third process joins, and one is killed on the way.

    standfast demo [--data sample|full] [--guarantee G] [--dir D] [--metrics-port N] [--json]
    standfast demo --log kafka                                on a real Kafka broker, started and stopped for it
    standfast demo --log kafka://host:9092 --prefix x         on a cluster of yours; --remove instead: its leftovers
    standfast demo --no-spark                                 without its last step, which needs the extra `spark`
    standfast demo --limit N                                  first N flights, for a quick look and for tests

Exit codes: 0 all rows are correct, 1 any differs, 2 a folder or topics that are there already or options
that do not go together, 69 no broker or none to be had, 78 data that is not installed.

Rules of this file: arguments, folder and exit code; heavy modules are imported when the command runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from standfast.ops.shared.streams import say
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.demo.result import Json

EXIT_DIFFERENT = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        help="a delay board over real flights; a third process joins, one is killed, and the others take over",
        description="Runs a delay board over real flights of 2013 in two processes, lets a third one take its share of "
        "the tasks, kills the first one with SIGKILL half way, lets its standbys take over, and compares every row "
        "with a plain computation from the file.",
    )
    add, flag = parser.add_argument, partial(parser.add_argument, action="store_true")
    add("--data", choices=("sample", "full"), help="flights of January 2013 (sample, the default), or of all of 2013")
    where = (
        "kafka: a real broker, fetched the first time, started for the demo and stopped at its end; "
        "kafka://host:9092: your own; left out: a file"
    )
    add("--log", metavar="WHERE", help=where)
    begin = "topics, group and transactional ids all begin with X- (default: standfast-demo)"
    add("--prefix", metavar="X", help=f"on your own broker: {begin}")
    left = "list the topics that a demo with this prefix left there; with --yes delete them"
    flag("--remove", help=f"on your own broker: {left}")
    flag("--yes", help="with --remove: do it")
    again = "of the application (exactly_once); at least once may count flights again after the kill"
    add("--guarantee", choices=("exactly_once", "at_least_once"), help=again)
    lease = "milliseconds for which a killed process still counts as alive (1200): the take-over waits for them"
    add("--lease-ms", type=_whole, metavar="N", help=lease)
    add("--dir", type=Path, metavar="D", help="keep logs and state here; must be absent or empty")
    port = "where the surviving process serves /metrics and /v1/status (default: a free port, shown at the end)"
    add("--metrics-port", type=_port, metavar="N", help=port)
    flag("--no-spark", help="leave out the last step, which rebuilds and verifies all on Spark")
    flag("--json", help="print the result as one JSON document")
    add("--limit", type=_whole, metavar="N", help=argparse.SUPPRESS)
    parser.set_defaults(handler=start)


def start(arguments: argparse.Namespace) -> int:
    """Run the demo; returns the exit code."""
    from standfast.ops.demo.board import LEASE_MS
    from standfast.ops.demo.place import check_place, run_remove

    check_place(arguments.log, arguments.prefix)
    if arguments.remove or arguments.yes:
        return run_remove(arguments)
    arguments.data = arguments.data or "sample"
    arguments.guarantee = arguments.guarantee or "exactly_once"
    arguments.lease_ms = arguments.lease_ms or LEASE_MS
    if arguments.metrics_port is not None:
        # Only an explicit port needs the extra: without it the demo runs and serves no metrics.
        from standfast.ops.shared.extras import SERVE, require

        require("serve", *SERVE)
    arguments.metrics_port = arguments.metrics_port or 0
    return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns the exit code. Raises StandfastError for an error that the caller must fix."""
    from standfast.ops.demo.run import run_demo

    try:
        with _terminated(), _folder(arguments.dir) as folder:
            result = run_demo(arguments, folder)
            if result["kept_in"] is None:
                shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        say("demo stopped, with all of its processes")
        return EXIT_INTERRUPTED
    return report(result, as_json=arguments.json)


def report(result: Json, *, as_json: bool) -> int:
    """Print the result on stdout, as a card or as one JSON document; returns the exit code."""
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        from standfast.ops.demo.card import print_card

        print_card(result, sys.stdout)
    return 0 if result["ok"] else EXIT_DIFFERENT


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """The folder to work in: the given one, or one that goes away if the demo is stopped, and stays if it fails."""
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise InvalidRequest(f"--dir {given} is not an empty folder: give one that is empty or does not exist yet")
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="standfast-demo-"))
    try:
        yield made
    except Exception:
        if any(made.iterdir()):
            say(f"note: logs and state of the demo are kept in {made}")
        else:
            made.rmdir()
        raise
    except BaseException:  # stopped by a person
        shutil.rmtree(made, ignore_errors=True)
        raise


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM unwind like an exit, so that the demo's processes and its folder go too."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(EXIT_TERMINATED)

    previous: Any = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError("give a port from 1 to 65535, or 0 for a free one")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give a whole number of at least 1")
    return number
