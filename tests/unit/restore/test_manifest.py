"""The one manifest of "SST files + a position": its fields, refusals, and the checks before an ingest."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from standfast.restore.digest import Digest
from standfast.restore.files.manifest import (
    FILE_NAME,
    FORMAT,
    Made,
    Manifest,
    ManifestFile,
    ManifestPartition,
    dump_manifest,
    parse_manifest,
)
from standfast.restore.files.manifest_files import check_files, read_manifest
from standfast.store.errors import Corruption, InvalidRequest

CONTENT = b"not really an SST file"
FILE = ManifestFile("0-0.sst", "aircraft", len(CONTENT), 3, "61", "7a", sha256(CONTENT).hexdigest(), 0)
PARTITION = ManifestPartition(0, 5, 90, 95, (FILE,), -1, 0, 7, 1, 3, 0, 3, "3-" + "0" * 16 + "-0")
MADE = Made("rebuild", 1_357_020_000_000, "0.1.0", "0.3.29", "lz4")
MANIFEST = Manifest(
    "delays",
    "aircraft",
    {"kind": "keyvalue", "timestamped": True},
    "delays-aircraft-changelog",
    "id",
    4,
    (PARTITION,),
    MADE,
)


def changed(*path: str | int, to: Any) -> str:
    """The manifest's JSON with one value replaced; `...` removes it."""
    shape = json.loads(dump_manifest(MANIFEST))
    at = shape
    for step in path[:-1]:
        at = at[step]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return json.dumps(shape)


def test_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(dump_manifest(MANIFEST))
    assert read_manifest(tmp_path) == MANIFEST
    assert json.loads((tmp_path / FILE_NAME).read_text())["format"] == FORMAT
    assert MANIFEST.file_names() == {"0-0.sst"}
    assert MANIFEST.partition(0) is PARTITION
    with pytest.raises(InvalidRequest, match=r"no partition 3 \(it has 0\)"):
        MANIFEST.partition(3)


@given(
    st.lists(
        st.tuples(st.binary(max_size=5), st.integers(1, 2**40), st.integers(1, 2**40), st.integers(0, 2**63 - 1)),
        max_size=3,
    )
)
def test_any_sound_manifest_survives_the_round_trip(rows: list[tuple[bytes, int, int, int]]) -> None:
    partitions = tuple(
        replace(
            PARTITION,
            partition=number,
            start=start,
            end=start + entries,
            converge_offset=start + entries + number,
            files=(ManifestFile(f"{number}/a@0.sst", "f", 1, entries, key.hex(), key.hex() + "00", "0" * 64, 0),),
            observed_ms=observed,
            entries=entries,
            digest=Digest(entries, observed, start).hex(),
        )
        for number, (key, start, entries, observed) in enumerate(rows)
    )
    manifest = replace(MANIFEST, partitions=partitions)
    assert parse_manifest(dump_manifest(manifest), "here") == manifest


@pytest.mark.parametrize("found", ["standfast.manifest/2", "standfast.manifest/10"])
def test_newer_version_is_refused_with_what_to_do(found: str) -> None:
    with pytest.raises(InvalidRequest, match="run the newer version"):
        parse_manifest(changed("format", to=found), "here")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"format": 1}', '{"format": "other/1"}', '{"format": "standfast.manifest/0"}']
)
def test_something_else_is_no_manifest(text: str) -> None:
    with pytest.raises(InvalidRequest, match="here is not a manifest of standfast"):
        parse_manifest(text, "here")


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("store",), ..., "missing required field `store`"),
        (("extra",), 1, "unknown field `extra` .there are format, app, store, "),
        (("topic",), 3, r"Expected `str`, got `int` - at `\$.topic`"),
        (("partitions",), {}, r"Expected `array`, got `object` - at `\$.partitions`"),
        (("partitions",), [1], r"Expected `object`, got `int` - at `\$.partitions\[0\]`"),
        (("made", "how"), "magic", r"'magic' - at `\$.made.how` \(there are rebuild, run, snapshot, table\)"),
        (("partitions", 0, "end"), True, r"`int`, got `bool` - at `\$.partitions\[0\].end`"),
        (("partitions", 0, "end"), 4, "start 5, end 4"),
        (("partitions", 0, "converge_offset"), 89, "converge offset 89"),
        (("partitions", 0, "partition"), 4, r"partitions are \[4\] of 4"),
        (("partitions", 0, "entries"), 4, "4 entries"),
        (("partitions", 0, "end"), 90.0, r"`int`, got `float` - at `\$.partitions\[0\].end`"),
        (("partitions", 0, "records"), -1, r"`int` >= 0 - at `\$.partitions\[0\].records`"),
        (("partitions", 0, "observed_ms"), -2, r"`int` >= -1 - at `\$.partitions\[0\].observed_ms`"),
        (("partitions", 0, "superseded"), ..., "missing required field `superseded`"),
        (("partitions", 0, "skipped"), -1, r"`int` >= 0 - at `\$.partitions\[0\].skipped`"),
        (("partitions", 0, "digest"), "zz", "is not a digest"),
        (("partitions", 0, "files"), [None], r"Expected `object`, got `null` - at `\$.partitions\[0\].files\[0\]`"),
        (("partitions", 0, "files", 0, "bytes"), 0, r"`int` >= 1 - at `\$.partitions\[0\].files\[0\].bytes`"),
        (("partitions", 0, "files", 0, "entries"), 0, r"`int` >= 1 - at .*files\[0\].entries`"),
        (("partitions", 0, "files", 0, "family"), "", r"length >= 1 - at .*files\[0\].family`"),
        (("partitions", 0, "files", 0, "deletes"), ..., r"missing required field `deletes` - at .*files\[0\]`"),
        (("partitions", 0, "files", 0, "deletes"), 4, "4 deletes are more than its 3 entries"),
        (("partitions", 0, "files", 0, "sha256"), "00", r"matching regex .*files\[0\].sha256`"),
        (("partitions", 0, "files", 0, "sha256"), "0" * 64 + "\n", r"matching regex .*files\[0\].sha256`"),
        (("partitions", 0, "files", 0, "last_key"), "00", "is above last key"),
        (("partitions", 0, "files", 0, "first_key"), "6", r"matching regex .*files\[0\].first_key`"),
        (("partitions", 0, "files", 0, "last_key"), "7A", r"matching regex .*files\[0\].last_key`"),
        (
            ("partitions", 0, "files", 0, "newer"),
            1,
            r"unknown field `newer` - at .*files\[0\]` .there are name, family, ",
        ),
    ],
)
def test_damaged_manifest_is_refused_and_says_where(path: tuple[str | int, ...], to: Any, said: str) -> None:
    with pytest.raises(Corruption, match=said):
        parse_manifest(changed(*path, to=to), "here")


def test_half_a_manifest_is_refused() -> None:
    with pytest.raises(Corruption, match="here is not readable"):
        parse_manifest(dump_manifest(MANIFEST)[:-20], "here")


@pytest.mark.parametrize(
    "name", ["../x.sst", "/x.sst", "a/../../x", "..", ".", "a//b", "", "a/.hidden", "a\\b", FILE_NAME, "x\n"]
)
def test_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(Corruption, match="cannot be the name of a file"):
        parse_manifest(changed("partitions", 0, "files", 0, "name", to=name), "here")


def test_file_named_twice_is_refused() -> None:
    shape = json.loads(dump_manifest(MANIFEST))
    shape["partitions"][0]["files"] *= 2
    shape["partitions"][0]["entries"] *= 2
    with pytest.raises(Corruption, match="names a file twice"):
        parse_manifest(json.dumps(shape), "here")


def test_what_cannot_be_read_back_is_not_written() -> None:
    with pytest.raises(Corruption):
        dump_manifest(replace(MANIFEST, partitions=(replace(PARTITION, end=1),)))
    with pytest.raises(InvalidRequest, match="plain JSON values"):
        dump_manifest(replace(MANIFEST, definition={"sizes": (1, 2)}))


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no manifest"):
        read_manifest(tmp_path)


def test_files_are_compared_with_their_sha256(tmp_path: Path) -> None:
    path = tmp_path / FILE.name
    with pytest.raises(Corruption, match="is missing"):
        check_files(tmp_path, [FILE])
    path.write_bytes(CONTENT)
    assert check_files(tmp_path, [FILE]) == [path]
    path.write_bytes(CONTENT[:-1] + b"E")
    with pytest.raises(Corruption, match="is damaged: it has sha256"):
        check_files(tmp_path, [FILE])
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(Corruption, match=rf"has {len(CONTENT) - 1} bytes instead of {len(CONTENT)}"):
        check_files(tmp_path, [FILE])


def test_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(CONTENT)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / FILE.name).symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidRequest, match="is a link out of"):
        check_files(folder, [FILE])
