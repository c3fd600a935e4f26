"""The command simulate: a part plays a seeded simulation, and its promises are checked.

    standfast simulate placement [--seed N] [--instances N] [--tasks N] [--changes N] [--runs N]

Rules of this file: arguments, tables and JSON; `standfast.ops.simulation` plays. Equal seeds give equal output.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import prints
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.ops.simulation.play import Outcome

SCHEMA = "standfast.simulate-placement/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "play a seeded simulation and check its promises"
    parser = subparsers.add_parser("simulate", help=text, description=f"{text[0].upper()}{text[1:]}.")
    commands = parser.add_subparsers(dest="simulate_command", required=True, metavar="COMMAND")
    placement = commands.add_parser(
        "placement",
        help="instances join, leave and restore slowly while tasks are placed",
        description="Instances join, stop, are killed, come back and restore at different speeds; a leader places "
        "their tasks with the function that managed placement uses. Each round is checked: one active a task, no "
        "active and standby of it together, the budget of warm-ups, balance, progress.",
        epilog="Exit codes: 0 every promise held, 1 one was broken, with the seed that repeats it.",
    )
    placement.add_argument("--seed", type=int, default=1, metavar="N", help="chooses all that happens (default: 1)")
    placement.add_argument("--instances", type=int, metavar="N", help="at the start (default: the seed chooses)")
    placement.add_argument("--tasks", type=int, metavar="N", help="of the application (default: the seed chooses)")
    placement.add_argument("--changes", type=int, metavar="N", help="that happen (default: the seed chooses)")
    placement.add_argument("--runs", type=int, default=1, metavar="N", help="seeds from --seed on (default: 1)")
    prints(placement, run_placement, "json")


def run_placement(args: argparse.Namespace, out: Output) -> int:
    """simulate placement."""
    from standfast.ops.simulation.play import Plan, play

    if args.runs < 1:
        raise InvalidRequest(f"--runs is {args.runs}: give 1 or more")
    seeds = range(args.seed, args.seed + args.runs)
    options = [Plan(seed, args.instances, args.tasks, args.changes) for seed in (seeds[0], seeds[-1])]
    if args.runs == 1:
        outcome = play(options[0])
        out.document({"schema": SCHEMA, **_document(outcome)})
        _print(outcome, out)
        return NEGATIVE if outcome.problems else OK
    broken: list[dict[str, Any]] = []
    ticks = 0
    with out.progress("simulating", args.runs) as bar:
        for seed in seeds:
            outcome = play(Plan(seed, args.instances, args.tasks, args.changes))
            ticks += outcome.ticks
            if outcome.problems:
                broken.append({"seed": seed, "problems": outcome.problems})
            bar.advance(1)
    out.document({"schema": SCHEMA, "seeds": args.runs, "first_seed": args.seed, "rounds": ticks, "broken": broken})
    for one in broken:
        out.line(f"seed {one['seed']}: {one['problems'][0]}")
    out.line(f"{args.runs:,} seeds, {ticks:,} rounds: {f'{len(broken):,} broken' if broken else 'every promise held'}")
    return NEGATIVE if broken else OK


def _print(outcome: Outcome, out: Output) -> None:
    out.table(("tick", "event"), outcome.events, right=("tick",), fold=("event",))
    out.line()
    columns = ("instance", "slots", "actives", "standbys")
    out.table(columns, outcome.instances, right=("slots", "actives", "standbys"))
    out.line()
    moves = ", ".join(f"{many:,} {kind}" for kind, many in sorted(outcome.moves.items())) or "none"
    out.text(f"seed {outcome.seed}: {outcome.tasks:,} tasks, {outcome.ticks:,} rounds; moves: {moves}")
    if outcome.slots_missing:
        out.text(f"WAITING_FOR_SLOTS: {outcome.slots_missing:,} more are needed")
    for problem in outcome.problems:
        out.text(f"broken: {problem}")
    if not outcome.problems:
        out.line("every promise held")


def _document(outcome: Outcome) -> dict[str, Any]:
    from standfast.replication.placement.document import plain_settings

    return {
        "seed": outcome.seed,
        "tasks": outcome.tasks,
        "settings": plain_settings(outcome.settings),
        "rounds": outcome.ticks,
        "generations": outcome.generations,
        "events": [{"tick": tick, "event": text} for tick, text in outcome.events],
        "moves": dict(sorted(outcome.moves.items())),
        "warmups_most": outcome.warmups_most,
        "instances": [
            {"instance": name, "slots": slots, "actives": actives, "standbys": standbys}
            for name, slots, actives, standbys in outcome.instances
        ],
        "slots_missing": outcome.slots_missing,
        "problems": outcome.problems,
    }
