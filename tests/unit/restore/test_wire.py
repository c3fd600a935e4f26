"""Bytes of manifests and of lines between processes, as earlier versions wrote them; and invalid bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.ops.sidecar.worker import protocol as worker
from standfast.ops.sidecar.worker.moves import Holding
from standfast.restore.files.manifest import (
    Made,
    Manifest,
    ManifestFile,
    ManifestPartition,
    dump_manifest,
    parse_manifest,
)
from standfast.store.errors import Corruption, InternalError

FILE = ManifestFile("0-0-0.sst", "kv", 10, 2, "61", "62", "0" * 64, 1)
FILE_LINE = (
    '{"name":"0-0-0.sst","family":"kv","bytes":10,"entries":2,"first_key":"61","last_key":"62",'
    '"sha256":"%s","deletes":1}'
)
MANIFEST_LINE = (
    '{"format":"standfast.manifest/1","app":"app","store":"kv",'
    '"definition":{"kind":"keyvalue","n\\u00e4me":"\\u20ac\\ud83d\\ude00"},"topic":"app-kv-changelog","topic_id":"id",'
    '"partition_count":2,"partitions":[{"partition":1,"start":0,"end":9,"converge_offset":9,"files":[%s],'
    '"observed_ms":-1,"sequence":0,"records":5,"tombstones":1,"superseded":%d,"expired":0,"entries":2,"digest":null%s}],'
    '"made":{"how":"run","at_ms":1,"standfast":"0.1.0","rocksdict":"0.3.29","compression":"lz4"}}'
)


def manifest(skipped: int) -> Manifest:
    part = ManifestPartition(1, 0, 9, 9, (FILE,), -1, 0, 5, 1, 2 - skipped, 0, 2, None, skipped)
    definition = {"kind": "keyvalue", "n\u00e4me": "\u20ac\U0001f600"}
    made = Made("run", 1, "0.1.0", "0.3.29", "lz4")
    return Manifest("app", "kv", definition, "app-kv-changelog", "id", 2, (part,), made)


def manifest_line(skipped: int) -> str:
    told = f',"skipped":{skipped}' if skipped else ""
    return MANIFEST_LINE % (FILE_LINE % ("0" * 64), 2 - skipped, told)


ORDERS: list[tuple[Any, str]] = [
    (
        worker.OpenTails("a", "kafka://h", "/s", 7, "m", "", ({"name": "kv"},), {"n": 1.5, "x": None}),
        '{"do":"Open","app":"a","log":"kafka://h","state_root":"/s","lock":7,"member":"m","cares_for":"",'
        '"stores":[{"name":"kv"}],"settings":{"n":1.5,"x":null}}',
    ),
    (worker.HoldTails(3, (0, 2), ()), '{"do":"Hold","round":3,"active":[0,2],"standby":[]}'),
    (worker.ReadRows(1, "/p", "key=\u00e4"), '{"do":"ReadRows","id":1,"path":"/p","query":"key=\\u00e4"}'),
    (worker.StopTails(), '{"do":"Stop"}'),
]
REPORTS: list[tuple[Any, str]] = [
    (
        worker.TailsState(4, {0: Holding("active", "running"), 12: Holding("standby", "updating", 7)}),
        '{"say":"State","round":4,"tasks":{"0":{"role":"active","state":"running","remaining":0},'
        '"12":{"role":"standby","state":"updating","remaining":7}},"error":"","status":null}',
    ),
    (
        worker.TailsState(1, {}, "bad", {"a": [1, None]}),
        '{"say":"State","round":1,"tasks":{},"error":"bad","status":{"a":[1,null]}}',
    ),
    (worker.RowsPage(1, 200), '{"say":"Rows","id":1,"status":200,"document":{}}'),
    (worker.TailsFailed("Held", "m\u00fc"), '{"say":"Failed","kind":"Held","message":"m\\u00fc"}'),
]
PARSERS = (worker.parse_order, worker.parse_report)


@pytest.mark.parametrize("skipped", [0, 1])
def test_manifest_is_written_as_ever_and_names_what_was_skipped_only_where_there_is_any(skipped: int) -> None:
    text = json.dumps(json.loads(manifest_line(skipped)), indent=1) + "\n"
    assert dump_manifest(manifest(skipped)) == text
    assert parse_manifest(text, "here") == manifest(skipped)


@pytest.mark.parametrize(("order", "line"), ORDERS)
def test_orders_to_a_standby_worker_keep_their_bytes(order: worker.Order, line: str) -> None:
    assert worker.order_line(order) == line.encode() + b"\n"
    assert worker.parse_order(line.encode()) == order


@pytest.mark.parametrize(("report", "line"), REPORTS)
def test_reports_of_a_standby_worker_keep_their_bytes(report: worker.Report, line: str) -> None:
    assert worker.report_line(report) == line.encode() + b"\n"
    assert worker.parse_report(line.encode()) == report


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b"{}",
        b"Traceback",
        b'{"do":',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe{}",
        b"NaN",
    ],
)
def test_bytes_that_are_no_message_are_refused_as_a_bug_of_ours(parse: Any, line: bytes) -> None:
    with pytest.raises(InternalError):
        parse(line)


@pytest.mark.parametrize(
    ("parse", "line"),
    [
        (worker.parse_order, b'{"do":"Boom"}'),
        (worker.parse_order, b'{"do":"Stop","more":1}'),
        (worker.parse_order, b'{"do":"Hold","round":1,"active":[]}'),
        (worker.parse_report, b'{"say":"Boom"}'),
        (worker.parse_report, b'{"say":"Rows","id":1,"status":200,"more":1}'),
        (worker.parse_report, b'{"say":"State","round":1,"tasks":{"x":{"role":"active","state":"running"}}}'),
        (worker.parse_report, b'{"say":"State","round":1,"tasks":{"0":{"role":"active"}}}'),
        (worker.parse_report, b'{"say":"State","round":1,"tasks":{"0":{"role":"active","state":"x","more":1}}}'),
    ],
)
def test_messages_of_another_kind_or_with_other_fields_are_refused(parse: Any, line: bytes) -> None:
    with pytest.raises(InternalError):
        parse(line)


def test_order_that_cannot_be_read_is_not_repeated_because_it_may_hold_a_password() -> None:
    with pytest.raises(InternalError) as refused:
        worker.parse_order(b'{"do":"Open","app":"a","log":"kafka://user:hunter2@h","lock":"hunter2"}')
    assert "hunter2" not in str(refused.value)


def test_manifest_of_an_impossible_run_is_refused() -> None:
    wrong = manifest_line(0).replace('"end":9', '"end":-9')
    with pytest.raises(Corruption, match="end -9"):
        parse_manifest(wrong, "here")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":"standfast.manifest/1","definition":' + '{"a":' * 100_000])
def test_manifest_nested_without_end_is_damaged(text: str) -> None:
    with pytest.raises(Corruption, match="is not readable"):
        parse_manifest(text, "here")
