"""Screens of commands at 80 columns, compared with golden text in `tests/golden/screens/`.

Rules of this file: real commands in a real terminal on a real instance; only ids, times and processor-dependent figures
are masked, digit by digit, so that widths count. STANDFAST_GOLDEN=write rewrites the files, to be read before they
are kept.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import standfast as sf
from standfast.ops.demo.result import print_card
from standfast.ops.shared.output import Output
from support.demo import good_result
from support.placed import PlacedLog
from support.terminal import shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GOLDEN = Path(__file__).parents[2] / "golden" / "screens"
COLUMNS = 80
HOUR_MS = 3_600_000
AT_MS = 1_357_020_000_000
# What differs from run to run: the instance's id, how long the last promotion took.
MASKS = (
    (re.compile(r"(?<=instance )[0-9a-f]{12}"), "0123456789ab"),
    (re.compile(r"(?<=took )\d+(?= ms)"), "0"),
    (re.compile(r"(?<=stream time lies )\d{4}(?:\.\d)?(?= d)"), "1234.5"),
    (re.compile(r"20[2-9]\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ"), "2013-01-01T08:00:00.000Z"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a log, and an instance with its HTTP server that runs on `state`."""
    root = tmp_path_factory.mktemp("screens")
    (root / "tmp").mkdir()
    log = sf.open_log(f"sqlite:///{root}/log")
    log.admin.create_topic("flights", 2, sf.TopicPolicy())
    log.close()
    placed = PlacedLog(f"sqlite:///{root}/log", "orders")
    placed.write_example()
    placed.close()
    stores = [
        sf.KeyValueStore("aircraft", sf.serde.string, sf.serde.json),
        sf.WindowStore(
            "delays-by-hour",
            sf.serde.string,
            sf.serde.int64,
            window_size_ms=HOUR_MS,
            retention_ms=24 * HOUR_MS,
            changelog={"retention.ms": str(48 * HOUR_MS)},  # a topic of earlier versions
        ),
    ]
    session = sf.Session(
        "delays", log=f"sqlite:///{root}/log", state_dir=root / "state", partitions=2, stores=stores, http_port=0
    )
    with session:
        session.assign(active=[0, 1])
        session.wait_ready(60)
        for partition in (0, 1):
            task = session.task(partition)
            for number in range(1_200):
                task.store("aircraft").put(f"N{number}", {"airport": "JFK"}, AT_MS + number)
                start = AT_MS + HOUR_MS * (number % 20)
                task.store("delays-by-hour").put(f"N{number % 50}", number, start, AT_MS + number)
            task.commit(source_offsets={("flights", partition): 1_200})
        yield root


SCREENS = {
    "placement": "placement --app orders --log sqlite:///./log --utc",
    "status": "status --state-dir state",
    "tasks": "tasks --state-dir state",
    "lag": "lag --state-dir state",
    "get": "get aircraft N1 --state-dir state --utc",
    "changelog-stats": "changelog stats --app delays --store aircraft --log sqlite:///./log",
    "doctor": "doctor --app delays --log sqlite:///./log --source flights --store aircraft:keyvalue --store "
    "delays-by-hour:window:size=1h,retention=2d",
}


def compared(name: str, text: str) -> None:
    for mask, instead in MASKS:
        text = mask.sub(instead, text)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("STANDFAST_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCREENS)
def test_screen_at_80_columns_is_the_golden_one(folder: Path, name: str) -> None:
    text = shown(SCREENS[name].split(), folder, COLUMNS, {"TMPDIR": str(folder / "tmp"), "TZ": "UTC"})
    text = text.replace(str(folder), "DIR")
    # A command to be copied is one line, however long it is.
    assert max(len(line) for line in text.splitlines() if not line.startswith("    run: ")) <= COLUMNS
    compared(name, text)


def test_verify_of_a_closed_instance_at_80_columns_is_the_golden_one(folder: Path, tmp_path: Path) -> None:
    with sf.Session(
        "counts",
        log=f"sqlite:///{folder}/log",
        state_dir=tmp_path / "state",
        partitions=1,
        stores=[sf.KeyValueStore("seen", sf.serde.string, sf.serde.int64)],
    ) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        session.task(0).store("seen").put_all((f"k{number}", number) for number in range(300))
        session.task(0).commit()
    words = ["verify", "--state-dir", "state", "--log", f"sqlite:///{folder}/log"]
    compared("verify", shown(words, tmp_path, COLUMNS, {"TMPDIR": str(folder / "tmp"), "TZ": "UTC"}))


def test_card_of_the_demo_at_80_columns_is_the_golden_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout", out := Terminal())
    print_card(good_result(), Output())
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= COLUMNS
    compared("demo", text)
