"""`standfast verify --snapshot ADDRESS/NAME` without Spark: a snapshot against the log folded to its position."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.names import file_key, join_address, split_address
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.place import names_snapshot
from support.sessions import KINDS, Bench, operate

Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def verify(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Verify:
    def verify(name: str, *more: str) -> tuple[int, dict[str, Any]]:
        address = f"{bench.root}/snaps/{name}"
        code = main(["verify", "--snapshot", address, "--app", "app", "--log", bench.address, *more, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return verify


def stored(bench: Bench) -> list[str]:
    """Two tasks with a snapshot each, and later records."""
    session = bench.active(partitions=(0, 1), snapshots=sf.SnapshotPolicy(to=str(bench.root / "snaps")))
    found = []
    for number in (0, 1):
        operate(session.task(number), random.Random(number), 200)
        found.append(session.snapshot(number))
        operate(session.task(number), random.Random(number + 5), 50)
    session.close()
    return found


def test_a_snapshot_equals_its_changelogs_folded_to_its_position(bench: Bench, verify: Verify) -> None:
    first, _ = stored(bench)
    code, found = verify(first)
    assert (code, found["verdict"], len(found["stores"])) == (0, "equal", len(KINDS))
    assert {one["store"] for one in found["stores"] if one["position"] < one["end"]} >= {"kv"}
    code, found = verify("latest")
    assert (code, len(found["stores"])) == (0, 2 * len(KINDS))
    assert {one["task"] for one in verify("latest", "--partition", "1")[1]["stores"]} == {"0_1"}


def test_a_snapshot_of_wrong_rows_is_found(bench: Bench, verify: Verify) -> None:
    session = bench.active(snapshots=sf.SnapshotPolicy(to=str(bench.root / "snaps")))
    operate(session.task(0), random.Random(1), 100)
    session.task(0).stores.engine.write({"kv": {b"planted": b"\x00" * 8 + b"row"}})
    session.snapshot(0)
    code, found = verify("latest")
    assert (code, found["verdict"]) == (1, "different")
    (wrong,) = (one for one in found["stores"] if one["verdict"] != "equal")
    assert (wrong["store"], wrong["extra"]) == ("kv", 1)


def test_a_snapshot_that_is_not_whole_is_an_error(
    bench: Bench, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = stored(bench)
    kept = {str(one.snapshot.name): one.snapshot for one in listed(open_storage(f"{bench.root}/snaps", "app")).whole}
    own = sorted(kept[first].contents - kept[second].contents)
    (bench.root / "snaps/app" / file_key(own[0])).unlink()
    assert verify(first)[0] == 65
    assert verify(second)[0] == 0
    for arguments, words in (
        (["--snapshot", f"{bench.root}/snaps/0_7/1-1", "--app", "app"], "has no snapshot 0_7/1-1"),
        (["--snapshot", f"{bench.root}/snaps/0_0/1-1"], "name the application"),
        (["--snapshot", f"{bench.root}/none/0_0/1-1", "--app", "app"], "no snapshots of application 'app'"),
        (["--snapshot", f"{bench.root}/snaps/latest", "--app", "app", "--state-dir", "x"], "give one"),
    ):
        assert main(["verify", *arguments, "--log", bench.address]) == 2
        assert words in capsys.readouterr().err


def test_addresses_of_snapshots_are_told_from_folders(tmp_path: Path) -> None:
    assert split_address("s3://b/p/0_3/12-4711?region=x") == ("s3://b/p?region=x", "0_3/12-4711")
    assert split_address("/backup/latest") == ("/backup", "latest")
    for text in ("/backup", "s3://b/p", "/backup/0_3", "/backup/0_3/12", "0_3/12-4711", "/b/later"):
        assert split_address(text) is None
    for storage in ("/backup", "s3://b/p?region=x"):
        assert split_address(join_address(storage, "0_3/12-4711")) == (storage, "0_3/12-4711")
    (tmp_path / "latest").mkdir()
    assert not names_snapshot(str(tmp_path / "latest"))
    assert names_snapshot(str(tmp_path / "other/latest"))
