"""The front door: every public name is there, and no module is loaded before its first use."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import standfast
from standfast.store import errors


@pytest.mark.parametrize("name", standfast.__all__)
def test_public_name_is_importable_from_the_front_door(name: str) -> None:
    assert getattr(standfast, name) is not None


def test_names_homes_and_type_checker_imports_agree(repo_root: Path) -> None:
    tree = ast.parse((repo_root / "standfast/__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen: dict[str, str] = {}
    for node in guarded.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            seen[alias.name] = f"{node.module}:{alias.name}"
    seen["serde"] = "standfast.store.schema.serde"  # modules, not names in one
    seen["aio"] = "standfast.stream.session.aio"
    seen["testing"] = "standfast.stream.app.testing"
    assert seen == standfast._HOMES
    assert set(standfast.__all__) == {"__version__", *standfast._HOMES}
    assert len(standfast.__all__) == len(set(standfast.__all__))


def test_every_error_of_the_tree_is_public() -> None:
    tree = {name for name, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__}
    assert tree <= set(standfast.__all__)


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        standfast.no_such_name  # noqa: B018


def test_front_door_has_a_version() -> None:
    assert standfast.__version__ == import_module("standfast.store.base.version").__version__


@pytest.mark.slow
def test_importing_the_front_door_and_the_command_line_loads_no_outside_library() -> None:
    heavy = ("rocksdict", "confluent_kafka", "prometheus_client", "rich", "sqlite3", "pyspark")
    script = f"import sys, standfast, standfast.ops.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_application_loads_modules_for_calls_workers_kafka_and_errors_only_where_it_has_some() -> None:
    # Each of these, or those that it loads, takes milliseconds of every start of every process of a program.
    heavy = ("asyncio", "ssl", "difflib", "tempfile", "sysconfig", "sqlite3", "confluent_kafka", "prometheus_client",
             "standfast.stream.workers.supervisor", "standfast.stream.workers.session", "importlib.metadata", "rich",
             "standfast.ops", "obstore", "pyarrow", "jinja2", "http.server", "email", "logging.config")  # fmt: skip
    script = f"""
import sys
import standfast as sf
app = sf.App("counts", log="sqlite:///./log", state_dir="./state")
sf.Session
print([m for m in {heavy!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
