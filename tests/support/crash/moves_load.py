"""The load that runs while partitions of sidecars move: writers that commit, and scanners of the RESP and HTTP servers.

    Writer(node, partition) ──RESP──> SF.OFFSETS, operations, SF.COMMIT OFFSETS ──> Known: acknowledged offsets
    RespScanner, HttpScanner ──> rows of any partition of any node: a fold of its operations, or a documented refusal

Rules of this file: threads that never raise; a violation is added to `Known.problems` and ends the run. Every choice
comes from a generator of the thread's own, made from the run's seed.
"""

from __future__ import annotations

import json
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import hiredis

from standfast.ops.shared.error_codes import REASONS
from support.crash.moves_model import NAMES, Folds, Row, differences, digest, operation
from support.resp import Client, pack

SOURCE = "in"
ANSWER_S = 60.0
TIME_MAX = 2**62
BATCH = 40
PAGE = 150
AGAIN_S = 0.05
SCAN_AGAIN_S = 0.004
# Errors of a partition on its way, and no others: README lists them.
MOVING = ("RESTORING", "NOT_ASSIGNED", "NOT_ACTIVE", "FENCED", "STALE_EPOCH", "CLOSED", "UNAVAILABLE", "HELD", "LIMIT")
REASONS_ALLOWED = frozenset(MOVING) | frozenset({"UNKNOWN"}) & frozenset(REASONS)
CODES_ALLOWED = frozenset(REASONS[name].resp for name in REASONS_ALLOWED)
Broken = (OSError, EOFError, HTTPException, hiredis.ProtocolError)


class Node(Protocol):
    """A sidecar as the load sees it. `deaths` grows before a kill, `up` is false until the next start serves."""

    name: str
    deaths: int
    up: bool

    @property
    def resp(self) -> Path: ...
    @property
    def http(self) -> str: ...


class Owner(NamedTuple):
    """The certain owner of a partition, from one moment to another: no other sidecar is assigned it."""

    node: str
    serial: int


class Refusal(Exception):
    """An error reply, by its code or reason."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class Known:
    """The harness's knowledge: tried and acknowledged offsets, owners, replies by their code, problems."""

    def __init__(self, partitions: int, *, exactly_once: bool) -> None:
        self.partitions = partitions
        self.exactly_once = exactly_once
        self.folds = {partition: Folds(partition) for partition in range(partitions)}
        self.attempted = dict.fromkeys(range(partitions), 0)
        self.acknowledged = dict.fromkeys(range(partitions), 0)
        self.acks: Counter[tuple[str, int]] = Counter()
        self.owner: dict[int, Owner | None] = dict.fromkeys(range(partitions))
        self.answers: Counter[str] = Counter()
        self.scans: Counter[str] = Counter()
        self.looks = 0
        self.problems: list[str] = []
        self.over = threading.Event()
        self._lock = threading.Lock()

    def attempt(self, partition: int, until: int) -> None:
        with self._lock:
            self.attempted[partition] = max(self.attempted[partition], until)

    def acknowledge(self, node: Node, partition: int, until: int, owner: Owner | None) -> None:
        """Note an acknowledged commit that was sent while `owner` had the partition."""
        if owner is not None and owner.node != node.name:
            self.problem(f"{node.name} acknowledged partition {partition} at {until}, which {owner} has")
        with self._lock:
            self.acknowledged[partition] = max(self.acknowledged[partition], until)
            self.acks[node.name, partition] += 1

    def problem(self, text: str) -> None:
        with self._lock:
            self.problems.append(text)
        self.over.set()

    def refused(self, who: str, code: str, text: str, allowed: frozenset[str]) -> Refusal:
        """Count an error; one that is not documented for a partition on its way is a problem."""
        with self._lock:
            self.answers[f"{who} {code}"] += 1
        if code not in allowed:
            self.problem(f"{who} was answered {text[:400]}")
        return Refusal(code)

    def check_rows(self, what: str, store: str, partition: int, rows: list[Row]) -> None:
        """Check that each row is one that an operation wrote, and that no row comes twice."""
        if len(set(rows)) < len(rows):
            self.problem(f"{what}: a row comes twice among {len(rows)}")
        attempted = self.attempted[partition]
        wrong = next((why for row in rows if (why := self.folds[partition].wrong(store, row, attempted))), "")
        if wrong:
            self.problem(f"{what} of partition {partition}: {wrong}")

    def check_whole(self, what: str, store: str, partition: int, rows: list[Row], floor: int) -> None:
        """Check that all rows are those after some number of operations, at least `floor`; exactly once only, since at
        least once operations are repeated over their own rows."""
        attempted = self.attempted[partition]
        folds = self.folds[partition]
        if self.exactly_once and digest(rows) not in folds.between(store, floor, attempted):
            near = max((int(row[-1]) + 1 for row in rows if row[-1].isdigit()), default=0)
            shown = differences(set(rows), folds.rows(store, min(near, attempted)))
            self.problem(f"{what}: {store} of {partition} is of no offset from {floor} to {attempted}: {shown}")


class Agent(threading.Thread, ABC):
    """A thread that goes on after any effect of a kill or a move. `step` is repeated."""

    again_s = AGAIN_S

    def __init__(self, known: Known, seed: str) -> None:
        super().__init__(name=seed, daemon=True)
        self.known = known
        self.rng = random.Random(seed)

    def run(self) -> None:
        while not self.known.over.is_set():
            try:
                self.step()
            except Refusal:
                self.known.over.wait(self.rng.uniform(0, self.again_s))
            except Exception as error:
                self.known.problem(f"{self.name}: {type(error).__name__}: {error}")

    @abstractmethod
    def step(self) -> None:
        """One round."""

    def gone(self, node: Node, deaths: int, error: Exception) -> Refusal:
        """Note a broken connection: only a kill of the server may cause that."""
        if node.up and node.deaths == deaths:
            self.known.problem(
                f"{self.name}: {node.name} lives, and ended a connection: {type(error).__name__}: {error}"
            )
        return Refusal("gone")


class Wire:
    """One connection to the RESP server, bound to a partition. Error replies are raised as Refusal."""

    def __init__(self, known: Known, who: str, node: Node, partition: int, store: str | None = None) -> None:
        self.known, self.who = known, who
        self._client = Client(node.resp)
        self._client.socket.settimeout(ANSWER_S)
        try:
            if store is not None:
                self("AUTH", store, "x")
            self("SELECT", partition)
        except BaseException:
            self.close()
            raise

    def __call__(self, *request: bytes | str | int) -> Any:
        return self.whole([request])[0]

    def whole(self, requests: list[Any]) -> list[Any]:
        """Replies to requests that are sent together; the first error is raised."""
        self._client.socket.sendall(b"".join(pack(*request) for request in requests))
        replies = [self._client.reply() for _ in requests]
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise self.refused(str(reply))
        return replies

    def raw(self, requests: list[Any]) -> list[Any]:
        """The same, with errors as values."""
        self._client.socket.sendall(b"".join(pack(*request) for request in requests))
        return [self._client.reply() for _ in requests]

    def refused(self, text: str) -> Refusal:
        return self.known.refused(f"RESP {self.who}", text.partition(" ")[0], text, CODES_ALLOWED)

    def close(self) -> None:
        self._client.close()

    def rows(self, store: str, page: int | None = None) -> Iterator[list[Row]]:
        """Pages of a store; without `page` one page of all rows. Versions are read by key (`versions`)."""
        if store == "win":
            yield _rows(self("SF.WALL", "win", 0, TIME_MAX), (0, 1, 3), 4)
        elif store == "ses":
            yield _rows(self("SF.SALL", "ses"), (0, 1, 2, 3), 4)
        else:
            yield from self._pages(page)

    def _pages(self, page: int | None) -> Iterator[list[Row]]:
        after: tuple[bytes | str, ...] = ()
        limit = () if page is None else ("LIMIT", page)
        while True:
            flat = self("SF.RANGE", "kv", "", "", *limit, *after)
            yield _rows(flat, (0, 1), 2)
            if page is None or len(flat) < 2 * page:
                return
            after = ("AFTER", flat[-2])

    def versions(self, keys: list[bytes]) -> list[Row]:
        """All versions of keys."""
        replies = self.whole([("SF.VRANGE", "ver", key, 0, TIME_MAX) for key in keys])
        return [
            (key, since, value)
            for key, flat in zip(keys, replies, strict=True)
            for value, since in zip(flat[::3], flat[1::3], strict=True)
        ]


def _rows(flat: list[Any], wanted: tuple[int, ...], width: int) -> list[Row]:
    return [tuple(flat[at + one] for one in wanted) for at in range(0, len(flat), width)]


class Writer(Agent):
    """An application's client of one partition of one sidecar: goes on from the offsets whenever it can."""

    def __init__(self, known: Known, seed: str, node: Node, partition: int) -> None:
        super().__init__(known, f"writer {node.name}-{partition} {seed}")
        self.node, self.partition = node, partition

    def step(self) -> None:
        """One connection."""
        node, deaths, up = self.node, self.node.deaths, self.node.up
        if not up:
            raise Refusal("down")
        try:
            with closing(Wire(self.known, "writer", node, self.partition)) as wire:
                position = self._begin(wire)
                while not self.known.over.wait(self.rng.uniform(0, 0.04)):
                    position = self._batch(wire, position)
        except Broken as error:
            raise self.gone(node, deaths, error) from error

    def _begin(self, wire: Wire) -> int:
        """Choose where to go on: an offset that was tried, not below the acknowledged one, and the state is its."""
        known, partition = self.known, self.partition
        owner, floor = known.owner[partition], known.acknowledged[partition]
        position = offset_in(wire("SF.OFFSETS"), partition)
        surely = owner is not None and owner.node == self.node.name
        if surely and known.owner[partition] == owner and position < floor:
            known.problem(f"{self.node.name}: offset {position} of {partition}, but {floor} was acknowledged")
        if position > known.attempted[partition]:
            known.problem(f"{self.node.name}: offset {position} of {partition}, of {known.attempted[partition]} tried")
        found = {store: next(wire.rows(store)) for store in ("kv", "win", "ses")}
        if offset_in(wire("SF.OFFSETS"), partition) == position:
            for store, rows in found.items():
                known.check_rows(self.name, store, partition, rows)
                wanted = known.folds[partition].at(store, position)
                if known.exactly_once and digest(rows) != wanted:
                    shown = differences(set(rows), known.folds[partition].rows(store, position))
                    known.problem(f"{self.node.name}: {store} of {partition} is not that of offset {position}: {shown}")
            known.looks += 1
        return position

    def _batch(self, wire: Wire, position: int) -> int:
        known, partition, rng = self.known, self.partition, self.rng
        until = position + rng.randrange(1, BATCH)
        known.attempt(partition, until)
        owner = known.owner[partition]
        replies = wire.raw(batch(partition, position, until, multi=rng.random() < 0.5))
        errors = [str(one) for one in replies if isinstance(one, hiredis.ReplyError)]
        if not isinstance(replies[-1], hiredis.ReplyError):
            if errors:
                known.problem(f"{self.name}: a commit was acknowledged, and of its writes {errors[0]}")
            known.acknowledge(self.node, partition, until, owner)
            return until
        aborted = replies[-1].args[0].startswith("EXECABORT") and len(errors) > 1
        refusal = wire.refused(errors[0] if aborted else errors[-1])
        for one in errors:
            if not one.startswith("EXECABORT"):
                wire.refused(one)
        if refusal.code != "FENCED" or rng.random() < 0.5:
            raise refusal
        return self._begin(wire)


def batch(partition: int, first: int, until: int, *, multi: bool) -> list[tuple[bytes | str | int, ...]]:
    """Requests of operations and the commit of their offset, one by one or as one MULTI."""
    writes = [change.request for number in range(first, until) for change in operation(partition, number)]
    commit = ("SF.COMMIT", "SEQ", until, "OFFSETS", SOURCE, partition, until)
    return [("MULTI",), *writes, commit, ("EXEC",)] if multi else [*writes, commit]


def offset_in(flat: list[Any], partition: int) -> int:
    """The offset of a partition in an answer to SF.OFFSETS; 0 before the first commit."""
    found = dict(zip(zip(flat[::3], flat[1::3], strict=True), flat[2::3], strict=True))
    return int(found.get((SOURCE.encode(), partition), 0))


class Scanner(Agent):
    """Reads any partition of any node."""

    again_s = SCAN_AGAIN_S

    def __init__(self, known: Known, seed: str, nodes: list[Any]) -> None:
        super().__init__(known, f"{type(self).__name__} {seed}")
        self.nodes = nodes

    def step(self) -> None:
        """One scan."""
        node: Node = self.rng.choice(self.nodes)
        deaths, up = node.deaths, node.up
        if not up:
            raise Refusal("down")
        try:
            self.scan(node, self.rng.randrange(self.known.partitions), self.rng.choice(NAMES))
        except Broken as error:
            raise self.gone(node, deaths, error) from error
        self.known.over.wait(0.002)

    @abstractmethod
    def scan(self, node: Node, partition: int, store: str) -> None:
        """Read a store, and check the rows."""

    def floor(self, node: Node, partition: int) -> tuple[Owner | None, int]:
        """The owner of the partition, and its acknowledged offset by now."""
        owner = self.known.owner[partition]
        mine = owner is not None and owner.node == node.name
        return owner if mine else None, self.known.acknowledged[partition] if mine else 0

    def whole(self, node: Node, store: str, partition: int, rows: list[Row], before: tuple[Owner | None, int]) -> None:
        """Check a scan in one reply, sent when `floor` was `before`."""
        owner, floor = before
        floor = floor if owner is not None and self.known.owner[partition] == owner else 0
        self.known.check_whole(f"{self.name} of {node.name}", store, partition, rows, floor)


class RespScanner(Scanner):
    """Ranges, whole or page by page."""

    def scan(self, node: Node, partition: int, store: str) -> None:
        rows: list[Row] = []
        page = self.rng.choice((None, PAGE)) if store == "kv" else None
        with closing(Wire(self.known, "scanner", node, partition, "kv")) as wire:
            before = self.floor(node, partition)
            if store == "ver":
                keys = [b"k%04d" % number for number in self.rng.sample(range(800), 50)]
                rows = wire.versions(keys)
            elif page is not None and self.rng.random() < 0.5:
                self._cursor(wire)
            else:
                for some in wire.rows(store, page):
                    rows += some
            if store != "ver" and page is None:
                self.whole(node, store, partition, rows, before)
        self.known.check_rows(self.name, store, partition, rows)
        if store == "kv" and rows != sorted(rows):
            self.known.problem(f"{self.name}: keys of partition {partition} are not in their order")
        self.known.scans[f"RESP {store}"] += 1

    def _cursor(self, wire: Wire) -> None:
        cursor, keys = b"0", []
        while True:
            cursor, some = wire("SCAN", cursor, "COUNT", PAGE)
            keys += some
            if cursor == b"0":
                break
        if keys != sorted(set(keys)):
            self.known.problem(f"{self.name}: SCAN gave keys twice, or in no order")


class HttpScanner(Scanner):
    """/v1/stores/NAME/scan, whole or page by page; also of standbys, whose rows may be from the middle of a commit."""

    def scan(self, node: Node, partition: int, store: str) -> None:
        stale = self.rng.random() < 0.5
        limit = self.rng.choice((PAGE, 10_000))
        rows: list[Row] = []
        pages, after, active = 0, None, True
        before = self.floor(node, partition)
        where = urlsplit(node.http)
        with closing(HTTPConnection(str(where.hostname), where.port, timeout=ANSWER_S)) as connection:
            while True:
                query = f"partition={partition}&limit={limit}" + ("&stale=1" if stale else "")
                query += "" if after is None else f"&after={quote(after)}"
                document = self._ask(connection, f"/v1/stores/{store}/scan?{query}")
                rows += [_row(store, row) for row in document["rows"]]
                active = active and all(one["role"] == "active" for one in document["partitions"])
                pages, after = pages + 1, document["after"]
                if after is None:
                    break
        if active and pages == 1 and not document["truncated"]:
            self.whole(node, store, partition, rows, before)
        if pages == 1 or store == "kv":  # elsewhere a page goes on behind so many rows, which may be others by then
            self.known.check_rows(self.name, store, partition, rows)
        self.known.scans[f"HTTP {store}" + (" stale" if not active else "")] += 1

    def _ask(self, connection: HTTPConnection, path: str) -> dict[str, Any]:
        connection.request("GET", path)
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode()
        document: dict[str, Any] = json.loads(text)
        if status == 200:
            return document
        raise self.known.refused("HTTP scanner", document["reason"], f"{status} {text} to {path}", REASONS_ALLOWED)


def _row(store: str, row: dict[str, Any]) -> Row:
    names = {"kv": (), "win": ("window_start",), "ses": ("session_start", "session_end"), "ver": ("valid_from",)}[store]
    return row["key"].encode(), *(row[name] for name in names), row["value"].encode()
