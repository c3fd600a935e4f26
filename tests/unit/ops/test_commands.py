"""The table of commands: complete, in the order of --help, and a command loads its own module only."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from standfast.ops.command.command_line import build_parser
from standfast.ops.command.commands import COMMANDS


def commands_of(parser: argparse.ArgumentParser) -> list[str]:
    (found,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return list(found.choices)


def test_whole_command_line_has_every_command_in_the_order_of_the_table() -> None:
    assert commands_of(build_parser()) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_line_of_a_command_has_the_command(command: str) -> None:
    found = commands_of(build_parser(command))
    assert command in found and len(found) < 5


@pytest.mark.slow
def test_command_loads_no_module_of_another_product() -> None:
    script = """
import sys
from standfast.ops.command.command_line import build_parser
build_parser("get").parse_args(["get", "counts", "k", "--state-dir", "d"])
others = ("bench", "demo", "sidecar", "http", "doctor", "cli.spark", "cli.process", "cli.log")
print([m for m in sys.modules if m.startswith(tuple(f"standfast.ops.{one}" for one in others))])
print([m for m in sys.modules if m.startswith(("standfast.restore", "standfast.stream."))])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['standfast.stream.http_servers']"]
