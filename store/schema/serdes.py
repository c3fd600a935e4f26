"""Serdes of a schema registry: Avro, Protobuf and JSON Schema in the registry's format.

    byte 0      0, the format
    bytes 1-4   id of the schema, big-endian
    the rest    Avro, JSON text, or Protobuf with the message's place in its file before it

The bytes are those of the Kafka client's own serializers. The subject is `<topic>-key` or `<topic>-value`; the topic of
a store's rows is its changelog, as in Kafka Streams, or the topic that the store holds as a table.

Rules of this file: one serializer and one deserializer for each topic and part, made when they are needed first: the
client's serializers keep a single schema id, however many subjects they write for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args, overload

from standfast.store.arguments import checked_call
from standfast.store.errors import BadConfig, InvalidRequest, StandfastError
from standfast.store.schema.registry import Registry, RegistryLike, refusing, registry_of, required
from standfast.store.serde import Part, Serde

T = TypeVar("T")
Subject: TypeAlias = Literal["topic", "record", "topic_record"]
Settings: TypeAlias = Mapping[str, Any] | None
AnySchema: TypeAlias = str | Mapping[str, Any] | Sequence[Any] | None
Coder: TypeAlias = Callable[[Any, Any], Any]  # a value or bytes, and the client's context -> bytes or a value

FORMATS = (0, 1)  # the first byte: an id, or the globally unique id that newer registries offer
HEAD_BYTES = 5


class ProtobufMessage(Protocol):
    """A message class that protoc generated."""

    def SerializeToString(self, *args: Any, **kwargs: Any) -> bytes: ...


M = TypeVar("M", bound=ProtobufMessage)


@overload
def avro(
    schema: AnySchema = None,
    *,
    registry: RegistryLike,
    to_dict: None = None,
    from_dict: None = None,
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[Any]: ...
@overload
def avro(
    schema: AnySchema = None,
    *,
    registry: RegistryLike,
    to_dict: Callable[[T], Any],
    from_dict: Callable[[Any], T],
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[T]: ...
@checked_call(BadConfig)
def avro(
    schema: AnySchema = None,
    *,
    registry: RegistryLike,
    to_dict: Callable[[Any], Any] | None = None,
    from_dict: Callable[[Any], Any] | None = None,
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[Any]:
    """Avro in the format of a schema registry; values are dicts, or what `from_dict` makes of them.

    schema         JSON text or its parsed form; records written with an older or newer one are resolved to it
    registry       `http://host:8081`, settings of the Kafka client with "url" among them, or a `Registry` to share
    to_dict        a value as the schema describes it; goes with `from_dict`
    from_dict      a value from that description
    auto_register  whether to register the schema when a topic is first written; False: it must be registered
    subject        "topic": `<topic>-key` or `<topic>-value`; "record", "topic_record": by the record's full name, too
    serializer     further settings of the client's AvroSerializer
    deserializer   further settings of the client's AvroDeserializer

    Without `schema` values are read as they were written, and written with the subject's latest one.

    Raises BadConfig for a wrong schema or settings, and without the extra `schema`. Reading and writing raise
    Unavailable while the registry does not answer, and BadConfig where it refuses login or schema: `on_error` leaves
    no record out for either. A record with an unknown id, or that the schema does not fit, is that record's failure.
    """
    found = registry_of(registry)
    text = _schema_text(schema)
    write, read = _settings("avro", text, auto_register, subject, serializer, deserializer)

    def writer() -> Coder:
        made: Coder = _module("avro").AvroSerializer(found.client(), text, _with_context(to_dict), write)
        return made

    def reader() -> Coder:
        make = _module("avro").AvroDeserializer
        made: Coder = make(found.client(), text, _with_context(from_dict), conf=read)
        return made

    _check_functions(to_dict, from_dict)
    return _serde("avro", found, subject, writer, reader, asks=_refers(text))


@checked_call(BadConfig)
def protobuf(
    message: type[M],
    *,
    registry: RegistryLike,
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[M]:
    """Protobuf in the format of a schema registry; values are messages of the class `message`, made by protoc.

    The schema is that of the class. `auto_register`, `subject`, `serializer`, `deserializer` and errors are those of
    `avro`, with the client's ProtobufSerializer and ProtobufDeserializer.
    """
    found = registry_of(registry)
    if not isinstance(message, type) or not hasattr(message, "DESCRIPTOR"):
        raise BadConfig([f"serde.protobuf takes a message class made by protoc, not {message!r:.100}"])
    write, read = _settings("protobuf", "", auto_register, subject, serializer, deserializer)

    def writer() -> Coder:
        made: Coder = _module("protobuf").ProtobufSerializer(message, found.client(), write)
        return made

    def reader() -> Coder:
        made: Coder = _module("protobuf").ProtobufDeserializer(message, read, found.client())
        return made

    return _serde("protobuf", found, subject, writer, reader)


@overload
def json_schema(
    schema: AnySchema = None,
    *,
    registry: RegistryLike,
    to_dict: None = None,
    from_dict: None = None,
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[Any]: ...
@overload
def json_schema(
    schema: AnySchema = None,
    *,
    registry: RegistryLike,
    to_dict: Callable[[T], Any],
    from_dict: Callable[[Any], T],
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[T]: ...
@checked_call(BadConfig)
def json_schema(
    schema: AnySchema = None,
    *,
    registry: RegistryLike,
    to_dict: Callable[[Any], Any] | None = None,
    from_dict: Callable[[Any], Any] | None = None,
    auto_register: bool = True,
    subject: Subject = "topic",
    serializer: Settings = None,
    deserializer: Settings = None,
) -> Serde[Any]:
    """JSON in the format of a schema registry; values are JSON values, or what `from_dict` makes of them.

    Every value is validated, as it is written and as it is read. The arguments are those of `avro`, with the client's
    JSONSerializer and JSONDeserializer; with subjects by record the schema's `title` is the name.
    """
    found = registry_of(registry)
    text = _schema_text(schema)
    write, read = _settings("json_schema", text, auto_register, subject, serializer, deserializer)

    def writer() -> Coder:
        made: Coder = _module("json_schema").JSONSerializer(text, found.client(), _with_context(to_dict), write)
        return made

    def reader() -> Coder:
        make = _module("json_schema").JSONDeserializer
        made: Coder = make(text, _with_context(from_dict), found.client(), read)
        return made

    _check_functions(to_dict, from_dict)
    made = _serde("json_schema", found, subject, writer, reader, asks=_refers(text))
    if isinstance(text, str):  # the client would find a wrong schema with the first record, and blame that
        parsed = json.loads(text)
        validator = required("jsonschema.validators").validator_for(parsed)
        refusing("serde.json_schema", lambda: validator.check_schema(parsed))
    return made


def _serde(
    kind: str,
    registry: Registry,
    subject: Subject,
    writer: Callable[[], Coder],
    reader: Callable[[], Coder],
    *,
    asks: bool = False,
) -> Serde[Any]:
    """The serde, checked: a wrong schema or setting is found where it is declared, not at the first record.

    `asks`: its schema refers to others, which only the registry has.
    """
    name = f"registry_{kind}"
    registry.client()  # its settings
    if not asks:
        for make in (writer, reader):
            refusing(f"serde.{kind}", make)
    bound: dict[tuple[str, Part], Serde[Any]] = {}
    lock = threading.Lock()

    def bind(topic: str, part: Part) -> Serde[Any]:
        with lock:
            found = bound.get((topic, part))
            if found is None:
                found = bound[topic, part] = _bound(name, topic, part, subject, writer, reader)
            return found

    def without_topic(_: Any) -> Any:
        raise InvalidRequest(
            f"serde.{kind} needs the topic of the bytes, whose name is in the schema's subject: use "
            '.of_topic("orders", "value")'
        )

    return Serde(name, without_topic, without_topic, bind)


def _bound(
    name: str, topic: str, part: Part, subject: Subject, writer: Callable[[], Coder], reader: Callable[[], Coder]
) -> Serde[Any]:
    """The serde of one topic's keys or values."""
    serialization = required("confluent_kafka.serialization")
    context = serialization.SerializationContext(topic, serialization.MessageField(part))
    where = f"subject {topic}-{part}" if subject == "topic" else f"{part} of topic {topic}"
    write, read = writer(), reader()

    def serialize(value: Any) -> bytes:
        try:
            raw = write(value, context)
        except StandfastError:
            raise
        except Exception as error:
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
        if type(raw) is not bytes:
            raise TypeError(f"{where}: a value of None has no bytes")
        return raw

    def deserialize(raw: bytes) -> Any:
        try:
            return read(raw, context)
        except StandfastError:
            raise
        except Exception as error:
            raise ValueError(f"{where}, {_written(raw)}: {type(error).__name__}: {error}") from error

    return Serde(name, serialize, deserialize)


def _written(raw: bytes) -> str:
    """The schema that bytes name, or why they name none, for an error."""
    if len(raw) < HEAD_BYTES:
        return f"{len(raw)} bytes, which are too few for a schema's id: another serializer wrote them"
    if raw[0] not in FORMATS:
        return f"first byte {raw[0]:#04x}, not the 0 before a schema's id: another serializer wrote it"
    return f"schema id {int.from_bytes(raw[1:HEAD_BYTES])}" if raw[0] == 0 else "a schema by its unique id"


def _module(kind: str) -> Any:
    return required(f"confluent_kafka.schema_registry.{kind}")


def _settings(
    kind: str, text: object, auto_register: object, subject: object, serializer: Settings, deserializer: Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the client's serializer and deserializer. Raises BadConfig."""
    problems = []
    if not isinstance(auto_register, bool):
        problems.append(f"auto_register must be True or False, not {auto_register!r:.100}")
    if subject not in get_args(Subject):
        problems.append(f"subject must be one of {', '.join(get_args(Subject))}, not {subject!r:.100}")
    problems += [
        f"{name} must be a dict of the client's settings, not {type(given).__name__}"
        for name, given in (("serializer", serializer), ("deserializer", deserializer))
        if given is not None and not isinstance(given, Mapping)
    ]
    if problems:
        raise BadConfig([f"serde.{kind}: {problem}" for problem in problems])
    # Named here, because the client's default would ask the registry for the topic's subjects first.
    named = {"subject.name.strategy.type": str(subject).upper()}
    latest = text is None or (serializer or {}).get("use.latest.version", False)
    first = {"auto.register.schemas": auto_register and not latest, "use.latest.version": latest}
    return {**named, **first, **(serializer or {})}, {**named, **(deserializer or {})}


def _schema_text(schema: AnySchema) -> Any:
    """A schema as the client takes it: text, its own Schema object (one with references), or None."""
    if schema is None or isinstance(schema, str) or hasattr(schema, "schema_str"):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise BadConfig([f"a schema must be JSON text or its parsed form: {error}"]) from error


def _refers(schema: Any) -> bool:
    return bool(getattr(schema, "references", None))


def _with_context(function: Callable[[Any], Any] | None) -> Coder | None:
    """The function as the client calls it, with the context that ours does not take."""
    return None if function is None else lambda value, _context: function(value)


def _check_functions(to_dict: object, from_dict: object) -> None:
    problems = [
        f"{name} must be a function, not {given!r:.100}"
        for name, given in (("to_dict", to_dict), ("from_dict", from_dict))
        if given is not None and not callable(given)
    ]
    if problems:
        raise BadConfig(problems)
