"""Settings that are nearly right, in a process of its own: `python support/config_fuzz_child.py FOLDER SEED SECONDS`.

Each round writes a file and sets the environment; then it reads and shows both as
`config validate` and `config show` do, in some rounds by the command line itself.
It prints one line of JSON: the number of rounds, the exit codes, and the first failed round.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started by path

from standfast.ops.command.command_line import main as standfast
from standfast.ops.config.config import load_config
from standfast.ops.config.show import document, rows
from standfast.ops.config.types import SECTIONS, settings_of
from standfast.store.errors import BadConfig
from support.fuzz import NUMBERS, mutated, peak_mib

GOOD_CODES = {0, 2, 78}
SETTINGS = sorted(f"{name}.{one}" for name, section in SECTIONS.items() for one in settings_of(section))
VALUES = (
    *(
        "1s",
        "0s",
        "-1s",
        "10ms",
        "1e9d",
        "99999999999999d",
        "1KiB",
        "8MiB",
        "1PiB",
        "999999999999GiB",
        "0",
        "true",
        "False",
    ),
    *(
        "kafka://b:9092?client.rack=a",
        "sqlite:////tmp/x",
        "memory://",
        "http://",
        "",
        " ",
        "${HOME}",
        "${NONE}",
        "$${X}",
        "${",
    ),
    *(
        "/dev/zero",
        "/dev/null",
        "/proc/self/mem",
        "a" * 5_000,
        "\u00e9\u202e",
        "\udcff",
        "[]",
        "{}",
        "[1, 2]",
        "nan",
        "1_000",
    ),
    *("read", "task", "127.0.0.1", "0.0.0.0", "::1", "0600", "inf", "-9", *map(str, NUMBERS)),
)
STORE = ("kind", "timestamped", "engine", "caching", "logging", "source_topic", "window_size", "retention", "nix")
STORES = ("a", "b", "x" * 200, '""', '".."', "a.b")
KINDS = ("keyvalue", "window", "session", "versioned", "none")


def literal(rng: random.Random) -> str:
    """A value in TOML, mostly."""
    value = rng.choice(VALUES)
    what = rng.randrange(8)
    if what < 4:
        return json.dumps(value, ensure_ascii=False)
    if what == 4:
        return rng.choice(
            ("true", "false", "1979-05-27", "1.5", "inf", "nan", "0x10", "'''x'''", "[" * 200 + "]" * 200)
        )
    if what == 5:
        return f"[{', '.join(json.dumps(rng.choice(VALUES[:20])) for _ in range(rng.randrange(5)))}]"
    return str(rng.choice(NUMBERS))


def text(rng: random.Random) -> bytes:
    """A file of settings."""
    lines = ["[app]", 'name = "a"', 'log = "sqlite:///log"'] if rng.random() < 0.7 else []
    for _ in range(rng.choice((0, 0, 1, 2, 8))):
        name = rng.choice(SETTINGS)
        lines.append(f"{name} = {literal(rng)}" if rng.random() < 0.5 else f"[{name.partition('.')[0]}]")
        if rng.random() < 0.3:
            lines.append(f"{name.partition('.')[2]} = {literal(rng)}")
    for _ in range(rng.choice((0, 0, 1, 2))):
        lines.append(f"[stores.{rng.choice(STORES)}]")
        lines += [f"{rng.choice(STORE)} = {literal(rng)}" for _ in range(rng.randrange(4))]
        lines.append(f'kind = "{rng.choice(KINDS)}"')
    if rng.random() < 0.2:
        lines += [f"[kafka]\n{rng.choice(('sasl.password', 'a.b.c', 'acks'))} = {literal(rng)}"] * rng.choice(
            (1, 2, 3_000)
        )
    made = "\n".join(lines).encode("utf-8", "surrogatepass")
    what = rng.random()
    if what < 0.3:
        return mutated(rng, made)
    return (
        made if what < 0.95 else rng.choice((rng.randbytes(2_000), b"a." * 50_000 + b"b = 1", b"x = " + b"[" * 50_000))
    )


def one_round(rng: random.Random, path: Path) -> int:
    """The exit code of one call: 0, 78 for problems, 2 for invalid flags."""
    path.write_bytes(text(rng))
    flags = [(rng.choice(SETTINGS), rng.choice(VALUES)) for _ in range(rng.choice((0, 0, 1, 3)))]
    given = {}
    for _ in range(rng.choice((0, 0, 1, 3))):
        name = rng.choice(SETTINGS).upper().replace(".", "__")
        given[f"STANDFAST_{name}" if rng.random() < 0.9 else "STANDFAST_NIX__NONE"] = rng.choice(VALUES)
    if rng.random() < 0.03:
        return by_command(rng, path, flags, given)
    try:
        loaded = load_config(path, {**os.environ, **given}, dict(flags))
    except BadConfig as error:
        assert str(error) and error.problems
        return 78
    json.dumps(document(loaded, path))
    assert list(rows(loaded))
    return 0


def by_command(rng: random.Random, path: Path, flags: list[tuple[str, str]], given: dict[str, str]) -> int:
    """The same by the command line, which takes most of a second."""
    arguments = ["config", rng.choice(("validate", "show", "check")), str(path)]
    for name, value in flags:
        arguments += ["--set", f"{name}={value}" if rng.random() < 0.9 else value]
    if rng.random() < 0.3:
        arguments.append(rng.choice(("--json", "--origin", "--nix")))
    os.environ.update(given)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            return standfast(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    finally:
        for name in given:
            del os.environ[name]
        assert "Traceback" not in out.getvalue(), out.getvalue()[-3_000:]


def main() -> None:
    """Run rounds until the time is over or a round fails."""
    path, seed, ends = Path(sys.argv[1]) / "s.toml", sys.argv[2], time.monotonic() + float(sys.argv[3])
    rng, codes, wrong, number = random.Random(f"{seed} config"), dict[int, int](), "", 0
    while not wrong and (time.monotonic() < ends or number < 60):
        one = rng.getrandbits(64)
        number += 1
        try:
            code = one_round(random.Random(one), path)
            codes[code] = codes.get(code, 0) + 1
            if code not in GOOD_CODES:
                wrong = f"exit code {code}"
        except BaseException as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            wrong += f"; round {number}, its generator {one}, its file {path.read_bytes()[:2_000]!r}"
    print(json.dumps({"rounds": number, "codes": codes, "wrong": wrong, "peak_mib": peak_mib(os.getpid())}))


if __name__ == "__main__":
    main()
