"""Serdes of a schema registry: golden bytes, one request a schema, errors by subject and id, no secret in any text."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import standfast as sf
from standfast.store.errors import BadConfig, Closed, InvalidRequest, StandfastError, Unavailable
from standfast.store.schema import client as client_module
from support.registry import SchemaRegistry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "long"}],
}
WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]}
JSON_ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["item"],
}
UNTYPED: Any = sf.serde  # for arguments that type checkers refuse
TEA = {"item": "tea", "count": 3}
HEAD = b"\0\0\0\0\x01"  # the format, and the first id of a new registry
SECRET = "hunter2"
pytestmark = pytest.mark.slow  # each registry has an HTTP client of its own, which takes a tenth of a second


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made


def avro(registry: SchemaRegistry, topic: str = "orders", **given: Any) -> sf.serde.Serde[Any]:
    return sf.serde.avro(given.pop("schema", ORDER), registry=registry.url, **given).of_topic(topic, "value")


def order_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="item", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="count", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


# --- bytes ---


def test_avro_bytes_are_the_registrys_format(registry: SchemaRegistry) -> None:
    serde = avro(registry)
    raw = HEAD + b"\x06tea\x06"
    assert serde.serialize(TEA) == raw
    assert serde.deserialize(raw) == TEA


def test_json_schema_bytes_are_the_registrys_format(registry: SchemaRegistry) -> None:
    serde = sf.serde.json_schema(JSON_ORDER, registry=registry.url).of_topic("orders", "value")
    raw = HEAD + b'{"item":"tea","count":3}'
    assert serde.serialize(TEA) == raw
    assert serde.deserialize(raw) == TEA
    assert registry.schemas[1]["schemaType"] == "JSON"


def test_protobuf_bytes_are_the_registrys_format(registry: SchemaRegistry) -> None:
    order = order_class()
    serde = sf.serde.protobuf(order, registry=registry.url).of_topic("orders", "value")
    raw = HEAD + b"\0" + b"\x0a\x03tea\x10\x03"  # 0: the first message of the file
    assert serde.serialize(order(item="tea", count=3)) == raw
    assert serde.deserialize(raw) == order(item="tea", count=3)
    assert registry.schemas[1]["schemaType"] == "PROTOBUF"


def test_records_of_an_older_schema_are_resolved_to_the_declared_one(registry: SchemaRegistry) -> None:
    old = avro(registry).serialize(TEA)
    assert avro(registry, schema=WIDER).deserialize(old) == {**TEA, "note": "none"}


def test_without_a_schema_values_are_read_as_written_and_written_with_the_latest(registry: SchemaRegistry) -> None:
    old = avro(registry).serialize(TEA)
    avro(registry, schema=WIDER).serialize({**TEA, "note": "x"})
    serde = avro(registry, schema=None)
    assert serde.deserialize(old) == TEA
    assert serde.serialize({**TEA, "note": "x"})[:5] == b"\0\0\0\0\x02"
    assert registry.subjects == {"orders-value": [1, 2]}


def test_functions_make_values_of_ones_own_type(registry: SchemaRegistry) -> None:
    serde = sf.serde.avro(
        ORDER,
        registry=registry.url,
        to_dict=lambda order: {"item": order[0], "count": order[1]},
        from_dict=lambda given: (given["item"], given["count"]),
    ).of_topic("orders", "value")
    assert serde.deserialize(serde.serialize(("tea", 3))) == ("tea", 3)


# --- subjects and requests ---


def test_subject_is_that_of_topic_and_part_and_each_topic_keeps_its_own_id(registry: SchemaRegistry) -> None:
    serde = sf.serde.avro(ORDER, registry=registry.url)
    first, second = serde.of_topic("orders", "key"), serde.of_topic("bills", "value")
    registry.schemas[1] = {"schema": '"string"'}  # so that the two subjects get different ids
    registry.subjects["bills-value"] = [1]
    assert [first.serialize(TEA)[:5], second.serialize(TEA)[:5], first.serialize(TEA)[:5]] == [b"\0\0\0\0\x02"] * 3
    assert set(registry.subjects) == {"orders-key", "bills-value"}


def test_subjects_may_be_named_by_the_record(registry: SchemaRegistry) -> None:
    for subject in ("record", "topic_record"):
        avro(registry, subject=subject).serialize(TEA)
    assert set(registry.subjects) == {"Order", "orders-Order"}


def test_registry_is_asked_once_for_each_schema(registry: SchemaRegistry) -> None:
    raw = avro(registry).serialize(TEA)
    serde = sf.serde.avro(ORDER, registry=registry.url)
    for _ in range(50):
        serde.of_topic("orders", "value").deserialize(raw)
        serde.of_topic("orders", "value").serialize(TEA)
    assert registry.asked("GET /schemas/ids/1") == 1
    assert len(registry.requests) == 2  # and the registration before


def test_registry_is_shared_by_serdes_until_it_is_closed(registry: SchemaRegistry) -> None:
    raw = avro(registry).serialize(TEA)
    with_login = sf.serde.Registry(registry.url)
    one, other = (sf.serde.avro(ORDER, registry=with_login).of_topic("orders", "value") for _ in range(2))
    assert one.deserialize(raw) == other.deserialize(raw) == TEA
    assert registry.asked("GET /schemas/ids/1") == 1
    with_login.close()
    with_login.close()
    registry.schemas[2] = {"schema": '"string"'}
    with pytest.raises(Closed, match="schema id 2 is needed: declare a new Registry") as caught:
        one.deserialize(b"\0\0\0\0\x02\x06tea")
    assert caught.value.beyond_record
    with pytest.raises(Closed, match="declare the serde with another"):
        sf.serde.avro(ORDER, registry=with_login)


def test_schema_that_must_be_registered_first_is_not_registered(registry: SchemaRegistry) -> None:
    serde = avro(registry, auto_register=False)
    with pytest.raises(BadConfig, match=r"subject 'orders-value': finding the schema.*40401.*register it first"):
        serde.serialize(TEA)
    assert registry.subjects == {}
    avro(registry).serialize(TEA)
    assert serde.serialize(TEA) == HEAD + b"\x06tea\x06"


# --- failures that are the record's ---


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "0 bytes, which are too few"),
        (b'{"item":"tea"}', "first byte 0x7b, not the 0"),
        (HEAD + b"\x06te", "schema id 1"),
    ],
)
def test_bytes_that_cannot_be_read_are_named(registry: SchemaRegistry, raw: bytes, said: str) -> None:
    serde = avro(registry)
    serde.serialize(TEA)
    with pytest.raises(ValueError, match=said) as caught:
        serde.deserialize(raw)
    assert "subject orders-value" in str(caught.value)


def test_value_that_the_schema_does_not_fit_names_the_subject(registry: SchemaRegistry) -> None:
    with pytest.raises(ValueError, match="subject orders-value: TypeError: must be string on field item"):
        avro(registry).serialize({"item": 7})
    serde = sf.serde.json_schema(JSON_ORDER, registry=registry.url).of_topic("bills", "value")
    with pytest.raises(ValueError, match=r"subject bills-value: .*'item' is a required property"):
        serde.serialize({"count": 3})


def test_unknown_id_is_the_records_fault_and_is_not_asked_for_with_every_record(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    serde = avro(registry)
    for _ in range(20):
        with pytest.raises(InvalidRequest, match=rf"{registry.url}: no schema has the id 9: .*another registry") as one:
            serde.deserialize(b"\0\0\0\0\x09abc")
        assert not one.value.beyond_record
    assert registry.asked("GET /schemas/ids/9") == 1
    monkeypatch.setattr(client_module, "UNKNOWN_MS", 0)
    with pytest.raises(InvalidRequest, match="no schema has the id 8"):
        serde.deserialize(b"\0\0\0\0\x08abc")
    registry.schemas[8] = {"schema": '"string"'}
    assert avro(registry, schema=None).deserialize(b"\0\0\0\0\x08\x06tea") == "tea"
    with pytest.raises(ValueError, match="schema id 8: SchemaResolutionError"):
        serde.deserialize(b"\0\0\0\0\x08\x06tea")  # asked again, known now, and not what the program declares


# --- failures that are no record's ---


def test_registry_that_is_down_is_unavailable_and_works_again(registry: SchemaRegistry) -> None:
    raw, serde = avro(registry).serialize(TEA), avro(registry)
    registry.stop()
    for call in (lambda: serde.deserialize(raw), lambda: serde.serialize(TEA)):
        with pytest.raises(Unavailable, match=rf"{registry.url} does not answer: .*ConnectError") as caught:
            call()
        assert (caught.value.service, caught.value.beyond_record) == ("the schema registry", True)
    registry.start()
    assert serde.deserialize(raw) == TEA
    assert serde.serialize(TEA) == raw


def test_registry_that_never_answers_is_unavailable_within_its_timeout(registry: SchemaRegistry) -> None:
    raw = avro(registry).serialize(TEA)
    registry.hang = True
    bounded = sf.serde.Registry(registry.url, timeout_ms=400)
    started = time.monotonic()
    with pytest.raises(Unavailable, match="schema id 1: ReadTimeout"):
        sf.serde.avro(ORDER, registry=bounded).of_topic("orders", "value").deserialize(raw)
    assert time.monotonic() - started < 5
    assert registry.asked("GET /schemas/ids/1") == 2  # the request and its repetition


@pytest.mark.parametrize("status", [429, 500, 503])
def test_registry_that_cannot_serve_just_now_is_unavailable(registry: SchemaRegistry, status: int) -> None:
    raw = avro(registry).serialize(TEA)
    registry.fail = status
    with pytest.raises(Unavailable, match=f"schema id 1: on purpose .HTTP {status}"):
        avro(registry).deserialize(raw)


def test_answer_of_another_server_is_not_taken_for_a_registrys(registry: SchemaRegistry) -> None:
    raw = avro(registry).serialize(TEA)
    registry.page = True
    with pytest.raises(Unavailable, match="schema id 1: JSONDecodeError"):
        avro(registry).deserialize(raw)
    registry.page = False
    registry.schemas[1] = {"other": 1}
    serde = avro(registry)
    for _ in range(2):
        with pytest.raises(Unavailable, match="its answer has no schema"):
            serde.deserialize(raw)
    lost = sf.serde.avro(ORDER, registry=f"{registry.url}/elsewhere").of_topic("orders", "value")
    with pytest.raises(BadConfig, match="not that of a schema registry") as caught:
        lost.deserialize(raw)  # a 404, but no registry's: no record may be skipped for it
    assert caught.value.beyond_record


def test_incompatible_schema_names_subject_and_fix(registry: SchemaRegistry) -> None:
    registry.frozen.add("orders-value")
    with pytest.raises(BadConfig, match=r"'orders-value'.*incompatible .*HTTP 409.*change the schema") as caught:
        avro(registry).serialize(TEA)
    assert caught.value.beyond_record


def test_refused_login_names_the_setting_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with SchemaRegistry(login=f"ada:{SECRET}") as registry:
        host = registry.url.removeprefix("http://")
        ways: list[Any] = [
            {"url": registry.url, "basic.auth.user.info": f"ada:{SECRET}"},
            sf.serde.Registry(registry.url, {"basic.auth.user.info": f"ada:{SECRET}"}),
            f"http://ada:{SECRET}@{host}",
        ]
        for way in ways:
            serde = sf.serde.avro(ORDER, registry=way)
            assert serde.of_topic("orders", "value").serialize(TEA)[:5] == HEAD
            assert SECRET not in f"{serde!r} {serde.of_topic('orders', 'value')!r}"
        assert repr(ways[1]) == f"Registry('{registry.url}')"
        wrong = f"{SECRET}-no"
        with pytest.raises(BadConfig, match=r"Unauthorized .HTTP 401.*basic.auth.user.info") as caught:
            sf.serde.avro(ORDER, registry=f"http://ada:{wrong}@{host}").of_topic("a", "value").serialize(TEA)
        assert caught.value.beyond_record
        assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        f"ftp://ada:{SECRET}@host",
        f"ada:{SECRET}@host:8081",
        f"http://host,http://ada:{SECRET}@other",
        {"url": f"http://ada:{SECRET}@host", "basic.auth.user.info": f"ada:{SECRET}"},
        {"url": "http://host", "no.such.setting": 1, "basic.auth.user.info": f"ada:{SECRET}"},
        {"url": "http://host", "basic.auth.user.info": SECRET},
        {"url": "http://host", "timeout": None, "basic.auth.user.info": f"ada:{SECRET}"},
        {"basic.auth.user.info": f"ada:{SECRET}"},
        7,
    ],
)
def test_wrong_registry_is_refused_without_its_secrets(given: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        sf.serde.avro(ORDER, registry=given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sf.serde.avro("{", registry="http://h"), "JSONDecodeError"),
        (lambda: sf.serde.avro({"type": "record"}, registry="http://h"), '"name" is a required field'),
        (lambda: sf.serde.json_schema({"type": "no"}, registry="http://h"), "'no' is not valid"),
        (lambda: sf.serde.avro(ORDER, registry="http://h", serializer={"no": 1}), "Unrecognized properties: no"),
        (lambda: sf.serde.avro(ORDER, registry="http://h", deserializer={"no": 1}), "Unrecognized properties: no"),
        (lambda: UNTYPED.avro(ORDER, registry="http://h", subject="no"), "subject must be one of topic, record"),
        (lambda: UNTYPED.avro(ORDER, registry="http://h", to_dict=3, from_dict=3), "to_dict must be a function"),
        (lambda: UNTYPED.protobuf(int, registry="http://h"), "a message class made by protoc"),
        (lambda: sf.serde.Registry("http://h", timeout_ms=0), "timeout_ms must be whole milliseconds"),
    ],
)
def test_wrong_declaration_is_refused_where_it_stands(make: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        make()


def test_serde_without_a_topic_says_how_to_name_one() -> None:
    serde = sf.serde.avro(ORDER, registry="http://h")
    with pytest.raises(InvalidRequest, match=r'needs the topic.*\.of_topic\("orders", "value"\)'):
        serde.serialize(TEA)


def test_built_in_serdes_are_the_same_for_every_topic() -> None:
    assert sf.serde.string.of_topic("orders", "key") is sf.serde.string


def test_serde_of_ones_own_may_say_that_its_service_is_away(registry: SchemaRegistry) -> None:
    from standfast.store.serde import beyond_record

    found = beyond_record(Unavailable("the vault is shut"), "record of in-0 at offset 7")
    assert isinstance(found, Unavailable)
    assert str(found) == "record of in-0 at offset 7: the vault is shut"
    assert found.service == "the service of a serde"
    assert beyond_record(InvalidRequest("no"), "x") is None
    assert beyond_record(ValueError("no"), "x") is None


def test_without_the_extra_standfast_works_and_the_serdes_say_what_to_install() -> None:
    script = (
        "import sys\n"
        "sys.modules['authlib'] = sys.modules['fastavro'] = None\n"
        "import standfast as sf\n"
        "assert sf.serde.string.serialize('a') == b'a'\n"
        "assert 'confluent_kafka' not in sys.modules\n"
        "for make in (lambda: sf.serde.avro('\"string\"', registry='http://h'),\n"
        "             lambda: sf.serde.json_schema('{}', registry='http://h')):\n"
        "    try: make()\n"
        "    except sf.BadConfig as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all('pip install "standfast[schema]"' in line and "'authlib" in line for line in lines), lines


def test_errors_of_the_registry_are_of_the_one_tree(registry: SchemaRegistry) -> None:
    registry.fail = 418
    with pytest.raises(StandfastError, match="HTTP 418") as caught:
        avro(registry).serialize(TEA)
    assert caught.value.beyond_record
