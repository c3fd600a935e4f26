"""Access to a sidecar: other users of this machine, tokens in files, TLS with our own clients.

Rules of this file: the other user is real where we are root, since only root can change its user; elsewhere tests that
need one are skipped. Folders that another user must reach are made outside of pytest's own, which are closed.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.ops.client.endpoint import TlsFiles, endpoint_at, token_of
from standfast.ops.command.command_line import main
from standfast.ops.config.types import Config, ServeSection
from standfast.ops.shared.run_file import RunInfo
from standfast.ops.sidecar.serve_resp import uids_let_in, uids_of_group
from standfast.store.errors import BadConfig, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from support.serve import Sidecar, Sidecars
    from support.tls import Issue

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
TOKEN = "an-admin-token-of-ours"
OTHER_UID, OTHER_GID, GROUP = 61_234, 61_234, "daemon"

# Reads in as root, then becomes another user for good: user, group, further groups.
AS_OTHER = """
import encodings.idna, json, os, sys
import standfast as sf, standfast.ops.client.connect
uid, gid, groups, run_dir, token = json.loads(sys.argv[1])
stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
try:
    with sf.connect(run_dir, stores=stores, partitions=1, token=token) as client:
        client.assign(active=[0])
        client.wait_ready(30)
        task = client.task(0)
        task.store("kv").put("who", str(os.getuid()))
        task.commit()
        print("let in", task.store("kv").get("who"))
except sf.StandfastError as error:
    print(type(error).__name__, error)
"""


def write_tokens(folder: Path) -> tuple[Path, Path]:
    """Write the sidecar's file, and a client's."""
    tokens, own = folder / "tokens.toml", folder / "token"
    tokens.write_text(f'[[tokens]]\nname = "ops"\nrole = "admin"\ntoken = "{TOKEN}"\n')
    own.write_text(f"{TOKEN}\n")
    for path in (tokens, own):
        path.chmod(0o600)
    return tokens, own


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach."""
    made = Path(tempfile.mkdtemp(prefix="sf-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def as_other(sidecar: Sidecar, run_dir: Path, groups: list[int], token: str | None = None) -> str:
    given = json.dumps([OTHER_UID, OTHER_GID, groups, str(run_dir), token])
    command = [sys.executable, "-P", "-c", AS_OTHER, given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{sidecar.told()}"
    return done.stdout.strip()


def test_users_let_in_are_ours_and_those_listed_and_a_group_needs_no_list() -> None:
    own = frozenset({os.getuid(), 0})
    assert uids_let_in(Config()) == own
    assert uids_let_in(Config(serve=ServeSection(uids=(7,)))) == own | {7}
    assert uids_let_in(Config(serve=ServeSection(uids=(7,), group=GROUP))) == own | {7}
    assert uids_let_in(Config(serve=ServeSection(group=GROUP))) is None
    assert 0 in uids_of_group("root")
    assert uids_of_group(None) == uids_of_group("no-such-group") == frozenset()


@pytest.mark.slow
def test_user_of_the_group_uses_the_socket_and_others_do_not(sidecars: Sidecars, place: Path) -> None:
    if os.getuid() != 0:
        return
    run_dir = place / "run"
    tokens, _ = write_tokens(place)
    settings = {"serve__run_dir": str(run_dir), "serve__group": GROUP, "auth__tokens_file": str(tokens)}
    sidecar = sidecars.make(**settings)
    sidecar.run_dir = run_dir
    sidecar.start()
    group = run_dir.stat().st_gid
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (run_dir, *run_dir.iterdir())}
    assert modes == {"run": 0o710, "resp.sock": 0o660, "INFO.json": 0o640, "TOKEN": 0o600, "LOCK": 0o600}
    assert "token" not in sidecar.info
    assert as_other(sidecar, run_dir, [group], TOKEN) == f"let in {OTHER_UID}"
    assert as_other(sidecar, run_dir, [group]).startswith("InvalidRequest give a token")
    assert as_other(sidecar, run_dir, [], TOKEN).startswith("Unavailable")
    with sf.connect(run_dir, stores=STORES) as client:  # we ourselves have the token of TOKEN
        assert client.status()["app"] == "app"
    assert main(["drain", "--wait", "1s", "--run-dir", str(run_dir)]) == 0
    assert sidecar.stop() == 0
    assert not (run_dir / "TOKEN").exists()


@pytest.mark.slow
def test_listed_user_is_let_in_without_token_and_so_are_we(sidecars: Sidecars, place: Path) -> None:
    if os.getuid() != 0:
        return
    run_dir = place / "run"
    sidecar = sidecars.make(serve__run_dir=str(run_dir), serve__group=GROUP, serve__uids=str(OTHER_UID))
    sidecar.run_dir = run_dir
    sidecar.start()
    group = run_dir.stat().st_gid
    assert as_other(sidecar, run_dir, [group]) == f"let in {OTHER_UID}"
    with sf.connect(run_dir, stores=STORES) as client:
        client.assign(active=[0])
        client.wait_ready(30)
        assert client.task(0).store("kv").get("who") == str(OTHER_UID)


@pytest.mark.slow
def test_commands_find_token_and_run_directory_wherever_it_is(
    sidecars: Sidecars, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens, own = write_tokens(tmp_path)
    run_dir = tmp_path / "elsewhere"
    sidecar = sidecars.make(serve__run_dir=str(run_dir), auth__tokens_file=str(tokens))
    sidecar.run_dir = run_dir
    sidecar.start()
    url = sidecar.info["http"]
    assert main(["status", "--state-dir", str(sidecar.state_dir)]) == 0  # the run file names the token's file
    assert main(["status", "--run-dir", str(run_dir)]) == 0
    assert main(["status", "--url", url]) == 2
    assert "give a token" in capsys.readouterr().err
    assert main(["status", "--url", url, "--token-file", str(own)]) == 0
    own.chmod(0o644)
    assert main(["status", "--url", url, "--token-file", str(own)]) == 78
    own.chmod(0o600)
    assert main(["drain", "--wait", "1s", "--url", url, "--token-file", str(own)]) == 0


@pytest.mark.slow
def test_our_clients_speak_tls_with_a_certificate_of_their_own(
    sidecars: Sidecars, issue: Issue, capsys: pytest.CaptureFixture[str]
) -> None:
    server, ca = issue("door", "DNS:sidecar.example"), issue("clients")
    own, stranger = issue("us", "DNS:us.example", by=ca), issue("them", "DNS:them.example", by=ca)
    sidecar = sidecars.make(
        http__tls_certificate=str(server.certificate),
        http__tls_key_file=str(server.key),
        http__client_ca=str(ca.certificate),
        http__client_names="DNS:us.example",
    ).start()
    files: dict[str, Any] = {"ca": server.certificate, "certificate": own.certificate, "key": own.key}
    assert sidecar.info["http"].startswith("https://127.0.0.1:")
    with sf.connect(sidecar.run_dir, stores=STORES, partitions=1, server_name="sidecar.example", **files) as client:
        client.assign(active=[0])
        client.wait_ready(30)
        client.task(0).store("kv").put("a", "b")
        client.task(0).commit()
    with pytest.raises(Unavailable, match="have this name"):
        sf.connect(sidecar.run_dir, stores=STORES, **files)  # 127.0.0.1 is not in the certificate
    with pytest.raises(Unavailable, match="trust its authority"):
        sf.connect(sidecar.run_dir, stores=STORES, server_name="sidecar.example")
    with pytest.raises(Unavailable, match=r"accept our certificate|is ours accepted"):
        others: dict[str, Any] = {"ca": server.certificate, "certificate": stranger.certificate, "key": stranger.key}
        sf.connect(sidecar.run_dir, stores=STORES, server_name="sidecar.example", **others)
    trust = ["--ca", str(server.certificate), "--tls-name", "sidecar.example"]
    ours = ["--cert", str(own.certificate), "--cert-key", str(own.key)]
    for where in (["--url", sidecar.info["http"]], ["--state-dir", str(sidecar.state_dir)]):
        assert main(["status", *where, *trust, *ours]) == 0
        assert main(["status", *where, *trust]) == 69
    plain = sidecar.info["http"].replace("https", "http")
    capsys.readouterr()
    assert main(["status", "--url", plain]) == 69
    assert "https" in capsys.readouterr().err


def test_address_and_its_files_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    for address in ("ftp://h:1", "http://h", "h:1", "https://h:x"):
        with pytest.raises(InvalidRequest, match="https://host:port"):
            endpoint_at(address)
    with pytest.raises(InvalidRequest, match="plain http"):
        endpoint_at("http://127.0.0.1:1", TlsFiles(server_name="a"))
    with pytest.raises(BadConfig, match="absent"):
        endpoint_at("https://127.0.0.1:1", TlsFiles(ca=tmp_path / "absent"))
    with pytest.raises(BadConfig, match="without its certificate"):
        endpoint_at("https://127.0.0.1:1", TlsFiles(key=tmp_path / "k"))
    assert endpoint_at("https://0.0.0.0:5").where == "127.0.0.1:5"
    assert endpoint_at("http://[::1]:5").where == "[::1]:5"
    assert RunInfo("a", "i", 1, "::1", 5, 0, "v", "https").address == "https://[::1]:5"


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("two\nlines", 0o600), ("ä", 0o600), ("token", 0o644)])
def test_file_that_holds_no_token_or_is_open_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(BadConfig) as caught:
        token_of(path)
    assert not text or text not in str(caught.value).replace(str(path), "")
