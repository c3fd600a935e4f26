"""The local Kafka broker, the real one: started, called, killed, restarted, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from standfast.ops.command.command_line import main
from standfast.ops.shared import loopback
from standfast.ops.shared.loopback import HOST, free_port, is_free
from standfast.ops.shared.process_id import ProcessId, identify, is_alive, send, wait_gone
from standfast.ops.tools import broker as tool
from standfast.ops.tools.broker import Broker
from standfast.ops.tools.broker_settings import properties_text, server_properties
from standfast.ops.tools.broker_state import STATE_FILE, RunningBroker, end_broker, record_broker, running_broker
from standfast.ops.tools.kafka_probe import live_nodes, parse_answer
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, Held, InvalidRequest, Unavailable
from support.kafka import format_data

kafka = pytest.mark.kafka
slow = pytest.mark.slow
Output = pytest.CaptureFixture[str]


def quiet(text: str) -> None:
    """Drops progress messages."""


def run(capsys: Output, *arguments: str) -> tuple[int, str, str]:
    code = main(["broker", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def write(address: str, value: bytes) -> None:
    """Append a record to the topic `kept`, which is created if absent."""
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic("kept", 1, 1)]).values():
        error = made.exception(30)
        assert error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error
    producer = Producer({"bootstrap.servers": address})
    producer.produce("kept", value)
    assert producer.flush(30) == 0


def end_offset(consumer: Consumer) -> int:
    """The end of `kept`. A broker that has just started names itself the leader a moment before it is."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + 60_000
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition("kept", 0), timeout=30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or clock.monotonic_ms() > deadline_ms:
                raise
            clock.sleep_ms(50)
        else:
            return int(end)


def read(address: str) -> list[bytes | None]:
    """Every record of the topic `kept`."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader"})
    try:
        end = end_offset(consumer)
        consumer.assign([TopicPartition("kept", 0, 0)])
        return [message.value() for message in consumer.consume(end, timeout=30)]
    finally:
        consumer.close()


# -- the command ------------------------------------------------------------------------------------------------------


@kafka
@slow
def test_broker_comes_up_tells_its_state_and_goes_down(kafka_files: None, tmp_path: Path, capsys: Output) -> None:
    where = ["--dir", str(tmp_path / "b"), "--json"]
    code, told, _ = run(capsys, "up", *where)
    try:
        first = json.loads(told)
        assert code == 0 and first["schema"] == "standfast.broker/1"
        assert (first["running"], first["started"], first["kafka"]) == (True, True, "4.3.1")
        host, port = first["address"].split(":")
        assert [(node.node_id, node.host, node.port) for node in live_nodes(host, int(port), 5) or []] == [
            (1, HOST, int(port))
        ]
        code, told, _ = run(capsys, "up", *where)
        assert code == 0
        assert json.loads(told) == first | {"started": False, "started_in_ms": None}, "a second up changes nothing"
        assert first["url"] == f"kafka://{first['address']}" and first["started_in_ms"] > 0
        assert run(capsys, "up", *where, "--port", "1")[0] == 2
        code, told, _ = run(capsys, "status", *where)
        assert (code, json.loads(told)["answers"], json.loads(told)["pid"]) == (0, True, first["pid"])
        assert f"answers at {first['address']}" in run(capsys, "status", *where[:2])[1]
    finally:
        code, told, _ = run(capsys, "down", *where)
    assert (code, json.loads(told)["stopped"], json.loads(told)["pid"]) == (0, True, first["pid"])
    assert identify(first["pid"]) is None
    code, told, _ = run(capsys, "down", *where)
    assert (code, json.loads(told)["stopped"]) == (0, False), "a second down finds nothing to do"
    code, told, _ = run(capsys, "status", *where)
    assert (code, json.loads(told)["running"], json.loads(told)["answers"]) == (1, False, False)
    assert "no broker runs" in run(capsys, "status", *where[:2])[1]


def test_directory_is_the_users_own_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert str(tmp_path / "standfast/broker") in run(capsys, "status")[1]


@kafka
@slow
def test_taken_port_is_told_and_leaves_nothing(kafka_files: None, tmp_path: Path, capsys: Output) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        code, told, err = run(capsys, "up", "--dir", str(tmp_path / "b"), "--port", str(port), "--json")
    assert (code, json.loads(told)["error"]) == (73, "Held")
    assert f"port {port} on {HOST} is taken" in err
    assert not (tmp_path / "b" / STATE_FILE).exists()


# -- the process ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@kafka
@slow
def test_killed_broker_comes_back_on_its_port_with_its_records(restartable_broker: Broker) -> None:
    broker = restartable_broker
    address, pid = broker.address, broker.running.pid
    write(address, b"before the kill")
    broker.kill()
    assert identify(pid) is None
    assert running_broker(broker.directory) is None
    assert broker.address == address, "clients go on asking for it while it is down"
    broker.start()
    assert broker.address == address
    assert broker.running.pid != pid
    assert read(address) == [b"before the kill"]
    write(address, b"before the stop")
    broker.stop()
    broker.stop()
    broker.start()
    assert read(broker.address) == [b"before the kill", b"before the stop"]


@kafka
@slow
def test_second_start_on_a_directory_is_refused_and_names_the_first(kafka_broker: Broker) -> None:
    with pytest.raises(Held, match=rf"pid {kafka_broker.running.pid} at {kafka_broker.address}"):
        Broker(kafka_broker.directory).start()
    assert live_nodes(HOST, kafka_broker.running.port, 5)


@kafka
@slow
def test_broker_ends_with_the_process_that_started_it(kafka_files: None, tmp_path: Path) -> None:
    format_data(tmp_path / "b")
    script = f"""if True:
        import os, signal
        from standfast.ops.tools import broker
        broker.JVM_LIGHT = {tool.JVM_LIGHT!r}  # with the archive of classes
        print(broker.Broker({str(tmp_path / "b")!r}, light=True).start().pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    ended = identify(int(done.stdout))
    assert ended is None or wait_gone(ended, SystemClock(), 10_000), "the kernel has only just told it"
    assert running_broker(tmp_path / "b") is None


@kafka
@slow
def test_failed_start_tells_the_brokers_own_words_and_leaves_no_process(kafka_files: None, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = server.getsockname()[1]
        listeners = f"PLAINTEXT://{HOST}:{taken},CONTROLLER://{HOST}:{{controller_port}}"
        format_data(tmp_path / "b")
        broker = Broker(tmp_path / "b", free_port(), settings={"listeners": listeners}, light=True)
        with pytest.raises(Unavailable, match=r"(?s)ended with exit code 1.*Address already in use"):
            broker.start()
    assert running_broker(tmp_path / "b") is None
    assert not (tmp_path / "b" / STATE_FILE).exists()


@kafka
@slow
def test_setting_that_kafka_refuses_is_told(kafka_files: None, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Invalid value many for configuration num"):
        Broker(tmp_path / "b", settings={"num.partitions": "many"}, light=True).start()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """An unrelated process."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def left_behind(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> Path:
    """The folder of a broker that is gone, and whose process id belongs to the bystander by now."""
    found = identify(bystander.pid)
    assert found is not None
    old = RunningBroker(found.pid, found.started_ticks - 1, found.boot, 1, "4.3.1", "java", "log")
    record_broker(tmp_path, old)
    return tmp_path


def test_foreign_process_of_the_same_id_is_not_touched(
    left_behind: Path, bystander: subprocess.Popen[bytes], capsys: Output
) -> None:
    assert running_broker(left_behind) is None
    code, told, _ = run(capsys, "down", "--dir", str(left_behind), "--json")
    assert (code, json.loads(told)["stopped"]) == (0, False)
    assert bystander.poll() is None
    assert not (left_behind / STATE_FILE).exists()


def test_signal_reaches_only_the_very_process(bystander: subprocess.Popen[bytes]) -> None:
    found = identify(bystander.pid)
    assert found is not None and is_alive(found)
    for other in (replace(found, started_ticks=found.started_ticks + 1), replace(found, boot="another")):
        assert not is_alive(other)
        assert not send(other, signal.SIGKILL)
    assert bystander.poll() is None
    assert send(found, signal.SIGKILL)
    assert bystander.wait() == -signal.SIGKILL
    assert not send(found, signal.SIGKILL)


def test_process_that_ended_unnoticed_by_its_parent_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert identify(process.pid) is None
    process.wait()


def test_unreadable_state_file_is_told_and_kept(tmp_path: Path) -> None:
    for text in ("not json", "{}", '{"schema": "standfast.broker-state/9"}', "[]"):
        (tmp_path / STATE_FILE).write_text(text)
        with pytest.raises(InvalidRequest, match="is not readable"):
            end_broker(tmp_path)
        assert (tmp_path / STATE_FILE).read_text() == text


def test_address_before_the_first_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Closed, match="was not started"):
        _ = Broker(tmp_path).address
    with pytest.raises(InvalidRequest, match="port is 70000"):
        Broker(tmp_path, 70_000)


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidRequest, match="cannot hold a broker"):
        Broker(tmp_path / "file").start()
    assert (tmp_path / "file").read_text() == "mine"


# -- settings, ports, the request -------------------------------------------------------------------------------------


def test_settings_of_the_caller_win_and_know_the_ports() -> None:
    ours = server_properties(Path("/d"), 21, 22)
    assert ours["listeners"] == "PLAINTEXT://127.0.0.1:21,CONTROLLER://127.0.0.1:22"
    assert ours["auto.create.topics.enable"] == "false"
    theirs = server_properties(Path("/d"), 21, 22, {"listeners": "A://:{port},B://:{controller_port}", "new": "1"})
    assert (theirs["listeners"], theirs["new"]) == ("A://:21,B://:22", "1")


def test_broker_takes_no_port_of_a_listener_of_its_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(port for port in loopback.PORTS if all(map(is_free, range(port, port + 3))))
    monkeypatch.setattr(loopback, "PORTS", range(first, first + 3))
    listeners = (
        f"PLAINTEXT://{HOST}:{{port}},CONTROLLER://{HOST}:{{controller_port}},SASL_PLAINTEXT://{HOST}:{first + 1}"
    )
    ports = Broker(tmp_path, settings={"listeners": listeners})._choose_ports()
    assert set(ports) == {first, first + 2}


def test_properties_are_escaped_as_java_reads_them() -> None:
    assert properties_text({"log.dirs": "/a\\b/ü"}) == "log.dirs=/a\\\\b/\\u00fc\n"


def test_free_port_is_free_and_none_of_those_left_out() -> None:
    port = free_port()
    assert is_free(port)
    assert free_port(but=[port]) != port
    with socket.create_server((HOST, port)):
        assert not is_free(port)


def test_probe_of_something_else_finds_no_broker() -> None:
    assert live_nodes(HOST, free_port(), 1) is None
    with socket.create_server((HOST, 0)) as server:  # accepts the request and never replies
        assert live_nodes(HOST, server.getsockname()[1], 0.05) is None


@pytest.mark.parametrize("answer", [b"", bytes(8), b"\0\0\0\x5f\0\0\0\x01", b"\0\0\0\x5f\xff\xff\xff\xff"])
def test_probe_refuses_bytes_that_are_no_answer(answer: bytes) -> None:
    with pytest.raises((ValueError, struct.error), match=r"answer|unpack"):
        parse_answer(answer)


def test_identity_is_of_this_boot() -> None:
    found = identify(os.getpid())
    assert isinstance(found, ProcessId)
    assert found.pid == os.getpid()
    assert identify(os.getpid()) == found
