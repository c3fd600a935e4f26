"""Programs that tests need are fetched once a process, right before the first test of them, outside its time limit.

Rules of this file: a run of pytest of its own, with the plugin `support.needs`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.places import SUPPORT

pytestmark = pytest.mark.slow

CONFTEST = f"""
import sys, time
sys.path.insert(0, {str(SUPPORT.parent)!r})
import pytest
from support.needs import needed_as

pytest_plugins = ["support.needs"]
EVENTS = []

@needed_as("program")
def fetch(config, say):
    say("fetching a program")
    EVENTS.append("fetched")
    time.sleep(1.5)  # longer than the limit of each test

@pytest.fixture
def program():
    return "fetched" in EVENTS

@pytest.fixture
def events():
    return EVENTS
"""
TESTS = """
def test_without(events):
    assert events == []

def test_of_the_program(program):
    assert program

def test_of_the_program_again(program, events):
    assert events == ["fetched"]
"""


def test_a_program_is_fetched_once_before_the_first_test_of_it_and_outside_its_time_limit(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("==> setup: fetching a program") == 1
