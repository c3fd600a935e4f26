"""Programs and commands of docs/guide/kafka-streams.md, run on a real broker.

Rules of this file: the page's text is run as it is, but for the broker's address and the application's name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import standfast as sf
from support.pages import blocks, commands

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(180)]

PAGE = "docs/guide/kafka-streams.md"


@pytest.fixture
def app(kafka_address: str, tmp_path: Path) -> str:
    """An application whose stores the page reads: totals, hourly and visits, on the broker."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    stores = [
        sf.KeyValueStore("totals", sf.serde.string, sf.serde.int64),
        sf.WindowStore(
            "hourly", sf.serde.string, sf.serde.int64, window_size_ms=3_600_000, retention_ms=2 * 86_400_000
        ),
        sf.SessionStore("visits", sf.serde.string, sf.serde.bytes, retention_ms=86_400_000),
    ]
    with sf.Session(name, log=kafka_address, state_dir=tmp_path / "app", stores=stores, partitions=1) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        session.task(0).store("totals").put("N123", 7)
        session.task(0).commit()
    return name


def test_page_reads_the_stores_of_an_application(app: str, kafka_address: str, repo_root: Path, tmp_path: Path) -> None:
    found = [one for one in blocks(repo_root) if one.page == PAGE]
    assert [one.kind for one in found] == ["console", "python"]
    text = {one.kind: one.text.replace("kafka://localhost:9092", kafka_address) for one in found}
    program = tmp_path / "replica.py"
    program.write_text(text["python"].replace('"orders"', f'"{app}"'), encoding="utf-8")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": "",
    }
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, ["7", "0"]), ran.stderr
    follow, scan = (command.replace("--app orders", f"--app {app}") for command, _ in commands(text["console"]))
    following = subprocess.Popen(
        ["bash", "-c", f"exec {follow}"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert following.stdout is not None
        assert any("read it with: standfast scan totals" in line for line in following.stdout)  # it has caught up
        ran = subprocess.run(["bash", "-c", scan], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines()[-1].split()[:2] == ["0", "N123"]
    finally:
        following.send_signal(signal.SIGTERM)
        assert following.wait(60) in (0, 143)
