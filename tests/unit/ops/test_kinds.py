"""Each kind of store has its row in every table, the rows agree, and a declaration means the same everywhere."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from standfast.ops.client.connect_stores import REMOTE
from standfast.ops.config.store_argument import parse_store, store_spec
from standfast.ops.config.types import StoreConfig
from standfast.ops.shared.control_stores import shape_of, spec_of
from standfast.ops.shared.kinds import OPS
from standfast.ops.sidecar.resp.table import COMMANDS
from standfast.replication.log import TopicInfo, TopicPolicy
from standfast.replication.topics.changelog import changelog_policy
from standfast.replication.topics.changelog_kind import kind_problem
from standfast.restore.fold import fold_for
from standfast.restore.spark_table.options import described_store, parse
from standfast.store import serde
from standfast.store.errors import BadConfig
from standfast.store.specs import SPECS, TRAITS, StoreSpec
from standfast.store.types.kinds import KINDS, definition_spec

HOUR_MS = 3_600_000
EVERY_KIND = pytest.mark.parametrize("kind", SPECS)


def needed(kind: str) -> dict[str, Any]:
    return {one.name: HOUR_MS for one in TRAITS[kind].settings if one.needed}


def declared(kind: str) -> StoreSpec:
    """A store of a kind with all required settings."""
    return SPECS[kind]("s", serde.bytes, serde.bytes, **needed(kind))


def test_every_kind_has_a_row_in_both_tables_and_a_class_at_either_end() -> None:
    assert list(TRAITS) == list(OPS) == list(REMOTE) == [spec.kind for spec in KINDS] == list(SPECS)


@EVERY_KIND
def test_row_of_traits_agrees_with_the_definition(kind: str) -> None:
    spec, traits = SPECS[kind], TRAITS[kind]
    assert {one.name for one in traits.settings} <= {one.name for one in fields(spec)}
    assert (traits.retention in {one.name for one in traits.settings}) == bool(traits.kept_by)
    assert bool(traits.retention) == (traits.times is not None or traits.versions)
    assert declared(kind).kept_ms == (HOUR_MS if traits.retention else 2**63 - 1)


@EVERY_KIND
def test_store_of_every_kind_is_known_again_by_what_is_kept_or_said_of_it(kind: str) -> None:
    spec = declared(kind)
    assert definition_spec("s", spec.definition()) == spec
    assert spec_of(shape_of(spec)) == spec
    assert StoreConfig(kind=kind, **needed(kind)).spec("s") == spec
    words = ",".join(f"{one.word}=1h" for one in TRAITS[kind].settings if one.needed)
    assert store_spec(parse_store(f"s:{kind}:{words}"), TopicPolicy()) == spec
    options = {one.option: str(HOUR_MS) for one in TRAITS[kind].settings if one.needed}
    assert described_store(parse("write", {"path": "/x", "storeKind": kind, **options}), "s") == spec


@EVERY_KIND
def test_what_is_needed_is_asked_for_by_name(kind: str) -> None:
    for one in TRAITS[kind].settings:
        if not one.needed or one.name == TRAITS[kind].retention:
            continue
        with pytest.raises(BadConfig, match=f"as {one.word}=1h"):
            parse_store(f"s:{kind}")


@EVERY_KIND
def test_changelog_of_every_kind_is_made_so_that_it_is_taken_for_one(kind: str) -> None:
    policy = changelog_policy(declared(kind))
    assert kind_problem("s", kind, TopicInfo("t", "id", 1, policy), ()) is None
    assert policy.cleanup == TRAITS[kind].cleanup
    fold = fold_for(kind, retention_ms=HOUR_MS)
    assert list(fold.rows()) == []


@EVERY_KIND
def test_verbs_of_every_kind_read_and_write_and_are_commands_of_the_resp_server(kind: str) -> None:
    rows = {name: (least, most, access) for name, _, least, most, access in COMMANDS}
    assert {verb.access for verb in OPS[kind].verbs} == {"read", "write"}
    for verb in OPS[kind].verbs:
        assert rows[verb.name] == (verb.least, verb.most, verb.access)
        assert verb.usage.startswith(f"{verb.name} store")
