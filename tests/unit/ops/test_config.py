"""Settings: three sources, every problem at once with its place, the nearest name for an unknown one."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.ops.config.config import Settings, load_settings, parse_duration, parse_size
from standfast.store.errors import BadConfig

GOOD = """\
[app]
name = "delays"          # the application
log = "sqlite:///./log"
state_dir = "./state"
guarantee = "at_least_once"
standby_replicas = 1
commit_interval = "500ms"

[store]
memory = "64MiB"
cache = "10MiB"

[group]
lease = "3s"

[ops]
metrics_port = 9400
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "standfast.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path | None, env: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        load_settings(path, env or {}, flags)
    return list(caught.value.problems)


def test_file_gives_settings_in_bytes_and_milliseconds(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, GOOD), {}) == Settings(
        app="delays",
        log="sqlite:///./log",
        state_dir=Path("state"),
        guarantee="at_least_once",
        standby_replicas=1,
        commit_interval_ms=500,
        memory_bytes=64 << 20,
        cache_max_bytes=10 << 20,
        lease_ms=3_000,
        metrics_port=9400,
    )


@pytest.mark.parametrize(("text", "interval_ms"), [("off", None), ("5s", 5_000), (None, 60_000)])
def test_partition_discovery_has_an_interval_or_is_off(text: str | None, interval_ms: int | None) -> None:
    env = {} if text is None else {"STANDFAST_APP__DISCOVERY_INTERVAL": text}
    assert load_settings(None, env).discovery_interval_ms == interval_ms
    (problem,) = problems(None, {"STANDFAST_APP__DISCOVERY_INTERVAL": "never"})
    assert "app.discovery_interval: expected a time with its unit" in problem


def test_nothing_given_is_the_defaults() -> None:
    assert load_settings(None, {}) == Settings()


def test_environment_wins_over_the_file_and_flags_over_both(tmp_path: Path) -> None:
    env = {"STANDFAST_APP__NAME": "from-env", "STANDFAST_STORE__MEMORY": "1GiB"}
    settings = load_settings(write(tmp_path, GOOD), env, {"app.name": "from-flag", "app.log": None})
    assert (settings.app, settings.memory_bytes, settings.log) == ("from-flag", 1 << 30, "sqlite:///./log")


def test_every_problem_is_told_with_its_line_and_value(tmp_path: Path) -> None:
    path = write(tmp_path, '[app]\nname = "../x"\n\nguarantee = "twice"\n[store]\nmemory = "lots"\ncache = -1\n')
    found = problems(path)
    assert [problem.partition(": ")[0] for problem in found] == [f"{path}:{line}" for line in (2, 4, 6, 7)]
    assert "app.name" in found[0] and "'../x'" in found[0]
    assert "exactly_once | at_least_once" in found[1] and "'twice'" in found[1]
    assert "256MiB" in found[2] and "'lots'" in found[2]
    assert "-1" in found[3]


def test_problems_of_all_three_sources_come_together(tmp_path: Path) -> None:
    path = write(tmp_path, "[app]\nstandby_replicas = -1\n")
    found = problems(path, {"STANDFAST_GROUP__LEASE": "3"}, {"app.log": "nowhere"})
    assert len(found) == 3
    assert found[0].startswith(f"{path}:2: app.standby_replicas")
    assert found[1].startswith("environment variable STANDFAST_GROUP__LEASE: group.lease") and "'3'" in found[1]
    assert found[2].startswith("command line: app.log") and "no scheme" in found[2]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ('[app]\nnaem = "x"\n', "did you mean 'app.name'?"),
        ('[stores]\nmemory = "1MiB"\n', "did you mean 'store.memory'?"),
        ('[group]\nmemory = "1MiB"\n', "did you mean 'store.memory'?"),
        ("[ops]\nzzz = 1\n", "there are ops.host"),
    ],
)
def test_unknown_name_comes_with_the_nearest_one(tmp_path: Path, text: str, nearest: str) -> None:
    (problem,) = problems(write(tmp_path, text))
    assert nearest in problem
    assert problem.startswith(f"{tmp_path}/standfast.toml:2: ")


def test_setting_outside_a_section_is_told(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path, 'name = "x"\n'))
    assert "outside a section" in problem and "app.name" in problem


def test_file_that_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[app]\nname = \n")
    (problem,) = problems(path)
    assert problem.startswith(f"{path}:2: not TOML")


def test_unreadable_file_is_told(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path / "absent.toml")
    assert "cannot be read" in problem and "absent.toml" in problem
    (tmp_path / "latin.toml").write_bytes(b"[app]\nname = '\xff'\n")
    assert "not UTF-8" in problems(tmp_path / "latin.toml")[0]


def test_quoted_keys_and_spaces_keep_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, '\n[ app ]\n"name"   =  7\n')
    (problem,) = problems(path)
    assert problem.startswith(f"{path}:3: app.name")


def test_variables_of_other_things_are_left_alone() -> None:
    assert load_settings(None, {"STANDFAST_CRASH_RUNS": "5", "OTHER__NAME": "x"}) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("64KiB", 65_536), ("256MiB", 256 << 20), ("1 GiB", 1 << 30), (5, 5), ("0", 0)]
)
def test_size_is_read_with_its_unit(text: object, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "1MB", "1.5MiB", "-1", True, -1, None, [], "1" * 30])
def test_bad_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="256MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 500), ("3s", 3_000), ("5m", 300_000), ("1h", 3_600_000), ("7d", 604_800_000)]
)
def test_duration_is_read_with_its_unit(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "3", 3, "3 weeks", "-1s", None])
def test_bad_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="3s"):
        parse_duration(text)


def test_interval_of_commits_is_chosen_by_the_guarantee_where_the_file_says_auto_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "standfast.toml"
    for text, interval_ms in (('commit_interval = "auto"', None), ("", None), ('commit_interval = "50ms"', 50)):
        file.write_text(f"[app]\n{text}\n")
        assert load_settings(file, {}).commit_interval_ms == interval_ms


def test_name_of_a_settings_file_cannot_write_to_a_terminal(tmp_path: Path) -> None:
    for text in ("[http]\nport = 'x'\n", "no toml", '[http]\nport = "${NONE_OF_THIS_NAME}"\n'):
        path = tmp_path / "a\x1b[2J\nerror: forged\u202e.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadConfig) as caught:
            load_settings(path, {}, {})
        for problem in caught.value.problems:
            assert problem.isprintable() and "\\x1b[2J\\nerror" in problem, problem
