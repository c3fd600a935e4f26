"""The command line: live and offline reads, the log, exit codes, output for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.cli.state.tasks import show_status
from standfast.ops.command.command_line import main
from standfast.ops.http.server import OpsServer
from standfast.ops.shared.error_codes import ERRORS, exit_code
from standfast.ops.shared.extras import require
from standfast.ops.shared.guard import guard
from standfast.ops.shared.output import Output
from standfast.ops.shared.run_file import RUN_FILE
from standfast.replication.log import TopicPolicy
from standfast.store import errors
from standfast.store.clock import ManualClock
from support.groups import costly
from support.serve import wait_for
from support.sessions import Bench

HOUR_MS = 3_600_000
Run = Callable[..., tuple[int, str, str]]


def stores() -> list[Any]:
    text = sf.serde.string
    return [
        sf.KeyValueStore("kv", text, sf.serde.json),
        sf.KeyValueStore("own", sf.serde.pair("mine", str.encode, bytes.decode), text),
        sf.KeyValueStore("ram", text, text, engine="memory"),
        sf.WindowStore("win", text, text, window_size_ms=HOUR_MS, retention_ms=24 * HOUR_MS),
        sf.SessionStore("ses", text, text, retention_ms=24 * HOUR_MS),
        sf.VersionedStore("ver", text, text, history_retention_ms=24 * HOUR_MS),
    ]


def filled(bench: Bench) -> sf.Session:
    """A session with rows in every store."""
    session = bench.active("state", partitions=(0, 1), stores=stores())
    task = session.task(0)
    for number in range(3):
        task.store("kv").put(f"k{number}", {"n": number}, timestamp=number)
    task.store("kv").put("gone", 1, timestamp=3)
    task.store("own").put("a", "text")
    task.store("ram").put("a", "text")
    task.store("win").put("k", "w1", HOUR_MS)
    task.store("win").put("k", "w2", 2 * HOUR_MS)
    task.store("ses").put("k", 10, 20, "s1")
    task.store("ver").put("k", "v1", 100)
    task.store("ver").put("k", "v2", 200)
    task.commit({("in", 0): 4})
    task.store("kv").delete("gone")
    task.commit()
    session.task(1).store("kv").put("k9", {"n": 9}, timestamp=9)
    session.task(1).commit()
    return session


@pytest.fixture
def session(bench: Bench) -> sf.Session:
    """A session of one test alone."""
    return filled(bench)


@pytest.fixture(scope="module")
@costly()
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Flags that find a running instance."""
    bench = Bench(tmp_path_factory.mktemp("live"), ManualClock(1_356_998_400_000))
    with OpsServer(filled(bench)):
        yield ["--state-dir", str(bench.root / "state")]
    bench.close()


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log and the state of an application that has ended."""
    bench = Bench(tmp_path_factory.mktemp("files"), ManualClock(1_356_998_400_000))
    filled(bench).close()
    bench.close()
    return bench.root


@pytest.fixture
def files(at_rest: Path) -> list[str]:
    """Flags that name files without a running instance."""
    return ["--offline", str(at_rest / "state")]


@pytest.fixture
def log(at_rest: Path) -> list[str]:
    """Flags that name the log beside those files."""
    return ["--log", f"sqlite:///{at_rest}/log"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def document(result: tuple[int, str, str]) -> dict[str, Any]:
    (line,) = result[1].splitlines()
    return json.loads(line)


def values(result: tuple[int, str, str]) -> list[Any]:
    assert result[0] == 0, result
    return [row["value"] for row in document(result)["rows"]]


# -- of a running instance --------------------------------------------------------------------------------------------


def test_status_of_a_running_instance(run: Run, live: list[str]) -> None:
    found = document(run("status", *live, "--json"))
    assert (found["schema"], found["app"], found["live"], found["ready"]) == ("standfast.status/1", "app", True, True)
    code, text, _ = run("status", *live)
    assert code == 0
    assert "app on instance" in text and "READY" in text and "in/0@4" in text and "commits: 3 committed" in text


def test_status_says_a_reason_once(capsys: pytest.CaptureFixture[str], live: list[str], run: Run) -> None:
    status = document(run("status", *live, "--json"))
    away = "the log: no answer within 60 s"
    status |= {"ready": False, "missing": [f"task 0_{task}: no answer within 60 s" for task in range(2)] + ["other"]}
    show_status(status | {"log_error": "no answer within 60 s", "log_read_ms_ago": 2_162_008}, Output())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" NOT READY")
    assert lines[1:4] == [
        "- tasks 0_0, 0_1: no answer within 60 s",
        "- other",
        "- ends and lags are 36 min old: the log could not be read since",
    ]
    show_status(status | {"ready": True, "missing": [], "log_error": "no answer within 60 s"}, Output())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" DEGRADED") and lines[1] == f"- {away}"


def test_tasks_and_lag_of_a_running_instance(run: Run, live: list[str]) -> None:
    tasks = document(run("tasks", *live, "--json"))
    assert tasks["schema"] == "standfast.tasks/1"
    assert [task["task"] for task in tasks["tasks"]] == ["0_0", "0_1"]
    lag = document(run("lag", *live, "--json"))
    assert lag["schema"] == "standfast.lag/1"
    assert {(one["store"], one["partition"]): one["lag"] for one in lag["lags"]}["kv", 0] == 0
    assert "keyvalue" in run("tasks", "--wide", *live)[1]
    assert "keyvalue" not in run("tasks", *live)[1]
    assert "position" in run("lag", *live)[1]


def test_health_is_an_exit_code(run: Run, bench: Bench) -> None:
    session = bench.active("state")
    where = ["--state-dir", str(bench.root / "state")]
    with OpsServer(session):
        assert run("health", *where)[:2] == (0, "live\n")
        assert run("health", "--ready", *where)[:2] == (0, "ready\n")
        session.close()
        code, text, _ = run("health", "--ready", *where)
        assert (code, text.splitlines()[0]) == (1, "not ready")
        assert document(run("health", "--json", *where))["ok"] is False


def test_rows_of_a_running_instance(run: Run, live: list[str]) -> None:
    assert values(run("get", "kv", "k1", *live, "--json")) == [{"n": 1}]
    assert values(run("scan", "kv", *live, "--json")) == [{"n": number} for number in (0, 1, 2, 9)]
    assert values(run("scan", "kv", "--from", "k1", "--to", "k2", *live, "--json")) == [{"n": 1}, {"n": 2}]
    assert values(run("fetch", "win", "k", "--start", str(2 * HOUR_MS), *live, "--json")) == ["w2"]
    assert values(run("fetch", "ver", "k", *live, "--json")) == ["v1", "v2"]
    assert values(run("get", "ver", "k", "--as-of", "150", *live, "--json")) == ["v1"]
    assert values(run("get", "ram", "a", *live, "--json")) == ["text"]


def test_refused_read_names_the_flags_that_read_it(run: Run, bench: Bench) -> None:
    first, second = bench.active("state"), bench.session("other")
    first.task(0).store("kv").put("k", "v")
    first.task(0).commit()
    second.assign(standby=[0])
    bench.settle(first, second)
    where = ["--state-dir", str(bench.root / "other")]
    with OpsServer(second):
        code, _, told = run("get", "kv", "k", *where)
        assert (code, "--stale" in told, "--partition P" in told) == (1, True, True), told
        code, _, told = run("scan", "kv", "--partition", "0", *where)
        assert (code, "--stale" in told, "--partition P" in told) == (1, True, False), told
        code, _, told = run("scan", "kv", "--partition", "1", "--stale", *where)
        assert (code, "--stale" in told, "--partition with a partition held here" in told) == (1, False, True), told
        assert values(run("scan", "kv", "--partition", "0", "--stale", *where, "--json")) == ["v"]


def test_read_of_a_restoring_store_names_stale(run: Run, bench: Bench) -> None:
    first = bench.active("a")
    first.task(0).store("kv").put("k", "v")
    first.task(0).commit()
    first.close()
    session = bench.session("state")
    session.assign(active=[0])
    with OpsServer(session):
        code, _, told = run("get", "kv", "k", "--state-dir", str(bench.root / "state"))
    assert (code, "--stale" in told) == (1, True), told


def test_rows_for_people_are_plain_columns_where_no_terminal_is(run: Run, live: list[str]) -> None:
    code, text, _ = run("scan", "kv", "--limit", "2", "--ms", *live)
    assert code == 0
    assert [line.split() for line in text.splitlines()] == [
        ["partition", "key", "timestamp", "value"],
        ["0", "k0", "0", '{"n":', "0}"],
        ["0", "k1", "1", '{"n":', "1}"],
    ]


def test_times_are_typed_and_shown_as_iso(run: Run, live: list[str]) -> None:
    code, text, _ = run("fetch", "win", "k", "--start", "1970-01-01T02:00:00Z", "--utc", *live)
    assert code == 0
    assert [line.split() for line in text.splitlines()] == [
        ["partition", "key", "window_start", "window_end", "value"],
        ["0", "k", "1970-01-01T02:00:00Z", "1970-01-01T03:00:00Z", "w2"],
    ]
    code, _, told = run("get", "ver", "k", "--as-of", "noon", *live)
    assert code == 2 and "'noon' is not a time" in told
    assert run("scan", "kv", "--utc", "--ms", *live)[0] == 2
    row = document(run("fetch", "win", "k", "--utc", "--json", *live))["rows"][0]
    assert row["window_start"] == HOUR_MS, "programs get milliseconds"


def test_cut_answer_says_so(run: Run, live: list[str]) -> None:
    assert "there are more rows" in run("scan", "kv", "--limit", "2", *live)[2]
    assert document(run("scan", "kv", "--limit", "2", "--json", *live))["truncated"] is True


def test_absent_row_is_a_negative_answer(run: Run, live: list[str]) -> None:
    code, text, noted = run("get", "kv", "nobody", *live)
    assert (code, text) == (1, "") and "no row" in noted
    assert document(run("get", "kv", "nobody", "--json", *live))["error"] == "NotFound"


def test_application_may_be_named_or_left_out(run: Run, live: list[str]) -> None:
    assert run("health", *live, "--app", "app")[0] == 0
    code, _, told = run("health", *live, "--app", "other")
    assert code == 2 and "app" in told


def test_instance_is_found_by_settings_and_by_address(
    run: Run, live: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "standfast.toml"
    settings.write_text(f'[app]\nname = "app"\nstate_dir = "{live[1]}"\n', encoding="utf-8")
    assert run("health", "--config", str(settings))[0] == 0
    monkeypatch.setenv("STANDFAST_APP__STATE_DIR", live[1])
    assert run("health")[0] == 0
    port = json.loads((Path(live[1]) / "app" / RUN_FILE).read_text())["port"]
    assert run("health", "--url", f"http://127.0.0.1:{port}")[0] == 0


# -- of files ---------------------------------------------------------------------------------------------------------


def test_rows_of_files_equal_those_of_the_instance(run: Run, files: list[str]) -> None:
    assert values(run("get", "kv", "k1", *files, "--json")) == [{"n": 1}]
    assert values(run("scan", "kv", "--prefix", "k", *files, "--json")) == [{"n": number} for number in (0, 1, 2, 9)]
    assert values(run("fetch", "win", "k", *files, "--json")) == ["w1", "w2"]
    assert values(run("fetch", "ses", "k", *files, "--json")) == ["s1"]
    assert values(run("get", "ver", "k", "--as-of", "150", *files, "--json")) == ["v1"]


@pytest.mark.parametrize("level", ["", "app", "app/0_1"])
def test_directory_of_any_level_names_the_files(run: Run, at_rest: Path, level: str) -> None:
    found = values(run("scan", "kv", "--offline", str(at_rest / "state" / level), "--json"))
    assert found == ([{"n": 9}] if level.endswith("0_1") else [{"n": number} for number in (0, 1, 2, 9)])


def test_status_and_tasks_of_files(run: Run, files: list[str]) -> None:
    found = document(run("status", *files, "--json"))
    assert found["live"] is False
    assert found["tasks"][0]["sources"] == {"in/0": 4}
    kv = next(store for store in found["tasks"][0]["stores"] if store["store"] == "kv")
    assert (kv["kind"], kv["position"]) == ("keyvalue", 5)
    assert "in/0@4" in run("status", *files)[1]
    assert "versioned" in run("tasks", "--wide", *files)[1]


def test_reading_files_changes_nothing_and_works_beside_the_owner(run: Run, session: sf.Session, bench: Bench) -> None:
    task = session.state_path / "0_0"
    before = sorted(path.name for path in task.iterdir())
    code, _, noted = run("scan", "kv", "--offline", str(task))
    assert code == 0
    assert "its newest rows may be missing" in noted
    assert sorted(path.name for path in task.iterdir()) == before
    session.task(0).store("kv").put("later", 1)
    session.task(0).commit()


def test_serde_of_the_application_is_shown_as_hex(run: Run, files: list[str]) -> None:
    code, text, noted = run("scan", "own", *files, "--json")
    assert code == 0 and "mine" in noted
    assert json.loads(text)["rows"][0]["key"] == "0x" + b"a".hex()
    assert run("get", "own", "a", *files)[0] == 2
    assert values(run("get", "own", "61", "--key-format", "hex", *files, "--json")) == ["text"]


def test_store_in_memory_leaves_no_files(run: Run, files: list[str]) -> None:
    code, _, told = run("scan", "ram", *files)
    assert code == 2 and "kept in memory" in told


@pytest.mark.parametrize("arguments", [["scan", "nope"], ["scan", "kv", "--partition", "7"], ["get", "win", "k"]])
def test_what_files_do_not_hold_is_a_usage_error(run: Run, files: list[str], arguments: list[str]) -> None:
    code, text, told = run(*arguments, *files, "--json")
    assert code == 2 and told.startswith("error: ")
    assert json.loads(text)["schema"] == "standfast.error/1"


def test_damaged_files_are_exit_code_65(run: Run, session: sf.Session, bench: Bench) -> None:
    session.close()
    (table,) = [path for path in (bench.root / "state/app/0_1").glob("*.sst") if b"k9" in path.read_bytes()]
    content = bytearray(table.read_bytes())
    content[content.index(b"k9")] ^= 0xFF
    table.write_bytes(content)
    code, text, told = run("scan", "kv", "--offline", str(bench.root / "state/app/0_1"), "--json")
    assert code == 65 and "error: " in told
    assert json.loads(text)["error"] == "Corruption"


# -- of the log -------------------------------------------------------------------------------------------------------


def test_head_and_tail_of_a_changelog(run: Run, log: list[str]) -> None:
    where = [*log, "--app", "app", "--store", "kv"]
    head = document(run("changelog", "head", *where, "--limit", "2", "--json"))
    assert (head["schema"], head["topic"]) == ("standfast.records/1", "app-kv-changelog")
    assert [(one["partition"], one["offset"], one["key"]) for one in head["records"]] == [
        (0, 0, "k0"),
        (0, 1, "k1"),
        (1, 0, "k9"),
    ]
    tail = document(run("changelog", "tail", *where, "--limit", "2", "--partition", "0", "--json"))
    assert [(one["offset"], one["key"], one["value"]) for one in tail["records"]] == [
        (3, "gone", "1"),
        (4, "gone", None),
    ]
    text = run("changelog", "tail", *log, "app-kv-changelog", "--limit", "1")[1]
    assert "(tombstone)" in text
    hexed = document(run("changelog", "head", *where, "--limit", "1", "--key-format", "hex", "--json"))
    assert hexed["records"][0]["key"] == "0x" + b"k0".hex()


def test_tail_looks_past_the_gaps_that_compaction_leaves(run: Run, bench: Bench) -> None:
    session = bench.active("state", partitions=(0,))
    for number in range(20):
        session.task(0).store("kv").put("a" if number else "first", str(number))
        session.task(0).commit()
    bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms() + 1)
    found = document(run("changelog", "tail", "--log", bench.address, "app-kv-changelog", "--limit", "2", "--json"))
    assert [one["key"] for one in found["records"]] == ["first", "a"]


def test_stats_count_records_keys_and_tombstones(run: Run, log: list[str]) -> None:
    found = document(run("changelog", "stats", *log, "app-kv-changelog", "--json"))
    assert (found["schema"], found["cleanup"]) == ("standfast.changelog-stats/1", ["compact"])
    first = found["counted"][0]
    assert (first["records"], first["tombstones"], first["distinct_keys"], first["begin"], first["end"]) == (
        5,
        1,
        4,
        0,
        5,
    )
    assert first["timestamp_min_ms"] == 0
    assert "compact" in run("changelog", "stats", *log, "app-kv-changelog")[1]


@pytest.mark.parametrize(("cleanup", "said"), [({"compact"}, "compact"), ({"delete"}, "delete, kept 5.0 s")])
def test_retention_is_told_of_topics_only_that_delete_by_age(
    run: Run, bench: Bench, cleanup: set[str], said: str
) -> None:
    bench.log.admin.create_topic("aged", 1, TopicPolicy(frozenset(cleanup), retention_ms=5_000))
    lines = run("changelog", "stats", "--log", bench.address, "aged")[1].splitlines()
    assert lines[0] == f"aged: {said}"
    (listed,) = [line for line in run("topics", "--log", bench.address)[1].splitlines() if line.startswith("aged")]
    assert listed.endswith(f" {said}")


def test_topics_are_listed_with_their_policy(run: Run, log: list[str]) -> None:
    found = document(run("topics", *log, "--json"))
    topics = {topic["topic"]: topic for topic in found["topics"]}
    assert found["schema"] == "standfast.topics/1"
    assert (topics["app-kv-changelog"]["partitions"], topics["app-kv-changelog"]["span"]) == (2, 6)
    assert "compact,delete" in run("topics", *log)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["head", "app-kw-changelog"], "did you mean 'app-kv-changelog'?"),
        (["head", "app-kv-changelog", "--partition", "5"], "0 to 1"),
        (["head", "app-kv-changelog", "--limit", "0"], "at least 1"),
        (["head", "app-kv-changelog", "--store", "kv"], "not both"),
        (["stats"], "which topic?"),
        (["stats", "../x"], "not usable"),
    ],
)
def test_wrong_topic_is_a_usage_error(run: Run, log: list[str], arguments: list[str], words: str) -> None:
    code, _, told = run("changelog", *arguments, *log)
    assert code == 2 and words in told


def test_absent_log_is_unreachable_and_is_not_created(run: Run, tmp_path: Path) -> None:
    code, _, told = run("topics", "--log", f"sqlite:///{tmp_path}/nothing")
    assert code == 69 and "does not exist" in told
    assert list(tmp_path.iterdir()) == []


# -- exit codes -------------------------------------------------------------------------------------------------------


def test_no_running_instance_is_unavailable(run: Run, session: sf.Session, bench: Bench) -> None:
    session.close()
    code, text, told = run("status", "--state-dir", str(bench.root / "state"), "--json")
    path = bench.root / "state" / "app"
    ended = f"no process runs on {path}: instance {session.instance_id} has closed it; start one"
    assert code == 69 and ended in told and f"--offline {path}" in told
    assert json.loads(text)["exit_code"] == 69
    # A killed process leaves its note in the lock's file.
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (path / "LOCK").write_text(f"pid {int(gone.stdout)}\n")
    code, _, told = run("status", "--state-dir", str(bench.root / "state"))
    assert code == 69 and f"process {int(gone.stdout)} of instance {session.instance_id} ended without" in told


def test_stale_info_file_names_the_process_that_left_it(run: Run, session: sf.Session, bench: Bench) -> None:
    server = OpsServer(session)
    path = session.state_path / RUN_FILE
    kept = json.loads(path.read_text())
    server.close()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    path.write_text(json.dumps({**kept, "pid": int(gone.stdout)}))
    session.close()
    code, _, told = run("status", "--state-dir", str(bench.root / "state"))
    assert code == 69 and f"process {int(gone.stdout)} of instance {session.instance_id} ended without" in told
    path.write_text("{}")
    assert run("status", "--state-dir", str(bench.root / "state"))[0] == 2


def test_status_finds_an_application_that_opened_no_server(run: Run, session: sf.Session, bench: Bench) -> None:
    where = ["--state-dir", str(bench.root / "state")]
    code, text, told = run("status", *where)
    assert code == 0 and text.startswith(
        f"app on instance {session.instance_id}: process {os.getpid()} runs on these files\n"
    )
    rows = [line.split()[:3] for line in text.splitlines()]
    assert ["0_0", "-", "open"] in rows and "offline" not in text and "owned" not in text and "in/0@4" in text
    assert f"pid {os.getpid()}" in told and "http_port=" in told
    found = document(run("tasks", *where, "--json"))
    assert [(task["task"], task["state"]) for task in found["tasks"]] == [("0_0", "owned"), ("0_1", "owned")]
    code, _, told = run("lag", *where)
    assert code == 69 and f"process {os.getpid()} runs on" in told and "--offline" in told
    assert run("get", "kv", "k1", *where)[0] == 69
    with OpsServer(session):
        assert "READY" in run("status", *where)[1]


@pytest.mark.slow
@pytest.mark.parametrize("server", [False, True])
def test_status_finds_an_app_that_runs(run: Run, bench: Bench, *, server: bool) -> None:
    app = sf.App("app", log=bench.address, state_dir=bench.root / "state", stores=stores()[:1])
    bench.log.admin.create_topic("in", 1, TopicPolicy())

    @app.source("in")
    class Count(sf.Processor):
        stores = ("kv",)

        def process(self, record: sf.Record) -> None: ...

    def states() -> list[str]:
        found = document(run("tasks", "--state-dir", str(bench.root / "state"), "--json"))
        return [one["state"] for one in found.get("tasks", ())]  # none is there at first

    opened = app.open()
    runs = threading.Thread(target=app.run)
    with OpsServer(opened) if server else nullcontext():
        runs.start()
        try:
            wait_for(lambda: states() == ["running" if server else "owned"], timeout_s=60, told=states)
        finally:
            app.stop()
            runs.join(60)
    assert not runs.is_alive()


def test_status_finds_an_application_that_has_no_task_yet(run: Run, bench: Bench) -> None:
    session = bench.session("state")
    found = document(run("status", "--state-dir", str(bench.root / "state"), "--json"))
    assert (found["instance"], found["tasks"], found["owner_pid"]) == (session.instance_id, [], os.getpid())


def test_server_of_another_instance_is_not_taken_for_ours(run: Run, session: sf.Session, bench: Bench) -> None:
    with OpsServer(session):
        path = session.state_path / RUN_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), "instance": "another"}))
        code, _, told = run("status", "--state-dir", str(bench.root / "state"))
    assert code == 69 and "not as the expected instance" in told


OWNER = """
import sys, standfast as sf
from standfast.ops.shared.guard import guard
from standfast.ops.shared.output import Output
def own():
    store = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
    with sf.Session("app", log=sys.argv[1], state_dir=sys.argv[2], stores=[store]):
        print("held", flush=True)
        sys.stdin.read()
    return 0
sys.exit(guard(own))
"""


@pytest.mark.slow
def test_second_process_on_one_state_directory_exits_73_and_names_the_holder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, f"sqlite:///{tmp_path}/log", str(tmp_path / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        second = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert second.returncode == 73
        assert f"held by pid {holder.pid}" in second.stderr
        assert second.stderr.startswith("error: ")
        holder.stdin.close()
    assert holder.returncode == 0


def test_configuration_reports_every_problem_with_its_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "standfast.toml"
    path.write_text('[app]\nname = "../x"\n[store]\nmemroy = "1GiB"\n', encoding="utf-8")
    code, text, told = run("config", "check", str(path), "--json")
    assert code == 78
    first, second = told.splitlines()
    assert first.startswith(f"error: {path}:2: app.name")
    assert second.startswith(f"error: {path}:4: store.memroy") and "did you mean 'store.memory'?" in second
    assert len(json.loads(text)["problems"]) == 2
    assert run("status", "--config", str(path))[0] == 78


def test_good_configuration_is_shown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "standfast.toml"
    path.write_text('[app]\nname = "delays"\n[store]\nmemory = "64MiB"\n', encoding="utf-8")
    found = document(run("config", "check", str(path), "--json"))
    assert found["settings"]["store.memory"] == "64MiB"
    assert found["origins"]["store.memory"] == f"{path}:4"
    assert "delays" in run("config", "check", str(path))[1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (sf.NotReady("x"), 1),
        (sf.Backpressure("x"), 1),
        (sf.InvalidRequest("x"), 2),
        (sf.UnknownStore("x"), 2),
        (sf.Corruption("x"), 65),
        (sf.StateLost("x"), 65),
        (sf.Unavailable("x"), 69),
        (sf.InternalError("x"), 70),
        (ValueError("x"), 70),
        (sf.Held("x"), 73),
        (sf.Fenced("x"), 75),
        (sf.BadConfig(["x"]), 78),
    ],
)
def test_exit_code_is_what_the_caller_must_do(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise error

    assert guard(fail) == code == exit_code(error)
    assert "error: " in capsys.readouterr().err


def test_every_error_of_the_tree_has_an_exit_code() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, sf.StandfastError)]
    listed = tuple(kind for kind, _, _ in ERRORS)
    assert [kind for kind in kinds if kind is not sf.StandfastError and not issubclass(kind, listed)] == []
    for at, (kind, _, _) in enumerate(ERRORS):
        assert not issubclass(kind, listed[:at]), f"{kind} is never reached"


def test_usage_errors_and_help_are_exit_codes_of_main(run: Run) -> None:
    assert run()[0] == 2
    assert run("nonsense")[0] == 2
    assert run("get")[0] == 2
    assert run("--version")[0] == 0
    code, text, _ = run("--help")
    assert code == 0
    for command in ("status", "tasks", "lag", "health", "get", "scan", "fetch", "changelog", "topics", "config"):
        assert command in text.split()
    code, _, told = run("status")
    assert code == 2 and "--state-dir" in told


def test_missing_extra_says_the_line_that_installs_it() -> None:
    with pytest.raises(sf.BadConfig, match=r"pip install 'standfast\[serve\]'"):
        require("serve", "a_library_that_nobody_has.part")
    assert require("serve", "json").loads("1") == 1


@pytest.mark.slow
def test_reader_that_has_seen_enough_is_no_error(files: list[str]) -> None:
    command = [sys.executable, "-m", "standfast.ops.cli", "scan", "kv", *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "")


@pytest.mark.parametrize("words", [["get", "kv", "k", "--offline"], ["status", "--state-dir"], ["tasks", "--offline"]])
def test_file_in_the_place_of_a_state_directory_is_told(run: Run, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, told = run(*words, str(tmp_path / "file"))
    assert (code, "restore it" in told) == (2, False)
    assert "file is not a directory: name the application's state directory" in told
