"""The command run: finds the application of a module, and puts the settings of a file in the place of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.cli import main
from standfast.ops.cli.process.run import SETTINGS, find_app, settings_of
from standfast.ops.config.config import load_config
from standfast.store.errors import BadConfig, InvalidRequest

MODULE = """
import standfast as sf
app = sf.App("one", log="sqlite:///./log", state_dir="./state", placement="managed", stores=[])
number = 7
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "shop_of_run.py").write_text(MODULE)
    (tmp_path / "broken_of_run.py").write_text("import a_module_that_is_absent\n")
    yield tmp_path
    for name in ("shop_of_run", "broken_of_run"):
        sys.modules.pop(name, None)


def test_application_is_found_in_a_module_of_the_working_folder() -> None:
    assert find_app("shop_of_run:app").name == "one"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("shop_of_run", "is not MODULE:APP"),
        ("shop_of_run:", "is not MODULE:APP"),
        ("shop-of-run:app", "is not MODULE:APP"),
        ("shop_of_run.py:app", "there is no module 'shop_of_run.py'"),
        ("absent_of_run:app", "there is no module 'absent_of_run'"),
        ("shop_of_run:ap", "has no 'ap': its applications are app"),
        ("shop_of_run:number", "has another object as 'number': its applications are app"),
    ],
)
def test_target_that_names_no_application_is_refused(target: str, problem: str) -> None:
    with pytest.raises((InvalidRequest, ModuleNotFoundError), match=problem):
        find_app(target)
    assert main(["run", target]) == 2


@pytest.mark.parametrize(("flags", "wanted"), [([], False), (["--replace"], True)])
def test_replace_is_given_to_the_application_and_not_to_its_workers(
    flags: list[str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[sf.App] = []
    monkeypatch.setattr(sf.App, "run", lambda app, *, workers: ran.append(app))
    assert main(["run", "shop_of_run:app", *flags]) == 0
    (app,) = ran
    assert app.settings.get("replace", False) is wanted
    assert app.program is not None and "--replace" not in app.program.command


def test_module_that_imports_an_absent_one_shows_its_own_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_absent"):
        find_app("broken_of_run:app")


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5", ""])
def test_number_of_workers_that_cannot_be_is_refused_before_anything_is_open(given: str, shop: Path) -> None:
    assert main(["run", "shop_of_run:app", f"--workers={given}"]) in (2, 78)
    assert not (shop / "state").exists()


def test_settings_of_file_environment_and_flag_replace_those_of_the_program(shop: Path) -> None:
    (shop / "run.toml").write_text(
        '[app]\nguarantee = "at_least_once"\n[store]\nmemory = "64MiB"\n[group]\nlease = "3s"\n'
    )
    loaded = load_config(shop / "run.toml", {"STANDFAST_GROUP__LEASE": "4s"}, {"app.log": "sqlite:///./other"})
    found = settings_of(loaded)
    assert found == {
        "guarantee": "at_least_once",
        "memory_bytes": 64 << 20,
        "lease_ms": 4_000,
        "log": "sqlite:///./other",
    }
    app = find_app("shop_of_run:app")
    app.configure(found)
    assert app.settings == {"placement": "managed", **{key: found[key] for key in found.keys() - {"log"}}}
    assert app.places() == ("sqlite:///./other", "./state")


def test_every_setting_of_the_table_is_one_of_the_file_and_one_of_the_application() -> None:
    loaded = load_config(None, {}, {})
    every: Any = type(loaded)(loaded.config, dict.fromkeys(SETTINGS, "here"))
    given = {key: value for key, value in settings_of(every).items() if key != "state_dir" and value is not None}
    sf.App("one").configure(given)


def test_file_of_another_application_is_refused(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "run.toml").write_text('[app]\nname = "two"\n')
    assert main(["run", "shop_of_run:app", "--config", "run.toml"]) == 78
    assert "run.toml:2: app.name is 'two', but shop_of_run:app is 'one'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        {"lease_ms": 1},
        {"absent": 1},
        {"commit_interval_ms": 0},
        {"workers": 0},
        {"log_format": "xml"},
        {"state_dir": 7},
    ],
)
def test_wrong_setting_changes_nothing_of_the_application(given: dict[str, Any]) -> None:
    app = find_app("shop_of_run:app")
    before = (app.settings, app.places(), app.commit_interval_ms, app.workers, app.log_format)
    with pytest.raises((BadConfig, InvalidRequest)):
        app.configure({**given, "guarantee": "at_least_once"})
    assert (app.settings, app.places(), app.commit_interval_ms, app.workers, app.log_format) == before
