"""Scripted histories of a standby: what goes in, `----`, what comes out. The scripts are in tests/scenarios/standby.

    # a comment; blocks are divided by an empty line
    new position=0 limit=5 keep_max_records=3        a new standby; every argument but position may be left out
    update 0 1 7:big next=9                          a batch; `7:big` has a value of 100 bytes, the others of one
    tick | limit 9 | reinitialise truncated | begin_again 0 | close | statistics
    ----
    the answer to each command, one line each

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.replication.log import Record
from standfast.replication.standby import Standby, Step
from standfast.store.errors import StandfastError
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "standby").glob("*.txt"))


def as_record(word: str) -> Record:
    offset, _, size = word.partition(":")
    return Record(int(offset), 1_000 + int(offset), b"k", b"v" * (100 if size == "big" else 1))


def settings(words: list[str]) -> dict[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in words)}


def describe(step: Step) -> str:
    words = [type(step).__name__.lower(), *(str(record.offset) for record in step.apply)]
    words += [f"position={step.position}", f"kept={step.kept}"]
    words += ["pause"] if step.pause else []
    words += [f"seek={step.seek}"] if step.seek is not None else []
    words += ["resume"] if step.resume else []
    return " ".join(words)


def answer(standby: Standby, command: str, words: list[str]) -> str:
    if command == "update":
        named = settings([word for word in words if "=" in word])
        return describe(standby.update([as_record(word) for word in words if "=" not in word], named.get("next")))
    if command == "tick":
        return describe(standby.on_commit_tick())
    if command == "limit":
        limit = standby.set_limit(int(words[0]))
        return f"limit={limit.limit}" + (" regressed" if limit.regressed else "")
    if command == "reinitialise":
        lost = standby.reinitialise(words[0])
        return f"reinitialise {lost.reason} position={lost.position} dropped={lost.dropped}"
    if command == "begin_again":
        return describe(standby.begin_again(int(words[0])))
    if command == "close":
        standby.close()
        return "closed"
    if command == "statistics":
        now = standby.statistics()
        return (
            f"{now.state.value} applied={now.applied_records} duplicates={now.duplicate_records} "
            f"dropped={now.dropped_records} waits={now.limit_waits} regressions={now.limit_regressions}"
        )
    raise ValueError(f"unknown command {command!r}")


def run(script: str) -> str:
    """The script with every block's answers as the standby gives them."""
    standby = Standby(0)
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.partition("\n----")[0].splitlines()
        answers = []
        for line in lines:
            command, *words = line.split()
            if command == "#":
                continue
            try:
                if command == "new":
                    standby = Standby(**settings(words))
                    answers.append(f"{standby.state.value} position={standby.position} limit={standby.limit}")
                else:
                    answers.append(answer(standby, command, words))
            except StandfastError as error:
                answers.append(f"{type(error).__name__}: {error}")
        blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_standby_follows_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 6


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("update 0 1\n")
    assert good == "update 0 1\n----\napplied 0 1 position=2 kept=0\n"
    assert run(good) == good
    assert run(good.replace("position=2", "position=3")) == good
