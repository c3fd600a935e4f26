"""The Kafka client's client of a schema registry, with errors that name the subject or the id, and the fix.

    no answer, 408, 429, 5xx, or an answer that is no registry's   Unavailable   the service is away; no record's fault
    401, 403                                                       BadConfig     the login or a right is missing
    409, 422 at the registration of a schema                       BadConfig     the program's schema is refused
    404 of a subject or a version                                  BadConfig     the program names an absent one
    404 of a schema's id                                           InvalidRequest   the record's fault

All but the last are `beyond_record`: the next record would meet them too, so that no `on_error` leaves a record out
for them. Schemas are cached by the client; an unknown id is asked for again after UNKNOWN_MS, because a topic may hold
any number of records with it.

Rules of this file: only the methods that serializers call are here. No message contains a setting's value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from standfast.store.clock import real_clock
from standfast.store.errors import BadConfig, Closed, InvalidRequest, StandfastError, Unavailable

Answer = TypeVar("Answer")

UNKNOWN_MS = 10_000
UNKNOWN_MAX = 1_000
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
NOT_FOUND = frozenset({SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND})
PASSING = frozenset({408, 425, 429})
REGISTER = "register it first, with the subject's compatibility checked, or let the serde do it: auto_register=True"


class RegistryClient(SchemaRegistryClient):
    """The client of one registry; `where` is its address without a secret."""

    def __init__(self, settings: dict[str, Any], where: str) -> None:
        super().__init__(settings)
        self.where = where
        self._clock = real_clock()
        self._closed = False
        self._unknown: dict[tuple[int, str | None], int] = {}  # ids that the registry does not know, and until when

    def close(self) -> None:
        """Close the connections; calls raise Closed from here on. Twice is fine."""
        self._closed = True
        super().close()

    def get_schema(
        self, schema_id: int, subject_name: str | None = None, fmt: str | None = None, *more: Any, **named: Any
    ) -> Schema:
        """The schema of an id. InvalidRequest for an unknown one."""
        key = (schema_id, subject_name)
        if self._clock.monotonic_ms() < self._unknown.get(key, 0):
            raise self._no_schema(schema_id)
        found = super().get_schema

        def missing(_: str) -> StandfastError:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[key] = self._clock.monotonic_ms() + UNKNOWN_MS
            return self._no_schema(schema_id)

        def get() -> Schema:
            schema = found(schema_id, subject_name, fmt, *more, **named)
            if schema.schema_str is None:
                # Else the client would keep it for the schema of this id.
                self.clear_caches()  # type: ignore[no-untyped-call]
                raise ValueError("its answer has no schema")
            return schema

        return self._ask(f"schema id {schema_id}", get, missing)

    def get_schema_by_guid(self, guid: str, fmt: str | None = None) -> Schema:
        """The schema of a globally unique id. InvalidRequest for an unknown one."""
        found = super().get_schema_by_guid
        return self._ask(f"schema {guid}", lambda: found(guid, fmt), lambda _: self._no_schema(guid))

    def register_schema_full_response(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> RegisteredSchema:
        """Register a schema, or find that it is registered."""
        register = super().register_schema_full_response

        def get() -> RegisteredSchema:
            registered = register(subject_name, schema, normalize_schemas)
            if registered.schema_id is None:
                raise ValueError("its answer has no id")
            return registered

        return self._ask(f"subject {subject_name!r}: registering the schema", get)

    def lookup_schema(self, subject_name: str, schema: Schema, *more: Any, **named: Any) -> RegisteredSchema:
        """The registration of a schema under a subject."""
        look_up = super().lookup_schema
        what = f"subject {subject_name!r}: finding the schema"
        return self._ask(what, lambda: look_up(subject_name, schema, *more, **named))

    def get_latest_version(self, subject_name: str, fmt: str | None = None) -> RegisteredSchema:
        """The latest schema of a subject."""
        latest = super().get_latest_version
        return self._ask(f"subject {subject_name!r}: its latest version", lambda: latest(subject_name, fmt))

    def get_latest_with_metadata(self, subject_name: str, *more: Any, **named: Any) -> RegisteredSchema:
        """The latest schema of a subject with this metadata."""
        latest = super().get_latest_with_metadata
        what = f"subject {subject_name!r}: its latest version with this metadata"
        return self._ask(what, lambda: latest(subject_name, *more, **named))

    def get_version(self, subject_name: str, version: Any = "latest", *more: Any, **named: Any) -> RegisteredSchema:
        """A version of a subject."""
        one = super().get_version
        what = f"subject {subject_name!r}: version {version}"
        return self._ask(what, lambda: one(subject_name, version, *more, **named))

    def get_associations_by_resource_name(self, resource_name: str, *more: Any, **named: Any) -> Any:
        """The subjects that the registry associates with a topic. The serializers handle the 404 of older ones."""
        ask = super().get_associations_by_resource_name
        what = f"topic {resource_name!r}: its subjects"
        return self._ask(what, lambda: ask(resource_name, *more, **named), raises=frozenset({404}))

    def _ask(
        self,
        what: str,
        call: Callable[[], Answer],
        missing: Callable[[str], StandfastError] | None = None,
        raises: frozenset[int] = frozenset(),
    ) -> Answer:
        """The answer of `call`; `missing`: the error for a thing that the registry lacks."""
        try:
            if self._closed:
                closed = Closed(f"schema registry {self.where} is closed, and {what} is needed: declare a new Registry")
                closed.beyond_record = True
                raise closed
            return call()
        except StandfastError:
            raise  # of a call within this one, or of the line above
        except SchemaRegistryError as error:
            if error.http_status_code in raises:
                raise
            raise self._refused(what, error, missing) from error
        except OAuthTokenError as error:
            raise self._away(what, f"no token: {error.message}") from error
        except Exception as error:
            # A refused or lost connection, a time-out, a certificate; or an answer that is not a registry's.
            raise self._away(what, f"{type(error).__name__}: {error}") from error

    def _refused(
        self, what: str, error: SchemaRegistryError, missing: Callable[[str], StandfastError] | None
    ) -> StandfastError:
        status, code = error.http_status_code, error.error_code
        said = f"{error.error_message!s:.500} (HTTP {status}, code {code})"
        if status >= 500 or status in PASSING:
            return self._away(what, said)
        if status in (401, 403):
            return self._never(
                what, f"{said}: check the registry's login, such as basic.auth.user.info, and its rights"
            )
        if status == 404 and code in NOT_FOUND:
            return missing(said) if missing is not None else self._never(what, f"{said}: {REGISTER}")
        if status == 404:
            return self._never(what, f"{said}: the address is not that of a schema registry, correct it")
        if status == 409:
            return self._never(
                what,
                f"it is incompatible with the versions that the subject has: {said}: change the schema as the "
                "subject's compatibility allows, or change that compatibility",
            )
        return self._never(what, f"the registry refuses it: {said}: correct the schema or the settings")

    def _no_schema(self, schema: int | str) -> InvalidRequest:
        return InvalidRequest(
            f"schema registry {self.where}: no schema has the id {schema}: the record was written with another "
            "registry, or its schema was deleted: name the registry of its producers, or restore the schema"
        )

    def _away(self, what: str, why: str) -> Unavailable:
        found = Unavailable(f"schema registry {self.where} does not answer: {what}: {why}: try again")
        found.service = "the schema registry"
        return found

    def _never(self, what: str, why: str) -> BadConfig:
        found = BadConfig([f"schema registry {self.where}: {what}: {why}"])
        found.beyond_record = True
        return found
