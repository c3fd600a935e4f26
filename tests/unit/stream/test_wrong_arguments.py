"""Wrong arguments to the public names: one error of ours that names the mistake and its fix, and no state changed.

    WRONG      values of every sort that a caller passes by mistake
    a case     a call with one argument left open, and which of WRONG are right for it

Rules of this file: each case is tried with every value of WRONG that is not right for it. Wrong names of arguments, and
wrong types of every public call, are in test_every_option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from support.sessions import HOUR_MS, START_MS, four_stores

TEXT = sf.serde.string
WRONG: dict[str, Any] = {
    "none": None,
    "text": "x",
    "bytes": b"x",
    "negative": -1,
    "zero": 0,
    "large": 2**64,
    "bool": True,
    "float": 1.5,
    "list": [1],
    "function": lambda: 1,
    "dict": {"a": 1},
    "set": {1},
    "class": int,
    "store": sf.KeyValueStore("other", TEXT, TEXT),
}
Call = Callable[[Any], object]


class Echo(sf.Processor):
    def process(self, record: sf.Record) -> None: ...


def wrong_for(right: str) -> Iterator[tuple[str, Any]]:
    known = set(right.split())
    assert known <= WRONG.keys(), known - WRONG.keys()
    return ((name, value) for name, value in WRONG.items() if name not in known)


def refused_each(what: str, right: str, call: Call) -> list[str]:
    """The values of WRONG that were taken, or refused in another way than by an error of ours with a message."""
    found = []
    for name, value in wrong_for(right):
        try:
            got = call(value)
        except sf.InvalidRequest as error:
            if len(str(error)) < 20:
                found.append(f"{what} with {name}: says only {error}")
        except Exception as error:
            found.append(f"{what} with {name}: {type(error).__name__}: {error}")
        else:
            found.append(f"{what} with {name}: taken, gives {got!r:.60}")
            if isinstance(got, sf.Session):
                got.close()
    return found


# -- declarations -----------------------------------------------------------------------------------------------------


def stores_of(**given: Any) -> dict[str, tuple[str, Call]]:
    """Arguments of the stores."""
    return {
        "KeyValueStore(name)": ("text", lambda bad: sf.KeyValueStore(bad, TEXT, TEXT)),
        "KeyValueStore(key)": ("", lambda bad: sf.KeyValueStore("s", bad, TEXT)),
        "KeyValueStore(value)": ("", lambda bad: sf.KeyValueStore("s", TEXT, bad)),
        "KeyValueStore(timestamped)": ("bool", lambda bad: sf.KeyValueStore("s", TEXT, TEXT, timestamped=bad)),
        "KeyValueStore(engine)": ("", lambda bad: sf.KeyValueStore("s", TEXT, TEXT, engine=bad)),
        "KeyValueStore(caching)": ("bool", lambda bad: sf.KeyValueStore("s", TEXT, TEXT, caching=bad)),
        "KeyValueStore(logging)": ("bool", lambda bad: sf.KeyValueStore("s", TEXT, TEXT, logging=bad)),
        "KeyValueStore(changelog)": ("", lambda bad: sf.KeyValueStore("s", TEXT, TEXT, changelog=bad)),
        "KeyValueStore(source_topic)": ("none text", lambda bad: sf.KeyValueStore("s", TEXT, TEXT, source_topic=bad)),
        "WindowStore(window_size_ms)": (
            "",
            lambda bad: sf.WindowStore("s", TEXT, TEXT, window_size_ms=bad, retention_ms=9),
        ),
        "WindowStore(retention_ms)": (
            "",
            lambda bad: sf.WindowStore("s", TEXT, TEXT, window_size_ms=1, retention_ms=bad),
        ),
        "WindowStore(retain_duplicates)": (
            "bool",
            lambda bad: sf.WindowStore("s", TEXT, TEXT, window_size_ms=1, retention_ms=1, retain_duplicates=bad),
        ),
        "SessionStore(retention_ms)": ("", lambda bad: sf.SessionStore("s", TEXT, TEXT, retention_ms=bad)),
        "VersionedStore(history_retention_ms)": (
            "zero",
            lambda bad: sf.VersionedStore("s", TEXT, TEXT, history_retention_ms=bad),
        ),
        "TumblingWindows(size_ms)": ("", sf.TumblingWindows),
        "TumblingWindows(grace_ms)": ("zero", lambda bad: sf.TumblingWindows(1, bad)),
        "HoppingWindows(size_ms)": ("", lambda bad: sf.HoppingWindows(bad, 1)),
        "HoppingWindows(advance_ms)": ("none", lambda bad: sf.HoppingWindows(1, bad)),
        "SlidingWindows(difference_ms)": ("", sf.SlidingWindows),
        "SessionWindows(gap_ms)": ("", sf.SessionWindows),
        "UnlimitedWindows(start_ms)": ("zero", sf.UnlimitedWindows),
        "windows_for(timestamp)": ("zero", sf.TumblingWindows(1).windows_for),
        "SessionWindows.search_bounds": ("zero", sf.SessionWindows(1).search_bounds),
        "BoundedDisorder(max_ms)": ("zero large", sf.BoundedDisorder),
        "FixedDelay(attempts)": ("zero", lambda bad: sf.FixedDelay(bad, 1)),
        "FixedDelay(delay_ms)": ("zero", lambda bad: sf.FixedDelay(1, bad)),
        "ExponentialDelay(initial_ms)": ("", lambda bad: sf.ExponentialDelay(bad)),
        "connect(run_dir)": ("", lambda bad: sf.connect(bad if bad != "x" else "", stores=[])),
        "connect(stores)": ("", lambda bad: sf.connect("./run", stores=bad)),
        "connect(partitions)": ("none large", lambda bad: sf.connect("./run", stores=[], partitions=bad)),
        "connect(token)": ("none text", lambda bad: sf.connect("./run", stores=[], token=bad)),
        "connect(ca)": ("none text", lambda bad: sf.connect("./run", stores=[], ca=bad)),
        "open_log(address)": ("", sf.open_log),
    }


@pytest.mark.parametrize("name", stores_of())
def test_declarations(name: str) -> None:
    right, call = stores_of()[name]
    assert refused_each(name, right, call) == []


# -- a session, and its tasks -----------------------------------------------------------------------------------------


def session_of(tmp_path: Path, **given: Any) -> sf.Session:
    arguments: dict[str, Any] = {"app": "app", "log": f"sqlite:///{tmp_path}/log", "state_dir": tmp_path / "state"}
    arguments |= {"stores": four_stores(), "background": False} | given
    return sf.Session(arguments.pop("app"), **arguments)


SETTINGS = {
    "app": "text",
    "log": "",
    "state_dir": "text",
    "stores": "",
    "listeners": "",
    "groups": "none",
    "partitions": "none",
    "guarantee": "",
    "placement": "",
    "gate": "",
    "standby_replicas": "zero large",
    "memory_bytes": "large",
    "cache_max_bytes": "zero large",
    "value_max_bytes": "large",
    "lease_ms": "large",
    "max_stall_ms": "large",
    "restore_workers": "none zero large",
    "restore_memory_bytes": "large",
    "bulk_restore_records": "large",
    "discovery_interval_ms": "none large",
    "take_over": "bool",
    "accept_empty_log": "bool",
    "accept_missing_history": "bool",
    "accept_unreadable_rows": "bool",
    "accept_foreign_offsets": "bool",
    "background": "bool",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused_each(f"Session({name})", SETTINGS[name], lambda bad: session_of(tmp_path, **{name: bad})) == []
    assert not list(tmp_path.iterdir()), "a session that cannot be has left something behind"


APP_SETTINGS = {
    "log": "none text",
    "state_dir": "none text",
    "stores": "",
    "stream_time": "",
    "commit_interval_ms": "none large",
    "linger_ms": "zero large",
    "batch_bytes": "large",
    "restart": "none",
    "watermark_interval_ms": "zero large",
    "default_key_serde": "",
    "default_value_serde": "",
    "listeners": "",
    "guarantee": "",
    "lease_ms": "large",
    "discovery_interval_ms": "none large",
}


@pytest.mark.parametrize("name", APP_SETTINGS)
def test_settings_of_an_application(name: str) -> None:
    assert refused_each(f"App({name})", APP_SETTINGS[name], lambda bad: sf.App("app", **{name: bad})) == []


@pytest.mark.parametrize("make", [session_of, lambda _, **given: sf.App("app", **given)], ids=["Session", "App"])
def test_setting_of_an_unknown_name_is_told_with_the_nearest(make: Any, tmp_path: Path) -> None:
    with pytest.raises(sf.BadConfig, match=r"no setting 'partition'.*partitions"):
        make(tmp_path, partition=1)
    with pytest.raises(sf.BadConfig, match=r"no setting 'garantee'.*guarantee"):
        make(tmp_path, garantee="exactly_once")
    with pytest.raises(sf.BadConfig, match="no setting 'zzz'"):
        make(tmp_path, zzz=1)


def test_setting_of_an_unknown_name_of_a_replica(tmp_path: Path) -> None:
    with pytest.raises(sf.BadConfig, match=r"no setting 'memory_byte'.*memory_bytes"):
        sf.Replica("app", log=f"sqlite:///{tmp_path}/log", state_dir=tmp_path, stores=[], memory_byte=1)  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sf.Session]:
    owner = session_of(tmp_path_factory.mktemp("running"), partitions=2)
    owner.assign(active=[0])
    owner.wait_ready(30)
    yield owner
    owner.close()


def callbacks(owner: sf.Session) -> dict[str, tuple[str, Call]]:
    """The calls by an external consumer."""
    return {
        "on_assign(partitions)": ("", lambda bad: owner.on_assign(None, bad)),
        "on_assign(a partition)": ("", lambda bad: owner.on_assign(None, [bad])),
        "on_revoke(partitions)": ("", lambda bad: owner.on_revoke(None, bad)),
        "on_revoke(a partition)": ("", lambda bad: owner.on_revoke(None, [bad])),
    }


def calls(owner: sf.Session) -> dict[str, tuple[str, Call]]:
    task: Any = owner.task(0)
    kv, win, ses, ver = (task.store(name) for name in ("kv", "win", "ses", "ver"))
    at = ("t", 0)
    return {
        "assign(active)": ("list set", lambda bad: owner.assign(active=bad)),
        "assign(one)": ("zero", lambda bad: owner.assign(active=[bad])),
        "assign(standby)": ("list set", lambda bad: owner.assign(active=[0], standby=bad)),
        "task(partition)": ("zero", owner.task),
        "reopen(partition)": ("zero", owner.reopen),
        "read(store)": ("", lambda bad: owner.read(bad, 0)),
        "read(partition)": ("zero", lambda bad: owner.read("kv", bad)),
        **callbacks(owner),
        "wait_ready(timeout_s)": ("none zero negative float large", owner.wait_ready),
        "session.commit(offsets)": ("", owner.commit),
        "task.commit(offsets)": ("none", task.commit),
        "task.commit(a source)": ("", lambda bad: task.commit({bad if hash_of(bad) else "src": 3})),
        "task.commit(a topic)": ("text", lambda bad: task.commit({(bad if hash_of(bad) else "", 0): 3})),
        "task.commit(a partition)": ("zero", lambda bad: task.commit({("t", bad if hash_of(bad) else "x"): 3})),
        "task.commit(an offset)": ("zero", lambda bad: task.commit({at: bad})),
        "task.store(name)": ("", task.store),
        "send(topic)": ("text", lambda bad: task.send(bad, b"k", b"v", 1)),
        "send(key)": ("none bytes", lambda bad: task.send("t", bad, b"v", 1)),
        "send(value)": ("none bytes", lambda bad: task.send("t", b"k", bad, 1)),
        "send(timestamp)": ("none zero", lambda bad: task.send("t", b"k", b"v", bad)),
        "send(partition)": ("none zero", lambda bad: task.send("t", b"k", b"v", 1, partition=bad)),
        "send(partitions)": ("", lambda bad: task.send("t", b"k", b"v", 1, partitions=bad)),
        "send(headers)": ("", lambda bad: task.send("t", b"k", b"v", 1, headers=bad)),
        "kv.get(key)": ("text", kv.get),
        "kv.put(key)": ("text", lambda bad: kv.put(bad, "v", 1)),
        "kv.put(value)": ("none text", lambda bad: kv.put("k", bad, 1)),
        "kv.put(timestamp)": ("none zero", lambda bad: kv.put("k", "v", bad)),
        "kv.put_if_absent(key)": ("text", lambda bad: kv.put_if_absent(bad, "v")),
        "kv.put_if_absent(value)": ("none text", lambda bad: kv.put_if_absent("new", bad)),
        "kv.put_all(items)": ("", kv.put_all),
        "kv.put_all(an item)": ("", lambda bad: kv.put_all([("a", "1"), bad])),
        "kv.put_all(a pair of three)": ("text", lambda bad: kv.put_all([("a", "1", bad)]) if bad != "x" else None),
        "kv.put_all(timestamp)": ("none zero", lambda bad: kv.put_all([("a", "1")], bad)),
        "kv.delete(key)": ("text", kv.delete),
        "kv.range(from)": ("none text", kv.range),
        "kv.range(to)": ("none text", lambda bad: kv.range("a", bad)),
        "kv.prefix_scan(prefix)": ("text", kv.prefix_scan),
        "win.put(start)": ("zero", lambda bad: win.put("k", "v", bad, 1)),
        "win.put(timestamp)": ("none zero", lambda bad: win.put("k", "v", START_MS, bad)),
        "win.fetch(start)": ("zero", lambda bad: win.fetch("k", bad)),
        "win.fetch_range(from)": ("zero negative", lambda bad: win.fetch_range("k", bad, 1)),
        "win.fetch_range(to)": ("zero negative", lambda bad: win.fetch_range("k", 1, bad)),
        "win.fetch_key_range(from)": ("none text", lambda bad: win.fetch_key_range(bad, None, 0, 1)),
        "win.fetch_key_range(time)": ("zero negative", lambda bad: win.fetch_key_range(None, None, bad, 1)),
        "win.fetch_key_range(to)": ("zero negative", lambda bad: win.fetch_key_range(None, None, 0, bad)),
        "win.fetch_all(from)": ("zero negative", lambda bad: win.fetch_all(bad, 1)),
        "win.fetch_all(to)": ("zero negative", lambda bad: win.fetch_all(0, bad)),
        "ses.put(start)": ("zero", lambda bad: ses.put("k", bad, HOUR_MS, "v", 1)),
        "ses.put(end)": ("zero", lambda bad: ses.put("k", 0, bad, "v", 1)),
        "ses.remove(start)": ("zero", lambda bad: ses.remove("k", bad, HOUR_MS)),
        "ses.fetch_session(start)": ("zero", lambda bad: ses.fetch_session("k", bad, HOUR_MS)),
        "ses.fetch_session(end)": ("zero", lambda bad: ses.fetch_session("k", 0, bad)),
        "ses.find_sessions(end)": ("zero negative", lambda bad: ses.find_sessions("k", bad, 1)),
        "ses.find_sessions(start)": ("zero negative", lambda bad: ses.find_sessions("k", 1, bad)),
        "ses.find_sessions_key_range(key)": ("none text", lambda bad: ses.find_sessions_key_range(bad, None, 0, 1)),
        "ses.find_sessions_key_range(end)": (
            "zero negative",
            lambda bad: ses.find_sessions_key_range(None, None, bad, 1),
        ),
        "ver.put(timestamp)": ("none zero", lambda bad: ver.put("k", "v", bad)),
        "ver.get(as_of)": ("none zero", lambda bad: ver.get("k", bad)),
        "ver.range(from)": ("zero negative", lambda bad: ver.range("k", bad, 1)),
        "ver.range(to)": ("zero negative", lambda bad: ver.range("k", 0, bad)),
        "ver.delete(timestamp)": ("none zero", lambda bad: ver.delete("k", bad)),
    }


def hash_of(value: Any) -> bool:
    """Whether it can be the key of a dictionary."""
    return not isinstance(value, list | dict | set | sf.KeyValueStore)


class _Names:
    """The names of `calls`, which needs a session."""

    assign: Any = staticmethod(lambda **_: None)

    def __getattr__(self, _name: str) -> Any:
        return _Names()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Names()


@pytest.mark.parametrize("name", calls(_Names()))  # type: ignore[arg-type]
def test_calls_of_a_session_its_tasks_and_stores(name: str, running: sf.Session) -> None:
    task = running.task(0)
    before = contents(task)
    right, call = calls(running)[name]
    assert refused_each(name, right, call) == []
    assert running.task(0) is task, "the task was lost"
    assert contents(task) == before


def test_wait_for_no_number_of_seconds_is_refused(running: sf.Session) -> None:
    with pytest.raises(sf.InvalidRequest, match="timeout_s must be seconds"):
        running.wait_ready(float("nan"))


def test_partition_that_is_none_is_named_as_it_was_given(running: sf.Session) -> None:
    with pytest.raises(sf.InvalidRequest, match="partition must be a whole number, not '0'"):
        running.read("kv", "0")  # type: ignore[arg-type]


def contents(task: Any) -> list[Any]:
    found = [list(task.store(name).all()) for name in ("kv", "win", "ses")]
    return [*found, task.store("ver").get("k"), task.store("win").rows.observed_ms, task.outputs]


# -- an application ---------------------------------------------------------------------------------------------------


def steps(app: sf.App) -> dict[str, tuple[str, Call]]:
    stream, table = app.stream("in"), app.table("rows", "kv")
    grouped = stream.group_by_key()
    return {
        "source(topic)": ("text", lambda bad: app.source(bad)(Echo)),
        "source(key)": ("none", lambda bad: app.source("s", key=bad)(Echo)),
        "source(timestamp)": ("none function class", lambda bad: app.source("s", timestamp=bad)(Echo)),
        "source(on_error)": ("", lambda bad: app.source("s", on_error=bad)(Echo)),
        "source(processor)": ("", lambda bad: app.source("s")(bad)),
        "sink(topic)": ("text", lambda bad: app.sink(bad)(Echo)),
        "stream(topic)": ("text", app.stream),
        "stream(value)": ("none", lambda bad: app.stream("s", value=bad)),
        "table(topic)": ("text", lambda bad: app.table(bad)),
        "table(store)": ("none", lambda bad: app.table("s2", bad)),
        "filter": ("function class", stream.filter),
        "filter_not": ("function class", stream.filter_not),
        "map": ("function class", stream.map),
        "map(key)": ("none", lambda bad: stream.map(lambda key, value: (key, value), key=bad)),
        "map_values": ("function class", stream.map_values),
        "flat_map": ("function class", stream.flat_map),
        "select_key": ("function class", stream.select_key),
        "peek": ("function class", stream.peek),
        "peek(name)": ("none text", lambda bad: stream.peek(print, name=bad)),
        "peek(on_error)": ("none", lambda bad: stream.peek(print, on_error=bad)),
        "merge": ("", stream.merge),
        "process": ("", stream.process),
        "process(stores)": ("", lambda bad: stream.process(Echo, bad)),
        "join": ("", lambda bad: stream.join(bad, lambda one, other: one)),
        "join(joiner)": ("function class", lambda bad: stream.join(table, bad)),
        "left_join(joiner)": ("function class", lambda bad: stream.left_join(table, bad)),
        "through to": ("text", stream.to),
        "group_by": ("function class", stream.group_by),
        "window": ("", grouped.window),
        "count(store)": ("", grouped.count),
        "aggregate(init)": (
            "function class",
            lambda bad: grouped.aggregate(bad, lambda key, value, total: total, "kv"),
        ),
        "aggregate(add)": ("function class", lambda bad: grouped.aggregate(list, bad, "kv")),
        "reduce": ("function class", lambda bad: grouped.reduce(bad, "kv")),
        "table.map_values": ("function class", table.map_values),
        "Driver(app)": ("", sf.testing.Driver),
    }


class _AnyApp(_Names):
    pass


@pytest.mark.parametrize("name", steps(_AnyApp()))  # type: ignore[arg-type]
def test_steps_of_an_application(name: str) -> None:
    """Each value in an application of its own: a refused one must not stay declared either."""
    right = steps(sf.App("app", stores=four_stores()))[name][0]
    found = []
    for told, bad in wrong_for(right):
        app = sf.App("app", stores=four_stores())
        call = steps(app)[name][1]
        before = set(app.builder.nodes)
        try:
            call(bad)
        except sf.InvalidRequest:
            if set(app.builder.nodes) != before:
                found.append(f"{name} with {told}: refused, and declared {set(app.builder.nodes) - before}")
        except Exception as error:
            found.append(f"{name} with {told}: {type(error).__name__}: {error}")
        else:
            found.append(f"{name} with {told}: taken")
    assert found == []


class Needy(Echo):
    def __init__(self, needed: int) -> None: ...


@pytest.mark.parametrize(
    "declare",
    [
        lambda app: app.stream("in").process(Needy),
        lambda app: app.source("in")(Needy),
        lambda app: app.sink("out")(Needy),
    ],
    ids=["process", "source", "sink"],
)
def test_processor_that_cannot_be_made_is_refused_where_it_is_given(declare: Callable[[sf.App], object]) -> None:
    app = sf.App("app", stores=four_stores())
    with pytest.raises(sf.InvalidRequest, match=r"Needy is made without arguments.*needed"):
        declare(app)


def test_driver_calls(tmp_path: Path) -> None:
    app = sf.App("app", stores=four_stores())
    app.stream("in", key=TEXT, value=TEXT).to("out")
    with sf.testing.Driver(app) as driver:
        cases: dict[str, tuple[str, Call]] = {
            "pipe(topic)": ("", lambda bad: driver.pipe(bad, "k", "v", 1)),
            "pipe(timestamp)": ("none zero negative", lambda bad: driver.pipe("in", "k", "v", bad)),
            "pipe(key)": ("none text bytes", lambda bad: driver.pipe("in", bad, "v", 1)),
            "pipe(partition)": ("none zero", lambda bad: driver.pipe("in", "k", "v", 1, partition=bad)),
            "pipe(headers)": ("", lambda bad: driver.pipe("in", "k", "v", 1, headers=bad)),
            "advance_wall_clock": ("zero", driver.advance_wall_clock),
            "read": ("", driver.read),
            "store": ("", driver.store),
        }
        assert [line for name, (right, call) in cases.items() for line in refused_each(name, right, call)] == []
