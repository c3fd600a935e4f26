"""A state directory whose file system takes no writes: errors, the time until there is room again, texts."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import standfast as sf
from standfast.store.disk import AGAIN_MS, LINE_MS, LOG, PROBE_MS, STATE, DiskGuard, Room
from standfast.store.file_errors import NoRoom, file_error, no_room
from standfast.store.rocks.errors import translate
from standfast.store.task.state_dir import StateDir
from support.disk import fill, read_only_over

Mount = Callable[[int], Path]
MIB = 1 << 20
APPEND = "While appending to file: /state/0_0/000012.log: "
READ = "While pread offset 0 len 53: /state/0_0/000012.sst: "


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_write_that_the_file_system_refuses_is_no_room_and_says_disk_bytes_and_fix(number: int, tmp_path: Path) -> None:
    told = translate(Exception(f"IO error: {APPEND}{os.strerror(number)}"), "writing 'kv'", tmp_path)
    assert isinstance(told, NoRoom) and told.number == number and told.of_task
    assert str(tmp_path) in str(told) and "bytes free" in str(told) and os.strerror(number) in str(told)


@pytest.mark.parametrize("text", [f"IO error: {READ}{os.strerror(errno.EIO)}", "Corruption: block checksum mismatch"])
def test_error_of_a_read_is_no_matter_of_room(text: str) -> None:
    assert not isinstance(translate(Exception(text), "reading 'kv'"), NoRoom)


def test_full_disk_within_an_error_of_damage_is_no_damage() -> None:
    assert isinstance(translate(Exception(f"Corruption: IO error: {APPEND}No space left on device"), "opening"), NoRoom)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_errors_of_the_system_in_the_state_directory_are_noted_and_those_of_the_log_are_not(
    number: int, tmp_path: Path
) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    room = Room(state, 0)
    for named in (log / "log.lock", log):
        with pytest.raises(sf.StandfastError) as kept, room.watched("opening task 0_0"):
            raise_as_ours(number, named)
        assert not isinstance(kept.value, NoRoom) and room.text == ""
    with pytest.raises(OSError, match="No such"), room.watched("opening task 0_0"):
        raise OSError(errno.ENOENT, "No such file", str(state))
    with pytest.raises(NoRoom, match="opening task 0_0"), room.watched("opening task 0_0"):
        raise_as_ours(number, state / "0_0")
    assert str(state) in room.text and os.strerror(number) in room.text
    other = Room(state, 0)
    with pytest.raises(NoRoom), other.watched("opening task 0_0"):
        raise OSError(number, os.strerror(number))  # as a write to an open file raises it
    assert other.text


def raise_as_ours(number: int, path: Path) -> None:
    error = OSError(number, os.strerror(number), str(path))
    raise file_error(error, "opening", path) from error


def test_room_is_back_only_after_a_minute_in_which_every_probe_was_written(small_disk: Mount) -> None:
    place = small_disk(16)
    room = Room(place, 0)
    filler = fill(place)
    room.refused(no_room("writing", errno.ENOSPC, place))
    for now_ms in range(0, 3 * PROBE_MS, 500):
        room.look(now_ms)
    assert room.text and room.reported
    filler.unlink()
    start_ms = 3 * PROBE_MS
    room.look(start_ms)
    assert room.text == "" and room.reported, "its own tasks go on; others do not come yet"
    fill(place)
    room.look(start_ms + PROBE_MS)
    assert room.text, "the next probe fails"
    filler.unlink()
    start_ms += 2 * PROBE_MS
    for now_ms in range(start_ms, start_ms + AGAIN_MS, 500):
        room.look(now_ms)
        assert room.reported
    room.look(start_ms + AGAIN_MS)
    assert room.reported == "" and list(place.iterdir()) == [], "it leaves no file behind"


def test_free_space_counts_as_room_from_a_tenth_above_the_floor_on(small_disk: Mount) -> None:
    place = small_disk(32)
    room = Room(place, 8 * MIB)
    room.refused(no_room("writing", errno.ENOSPC, place))
    filler = fill(place, 8 * MIB + 200_000)
    for now_ms in range(0, 2 * AGAIN_MS, PROBE_MS):
        room.look(now_ms)
    assert room.text
    filler.unlink()
    fill(place, 9 * MIB)
    for now_ms in range(2 * AGAIN_MS, 4 * AGAIN_MS, PROBE_MS):
        room.look(now_ms)
    assert room.reported == ""


def test_one_line_a_minute_says_it_whatever_number_of_writes_fail(
    small_disk: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    place = small_disk(16)
    fill(place)
    room = Room(place, 0)
    with caplog.at_level(logging.INFO, "standfast"):
        for now_ms in range(0, 10 * LINE_MS, 500):
            room.refused(no_room("writing", errno.ENOSPC, place))
            room.look(now_ms)
    assert len(caplog.records) == 10
    assert f"{place} has 0 of {16 * MIB} bytes free: free space on its volume" in caplog.text


def test_log_on_the_same_volume_keeps_the_tasks_but_for_a_failing_disk(small_disk: Mount, tmp_path: Path) -> None:
    place = small_disk(16)
    for log, number, gives in ((place, errno.ENOSPC, False), (tmp_path, errno.ENOSPC, True), (place, errno.EIO, True)):
        room = Room(place, 0, log)
        room.refused(no_room("writing", number, place))
        assert room.text and bool(room.reported) == gives
        assert ("on the same volume" in room.text) != gives


def test_floor_of_the_log_is_no_state_of_the_instance(small_disk: Mount, tmp_path: Path) -> None:
    log = small_disk(16)
    guard = DiskGuard({STATE: tmp_path, LOG: log}, 4 * MIB)
    fill(log, 2 * MIB)
    guard.look()
    guard.judge(0)
    assert guard.full and guard.room.text == ""
    other = DiskGuard({STATE: log, LOG: tmp_path}, 4 * MIB)
    other.look()
    other.judge(0)
    assert other.full and other.room.reported and other.state.no_room


def test_directory_that_was_set_aside_and_cannot_be_removed_keeps_no_task_from_running(tmp_path: Path) -> None:
    with closing(StateDir(tmp_path, "app")) as state:
        state.task_path("0_0").mkdir()
        (state.task_path("0_0") / "CURRENT").touch()
        aside = state.set_aside("0_0", "corrupt")
        assert aside is not None
        with read_only_over(aside):
            assert state.drop_aside("0_0") == []
        assert state.drop_aside("0_0") == [aside] and not aside.exists()
