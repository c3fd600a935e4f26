"""Commits that SQLite would drop from the middle of the log's WAL are damage; the effects of a power loss are none.

Rules of this file: a real log, whose files are copied beside the open one, as a kill leaves them; then bytes change.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.embedded.db import PAGE_BYTES
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.wal import lost_commits
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.store.clock import ManualClock
from standfast.store.errors import Corruption
from support.embedded import T0, contents

FRAME = 24 + PAGE_BYTES
COMMITS = 6
PER_COMMIT = 40
FILES = ("log", "log-wal", "log-shm")


def append(log: EmbeddedLog, commit: int, records: int = PER_COMMIT) -> None:
    producer = log.producer()
    producer.append({T0: [Outgoing(b"%d-%d" % (commit, number), b"v" * 700, 1_000) for number in range(records)]})
    producer.close()


def at(frame: int) -> int:
    return 32 + (frame - 1) * FRAME


def commit_frames(path: Path) -> list[int]:
    data = (path / "log-wal").read_bytes()
    return [
        frame
        for frame in range(1, (len(data) - 32) // FRAME + 1)
        if any(data[at(frame) + 4 : at(frame) + 8]) and data[at(frame) + 8 : at(frame) + 16] == data[16:24]
    ]


def flip(path: Path, offset: int, bit: int = 1) -> None:
    data = bytearray((path / "log-wal").read_bytes())
    data[offset] ^= bit
    (path / "log-wal").write_bytes(data)


def copy(root: Path, to: Path) -> Path:
    to.mkdir()
    for name in FILES:
        shutil.copy(root / name, to / name)
    return to


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a log with a topic in its database and six appends in its WAL."""
    root = tmp_path_factory.mktemp("log")
    log = EmbeddedLog(root / "log", clock=ManualClock(0))
    log.admin.create_topic("board", 1, TopicPolicy())
    log._admin_db.checkpoint(truncate=True)
    for commit in range(COMMITS):
        append(log, commit)
    copy(root, root / "copy")
    log.close()
    return root / "copy"


@pytest.fixture
def root(killed: Path, tmp_path: Path) -> Path:
    return copy(killed, tmp_path / "killed")


def opened(root: Path, **options: Any) -> int:
    """Records of the log there, with its files as they are afterwards."""
    log = EmbeddedLog(root / "log", clock=ManualClock(0), **options)
    try:
        found = len(contents(log))
        append(log, 99, 1)
        assert len(contents(log)) == found + 1
        return found
    finally:
        log.close()


def refused(root: Path) -> str:
    before = (root / "log-wal").read_bytes(), (root / "log").read_bytes()
    told = set()
    for _ in range(2):  # the first opening changes nothing
        with pytest.raises(Corruption) as error:
            EmbeddedLog(root / "log")
        assert error.value.of_log
        told.add(str(error.value))
    assert ((root / "log-wal").read_bytes(), (root / "log").read_bytes()) == before
    (same,) = told
    return same


PLACES = {"page": 24 + 100, "page number": 3, "size": 6, "salt": 9, "checksum": 17, "last byte": FRAME - 1}


@pytest.mark.parametrize(
    "place", [pytest.param(one, marks=() if one in ("page", "checksum") else pytest.mark.long) for one in PLACES]
)
def test_flipped_byte_in_any_frame_but_those_of_the_last_commit_is_named(root: Path, place: str) -> None:
    ends = commit_frames(root)
    assert len(ends) == COMMITS
    whole = (root / "log-wal").read_bytes()
    for frame in range(1, ends[-2] + 1):
        flip(root, at(frame) + PLACES[place], 16)
        text = refused(root)
        behind = sum(end >= frame for end in ends) + (place == "size" and frame not in ends)
        assert f"log-wal is not as it was written (frame {frame}, at byte {at(frame)}), and {behind} commits" in text
        assert str(root / "log") in text
        (root / "log-wal").write_bytes(whole)
    assert opened(root) == COMMITS * PER_COMMIT


@pytest.mark.parametrize("byte", [0, 3, 5, 10, 14, 17, 22, 25, 31])
def test_flipped_byte_in_the_header_is_named(root: Path, byte: int) -> None:
    flip(root, byte)
    assert f"(its header), and {COMMITS} commits" in refused(root)


def test_log_that_is_all_in_its_wal_is_not_made_anew_over_a_damaged_header(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.admin.create_topic("board", 1, TopicPolicy())
    append(log, 0)
    append(log, 1)
    root = copy(tmp_path, tmp_path / "killed")
    log.close()
    flip(root, 16)
    assert "(its header)" in refused(root)


def test_damage_of_the_very_last_commit_is_taken_for_a_torn_end(root: Path) -> None:
    flip(root, at(commit_frames(root)[-1]) + 200)
    assert opened(root) == (COMMITS - 1) * PER_COMMIT


def torn_at(where: str, ends: list[int]) -> Callable[[bytearray], bytearray]:
    first = at(ends[-2] + 1)
    cuts = {
        "nothing of it": first,
        "in a header": first + 10,
        "after a header": first + 24,
        "in a page": first + 24 + 4_096,
        "after a frame": first + FRAME,
        "a byte less": at(ends[-1]) + FRAME - 1,
    }
    if where in cuts:
        return lambda data: data[: cuts[where]]

    def garbage(data: bytearray) -> bytearray:
        begin = {"last frame": at(ends[-1]), "first frame": first, "half a page": at(ends[-1]) + 24 + 4_096}[where]
        end = begin + FRAME if where == "first frame" else len(data)
        data[begin:end] = os.urandom(end - begin)
        return data

    return garbage


@pytest.mark.parametrize(
    "where",
    [
        *("nothing of it", "in a header", "after a header", "in a page", "after a frame", "a byte less"),
        *("last frame", "first frame", "half a page"),
    ],
)
def test_torn_last_transaction_opens_without_it(root: Path, where: str) -> None:
    ends = commit_frames(root)
    data = torn_at(where, ends)(bytearray((root / "log-wal").read_bytes()))
    (root / "log-wal").write_bytes(data)
    assert opened(root) == (COMMITS - 1) * PER_COMMIT


@pytest.mark.parametrize("how", ["missing", "empty", "header alone", "half a header", "zeros"])
def test_wal_with_nothing_in_it_opens(root: Path, how: str) -> None:
    path = root / "log-wal"
    data = path.read_bytes()
    path.unlink()
    if how != "missing":
        kept = {"empty": b"", "header alone": data[:32], "half a header": data[:16], "zeros": bytes(len(data))}
        path.write_bytes(kept[how])
    assert opened(root) == 0


@pytest.mark.parametrize("torn", [False, True])
def test_frames_of_an_earlier_round_behind_the_end_are_no_damage(tmp_path: Path, torn: bool) -> None:
    log = EmbeddedLog(tmp_path / "log", clock=ManualClock(0))
    log.admin.create_topic("board", 1, TopicPolicy())
    for commit in range(COMMITS):
        append(log, commit)
    log._admin_db.checkpoint()  # the next commit starts over in the same file
    append(log, 6)
    append(log, 7)
    root = copy(tmp_path, tmp_path / "killed")
    log.close()
    ends = commit_frames(root)
    assert len(ends) == 2 and (root / "log-wal").stat().st_size > 2 * at(ends[-1])
    if torn:
        flip(root, at(ends[-1]) + 99)
    assert opened(root) == (COMMITS + 1 + (not torn)) * PER_COMMIT


def test_index_that_began_a_round_before_the_file_did_tells_no_damage(killed: Path) -> None:
    """The file is in the database by then, and a kill or a full disk may keep its new header from being written."""
    data = (killed / "log-wal").read_bytes()
    head = bytearray((killed / "log-shm").read_bytes()[:48])
    head[16:20] = bytes(4)
    none_taken = lost_commits(
        lambda offset, count: data[offset : offset + count], len(data), PAGE_BYTES, bytes(head) * 2
    )
    assert none_taken is not None and none_taken.commits == COMMITS
    head[35] ^= 1
    assert (
        lost_commits(lambda offset, count: data[offset : offset + count], len(data), PAGE_BYTES, bytes(head) * 2)
        is None
    )


def test_what_two_killed_writers_left_behind_the_end_is_no_damage(root: Path) -> None:
    """Two transactions that were written and not committed, the longer one first, and a short one over both."""
    ends = commit_frames(root)
    data = bytearray((root / "log-wal").read_bytes())
    whole = bytes(data)
    # As if the last two had begun at the same place: each is a chain of its own, which goes on from nothing before it.
    fourth = whole[at(ends[2] + 1) : at(ends[3] + 1)]
    data[at(ends[3] + 1) + 8 * FRAME :] = fourth + whole[at(ends[4] + 1) :]
    flipped = at(ends[3] + 1) + 50
    (root / "log-wal").write_bytes(data)
    flip(root, flipped)
    assert opened(root) == 4 * PER_COMMIT


def test_leases_that_a_power_loss_tore_are_no_damage(tmp_path: Path) -> None:
    clock = ManualClock(0)
    log = EmbeddedLog(tmp_path / "log", clock=clock)
    log.admin.create_topic("board", 1, TopicPolicy())
    group = log.group("app")
    group.join("a", lease_ms=10_000)
    append(log, 0)
    synced = len(commit_frames(tmp_path))
    for _ in range(5):
        clock.advance(100)
        group.heartbeat("a")
    append(log, 1)
    assert len(commit_frames(tmp_path)) == synced + 5 + 1
    root = copy(tmp_path, tmp_path / "killed")
    log.close()
    flip(root, at(commit_frames(root)[synced]) + 60)
    assert opened(root) == PER_COMMIT


def test_reader_that_has_the_file_open_does_not_hide_the_damage(root: Path) -> None:
    ends = commit_frames(root)
    flip(root, at(ends[0] + 1) + 77)
    with closing(sqlite3.connect(root / "log")) as other:
        assert other.execute("SELECT count(*) FROM log_records").fetchone() == (PER_COMMIT,)
        assert f"and {COMMITS - 1} commits" in refused(root)
        assert f"and {COMMITS - 1} commits" in refused(root)


@pytest.mark.parametrize("where", ["frame", "header"])
def test_command_of_the_message_goes_on_without_the_commits(root: Path, where: str) -> None:
    flip(root, at(commit_frames(root)[2] + 1) + 77 if where == "frame" else 16)
    text = refused(root)
    python, *command = shlex.split(text[text.index("python3 ") : text.index(" and check with")])
    assert (python, command[-1]) == ("python3", str(root / "log"))
    subprocess.run([sys.executable, *command], check=True)
    assert opened(root) == (3 * PER_COMMIT if where == "frame" else 0)


def test_synchronous_normal_goes_on_and_says_so(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(root, at(commit_frames(root)[2] + 1) + 77)
    assert opened(root, synchronous="normal") == 3 * PER_COMMIT
    assert f"lost its last {COMMITS - 3} commits" in caplog.text


def test_only_heads_behind_the_end_are_read_where_nothing_is_wrong(killed: Path) -> None:
    data = (killed / "log-wal").read_bytes()
    index = (killed / "log-shm").read_bytes()[:96]
    reads: list[int] = []

    def read(offset: int, count: int) -> bytes:
        reads.append(count)
        return data[offset : offset + count]

    assert lost_commits(read, len(data), PAGE_BYTES, index) is None
    assert reads == [32]


def test_descriptors_of_a_log_that_is_opened_again_and_again_do_not_add_up(root: Path) -> None:
    opened(root)
    before = len(descriptors(root))
    for _ in range(5):
        opened_with_a_wal(root)
    assert len(descriptors(root)) <= before + 1  # of the last index, until the next look


def descriptors(root: Path) -> list[str]:
    """The open descriptors of files in a folder: other threads of the tests' process open theirs meanwhile."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.append(str(link.readlink()))
    return [name for name in found if name.startswith(f"{root}/")]


def opened_with_a_wal(root: Path) -> None:
    log = EmbeddedLog(root / "log")
    append(log, 0)
    EmbeddedLog(root / "log").close()
    log.close()
