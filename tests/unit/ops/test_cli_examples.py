"""Examples in the help of commands: every command has some, and the parser accepts them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

import pytest

from standfast.ops.command.command_line import build_parser
from standfast.ops.command.examples import EXAMPLES
from standfast.ops.config.store_argument import parse_store

COLUMNS = 80


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands; an alias shares its command's parser and comes once."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in dict.fromkeys(action.choices.values()):
                yield from parsers(one)


COMMANDS = {one.prog: one for one in parsers(build_parser())}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_ends_with_examples_that_the_parser_accepts(command: str) -> None:
    _, heading, examples = COMMANDS[command].format_help().partition("\nexamples:\n")
    lines = examples.splitlines()
    assert heading and 1 <= len(lines) <= 2
    for line in lines:
        assert len(line) <= COLUMNS and f"{line} ".startswith(f"  {command} ")
        args = build_parser().parse_args(shlex.split(line)[1:])
        assert args.command == shlex.split(line)[1] and callable(args.handler)
        given = getattr(args, "stores", None) or getattr(args, "store", None) or []
        for store in [given] if isinstance(given, str) else given:
            assert ":" not in store or parse_store(store).name


def test_examples_are_of_commands_that_exist() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
