"""Addresses as people are shown them: without login and options, in every form that an address may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.replication.offsets import TaskId
from standfast.restore.addresses import holds_login, shown_address
from standfast.restore.snapshot.address import parse_storage
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import TaskPlace
from standfast.store.errors import BadConfig

SECRET = "se/cr+et"  # as keys of S3 look
SHOWN = {
    f"s3://KEY:{SECRET}@bucket/p?token=T": "s3://bucket/p",
    f"s3://KEY:{SECRET}@{SECRET}@bucket/p": "s3://bucket/p",
    "s3://KEY:a?b#c@bucket/p": "s3://bucket/p",
    f"s3://KEY:{SECRET}": "s3://...",
    "s3://KEY@bucket": "s3://bucket",
    "s3://bucket:9000/a@b": "s3://bucket:9000/a@b",
    "s3://[::1]:9000/x": "s3://[::1]:9000/x",
    "s3://bucket/p@q?endpoint=http://h:1": "s3://bucket/p@q",
    "s3://bucket?endpoint=http://u:p@h/x": "s3://bucket",
    "gs://bucket/x#part": "gs://bucket/x",
    "hdfs://user@host:9000/p": "hdfs://host:9000/p",
    "abfss://box@account.dfs.core.windows.net/p?sas_token=T": "abfss://box@account.dfs.core.windows.net/p",
    "file:///a/b@c": "file:///a/b@c",
    "/a/b@c?d": "/a/b@c?d",
}


def test_address_is_shown_without_login_and_options() -> None:
    assert {address: shown_address(address) for address in SHOWN} == SHOWN
    assert shown_address(Path("/a/b")) == "/a/b"
    logins = {address for address in SHOWN if holds_login(address)}
    assert logins == {address for address in SHOWN if "KEY" in address or "user@" in address}


def test_no_refusal_of_a_storage_repeats_its_secret() -> None:
    for address in (
        f"s3://KEY:{SECRET}@bucket/p",
        f"s3://KEY:{SECRET}",
        f"gs://KEY:{SECRET}@bucket?endpoint=http://x",
        f"nothing://KEY:{SECRET}@bucket",
        f"az://KEY:{SECRET}@account/box",
        "s3://[KEY:secret",
        "s3://bucket/p?secret_access_key=secret",
        "s3://bucket/p?endpoint=http://KEY:secret@host",
        "s3://bucket//p?token=secret",
    ):
        with pytest.raises(BadConfig) as caught:
            parse_storage(address)
        told = str(caught.value)
        assert "KEY" not in told and "secret@" not in told and "=secret" not in told and SECRET not in told, told


def test_folder_and_place_never_show_a_secret() -> None:
    for address in (f"s3://KEY:{SECRET}@bucket/p?nothing=1", f"nothing://KEY:{SECRET}@bucket/p?token=secret"):
        with pytest.raises(BadConfig) as caught:
            Folder(address)
        told = f"{caught.value} {caught.value.__cause__}"
        assert "cannot be used" in told and "KEY" not in told and "secret" not in told and SECRET not in told, told
    for kind in ("task", "manifest", "snapshot"):
        place = TaskPlace("app", TaskId(0, 0), f"s3://KEY:{SECRET}@bucket/p?x=secret", kind)  # type: ignore[arg-type]
        assert str(place) == "s3://bucket/p"
