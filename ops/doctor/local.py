"""Checks of an application's files on this machine.

    <state_dir>/<app>    format, owner's marker, directories set aside, files that RocksDB wants open, its place

Rules of this file: `local_facts` looks and `local_findings` judges, which is pure. Only markers are opened.
"""

from __future__ import annotations

import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

from standfast.replication.topics.rules import Finding
from standfast.restore.accepted import ACCEPTED_FILE, Accepted, read_accepted
from standfast.restore.report.text import moment_text
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.task.state_dir import (
    ASIDE_FOLDER,
    KEPT_FOLDER,
    MARKER,
    check_marker,
    kept_instance,
    noted_pid,
)

FILES_BESIDE = 256  # sockets, logs, files of the application itself
FILES_A_TASK = 64  # WAL, manifest, and the output files of a compaction


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """A state directory at one moment. `unreadable` are (directory, reason), `aside` and `kept` are (directory, bytes).

    `accepted` are the losses that an operator has accepted.
    """

    path: str
    tasks: int = 0
    sst_files: int = 0
    unreadable: tuple[tuple[str, str], ...] = ()
    aside: tuple[tuple[str, int], ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    accepted: tuple[Accepted, ...] = ()
    temporary: bool = False
    files_limit: int = 0  # 0: no limit
    bad_instance: str = ""  # reason for which the file of the instance's id would be refused
    first_process: bool = False  # its process is, or was when it was killed, the first one of its PID namespace


def local_facts(state_path: Path, app: str, unreadable: tuple[tuple[str, str], ...] = ()) -> LocalFacts:
    """Look at `<state_dir>/<app>`; `unreadable` are tasks that could not be opened."""
    problems = dict(unreadable)
    tasks = sst_files = 0
    for directory in (state_path, *sorted(path for path in state_path.iterdir() if (path / MARKER).is_file())):
        task = None if directory == state_path else directory.name
        try:
            check_marker(directory, app, task)
        except (Corruption, InvalidRequest) as error:
            problems.setdefault(str(directory), str(error))  # the reason that its opening gave is the nearer one
        if task is not None:
            tasks += 1
            sst_files += sum(path.suffix == ".sst" for path in directory.iterdir())
    aside, kept = (
        tuple((str(path), _size(path)) for path in sorted((state_path / folder).glob("*")))
        for folder in (ASIDE_FOLDER, KEPT_FOLDER)
    )
    bad_instance = ""
    try:
        kept_instance(state_path)
    except InvalidRequest as error:
        bad_instance = str(error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LocalFacts(
        str(state_path),
        tasks,
        sst_files,
        tuple(problems.items()),
        aside,
        kept,
        tuple(read_accepted(state_path)),
        # Resolved: a link elsewhere may lead to the temporary folder, and the folder itself may be a link.
        state_path.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve()),
        0 if soft == resource.RLIM_INFINITY else soft,
        bad_instance,
        noted_pid(state_path) == 1,
    )


def local_findings(facts: LocalFacts) -> list[Finding]:
    """A finding for each problem."""
    found = [
        Finding(
            "state-format",
            "error",
            f"directory {path}",
            "cannot be used",
            why,
            "remove the cause; or stop the application and move the directory away: stores with a changelog are "
            "restored from it (the moved directory keeps the rows of the others)",
            f"mv {path} {path}.bad",
        )
        for path, why in facts.unreadable
    ]
    found += [
        Finding(
            "set-aside",
            "warning",
            f"directory {path}",
            f"was set aside and holds {size} bytes",
            "it is the task's copy from before a restore from the log, kept until the restore is complete",
            "start the application and wait until the task runs, which removes it; or keep a copy elsewhere",
        )
        for path, size in facts.aside
    ]
    found += _left_findings(facts)
    wanted = facts.sst_files + facts.tasks * FILES_A_TASK + FILES_BESIDE
    if facts.files_limit and facts.files_limit < wanted:
        found.append(
            Finding(
                "open-files",
                # With fewer than the files that are there the next start fails; the rest is needed at some time.
                "error" if facts.files_limit < facts.sst_files else "warning",
                f"directory {facts.path}",
                f"has {facts.tasks} tasks with {facts.sst_files} files and a process may open {facts.files_limit}",
                "RocksDB fails in the middle of the work once it may not open a file",
                f"raise the limit to {2 * wanted} for the application (for systemd: LimitNOFILE={2 * wanted})",
                f"ulimit -n {2 * wanted}",
            )
        )
    if facts.bad_instance:
        path = str(Path(facts.path) / "INSTANCE")
        found.append(
            Finding(
                "instance-id",
                "error",
                f"file {path}",
                "holds no id, and the next start is refused",
                facts.bad_instance,
                "restore its content, or remove the file: this instance then starts with a new id",
                f"rm {path}",
            )
        )
    return [*found, *_place_findings(facts)]


def _place_findings(facts: LocalFacts) -> list[Finding]:
    """Where the directory is, and where its process runs."""
    found = []
    if facts.first_process:
        found.append(
            Finding(
                "first-process",
                "warning",
                f"directory {facts.path}",
                "belongs to a process that is the first one of its PID namespace",
                "the kernel ends its lease process with it, so that after a kill the standbys wait for its lease",
                "start it by `standfast run`, or below an init: docker run --init, shareProcessNamespace of a pod",
            )
        )
    if facts.temporary:
        found.append(
            Finding(
                "temporary-directory",
                "warning",
                f"directory {facts.path}",
                "is in the folder of temporary files",
                "a reboot or a cleaner may clear it, and the next start then restores it from the beginning of the log",
                "give the application another state_dir, such as /var/lib/NAME",
            )
        )
    return found


def _left_findings(facts: LocalFacts) -> list[Finding]:
    """Traces of losses: kept rows, and consents."""
    found = [
        Finding(
            "kept-rows",
            "warning",
            f"directory {path}",
            f"has the former rows of a task, in {size} bytes",
            "its changelog was replaced or lost records, so they may be nowhere else; nothing removes them by itself",
            "compare them with the task (standfast scan STORE --offline DIR), keep a copy if they are of use, then "
            "remove them",
            f"rm -r {path}",
        )
        for path, size in facts.kept
    ]
    return found + [_accepted(one, facts.path) for one in facts.accepted]


def _accepted(one: Accepted, path: str) -> Finding:
    where = f"task {one.task} in {path}"
    if one.store:
        where += f", store {one.store!r}"
        what = f"was built with an accepted loss: changelog {one.changelog}: {one.loss}"
        effect, consent = "rows may be missing from the store", "accept_missing_history, accept_empty_log"
    else:
        what = f"went on from {one.loss}"
        effect, consent = "its stores lack, or have twice, what these records change", "accept_foreign_offsets"
    return Finding(
        "loss-accepted",
        "warning",
        where,
        what,
        f"an operator accepted it at {moment_text(one.at_ms)}; {effect}",
        f"turn the consent off again ({consent}); remove the record once the loss is of no account",
        f"rm {Path(path) / ACCEPTED_FILE}",
    )


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
