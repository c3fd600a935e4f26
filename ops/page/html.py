"""The ops page as HTML: blocks and rows of tables, each with a key, so that only what changed needs to be sent.

    status document ──page_model──> render() ──> Page(blocks, tables) ──> document()   the whole page, for a browser
                                                                     └──> changes()    what differs from the last one

Rules of this file: pure. Everything that comes from the document is escaped: names may be anything. No script and no
style stands in the page itself. State is told by word and shape; colour only repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from standfast.ops.observe.verdict import Json, duration, size, store_key, stores_of, verdict
from standfast.ops.page.model import (
    LAGS_KEPT,
    Bar,
    History,
    StoreSum,
    age,
    bars,
    clock_text,
    count,
    log_share,
    promotable,
    restore_phases,
    store_sums,
    tiles,
)

ROWS_MAX = 200
TASKS_MAX = 2_000
SHAPES = {"running": "●", "restoring": "◐", "standby": "○", "failed": "▲", "created": "◌", "closed": "■"}
LEVELS = {"ok": "●", "busy": "◐", "warn": "◆", "bad": "▲"}
SPARK_WIDTH, SPARK_HEIGHT = 90, 18
Cell = str


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
        *("restores", "Restores", "Stores on their way to the end of their changelog, slowest first."),
        ("task", "store", "progress", "#position", "#end", "#left", "#records/s", "#time left", "why"),
        "No store is being restored.",
    ),
    TableSpec(
        *("tasks", "Tasks", "Every task of this instance: who writes it, how far it is, what it has read."),
        (
            "task",
            "role",
            "state",
            "#epoch",
            "#position",
            "#behind",
            "committed",
            "#not committed",
            "sources",
            "stream time",
        ),
        "No task is assigned.",
    ),
    TableSpec(
        *("standbys", "Standbys", "Copies that follow, and how soon one could take over."),
        ("task", "store", "#behind", "last minute", "#limit", "state", "#promotable in", "at the end"),
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
            "From the first offset that the log still has to its end; what is filled is applied here.",
        ),
        ("task", "store", "applied", "#first", "#applied to", "#end"),
        "No changelog is followed.",
    ),
    TableSpec(
        *("schedules", "Punctuators", "Callbacks that wait for their time."),
        ("task", "kind", "#every", "next (UTC)", "#missed"),
        "",
    ),
    TableSpec(*("doors", "Doors", "Clients and their calls."), ("door", "what", "#value"), ""),
    TableSpec(
        *("events", "Events", "What happened, the newest first."),
        ("time (UTC)", "event", "who", "outcome", "about"),
        "Nothing has happened yet.",
    ),
)
OPTIONAL = {"schedules", "doors"}
PLAIN = str.maketrans("", "", "._-")


@dataclass(frozen=True, slots=True)
class Page:
    """The page at one moment: HTML of blocks by name, and of rows by table and key."""

    title: str
    blocks: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def render(status: Json, history: History, now_ms: int) -> Page:
    """The page of a status document."""
    found = verdict(status)
    tables = {
        "restores": dict(_limited(map(_restore_row, bars(status, history)))),
        "tasks": dict(_limited(_task_rows(status, now_ms), TASKS_MAX)),
        "standbys": dict(_limited(_standby_rows(status, history, now_ms))),
        "stores": dict(_store_row(name, one) for name, one in store_sums(status).items()),
        "changelogs": dict(_limited(_changelog_rows(status))),
        "schedules": dict(_schedule_row(one) for one in status.get("schedules", ())),
        "doors": dict(_door_row(one) for one in status.get("doors", ())),
    }
    if "events" in status:
        tables["events"] = dict(_event_row(one) for one in reversed(status["events"]))
    shape = f'<span aria-hidden="true">{LEVELS[found.level]}</span>'
    blocks = {
        "verdict": f'<p class="verdict {found.level}">{shape} <strong>{found.word}</strong> {escape(found.text)}</p>',
        "tiles": _tiles(status),
        "facts": _facts(status),
    }
    return Page(f"{found.word} · {status['app']}", blocks, tables)


def changes(old: Page, new: Page) -> dict[str, Any]:
    """What a reader of `old` needs to know to show `new`; empty if nothing. `order` is told only where it changed."""
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
    """Everything, in the same shape."""
    return changes(Page(""), page) | {"whole": True}


# For whoever may; without scripts they stay hidden, since only a script can ask for changes as /v1 wants them.
ACTIONS = """<section id="actions" aria-labelledby="h-actions" hidden><h2 id="h-actions">Actions</h2>
<p class="about">Each is written to the audit log. A drain ends what this instance does until it is started again.</p>
<p class="acts"><button type="button" data-act="verify">Verify all stores</button>
<label>Snapshot <input id="snapshot-name" maxlength="60" spellcheck="false" autocomplete="off"></label>
<button type="button" data-act="snapshots">Take it</button>
<button type="button" class="danger" data-act="drain"
 data-sure="Drain: take no more work, commit, and close every task of this instance?">Drain</button></p>
<p id="act-result" role="status"></p></section>
"""


def head(title: str, up: str = "") -> str:
    """How every page begins, up to what its head has of its own; `up` leads from its address to the files."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="{up}page-icon.svg">
<link rel="stylesheet" href="{up}page.css">
"""


def document(status: Json, page: Page, now_ms: int, seen: str = "", *, actions: bool = False) -> str:
    """The whole page; `seen` names it, so that a stream need not tell it again. `actions`: with buttons."""
    shown = [
        spec for spec in TABLES if spec.name in page.tables and (spec.name not in OPTIONAL or page.tables[spec.name])
    ]
    links = "".join(f'<a href="#{spec.name}">{spec.title}</a>' for spec in shown)
    links += '<a href="#actions" id="to-actions" hidden>Actions</a>' if actions else ""
    return f"""{head(page.title)}<script src="page.js" defer></script>
</head>
<body data-seen="{escape(seen)}">
<a class="skip" href="#main">Skip to the content</a>
<header>
<h1>{escape(str(status["app"]))} <small>{escape(str(status["instance"]))}</small></h1>
<div id="verdict" role="status" aria-live="polite">{page.blocks["verdict"]}</div>
<p id="connection" role="status">as of <time>{clock_text(now_ms)}</time> UTC; reload for newer</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main id="main">
<dl id="tiles" aria-label="Summary">{page.blocks["tiles"]}</dl>
{"".join(_section(spec, page.tables[spec.name]) for spec in shown)}
{ACTIONS if actions else ""}
<section aria-labelledby="h-about"><h2 id="h-about">About</h2><div id="facts">{page.blocks["facts"]}</div></section>
</main>
</body>
</html>
"""


def _section(spec: TableSpec, rows: Mapping[str, str]) -> str:
    heads = "".join(
        f'<th scope="col"{" class=num" if column.startswith("#") else ""}>{column.removeprefix("#")}</th>'
        for column in spec.columns
    )
    return (
        f'<section id="{spec.name}" aria-labelledby="h-{spec.name}"><h2 id="h-{spec.name}">{spec.title}'
        f'</h2><p class="about">{spec.about}</p>'
        f'<div class="wide" tabindex="0" role="region" aria-labelledby="h-{spec.name}"><table>'
        f'<thead><tr>{heads}</tr></thead><tbody data-table="{spec.name}">{"".join(rows.values())}</tbody></table></div>'
        f'<p class="empty"{" hidden" if rows else ""}>{spec.empty}</p></section>\n'
    )


def _row(key: str, head: str, *cells: Cell) -> tuple[str, str]:
    """A row; `head` is text, cells are HTML that `_text` and others made."""
    return key, f'<tr data-key="{escape(key)}"><th scope="row">{escape(head)}</th>{"".join(cells)}</tr>'


def _text(value: object, kind: str = "") -> Cell:
    return f"<td{f' class={kind}' if kind else ''}>{escape(str(value))}</td>"


def _number(value: object) -> Cell:
    return _text(count(value) if isinstance(value, int) else value, "num")


def _state(state: str, note: str = "") -> Cell:
    word = escape(state)
    shape = SHAPES.get(state, "◇")
    title = f"<br><small>{escape(note)}</small>" if note else ""
    return (
        f'<td><span class="state" data-state="{word}"><span aria-hidden="true">{shape}</span> {word}</span>{title}</td>'
    )


def _limited(rows: Iterable[tuple[str, str]], most: int = ROWS_MAX) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(rows):
        if number == most:
            yield _row("", "more", _text("and more: see the JSON at v1/status"))
            return
        yield row


def _restore_row(bar: Bar) -> tuple[str, str]:
    words = {"running": "", "stuck": " stands still", "done": " done"}
    progress = (
        f'<td class="progress" data-state="{bar.state}"><progress max="100" value="{bar.percent}" '
        f'aria-label="{escape(bar.key)}"></progress> {bar.percent} %{words[bar.state]}</td>'
    )
    return _row(
        bar.key,
        bar.task,
        _text(bar.store),
        progress,
        _number(bar.position),
        _number(bar.end),
        _number(bar.remaining),
        _number(count(round(bar.rate))),
        _text("" if bar.state == "done" else duration(bar.seconds_left), "num"),
        _text(bar.reason),
    )


def _task_rows(status: Json, now_ms: int) -> Iterator[tuple[str, str]]:
    for task in status["tasks"]:
        stores = task["stores"]
        committed = [store["position_at_ms"] for store in stores]
        sources = ", ".join(f"{name} at {count(at)}" for name, at in list(task["sources"].items())[:4])
        yield _row(
            task["task"],
            task["task"],
            _text(task["role"]),
            _state(task["state"], task["error"]),
            _number(task["epoch"]),
            _number(sum(store["position"] for store in stores)),
            _number(sum(store["lag"] for store in stores)),
            _text(age(min(committed), now_ms) if committed else ""),
            _text(size(task["buffer_bytes"]), "num"),
            _text(sources),
            _text(clock_text(max(task["stream_times"].values(), default=None))),
        )


def _standby_rows(status: Json, history: History, now_ms: int) -> Iterator[tuple[str, str]]:
    for task, store in stores_of(status):
        if task["role"] != "standby":
            continue
        key = store_key(task, store)
        yield _row(
            key,
            task["task"],
            _text(store["store"]),
            _number(store["lag"]),
            f"<td>{_spark(list(history.lags.get(key, ())))}</td>",
            _text("none" if store["limit"] is None else count(store["limit"]), "num"),
            _text("paused at its limit" if store["paused"] else "follows"),
            _text(promotable(store, history.rates.get(key, 0.0)), "num"),
            _text(age(store["caught_up_ms"], now_ms)),
        )


def _store_row(name: str, one: StoreSum) -> tuple[str, str]:
    health = [f"▲ {count(one.corruptions)} damaged reads"] if one.corruptions else []
    health += ["◆ writes wait for compaction"] if one.write_stopped else []
    sizes = (one.sst_bytes, one.memtable_bytes, one.pending_compaction_bytes)
    calls = (one.segments, one.puts, one.gets, one.scans, one.open_iterators, one.late)
    return _row(
        name,
        name,
        _text(one.kind),
        _number(one.partitions),
        _number(one.keys),
        *(_text(size(value), "num") for value in sizes),
        *(_number(value) for value in calls),
        _text("; ".join(health) or "● fine"),
    )


def _changelog_rows(status: Json) -> Iterator[tuple[str, str]]:
    for task, store in sorted(stores_of(status), key=lambda one: not log_share(one[1])[1]):  # those at risk first
        share, risk = log_share(store)
        note = " ◆ may be deleted before it is read" if risk else ""
        label = f"{share} % applied"
        drawn = (
            f'<svg class="log{" risk" if risk else ""}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
            f'aria-label="{label}"><rect class="whole" width="100" height="8"/>'
            f'<rect class="applied" width="{share}" height="8"/></svg>'
        )
        yield _row(
            store_key(task, store),
            task["task"],
            _peek_link(task, store) if status.get("peek") else _text(store["store"]),
            f"<td>{drawn} {label}{note}</td>",
            _number(store["begin"]),
            _number(store["position"]),
            _number(store["end"]),
        )


def _peek_link(task: Json, store: Json) -> Cell:
    name = str(store["store"])
    if not (name.isascii() and name.translate(PLAIN).isalnum()):  # no store can be named so
        return _text(name)
    return f'<td><a href="peek/{name}/{int(task["partition"])}">{name}</a></td>'


def _schedule_row(one: Json) -> tuple[str, str]:
    key = f"{one['task']}/{one.get('id', one['kind'])}"
    every_ms = one.get("interval_ms")
    return _row(
        key,
        one["task"],
        _text(str(one["kind"]).replace("_", " ")),
        _text("" if every_ms is None else duration(every_ms / 1_000), "num"),
        _text(clock_text(one.get("next_ms"))),
        _number(one.get("missed", 0)),
    )


def _door_row(one: Json) -> tuple[str, str]:
    return _row(f"{one['door']}/{one['what']}", one["door"], _text(one["what"]), _number(one["value"]))


def _event_row(one: Json) -> tuple[str, str]:
    about = ", ".join(f"{name} {value}" for name, value in one.get("fields", {}).items())
    shape = {"done": "●", "failed": "▲", "refused": "◆"}.get(one.get("outcome", "done"), "◇")
    return _row(
        str(one["number"]),
        clock_text(one["at_ms"]),
        _text(one["event"]),
        _text(one.get("actor", "")),
        _text(f"{shape} {one.get('outcome', 'done')}"),
        _text(about),
    )


def _spark(lags: list[int]) -> str:
    """A line of the lags of the last minute; the words beside it say the same to those who do not see it."""
    if not lags:
        return ""
    most = max(*lags, 1)
    step = SPARK_WIDTH / (LAGS_KEPT - 1)
    points = " ".join(
        f"{number * step:.0f},{SPARK_HEIGHT - 1 - lag * (SPARK_HEIGHT - 2) / most:.0f}"
        for number, lag in enumerate(lags)
    )
    label = f"highest {count(max(lags))}, now {count(lags[-1])}"
    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" '
        f'role="img" aria-label="{label}"><polyline points="{points}"/></svg>'
    )


def _tiles(status: Json) -> str:
    return "".join(
        f"<div><dt>{escape(what)}</dt><dd><strong>{escape(number)}</strong> <small>{escape(more)}</small></dd></div>"
        for what, number, more in tiles(status)
    )


def _facts(status: Json) -> str:
    disk = status.get("disk")
    room = f"{size(disk['free_bytes'])} free of {size(disk['total_bytes'])}" if disk else ""
    floor = f", writes are refused below {size(disk['floor_bytes'])}" if disk and disk.get("floor_bytes") else ""
    facts: list[tuple[str, object]] = [
        ("application", status["app"]),
        ("instance", status["instance"]),
        ("version", status.get("version", "")),
        ("disk", room + floor),
        ("members", ", ".join(map(str, status["members"]))),
        ("time of restores", restore_phases(status)),
        *((name.replace("_", " "), value) for name, value in (status.get("sidecar") or {}).items()),
        *(status.get("config") or {}).items(),
    ]
    rows = "".join(_fact(name, value) for name, value in facts if value not in ("", None))
    links = '<p>The same as JSON: <a href="v1/status">status</a>. For Prometheus: <a href="metrics">metrics</a>. '
    return f'{links}For probes: <a href="readyz?verbose">readyz</a>, <a href="livez">livez</a>.</p><dl>{rows}</dl>'


def _fact(name: object, value: object) -> str:
    return f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
