"""Arguments of commands: any order, keys that begin with a dash, and errors that name the command."""

from __future__ import annotations

import pytest

from standfast.ops.command.command_line import build_parser, main

GOOD: list[tuple[list[str], dict[str, object]]] = [
    (["topic", "write", "a", "--log", "X", "f"], {"topic": "a", "log": "X", "file": "f"}),
    (["topic", "write", "--log", "X", "a", "--json", "f"], {"topic": "a", "log": "X", "file": "f", "json": True}),
    (["topic", "write", "a", "--log", "X"], {"topic": "a", "file": "-"}),
    (["topic", "write", "a", "-", "--log", "X"], {"file": "-"}),
    (["changelog", "head", "--limit", "3", "t", "--log", "X"], {"topic": "t", "limit": 3}),
    (["snapshot", "verify", "--from", "S", "1", "--app", "a", "2"], {"snapshot": ["1", "2"], "app": "a"}),
    (["snapshot", "restore", "--from", "S", "-oD", "--app", "a"], {"output_text": "D"}),
    (["snapshot", "restore", "--from", "S", "-n", "-o", "D"], {"output_text": "D", "dry_run": True}),
    (["get", "s", "--url", "U", "k"], {"store": "s", "key": "k", "url": "U"}),
    (["get", "s", "-7", "--url", "U"], {"key": "-7"}),
    (["get", "s", "-key", "--url", "U"], {"key": "-key"}),
    (["get", "--url", "U", "s", "--", "--key"], {"key": "--key"}),
    (["get", "s", "--url", "U", "--", "--json"], {"key": "--json", "json": False}),
    (["get", "s", "a b=c", "--url=U"], {"key": "a b=c", "url": "U"}),
    (["get", "s", "", "--url", "U"], {"key": ""}),
    (["scan", "s", "--prefix", "-a", "--from", "--x", "--url", "U"], {"prefix": "-a", "key_from": "--x"}),
    (["scan", "s", "--prefix=", "--url", "U"], {"prefix": ""}),
    (["scan", "s", "--lim", "5", "--url", "U"], {"limit": 5}),
    (["placement", "--app", "a", "--log", "X"], {"app": "a", "log": "X"}),
    (["placement", "--app", "a", "--task", "0_1"], {"app": "a", "task": "0_1"}),
]
BAD: list[tuple[list[str], str, str]] = [
    (["staus"], "usage: standfast ", "standfast has no command 'staus': did you mean 'status'?"),
    (["zebra"], "usage: standfast ", "has no command 'zebra': it has serve, drain, run"),
    (
        ["topic", "wirte", "a"],
        "usage: standfast topic ",
        "standfast topic has no command 'wirte': did you mean 'write'?",
    ),
    (["snapshot", "lst"], "usage: standfast snapshot ", "did you mean 'list'?"),
    (["--log", "X", "topics"], "usage: standfast ", "the options of a command stand after its name"),
    (["topic", "write", "a", "f", "g"], "usage: standfast topic write ", "unrecognized arguments: g"),
    (["get", "s", "k", "--stat-dir", "D"], "usage: standfast get ", "'--stat-dir': did you mean '--state-dir'?"),
    (["get", "s", "--kkkk"], "usage: standfast get ", "a KEY that begins with two dashes stands after --"),
    (["status", "-json"], "usage: standfast status ", "unrecognized arguments: -json: did you mean '--json'?"),
    (["get", "s", "k", "--sta"], "usage: standfast get ", "ambiguous option"),
    (["get", "s"], "usage: standfast get ", "required: KEY"),
    (["get", "s", "k", "--url"], "usage: standfast get ", "argument --url: expected one argument"),
    (["get", "s", "k", "--url", "--json"], "usage: standfast get ", "argument --url: expected one argument"),
    (["get", "s", "--", "--"], "usage: standfast get ", "the argument -- cannot be given as a word"),
    (["get", "s", "\udcff"], "usage: standfast get ", "not UTF-8: give its bytes with --key-format hex"),
]


def test_options_and_words_come_in_any_order() -> None:
    wrong = []
    for words, wanted in GOOD:
        found = vars(build_parser().parse_args(words))
        found["output_text"] = str(found.get("output"))
        if {name: found[name] for name in wanted} != wanted:
            wrong.append((words, found))
    assert wrong == []


def test_usage_error_prints_the_usage_of_its_command_and_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for words, usage, said in BAD:
        code = main(words)
        told = capsys.readouterr().err
        if code != 2 or not told.startswith(usage) or said not in " ".join(told.split()):
            wrong.append((words, code, told))
    assert wrong == []
