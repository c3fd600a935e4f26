"""Pictures of the documentation, from real runs: the ops page, the report of a pipeline, commands in a terminal.

    make docs-pictures      ──> docs/pictures/*.png, *.svg        needs Debian's chromium

A log of 4,800,000 changes is written, an instance with an empty directory restores it and serves its page, and Chromium
takes pictures while it restores and once it runs, in light and dark, and as wide as a phone. Then `standfast pipeline`
checks the instance's files on Spark, and commands run in a terminal of 80 columns.

Rules of this file: nothing is drawn by hand; a picture that cannot be taken ends the run.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

import standfast as sf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.terminal import lines_shown

PICTURES = Path(__file__).parent / "pictures"
PARTITIONS, KEYS, VERSIONS = 4, 400_000, 3
HISTORY_S = 15.0  # so long a page has been open before its pictures, for its lines
HOUR_MS = 3_600_000
AT_MS = 1_357_020_000_000
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
COLUMNS = 80


def session(name: str, **settings: Any) -> sf.Session:
    """The instance of the pictures: positions of aircraft, and delays by hour."""
    stores = [
        sf.KeyValueStore("aircraft", sf.serde.string, sf.serde.json),
        sf.WindowStore(
            "delays-by-hour", sf.serde.string, sf.serde.int64, window_size_ms=HOUR_MS, retention_ms=24 * HOUR_MS
        ),
    ]
    return sf.Session("delays", log="sqlite:///./log", state_dir=name, partitions=PARTITIONS, stores=stores, **settings)


def fill() -> None:
    """Write the changes that the instance of the pictures restores."""
    with session("writer") as writer:
        writer.assign(active=range(PARTITIONS))
        writer.wait_ready(60)
        for partition in range(PARTITIONS):
            task = writer.task(partition)
            for number in range(KEYS * VERSIONS):
                task.store("aircraft").put(f"N{number % KEYS}", {"airport": "JFK", "flight": number}, AT_MS + number)
                if number % 10 == 0:
                    start = AT_MS + HOUR_MS * (number % 20)
                    task.store("delays-by-hour").put(f"N{number % 50}", number, start, AT_MS + number)
                if number % 1_000 == 999:
                    task.commit(source_offsets={("flights", partition): number + 1})


def page_pictures(root: Path) -> None:
    """The ops page of an instance that restores, and of the same one once it runs."""
    last = PARTITIONS - 1
    with (
        browser() as chromium,
        session("writer") as writer,
        session("state", http_port=0, restore_workers=0) as running,
    ):
        reader = chromium.new_page()
        reader.goto(running.http_address)
        writer.assign(active=[last])
        writer.wait_ready(60)
        running.assign(active=range(last), standby=[last])
        reader.locator("#restores polyline").first.wait_for(state="attached")
        for look in ("light", "dark"):
            picture(chromium, running.http_address, f"page-restoring-{look}", look, WIDE)
        picture(chromium, running.http_address, "page-restoring-phone", "light", PHONE)
        running.wait_ready(120)
        until = time.monotonic() + HISTORY_S
        number = 0
        while time.monotonic() < until:
            number += 1
            for partition in range(PARTITIONS):
                task = (writer if partition == last else running).task(partition)
                for one in range(200):
                    task.store("aircraft").put(f"N{one}", {"airport": "EWR", "flight": number}, AT_MS + number)
                task.commit(source_offsets={("flights", partition): KEYS * VERSIONS + number})
            reader.wait_for_timeout(100)
        picture(chromium, running.http_address, "page", "light", WIDE)
        picture(chromium, running.http_address, "page-phone", "light", PHONE)
        terminal(root, "status", "status --state-dir state")


def picture(chromium: Any, address: str, name: str, look: str, size: dict[str, int]) -> None:
    """One picture of a page, as long as the page is."""
    context = chromium.new_context(viewport=size, color_scheme=look, device_scale_factor=1)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("h1")
    # The page leaves sections out of sight undrawn; a picture shows all of them.
    page.evaluate("document.querySelectorAll('section').forEach(one => { one.style.contentVisibility = 'visible' })")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
    context.close()


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("pictures need Debian's Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def report_picture(root: Path) -> None:
    """The report of `standfast pipeline` over the instance's files."""
    command = "pipeline --state-dir state --log sqlite:///./log --out report --master local[2]"
    subprocess.run([sys.executable, "-P", "-m", "standfast", *command.split()], cwd=root, check=True)
    with browser() as chromium:
        picture(chromium, (root / "report/report.html").as_uri(), "report", "light", WIDE)


def terminal(root: Path, name: str, words: str) -> None:
    """A command in a terminal, as a picture of text."""
    lines = lines_shown(words.split(), root, COLUMNS, {"TZ": "UTC"})
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ standfast {words}", style="bold"))
    console.print(Text.from_ansi("\n".join(lines).rstrip()))
    console.save_svg(str(PICTURES / f"{name}.svg"), title="standfast")


def main() -> None:
    """Take every picture."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standfast-pictures-") as name:
        root = Path(name)
        os.chdir(root)  # pictures show short addresses
        fill()
        page_pictures(root)
        for command, words in (
            ("verify", "verify --state-dir state --log sqlite:///./log"),
            ("changelog-stats", "changelog stats --app delays --store aircraft --log sqlite:///./log"),
            ("doctor", "doctor --app delays --state-dir state --log sqlite:///./log"),
        ):
            terminal(root, command, words)
        report_picture(root)


if __name__ == "__main__":
    main()
