"""The demo's last step: once as users run it, and the card's text where the step is skipped.

Rules of this file: a real run over few flights; results made by hand elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from unit.ops.test_demo import SETTINGS

from standfast.ops.demo.demo import report
from standfast.ops.demo.result import Json
from standfast.ops.demo.spark import run_spark
from standfast.ops.shared.output import Output
from standfast.replication.tail.open_log import open_log
from support.demo import good_result

RUN: Json = {
    "verdict": "equal",
    "version": "Spark 4.0.0",
    "stores": 4,
    "records": 1_000,
    "rows": 200,
    "differences": 0,
    "rebuilt": 16,
    "same_digest": 16,
    "elapsed_ms": 9_500,
    "report": "/x/spark/report.html",
}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_demo_ends_with_all_stores_rebuilt_and_verified_on_spark(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    command = [sys.executable, "-P", "-m", "standfast", "demo", "--limit", "1500", "--dir", str(folder), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=660, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    ran = document["spark"]
    assert (ran["verdict"], ran["stores"], ran["differences"]) == ("equal", 4, 0)
    assert (ran["rebuilt"], ran["same_digest"]) == (16, 16)
    assert ran["rows"] == document["verify"]["rows"]
    assert not [line for line in document["left_out"] if "Spark" in line]
    assert "step 1 of " in ended.stderr and "rebuilding and verifying " in ended.stderr
    assert Path(ran["report"]).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_card_tells_of_the_run_and_of_what_turns_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    report(good_result(spark=RUN), Output())
    told = capsys.readouterr().out
    assert "Spark         4 stores rebuilt and verified in 9.50 s: 200 rows equal, 0 differences" in told
    report(good_result("pip install 'standfast[spark]'"), Output())
    told = capsys.readouterr().out
    assert "all stores rebuilt and verified on Spark: pip install 'standfast[spark]'" in told


@pytest.mark.parametrize("change", [{"verdict": "different", "differences": 1}, {"same_digest": 15}])
def test_run_that_finds_anything_wrong_fails_the_demo(
    change: Json,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(good_result(spark=RUN), Output(as_json=True)) == 0
    assert report(good_result(spark=RUN | change), Output(as_json=True)) == 1
    capsys.readouterr()


def test_what_is_not_installed_is_no_fault_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(f"sqlite:///{tmp_path}/log.db")
    out = Output()
    with monkeypatch.context() as patch:
        patch.setattr("pandas.__version__", "3.1.1")
        assert run_spark(tmp_path, log, SETTINGS, out) == (
            None,
            "pandas 3.1.1 does not work with Spark 4: pip install 'pandas>=2.2,<3'",
        )
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyspark", None)
        assert run_spark(tmp_path, log, SETTINGS, out) == (None, "pip install 'standfast[spark]'")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("STANDFAST_CACHE_DIR", str(tmp_path / "cache"))
        patch.setenv("PIP_NO_INDEX", "1")
        done, why = run_spark(tmp_path, log, SETTINGS, out)
        assert done is None
        assert why.startswith("no Java 17 to 23: there is none in JAVA_HOME or on the PATH")
    log.close()
