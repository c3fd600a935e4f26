"""The ops page as HTML: blocks and rows of tables, each with a key, so that only changes need to be sent.

    status document ──model──> render() ──> Page(blocks, tables) ──> document()   the whole page, for a browser
                                                                └──> changes()    the differences to the last one

Rules of this file: it chooses the rows and their values; the templates of `data/` lay them out, and escape every value,
since names may hold any text. The page itself contains no script and no style.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from standfast.ops.observe.clocks import clocked, waits_for
from standfast.ops.observe.verdict import Json, duration, size, store_key, stores_of, verdict
from standfast.ops.page.history import (
    CALLS,
    Bar,
    PageHistory,
    bars,
    call_key,
    lag_key,
    restore_key,
    server_key,
    task_key,
)
from standfast.ops.page.model import (
    StoreSum,
    age,
    ago,
    clock_text,
    count,
    fact,
    facts,
    log_share,
    per_second,
    points,
    promotable,
    snapshots_of,
    store_sums,
    tiles,
)
from standfast.ops.shared.kinds import OPS

ROWS_MAX = 200
TASKS_MAX = 2_000  # a thousand tasks are 0.47 MB of page, rendered in 40 ms
# A state is a word and a shape too, since not every reader sees colours.
SHAPES = {"running": "●", "restoring": "◐", "standby": "○", "failed": "▲", "created": "◌", "closed": "■"}
LEVELS = {"ok": "●", "busy": "◐", "warn": "◆", "bad": "▲"}
PLAIN = str.maketrans("", "", "._-")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table of the page; a column that begins with # holds numbers."""

    name: str
    title: str
    about: str
    columns: tuple[str, ...]
    empty: str


TABLES = (
    TableSpec(
        *("restores", "Restores", "Stores that read their changelog to its end, slowest first."),
        ("task", "store", "progress", "#position", "#end", "#left", "#records/s", "last 5 min", "#time left", "why"),
        "No store is being restored.",
    ),
    TableSpec(
        *("downloads", "Downloads", "Snapshots on their way into the directories of tasks."),
        ("task", "snapshot", "progress", "#bytes", "#rate", "#time left"),
        "No snapshot is being downloaded.",
    ),
    TableSpec(
        *("tasks", "Tasks", "Every task of this instance: role, state, changelog positions and source offsets."),
        ("task", "role", "state", "#epoch", "#position", "#behind", "committed", "#not committed", "sources"),
        "No task is assigned.",
    ),
    TableSpec(
        *("clocks", "Event time", "The clocks of tasks, and the input that each waits for: it holds windows open."),
        ("task", "stream time (UTC)", "watermark (UTC)", "waits for"),
        "",
    ),
    TableSpec(
        *("workers", "Worker processes", "The processes that run the tasks of this instance."),
        ("worker", "state", "#process", "#started", "#active tasks", "#standbys", "trouble"),
        "",
    ),
    TableSpec(
        *("instances", "Instances", "The instances that share the tasks, as their leader sees them."),
        (
            *("instance", "leads", "state", "#slots", "#max tasks", "tags", "tasks by worker", "#actives", "#standbys"),
            *("#warm-ups", "#on disk", "#follows generation", "last report"),
        ),
        "",
    ),
    TableSpec(
        *(
            "placement",
            "Placement",
            "Every task of the application: its owner, its copies, and why it is there. An instance with worker "
            "processes stands as instance:worker.",
        ),
        ("task", "active", "state", "standbys (records behind)", "warm-up", "since (UTC)", "why"),
        "",
    ),
    TableSpec(
        *("standbys", "Standbys", "Copies that follow the changelogs, and how soon each could take over."),
        ("task", "store", "#behind", "last 5 min", "#limit", "state", "#promotable in", "at the end"),
        "No standby is held here.",
    ),
    TableSpec(
        *("stores", "Stores", "Each store over all of its partitions here."),
        (
            *("store", "kind", "#partitions", "#rows, about", "#files", "#memtables", "#to compact"),
            *("#segments", "#puts", "#gets", "#scans", "#open scans", "#late", "health"),
        ),
        "No store is open.",
    ),
    TableSpec(
        *(
            "changelogs",
            "Changelogs",
            "From the first offset that the log still has to its end; the filled part is applied here.",
        ),
        ("task", "store", "applied", "#first", "#applied to", "#end"),
        "No changelog is followed.",
    ),
    TableSpec(
        *(
            "snapshots",
            "Snapshots",
            "Snapshots of the tasks that run here, the newest first, as the storage had them at the last look; and the "
            "error of the last attempt at one, if it failed.",
        ),
        ("task", "snapshot", "#epoch", "#position", "age", "#size", "#files", "storage", "state"),
        "No snapshot of a task that runs here.",
    ),
    TableSpec(
        *("schedules", "Punctuators", "Callbacks that wait for their time."),
        ("task", "kind", "#every", "next (UTC)", "#missed"),
        "",
    ),
    TableSpec(*("servers", "Servers", "Clients and their calls."), ("server", "number", "#value"), ""),
    TableSpec(
        *("events", "Events", "Changes of tasks and calls of operators, the newest first."),
        ("time (UTC)", "event", "who", "outcome", "about"),
        "No event yet.",
    ),
)
# Left out when empty; the others say that there is none.
OPTIONAL = {"clocks", "workers", "instances", "placement", "schedules", "servers"}
LIMITS = {"tasks": TASKS_MAX, "clocks": TASKS_MAX, "placement": TASKS_MAX}


@dataclass(frozen=True, slots=True)
class Page:
    """The page at one moment: the HTML of blocks by name, and of rows by table and key."""

    title: str
    blocks: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def render(status: Json, history: PageHistory, now_ms: int) -> Page:
    """The page of a status document."""
    found = verdict(status)
    tables = {name: dict(_limited(name, rows)) for name, rows in _rows(status, history, now_ms).items()}
    blocks = {
        "verdict": verdict_block(found.level, found.word, found.text),
        "tiles": str(parts().tiles(tiles(status, history))),
        "facts": str(parts().facts(facts(status))),
    }
    return Page(f"{found.word} · {status['app']}", blocks, tables)


def verdict_block(level: str, word: str, text: str) -> str:
    """The first line of the page."""
    return str(parts().verdict(level, word, text))


def changes(old: Page, new: Page) -> dict[str, Any]:
    """The changes that turn page `old` into `new`; empty if none. `order` is included only if it changed."""
    told: dict[str, Any] = {}
    if old.title != new.title:
        told["title"] = new.title
    blocks = {name: html for name, html in new.blocks.items() if old.blocks.get(name) != html}
    if blocks:
        told["blocks"] = blocks
    tables = {}
    for name, rows in new.tables.items():
        before = old.tables.get(name, {})
        one: dict[str, Any] = {"rows": {key: html for key, html in rows.items() if before.get(key) != html}}
        if list(before) != list(rows):
            one["order"] = list(rows)
        if one["rows"] or "order" in one:
            tables[name] = one
    if tables:
        told["tables"] = tables
    return told


def whole(page: Page) -> dict[str, Any]:
    """The whole page, in the shape of changes."""
    return changes(Page(""), page) | {"whole": True}


def template(name: str, **values: Any) -> str:
    """Fill in a template of `data/`."""
    return templates().get_template(name).render(values)


def document(
    status: Json, page: Page, now_ms: int, seen: str = "", *, actions: bool = False, stores: Collection[str] = ()
) -> str:
    """The whole page; `seen` names it, so that a stream need not send it again. `actions`: with buttons.

    `stores`: those whose rows can be looked up, where the status has no `peek` for all of them.
    """
    shown = [spec for spec in TABLES if spec.name in page.tables]
    shown = [spec for spec in shown if spec.name not in OPTIONAL or page.tables[spec.name]]
    values = {"status": status, "page": page, "specs": shown, "now_ms": now_ms, "seen": seen, "actions": actions}
    found = lookups(status)
    values["lookups"] = {name: found[name] for name in found if status.get("peek") or name in stores}
    return template("page.html", title=page.title, up="", **values)


def lookups(status: Json) -> dict[str, str]:
    """The call of /v1/stores that finds the rows of a key: `get` or `fetch`, by store."""
    return {name: "get" if OPS[one.kind].get is not None else "fetch" for name, one in store_sums(status).items()}


Row = tuple[str, object, tuple[Any, ...]]  # key, first cell, and the values of the other cells


def _rows(status: Json, history: PageHistory, now_ms: int) -> dict[str, Iterable[Row]]:
    """The rows of each table; `events` only if the status has them."""
    events = reversed(status.get("events", ()))
    placement = status.get("placement") or {}
    standbys = [one for one in stores_of(status) if one[0]["role"] == "standby"]
    # A table is cut at ROWS_MAX, which must not hide the changelogs that retention may overtake.
    risky_first = sorted(stores_of(status), key=lambda one: not log_share(one[1])[1])
    found: dict[str, Iterable[Row]] = {
        "restores": (_restore_row(bar, history) for bar in bars(status, history)),
        "tasks": (
            (task["task"], task["task"], (task, history.rate(task_key(task)), now_ms)) for task in status["tasks"]
        ),
        "clocks": ((task["task"], task["task"], (task, waits_for(task), now_ms)) for task in clocked(status)),
        "workers": ((str(one["worker"]), one["worker"], (one,)) for one in status.get("worker_processes", ())),
        "instances": ((one["id"], one["id"], (one,)) for one in placement.get("instances", ())),
        "placement": ((one["task"], one["task"], (one,)) for one in placement.get("tasks", ())),
        "standbys": (_standby_row(task, store, history, now_ms) for task, store in standbys),
        "stores": (_store_row(name, one, history) for name, one in store_sums(status).items()),
        "changelogs": (_changelog_row(status, task, store) for task, store in risky_first),
        "schedules": (
            (f"{one['task']}/{one.get('id', one['kind'])}", one["task"], (one,)) for one in status.get("schedules", ())
        ),
        "servers": (_server_row(one, history) for one in status.get("servers", ())),
    }
    if snapshots_of(status)["storage"]:
        found["downloads"] = ((one["task"], one["task"], (one,)) for one in status.get("downloads", ()))
        found["snapshots"] = _snapshot_rows(snapshots_of(status), now_ms)
    if "events" in status:
        found["events"] = ((str(one["number"]), clock_text(one["at_ms"]), (one,)) for one in events)
    return found


def _snapshot_rows(snapshots: Json, now_ms: int) -> Iterator[Row]:
    """The errors first: a table is cut at its end."""
    for one in snapshots["errors"]:
        yield f"error/{one['task']}", one["task"], (None, one, snapshots["storage"], now_ms)
    for one in snapshots["stored"]:
        yield one["snapshot"], one["task"], (one, None, snapshots["storage"], now_ms)


def _standby_row(task: Json, store: Json, history: PageHistory, now_ms: int) -> Row:
    key = store_key(task, store)
    return key, task["task"], (store, history.chart(lag_key(key)), history.rate(key), now_ms)


def _restore_row(bar: Bar, history: PageHistory) -> Row:
    return bar.key, bar.task, (bar, history.chart(restore_key(bar.key)))


def _store_row(name: str, one: StoreSum, history: PageHistory) -> Row:
    return name, name, (one, [history.rate(call_key(name, call)) for call in CALLS])


def _server_row(one: Json, history: PageHistory) -> Row:
    server, what = one["server"], one["what"]
    return f"{server}/{what}", server, (one, history.rate(server_key(server, what)))


def _changelog_row(status: Json, task: Json, store: Json) -> Row:
    name = str(store["store"])
    # The name becomes part of a link. Names of stores have no other characters.
    peek = status.get("peek") and name.isascii() and name.translate(PLAIN).isalnum()
    return store_key(task, store), task["task"], (task, store, *log_share(store), peek)


def _limited(table: str, rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    cells = getattr(parts(), table)
    for number, (key, head, values) in enumerate(rows):
        if number == LIMITS.get(table, ROWS_MAX):
            yield "", str(parts().more())
            return
        yield key, str(parts().row(key, head, cells(*values)))


@cache
def templates() -> Environment:
    """The templates of `data/`, with the filters and names that they use."""
    # StrictUndefined, because a misspelt name would else be an empty cell.
    found = Environment(loader=PackageLoader("standfast.ops.page", "data"), autoescape=True, undefined=StrictUndefined)
    filters: dict[str, Any] = {
        "age": age,
        "ago": ago,
        "clock": clock_text,
        "count": count,
        "duration": duration,
        "fact": fact,
        "per_second": per_second,
        "points": points,
        "promotable": promotable,
        "size": size,
    }
    found.filters.update(filters)
    names: dict[str, Any] = {"LEVELS": LEVELS, "SHAPES": SHAPES}
    found.globals.update(names)
    return found


@cache
def parts() -> Any:
    """The macros of `parts.html`. The first page compiles them, in a tenth of a second: most processes render none."""
    return templates().get_template("parts.html").module
