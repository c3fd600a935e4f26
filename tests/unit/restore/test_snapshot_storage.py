"""Snapshots in a folder: uploads and prunes that meet, damaged files, addresses, and errors without secrets."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.restore.snapshot import fetch, prune, upload
from standfast.restore.snapshot.address import parse_storage
from standfast.restore.snapshot.catalogue import listed, names, verify_files
from standfast.restore.snapshot.manifest import Intent, PruneNote, Snapshot, dump_note
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Judged, Retention
from standfast.restore.snapshot.storage import PIECE_BYTES, RANGE_BYTES, SHOWN_MAX, Storage, shown
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.errors import BadConfig, Corruption, InvalidRequest, Unavailable
from standfast.store.rocks.opening import RocksShared
from support.snapshots import checkpoint

HOUR_MS = 3_600_000
Make = Callable[..., tuple[Snapshot, Path]]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "snaps"), "app")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(*rows: str, epoch: int = 1) -> tuple[Snapshot, Path]:
        return checkpoint(tmp_path / f"task-{epoch}", rows, epoch=epoch)

    return make


def stored(storage: Storage, make: Make, *rows: str, **given: Any) -> Snapshot:
    one, directory = make(*rows, **given)
    assert upload.upload(storage, one, directory, clock=SystemClock()).new
    return one


def pruned(storage: Storage, keep: int = 1, **given: Any) -> prune.Pruned:
    return prune.prune(storage, Retention(keep), clock=SystemClock(), **given)


def restored(storage: Storage, target: Path) -> fetch.Restored:
    shared = RocksShared(4 << 20)
    return fetch.restore_task(
        storage, "0_0", target, target.with_name("scratch"), shared, judge=lambda one: Judged(tail=0)
    )


def test_a_snapshot_is_listed_verified_and_restored(storage: Storage, make: Make, tmp_path: Path) -> None:
    one = stored(storage, make, "a", "b")
    assert [kept.snapshot for kept in listed(storage).whole] == [one]
    assert verify_files(storage, one) == []
    done = restored(storage, tmp_path / "target")
    assert done.snapshot == one
    assert {file.name for file in one.files} < {path.name for path in (tmp_path / "target").iterdir()}
    assert storage.list("intents") == []
    assert storage.list("probes") == []


def test_only_new_files_are_uploaded_and_the_same_point_only_once(storage: Storage, make: Make) -> None:
    stored(storage, make, "a")
    one, directory = make("a", "b")
    done = upload.upload(storage, one, directory, clock=SystemClock())
    assert 0 < done.uploaded_files < len(one.files)
    assert not upload.upload(storage, one, directory, clock=SystemClock()).new


def test_a_snapshot_of_another_log_under_the_same_name_is_refused_and_not_overwritten(
    storage: Storage, make: Make, tmp_path: Path
) -> None:
    one = stored(storage, make, "a")
    other, directory = checkpoint(tmp_path / "other", ("a",), topic_id="recreated")
    assert other.name == one.name
    with pytest.raises(InvalidRequest, match="topics that were recreated"):
        upload.upload(storage, other, directory, clock=SystemClock())
    assert listed(storage).whole[0].snapshot == one


def test_a_damaged_and_a_missing_file_fall_back_to_the_snapshot_before(
    storage: Storage, make: Make, tmp_path: Path
) -> None:
    first, second, third = (stored(storage, make, *"abc"[:count]) for count in (1, 2, 3))
    own = {file.sha256: file for file in second.files}
    damaged = next(sha for sha in own.keys() - first.contents if own[sha].name.endswith(".sst"))
    path = tmp_path / "snaps/app" / file_key(damaged)
    path.write_bytes(bytes(len(path.read_bytes())))
    (tmp_path / "snaps/app" / file_key(next(iter(third.contents - first.contents - second.contents)))).unlink()
    assert [kept.snapshot.name for kept in listed(storage).whole] == [second.name, first.name]
    assert list(listed(storage).broken) == [third.name]
    assert "sha256" in verify_files(storage, second)[0]
    done = restored(storage, tmp_path / "target")
    assert done.snapshot == first
    assert list(done.passed_over) == [third.name, second.name]
    assert not (tmp_path / "scratch").exists()


def test_a_manifest_that_was_copied_to_another_name_is_passed_over(
    storage: Storage, make: Make, tmp_path: Path
) -> None:
    one = stored(storage, make, "a")
    copied = one.name._replace(position=one.position + 1)
    storage.put_new(copied.key, storage.read(one.name.key) or b"")
    done = restored(storage, tmp_path / "target")
    assert done.snapshot == one
    assert "was copied there" in done.passed_over[copied]


def test_a_restore_never_replaces_a_database(storage: Storage, make: Make, tmp_path: Path) -> None:
    stored(storage, make, "a")
    target = tmp_path / "target"
    restored(storage, target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(InvalidRequest, match="never replaces"):
        restored(storage, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_a_prune_keeps_the_newest_and_every_file_that_it_names(storage: Storage, make: Make) -> None:
    first, second = stored(storage, make, "a"), stored(storage, make, "a", "b")
    looked = pruned(storage, dry_run=True)
    assert [kept.snapshot for kept in listed(storage).whole] == [second, first]
    done = pruned(storage)
    assert done.plan == looked.plan
    assert done.plan.snapshots == (first.name,)
    assert set(done.plan.files) == first.contents - second.contents
    assert verify_files(storage, second) == []
    assert storage.list("prunes") == []


def test_a_manifest_that_cannot_be_read_keeps_every_file(storage: Storage, make: Make) -> None:
    first, second = stored(storage, make, "a"), stored(storage, make, "a", "b")
    storage.put_new(second.name._replace(task="0_9").key, b"{")
    done = pruned(storage)
    assert done.plan.snapshots == (first.name,)
    assert not done.plan.files
    assert len(done.unread) == 1


def test_a_prune_leaves_the_files_of_an_upload_under_way(storage: Storage, make: Make) -> None:
    one, directory = make("a")

    def while_uploading(file: Any) -> None:
        assert not pruned(storage).plan.files

    upload.upload(storage, one, directory, clock=SystemClock(), step=while_uploading)
    assert verify_files(storage, one) == []


def test_an_upload_waits_for_a_prune_that_removes_its_files(storage: Storage, make: Make) -> None:
    one, directory = make("a")
    note = dump_note(PruneNote("p", tuple(sorted(one.contents))))
    storage.put_new("prunes/p.json", note)
    with pytest.raises(Unavailable, match="try again"):
        upload.upload(storage, one, directory, clock=SystemClock())
    assert names(storage) == []
    assert storage.list("intents") == []


def test_an_upload_that_stood_still_for_longer_than_the_grace_lists_nothing(storage: Storage, make: Make) -> None:
    one, directory = make("a")
    clock = ManualClock(1)

    def stand_still(file: Any) -> None:
        clock.advance(2 * HOUR_MS)

    with pytest.raises(Unavailable, match="begins again"):
        upload.upload(storage, one, directory, clock=clock, grace_ms=HOUR_MS, step=stand_still)
    assert names(storage) == []


def test_an_upload_whose_files_a_prune_took_lists_nothing_whatever_its_clock_says(storage: Storage, make: Make) -> None:
    one, directory = make("a")

    def prune_all(file: Any) -> None:
        # As when the machine stood still and its clock too: by the storage's time the intent is old.
        for intent in storage.list("intents"):
            storage.delete(intent.key)
        pruned(storage)

    with pytest.raises(Unavailable, match="again"):
        upload.upload(storage, one, directory, clock=SystemClock(), step=prune_all)
    assert names(storage) == []


def test_an_old_intent_keeps_no_files(storage: Storage, tmp_path: Path) -> None:
    content = tmp_path / "orphan"
    content.write_bytes(b"x")
    sha = hashlib.sha256(b"x").hexdigest()
    storage.put_file(file_key(sha), content)
    storage.put_new("intents/dead.json", dump_note(Intent("dead", "0_0", "me", (sha,))))
    assert not pruned(storage).plan.files
    # The storage's own time of the intent: that of its file.
    os.utime(tmp_path / "snaps/app/intents/dead.json", (1_000, 1_000))
    assert pruned(storage).plan.files == {sha: 1}
    assert storage.list("intents") == []


def age(tmp_path: Path, by_s: int) -> None:
    """Every object is older by so many seconds, as after a jump of the storage's clock."""
    for path in (tmp_path / "snaps").rglob("*"):
        if "#" in path.name:
            continue  # the temporary name of an upload under way, which may end meanwhile
        at = path.stat().st_mtime - by_s
        os.utime(path, (at, at))


def test_a_clock_that_jumps_ahead_ages_snapshots_and_the_newest_ones_stay(
    storage: Storage, make: Make, tmp_path: Path
) -> None:
    one, two, three = (stored(storage, make, *"abc"[:count]) for count in (1, 2, 3))
    age(tmp_path, 400 * 24 * 3_600)
    done = prune.prune(storage, Retention(2, keep_ms=HOUR_MS), clock=SystemClock())
    assert done.plan.snapshots == (one.name,)
    assert [kept.snapshot for kept in listed(storage).whole] == [three, two]
    assert verify_files(storage, two) == verify_files(storage, three) == []


def test_a_clock_that_jumps_back_removes_nothing_that_age_keeps(storage: Storage, make: Make, tmp_path: Path) -> None:
    one, two = (stored(storage, make, *"ab"[:count]) for count in (1, 2))
    storage.put_new("intents/dead.json", dump_note(Intent("dead", "0_0", "me", ("0" * 64,))))
    age(tmp_path, -400 * 24 * 3_600)
    done = prune.prune(storage, Retention(1, keep_ms=HOUR_MS), clock=SystemClock())
    assert (done.plan.snapshots, done.plan.files) == ((), {})
    assert [kept.snapshot for kept in listed(storage).whole] == [two, one]


def test_an_upload_during_which_the_clock_jumps_ahead_lists_nothing_and_the_next_one_is_whole(
    storage: Storage, make: Make, tmp_path: Path
) -> None:
    one, directory = make("a", "b")
    jumped: list[int] = []

    def jump(file: Any) -> None:
        if not jumped:
            jumped.append(1)
            age(tmp_path, 400 * 24 * 3_600)
            pruned(storage)

    with pytest.raises(Unavailable, match="again"):
        upload.upload(storage, one, directory, clock=SystemClock(), step=jump)
    assert names(storage) == []
    assert upload.upload(storage, one, directory, clock=SystemClock()).new
    assert verify_files(storage, one) == []


def test_a_storage_that_refuses_removals_takes_snapshots_and_refuses_a_prune(
    storage: Storage, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Storage, key: str) -> None:
        raise Unavailable(f"removing {key}: AccessDenied")

    monkeypatch.setattr(Storage, "delete", refuse)
    one, two = stored(storage, make, "a"), stored(storage, make, "a", "b")
    assert "a probe stays" in caplog.text
    with pytest.raises(Unavailable, match="AccessDenied"):
        pruned(storage)
    assert [kept.snapshot for kept in listed(storage).whole] == [two, one]


def test_a_file_is_sent_in_pieces_that_are_paced(storage: Storage, tmp_path: Path) -> None:
    sizes: list[int] = []
    for size in (0, 5, 2_500_000, 20_000_000):
        content = os.urandom(size)
        (tmp_path / "up").write_bytes(content)
        sha = hashlib.sha256(content).hexdigest()
        before = sum(sizes)
        storage.put_file(file_key(sha), tmp_path / "up", pace=sizes.append)
        assert sum(sizes) - before == size
        assert storage.read(file_key(sha)) == content
    assert max(sizes) == PIECE_BYTES


def test_two_applications_at_one_address_share_nothing(storage: Storage, make: Make, tmp_path: Path) -> None:
    one = stored(storage, make, "a")
    other = open_storage(str(tmp_path / "snaps"), "app2")
    assert listed(other).whole == ()
    assert not pruned(other).plan.files
    assert verify_files(storage, one) == []


def test_a_storage_that_overwrites_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Overwriting(Storage):
        def put_new(self, key: str, content: bytes) -> bool:
            self.delete(key)
            return super().put_new(key, content)

    with pytest.raises(BadConfig, match="put-if-absent"):
        Overwriting(parse_storage(storage.where), "app").prove()
    assert Overwriting(parse_storage(storage.where), "app").list("probes") == []


def test_a_prune_removes_old_probes_of_processes_that_died_and_leaves_young_ones(
    storage: Storage, tmp_path: Path
) -> None:
    for name in ("old", "young"):
        assert storage.put_new(f"probes/{name}", b"first")
    os.utime(tmp_path / "snaps" / "app" / "probes" / "old", (1_000, 1_000))
    assert pruned(storage, dry_run=True).probes == 1
    assert len(storage.list("probes")) == 2, "a dry run removes nothing"
    assert pruned(storage).probes == 1
    assert [one.key for one in storage.list("probes")] == ["probes/young"]
    assert pruned(storage).probes == 0


def test_a_probe_that_a_prune_removed_in_its_middle_is_made_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process is stopped for longer than the grace."""
    found: list[str] = []

    def reach(name: str) -> None:
        if name == "snapshot.probe" and not found:
            found.extend(one.key for one in storage.list("probes"))
            storage.delete(found[0])

    monkeypatch.setattr("standfast.restore.snapshot.storage.reach", reach)
    storage.prove()
    assert len(found) == 1
    assert storage.list("probes") == []


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("s3://key:hidden@bucket/x", "holds credentials"),
        ("s3://bucket/x?secret_access_key=hidden", "by the environment"),
        ("s3://bucket/x?colour=red", "unknown"),
        ("http://host/x", "no storage for snapshots"),
        ("memory:///", "no storage for snapshots"),
        ("s3:///x", "no storage for snapshots"),
        ("file://host/x", "file:///PATH"),
        ("s3://bucket/x?endpoint=ftp://host", "an endpoint is http"),
        ("s3://bucket/x?endpoint=http://key:hidden@host", "its endpoint holds credentials"),
        ("s3://bucket/x//y", "an empty part"),
        ("gs://bucket/x?region=r", "unknown for Google Cloud Storage"),
        ("az://account/box?region=r", "unknown for Azure"),
        ("az://account/box?sas_token=hidden", "by the environment"),
        ("az://account", "'' is no container"),
        ("az://account/Box/x", "'Box' is no container"),
        ("az://my-container/x", "'my-container' is no account"),
        ("abfss://box/x", "CONTAINER@ACCOUNT"),
        ("abfss://box:hidden@account.dfs.core.windows.net/x", "holds credentials"),
        ("az://key:hidden@account/box/x", "holds credentials"),
        ("", "a folder"),
    ],
)
def test_an_unusable_address_is_refused_without_its_secrets(text: str, match: str) -> None:
    with pytest.raises(BadConfig, match=match) as refused:
        parse_storage(text)
    assert "hidden" not in str(refused.value)


def test_addresses_of_folders_and_services_are_read() -> None:
    assert parse_storage("/backup/x").folder == Path("/backup/x")
    assert parse_storage("file:///backup/x").folder == Path("/backup/x")
    found = parse_storage("s3://bucket/pre/fix?endpoint=http://127.0.0.1:1&region=r")
    assert (found.url, found.text) == ("s3://bucket/pre/fix", "s3://bucket/pre/fix")
    assert found.options == {"endpoint": "http://127.0.0.1:1", "region": "r"}
    found = parse_storage("gs://bucket/pre?endpoint=http://127.0.0.1:1/")
    assert (found.url, found.options, found.plain_http) == ("gs://bucket/pre", {"base_url": "http://127.0.0.1:1"}, True)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("az://account/box/pre/fix", "az://box/pre/fix"),
        ("azure://account/box/pre/fix/", "az://box/pre/fix"),
        ("abfss://box@account.dfs.core.windows.net/pre/fix", "az://box/pre/fix"),
        ("az://account/box", "az://box"),
        ("abfs://box@account.dfs.core.windows.net", "az://box"),
    ],
)
def test_an_address_of_azure_names_account_and_container(text: str, url: str) -> None:
    found = parse_storage(text)
    assert (found.url, found.text, found.options["account_name"]) == (url, text, "account")
    assert found.bucket == "container 'box' of account 'account'"
    assert not found.plain_http


def test_a_variable_that_names_an_emulator_changes_no_address_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    monkeypatch.setenv("AZURE_CONTAINER_NAME", "other")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "dG9w")
    storage = open_storage("az://account/box/x?endpoint=http://127.0.0.1:1/account", "app", patience_s=0)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/account/box/x/app/notes/a "):
        storage.put_new("notes/a", b"1")


def test_errors_show_neither_secrets_nor_the_body_of_an_answer() -> None:
    text = (
        "Generic S3 error: PUT http://h/b?X-Amz-Signature=abc failed with TOPSECRET: <?xml version='1.0'?><Error>"
        "<Code>SlowDown</Code><StringToSign>abc</StringToSign></Error>\n\nDebug source: more"
    )
    line = shown(Exception(text), {"AWS_SECRET_ACCESS_KEY": "TOPSECRET", "HOME": "S3"})
    assert line == "Generic S3 error: PUT http://h/b failed with *** (SlowDown)"


def test_a_long_error_keeps_the_request_and_the_answer() -> None:
    path = "prefix/" * 60
    line = shown(Exception(f"Error performing PUT {path} failed: 403 Forbidden: <Error><Code>AuthFailure</Code>"), {})
    assert line.startswith("Error performing PUT prefix/") and line.endswith("failed: 403 Forbidden (AuthFailure)")
    assert len(line) == SHOWN_MAX + len(" ... ")


@pytest.mark.parametrize(
    ("to", "environment"),
    [
        (
            "s3://bucket/x?endpoint=http://127.0.0.1:1&region=r",
            {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "TOPSECRET"},
        ),
        ("gs://bucket/x?endpoint=http://127.0.0.1:1", {"GOOGLE_BEARER_TOKEN": "TOPSECRET"}),
        ("az://account/box/x?endpoint=http://127.0.0.1:1", {"AZURE_STORAGE_ACCOUNT_KEY": "TOPSECRET000"}),
        ("az://account/box/x?endpoint=http://127.0.0.1:1", {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=TOPSECRET"}),
    ],
)
def test_a_storage_that_does_not_answer_is_unavailable(
    to: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    away = open_storage(to, "app", patience_s=0)
    with pytest.raises(Unavailable, match=to.partition("?")[0] + "/app") as refused:
        away.prove()
    assert next(iter(environment)) in str(refused.value) or "GOOGLE_SERVICE_ACCOUNT" in str(refused.value)
    assert "TOPSECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOOGLE_SERVICE_ACCOUNT_KEY", "TOPSECRET and no JSON"),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", '{"type": "service_account", "private_key": "TOPSECRET"}'),
        ("AZURE_STORAGE_ACCOUNT_KEY", "TOPSECRET%"),
        ("AZURE_STORAGE_SAS_TOKEN", "TOPSECRET"),
    ],
)
def test_credentials_that_cannot_be_read_are_refused_and_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable, match="credentials") as refused:
        open_storage("gs://bucket/x" if "GOOGLE" in name else "az://account/box/x", "app", patience_s=0)
    assert "TOPSECRET" not in str(refused.value)


def test_a_link_in_a_checkpoint_is_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="follows no link"):
        checkpoint(tmp_path / "linked", ("a",), link=tmp_path / "elsewhere")


def test_a_download_that_ends_early_is_damage(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"short")
    storage.put_file("files/short", tmp_path / "short")
    for number, (key, size) in enumerate((("files/short", 9), ("files/short", 5), ("files/none", 5))):
        with pytest.raises(Corruption):
            storage.download(key, tmp_path / f"down{number}", size, "0" * 64)


def test_a_file_of_many_ranges_comes_back_whole_and_damage_in_any_of_them_is_found(
    storage: Storage, tmp_path: Path
) -> None:
    content = random.Random(4711).randbytes(5 * RANGE_BYTES + 7)
    (tmp_path / "up").write_bytes(content)
    sha = hashlib.sha256(content).hexdigest()
    storage.put_file("files/large", tmp_path / "up")
    arrived: list[int] = []
    storage.download("files/large", tmp_path / "down", len(content), sha, arrived.append)
    assert (tmp_path / "down").read_bytes() == content
    assert sum(arrived) == len(content)
    zeros = content[: 3 * RANGE_BYTES] + bytes(2 * RANGE_BYTES + 7)
    for number, damaged in enumerate((content[:-1], content[: 2 * RANGE_BYTES], content + b"x", zeros)):
        (tmp_path / "snaps/app/files/large").write_bytes(damaged)
        with pytest.raises(Corruption):
            storage.download("files/large", tmp_path / f"down{number}", len(content), sha)


def test_a_long_error_keeps_the_status_and_the_code_at_its_end() -> None:
    address = f"http://127.0.0.1/{'long/' * 200}object"
    text = f"Error performing GET {address} - 403 Forbidden: <Error><Code>Skewed</Code></Error>"
    line = shown(Exception(text), {})
    assert line.startswith("Error performing GET http://127.0.0.1/") and line.endswith("403 Forbidden (Skewed)")
    assert len(line) < 450
