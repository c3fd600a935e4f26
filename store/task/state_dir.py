"""The state directory of one application on one machine (Kafka Streams: StateDirectory).

    <state_dir>/<app>/LOCK           flock of the process that owns it, with its pid inside; its workers share the lock
                      INSTANCE       stable instance id, kept over restarts
                      0_3/           one task: its RocksDB, STANDFAST (format marker) and STORES (definitions)
                      .aside/        directories set aside, until the task that replaces them is whole
                      .kept/         those of them whose rows may be nowhere else; only a person removes them
                      ACCEPTED       losses that an operator has accepted, a line each
                      .bulk/         files of a bulk restore, not ingested yet; of no use to another process
                      .mending/      parts of a damaged task's replacement, until it takes the task's place
                      .copying/      checkpoints on their way to a storage of snapshots, and snapshots from one

Rules of this file: directories and markers only; it never opens a database. It deletes only directories that this
library set aside, and only after the caller says that their replacement is whole.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from standfast.store import files
from standfast.store.arguments import path_problems, refuse
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Corruption, Held, InvalidRequest
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger
from standfast.store.names import check_name, few
from standfast.store.outside import new_id, process_id
from standfast.store.process import forks
from standfast.store.process.holders import held_by
from standfast.store.rocks.files import copy_closed

MARKER = "STANDFAST"
BESIDE_MARKER = ("SEAL", "STORES")  # files that every task's database has beside its marker
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)
MARKER_FORMAT = 1
BULK_FOLDER = ".bulk"
ASIDE_FOLDER = ".aside"
KEPT_FOLDER = ".kept"
KEEP = "KEEP"  # a file in a directory that was set aside: it goes to KEPT_FOLDER when its replacement is whole
MENDING_FOLDER = ".mending"
COPYING_FOLDER = ".copying"
WIPED = "wiped"  # set aside by an operator's command, so it must never come back by itself
INSTANCE_BYTES_MAX = 128
INSTANCE = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MADE_INSTANCE = re.compile(rb"[0-9a-f]{12}(?![A-Za-z0-9._-])")  # by `_instance_id`, whatever stands behind it
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # s3://bucket; with one slash, too: pathlib takes one of two away


class LostInstance(InvalidRequest):
    """The file of the instance's id holds none. `path` is the application's state directory."""

    def __init__(self, message: str, path: Path) -> None:
        self.path = path
        super().__init__(message)


class StateDir:
    """Owns `<state_dir>/<app>` until closed; a second owner gets Held, naming the processes that have it.

    In the child of a fork the object is closed, and the lock remains the parent's.
    """

    def __init__(self, root: str | Path, app: str) -> None:
        self.app = check_name("application", app)
        refuse(path_problems("state_dir", root))
        if ADDRESS.match(str(root)):
            raise InvalidRequest(f"state_dir {str(root)!r} is an address: state lives in a folder of this machine")
        self.path = Path(root).absolute() / app
        with told("opening the state directory", self.path):
            files.make_folder(self.path, parents=True, exist_ok=True)
            check_marker(self.path, app, task=None)  # before the lock file: a foreign database has one of the same name
            for name in (
                "LOCK",
                MARKER,
                "INSTANCE",
                ASIDE_FOLDER,
                KEPT_FOLDER,
                BULK_FOLDER,
                MENDING_FOLDER,
                COPYING_FOLDER,
            ):
                refuse_link(self.path / name)
            self._lent = self._shared = False  # `_shared`: others may have a handle of this lock
            self._lock = -1
            try:
                self._acquire()
                for folder in (BULK_FOLDER, MENDING_FOLDER, COPYING_FOLDER):
                    files.clear(self.path / folder)  # left by a process that was killed
                write_marker(self.path, app, task=None)
                self.instance_id = self._instance_id()
            except BaseException:
                self.close()
                raise

    @classmethod
    def lent(cls, root: str | Path, app: str, lock: int, member: str) -> StateDir:
        """A directory whose lock another owner took and shares: `lock` is a handle on it that this object closes.

        The directory stays locked until every handle is closed, in every process: no new owner opens a task that a
        worker of a dead owner still has open. `member` is the instance id of this object. The owner decides which
        session has which task. Raises InvalidRequest if the directory was removed or replaced since the lock was taken.
        """
        made = cls.__new__(cls)
        made.app = check_name("application", app)
        made.path = Path(root).absolute() / app
        with told("joining the state directory", made.path):
            try:
                same = os.path.samestat(os.fstat(lock), (made.path / "LOCK").stat())
            except FileNotFoundError:
                same = False
        if not same:
            raise InvalidRequest(
                f"state directory {made.path} was removed or replaced while its instance runs: nothing can join "
                "it: stop the instance and start it again, and keep the directory for as long as an instance runs "
                "(changelogs have the rows, but for those of stores without a changelog)"
            )
        made._lent = made._shared = True
        made._lock, made.instance_id = lock, member
        forks.dies_in_child(made)
        return made

    def lend(self, member: str) -> StateDir:
        """Share the directory with another session of this process, by a handle of its own."""
        with forks.taking:
            return StateDir.lent(self.path.parent, self.app, os.dup(self.lock), member)

    @property
    def lock(self) -> int:
        """The lock's file handle, for a worker to inherit: the directory stays locked until the worker has ended."""
        self._shared = True
        return self._lock

    def task_path(self, task: str) -> Path:
        """Directory of one task, e.g. `0_3`."""
        return self.path / task

    def tasks(self) -> list[str]:
        """Tasks that have a directory in this state directory."""
        return sorted(path.name for path in self.path.iterdir() if (path / MARKER).is_file())

    def set_aside(self, task: str, reason: str) -> Path | None:
        """Move a task's directory out of the way, whole; None if there is none."""
        source = self.task_path(task)
        if not source.exists():
            return None
        target = self._aside_path(task, reason)
        files.make_folder(target.parent, exist_ok=True)
        # Within the state directory, so on the same file system: a rename is whole or has not happened.
        files.rename(source, target)
        return target

    def copy_aside(self, task: str, reason: str) -> Path:
        """Copy the directory of a closed task, by links; the caller may remove the copy again."""
        target = self._aside_path(task, reason)
        copy_closed(self.task_path(task), target)
        return target

    def aside_path(self, folder: str) -> Path:
        """Path of a directory in `.aside`, by its name."""
        return self.path / ASIDE_FOLDER / folder

    def _aside_path(self, task: str, reason: str) -> Path:
        return self.aside_path(f"{task}.{reason}.{new_id('folder', 8)}")

    def aside(self, task: str) -> list[Path]:
        """Directories set aside for a task, the oldest first."""
        found = (self.path / ASIDE_FOLDER).glob(f"{task}.*")
        return sorted(found, key=lambda path: (path.stat().st_ctime_ns, path.name))

    def left_behind(self, task: str) -> Path | None:
        """The directory last set aside of a task without one: a crash came before its replacement. Else None."""
        if self.task_path(task).exists():
            return None
        kept = [path for path in self.aside(task) if path.name.split(".")[1] != WIPED]
        return kept[-1] if kept else None

    def mending_path(self, task: str, part: str) -> Path:
        """A free path for a part of a damaged task's replacement; the caller makes the folder."""
        path = self.path / MENDING_FOLDER / f"{task}.{part}"
        files.clear(path)
        files.make_folder(path.parent, exist_ok=True)
        return path

    def copying_path(self, task: str) -> Path:
        """A free path for a copy of a task on its way to or from a storage; the caller makes and removes the folder."""
        folder = self.path / COPYING_FOLDER
        files.make_folder(folder, exist_ok=True)
        return folder / f"{task}.{process_id()}-{new_id('folder', 8)}"

    def drop_copies(self, pid: int) -> None:
        """Delete the copies of tasks that a process left which has ended: a killed one removes none itself."""
        for path in (self.path / COPYING_FOLDER).glob(f"*.{pid}-*"):
            files.clear(path)

    def drop_aside(self, task: str) -> list[Path]:
        """Delete the directories set aside for a task, whose replacement is whole now; returns their paths.

        Those to be kept stay, as directories of KEPT_FOLDER. One that cannot be removed waits for the next call.
        """
        dropped = []
        for path in self.aside(task):
            if not (path / KEEP).exists():
                try:
                    files.remove_tree(path)
                except OSError as error:  # such as a read-only mount: the task is whole, and must not end for this
                    about = as_event("aside_stays", task=task, path=str(path))
                    logger.warning("%s is not needed any more and cannot be removed: %s", path, error, extra=about)
                else:
                    dropped.append(path)
                continue
            # Under the task's own name, without which no command opens it.
            kept = self.path / KEPT_FOLDER / path.name / task
            with told("keeping rows that may be nowhere else", kept):
                files.make_folder(kept.parent, parents=True, exist_ok=True)
                files.rename(path, kept)
            logger.warning(
                "task %s is whole again by its log; its former rows, which may be nowhere else, stay in %s until they "
                "are removed by hand",
                task,
                kept,
                extra=as_event("rows_kept", task=task),
            )
            dropped.append(path)
        return dropped

    def take_back(self, directory: Path, task: str) -> None:
        """Put a directory that was set aside back in its place, which is free."""
        with told("putting a task back in place", directory):
            files.remove(directory / KEEP, missing_ok=True)
            files.rename(directory, self.task_path(task))

    def keep_aside(self, directory: Path) -> None:
        """Note that a directory set aside is to be kept when its replacement is whole."""
        with told("keeping rows that may be nowhere else", directory):
            files.write_atomically(directory / KEEP, "rows that may be nowhere else: removed by hand alone\n")

    def close(self) -> None:
        """Release the lock. Closing twice is fine."""
        if self._lock >= 0:
            try:
                if not self._lent:
                    # So that no reader takes this process, should it live on, for the owner.
                    files.truncate(self._lock, self.path / "LOCK")
            except OSError as error:  # of a disk that takes no change: the lock, which counts, is released all the same
                logger.warning(
                    "%s/LOCK keeps the id of this process: %s", self.path, error, extra=as_event("lock_kept")
                )
            finally:
                self._let_go()

    def _let_go(self) -> None:
        handle, self._lock = self._lock, -1  # first: another file may soon have this number
        try:
            # A program without our hooks may have forked, and would keep the lock; but so are workers to keep it.
            if not self._shared:
                files.unlock(handle, self.path / "LOCK")
        finally:
            os.close(handle)

    def forked(self) -> None:
        """As in `forks.Owned`: the lock remains with the parent, and with the handles that it lent."""
        self._shared = True
        if self._lock >= 0:
            self._let_go()

    def _acquire(self) -> None:
        path = self.path / "LOCK"
        with forks.taking:
            # Kept before it is locked: an exception of a signal handler may come after either call.
            self._lock = files.open_handle(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            forks.dies_in_child(self)
        try:
            files.lock(self._lock, path)
            files.truncate(self._lock, path)
            os.pwrite(self._lock, f"pid {process_id()}\n".encode(), 0)
        except BlockingIOError:
            # Not the note in the file: its process may have ended, and one that it lent the lock to may have it.
            holder, those = held_by(self._lock)
            self._let_go()
            raise Held(
                f"state directory {self.path} is held by {holder}: stop {those}, or give this one another state_dir"
            ) from None
        except BaseException:  # such as no space for the note: an open handle would keep the lock to this process' end
            self._let_go()
            raise

    def _instance_id(self) -> str:
        path = self.path / "INSTANCE"
        kept = kept_instance(self.path)
        if kept:
            return kept
        instance_id = new_id("instance", 12)
        files.write_atomically(path, instance_id + "\n")
        return instance_id


def kept_instance(state_path: Path) -> str:
    """The instance id kept in `<state_dir>/<app>`, "" before its first start. LostInstance for an invalid id.

    Bytes behind the line of a valid id count for nothing. Without that line's end an id may have been cut, so of such a
    file only an id of the length that this library makes is read, or one without any byte behind it.
    """
    path = state_path / "INSTANCE"
    if not path.exists():
        return ""
    with path.open("rb") as file:
        found = file.read(2 * INSTANCE_BYTES_MAX).lstrip()
    line = found.partition(b"\n")[0].rstrip()
    if INSTANCE.fullmatch(line):
        return line.decode()
    made = _MADE_INSTANCE.match(found)
    if made is None:
        raise LostInstance(
            f"{path} holds {found[:40]!r}, which is not an instance id (letters, digits, . _ -): write its old content "
            "back, or remove the file; then this instance is a new one",
            state_path,
        )
    return made[0].decode()


def find_app(state_dir: Path, app: str | None) -> Path:
    """`<state_dir>/<app>`; the name is optional where there is only one. Raises InvalidRequest."""
    if app is not None:
        check_name("application", app)
        path = state_dir / app
        if not path.is_dir():
            raise InvalidRequest(f"application {app!r} has no state in {state_dir}, which holds {_listed(state_dir)}")
        return path
    if not state_dir.is_dir():
        if state_dir.exists():
            raise InvalidRequest(f"{state_dir} is not a directory: name the application's state directory")
        raise InvalidRequest(f"state directory {state_dir} does not exist: name the application's state directory")
    if (state_dir / MARKER).is_file():
        return state_dir  # already the application's own directory
    apps = app_names(state_dir)
    if len(apps) != 1:
        raise InvalidRequest(
            f"{state_dir} holds {_listed(state_dir)}: choose one application with --app NAME (option app in Spark)"
        )
    return state_dir / apps[0]


def app_names(state_dir: Path) -> list[str]:
    """Applications with state in this directory."""
    if not state_dir.is_dir():
        return []
    return sorted(path.name for path in state_dir.iterdir() if (path / MARKER).is_file())


def _listed(state_dir: Path) -> str:
    names = app_names(state_dir)
    return f"the applications {few(names)}" if names else "no application"


def owner_pid(state_path: Path) -> int | None:
    """The live process that owns the state directory `<state_dir>/<app>`, by its lock; or None."""
    pid = noted_pid(state_path)
    return pid if pid is not None and pid_alive(pid) else None


def noted_pid(state_path: Path) -> int | None:
    """The process that took the lock of `<state_dir>/<app>` last; None if it has closed it, or none ever did."""
    try:
        # Only read: an instance does not wait for this lock, so one that starts while a look holds it would end.
        words = (state_path / "LOCK").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return None
    return int(words[1]) if len(words) == 2 and words[0] == "pid" and words[1].isdigit() else None


def pid_alive(pid: int) -> bool:
    """Whether a process of this id exists on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process of another user
    return True


def check_marker(directory: Path, app: str, task: str | None) -> bool:
    """Whether `directory` has our marker; InvalidRequest for another task's, a newer format, or unmarked data.

    A task's directory that is a symbolic link is refused, too: rows would be written to the link's target. Corruption
    of the whole directory for a task's marker that is damaged, InvalidRequest for that of an application.
    """
    if task is not None:
        refuse_link(directory)
    marker = directory / MARKER
    fault = marker_fault(directory)
    if fault and task is not None:
        damage = Corruption(f"{fault}: restore this task from its log")
        damage.families = frozenset((DEFAULT_FAMILY,))
        raise damage
    if fault:
        raise InvalidRequest(f"{fault}: restore it or choose another state_dir")
    if not marker.exists():
        if (directory / "CURRENT").exists():
            raise InvalidRequest(
                f"{directory} holds a RocksDB that standfast did not make (it has no {MARKER} marker): "
                "choose another state_dir"
            )
        return False
    found_format, found_app, found_task = _marked(marker)
    if found_format > MARKER_FORMAT:
        raise InvalidRequest(
            f"{directory} has format {found_format}, this version of standfast knows up to {MARKER_FORMAT}: "
            "run the version that wrote it, or choose another state_dir and restore from the log"
        )
    if (found_app, found_task) != (app, task):
        found = f"application {found_app!r}" + ("" if found_task is None else f", task {found_task}")
        wanted = f"application {app!r}" + ("" if task is None else f", task {task}")
        raise InvalidRequest(f"{directory} belongs to {found}, not to {wanted}: choose another state_dir")
    return True


def marker_fault(directory: Path) -> str:
    """Why the marker of a directory does not say whose it is; "" if it does, or if no database of ours is there."""
    marker = directory / MARKER
    if marker.exists():
        try:
            _marked(marker)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return f"{marker} is not readable ({error})"
        return ""
    # RocksDB has no file of these names: standfast has used the database, and its marker is gone.
    if (directory / "CURRENT").exists() and all((directory / name).exists() for name in BESIDE_MARKER):
        return f"{marker} is gone"
    return ""


def _marked(marker: Path) -> tuple[int, str, str | None]:
    """Format, application and task of a marker."""
    fields = json.loads(marker.read_text(encoding="utf-8"))
    return int(fields["format"]), fields["app"], fields["task"]


def refuse_link(path: Path) -> None:
    """Raise InvalidRequest for a symbolic link within a state directory; the state directory itself may be one."""
    if path.is_symlink():
        raise InvalidRequest(
            f"{path} is a symbolic link, and standfast follows none within a state directory: replace it by its "
            "target, or remove it; to keep state on another disk, name a folder of that disk as state_dir"
        )


def write_marker(directory: Path, app: str, task: str | None) -> None:
    """Write the format marker, before the first byte of data."""
    if not (directory / MARKER).exists():
        fields = {"format": MARKER_FORMAT, "app": app, "task": task}
        files.write_atomically(directory / MARKER, json.dumps(fields) + "\n")


def written_name(name: str) -> str:
    """The final name of a file that a kill of `write_atomically` left under its temporary name; else `name`."""
    found = _TEMPORARY.fullmatch(name)
    return name if found is None else found[1]
