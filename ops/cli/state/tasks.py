"""Commands about state: status, tasks, lag, health; of a running instance, or of files.

Rules of this file: arguments and tables. Live answers come over the HTTP API, offline ones from files opened
read-only; both are the same documents.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import client_of, owned, prints, state_path_of
from standfast.ops.cli.whys import Whys
from standfast.ops.shared.exit_codes import NEGATIVE
from standfast.store.names import few
from standfast.store.timestamps import duration_text, seconds_text

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.restore.verify.at_rest import TaskAtRest

Json: TypeAlias = dict[str, Any]
TASK_REASON = re.compile(r"task (\d+_\d+)((?: failed)?: .*)", re.DOTALL)
OLD_MS = 2_000  # figures of the log above this age are marked as old


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    for name, text, show in (
        ("status", "the state of an instance: tasks, stores, restores, commits", show_status),
        ("tasks", "the tasks of an instance, one line for each store", show_tasks),
        ("lag", "how far each store is from the end of its changelog", show_lag),
    ):
        parser = subparsers.add_parser(name, help=text, description=f"Show {text}.")
        offline = () if name == "lag" else ("offline",)  # the end of a changelog is in no file
        prints(parser, run_status, "json", "wide", "instance", *offline, show=show, document=name)
        parser.add_argument("--watch", type=float, metavar="S", help="show it again every S seconds, until interrupted")
    _register_health(subparsers)


def _register_health(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "whether an instance is alive, or with --ready whether its restore gate is open"
    parser = subparsers.add_parser("health", help=text, description=f"Show {text}; exit code 1 if not.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ready", action="store_true", help="ask for readiness")
    which.add_argument("--startup", action="store_true", help="ask a sidecar whether clients may call it")
    prints(parser, run_health, "json", "instance")


def run_status(args: argparse.Namespace, out: Output) -> int:
    """status, tasks, lag."""
    from standfast.store.clock import SystemClock
    from standfast.store.errors import InvalidRequest

    if args.watch is not None and args.watch <= 0:
        raise InvalidRequest(f"--watch is {args.watch}: give seconds above 0")
    while True:
        offline = getattr(args, "offline", None) is not None
        status = _offline_status(args) if offline else _running_status(args, out)
        if offline and status["owner_pid"] is not None:
            out.note(owned(status["owner_pid"]))
        _show_status(args, out, status)
        if args.watch is None:
            return 0
        SystemClock().sleep_ms(args.watch * 1_000)


def run_health(args: argparse.Namespace, out: Output) -> int:
    """health."""
    # `ask`, because 503 is an answer here, with the checks in its document.
    _, document = client_of(args).ask("/readyz" if args.ready else "/startupz" if args.startup else "/livez")
    out.document(document)
    check, ok = document["check"], document["ok"]
    out.line(check if ok else f"not {check}")
    for reason in document["reasons"]:
        out.line(f"- {reason}")
    return 0 if ok else NEGATIVE


def show_status(status: Json, out: Output) -> None:
    """Print the whole status for people."""
    out.line(_headline(status))
    for reason in _reasons(status):
        out.line(f"- {reason}")
    _show_instances(status, out)
    columns = ("task", "role", "state", "epoch", "buffer bytes", "sources")
    rows = [
        (*_task_cells(task), task["epoch"], task.get("buffer_bytes"), _offsets(task["sources"]))
        for task in status["tasks"]
    ]
    out.table(columns, rows, right=("epoch", "buffer bytes"), fold=("sources",))
    _show_clocks(status, out)
    whys = Whys()
    _show_stores_and_tasks(status, out, whys)
    _show_sources(status, out)
    _show_downloads(status, out)
    _show_restores(status, out)
    _show_moves(status, out, whys)
    whys.show(out)
    _show_counters(status, out)


def _headline(status: Json) -> str:
    """The first line: the verdict on an instance; of files the process that has them open, if any."""
    from standfast.ops.observe.verdict import REASONED, verdict

    where = f"{status['app']} on instance {status['instance']}" if status["instance"] else status["app"]
    if status["live"]:
        found = verdict(status)
        return f"{where} {found.word} {'' if found.word in REASONED else found.text}".rstrip()
    owner = status.get("owner_pid")
    return f"{where}: {'no process runs on' if owner is None else f'process {owner} runs on'} these files"


def _reasons(status: Json) -> list[str]:
    """All that keeps a live instance from being whole, each reason once."""
    from standfast.ops.observe.verdict import degraded

    if not status["live"]:
        return []
    found = _by_reason(status["missing"])
    # The tasks that wait for the log give its error already.
    found += [one for one in degraded(status) if not any(one.removeprefix("the log: ") in why for why in found)]
    # Ends and lags stay as they were read last while the log does not answer.
    if status.get("log_read_ms_ago", 0) >= OLD_MS:
        age = duration_text(status["log_read_ms_ago"])
        found.append(f"ends and lags are {age} old: the log could not be read since")
    return list(dict.fromkeys(found))


def _by_reason(missing: Iterable[str]) -> list[str]:
    """`tasks 0_0, 0_1: reason` for lines `task 0_0: reason` that differ in the task alone."""
    tasks: dict[str, list[str]] = {}
    for line in missing:
        found = TASK_REASON.fullmatch(line)
        tasks.setdefault(line if found is None else found[2], []).append("" if found is None else found[1])
    return [
        why if not of[0] else f"task{'s' * (len(of) > 1)} {few(of)}{why}"  # few: an instance may hold thousands
        for why, of in tasks.items()
    ]


def _task_cells(task: Json) -> tuple[Any, ...]:
    """Task, role and state; of files neither is known but whether a process has them open."""
    role = None if task["role"] == "offline" else task["role"]
    return task["task"], role, "open" if task["state"] == "owned" else task["state"]


def _show_instances(status: Json, out: Output) -> None:
    """Print the instances of the application, where a leader places its tasks."""
    from standfast.ops.cli.placement_tables import show_placed_instances

    placement = status.get("placement")
    if placement and not placement["error"]:
        show_placed_instances(placement, out)


def _show_moves(status: Json, out: Output, whys: Whys) -> None:
    """Print the last moves of tasks between instances."""
    from standfast.ops.cli.placement_tables import show_moves

    placement = status.get("placement")
    if placement and not placement["error"]:
        show_moves(placement, placement["moves"], out, whys)


def _show_clocks(status: Json, out: Output) -> None:
    """Print the clocks of each task that has one, and the input that holds them back."""
    from standfast.ops.observe.clocks import clocked, waits_for
    from standfast.ops.shared.times import time_text

    def text(at_ms: int | None) -> str | None:
        return None if at_ms is None else time_text(at_ms, "utc")

    rows = [
        (task["task"], text(task["stream_time_ms"]), text(task["watermark_ms"]), waits_for(task) or None)
        for task in clocked(status)
    ]
    if rows:
        out.table(("task", "stream time", "watermark", "waits for"), rows, fold=("waits for",))


def _show_sources(status: Json, out: Output) -> None:
    """Print one line for each source of one's own that runs here, or has finished."""
    columns = ("source", "partition", "task", "state", "collected to", "processed to", "waiting")
    rows = [
        (one["source"], one["partition"], one["task"], one["state"], one["collected"], one["processed"], one["waiting"])
        for one in status.get("own_sources", ())
    ]
    if rows:
        out.table(columns, rows, right=("partition", "collected to", "processed to", "waiting"))


def show_tasks(status: Json, out: Output) -> None:
    """Print one line for each store of each task, and where the application's tasks run."""
    whys = Whys()
    _show_stores_and_tasks(status, out, whys)
    whys.show(out)


def _show_stores_and_tasks(status: Json, out: Output, whys: Whys) -> None:
    columns = ("task", "role", "state", "store", "kind", "position", "end", "lag", "keys~", "SST bytes", "segments")
    rows = [
        [*_task_cells(task)]
        + [store.get(name) for name in ("store", "kind", "position", "end", "lag")]
        + [store[name] for name in ("keys_estimate", "sst_bytes", "segments")]
        for task, store in _stores(status)
    ]
    numbers = ("position", "end", "lag", "keys~", "SST bytes", "segments")
    out.table(columns, rows, right=numbers, wide=("kind", "end", "SST bytes", "segments"))
    placement = status.get("placement")
    if placement and not placement["error"]:
        from standfast.ops.cli.placement_tables import show_placed_tasks

        out.line()
        show_placed_tasks(placement["tasks"], out, whys)


def show_lag(status: Json, out: Output) -> None:
    """Print the position of each store in its changelog."""
    columns = ("store", "partition", "role", "begin", "position", "end", "lag", "limit", "paused")
    rows = [
        [store["store"], store["partition"], task["role"]]
        + [store[name] for name in ("begin", "position", "end", "lag", "limit")]
        + ["yes" if store["paused"] else ""]
        for task, store in _stores(status)
    ]
    numbers = ("partition", "begin", "position", "end", "lag", "limit")
    out.table(columns, rows, right=numbers, wide=("begin", "limit", "paused"))


def _show_status(args: argparse.Namespace, out: Output, status: Json) -> None:
    from standfast.ops.observe.status import tasks_document

    show: Callable[[Json, Output], None] = args.show
    if args.document == "status":
        out.document(status)
    elif args.document == "tasks":
        out.document(tasks_document(status))
    else:
        out.document(_lag_document(status))
    show(status, out)


def _lag_document(status: Json) -> Json:
    names = ("store", "partition", "begin", "position", "end", "lag", "limit", "paused", "caught_up_ms")
    lags = [
        {"task": task["task"], "role": task["role"], **{name: store[name] for name in names}}
        for task, store in _stores(status)
    ]
    return {"schema": "standfast.lag/1", "app": status["app"], "instance": status["instance"], "lags": lags}


def _show_downloads(status: Json, out: Output) -> None:
    from standfast.ops.observe.verdict import size

    rows = [
        (one["task"], one["snapshot"], size(one["bytes"]), f"{one['done_bytes'] / max(one['bytes'], 1):.0%}",
         f"{size(int(one['rate']))}/s", None if one["seconds_left"] is None else seconds_text(one["seconds_left"]))
        for one in status.get("downloads", ())
    ]  # fmt: skip
    if rows:
        columns = ("downloading", "snapshot", "size", "done", "rate", "time left")
        out.table(columns, rows, right=("size", "done", "rate", "time left"))


def _show_restores(status: Json, out: Output) -> None:
    if not status["restores"]:
        return
    columns = ("restoring", "partition", "reason", "position", "end", "done", "records/s", "time left")
    rows = [
        [one[name] for name in ("store", "partition", "reason", "position", "end")]
        + [f"{one['fraction']:.0%}", None if one["rate"] is None else round(one["rate"], 1)]
        + [None if one["seconds_left"] is None else seconds_text(one["seconds_left"])]
        for one in status["restores"]
    ]
    numbers = ("partition", "position", "end", "done", "records/s", "time left")
    out.table(columns, rows, right=numbers, wide=("position", "end"))


def _show_counters(status: Json, out: Output) -> None:
    counters = status.get("counters")
    if counters is None:
        return
    commits = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counters["commits"].items())) or "none"
    restored = sum(one["records"] for one in counters["restored"])
    standby = sum(one["records"] for one in counters["standby"])
    out.line(f"commits: {commits}; restored {restored} records, standbys applied {standby}")
    if counters["promotion_last_ms"] >= 0:
        out.line(f"last promotion took {duration_text(counters['promotion_last_ms'])}")


def _stores(status: Json) -> Iterable[tuple[Json, Json]]:
    return ((task, store) for task in status["tasks"] for store in task["stores"])


def _offsets(sources: dict[str, int]) -> str:
    return " ".join(f"{source}@{offset}" for source, offset in sorted(sources.items()))


def _running_status(args: argparse.Namespace, out: Output) -> Json:
    """The status of the instance, or of its files if it has no HTTP server: App.run() opens none by itself."""
    from standfast.ops.shared.run_file import owner_without_server
    from standfast.restore.verify.at_rest import tasks_of
    from standfast.store.task.state_dir import kept_instance

    # Not for lags, since the ends of changelogs are in no file.
    if args.url is None and args.run_dir is None and args.document != "lag":
        path = state_path_of(args).resolve()  # its name is the application's
        pid = owner_without_server(path)
        if pid is not None:
            status = _status_of_files(path.name, tasks_of(path.name, path), pid, kept_instance(path))
            out.note(f"{owned(pid)}; it has no HTTP server to ask for more: give its App or Session http_port=")
            return status
    return client_of(args).get("/v1/status")


def _offline_status(args: argparse.Namespace) -> Json:
    from standfast.restore.verify.at_rest import find_tasks

    tasks = find_tasks(args.offline, args.app)
    return _status_of_files(tasks[0].app, tasks, tasks[0].owner_pid, "")


def _status_of_files(app: str, tasks: list[TaskAtRest], owner: int | None, instance: str) -> Json:
    from standfast.ops.observe.offline import open_tasks
    from standfast.ops.observe.status import STATUS_SCHEMA

    with open_tasks(tasks) as opened:
        documents = [stores.document() for stores in opened]
    return {
        "schema": STATUS_SCHEMA,
        "app": app,
        "instance": instance,
        "live": False,
        "ready": False,
        "missing": [],
        "members": [],
        "standbys_missing": 0,
        "owner_pid": owner,
        "tasks": documents,
        "restores": [],
        "placement": None,
    }
