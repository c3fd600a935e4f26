"""Tokens: roles, lists of stores, rotation, unusable files, and no secret in any message."""

from __future__ import annotations

import hashlib
import json
import logging
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.ops.security.audit import KEPT_MAX, REFUSALS_MAX, REFUSALS_MS, Audit
from standfast.ops.security.tokens import OWNER, Actor, Role, Tokens, bearer
from standfast.store.clock import ManualClock
from standfast.store.errors import BadConfig

SECRET = "correct-horse-battery"
OTHER = "another-long-enough-token"


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def entry(token: str, name: str = "app", role: str = "write", more: str = "") -> str:
    return f'[[tokens]]\nname = "{name}"\nrole = "{role}"\ntoken = "{token}"\n{more}\n'


def test_token_gives_its_actor_and_another_gives_nobody(tmp_path: Path) -> None:
    tokens = Tokens(write(tmp_path, entry(SECRET, more='stores = ["a"]')))
    assert tokens.find(SECRET) == tokens.find(SECRET.encode()) == Actor("app", Role.WRITE, frozenset({"a"}))
    for wrong in ("", SECRET[:-1], SECRET + "x", "x" * 10_000, "\udcff", b"\xff"):
        assert tokens.find(wrong) is None


def test_digest_in_the_file_serves_as_the_token(tmp_path: Path) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    tokens = Tokens(write(tmp_path, f'[[tokens]]\nname = "ops"\nrole = "admin"\nsha256 = "{digest}"\n'))
    assert tokens.find(SECRET) == Actor("ops", Role.ADMIN)


def test_two_tokens_of_one_name_hold_at_a_time_and_the_old_one_ends_at_reload(tmp_path: Path) -> None:
    path = write(tmp_path, entry(SECRET))
    tokens = Tokens(path)
    write(tmp_path, entry(SECRET) + entry(OTHER))
    assert tokens.find(OTHER) is None
    tokens.reload()
    assert tokens.find(SECRET) == tokens.find(OTHER) is not None
    write(tmp_path, entry(OTHER))
    tokens.reload()
    assert tokens.find(SECRET) is None and tokens.find(OTHER) is not None


def test_file_that_cannot_be_used_leaves_the_tokens_as_they_were(tmp_path: Path) -> None:
    path = write(tmp_path, entry(SECRET))
    tokens = Tokens(path)
    for text in ("[[tokens", entry("short"), "[[tokens]]\n" * 3, 'x = "y"\n', "tokens = 5\n"):
        write(tmp_path, text)
        with pytest.raises(BadConfig):
            tokens.reload()
        assert tokens.find(SECRET) is not None
    path.unlink()
    with pytest.raises(BadConfig, match="cannot be read"):
        tokens.reload()


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o666, 0o644])
def test_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadConfig, match="chmod 0600"):
        Tokens(write(tmp_path, entry(SECRET), mode))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (entry("short-" + "x" * 9), "token must be text of 16"),
        (entry(SECRET, role="root"), "role must be one of read, write, admin"),
        (entry(SECRET, name="../x"), "token name"),
        (entry(SECRET, more="stores = []"), "stores must be a list"),
        (entry(SECRET, more='stores = ["../x"]'), "store name"),
        (entry(SECRET, more='sha256 = "00"'), "needs either token or sha256"),
        (entry(SECRET, more="rôle = 1"), "not a TOML file"),
        (entry(SECRET, more="tokn = 1"), "has unknown fields: 'tokn'; a token has"),
        ('[[tokens]]\nname = "a"\nrole = "read"\nsha256 = "zz"\n', "64 hex digits"),
        ("tokens = [1]\n", "is not a table"),
    ],
)
def test_problem_of_a_token_is_told_without_the_token(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadConfig) as caught:
        Tokens(write(tmp_path, text))
    assert problem in str(caught.value) and SECRET not in str(caught.value)


@settings(max_examples=settings().max_examples // 3)
@given(raw=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: f"[[tokens]]\n{text}".encode())))
def test_any_bytes_are_tokens_or_problems(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(raw)
    path.chmod(0o600)
    try:
        assert len(Tokens(path)) == 0  # a fitting entry does not come by chance
    except BadConfig as error:
        assert error.problems


def test_token_of_the_process_itself_is_the_owner() -> None:
    tokens = Tokens()
    token = tokens.issue()
    assert len(token) >= 40 and tokens.find(token) == OWNER and not tokens.from_file
    assert Tokens().find(token) is None


def test_a_role_may_do_what_lower_ones_may_and_a_list_of_stores_binds() -> None:
    app = Actor("app", Role.WRITE, frozenset({"a"}))
    assert app.may(Role.WRITE, "a") and app.may(Role.READ, "a") and app.may(Role.WRITE)
    assert not app.may(Role.READ, "b") and not app.may(Role.ADMIN, "a")
    assert not Actor("ops", Role.ADMIN, frozenset({"a"})).may(Role.ADMIN)
    assert OWNER.may(Role.ADMIN) and OWNER.may(Role.WRITE, "any")


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  abc ", "abc"),
        (b"Basic " + b64encode(b"me:a:b"), "a:b"),
        (b"Basic !", ""),
        (b"Digest x", ""),
        (b"Bearer " + b"x" * 10_000, ""),
        (b"", ""),
    ],
)
def test_token_is_read_from_its_header(header: bytes, token: str) -> None:
    assert bearer([(b"Authorization", header)]) == token
    assert bearer([(b"authorization", header)] * 2) == ""
    assert bearer([(b"cookie", header)]) is None


def test_events_are_lines_of_json_and_the_last_are_kept(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(clock)
    with caplog.at_level(logging.INFO, "standfast.audit"):
        audit.done("wipe", "ops\x1b[31m", task="0_3")
    line = caplog.records[0].getMessage()
    assert "\x1b" not in line
    assert json.loads(line) == {
        "event": "wipe",
        "actor": "ops\x1b[31m",
        "outcome": "done",
        "at_ms": clock.wall_ms(),
        "task": "0_3",
    }
    for number in range(2 * KEPT_MAX):
        audit.failed("verify", "ops", number=number, text="x" * 1_000)
    assert len(audit.recent()) == KEPT_MAX and len(audit.recent(after=2 * KEPT_MAX)) == 1
    assert len(str(audit.recent()[-1].fields["text"])) == 200


def test_flood_of_refusals_becomes_a_few_lines_and_a_count(clock: ManualClock) -> None:
    audit = Audit(clock)
    for _ in range(1_000):
        audit.refused("http", "unknown", reason="NOAUTH")
    assert len(audit.recent()) == REFUSALS_MAX
    clock.advance(REFUSALS_MS)
    audit.refused("http", "unknown", reason="NOAUTH")
    told = audit.recent()[-2:]
    assert told[0].fields == {"count": 1_000 - REFUSALS_MAX} and told[1].event == "http"
