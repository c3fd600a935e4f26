"""An application with worker processes over HTTP: one started instance, asked for everything that a client may ask.

Rules of this file: real processes on an embedded log. The tests share one instance and leave it as it was.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import standfast as sf
from standfast.ops.cli import main
from standfast.stream.workers.command import Program
from support.groups import costly
from support.serve import wait_for
from support.users import NOBODY, ask_as
from support.workers import APP, Served

if TYPE_CHECKING:
    from support.promtool import Promtool

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("workers-served"), pytest.mark.timeout(240)]
RECORDS = 240
TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
@costly()
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    token = root / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    with closing(Served(root, tasks=4, http_token_file=str(token))) as made:
        made.start()
        states = [(one["role"], one["state"]) for one in made.status()["tasks"]]
        assert states == [("active", "running")] * 4, "ready before its tasks ran"
        made.feed(RECORDS)
        made.await_rows()
        yield made
        made.end()


def get(served: Served, path: str, timeout_s: float = 10) -> str:
    with urllib.request.urlopen(served.address + path, timeout=timeout_s) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    return {
        f"{one.name}{json.dumps(one.labels, sort_keys=True)}": one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_health_metrics_status_and_page_are_those_of_the_whole_instance(served: Served) -> None:
    for path in ("/startupz", "/livez", "/readyz"):
        assert served.client().ask(path)[0] == 200
    assert get(served, "/readyz?verbose") == "[+]session ok\nready check passed\n"
    wait_for(lambda: sum(served.status()["counters"]["processed"].values()) == RECORDS, 30)
    status = served.status()
    assert status["ready"] and not status["paused"] and status["missing"] == []
    assert [(one["task"], one["state"]) for one in status["tasks"]] == [(f"0_{n}", "running") for n in range(4)]
    assert all(one["stores"] for one in status["tasks"])
    workers = status["worker_processes"]
    assert [(one["worker"], one["state"], one["error"]) for one in workers] == [(1, "running", ""), (2, "running", "")]
    assert sorted(task for one in workers for task in one["active"]) == ["0_0", "0_1", "0_2", "0_3"]
    assert [len(one["active"]) for one in workers] == [2, 2]
    found = samples(get(served, "/metrics"))
    assert found["standfast_ready{}"] == 1
    assert (
        sum(value for name, value in found.items() if name.startswith("standfast_processed_records_total")) == RECORDS
    )
    assert [found[f'standfast_worker_answers{{"worker": "{one}"}}'] for one in (1, 2)] == [1, 1]
    assert found['standfast_tasks{"role": "active", "state": "running"}'] == 4
    assert found['standfast_stream_time_behind_seconds{"task": "0_0"}'] > 0
    page = get(served, "/")
    assert "<strong>READY</strong> 4 active, 0 standby" in page and "Worker processes" in page


def test_rows_of_all_workers_are_one_answer(served: Served) -> None:
    assert served.rows() == dict(served.fed)
    client = served.client()
    for key in ("k0", "k1", "k2", "k3"):
        (row,) = client.get("/v1/stores/counts/get", {"key": key})["rows"]
        assert row["value"] == served.fed[key]
    found: dict[str, int] = {}
    after = None
    while True:
        answer = client.get("/v1/stores/counts/scan", {"limit": 7, "after": after})
        found |= {row["key"]: row["value"] for row in answer["rows"]}
        after = answer["after"]
        if not answer["truncated"]:
            break
    assert found == dict(served.fed)


def test_command_line_answers_as_for_any_instance(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--state-dir", str(served.state_dir), "--app", APP]

    def run(*arguments: str) -> str:
        code = main([*arguments, *where])
        said = capsys.readouterr()
        assert code == 0, said
        return said.out

    assert "READY" in run("status")
    assert "0_3" in run("lag") or "counts" in run("lag")
    for probe, said in ([], "live"), (["--ready"], "ready"), (["--startup"], "start"):  # of docs/operate/deploy.md
        assert said in run("health", *probe)
    assert str(served.fed["k5"]) in run("get", "counts", "k5")
    assert len(run("scan", "counts", "--limit", "1000").splitlines()) >= len(served.fed)


def test_doors_are_guarded_as_those_of_an_application_of_one_process(served: Served) -> None:
    row = "/v1/stores/counts/get?key=k1"
    assert ask_as(0, served.address, row)[0] == 200
    assert ask_as(NOBODY, served.address, row)[0] == 401
    assert ask_as(NOBODY, served.address, row, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask_as(NOBODY, served.address, "/v1/status")[0] == 200
    assert ask_as(0, served.address, "/", Host="evil.example")[0] == 421
    assert ask_as(0, served.address, "/v1/drain", "POST")[0] == 404
    assert ask_as(0, served.address, f"/v1/stores/counts/scan?from={'x' * 9_000}")[0] == 414


def test_slow_record_is_named_its_rows_are_refused_and_all_else_is_answered(served: Served) -> None:
    workers = {task: one for one in served.status()["worker_processes"] for task in one["active"]}
    held, other = workers["0_0"], next(one for one in workers.values() if one != workers["0_0"])
    served.hold(0, 4_000)

    def silent() -> dict[str, Any] | None:
        found = [one for one in served.status()["worker_processes"] if one["error"]]
        return found[0] if found else None

    wait_for(lambda: silent() is not None, 30)
    named = silent()
    assert named is not None and named["worker"] == held["worker"]
    assert f"worker {held['worker']} (process {held['pid']}) has not answered for" in named["error"]
    for path in ("/livez", "/readyz"):
        began = time.monotonic()
        assert served.client().ask(path)[0] == 200
        assert time.monotonic() - began < 1
    began = time.monotonic()
    status, document = served.client().ask("/v1/stores/counts/get", {"key": "k0", "partition": 0})
    assert time.monotonic() - began < 2
    assert status == 503 and f"process {held['pid']}" in document["message"]
    partition = int(other["active"][0].rpartition("_")[2])
    assert served.client().get("/v1/stores/counts/scan", {"partition": partition})["rows"]
    metrics = samples(get(served, "/metrics"))
    assert metrics['standfast_tasks{"role": "active", "state": "running"}'] == 4
    assert "has not answered" in get(served, "/")
    wait_for(lambda: silent() is None, 30)
    assert served.rows() == dict(served.fed)


def test_task_that_moves_between_workers_keeps_rows_and_counters(served: Served) -> None:
    workers = {task: one["worker"] for one in served.status()["worker_processes"] for task in one["active"]}
    before = samples(get(served, "/metrics"))
    served.steer(f"move 0_1 {2 - workers['0_1']}")
    answers: list[dict[str, int]] = []

    def moved() -> bool:
        rows = served.rows()  # whole, or an error
        answers.extend([] if rows is None else [rows])
        now = {task: one["worker"] for one in served.status()["worker_processes"] for task in one["active"]}
        return now.get("0_1") == 3 - workers["0_1"]

    wait_for(moved, 30)
    served.await_rows()
    assert all(one == dict(served.fed) for one in answers)
    time.sleep(1.1)  # the text of a scrape is kept for a second
    after = samples(get(served, "/metrics"))
    assert fell(before, after) == []


def fell(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Counters that went back; a series may be absent while its task is in no worker."""
    counters = [name for name in before if re.match(r"\w+_(total|count|sum|bucket)\{", name)]
    return [
        f"{name}: {before[name]} {after[name]}" for name in counters if name in after and after[name] < before[name]
    ]


def test_pause_of_the_instance_is_shown(served: Served) -> None:
    served.steer("pause")
    wait_for(lambda: served.status()["paused"], 10)
    assert "the application is paused" in get(served, "/")
    served.steer("resume")
    wait_for(lambda: not served.status()["paused"], 10)


def test_alert_rules_over_its_metrics_are_quiet(
    served: Served, promtool: Promtool, repo_root: Path, tmp_path: Path
) -> None:
    text = get(served, "/metrics")
    promtool("check", "metrics", text=text.encode())
    series = [{"series": 'up{job="standfast", instance="a"}', "values": "1x30"}]
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = {**one.labels, "job": "standfast", "instance": "a"}
            shown = ", ".join(f'{name}="{value}"' for name, value in labels.items())
            series.append({"series": f"{one.name}{{{shown}}}", "values": f"{one.value:f}x30"})
    rules = repo_root / "deploy/prometheus/standfast.rules.yml"
    alerts = re.findall(r"- alert: (\S+)", rules.read_text())
    quiet = [{"alertname": name, "eval_time": "20m"} for name in alerts if name != "StandfastStandbyStale"]
    file = tmp_path / "test.yml"
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": quiet}]
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)


def test_port_that_is_taken_ends_the_run_before_any_worker_starts(served: Served, tmp_path: Path) -> None:
    port = int(served.address.rpartition(":")[2])
    app = sf.App("other", log=served.log, state_dir=tmp_path / "state", http_port=port, workers=2)
    app.stream(f"{APP}-in").filter(lambda key, value: True)
    app.program = Program(("false",), str(tmp_path))
    with pytest.raises(sf.Held, match=f"cannot listen on 127.0.0.1:{port}"):
        app.run()
    assert not (tmp_path / "state").exists()
