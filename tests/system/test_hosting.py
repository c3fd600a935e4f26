"""Every hosting mode has the features of the table in `docs/reference/hosting.md`, or refuses them with the reason.

Rules of this file: each mode is started once, and asked by all tests. Programs are real processes: one App in one
process, in two workers, and under `standfast run`. Other tests of the table are those of the feature itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast import aio
from standfast.ops.config.config import load_config
from standfast.restore.snapshot.catalogue import names
from standfast.restore.snapshot.opening import open_storage
from support.checkpoints import complete
from support.groups import costly
from support.hosting import PROGRAMS, SESSIONS, STORE, Hosted, OfSession, Program, opened, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MODES = (*PROGRAMS, *SESSIONS, "sidecar", "replica")
of_programs = pytest.mark.parametrize("hosted", PROGRAMS, indirect=True)
of_sessions = pytest.mark.parametrize("hosted", SESSIONS, indirect=True)


@pytest.fixture(scope="module")
@costly()
def hosted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """The program or session of a mode, with its one row; pytest runs the tests of a mode one after the other."""
    mode, root = request.param, tmp_path_factory.mktemp("hosted")
    if mode in PROGRAMS:
        program = Program(mode, root / mode)
        yield program
        program.close()
        return
    policy = {"snapshots": sf.SnapshotPolicy(to=str(root / "snapshots"))} if mode in SESSIONS else {}
    with opened(mode, root, **policy) as session:
        session.root = root
        yield session


@pytest.mark.parametrize("hosted", MODES, indirect=True)
def test_program_serves_health_metrics_page_and_rows(hosted: Hosted) -> None:
    for path in ("/livez", "/readyz", "/startupz"):
        hosted.get(path)
    assert "\nstandfast_ready 1.0" in hosted.get("/metrics")
    assert "<strong>READY</strong>" in hosted.get("/") and hosted.document()["ready"] is True
    rows = json.loads(hosted.get("/v1/stores/counts/get?key=key"))["rows"]
    assert [row["key"] for row in rows] == ["key"] and rows[0]["value"] in (1, "1")


# --- App: in one process, with workers, by `standfast run` ---


@of_programs
def test_program_opens_its_gate_once_its_tasks_run_and_shows_their_bound(hosted: Program) -> None:
    status = hosted.document()
    assert (status["ready"], status["missing"]) == (True, [])
    assert {task["state"] for task in status["tasks"] if task["role"] == "active"} == {"running"}
    (instance,) = status["placement"]["instances"]
    assert instance["max_tasks"] == 8


@of_programs
def test_program_makes_snapshots_and_coordinated_checkpoints(hosted: Program) -> None:
    storage = open_storage(str(hosted.root / "snapshots"), "hosted")
    hosted.until(lambda: complete(storage))
    hosted.until(lambda: names(storage))
    assert complete(storage) and names(storage)


@of_programs
def test_program_runs_a_source_of_its_own(hosted: Program) -> None:
    hosted.until(lambda: len(hosted.read("collected")) >= 5)
    assert sorted(hosted.read("collected")) == [(f"n{number}", "number") for number in range(5)]


@of_programs
def test_program_passes_the_results_of_asynchronous_steps_on(hosted: Program) -> None:
    hosted.send("asks", "a question")
    hosted.until(lambda: ("asks", "a question!") in hosted.read("out"))
    assert ("asks", "a question!") in hosted.read("out")


@of_programs
def test_program_writes_a_failed_record_to_its_dead_letters_and_goes_on(hosted: Program) -> None:
    hosted.send("bad", "wrong")
    hosted.send("behind", "right")
    hosted.until(lambda: ("behind", "right!") in hosted.read("out"))
    assert hosted.read("failed") == [("bad", "wrong")]


@of_programs
def test_program_makes_spans_of_records_and_commits(hosted: Program) -> None:
    spans = hosted.root / "spans.txt"
    hosted.until(lambda: {"process in", "commit"} <= set(spans.read_text().split("\n")))
    assert "process in" in spans.read_text()


@of_programs
def test_program_forks_within_a_step_and_goes_on(hosted: Program) -> None:
    hosted.send("forks", "fork")
    hosted.until(lambda: ("forks", "fork!") in hosted.read("out"))
    assert ("forks", "fork") not in hosted.read("failed")  # the child's end was waited for


@of_programs
def test_program_pauses_goes_on_and_stops_in_order(hosted: Program) -> None:
    os.kill(hosted.process.pid, signal.SIGUSR1)
    hosted.until(lambda: (hosted.root / "paused").exists())
    hosted.until(lambda: hosted.rests())
    hosted.send("waits", "for resume")
    assert ("waits", "for resume!") not in hosted.read("out")
    os.kill(hosted.process.pid, signal.SIGUSR2)
    hosted.until(lambda: ("waits", "for resume!") in hosted.read("out"))
    assert hosted.stop() == 0, hosted.told()


# --- sessions: an external consumer's, one under an own loop, one of asyncio ---


@pytest.mark.parametrize("mode", SESSIONS)
def test_gate_of_a_session_opens_on_restored_rows(mode: str, tmp_path: Path) -> None:
    with opened(mode, tmp_path) as one:  # in a directory of its own, after `wait_ready`
        assert one.session.ready and one.session.missing() == ()
        assert one.session.task(0).store("counts").get("key") == "1"


@of_sessions
def test_session_makes_a_snapshot_of_its_task(hosted: OfSession) -> None:
    name = hosted.session.snapshot(0)
    assert name in [str(one) for one in names(open_storage(str(hosted.root / "snapshots"), "hosted"))]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "checkpoints": (
        {"snapshots": sf.SnapshotPolicy(to="./snapshots", checkpoint_every_ms=60_000)},
        "checkpoint_every_ms is for an App whose tasks a leader places",
    ),
    "max_tasks": ({"max_tasks": 2}, "max_tasks is for an App whose tasks a leader places"),
    "dead_letters": ({"on_error": "dead_letter"}, r"your loop catches its errors itself, and task\.send"),
    "tracing": ({"tracing": True}, "your loop makes its spans itself"),
}
OPENS: dict[str, tuple[Callable[..., sf.Session], dict[str, Any]]] = {
    "external": (sf.Session, {"placement": "group"}),
    "session": (sf.Session, {}),
    "aio": (lambda *given, **named: _opened_by_asyncio(*given, **named), {}),
}


def _opened_by_asyncio(*given: Any, **named: Any) -> sf.Session:
    return aio.Session(*given, **named)._open()


@pytest.mark.parametrize("feature", REFUSED)
@pytest.mark.parametrize("mode", OPENS)
def test_session_refuses_settings_of_an_app_with_the_reason(mode: str, feature: str, tmp_path: Path) -> None:
    opens, manner = OPENS[mode]
    settings, reason = REFUSED[feature]
    with pytest.raises(sf.BadConfig, match=reason):
        opens("app", log=f"sqlite:///{tmp_path}/log", state_dir=tmp_path / "s", stores=[STORE], **manner, **settings)
    assert not (tmp_path / "s").exists()


NOT_HERE = {
    "pause": ("pause", "your loop chooses its records: pause the consumer's partitions"),
    "own_sources": ("source", "a session has no sources and steps, sf.App has"),
    "async_steps": ("map_async", "your loop awaits its calls itself, before it commits"),
}


@pytest.mark.parametrize("feature", NOT_HERE)
@of_sessions
def test_session_has_no_steps_and_says_where_they_are(hosted: OfSession, feature: str) -> None:
    name, reason = NOT_HERE[feature]
    with pytest.raises(AttributeError, match=reason):
        getattr(hosted.own, name)
    assert not hasattr(hosted.own, name)


def test_name_that_nothing_has_is_an_ordinary_attribute_error(tmp_path: Path) -> None:
    with opened("session", tmp_path) as one:
        with pytest.raises(AttributeError, match="'Session' object has no attribute 'nothing'"):
            one.own.nothing  # noqa: B018 - the look itself raises
        assert getattr(one.own, "nothing", 7) == 7


@pytest.mark.parametrize("mode", [*SESSIONS, "replica", "sidecar"])
def test_fork_under_a_session_leaves_the_parent_as_it_was(mode: str, tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "support.hosting", mode, str(tmp_path)]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The rows of a sidecar are in another process: its client in the child is a second user of the same connection.
    assert (found["child"], found["value"]) == ("it is open" if mode == "sidecar" else "Closed", "1")


# --- replica ---

READS = "a replica only reads rows, and processes no record"
OF_APPLICATION: dict[str, tuple[dict[str, Any], str]] = {
    "snapshots": ({"snapshots": sf.SnapshotPolicy(to="./s")}, f"{READS}: the application .* makes snapshots"),
    "checkpoints": ({"snapshots": sf.SnapshotPolicy(to="./s")}, f"{READS}: the application .* checkpoints"),
    "dead_letters": ({"on_error": "dead_letter"}, READS),
    "tracing": ({"tracing": True}, READS),
    "max_tasks": ({"max_tasks": 2}, f"{READS}: it holds a copy of every task"),
}


@pytest.mark.parametrize("feature", OF_APPLICATION)
def test_replica_refuses_settings_of_an_application_with_the_reason(feature: str, tmp_path: Path) -> None:
    settings, reason = OF_APPLICATION[feature]
    with pytest.raises(sf.BadConfig, match=reason):
        sf.Replica("hosted", state_dir=tmp_path / "r", **written(tmp_path), **settings)


@pytest.mark.parametrize("feature", NOT_HERE)
@pytest.mark.parametrize("hosted", ["replica"], indirect=True)
def test_replica_has_no_steps_and_says_why(hosted: OfSession, feature: str) -> None:
    with pytest.raises(AttributeError, match=READS):
        getattr(hosted.own, NOT_HERE[feature][0])


# --- sidecar ---

CLIENTS = "the clients of a sidecar process the records"
OF_PROGRAM = {
    "own_sources": ("app.sources", f"{CLIENTS}, and read their own sources"),
    "async_steps": ("app.steps", f"{CLIENTS}, and make their own calls"),
    "dead_letters": ("app.on_error", f"{CLIENTS}, and write dead letters"),
    "tracing": ("app.tracing", f"{CLIENTS}, and make their spans"),
    "checkpoints": ("snapshots.checkpoint_every", "a sidecar has no leader"),
}


@pytest.mark.parametrize("feature", OF_PROGRAM)
def test_sidecar_refuses_settings_of_a_program_with_the_reason(feature: str) -> None:
    setting, reason = OF_PROGRAM[feature]
    with pytest.raises(sf.BadConfig, match=reason):
        load_config(None, {}, {setting: "1"})
