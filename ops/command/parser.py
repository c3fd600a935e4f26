"""The parser of a command's arguments: options and words in any order.

    topic write NAME --log X FILE      ──> --log=X -- NAME FILE     argparse alone gives FILE to no argument
    get counts -7a --prefix --state-dir D                           a key may begin with one dash; a value with any
    get counts --state-dir D -- --key                               after `--` all are words

Rules of this file: it only orders the arguments of a command, and words the errors; argparse parses them. An error is
printed with the usage of the command that it is about.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from typing import Any

END = "--"


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with examples of its command. Subcommands get parsers of this class too."""

    def format_help(self) -> str:
        from standfast.ops.command.examples import EXAMPLES  # only where help is printed

        # Below the epilog and not in it, since argparse wraps an epilog.
        lines = [f"  {line}\n" for line in EXAMPLES.get(self.prog, ())]
        return "".join([super().format_help(), "\nexamples:\n" * bool(lines), *lines])

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; an argument that is left over is an error here, where argparse would report it of `standfast`."""
        given: list[str] = list(sys.argv[1:] if args is None else args)
        ordered = self._checked(given) if self._subparsers else self._ordered(given)
        found, extra = super().parse_known_args(ordered, namespace)
        extra = [one for one in extra if one != END]
        if extra:
            near = nearest(f"-{extra[0]}", self._option_string_actions) if extra[0].startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(extra)}{near}")
        return found, extra

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = ", ".join(action.choices)
            self.error(f"{self.prog} has no command {value!r}{nearest(value, action.choices) or f': it has {known}'}")
        super()._check_value(action, value)

    def _checked(self, given: list[str]) -> list[str]:
        """Arguments of a command that has commands: its own options, a command, and what that parses."""
        first = given[0] if given else ""
        if first.startswith(END) and first != END and not self._options(first.partition("=")[0]):
            self.error(f"unknown option {first!r} of {self.prog}: the options of a command stand after its name")
        return given

    def _ordered(self, given: list[str]) -> list[str]:
        """Options, each with its value, before words."""
        options: list[str] = []
        words: list[str] = []
        at = 0
        while at < len(given):
            text = given[at]
            at += 1
            if text == END:
                words += given[at:]
                break
            name, _, value = text.partition("=")
            found = self._options(name)
            if not found:
                if text.startswith(END):
                    self._refuse(name)
                words.append(text)
                continue
            takes = found[0].nargs is None
            # The text after an option is its value, whatever it begins with; an option's name is a forgotten value.
            if takes and text == name and at < len(given) and not self._options(given[at]) and given[at] != END:
                value = given[at]
                at += 1
                text = f"{name}={value}"
            options.append(text)
        if END in words:
            self.error("the argument -- cannot be given as a word")
        return [*options, *([END, *words] if words else [])]

    def _options(self, name: str) -> list[argparse.Action]:
        """The options that a name means: its own, or all that it abbreviates, of which argparse takes only one."""
        known = self._option_string_actions
        if name in known:
            return [known[name]]
        if not name.startswith(END):
            short = known.get(name[:2])  # -oDIR
            return [short] if short is not None and short.nargs is None else []
        return [action for option, action in known.items() if option.startswith(name)]

    def _refuse(self, name: str) -> None:
        near = nearest(name, self._option_string_actions)
        words = [str(action.metavar) for action in self._actions if not action.option_strings]
        after = f"; a {words[-1]} that begins with two dashes stands after --" if words else ""
        self.error(f"unknown option {name!r}{near or after}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'x'?` for the nearest known name, or ""."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f": did you mean {near[0]!r}?" if near else ""
