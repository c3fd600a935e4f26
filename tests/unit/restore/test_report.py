"""Reports: words for people, and pages that show any name as plain text.

Rules of this file: pages are made of whole summary documents and read back by an HTML parser; no Spark is started.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from unit.restore.test_spark_verify_rows import VALUE

from standfast.restore.compare import UnequalRow, row_side
from standfast.restore.digest import row_hash
from standfast.restore.report.page import COUNTS, page, pipeline_page
from standfast.restore.report.text import SHOWN_BYTES, key_text, shown, side_text
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.report import PAGE, write_report
from standfast.store import session_key, window_key

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "span", "i", "ul", "li", "strong"),
    *("div", "table", "thead", "tbody", "tr", "th", "td", "code", "svg", "text", "rect", "details", "summary"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "class", "style", "role", "aria-label", "width", "height", "viewbox"),
    *("x", "y", "text-anchor", "open"),
}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror="alert(1)">',
    "' onload='alert(1)",
    "</style></title></table><iframe src=//x>",
    "{{ 7 * 7 }}{% include 'style.css' %}",
    "&lt;b&gt; &amp;",
)


class Reading(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def row(store: str, **given: Any) -> dict[str, Any]:
    """A partition of a summary."""
    counts = dict.fromkeys(("position", "end", "records", *COUNTS), 1)
    about = {"store": store, "kind": "keyvalue", "verdict": "equal", "partition": 0, "explanation": "", "skipped": 0}
    return about | counts | {"log_digest": "1-00-1", "store_digest": "1-01-1"} | given


def summary(stores: Sequence[Mapping[str, Any]], **given: Any) -> dict[str, Any]:
    """The summary of a verify."""
    about = {"app": "a", "verdict": "different", "elapsed_ms": 1, "log": "l", "source": "native", "sample": 1}
    return about | {"indeterminate": 0, "stores": stores} | given


def hostile_verify(evil: str) -> str:
    cells = row(evil, kind=evil, verdict=evil, explanation=evil, skipped=1, log_digest=evil, store_digest=evil)
    return page(summary([cells], app=evil, verdict=evil, log=evil, source=evil), hostile_rows(evil))


def hostile_pipeline(evil: str) -> str:
    made = {"rows": 1, "files": 1, "bytes": 1, "elapsed_ms": 1, "warnings": [evil], "kept": True, "folder": evil}
    numbers = ("partition", "end", "converge_offset", "rows", "tombstones", "superseded", "expired", "skipped", "bytes")
    parts = ("partition", "begin", "end", "records", "gaps", "tombstones", "keys", "bytes", "value_max_bytes")
    store = row(evil, kind=evil, verdict=evil) | {
        "topic": evil,
        "inspected": [dict.fromkeys((*parts, "first_ms", "last_ms"), 1)],
        "rebuilt": made | {"partitions": [dict.fromkeys(numbers, 1) | {"digest": evil}]},
        "verify_ms": 1,
        "same_position": [0],
        "rebuilt_differs": [0],
        "rebuild_left_out": evil,
        "verified": [row(evil, explanation=evil, skipped=2)],
    }
    about = {"looked_at": "state", "state": evil, "spark": evil, "master": evil, "ended_ms": 1, "records": 1, "rows": 1}
    whole = summary([store], app=evil, verdict=evil, log=evil, source=evil, differences=3, **about)
    return pipeline_page(whole, hostile_rows(evil))


def hostile_rows(evil: str) -> list[dict[str, Any]]:
    side = row_side((evil.encode(), 1, evil.encode()), None)
    return [{"store": evil, "partition": 0, "row": evil, "key": evil, "log": side, "store_row": None}]


@pytest.mark.parametrize("evil", HOSTILE)
@pytest.mark.parametrize("make", [hostile_verify, hostile_pipeline])
def test_hostile_names_stay_text_wherever_they_stand(make: Callable[[str], str], evil: str) -> None:
    reading = Reading(make(evil))
    assert reading.tags <= TAGS and reading.attributes <= ATTRIBUTES
    text = "".join(reading.text)
    assert text.count(evil) >= 12  # whole, and never read as markup or as a template
    assert "49" not in text


def test_page_is_whole_by_itself() -> None:
    text = hostile_pipeline("kv")
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert "src=" not in text and "href=" not in text and "<script" not in text and "url(" not in text


def test_verdicts_have_their_colours_and_others_none() -> None:
    for verdict in ("equal", "different", "inconclusive"):
        assert f'<td class="v {verdict}">{verdict}</td>' in page(summary([row("kv", verdict=verdict)]), [])
    assert '<td class="v ">odd</td>' in page(summary([row("kv", verdict="odd")]), [])


def test_bar_shows_every_share_that_is_not_zero_and_says_where_there_are_no_rows() -> None:
    none = dict.fromkeys(COUNTS, 0)
    text = page(summary([row("kv", **none | {"matched": 10**6, "stale": 1}), row("empty", **none)]), [])
    widths = [float(part.partition('"')[0]) for part in text.split(' width="')[2:] if "." in part.partition('"')[0]]
    assert len(widths) == 2 and min(widths) >= 2.9 and sum(widths) <= 560.1
    assert text.count("<rect ") == 2 and text.count(">no rows</text>") == 1
    assert "<title>matched: 1,000,000</title>" in text


@pytest.mark.parametrize(
    ("found", "wrong", "says"),
    [(0, 0, "Differences (0)</h2><p>None.</p>"), (0, 2, "Differences (the first 0 of 2)</h2><p>Only counted.</p>"),
     (1, 1_500, "Differences (the first 1 of 1,500)</h2>"), (1, 1, "Differences (1)</h2>")],
)  # fmt: skip
def test_differences_are_named_counted_or_none(found: int, wrong: int, says: str) -> None:
    wrongs = {"missing": wrong, "extra": 0, "different": 0, "stale": 0}
    assert says in page(summary([row("kv", **wrongs)]), hostile_rows("k")[:found])


@pytest.mark.slow
def test_tasks_of_spark_need_no_template_library() -> None:
    modules = ("verify", "rebuild", "both", "settle", "inspect", "pipeline", "report", "frames", "source")
    script = f"import sys; {'; '.join(f'import standfast.restore.spark.{name}' for name in modules)}\n"
    script += "import standfast.restore.spark_table.source\nassert 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_side_is_shown_without_its_value_unless_it_was_kept_and_cut() -> None:
    assert side_text(None) == "(absent)"
    assert side_text(row_side((b"k", 5, VALUE), 0)) == f"6,000 B #{row_hash(b'k', 5, VALUE):016x} @5"
    whole = side_text(row_side((b"k", 5, VALUE), None))
    assert whole.startswith("secretsecret") and whole.endswith("… (6,000 B) @5") and len(whole) < SHOWN_BYTES + 30
    assert side_text(row_side((b"k", -1, b"v"), None)) == "v"


def test_text_that_is_cut_within_a_character_is_shown_as_text() -> None:
    assert shown(b"a" * (SHOWN_BYTES - 1) + "é".encode()) == "a" * (SHOWN_BYTES - 1) + "…"
    assert shown(b"\xff" * 200).startswith("0xffff")


def test_keys_of_windows_and_sessions_are_shown_with_their_times_and_damaged_ones_as_they_are() -> None:
    at_ms = 1_700_000_000_123
    text = "2023-11-14T22:13:20.123Z"
    assert key_text("window", window_key.pack(b"k3", at_ms)) == f"k3 [{text}]"
    assert key_text("window", window_key.pack(b"k3", at_ms, 7)) == f"k3 [{text}] #7"
    assert key_text("session", session_key.pack(b"k3", at_ms, at_ms)) == f"k3 [{text} - {text}]"
    assert key_text("window", window_key.pack(b"k3", 2**63 - 1)) == f"k3 [{2**63 - 1}]"
    assert key_text("keyvalue", b"k3") == "k3"
    assert key_text("window", b"\xff") == key_text("session", b"\xff") == "0xff"


def test_page_has_digests_in_a_table_of_their_own() -> None:
    text = page(summary([row("kv", log_digest="1-00ff-2", store_digest="1-00fe-2")]), [])
    first, second = text.split("</table>")[:2]
    assert "digest" not in first.partition("<body>")[2]
    assert "1-00ff-2" in second and "1-00fe-2" in second


def test_page_shows_keys_with_their_times_and_no_values(tmp_path: Path) -> None:
    key = window_key.pack(b"<b>", 1_000)
    found = UnequalRow("extra", key, None, row_side((key, 5, VALUE), 0), -1)
    write_report(Folder(str(tmp_path)), summary([row("win", kind="window", verdict="different")]), [("win", 0, found)])
    text = (tmp_path / PAGE).read_text()
    assert "&lt;b&gt; [1970-01-01T00:00:01.000Z]" in text and "6,000 B #" in text
    assert "secret" not in text and "<b>" not in text
