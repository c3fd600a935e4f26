"""The OpenAPI document equals the one from before its schemas came from classes: `tests/fixtures/openapi.json`.

Only wording may differ: components instead of repeated schemas, titles and descriptions of them, the order of the
texts of an enum, and `required: []`. Paths may be added.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.ops.sidecar.control.openapi import document
from standfast.ops.sidecar.control.routes import CALLS
from support.openapi import inlined
from support.places import ROOT

FROZEN: dict[str, Any] = json.loads((ROOT / "tests" / "fixtures" / "openapi.json").read_text())


def told(schema: Any) -> Any:
    """A schema without wording."""
    if isinstance(schema, list):
        return [told(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema:
        schema = {name: one for name, one in schema.items() if name not in ("title", "description")}
    made = {name: told(one) for name, one in schema.items() if (name, one) != ("required", [])}
    for name in ("enum", "required"):
        if isinstance(made.get(name), list):
            made[name] = sorted(made[name])
    return made


@pytest.mark.parametrize("path", sorted(FROZEN["paths"]))
def test_path_asks_and_answers_as_before(path: str) -> None:
    now = json.loads(json.dumps(document(CALLS)))
    assert told(inlined(now["paths"][path], now)) == told(inlined(FROZEN["paths"][path], FROZEN))


def test_rest_of_the_document_is_as_before() -> None:
    now = json.loads(json.dumps(document(CALLS)))
    assert now["openapi"] == FROZEN["openapi"]
    assert now["info"]["title"] == FROZEN["info"]["title"]
    assert now["components"]["securitySchemes"] == FROZEN["components"]["securitySchemes"]
    assert told(now["components"]["schemas"]["Error"]) == told(FROZEN["components"]["schemas"]["Error"])


def test_every_object_that_a_request_holds_is_a_component_that_takes_no_other_field() -> None:
    now = document(CALLS)
    bodies = [call.body.__name__ for call in CALLS if call.body is not None]
    assert len(bodies) == len(set(bodies)) == 9
    for name, schema in now["components"]["schemas"].items():
        assert schema["description"]
        assert name == "Error" or schema["additionalProperties"] is False
