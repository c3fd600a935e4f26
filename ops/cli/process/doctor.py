"""The command doctor: finds problems of an application's topics, log, files and snapshots, each with its fix.

    standfast doctor --app NAME --log ADDRESS [--state-dir DIR] [--store NAME:KIND[:OPTIONS]]... [--source TOPIC]...
                     [--output TOPIC]...

Rules of this file: arguments and messages; `doctor` looks, the rules judge. It changes nothing, and may run beside the
application.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import app_of, log_of, prints, settings_of
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import Corruption, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.topics.rules import Finding

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.doctor/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="find wrong settings of topics, log and files, each with its fix",
        description="Check an application's topics, its log, its files and its snapshots: print each problem, why it "
        "matters and the command that fixes it. The doctor changes nothing.",
        epilog="Exit codes: 0 no errors (warnings do not count), 1 errors (also a log that is damaged or locked), "
        "69 the log does not answer.",
    )
    parser.add_argument("--app", metavar="NAME", help="application")
    parser.add_argument("--log", metavar="ADDRESS", help="the log, as kafka://host:9092 or sqlite:///./log")
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="its state directory on this machine, which names its stores",
    )
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME:KIND[:OPTIONS]",
        help="a store, such as totals:keyvalue, hourly:window:size=1h,retention=2d, visits:session:retention=2d or "
        "prices:versioned:history=7d; overrides its definition in the state directory",
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="TOPIC",
        help="a source topic, beside those with committed offsets",
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="TOPIC",
        help="a topic that it writes: results, dead letters, late records",
    )
    parser.add_argument(
        "--snapshots",
        metavar="STORAGE",
        help="the storage of its snapshots; without it the one in the settings ([snapshots])",
    )
    prints(parser, run_doctor, "json", "config")


def run_doctor(args: argparse.Namespace, out: Output) -> int:
    """doctor."""
    from standfast.ops.config.store_argument import parse_store
    from standfast.ops.doctor.claims import claim_findings
    from standfast.ops.doctor.clocks import stream_clock_findings
    from standfast.ops.doctor.doctor import Known, app_tasks, known_of, look
    from standfast.ops.doctor.local import local_facts, local_findings
    from standfast.ops.doctor.state import head_findings, log_finding, log_findings, open_findings, state_findings
    from standfast.replication.topics.fixes import Fixes
    from standfast.replication.topics.rules import errors, findings
    from standfast.store.clock import SystemClock
    from standfast.store.names import check_topic

    settings = settings_of(args)
    app = app_of(settings)
    stores = [parse_store(text) for text in args.store]
    sources, outputs = ([check_topic(topic) for topic in given] for given in (args.source, args.output))
    known, found = Known(), []
    if settings.state_dir is not None and (settings.state_dir / app).is_dir():
        known = known_of(app, app_tasks(settings.state_dir, app))
        found += local_findings(local_facts(settings.state_dir / app, app, known.unreadable))
    elif args.state_dir is not None:  # from a settings file it may be absent: before the first start there is none
        raise InvalidRequest(
            f"{args.state_dir} holds no state of application {app!r}: name its own directory, or omit --state-dir"
        )
    found += _snapshot_findings(args, app)
    looked = None
    try:
        with closing(log_of(args)) as log:
            found += log_findings(log)  # first: the reads below would end at damage
            most = settings.value_max_bytes
            looked = look(log, app, stores=stores, sources=sources, known=known, value_max_bytes=most, outputs=outputs)
            found += findings(looked.application, looked.survey, Fixes(log.address))
            found += claim_findings(log, looked.application, looked.survey.topics)
            found += stream_clock_findings(log, looked.application, looked.survey.topics, SystemClock().wall_ms())
            found += head_findings(log, looked.application.changelogs, looked.survey.topics)
            found += open_findings(log, looked.application.changelogs, looked.survey.topics, SystemClock())
            found += state_findings(log, app, known.kept, SystemClock().wall_ms())
    except (Corruption, Unavailable) as error:
        # A locked or damaged log is a finding; a log that does not answer at all stays an error.
        if isinstance(error, Unavailable) and not error.unwritten:
            raise
        if not any(one.rule in ("log-damaged", "log-locked") for one in found):
            found.append(log_finding(_place(settings.log), error))
    found.sort(key=lambda one: one.severity != "error")
    topics = {} if looked is None else looked.survey.topics
    present = [name for name, topic in topics.items() if topic is not None]
    client = _client(settings.log)
    document = _document(app, settings.log, () if looked is None else looked.survey.brokers, present, found)
    out.document(document | {"reader": client, "writer": client})
    _show(out, found)
    for part in () if client is None else ("reader", "writer"):
        out.line(f"{part} of Kafka: {client}")
    for topic, other in () if looked is None else looked.doubtful:
        out.note(f"topic {topic} may belong to {app!r} or {other!r}: name its store with --store to have it checked")
    if looked is None:
        out.note("topics and positions are not checked: the log is damaged or locked")
    wrong = len(errors(found))  # warnings leave the exit code at 0, so that a script may demand it
    out.line(f"{app}: {wrong} wrong, {len(found) - wrong} warnings, in {len(present)} topics")
    return NEGATIVE if wrong else OK


def _snapshot_findings(args: argparse.Namespace, app: str) -> list[Finding]:
    """Findings about the storage of snapshots that the command line or the settings name."""
    to: str | None = args.snapshots
    if to is None:
        from standfast.ops.config.config import load_config

        to = load_config(args.config, os.environ).config.snapshots.to
    if to is None:
        return []
    from standfast.ops.doctor.snapshots import storage_findings

    return storage_findings(to, app)


def _client(address: str | None) -> str | None:
    """The way in which records of a Kafka log are read and written on this machine; None for another log."""
    from standfast.replication.kafka.address import KafkaAddress
    from standfast.replication.tail.open_log import parse_address

    if not isinstance(parse_address(address or ""), KafkaAddress):
        return None
    from standfast.replication.kafka.native_library import native

    return native().text


def _place(address: str | None) -> str:
    """The file of an embedded log."""
    from standfast.replication.tail.open_log import SqliteAddress, parse_address

    where = parse_address(address or "")
    return where.path if isinstance(where, SqliteAddress) else str(address)


def _show(out: Output, found: list[Finding]) -> None:
    for one in found:
        out.text(f"{one.severity}: {one.where} {one.what} [{one.rule}]", 4)
        out.text(f"    why: {one.why}", 9)
        out.text(f"    fix: {one.fix}", 9)
        if one.command:
            out.line(f"    run: {one.command}")  # whole, to be copied


def _document(app: str, log: str | None, brokers: tuple[int, ...], topics: list[str], found: list[Finding]) -> Json:
    from dataclasses import asdict

    return {
        "schema": SCHEMA,
        "app": app,
        "log": log,
        "brokers": list(brokers),
        "topics": topics,
        "errors": sum(one.severity == "error" for one in found),
        "warnings": sum(one.severity == "warning" for one in found),
        "findings": [asdict(one) for one in found],
    }
