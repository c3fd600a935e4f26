"""Files of one folder in object storage, as local ones: each requested file is fetched once on a machine.

    <temporary>/standfast-files-<uid>/<run>/<folder as listed>/     shared by all tasks of a run on this machine
                                            .locks/<name>           one worker fetches a file, others wait for it

A folder's name is a hash of its address and its listing, so that a later upload is never mixed with the files of an
earlier one. A run removes its files when it ends; a later run removes the files of a killed one, once they are old.
Without a run, files belong to the caller alone and go with the `with` block.

Rules of this file: it knows names and bytes, not the content of files. All users share the temporary folder, so a
folder there that another user made is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.restore.spark.folder import Folder, StoredFile
from standfast.restore.spark.session import parallelism
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.log import as_event, logger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OLD_MS = 6 * 3_600_000  # a run without any use for so long was killed, or can fetch again
REMOVERS_MAX = 64
IGNORED = ("LOCK", "LOG", "LOG.old.")  # files that change without a change of the database


class Files:
    """The files of a folder in object storage, and the local folder that they are fetched to."""

    def __init__(self, folder: Folder, listing: Iterable[StoredFile], path: Path) -> None:
        self.folder = folder
        self.path = path
        self.sizes = {one.name: one.bytes for one in listing}
        (path / ".locks").mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(self, names: Iterable[str]) -> None:
        """Fetch these files unless they are here. Raises Unavailable for one that cannot be read or differs in size."""
        for name in names:
            if not (self.path / name).exists():
                self._fetch(name)

    def _fetch(self, name: str) -> None:
        path, lock = self.path / name, self.path / ".locks" / name.replace("/", "%")
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if path.exists():  # fetched by the worker that had the lock
                return
            # An interrupted fetch must not leave a file under its name: other workers take an existing file as whole.
            part = path.with_name(f"{path.name}.part")
            self.folder.fetch(name, part)
            found = part.stat().st_size
            # Files of two uploads must never be opened together.
            if found != self.sizes.get(name, found):
                part.unlink()
                raise Unavailable(
                    f"{name} of {self.folder} has {found} bytes and was listed with {self.sizes[name]}: it was "
                    "replaced meanwhile; try again once no process writes there"
                )
            part.replace(path)


@contextmanager
def files_of(folder: Folder, run: str, names: Iterable[str] | None = None) -> Iterator[Files]:
    """The files of a folder, none fetched yet. `names`: names of its files if known (None: the folder is listed)."""
    listing = list(folder.list()) if names is None else [StoredFile(name, -1, -1) for name in names]
    if not run:
        path = Path(tempfile.mkdtemp(prefix="standfast-place-"))
        try:
            yield Files(folder, listing if names is None else (), path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return
    seen = [(one.name, one.bytes, one.changed_ms) for one in listing if not one.name.startswith(IGNORED)]
    with _used(run) as path:
        label = hashlib.sha256(repr((folder.address, seen)).encode()).hexdigest()[:32]
        yield Files(folder, listing if names is None else (), path / label)


@contextmanager
def run_files(spark: SparkSession, *, needed: bool) -> Iterator[str]:
    """The name of a run whose tasks share fetched files; at its end the files are removed, here and on executors."""
    if not needed:
        yield ""
        return
    run = uuid.uuid4().hex
    try:
        yield run
    finally:
        try:
            _remove_everywhere(spark, run)
        except Exception as error:  # noqa: BLE001  the run has its answer or its error; old files go by age
            logger.warning(
                "files that run %s fetched are removed later, by age: %s",
                run,
                error,
                extra=as_event("spark_files_left", run=run),
            )


def _remove_everywhere(spark: SparkSession, run: str) -> None:
    """Remove the run's files. Best effort on executors: Spark may run these tasks on any of them."""
    remove(run)
    count = min(parallelism(spark), REMOVERS_MAX)

    def remover(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        remove(run)
        yield from batches

    spark.range(0, count, 1, count).mapInArrow(remover, "id long").collect()


def remove(run: str) -> None:
    """Remove the files that a run fetched on this machine."""
    shutil.rmtree(_parent() / run, ignore_errors=True)


@contextmanager
def _used(run: str) -> Iterator[Path]:
    """The run's folder, under a lock that keeps other runs from removing it."""
    parent = _parent()
    path = parent / run
    fresh = not path.exists()
    path.mkdir(mode=0o700, exist_ok=True)
    os.utime(path)  # a run in use does not get old
    if fresh:
        _sweep(parent)
    with (path / "used").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # shared by the run's tasks; a sweep needs it alone
        yield path


def _sweep(parent: Path) -> None:
    """Remove the folders of runs that are old and not in use."""
    now_ms = SystemClock().wall_ms()
    for path in parent.iterdir():
        try:
            if now_ms - path.stat().st_mtime_ns // 1_000_000 < OLD_MS:
                continue
            with (path / "used").open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # the folder is in use, or was removed meanwhile
            continue


def _parent() -> Path:
    path = Path(tempfile.gettempdir()) / f"standfast-files-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(
            f"{path} is not a folder of this user's own (0700): remove it, or set TMPDIR to another place"
        )
    return path
