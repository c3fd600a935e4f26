"""Known advisories about what we depend on: asks pip-audit about the pinned lists, and judges by a written rule.

    fails      an advisory about something that users install with us (requirements/core.txt, spark.txt, the extra
               `serve` and what it needs), unless .ci/accepted-advisories.toml takes it, with a reason and a last day
    warns      an advisory about a tool of development only; an accepted one; one taken that nobody reports any more
    warns      no answer: no network, or a source that does not know a package. An unchanged checkout does not become
               wrong because nobody could be asked, so this is loud and no failure; with STANDFAST_AUDIT=required (a
               scheduled run, which has a network) it is one

pip-audit itself says "no known vulnerabilities" for packages that it could not look up; here these count as unanswered.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LISTS = ("requirements/core.txt", "requirements/spark.txt", "requirements/dev.txt")
SHIPPED_LISTS = LISTS[:2]
ACCEPTED = ".ci/accepted-advisories.toml"
AUDIT_S_MAX = 300
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass
class Verdict:
    """What is told, and whether the job fails."""

    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def judge(
    answers: Iterable[Mapping[str, Any]],
    shipped: frozenset[str],
    accepted: Mapping[str, Mapping[str, Any]],
    today: date,
    *,
    required: bool = False,
) -> Verdict:
    """The verdict on pip-audit's answers (its `dependencies`, of every list together)."""
    verdict = Verdict()
    unanswered: set[str] = set()
    met: set[str] = set()
    for one in {(str(one["name"]), str(one.get("version"))): one for one in answers}.values():
        if "skip_reason" in one:
            unanswered.add(one["name"])
        for advisory in one.get("vulns", ()):
            known = {advisory["id"], *advisory.get("aliases", ())}
            met |= known
            fix = ", ".join(advisory.get("fix_versions", ())) or "no version yet"
            text = f"{one['name']} {one['version']}: {advisory['id']}, fixed in {fix}"
            taken = next((accepted[name] for name in sorted(known & accepted.keys())), None)
            if taken is not None and today <= taken["until"]:
                verdict.warnings.append(f"{text}; accepted until {taken['until']}: {taken['reason']}")
            elif normal(one["name"]) in shipped:
                verdict.failures.append(text + ("; was accepted until " + str(taken["until"]) if taken else ""))
            else:
                verdict.warnings.append(f"{text} (a tool of development only)")
    verdict.warnings += [
        f"{ACCEPTED}: nobody reports {name} any more: remove it" for name in sorted(accepted.keys() - met)
    ]
    if unanswered:
        names = ", ".join(sorted(unanswered)[:5])
        text = f"no answer about {len(unanswered)} packages ({names}, ...): they were NOT checked"
        (verdict.failures if required else verdict.warnings).append(text)
    return verdict


def normal(name: str) -> str:
    """Names of packages are equal without case and kind of dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: Sequence[str]) -> set[str]:
    """These packages and what they need, as far as it is installed here."""
    found: set[str] = set()
    waiting = [normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        waiting += [normal(match[0]) for one in needed if "extra ==" not in one and (match := _NAME.match(one))]
    return found


def shipped_names() -> frozenset[str]:
    """What users install with us."""
    pinned = {normal(name) for path in SHIPPED_LISTS for name in _PINNED.findall((ROOT / path).read_text("utf-8"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    serve = [match[0] for one in project["optional-dependencies"]["serve"] if (match := _NAME.match(one))]
    return frozenset(pinned | closure(serve))


def ask(path: str) -> list[dict[str, Any]]:
    """pip-audit about one list; every package of it as unanswered if there is no answer at all."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--disable-pip", "--require-hashes", "-r", path]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=AUDIT_S_MAX, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        names = _PINNED.findall((ROOT / path).read_text("utf-8"))
        return [{"name": name, "skip_reason": "no answer"} for name in names]
    return found


def main() -> int:
    """Ask and tell; 1 if the rule says so."""
    accepted = tomllib.loads((ROOT / ACCEPTED).read_text("utf-8")).get("advisories", {})
    answers = [one for path in LISTS for one in ask(path)]
    required = os.environ.get("STANDFAST_AUDIT") == "required"
    verdict = judge(answers, shipped_names(), accepted, datetime.now(UTC).date(), required=required)
    for text in verdict.warnings:
        print(f"warning: {text}", file=sys.stderr)
    for text in verdict.failures:
        print(f"error: {text}", file=sys.stderr)
    return 1 if verdict.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
