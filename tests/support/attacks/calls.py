"""How each public call of a session, a task, its stores and its log is made under attack.

    ENTRIES["Session.commit"] = Entry(lambda stage, n: ..., offset=..., commits=True)

Rules of this file: a call is made twice, first to count its points and then under attack; its rows carry a number,
which the stage gives. Calls on parts of the log are made on a part of their own, which is closed by the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import standfast as sf
from standfast.replication.log import Committed, GroupCommit, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from support.attacks.stage import SRC, STEP, Row, Stage
from support.sessions import HOUR_MS, START_MS

OUT = TopicPartition("out", 0)
FAR_MS = START_MS + 24 * HOUR_MS


@dataclass(frozen=True)
class Entry:
    """One public call, and the effects of its return.

    rows      the rows that call number n writes
    gone      the rows that it deletes
    commits   it commits all that was put, with the source offset of call number n
    drops     rows put before it may be gone after it
    settings  of the session that it is made on
    after     a check besides the stage's own postcondition
    """

    call: Callable[[Any, int], object]
    rows: Callable[[int], Mapping[Row, Any]] = field(default=lambda n: {})
    gone: Callable[[Any], Mapping[Row, Any]] = field(default=lambda stage: {})
    commits: bool = False
    drops: bool = False
    settings: Callable[[Any], Mapping[str, Any]] = field(default=lambda root: {})
    after: Callable[[Any], object] = field(default=lambda stage: None)

    def offset(self, n: int) -> int | None:
        return n * STEP if self.commits else None


def offsets(n: int) -> dict[TopicPartition, int]:
    return {SRC: n * STEP}


def row(*at: Any) -> Callable[[int], Mapping[Row, Any]]:
    """The row of a call: its key begins with the store and "call<n>"."""
    return lambda n: {(at[0], f"call{n}", *at[1:]): f"v{n}"}


def _closed(stage: Stage, n: int) -> None:
    with closing(stage.bench.session("made", partitions=1)):
        pass


def _entered(stage: Stage, n: int) -> None:
    with stage.bench.session("made", partitions=1):
        pass


def _iterated(stage: Stage, n: int, use: Callable[[Any], object] = list) -> object:
    with stage.kv.all() as rows:
        return use(rows)


def _put_exclusively(stage: Stage, n: int) -> None:
    with stage.task.exclusive():
        stage.kv.put(f"call{n}", f"v{n}")


def _snapshots(root: Any) -> dict[str, Any]:
    return {"snapshots": sf.SnapshotPolicy(to=str(root / "snapshots"))}


def gone(store: str, *at: Any) -> Callable[[Stage], Mapping[Row, Any]]:
    """The row of the store that was put last is gone."""
    return lambda stage: {(store, stage.last, *at): None}


def _revoked(stage: Stage, n: int) -> None:
    stage.session.on_revoke(None, [SRC])


SESSION: dict[str, Entry] = {
    "Session": Entry(_closed),
    "Session.__enter__": Entry(_entered),
    "Session.__exit__": Entry(_entered),
    "Session.all_tasks": Entry(lambda s, n: s.session.all_tasks()),
    "Session.assign": Entry(lambda s, n: s.session.assign(active=[0])),
    "Session.close": Entry(lambda s, n: s.session.close(), drops=True),
    "Session.commit": Entry(lambda s, n: s.session.commit(offsets(n)), commits=True),
    "Session.commit_interval_ms": Entry(lambda s, n: s.session.commit_interval_ms()),
    "Session.commit_tasks": Entry(lambda s, n: s.session.commit_tasks(s.session.all_tasks(), offsets(n)), commits=True),
    "Session.consumer_settings": Entry(
        lambda s, n: refused(partial(s.session.consumer_settings, {"group.id": "other"}))
    ),
    "Session.follow_now": Entry(lambda s, n: s.session.follow_now()),
    "Session.grow": Entry(lambda s, n: s.session.grow({0: 1})),
    "Session.guarantee": Entry(lambda s, n: s.session.guarantee),
    "Session.held_tasks": Entry(lambda s, n: s.session.held_tasks()),
    "Session.http_address": Entry(lambda s, n: s.session.http_address),
    "Session.instance_id": Entry(lambda s, n: s.session.instance_id),
    "Session.look_at_group": Entry(lambda s, n: s.session.look_at_group()),
    "Session.misses_partitions": Entry(lambda s, n: s.session.misses_partitions),
    "Session.missing": Entry(lambda s, n: s.session.missing()),
    "Session.on_lost": Entry(lambda s, n: s.session.on_lost(None, [SRC]), drops=True),
    "Session.on_revoke": Entry(_revoked, drops=True),
    "Session.open_tasks": Entry(lambda s, n: s.session.open_tasks()),
    "Session.own_sources": Entry(lambda s, n: s.session.own_sources()),
    "Session.poll_once": Entry(lambda s, n: s.session.poll_once()),
    "Session.read": Entry(lambda s, n: list(s.session.read("kv", 0).store.all())),
    "Session.read_only": Entry(lambda s, n: s.session.read_only),
    "Session.reader": Entry(lambda s, n: _read(s.session.reader("mine"))),
    "Session.ready": Entry(lambda s, n: s.session.ready),
    "Session.reopen": Entry(lambda s, n: (s.session.reopen(0), s.session.wait_ready(5)), drops=True),
    "Session.restores": Entry(lambda s, n: s.session.restores()),
    "Session.snapshot": Entry(lambda s, n: s.session.snapshot(0), settings=_snapshots),
    "Session.state_path": Entry(lambda s, n: s.session.state_path),
    "Session.statistics": Entry(lambda s, n: s.session.statistics()),
    "Session.task": Entry(lambda s, n: s.session.task(0)),
    "Session.tasks": Entry(lambda s, n: s.session.tasks()),
    "Session.wait_ready": Entry(lambda s, n: s.session.wait_ready(5)),
    "Session.wait_until_ready": Entry(lambda s, n: s.session.wait_until_ready(5, lambda: False)),
}

TASK: dict[str, Entry] = {
    "Task.ahead": Entry(lambda s, n: s.task.ahead(offsets(n))),
    "Task.changelog_topics": Entry(lambda s, n: s.task.changelog_topics()),
    "Task.checked_offsets": Entry(lambda s, n: s.task.checked_offsets(offsets(n))),
    "Task.commit": Entry(lambda s, n: s.task.commit(offsets(n)), commits=True),
    "Task.commits_here": Entry(lambda s, n: s.task.commits_here),
    "Task.committing": Entry(lambda s, n: s.task.committing),
    "Task.inflight": Entry(lambda s, n: s.task.inflight),
    "Task.cut_sources": Entry(lambda s, n: s.task.cut_sources()),
    "Task.discard": Entry(lambda s, n: s.task.discard(), drops=True),
    "Task.epoch": Entry(lambda s, n: s.task.epoch),
    "Task.exclusive": Entry(_put_exclusively, row("kv")),
    "Task.is_exclusive": Entry(lambda s, n: s.task.is_exclusive),
    "Task.is_source": Entry(lambda s, n: s.task.is_source(SRC)),
    "Task.latest_ms": Entry(lambda s, n: s.task.latest_ms("out")),
    "Task.now_ms": Entry(lambda s, n: s.task.now_ms()),
    "Task.observe": Entry(lambda s, n: s.task.observe("src", 0, START_MS + n)),
    "Task.outputs": Entry(lambda s, n: dict(s.task.outputs)),
    "Task.send": Entry(lambda s, n: s.task.send("out", b"k", b"%d" % n, START_MS)),
    "Task.source_offsets": Entry(lambda s, n: s.task.source_offsets()),
    "Task.sources": Entry(lambda s, n: s.task.sources),
    "Task.store": Entry(lambda s, n: [s.task.store(name) for name in ("kv", "win", "ses", "ver")]),
    "Task.times_moved": Entry(lambda s, n: s.task.times_moved),
    "Task.uncommitted": Entry(lambda s, n: s.task.uncommitted),
}

STORES: dict[str, Entry] = {
    "KeyValueState.all": Entry(_iterated),
    "KeyValueState.approximate_num_entries": Entry(lambda s, n: s.kv.approximate_num_entries()),
    "KeyValueState.delete": Entry(lambda s, n: s.kv.delete(s.last), gone=gone("kv")),
    "KeyValueState.get": Entry(lambda s, n: s.kv.get("a")),
    "KeyValueState.get_with_timestamp": Entry(lambda s, n: s.kv.get_with_timestamp("a")),
    "KeyValueState.prefix_scan": Entry(lambda s, n: list(s.kv.prefix_scan("a"))),
    "KeyValueState.put": Entry(lambda s, n: s.kv.put(f"call{n}", f"v{n}", START_MS), row("kv")),
    "KeyValueState.put_all": Entry(
        lambda s, n: s.kv.put_all([(f"call{n}", f"v{n}"), (f"more{n}", f"v{n}")], START_MS),
        lambda n: {("kv", f"call{n}"): f"v{n}", ("kv", f"more{n}"): f"v{n}"},
    ),
    "KeyValueState.put_if_absent": Entry(lambda s, n: s.kv.put_if_absent(f"call{n}", f"v{n}", START_MS), row("kv")),
    "KeyValueState.range": Entry(lambda s, n: list(s.kv.range("a", "b", reverse=True))),
    "WindowState.all": Entry(lambda s, n: list(s.win.all())),
    "WindowState.fetch": Entry(lambda s, n: s.win.fetch("a", START_MS)),
    "WindowState.fetch_all": Entry(lambda s, n: list(s.win.fetch_all(0, FAR_MS))),
    "WindowState.fetch_key_range": Entry(lambda s, n: list(s.win.fetch_key_range("a", "b", 0, FAR_MS))),
    "WindowState.fetch_range": Entry(lambda s, n: list(s.win.fetch_range("a", 0, FAR_MS))),
    "WindowState.fetch_with_timestamp": Entry(lambda s, n: s.win.fetch_with_timestamp("a", START_MS)),
    "WindowState.put": Entry(
        lambda s, n: s.win.put(f"call{n}", f"v{n}", START_MS, START_MS), row("win", START_MS, START_MS + HOUR_MS)
    ),
    "SessionState.all": Entry(lambda s, n: list(s.ses.all())),
    "SessionState.fetch": Entry(lambda s, n: list(s.ses.fetch("a"))),
    "SessionState.fetch_key_range": Entry(lambda s, n: list(s.ses.fetch_key_range("a", "b"))),
    "SessionState.fetch_session": Entry(lambda s, n: s.ses.fetch_session("a", START_MS, START_MS + 1)),
    "SessionState.find_sessions": Entry(lambda s, n: list(s.ses.find_sessions("a", 0, FAR_MS))),
    "SessionState.find_sessions_key_range": Entry(
        lambda s, n: list(s.ses.find_sessions_key_range("a", "b", 0, FAR_MS))
    ),
    "SessionState.put": Entry(
        lambda s, n: s.ses.put(f"call{n}", START_MS, START_MS, f"v{n}", START_MS), row("ses", START_MS, START_MS)
    ),
    "SessionState.remove": Entry(
        lambda s, n: s.ses.remove(s.last, START_MS, START_MS + 1), gone=gone("ses", START_MS, START_MS + 1)
    ),
    "VersionedState.delete": Entry(lambda s, n: s.ver.delete(s.last, START_MS + 1), gone=gone("ver")),
    "VersionedState.get": Entry(lambda s, n: s.ver.get("a", START_MS)),
    "VersionedState.put": Entry(lambda s, n: s.ver.put(f"call{n}", f"v{n}", START_MS), row("ver")),
    "VersionedState.range": Entry(lambda s, n: list(s.ver.range("a", 0, FAR_MS))),
    "StoreIterator.__enter__": Entry(lambda s, n: _iterated(s, n, iter)),
    "StoreIterator.__exit__": Entry(lambda s, n: _iterated(s, n, next)),
    "StoreIterator.__iter__": Entry(lambda s, n: _iterated(s, n, iter)),
    "StoreIterator.__next__": Entry(lambda s, n: _iterated(s, n, next)),
    "StoreIterator.close": Entry(lambda s, n: s.kv.all().close()),
    "StoreIterator.seen_ms": Entry(lambda s, n: _iterated(s, n, lambda rows: rows.seen_ms)),
}


def refused(call: Callable[[], object]) -> None:
    """A call that this log refuses; its error is the documented one."""
    try:
        call()
    except sf.InvalidRequest:
        pass


def _read(reader: Any) -> list[Any]:
    with closing(reader):
        reader.assign({SRC: 0, OUT: 0})
        return list(reader.fetch(100))


def _reader(use: Callable[[Any], object]) -> Entry:
    """A call on an assigned reader of the log."""

    def call(stage: Stage, n: int) -> object:
        with closing(stage.log.reader()) as reader:
            reader.assign({SRC: 0, OUT: 0})
            return use(reader)

    return Entry(call)


def _part(make: Callable[[Any], Any], use: Callable[[Any, int], object]) -> Entry:
    """A call on a part of the log that is made for it."""

    def call(stage: Stage, n: int) -> object:
        with closing(make(stage.log)) as part:
            return use(part, n)

    return Entry(call)


def _batch(n: int) -> dict[TopicPartition, list[Outgoing]]:
    return {OUT: [Outgoing(b"k", b"%d" % n, START_MS)]}


def _other_log(stage: Stage, n: int) -> None:
    sf.open_log(stage.bench.address).close()


_writer = partial(_part, lambda log: log.writer("other-0-0", group="other", owner="me"))
_group = partial(_part, lambda log: log.group("other"))


def _admin(use: Callable[[Any, int], object]) -> Entry:
    return Entry(lambda stage, n: use(stage.log.admin, n))


def _topic(use: Callable[[Any, str], object]) -> Entry:
    """A call on a topic that is made for it."""

    def call(stage: Stage, n: int) -> object:
        admin, name = stage.log.admin, f"topic{n}"
        admin.create_topic(name, 1, TopicPolicy())
        return use(admin, name)

    return Entry(call)


LOG: dict[str, Entry] = {
    "open_log": Entry(_other_log),
    "Log.address": Entry(lambda s, n: s.log.address),
    "Log.admin": Entry(lambda s, n: s.log.admin),
    "Log.care": Entry(lambda s, n: s.log.care(START_MS)),
    "Log.close": Entry(_other_log),
    "Log.notes_of": Entry(lambda s, n: s.log.notes_of(["app", "other"])),
    "Log.group": _group(lambda group, n: None),
    "Log.hasten": Entry(lambda s, n: s.log.hasten()),
    "Log.least_timestamp_ms": Entry(lambda s, n: s.log.least_timestamp_ms),
    "Log.lock_holder": Entry(lambda s, n: s.log.lock_holder()),
    "Log.prepare": Entry(lambda s, n: s.log.prepare(["other-0-0"])),
    "Log.producer": _part(lambda log: log.producer(), lambda writer, n: None),
    "Log.reader": _reader(lambda reader: None),
    "Log.remote": Entry(lambda s, n: s.log.remote),
    "Log.trouble": Entry(lambda s, n: s.log.trouble()),
    "Log.writer": _writer(lambda writer, n: None),
    "LogAdmin.add_partitions": _topic(lambda admin, name: admin.add_partitions(name, 2)),
    "LogAdmin.change_topic": _topic(lambda admin, name: admin.change_topic(name, {"retention.ms": "1000000"})),
    "LogAdmin.consumers": _admin(lambda admin, n: admin.consumers("app")),
    "LogAdmin.create_topic": _topic(lambda admin, name: None),
    "LogAdmin.delete_group": _admin(lambda admin, n: admin.delete_group("other")),
    "LogAdmin.delete_records": _admin(lambda admin, n: admin.delete_records({OUT: 0})),
    "LogAdmin.delete_topic": _topic(lambda admin, name: admin.delete_topic(name)),
    "LogAdmin.describe_topic": _admin(lambda admin, n: admin.describe_topic("src")),
    "LogAdmin.first_offsets": _admin(lambda admin, n: admin.first_offsets({OUT: START_MS})),
    "LogAdmin.groups": _admin(lambda admin, n: admin.groups()),
    "LogAdmin.lacking": _admin(lambda admin, n: admin.lacking([])),
    "LogAdmin.survey": _admin(lambda admin, n: admin.survey(["src"])),
    "LogAdmin.topic_names": _admin(lambda admin, n: admin.topic_names()),
    "LogAdmin.topics": _admin(lambda admin, n: admin.topics()),
    "LogReader.add": _reader(lambda reader: reader.add({TopicPartition("app-kv-changelog", 0): 0})),
    "LogReader.assign": _reader(lambda reader: reader.assign({OUT: 0})),
    "LogReader.assignment": _reader(lambda reader: reader.assignment()),
    "LogReader.bounds": _reader(lambda reader: reader.bounds([SRC])),
    "LogReader.close": _reader(lambda reader: reader.close()),
    "LogReader.epoch_ends": _reader(lambda reader: reader.epoch_ends({})),
    "LogReader.epoch_tags": _reader(lambda reader: reader.epoch_tags({OUT: 0})),
    "LogReader.fetch": _reader(lambda reader: reader.fetch(10)),
    "LogReader.fetch_ready": _reader(lambda reader: reader.fetch_ready(10)),
    "LogReader.pause": _reader(lambda reader: reader.pause([OUT])),
    "LogReader.remove": _reader(lambda reader: reader.remove([OUT])),
    "LogReader.resume": _reader(lambda reader: reader.resume([OUT])),
    "LogReader.seek": _reader(lambda reader: reader.seek(OUT, 0)),
    "LogReader.written_ends": _reader(lambda reader: reader.written_ends([OUT])),
    "LogWriter.append": _writer(lambda writer, n: writer.append(_batch(n))),
    "LogWriter.claim": _writer(lambda writer, n: writer.claim),
    "LogWriter.close": _writer(lambda writer, n: writer.close()),
    "LogWriter.epoch": _writer(lambda writer, n: writer.epoch),
    "LogWriter.limits": _writer(lambda writer, n: writer.limits),
    "LogWriter.marks_transactions": _writer(lambda writer, n: writer.marks_transactions),
    "LogWriter.transact": _writer(
        lambda writer, n: writer.transact(_batch(n), GroupCommit("other", {SRC: Committed(n, "")}, None))
    ),
    "Group.close": _group(lambda group, n: group.close()),
    "Group.commit": _group(lambda group, n: group.commit({SRC: Committed(n, "")})),
    "Group.committed": _group(lambda group, n: group.committed()),
    "Group.heartbeat": _group(lambda group, n: (group.join("me"), group.heartbeat("me"))),
    "Group.join": _group(lambda group, n: group.join("me")),
    "Group.leave": _group(lambda group, n: (group.join("me"), group.leave("me"))),
    "Group.note": _group(lambda group, n: group.note({("attack", "one"): str(n)})),
    "Group.notes": _group(lambda group, n: group.notes()),
    "Group.owners": _group(lambda group, n: group.owners()),
    "Group.watch": _group(lambda group, n: None if (watch := group.watch()) is None else watch.close()),
    "Group.view": _group(lambda group, n: group.view()),
}

ENTRIES: dict[str, Entry] = {**SESSION, **TASK, **STORES, **LOG}
