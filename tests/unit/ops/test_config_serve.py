"""Settings of the sidecar: stores, librdkafka's, combinations, output without secrets, and any bytes at all."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.config.config import PROBLEMS_MAX, Loaded, load_config
from standfast.ops.config.show import HIDDEN, json_schema, rows
from standfast.ops.config.sources import FILE_BYTES_MAX
from standfast.ops.config.types import SECTIONS, Config, StoreConfig, settings_of
from standfast.ops.sidecar.serve import check
from standfast.store.errors import BadConfig

GOOD = """\
[app]
name = "delays"
log = "kafka://b:9092?client.rack=a"
state_dir = "state"

[kafka]
security.protocol = "SASL_SSL"
sasl.username = "${USER_NAME}"
sasl.password_file = "/run/secrets/kafka"
"ssl.ca.location" = "/etc/ca.pem"
some.new.setting = 5

[stores.aircraft]
[stores.delays]
kind = "window"
window_size = "1h"
retention = "1d"
[stores.delays.changelog]
min.compaction.lag.ms = 1000
[stores.trips]
kind = "session"
retention = "7d"
[stores.prices]
kind = "versioned"
history_retention = "30d"

[serve]
lease = "15s"
uids = [1000, 1001]

[limits]
connections = 20
key_max = "1KiB"
"""


def load(folder: Path, text: str | bytes, env: dict[str, str] | None = None, **flags: object) -> Loaded:
    path = folder / "s.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(path, env or {}, {name.replace("__", "."): value for name, value in flags.items()})


def problems(folder: Path, text: str | bytes, env: dict[str, str] | None = None, **flags: object) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        load(folder, text, env, **flags)
    return [problem.removeprefix(f"{folder}/s.toml") for problem in caught.value.problems]


def test_file_gives_typed_sections_and_stores_of_every_kind(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD, {"USER_NAME": "bob"}).config
    assert (config.serve.lease_ms, config.serve.uids, config.limits.key_max_bytes) == (15_000, (1000, 1001), 1024)
    plain = sf.serde.bytes
    assert config.stores == (
        sf.KeyValueStore("aircraft", plain, plain),
        sf.WindowStore(
            "delays",
            plain,
            plain,
            window_size_ms=3_600_000,
            retention_ms=86_400_000,
            changelog={"min.compaction.lag.ms": "1000"},
        ),
        sf.SessionStore("trips", plain, plain, retention_ms=7 * 86_400_000),
        sf.VersionedStore("prices", plain, plain, history_retention_ms=30 * 86_400_000),
    )


def test_settings_of_librdkafka_become_part_of_the_address(tmp_path: Path) -> None:
    address = load(tmp_path, GOOD, {"USER_NAME": "bob"}).config.log_address
    assert address == (
        "kafka://b:9092?client.rack=a&sasl.password.file=/run/secrets/kafka&sasl.username=bob"
        "&security.protocol=SASL_SSL&some.new.setting=5&ssl.ca.location=/etc/ca.pem"
    )


def test_defaults_are_whole_and_keep_to_this_machine() -> None:
    config = load_config(None, {}).config
    assert config == Config()
    assert (config.http.host, config.http.allow_remote, config.auth.tokens_file) == ("127.0.0.1", False, None)
    assert config.run_dir is None and config.log_address is None


def test_run_folder_is_in_the_state_of_the_application_unless_set(tmp_path: Path) -> None:
    assert load(tmp_path, '[app]\nname = "a"\nstate_dir = "s"').config.run_dir == Path("s/a/run")
    assert load(tmp_path, '[serve]\nrun_dir = "/run/x"').config.run_dir == Path("/run/x")


def test_variables_reach_stores_and_librdkafka(tmp_path: Path) -> None:
    env = {
        "USER_NAME": "bob",
        "STANDFAST_STORES__DELAYS__RETENTION": "2d",
        "STANDFAST_STORES__EXTRA__KIND": "keyvalue",
        "STANDFAST_KAFKA__SASL_PASSWORD_FILE": "/other",
        "STANDFAST_KAFKA__LOG_LEVEL": "7",
        "STANDFAST_HTTP__ORIGINS": "https://a:1, https://b",
        "STANDFAST_HTTP__PAGE": "false",
    }
    config = load(tmp_path, GOOD, env, http__port="80").config
    stores = {store.name: store for store in config.stores}
    assert stores["delays"].definition()["retention_ms"] == 2 * 86_400_000 and "extra" in stores
    assert config.kafka["sasl.password.file"] == "/other" and config.kafka["log_level"] == "7"
    assert (config.http.origins, config.http.page, config.http.port) == (("https://a:1", "https://b"), False, 80)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[stores.a]\nkind = "window"\n', ":2: stores.a: kind window needs window_size"),
        ('[stores.a]\nretention = "1d"\n', ":2: stores.a: retention does not go with kind keyvalue: leave it out"),
        ('[stores.a]\nkindd = "window"\n', ":2: stores.a.kindd: no such setting, did you mean 'kind'?"),
        ('[stores."../a"]\n', ":1: stores: store name '../a' is not usable"),
        ("[stores.default]\n", ":1: stores.default: this name is kept for the task's own record"),
        ("stores = 5\n", ":1: stores: a setting outside a section"),
        ('[http]\nhost = "0.0.0.0"\nallow_remote = true\ntls_certificate = "c"\ntls_key_file = "k"\n', "tokens_file"),
        ('[http]\nhost = "0.0.0.0"\n', ":2: http.host: is reachable from other machines: use 127.0.0.1"),
        ('[http]\ntls_certificate = "c"\n', ":2: http.tls_certificate: http.tls_certificate and http.tls_key_file go"),
        ('[http]\nclient_names = ["DNS:a"]\n', ":2: http.client_names: http.client_ca and http.client_names go"),
        ('[http]\norigins = ["*"]\n', ":2: http.origins: '*' is not an origin"),
        (
            '[limits]\nkey_max = "1GiB"\n',
            ":2: limits.key_max: 1073741824 bytes are more than a store takes: 65536 at most",
        ),
        (
            '[limits]\nkey_max = "2KiB"\ncommand_max = "1KiB"\n[store]\nvalue_max = "1KiB"\n',
            ":2: limits.key_max: 2048 bytes are more than limits.command_max allows",
        ),
        (
            '[app]\nlog = "sqlite:///./l"\n[kafka]\nclient.id = "x"\n',
            ":4: kafka.client.id: needs a log at kafka://",
        ),
        ('[kafka]\nbootstrap.servers = "x"\n', ":2: kafka.bootstrap.servers: is set by standfast"),
        ('[kafka]\n"a b" = "x"\n', ":2: kafka.a b: is not the name of a librdkafka setting"),
        ('[app]\nname = "${NO_SUCH}"\n', ":2: 'app.name': environment variable NO_SUCH is not set"),
        ('[app]\nname = "${not a name}"\n', ":2: 'app.name': ${...} must hold the name of an environment variable"),
        ('[app]\n"${NAME}" = "x"\n', ":2: app.${NAME}: no such setting"),
        ("[serve]\nrun_dir = '/" + "x" * 100 + "'\n", ":2: serve.run_dir: the path of the socket has 111 bytes"),
        ('[serve]\nsocket = "INFO.json"\n', ":2: serve.socket: INFO.json is the name of another file"),
        (
            '[app]\nname = "a"\nstate_dir = "s"\n[serve]\ngroup = "g"\n',
            ":5: serve.group: its users cannot enter the run directory",
        ),
        ('[snapshots]\nevery = "1h"\n', ":2: snapshots.every: needs a storage: set snapshots.to"),
        ('[snapshots]\nto = "http://host/x"\n', ":2: snapshots.to: 'http://host/x' is no storage for snapshots"),
        ("[snapshots]\nto = 5\n", ":2: snapshots.to: expected a folder or an address"),
        ('[app]\n"na\\u001bme" = 1\n', r":1: 'app.na\x1bme': no such setting"),
    ],
)
def test_problem_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    assert any(problem in one for one in problems(tmp_path, text)), problems(tmp_path, text)


def test_dollar_sign_twice_stands_for_itself(tmp_path: Path) -> None:
    assert load(tmp_path, '[serve]\nrun_dir = "$${x}"').config.serve.run_dir == Path("${x}")


@pytest.mark.parametrize("name", ["sasl.password", '"sasl.password"', "ssl.key.password", "ssl.key.pem"])
def test_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, name: str) -> None:
    (problem,) = problems(tmp_path, f'[app]\nlog = "kafka://b:1"\n[kafka]\n{name} = "hunter2"\n')
    assert "_file" in problem and "hunter2" not in problem


def test_address_with_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for address in ("redis://:hunter2@h", "kafka://u:hunter2@h:1", "kafka://h:1?sasl.password=hunter2", "hunter2"):
        found = "".join(problems(tmp_path, f'[app]\nlog = "{address}"\n'))
        assert found and "hunter2" not in found.replace("'hunter2' has no scheme", "")


def test_storage_with_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for address in ("s3://key:hunter2@bucket/x", "s3://bucket/x?secret_access_key=hunter2"):
        (found,) = problems(tmp_path, f'[snapshots]\nto = "{address}"\n')
        assert "snapshots.to" in found and "hunter2" not in found


def test_settings_of_snapshots_make_a_policy(tmp_path: Path) -> None:
    text = '[snapshots]\nto = "s3://b/x?region=eu-west-1"\nevery = "1h"\nkeep_for = "7d"\nupload_rate = "1MiB"\n'
    loaded = load(tmp_path, text)
    policy = loaded.config.snapshot_policy
    assert policy is not None and not policy.problems()
    assert (policy.to, policy.every_ms, policy.keep_ms) == ("s3://b/x?region=eu-west-1", 3_600_000, 604_800_000)
    assert (policy.bytes_per_s, policy.every_records, policy.keep) == (1 << 20, None, 3)
    assert load_config(None, {}).config.snapshot_policy is None
    assert {name: value for name, value, _ in rows(loaded)}["snapshots.to"] == "s3://b/x"


def test_what_is_shown_is_on_a_list(tmp_path: Path) -> None:
    env = {"USER_NAME": "bob", "STANDFAST_KAFKA__SASL_OAUTHBEARER_EXTENSIONS": "hunter2"}
    found = {name: (value, origin) for name, value, origin in rows(load(tmp_path, GOOD, env))}
    assert found["kafka.sasl.username"] == ("${USER_NAME}", f"{tmp_path}/s.toml:8")
    assert found["kafka.some.new.setting"][0] == found["kafka.sasl.oauthbearer.extensions"][0] == HIDDEN
    assert found["kafka.sasl.password.file"][0] == "/run/secrets/kafka"
    assert found["limits.key_max"] == ("1KiB", f"{tmp_path}/s.toml:33")
    assert found["serve.drain_timeout"] == ("20s", "default")
    assert found["stores.delays.retention"] == ("1d", f"{tmp_path}/s.toml:17")
    secret = {name: value for name, (value, _) in found.items() if "hunter2" in str(value) or "bob" in str(value)}
    assert secret == {}


def test_unknown_settings_in_an_address_are_hidden(tmp_path: Path) -> None:
    found = dict(row[:2] for row in rows(load(tmp_path, '[app]\nlog = "kafka://b:1?some.key=hunter2&client.id=me"')))
    assert found["app.log"] == "kafka://b:1?client.id=me&some.key=%28hidden%29"


def test_every_setting_has_a_reader_a_text_and_a_word_on_showing_it() -> None:
    for kind in (*SECTIONS.values(), StoreConfig):
        for one in settings_of(kind).values():
            assert set(one.metadata) == {"reader", "text", "shown"} and one.metadata["text"]


def test_what_is_shown_reads_back_as_the_same(tmp_path: Path) -> None:
    loaded = load_config(None, {})
    shown = {name: value for name, value, _ in rows(loaded) if value is not None}
    assert load_config(None, {}, shown).config == loaded.config


def test_commands_show_schema_and_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[app]\nname = "delays"\n', encoding="utf-8")
    assert main(["config", "show", str(path), "--origin", "--set", "serve.lease=3s"]) == 0
    text = capsys.readouterr().out
    assert f"{path}:2" in text and "command line" in text
    assert main(["config", "validate", str(path), "--set", "serve.lease=3"]) == 78
    assert "command line: serve.lease" in capsys.readouterr().err
    assert main(["config", "show", "--set", "nonsense"]) == 2
    capsys.readouterr()
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))


def test_schema_names_every_setting() -> None:
    properties = json_schema()["properties"]
    assert set(properties) == {*SECTIONS, "stores", "kafka"}
    assert set(properties["limits"]["properties"]) == set(settings_of(SECTIONS["limits"]))


@pytest.mark.parametrize(
    "text",
    [
        b"a = " + b"[" * 4_000,
        b"a = " + b"[" * 20 + b"]" * 20,
        b"a = " + b"{b = " * 1_000 + b"1" + b"}" * 1_000,
        (b"a." * 2_000 + b"a = 1\n") * 10,
        b"a." * 100_000 + b"a = 1",
        b"a = " + b"9" * 4_000,
        b"a = 99999-99-99T99:99:99",
        b"[app]\nname = " + b"1" * 4_000,
        b"\n".join(b"[app%d]\nx = 1" % number for number in range(8_000)),
        b"\n".join(b"[stores.s%d]\nx = 1" % number for number in range(8_000)),
        b"[http]\norigins = [" + b"'x'," * 900 + b"]",
        b"x" * (FILE_BYTES_MAX + 1),
        b"\xff\xfe",
        b"[app]\nname = '''\n" + b"[x]\ny = 1\n" * 100,
        b"[kafka]\nx = [1]\ny = 1979-05-27\nz = nan\n",
    ],
    ids=range(15),
)
@pytest.mark.slow
def test_hostile_file_gives_problems_soon(tmp_path: Path, text: bytes) -> None:
    started = monotonic()
    found = problems(tmp_path, text)
    assert 0 < len(found) <= PROBLEMS_MAX + 1 and all(len(one) < 1_000 for one in found)
    assert monotonic() - started < 20


NAMES = st.sampled_from([*SECTIONS, "stores", "kafka", "stores.x", "app.name", "", "é", '"a.b"', "x" * 200])
VALUES = st.one_of(
    st.sampled_from(
        ['"64MiB"', '"30s"', "true", "-1", "0", "[]", "{}", '"${HOME}"', '"${"', "nan", "1979-05-27", "'''\n'''"]
    ),
    st.integers().map(str),
    st.text(max_size=20).map(lambda text: json.dumps(text)),
)
KEYS = st.sampled_from(sorted({key for kind in (*SECTIONS.values(), StoreConfig) for key in settings_of(kind)}))
LINES = st.one_of(NAMES.map(lambda name: f"[{name}]"), st.tuples(KEYS, VALUES).map(" = ".join), st.text(max_size=30))


def outcome(folder: Path, text: bytes, env: dict[str, str]) -> None:
    """Settings that can be shown, or problems that each name a place."""
    try:
        loaded = load(folder, text, env)
    except BadConfig as error:
        assert error.problems and all(": " in one for one in error.problems)
    else:
        assert json.dumps([*rows(loaded)])


@pytest.mark.slow
@given(text=st.binary(max_size=400))
def test_any_bytes_are_settings_or_problems(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    outcome(tmp_path_factory.getbasetemp(), text, {})


@pytest.mark.slow
@given(lines=st.lists(LINES, max_size=12), value=st.text(max_size=20))
def test_any_lines_are_settings_or_problems(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], value: str
) -> None:
    env = {"HOME": "/home/me", "STANDFAST_APP__NAME": value, "STANDFAST_STORES____": value, "STANDFAST___": value}
    outcome(tmp_path_factory.getbasetemp(), "\n".join(lines).encode("utf-8", "surrogatepass"), env)


@pytest.mark.slow
@given(flips=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6))
def test_a_good_file_with_changed_bytes_is_settings_or_problems(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    raw = bytearray(GOOD.encode())
    for at, byte in flips:
        raw[at] = byte
    outcome(tmp_path_factory.getbasetemp(), bytes(raw), {"USER_NAME": "bob"})


def test_long_state_directory_is_refused_by_the_server_alone(tmp_path: Path) -> None:
    """Commands about an instance, such as get and scan, need no socket."""
    state = tmp_path / ("x" * 100)
    given = {"app.name": "app", "app.log": "sqlite:///./log", "app.state_dir": str(state)}
    loaded = load_config(None, {}, given)
    with pytest.raises(BadConfig, match=r"serve.run_dir: the path of the socket has \d+ bytes, 107 at most"):
        check(loaded.config)
    check(load_config(None, {}, {**given, "serve.run_dir": "/run/app"}).config)
