"""Alert rules, their unit tests, and the Grafana dashboard: promtool reports no fault, and every name is scraped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from standfast.ops.observe.metrics import SidecarMetrics, SidecarReading
from standfast.ops.observe.metrics_servers import HttpNumbers, LoopLag

if TYPE_CHECKING:
    from support.promtool import Promtool
    from support.sessions import Bench

RULES = "deploy/prometheus/standfast.rules.yml"
DASHBOARD = "deploy/grafana/standfast.json"
NAME = re.compile(r"\bstandfast[a-z0-9_:]*[a-z0-9]\b(?![\"/])")
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*", "$store": ".*"}


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


@pytest.fixture
def dashboard(repo_root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((repo_root / DASHBOARD).read_text(encoding="utf-8"))
    return found


@pytest.fixture
def scraped(bench: Bench) -> set[str]:
    """Names of the series of a live scrape, and those of our recording rules."""
    session = bench.active("a", partitions=(0,))
    reading = SidecarReading(session.statistics(), True, None, HttpNumbers(), LoopLag())
    text = SidecarMetrics(lambda: reading, bench.clock, session.state_path).exposition().decode()
    names: set[str] = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def recorded(repo_root: Path) -> set[str]:
    return set(re.findall(r"record: (\S+)", (repo_root / RULES).read_text(encoding="utf-8")))


@pytest.mark.slow
def test_promtool_finds_no_fault_in_the_rules_and_their_tests_pass(repo_root: Path, promtool: Promtool) -> None:
    promtool("check", "rules", repo_root / RULES)
    promtool("test", "rules", repo_root / "deploy/prometheus/standfast.test.yml")


def test_every_alert_is_tested_and_has_a_page_in_the_runbook(repo_root: Path) -> None:
    alerts = re.findall(r"- alert: (\S+)", (repo_root / RULES).read_text(encoding="utf-8"))
    tests = (repo_root / "deploy/prometheus/standfast.test.yml").read_text(encoding="utf-8")
    runbook = (repo_root / "deploy/prometheus/RUNBOOK.md").read_text(encoding="utf-8")
    assert len(alerts) == len(set(alerts)) >= 10
    for alert in alerts:
        assert f"alertname: {alert}\n" in tests and f"## {alert}\n" in runbook
        assert f"RUNBOOK.md#{alert.lower()}\n" in (repo_root / RULES).read_text(encoding="utf-8")


def test_rules_name_only_what_is_scraped(repo_root: Path, scraped: set[str]) -> None:
    lines = (repo_root / RULES).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not re.match(r"\s*(#|summary|description|runbook_url|- name)", line))
    names = set(NAME.findall(text)) - {"standfast"}
    assert names and names <= scraped | recorded(repo_root), names - scraped - recorded(repo_root)


def test_dashboard_names_only_what_is_scraped(repo_root: Path, dashboard: dict[str, Any], scraped: set[str]) -> None:
    queries = [one["definition"] for one in dashboard["templating"]["list"] if "definition" in one]
    names = {name for text in [*expressions(dashboard), *queries] for name in NAME.findall(text)}
    assert len(names) > 30 and names <= scraped | recorded(repo_root), names - scraped - recorded(repo_root)


@pytest.mark.slow
def test_promtool_parses_every_expression_of_the_dashboard(
    dashboard: dict[str, Any], tmp_path: Path, promtool: Promtool
) -> None:
    rules = []
    for number, expression in enumerate(expressions(dashboard)):
        text = expression
        for name, value in VARIABLES.items():
            text = text.replace(name, value)
        assert "$" not in text, expression
        rules.append({"record": f"panel:number{number}", "expr": text})
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")  # JSON is YAML
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


def test_dashboard_can_be_provisioned(dashboard: dict[str, Any]) -> None:
    assert dashboard["uid"] == "standfast" and "id" not in dashboard
    assert {one["name"] for one in dashboard["templating"]["list"]} == {"datasource", "job", "instance", "store"}
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}" and target["legendFormat"]
