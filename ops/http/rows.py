"""Rows of a session's stores for people, selected by path and query.

    /v1/stores/NAME/get?key=&as_of=                              partition=, stale=1, key_format=utf8|hex everywhere
    /v1/stores/NAME/scan?from=&to=&prefix=&limit=&after=         after: the value from the previous answer
    /v1/stores/NAME/fetch?key=&from=&to=&limit=                  from and to in milliseconds, both ends included

Rules of this file: no sockets and no HTTP library: worker processes answer from it too. Reads of committed rows
only. Keys and values never go into a log.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from standfast.ops.observe.reads import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    REPLY_BYTES_MAX,
    VERBS,
    ReadRequest,
    StorePart,
    document,
    live_part,
    read,
)
from standfast.ops.shared.error_codes import NotActive, NotAssigned, NotFound
from standfast.ops.shared.text import parse_key_format
from standfast.store.errors import Closed, InvalidRequest, NotReady, UnknownStore
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.stream.session.session import Session
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task

QUERY_FIELDS_MAX = 20
NOTHING_HELD = "this instance holds no partition: ask another instance"
ROW_PATHS = tuple(f"/v1/stores/NAME/{verb}" for verb in VERBS)
_ALLOWED = {
    "get": frozenset({"key", "as_of"}),
    "scan": frozenset({"from", "to", "prefix", "limit", "after"}),
    "fetch": frozenset({"key", "from", "to", "limit"}),
}
_ALWAYS = frozenset({"partition", "stale", "key_format"})


class Rows:
    """Rows of one session's stores."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def document(
        self, path: str, query: str, rows_max: int = LIMIT_MAX, bytes_max: int = REPLY_BYTES_MAX
    ) -> dict[str, Any]:
        """The rows that a path selects. Raises NotFound, NotAssigned, NotActive, and errors of the library."""
        found = self.page(path, query, rows_max, bytes_max)
        request, _ = row_request(path, query)
        check_found(request, found)
        return found

    def page(
        self, path: str, query: str, rows_max: int = LIMIT_MAX, bytes_max: int = REPLY_BYTES_MAX
    ) -> dict[str, Any]:
        """As `document`, without rows for a key that is not there."""
        request, stale = row_request(path, query)
        name = request.store
        request = replace(request, limit=min(request.limit, rows_max))
        try:
            found = self._parts(request, stale=stale or self._session.read_only)
            answer = read(found, request, bytes_max)
        except Closed as error:
            self._session.all_tasks()  # raises Closed if it is the session that is closed
            raise NotReady(
                f"a partition of store {name!r} left this instance, or was opened again, while its rows were read: ask "
                "again, or ask another instance"
            ) from error
        left = self._unread(name, found) if request.partition is None else frozenset()
        return document(self._session.app, request, found, answer, left)

    def _parts(self, request: ReadRequest, *, stale: bool) -> list[StorePart]:
        """The partitions of the store to read. A partition that cannot be read now fails the whole answer."""
        spec = self._spec(request.store)
        held = self._session.all_tasks()
        # Found by its definitions, because a failed task has no open stores.
        tasks = {task_id.partition: task for task_id, task in held.items() if spec.name in task.stores.specs}
        if request.partition is not None:
            if request.partition not in tasks:
                raise not_held(request.partition, tasks)
            tasks = {request.partition: tasks[request.partition]}
        elif not stale:
            # Where every partition is a standby, all are kept, so that the error says how to read them.
            tasks = {partition: task for partition, task in tasks.items() if not _is_standby(task)} or tasks
        if not tasks:
            raise NotAssigned(NOTHING_HELD)
        return [self._part(spec, task, stale) for _, task in sorted(tasks.items())]

    def _part(self, spec: StoreSpec, task: Task, stale: bool) -> StorePart:
        partition = task.id.partition
        if _is_standby(task) and not stale:
            raise standby_here(partition)
        try:
            view = self._session.read(spec.name, partition, allow_stale=stale)
        except InvalidRequest as error:
            if task.id in self._session.all_tasks():
                raise
            # It left between the two looks at the session. The call is right, so the caller should ask elsewhere.
            raise NotAssigned(str(error)) from error
        return live_part(view.store, partition, view.role, view.lag_records)

    def _unread(self, store: str, found: list[StorePart]) -> frozenset[int]:
        """The store's partitions that stand by here and were not read: their rows are at their active instances."""
        held = self._session.all_tasks().items()
        standbys = {one.partition for one, task in held if store in task.stores.specs and _is_standby(task)}
        return frozenset(standbys - {part.partition for part in found})

    def _spec(self, name: str) -> StoreSpec:
        return named_spec(self._session.specs, name)


def named_spec(specs: Sequence[StoreSpec], name: str) -> StoreSpec:
    """The store of this name. Raises UnknownStore."""
    for spec in specs:
        if spec.name == name:
            return spec
    raise UnknownStore(f"no store {name!r}{nearest(name, [spec.name for spec in specs])}")


def standby_here(partition: int) -> NotActive:
    """The error of a read of a standby without `stale`."""
    return NotActive(f"partition {partition} is a standby here: ask the active instance, or add stale=1 for stale rows")


def not_held(partition: int, held: Collection[int]) -> NotAssigned:
    """The error of a read of a partition that is not here."""
    known = few(sorted(held)) or "none"
    return NotAssigned(f"partition {partition} is not held by this instance (it holds: {known})")


def row_request(path: str, query: str) -> tuple[ReadRequest, bool]:
    """The read that a path and its query select, and whether stale rows are allowed.

    Raises NotFound, InvalidRequest.
    """
    parts = path.split("/")
    if len(parts) != 5 or parts[:3] != ["", "v1", "stores"] or parts[4] not in VERBS:
        raise NotFound(f"no such path: the paths of a store are {', '.join(ROW_PATHS)}")
    name, verb = unquote(parts[3]), parts[4]
    values = _parameters(query, _ALLOWED[verb] | _ALWAYS)
    return _request(verb, name, values), _flag(values, "stale")


def check_found(request: ReadRequest, found: Mapping[str, Any]) -> None:
    """Raise NotFound for a key without a row."""
    if request.verb == "get" and not found["rows"]:
        left = unread(found["not_read"])
        raise NotFound(f"store {request.store!r} has no row of this key in the partitions read here{left}")


def unread(standbys: Collection[int]) -> str:
    """The end of an error about an absent row, of partitions that stand by here: their active instances may have it."""
    return f"; not read: the standbys of partitions {few(sorted(standbys))}, ask their active instances" * bool(
        standbys
    )


def nearest(name: str, known: list[str]) -> str:
    """`, did you mean ...?`, or the list of known names."""
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f", did you mean {near[0]!r}?" if near else f": there are {few(known) or 'none'}"


def _is_standby(task: Task) -> bool:
    return task.state is TaskState.STANDBY


def _parameters(query: str, allowed: frozenset[str]) -> dict[str, str]:
    try:
        # Strict, since a byte that was replaced would read another key.
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be decoded ({error}): percent-encode UTF-8") from error
    values: dict[str, str] = {}
    for name, value in pairs:
        # A misspelt bound that was passed over would read the whole store.
        if name not in allowed:
            raise InvalidRequest(f"no parameter {name!r}{nearest(name, sorted(allowed))}")
        if name in values:
            raise InvalidRequest(f"parameter {name!r} is given twice: give it once")
        values[name] = value
    return values


def _request(verb: str, store: str, values: Mapping[str, str]) -> ReadRequest:
    limit = _number(values, "limit")
    times = verb == "fetch"
    return ReadRequest(
        verb,
        store,
        key=values.get("key"),
        key_from=None if times else values.get("from"),
        key_to=None if times else values.get("to"),
        prefix=values.get("prefix"),
        time_from=_number(values, "from") if times else None,
        time_to=_number(values, "to") if times else None,
        as_of=_number(values, "as_of"),
        partition=_number(values, "partition"),
        limit=LIMIT_DEFAULT if limit is None else limit,
        key_format=parse_key_format(values.get("key_format", "utf8")),
        after=values.get("after"),
    )


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:  # 18 digits fit in 64 bits
        raise InvalidRequest(f"{name} is {text!r}: give a whole number from 0")
    return int(text)


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidRequest(f"{name} is {text!r}, use 0 or 1")
    return text == "1"
