"""Scripted histories of a hand-over: what goes in, `----`, what comes out. Scripts: tests/scenarios/handover.

    # a comment; blocks are divided by an empty line
    new                                    a new hand-over
    produce A | produce None               the fetch thread offers a batch, on a thread of its own
    poll | poll 0                          the applying thread asks for one; 0: it does not wait
    wake | error E | close | statistics
    ----
    what each command set off, one line each: who answered what, who waits now; `-` for nothing

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.ops.scenarios.handover import Cast, FetchFailed
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "handover").glob("*.txt"))


def act(cast: Cast, words: list[str]) -> list[str]:
    handover = cast.handover
    match words:
        case ["produce", "None"]:
            return cast.ask("produce None", lambda: handover.produce(None))  # type: ignore[arg-type]
        case ["produce", batch]:
            return cast.produce(batch)
        case ["poll"]:
            return cast.poll()
        case ["poll", "0"]:
            return cast.ask("poll 0", lambda: handover.poll_next(timeout_s=0) or "nothing")
        case ["wake"]:
            return cast.do(handover.wake_up_producer)
        case ["error", name]:
            return cast.do(lambda: handover.report_error(FetchFailed(name)))
        case ["close"]:
            return cast.do(handover.close)
        case ["statistics"]:
            now = handover.statistics()
            full = "full" if now.full else "empty"
            return [f"{full} produced={now.produced} polled={now.polled} wake_ups={now.wake_ups}"]
    raise ValueError(f"unknown command {' '.join(words)!r}")


def run(script: str) -> str:
    """The script with every block's answers as the hand-over gives them."""
    cast = Cast()
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.partition("\n----")[0].splitlines()
        answers = []
        for line in lines:
            words = line.split()
            if words[0] == "#":
                continue
            if words == ["new"]:
                cast.close()
                cast = Cast()
                answers.append("empty")
            else:
                answers.append(", ".join(act(cast, words)) or "-")
        blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    cast.close()
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_hand_over_follows_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 5


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("produce A\nproduce B\npoll\n")
    assert good == ("produce A\nproduce B\npoll\n----\nproduce A: taken\nproduce B: waits\nproduce B: taken, poll: A\n")
    assert run(good) == good
    assert run(good.replace("poll: A", "poll: B")) == good
