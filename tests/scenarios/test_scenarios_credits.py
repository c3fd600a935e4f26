"""Scripted histories of credits: what goes in, `----`, what comes out. Scripts: tests/scenarios/credits.

    # a comment; blocks are divided by an empty line
    new floating_batches=2 queue_batches_high=4      a new machine; bounds that are not named are the defaults
    add a credits=1                                  an applier takes partition `a`
    fetched a1 b1:50                                 one fetch: a batch of `a`, 1 byte, and one of `b`, 50 bytes
    applied a1                                       the applier is done with the batch of that name
    remove a
    statistics
    ----
    each answer: `a1` is sent on an own credit, `a1~` on a floating one, `(3)` is its backlog; who is paused, resumed

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.replication.credits import Arrived, CreditLimits, Credits, Decision, Sent
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import StandfastError
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "credits").glob("*.txt"))


def settings(words: list[str]) -> dict[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in words)}


def partition_of(name: str) -> TopicPartition:
    return TopicPartition(name[0], 0)


class Player:
    """A machine whose batches have names: the first letter is the partition."""

    def __init__(self, **limits: int) -> None:
        self.credits: Credits[str] = Credits(CreditLimits(**limits))
        self.sent: dict[str, Sent[str]] = {}

    def act(self, command: str, words: list[str]) -> list[str]:
        match command:
            case "add":
                return [self.tell(self.credits.add(partition_of(words[0]), **settings(words[1:])))]
            case "fetched":
                named = [word.partition(":") for word in words]
                arrived = [Arrived(partition_of(name), name, int(size or 1)) for name, _, size in named]
                return [self.tell(self.credits.fetched(arrived))]
            case "applied":
                return [self.tell(self.credits.applied(self.sent[words[0]]))]
            case "remove":
                return [self.tell(self.credits.remove(partition_of(words[0])))]
            case "statistics":
                return self.statistics()
        raise ValueError(f"unknown command {command!r}")

    def tell(self, decision: Decision[str]) -> str:
        self.sent |= {sent.batch: sent for sent in decision.send}
        words = [f"{sent.batch}{'~' if sent.floating else ''}({sent.backlog})" for sent in decision.send]
        words += [f"pause={name.topic}" for name in decision.pause]
        words += [f"resume={name.topic}" for name in decision.resume]
        words += [f"dropped={name}" for name in decision.dropped]
        return " ".join(words) or "-"

    def statistics(self) -> list[str]:
        now = self.credits.statistics()
        lines = [
            f"{name.topic} credits={one.credits} backlog={one.backlog}/{one.backlog_bytes} in_hand={one.in_hand} "
            f"floating={one.floating_in_hand} {'paused' if one.paused else 'fetching'}"
            for name, one in now.partitions.items()
        ]
        total = f"free={now.floating_free} queued={now.queue_bytes} in_hand={now.hand_bytes} sent={now.sent_batches}"
        return [*lines, f"{total} pauses={now.pauses}"]


def run(script: str) -> str:
    """The script with every block's answers as the machine gives them."""
    player = Player()
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
                    player = Player(**settings(words))
                    answers.append("empty")
                else:
                    answers += player.act(command, words)
            except StandfastError as error:
                answers.append(f"{type(error).__name__}: {error}")
        blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_credits_follow_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 7


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("add a credits=1\nfetched a1\n")
    assert good == "add a credits=1\nfetched a1\n----\n-\na1(0)\n"
    assert run(good) == good
    assert run(good.replace("a1(0)", "a1(1)")) == good
