"""Tables of managed placement, which the commands placement, status and tasks print.

Rules of this file: printing only, from the JSON values of `standfast.ops.observe.placement`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.store.timestamps import duration_text

if TYPE_CHECKING:
    from standfast.ops.cli.whys import Whys
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
MOVES_SHOWN = 10
BY_WORKER = "tasks by worker"
BOUND = "max tasks"


def show_placed_instances(placement: Json, out: Output) -> None:
    """Print the instances, one line each, after a line about the generation."""
    leader = placement["leader"] or "none: no live instance leads"
    out.line(
        f"generation {placement['generation']:,} of epoch {placement['epoch']:,}, "
        f"published {out.time(placement['published_ms']) or 'never'}; leader: {leader}"
    )
    rows = [
        (
            one["id"],
            ", ".join(
                [one["state"], *(["leader"] if one["leads"] else []), *(["no room"] if one.get("no_room") else [])]
            ),
            one["slots"],
            one.get("max_tasks"),
            " ".join(f"{key}={value}" for key, value in sorted(one["tags"].items())),
            _by_worker(one),
            *(one[name] for name in ("actives", "standbys", "warmups", "stored", "generation")),
            "none" if one["report_ms"] is None else f"{duration_text(one['report_ms'])} ago",
        )
        for one in placement["instances"]
    ]
    numbers = ("slots", BOUND, "active", "standby", "warm-up", "on disk", "follows")
    columns = ("instance", "state", "slots", BOUND, "tags", BY_WORKER, *numbers[2:], "report")
    # The usual application has no bounds and no worker processes: without any its table has no empty column.
    hidden = [columns[at] for at in (3, 5) if not any(row[at] for row in rows)]
    shown = [at for at, column in enumerate(columns) if column not in hidden]
    out.table(
        [columns[at] for at in shown],
        [[row[at] for at in shown] for row in rows],
        right=numbers,
        fold=("tags",),
        wide=("warm-up", "on disk"),
    )
    for one in placement["instances"]:
        if one.get("no_room"):  # an instance of an older version has no such field
            out.text(f"{one['id']}: {one['no_room']}")
    if placement["slots_missing"]:
        started = any(one["active"] for one in placement["tasks"])
        what = "the tasks without an owner wait" if started else "no task starts"
        out.text(f"WAITING_FOR_SLOTS: {placement['slots_missing']:,} more slots are needed; until then {what}.")
    if placement["standbys_missing"]:
        out.line(f"{placement['standbys_missing']:,} requested standby replicas have no instance to run on")


def show_placed_tasks(tasks: Iterable[Json], out: Output, whys: Whys) -> None:
    """Print the tasks of the whole application: owner, copies with their lags, and the reason for the place."""
    rows = [
        (
            one["task"],
            _at(one["active"], one),
            f"moving from {one['after']}" if one["state"] == "moving" else one["state"],
            _copies(one, "standby", "leaving"),
            _copies(one, "warm-up"),
            out.time(one["since_ms"]),
            whys.number(one["why"]),
        )
        for one in tasks
    ]
    columns = ("task", "active", "state", "standbys (lag)", "warm-up (lag)", "since", "why")
    out.table(columns, rows, right=("why",), fold=("standbys (lag)",), wide=("since",))


def show_copies(task: Json, out: Output) -> None:
    """Print the copies of one task, with the reason for each."""
    rows = [(_at(one["instance"], one), one["role"], one["lag"], one["why"]) for one in task["copies"]]
    if rows:
        out.line()
        out.table(("copy on", "role", "lag", "why"), rows, right=("lag",), fold=("why",))


def show_moves(placement: Json, moves: list[Json], out: Output, whys: Whys) -> None:
    """Print the newest moves, the newest first."""
    rows = [
        (out.time(one["at_ms"]), one["move"], one["task"], one["from"], one["to"], _pause(one), whys.number(one["why"]))
        for one in reversed(moves[-MOVES_SHOWN:])
    ]
    if not rows:
        out.line("no moves are recorded")
        return
    out.table(("time", "move", "task", "from", "to", "pause", "why"), rows, right=("pause", "why"))
    older = len(moves) - len(rows) + placement["moves_left_out"]
    if older:
        out.line(f"and {older:,} more moves; --json has those that are recorded")


def _pause(move: Json) -> str | None:
    return None if move["pause_ms"] is None else duration_text(move["pause_ms"])


def _copies(task: Json, *roles: str) -> str:
    shown = []
    for one in task["copies"]:
        if one["role"] in roles:
            lag = "?" if one["lag"] is None else f"{one['lag']:,}"
            shown.append(f"{_at(one['instance'], one)} ({lag}{', leaving' if one['role'] == 'leaving' else ''})")
    return " ".join(shown)


def _at(instance: str | None, held: Json) -> str | None:
    """An instance, with the number of its worker process that holds a task or a copy: `a:2`."""
    worker = held.get("worker")  # an instance of an earlier version reports none
    return instance if instance is None or worker is None else f"{instance}:{worker}"


def _by_worker(instance: Json) -> str:
    return ", ".join(f"{number}: {tasks:,}" for number, tasks in enumerate(instance.get("workers", ()), 1))
