"""`standfast reset`: its commits are ours, and `--offsets own` commits the offsets of an application's own records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed, TopicPolicy
from standfast.replication.offsets import TopicPartition
from support.sessions import Bench

Run = Callable[..., tuple[int, dict[str, Any]]]
SOURCES = [TopicPartition("src", partition) for partition in range(2)]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], bench: Bench) -> Run:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["reset", "--app", "app", "--log", bench.address, *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def stopped_at(bench: Bench, offset: int, directory: str = "a") -> None:
    """Two tasks whose last commit has this offset, and a stream time."""
    session = bench.active(directory, partitions=(0, 1))
    for partition in (0, 1):
        task = session.task(partition)
        task.store("kv").put("k", str(offset))
        task.observe("src", partition, 1_000 + offset)
        task.commit({("src", partition): offset})
    session.close()


def in_group(bench: Bench) -> dict[int, Committed]:
    return {at.partition: found for at, found in bench.log.group("app").committed(SOURCES).items()}


def other_client(bench: Bench, *offsets: int) -> None:
    commits = {at: Committed(offset) for at, offset in zip(SOURCES, offsets, strict=False)}
    bench.log.group("app").commit(commits)


def test_refused_start_goes_on_from_the_own_record_after_the_command_that_it_names(bench: Bench, run: Run) -> None:
    stopped_at(bench, 10)
    other_client(bench, 20, 4)
    with pytest.raises(sf.StateLost) as refused:
        bench.session().assign(active=[0, 1])
    bench.opened[-1].close()
    (command,) = [part for part in str(refused.value).split("`") if part.startswith("standfast reset")]
    before = bench.log.admin.topic_names()
    code, shown = run("--offsets", "own", "--state-dir", str(bench.root / "a"), "--dry-run")
    assert f"--offsets own --app app --log {bench.address} --state-dir {bench.root / 'a'}" in command
    assert (code, shown["steps"]) == (0, ["commit src-0 at 10 (was 20)", "commit src-1 at 10 (was 4)"])
    assert in_group(bench) == {0: (20, ""), 1: (4, "")}
    assert main([*command.split()[1:], "--yes"]) == 0
    assert {partition: found.offset for partition, found in in_group(bench).items()} == {0: 10, 1: 10}
    metadata = CommitMetadata.from_text(in_group(bench)[1].metadata)
    assert metadata is not None
    assert metadata.stream_times == {"src/1": 1_010}
    again = bench.active(partitions=(0, 1))
    assert [again.task(partition).source_offsets() for partition in (0, 1)] == [{at: 10} for at in SOURCES]
    assert bench.log.admin.topic_names() == before


def test_offsets_that_our_own_commits_have_stay(bench: Bench, run: Run) -> None:
    stopped_at(bench, 10)
    shutil.copytree(bench.root / "a", bench.root / "older")
    stopped_at(bench, 15)
    other_client(bench, 20)  # partition 0 alone
    code, shown = run("--offsets", "own", "--state-dir", str(bench.root / "a"), "--yes")
    assert (code, shown["steps"], shown["done"]) == (0, ["commit src-0 at 15 (was 20)"], True)
    assert {partition: found.offset for partition, found in in_group(bench).items()} == {0: 15, 1: 15}
    code, shown = run("--offsets", "own", "--state-dir", str(bench.root / "older"), "--yes")
    assert (code, shown["steps"]) == (0, [])


def test_record_behind_its_changelogs_is_said_to_cost_records_processed_twice(
    bench: Bench, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_at(bench, 10)
    shutil.copytree(bench.root / "a", bench.root / "older")
    stopped_at(bench, 15)
    other_client(bench, 20)
    flags = ["reset", "--app", "app", "--log", bench.address, "--offsets", "own", "--dry-run", "--state-dir"]
    assert main([*flags, str(bench.root / "a")]) == 0
    assert "beyond this record" not in capsys.readouterr().err
    assert main([*flags, str(bench.root / "older")]) == 0
    assert "task 0_0: its changelogs have 1 records beyond this record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (("--to", "latest"), 2, "--offsets own takes no --to"),
        (("--source", "src"), 2, "--offsets own takes no --source"),
        (("--local", "keep"), 2, "--offsets own takes no --local"),
    ],
)
def test_flags_that_say_otherwise_are_refused(
    bench: Bench, run: Run, flags: tuple[str, ...], code: int, told: str
) -> None:
    found, shown = run("--offsets", "own", "--state-dir", str(bench.root), *flags, "--yes")
    assert (found, told in shown["message"]) == (code, True)


def test_directory_without_the_application_or_without_a_record_is_refused(
    bench: Bench, run: Run, tmp_path: Path
) -> None:
    assert run("--offsets", "own", "--yes")[0] == 2
    code, shown = run("--offsets", "own", "--state-dir", str(tmp_path / "nowhere"), "--yes")
    assert code == 2
    assert not (tmp_path / "nowhere").exists()
    session = bench.active("empty")  # it commits nothing
    session.close()
    code, shown = run("--offsets", "own", "--state-dir", str(bench.root / "empty"), "--yes")
    assert (code, "no record of source offsets" in shown["message"]) == (2, True)


def test_live_instance_and_a_held_directory_are_refused(bench: Bench, run: Run) -> None:
    stopped_at(bench, 10)
    other_client(bench, 20)
    session = bench.session("b")
    assert run("--offsets", "own", "--state-dir", str(bench.root / "a"), "--yes")[0] == 1
    session.close()
    held = sf.Session("app", log=bench.address, state_dir=bench.root / "a", background=False, take_over=False)
    try:
        assert run("--offsets", "own", "--state-dir", str(bench.root / "a"), "--yes")[0] == 73
    finally:
        held.close()
    assert in_group(bench)[0] == (20, "")


def test_offsets_of_a_reset_are_ours_also_beside_kept_state(bench: Bench, run: Run) -> None:
    stopped_at(bench, 10)
    bench.log.admin.create_topic("src", 2, TopicPolicy())
    code, _ = run("--state-dir", str(bench.root / "a"), "--local", "keep", "--yes")
    assert code == 0
    assert all(CommitMetadata.from_text(found.metadata) is not None for found in in_group(bench).values())
