"""`standfast topic write`: JSON lines become records, and a wrong line is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.log import Record
from support.serve import wait_for


@pytest.fixture
def address(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/log?synchronous=normal"
    log = sf.open_log(made)
    log.admin.create_topic("words", 2, sf.TopicPolicy())
    log.close()
    return made


def written(address: str) -> list[Record]:
    log = sf.open_log(address)
    reader = log.reader()
    reader.assign({sf.TopicPartition("words", at): 0 for at in range(2)})
    found = [record for batch in reader.fetch(1_000) for record in batch.records]
    log.close()
    return sorted(found, key=lambda record: record.timestamp)


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_lines_of_a_file_become_records(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = lines(
        tmp_path / "lines",
        {"key": "ada", "value": {"page": 7}, "timestamp": 1, "headers": {"trace": "ä", "none": None}, "partition": 1},
        "\n",
        {"key": "ada", "value": None, "timestamp": 2},
        '{"value": "no key, and no end of line", "timestamp": 3}',
    )
    assert main(["topic", "write", "words", file, "--log", address]) == 0
    assert capsys.readouterr().out == "3 records written to words\n"
    first, second, third = written(address)
    assert (first.key, first.value) == (b"ada", b'{"page":7}')
    assert first.headers == (("trace", "ä".encode()), ("none", None))
    assert (second.key, second.value) == (b"ada", None)
    assert (third.key, third.value) == (None, b'"no key, and no end of line"')


def test_serdes_are_chosen_and_bytes_are_hex(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = lines(tmp_path / "lines", {"key": 7, "value": "00ff", "timestamp": 1})
    flags = ["--key-serde", "int64", "--value-serde", "bytes", "--json"]
    assert main(["topic", "write", "words", file, "--log", address, *flags]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "standfast.topic-write/1",
        "topic": "words",
        "records": 1,
    }
    (record,) = written(address)
    assert (record.key, record.value) == (sf.serde.int64.serialize(7), b"\x00\xff")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", "line 2: "),
        ("[1]", "line 2: Expected `object`, got `array`"),
        ('{"key": "k"}', "line 2: Object missing required field `value`"),
        ('{"value": 1, "vlaue": 2}', "line 2: Object contains unknown field `vlaue`"),
        ('{"value": 1, "timestamp": "now"}', "line 2: Expected `int | null`, got `str` - at `$.timestamp`"),
        ('{"value": 1, "key": 5}', "line 2: producer: the key serde 'string' cannot serialise this key"),
        ('{"value": 1, "partition": 2}', "line 2: record for topic 'words': it has 2 partitions, none numbered 2"),
        ('{"value": 1, "headers": {"a": 1}}', "line 2: Expected `str | null`, got `int`"),
    ],
)
def test_wrong_line_of_a_file_is_named_and_nothing_is_written(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    file = lines(tmp_path / "lines", {"value": 1}, line + "\n", {"value": 3})
    assert main(["topic", "write", "words", file, "--log", address]) == 2
    told = capsys.readouterr().err
    assert words in told and "nothing is written" in told
    assert written(address) == []


def test_absent_topic_or_file_says_what_helps(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "write", "other", lines(tmp_path / "lines", {"value": 1}), "--log", address]) == 2
    told = capsys.readouterr().err
    assert "standfast topic create other --partitions N --log " in told and "line 1" not in told
    assert main(["topic", "write", "words", str(tmp_path / "absent"), "--log", address]) == 2
    assert "absent cannot be read: No such file or directory" in capsys.readouterr().err


def test_lines_of_a_pipe_are_written_when_the_input_pauses_up_to_a_wrong_one(address: str) -> None:
    command = [sys.executable, "-P", "-m", "standfast", "topic", "write", "words", "--log", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    try:
        for number in range(3):
            print(json.dumps({"value": number, "timestamp": number}), file=process.stdin, flush=True)
            wait_for(lambda many=number + 1: len(written(address)) == many)  # type: ignore[misc]
        process.stdin.write('{"value": 3, "timestamp": 3}\n{"valu\n{"value": 5}\n')
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 2 and "standard input, line 5: " in told
    assert "4 records were written before the error below" in told
    assert [record.value for record in written(address)] == [b"0", b"1", b"2", b"3"]


def test_records_of_every_batch_are_counted(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"value": "x" * 100_000, "timestamp": number} for number in range(25)]
    file = lines(tmp_path / "lines", *rows)
    assert main(["topic", "write", "words", file, "--log", address]) == 0
    assert capsys.readouterr().out == "25 records written to words\n"
    assert len(written(address)) == 25
