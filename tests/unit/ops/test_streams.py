"""Standard output that is not UTF-8, closed, or on a full disk; a closed standard input or error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import standfast as sf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shell's words for a scan of a store with the key `é` in it."""
    root = tmp_path_factory.mktemp("streams")
    store = sf.KeyValueStore("s", sf.serde.string, sf.serde.string)
    with sf.Session("x", log=f"sqlite:///{root}/log", state_dir=root / "a", partitions=1, stores=[store]) as session:
        session.assign(active=[0])
        session.wait_ready(30)
        session.task(0).store("s").put("é", "☃", timestamp=1)
        session.commit({("in", 0): 1})
    return f"{sys.executable} -m standfast.ops.cli scan s --utc --offline {root}/a/x/0_0"


def run(command: str, **environment: str) -> tuple[int, bytes, str]:
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr.decode()


def test_output_that_lacks_a_character_replaces_it(scan: str) -> None:
    code, out, err = run(scan, PYTHONIOENCODING="ascii")
    assert (code, err) == (0, ""), err
    assert out.splitlines()[-1].split() == [b"0", b"?", b"1970-01-01T00:00:00.001Z", b"?"]
    # The key comes in as the bytes of the command line, whatever the locale makes of them; JSON loses nothing.
    command = f"{scan.replace('scan s', 'get s é')} --json"
    code, out, err = run(command, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (code, out.isascii()) == (0, True), err
    (row,) = json.loads(out)["rows"]
    assert (row["key"], row["value"]) == ("é", "☃")


def test_output_that_takes_nothing_is_a_clear_error(scan: str) -> None:
    wrong = []
    for command, code, said in (
        (f"{scan} >&-", 2, "error: standard output is closed: "),
        (f"{scan} --json >/dev/full", 71, "error: standard output cannot be written (No space left on device): "),
    ):
        found, _, err = run(command)
        if found != code or said not in err or "bug" in err or "Exception ignored" in err:
            wrong.append((command, found, err))
    assert wrong == []


def test_closed_input_and_error_let_a_command_go_on(scan: str) -> None:
    # A remark goes nowhere, not into the result, and no file gets the descriptor of an error.
    for target in ("<&- 2>&-", "2>/dev/full"):
        assert run(f"{scan.replace('scan s', 'get s q')} {target}")[:2] == (1, b"")
