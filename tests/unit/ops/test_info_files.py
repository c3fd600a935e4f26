"""The files that describe a running instance and a broker: their bytes as before, and invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.ops.shared.run_file import RUN_FILE, RunInfo, read_run_file, remove_run_file, write_run_file
from standfast.ops.tools.broker_state import STATE_FILE, RunningBroker, record_broker, running_broker
from standfast.restore.verify.at_rest import Marker, read_marker
from standfast.store.errors import InvalidRequest
from standfast.store.task.state_dir import MARKER, write_marker

RUN = (
    '{"schema": "standfast.run/1", "app": "a", "instance": "i", "pid": 1, "host": "::1", "port": 5, "started_ms": 7, '
    '"version": "0.1.0", "scheme": "http", "run_dir": "/r\\u00e4"}\n'
)
BROKER = (
    '{"schema": "standfast.broker-state/1", "pid": 1, "started_ticks": 2, "boot": "b", "port": 3, "version": "4", '
    '"java": "/j", "log": "/l"}\n'
)
NONE = ["", "[]", "{}", "{", "null", "[" * 100_000]


def test_files_keep_their_bytes(tmp_path: Path) -> None:
    info = RunInfo("a", "i", 1, "::1", 5, 7, "0.1.0", run_dir="/r\u00e4")
    write_run_file(tmp_path, info)
    assert (tmp_path / RUN_FILE).read_text() == RUN
    remove_run_file(tmp_path, RunInfo("other", "i", 1, "::1", 5, 7, "0.1.0"))
    assert (tmp_path / RUN_FILE).exists()
    remove_run_file(tmp_path, info)
    assert not (tmp_path / RUN_FILE).exists()
    record_broker(tmp_path, RunningBroker(1, 2, "b", 3, "4", "/j", "/l"))
    assert (tmp_path / STATE_FILE).read_text() == BROKER
    write_marker(tmp_path, "a", "0_1")
    assert (tmp_path / MARKER).read_text() == '{"format": 1, "app": "a", "task": "0_1"}\n'
    assert read_marker(tmp_path) == Marker("a", "0_1")


@pytest.mark.parametrize(
    "text",
    [
        *NONE,
        RUN.replace("run/1", "run/2"),
        RUN.replace('"pid": 1', '"pid": "1"'),
        RUN.replace('"port": 5', '"port": 5.5'),
        RUN.replace('"host"', '"more"'),
        RUN.replace('"pid": 1, ', ""),
    ],
)
def test_run_file_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(InvalidRequest, match=r"RUN.json is not readable .*: remove it"):
        read_run_file(tmp_path)


@pytest.mark.parametrize(
    "text", [*NONE, BROKER.replace("state/1", "state/2"), BROKER.replace('"pid": 1', '"pid": true')]
)
def test_broker_file_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(InvalidRequest, match=r"BROKER.json is not readable .*: stop the broker by hand"):
        running_broker(tmp_path)


@pytest.mark.parametrize("text", [*NONE, '{"format": 1}', '{"format": 1, "app": 3}'])
def test_marker_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(InvalidRequest, match=r"is not readable .*: restore it"):
        read_marker(tmp_path)


def test_marker_of_a_later_format_still_says_whose_a_directory_is(tmp_path: Path) -> None:
    assert read_marker(tmp_path) is None
    assert read_marker(tmp_path / "absent") is None
    (tmp_path / MARKER).write_text('{"format": 2, "app": "a", "task": null, "more": 1}')
    assert read_marker(tmp_path) == Marker("a")
