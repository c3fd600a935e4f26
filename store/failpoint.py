"""Named places (failpoints) at which a test may kill or stop the process, to check the state that a crash leaves.

    STANDFAST_FAILPOINT=commit.logged=kill:3      SIGKILL the third time that the process reaches `commit.logged`
    STANDFAST_FAILPOINT=log.locked=stop:3         SIGSTOP, until a SIGCONT

    commit.flushed    held-back results of aggregations went downstream, nothing of the commit is durable
    writer.piece      a part of a write has its acknowledgement, the rest is not sent
    commit.logged     the log has the commit, the local database does not
    commit.local      the local database has the commit; at least once, the source offsets are not committed yet
    stores.families   families of new segments are made, their rows are not written
    engine.written    a batch is in the database, the steps after it have not run
    stores.dropped    the first expired segment is dropped, others are not
    restore.apply     a batch of a restore is fetched, not applied
    standby.apply     a batch of a standby is fetched, not applied
    ingest.marked     a store is marked, none of the files is in it
    ingest.family     the files of one family are in, others or the position are not
    ingest.positioned files and position are there, the tree is not in shape
    log.locked        the lock of the embedded log is held, nothing is written
    stores.forgotten  a lost store is out of the record, its rows are still there
    mending.copied    readable rows of a damaged store are copied back, its mark is still there
    mending.aside     a lost directory is set aside, its replacement is not in its place
    opener.exchanged  refused state is set aside for a snapshot, which is not in its place
    worker.run        a worker of a bulk restore has written files and not reported them
    worker.spilled    a worker of a bulk restore has moved rows from memory to the disk
    rebuild.written   every file of a rebuild on Spark is written, its manifest is not
    snapshot.probe    a storage has one object of a test of put-if-absent, and was not asked for the second
    snapshot.intent   an upload has announced itself, none of its files is there
    snapshot.file     a file of a snapshot is uploaded, others are not
    snapshot.files    all files of a snapshot are uploaded, its manifest is not
    snapshot.manifest the manifest of a snapshot is there, the last look at its files is not done
    snapshot.prune    a prune has announced itself, nothing is removed
    snapshot.pruned   manifests of old snapshots are removed, their files are not
    snapshot.unfiled  a file that no snapshot names is removed, others are not
    snapshot.download a file of a snapshot is restored, others are not
    snapshot.fetched  a snapshot is restored beside the task's directory, and not in its place
    snapshot.rows     rows of one store of a snapshot are in new files, none of them is in the task
    snapshot.placed   a restored snapshot is in its place, the rest of the log is not read
    placement.decided a leader has decided an assignment, nothing of it is in the log
    checkpoint.begun  a coordinated checkpoint is announced in the storage, no task has its order
    checkpoint.order  an order of a coordinated checkpoint is in the log
    checkpoint.part   a task's snapshot for a checkpoint is stored, its part is not
    checkpoint.seal   every part is found to be whole, the checkpoint is not complete
    checkpoint.sealed the checkpoint is complete in the storage, its pointer is not in the log
    snapshot.pointed  a task is at its point in a new folder, which is not in its place
    claims.asked      an instance has asked for its internal topics, and not looked for other claims
    claims.looked     no other application has claimed them, this one has not claimed them yet
    claims.claimed    they are claimed, the last look for other claims is not done
    clone.marked      a restore under a new name is marked in the log, none of its topics is there
    clone.topics      topics of a new name are made, none of its rows is written
    clone.rows        some rows are in the changelogs of a new name, others are not
    clone.written     all rows and no source offset of a new name are in the log
    clone.whole       the log has everything of a new name, no local state is in its place
    clone.placed      a task of a new name is in its place, others are not, or the mark is still there
    pipeline.judged   a pipeline on Spark has rebuilt and verified every store, its report is not written

Rules of this file: without the variable a failpoint costs one look at an empty dictionary. It can only kill and stop:
a failpoint must do nothing that a machine cannot do at any time. The process refuses an unusable name or count at its
start, so that no test passes because its failpoint was misspelt.
"""

from __future__ import annotations

import os
import re
import signal
import threading

from standfast.store.errors import BadConfig

VARIABLE = "STANDFAST_FAILPOINT"
NAMES = (
    "commit.flushed",
    "writer.piece",
    "commit.logged",
    "commit.local",
    "stores.families",
    "engine.written",
    "stores.dropped",
    "restore.apply",
    "standby.apply",
    "placement.decided",
    "ingest.marked",
    "ingest.family",
    "ingest.positioned",
    "log.locked",
    "stores.forgotten",
    "mending.copied",
    "mending.aside",
    "opener.exchanged",
    "worker.run",
    "worker.spilled",
    "rebuild.written",
    "snapshot.probe",
    "snapshot.intent",
    "snapshot.file",
    "snapshot.files",
    "snapshot.manifest",
    "snapshot.prune",
    "snapshot.pruned",
    "snapshot.unfiled",
    "snapshot.download",
    "snapshot.fetched",
    "snapshot.rows",
    "snapshot.placed",
    "checkpoint.begun",
    "checkpoint.order",
    "checkpoint.part",
    "checkpoint.seal",
    "checkpoint.sealed",
    "snapshot.pointed",
    "claims.asked",
    "claims.looked",
    "claims.claimed",
    "clone.marked",
    "clone.topics",
    "clone.rows",
    "clone.written",
    "clone.whole",
    "clone.placed",
    "pipeline.judged",
)
_FORM = re.compile(r"([a-z.]+)=(kill|stop):([1-9][0-9]{0,8})")


def parse(text: str) -> dict[str, int]:
    """The name with the number of times until it acts; negative to stop. Empty for an empty text; raises BadConfig."""
    if not text:
        return {}
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in NAMES:
        raise BadConfig([f"{VARIABLE}={text!r}: write NAME=kill:N or NAME=stop:N with one of {', '.join(NAMES)}"])
    return {found[1]: int(found[3]) if found[2] == "kill" else -int(found[3])}


_armed = parse(os.environ.get(VARIABLE, ""))


def reach(name: str) -> None:
    """Report that the process is at a named place."""
    if _armed and name in _armed:
        left = _armed[name]
        _armed[name] = left - 1 if left > 0 else left + 1
        if left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        elif left == -1:
            del _armed[name]  # before the stop: the process goes on after it, and must not stop here again
            # To this thread: another one that got it might stop the process only after some more steps of this one.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
