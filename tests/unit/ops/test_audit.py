"""The rule of the audit of dependencies: failures, warnings, and a missing answer, which is not a good answer."""

from __future__ import annotations

from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TODAY = date(2026, 1, 15)
SHIPPED = frozenset({"starlette"})


@pytest.fixture(scope="module")
def audit(repo_root: Path) -> ModuleType:
    spec = spec_from_file_location("standfast_ci_audit", repo_root / ".ci/audit.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def answer(name: str, *ids: str) -> dict[str, Any]:
    vulns = [{"id": one, "aliases": [f"CVE-{one}"], "fix_versions": ["2.0"]} for one in ids]
    return {"name": name, "version": "1.0", "vulns": vulns}


def test_advisory_about_what_users_install_fails(audit: ModuleType) -> None:
    found = audit.judge([answer("Starlette", "GHSA-1")], SHIPPED, {}, TODAY)
    assert found.failures == ["Starlette 1.0: GHSA-1, fixed in 2.0"] and found.warnings == []


def test_advisory_about_a_tool_warns(audit: ModuleType) -> None:
    found = audit.judge([answer("playwright", "GHSA-1"), answer("ruff")], SHIPPED, {}, TODAY)
    assert found.failures == [] and "a tool of development only" in found.warnings[0]


@pytest.mark.parametrize(("until", "fails"), [(date(2026, 1, 15), False), (date(2026, 1, 14), True)])
def test_accepted_advisory_warns_until_its_last_day(audit: ModuleType, until: date, fails: bool) -> None:
    accepted = {"CVE-GHSA-1": {"reason": "not called", "until": until}}
    found = audit.judge([answer("starlette", "GHSA-1")], SHIPPED, accepted, TODAY)
    assert bool(found.failures) == fails and bool(found.warnings) != fails


def test_acceptance_that_nobody_needs_is_told(audit: ModuleType) -> None:
    found = audit.judge([answer("starlette")], SHIPPED, {"GHSA-9": {"reason": "x", "until": TODAY}}, TODAY)
    assert found.failures == [] and "remove it" in found.warnings[0]


@pytest.mark.parametrize("required", [False, True])
def test_no_answer_is_told_and_fails_where_one_is_required(audit: ModuleType, required: bool) -> None:
    unanswered = [{"name": "starlette", "skip_reason": "not found"}]
    found = audit.judge(unanswered, SHIPPED, {}, TODAY, required=required)
    assert bool(found.failures) == required
    assert "were NOT checked" in (found.failures or found.warnings)[0]


def test_what_users_install_holds_the_extra_for_serving_and_no_tool(audit: ModuleType) -> None:
    names = audit.shipped_names()
    assert {"rocksdict", "starlette", "uvicorn", "h11", "pyspark"} <= names
    assert not names & {"ruff", "playwright", "mypy", "pip-audit"}
