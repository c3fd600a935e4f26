"""Settings: a TOML file, then STANDFAST_SECTION__KEY from the environment, then flags; the later one wins.

    [app]      name, log, state_dir, guarantee, standby_replicas, partitions, commit_interval, gate,
               discovery_interval (a time, or "off")
    [store]    memory, cache, value_max                      sizes: 64KiB, 256MiB, 1GiB, or bytes
    [group]    lease                                         times: 500ms, 3s, 5m, 1h, 7d
    [ops]      host, metrics_port                            0 takes a free port

Rules of this file: knows every setting once (SETTINGS). Every problem of all three sources is reported at once, as
`file:line: section.key: what is wrong, and the value`; an unknown name comes with the nearest known one. Nothing is
opened or created. Relative paths are relative to the working directory.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from standfast.replication.open_log import parse_address
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_name
from standfast.store.state_dir import ADDRESS

ENV_PREFIX = "STANDFAST_"
_SIZE = re.compile(r"(\d{1,15})\s*(B|KiB|MiB|GiB|TiB)?")
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIME = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)")
_TIMES_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SECTION = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\"'.-]+?)\s*=")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class Settings:
    """What was set; None where nothing was. Sizes in bytes, times in milliseconds."""

    app: str | None = None
    log: str | None = None
    state_dir: Path | None = None
    guarantee: str = "exactly_once"
    standby_replicas: int = 0
    partitions: int | None = None
    commit_interval_ms: int = 1_000
    gate: str = "all"
    discovery_interval_ms: int | None = 60_000
    memory_bytes: int = 256 << 20
    cache_max_bytes: int = 10 << 20
    value_max_bytes: int = 1_000_000
    lease_ms: int = 3_000
    host: str = "127.0.0.1"
    metrics_port: int | None = None


def parse_size(value: Any) -> int:
    """Bytes of `256MiB` or 268435456. Raises ValueError that says what is expected."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        return int(found[1]) * _SIZES[found[2] or "B"]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError("expected a size such as 256MiB")


def parse_duration(value: Any) -> int:
    """Milliseconds of `3s`. Raises ValueError: a bare number does not say its unit."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected a time with its unit, such as 500ms or 3s")
    return int(found[1]) * _TIMES_MS[found[2]]


def _number(least: int, most: int | None = None) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        text = value.strip() if isinstance(value, str) else None
        number = int(text) if text is not None and text.isascii() and text.isdigit() else value
        upper = "" if most is None else f" and at most {most}"
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ValueError(f"expected a whole number of at least {least}{upper}")
        if most is not None and number > most:
            raise ValueError(f"expected a whole number of at least {least}{upper}")
        return number

    return parse


def _at_least(parse: Callable[[Any], int], least: int, text: str) -> Callable[[Any], int]:
    def checked(value: Any) -> int:
        parsed = parse(value)
        if parsed < least:
            raise ValueError(f"expected at least {text}")
        return parsed

    return checked


def _or_off(parse: Callable[[Any], int]) -> Callable[[Any], int | None]:
    def checked(value: Any) -> int | None:
        return None if value == "off" else parse(value)

    return checked


def _one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"expected {' | '.join(choices)}")
        return str(value)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("expected text in quotes")
    return value


def _app(value: Any) -> str:
    return check_name("application", value)


def _log(value: Any) -> str:
    parse_address(value)
    return str(value)


def _path(value: Any) -> Path:
    if ADDRESS.match(_text(value)):
        raise ValueError(
            "expected a folder of this machine (only verify --spark and pipeline take an address, by --state-dir)"
        )
    return Path(value).expanduser()


class Setting(NamedTuple):
    """One setting: `section.key`, its field of Settings, and how its value is read."""

    name: str
    field: str
    parse: Callable[[Any], Any]


SETTINGS: tuple[Setting, ...] = (
    Setting("app.name", "app", _app),
    Setting("app.log", "log", _log),
    Setting("app.state_dir", "state_dir", _path),
    Setting("app.guarantee", "guarantee", _one_of("exactly_once", "at_least_once")),
    Setting("app.standby_replicas", "standby_replicas", _number(0)),
    Setting("app.partitions", "partitions", _number(1)),
    Setting("app.commit_interval", "commit_interval_ms", _at_least(parse_duration, 1, "1ms")),
    Setting("app.gate", "gate", _one_of("all", "task")),
    Setting("app.discovery_interval", "discovery_interval_ms", _or_off(_at_least(parse_duration, 1, "1ms"))),
    Setting("store.memory", "memory_bytes", _at_least(parse_size, 1 << 20, "1MiB")),
    Setting("store.cache", "cache_max_bytes", parse_size),
    Setting("store.value_max", "value_max_bytes", _at_least(parse_size, 1, "1B")),
    Setting("group.lease", "lease_ms", _at_least(parse_duration, 100, "100ms")),
    Setting("ops.host", "host", _text),
    Setting("ops.metrics_port", "metrics_port", _number(0, 65_535)),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


class _Given(NamedTuple):
    where: str
    name: str
    value: Any


def load_settings(path: Path | None, env: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Settings:
    """Read all sources. `flags` maps `section.key` to a value, None meaning not given.

    Raises BadConfig with every problem of the file, the environment and the flags.
    """
    problems: list[str] = []
    given = [*_from_file(path, problems), *_from_env(env), *_from_flags(flags or {})]
    fields: dict[str, Any] = {}
    for one in given:
        setting = _BY_NAME.get(one.name)
        if setting is None:
            problems.append(f"{one.where}: {one.name}: no such setting{_nearest(one.name)}")
            continue
        try:
            fields[setting.field] = setting.parse(one.value)
        except BadConfig as error:
            problems += [f"{one.where}: {one.name}: {problem}" for problem in error.problems]
        except (ValueError, InvalidRequest) as error:
            problems.append(f"{one.where}: {one.name}: {error}, got {one.value!r}")
    if problems:
        raise BadConfig(problems)
    return Settings(**fields)


def _from_file(path: Path | None, problems: list[str]) -> Iterator[_Given]:
    if path is None:
        return
    try:
        text = path.read_bytes().decode()
        content = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return
    except tomllib.TOMLDecodeError as error:
        line = _TOML_LINE.search(str(error))
        where = f"{path}:{line[1]}" if line else str(path)
        problems.append(f"{where}: not TOML: {_TOML_LINE.sub('', str(error)).strip()}")
        return
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}")
        return
    lines = _lines(text)
    for section, keys in content.items():
        if not isinstance(keys, dict):
            where = f"{path}:{lines.get(section, 1)}"
            problems.append(f"{where}: {section}: a setting outside a section{_nearest(section)}")
            continue
        for key, value in keys.items():
            name = f"{section}.{key}"
            yield _Given(f"{path}:{lines.get(name, lines.get(section, 1))}", name, value)


def _from_env(env: Mapping[str, str]) -> Iterator[_Given]:
    # One underscore only: a variable of something else that begins alike, such as a test profile.
    for variable in sorted(env):
        section, separator, key = variable.removeprefix(ENV_PREFIX).partition("__")
        if variable.startswith(ENV_PREFIX) and separator:
            yield _Given(f"environment variable {variable}", f"{section}.{key}".lower(), env[variable])


def _from_flags(flags: Mapping[str, Any]) -> Iterator[_Given]:
    for name, value in flags.items():
        if value is not None:
            yield _Given("command line", name, value)


def _lines(text: str) -> dict[str, int]:
    """Line numbers of sections and of `section.key`; the TOML reader does not tell them."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _SECTION.match(line)
        key = _KEY.match(line)
        if header is not None:
            section = _bare(header[1])
            lines.setdefault(section, number)
        elif key is not None:
            name = _bare(key[1])
            lines.setdefault(f"{section}.{name}" if section else name, number)
    return lines


def _bare(name: str) -> str:
    return re.sub(r"[\"'\s]", "", name)


def _nearest(name: str) -> str:
    known = [setting.name for setting in SETTINGS]
    near = difflib.get_close_matches(name, known, 1, 0.6)
    if not near:  # the section may be what is wrong
        key = name.rpartition(".")[2]
        near = [known_name for known_name in known if known_name.partition(".")[2] == key]
    return f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
