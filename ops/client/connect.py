"""The Python client of a sidecar: the interface of a Session, with the stores in the sidecar's process.

    client = connect("./state/board/run", stores=[KeyValueStore("aircraft", serde.string, serde.json)], partitions=2)
    client.assign(active=[0]); client.wait_ready(30)
    task = client.task(0); task.store("aircraft").put(...); task.commit(source_offsets={("flights", 0): 4712})

Rules of this file: no dependency but the standard library; control over HTTP, data over RESP. A thread of its own
renews the lease. Writes that the RESP session lost raise Fenced: take the task again, read its source offsets.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from standfast.ops.client.client import error_in
from standfast.ops.client.connect_stores import remote_store
from standfast.ops.client.connect_wire import Broken, Wire
from standfast.ops.client.endpoint import TlsFiles, endpoint_at
from standfast.ops.shared.control_stores import shape_of
from standfast.ops.shared.serve_files import read_info
from standfast.store.arguments import checked, checked_call, is_whole, list_problems, path_problems, refuse
from standfast.store.clock import SystemClock
from standfast.store.closing import Closing
from standfast.store.errors import (
    BadConfig,
    Closed,
    CommitUnknown,
    Fenced,
    InvalidRequest,
    NotReady,
    StandfastError,
    Unavailable,
    UnknownStore,
)
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.process.interrupts import Flag
from standfast.store.specs import StoreSpec

TIMEOUT_S = 120.0  # above WAIT_MS: the server answers a long wait by itself
WAIT_MS = 20_000
PROTOCOL = 1
Offsets = Mapping[tuple[str, int], int]


@checked_call(BadConfig, exact=True)
def connect(
    run_dir: str | Path,
    *,
    stores: Sequence[StoreSpec],
    partitions: int | None = None,
    token: str | None = None,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    server_name: str | None = None,
) -> SidecarClient:
    """Connect to the sidecar of a run directory and declare its stores.

    For an HTTP server with TLS: `ca` are the authorities of its certificate (default: the machine's), `server_name` is
    the name in the certificate if that is not the host of the address; `certificate` and `key` are the client's, for a
    server that asks for one. Raises Unavailable if no sidecar runs there, InvalidRequest for stores that differ from
    their declaration, BadConfig for files that cannot be used.
    """
    files = {"ca": ca, "certificate": certificate, "key": key}
    problems = path_problems("run_dir", run_dir)
    problems += list_problems("stores", stores, StoreSpec, "[standfast.KeyValueStore(...)]")
    problems += [one for name, path in files.items() if path is not None for one in path_problems(name, path)]
    if partitions is not None and not is_whole(partitions, 1):
        problems.append(f"partitions must be a whole number of at least 1, or left out, not {partitions!r:.100}")
    for name, text in (("token", token), ("server_name", server_name)):
        if text is not None and not isinstance(text, str):
            problems.append(f"{name} must be text, not {type(text).__name__}")
    refuse(problems)
    authorities, ours, private = (None if one is None else Path(one) for one in (ca, certificate, key))
    tls = TlsFiles(authorities, ours, private, server_name)
    return SidecarClient(Path(run_dir), stores, partitions, token, tls)


@checked(InvalidRequest)
class SidecarTask:
    """One active task, over a connection of its own. Used by one thread at a time, as an embedded task is."""

    def __init__(
        self, partition: int, epoch: int, path: Path, stores: Mapping[str, StoreSpec], token: str | None
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        hello: list[list[bytes | str | int]] = [["SELECT", partition]]
        if token is not None:
            hello.insert(0, ["AUTH", token])  # before any other command: without a login a connection may do little
        self._wire = Wire(path, hello)
        self._stores = {name: remote_store(spec, self._wire) for name, spec in stores.items()}
        # Above the numbers of an earlier client in the same epoch, since a number that goes back is refused.
        self._sequence = SystemClock().wall_ms()

    def store(self, name: str) -> Any:
        """A store, with the methods of its kind's embedded class."""
        try:
            return self._stores[name]
        except KeyError:
            known = few(sorted(self._stores)) or "none"
            raise UnknownStore(f"task 0_{self.partition} has no store {name!r}: it declares {known}") from None

    def source_offsets(self) -> dict[tuple[str, int], int]:
        """The source offsets to continue at: start reading there, since this call discards uncommitted changes."""
        flat = self._wire.call("SF.OFFSETS")
        return {(topic.decode(), int(number)): int(at) for topic, number, at in zip(*[iter(flat)] * 3, strict=True)}

    def set_time(self, stream_time_ms: int) -> int:
        """Set the timestamp of the current record: the default timestamp of writes, and the task's stream time."""
        return int(self._wire.call("SF.TIME", stream_time_ms))

    def commit(
        self,
        source_offsets: Offsets | None = None,
        *,
        checkpoint: bool = False,
        member: tuple[int, str] | None = None,
    ) -> None:
        """Make everything since the last commit durable, with the source offsets, as one cut.

        Its number and epoch make it repeatable: if the connection breaks before the answer, the commit is sent once
        more, which commits nothing that the first did not. CommitUnknown if the second answer does not settle it, or
        the sidecar does not know itself: call `source_offsets` before sending anything again. DiskFull: nothing was
        committed, and uncommitted changes stay. `member` (generation, member id) is the consumer that read the records:
        the log refuses its offsets once the group has moved on. Raises Fenced then, and where earlier writes were lost.
        """
        self._sequence += 1
        arguments: list[bytes | str | int] = ["SF.COMMIT", "SEQ", self._sequence, "EPOCH", self.epoch]
        if checkpoint:
            arguments.append("CHECKPOINT")
        if member is not None:
            arguments += ["GEN", member[0], "MEMBER", member[1]]
        if source_offsets:
            arguments.append("OFFSETS")
            for (topic, partition), offset in source_offsets.items():
                arguments += [topic, partition, offset]
        try:
            self._wire.call(*arguments)
        except Broken as lost:
            # Only after a lost connection: a commit that was answered, also as UNKNOWN, is not sent again unasked.
            try:
                self._wire.call(*arguments)
            except StandfastError as error:
                raise CommitUnknown(
                    f"task 0_{self.partition}: the connection ended before the answer to this commit, and its second "
                    f"attempt was refused ({type(error).__name__}), so the commit may have happened or not: call "
                    f"source_offsets() before you send anything again ({lost})"
                ) from error

    def close(self) -> None:
        """Close the connection, which discards uncommitted changes."""
        self._wire.close()


@checked(InvalidRequest)
class SidecarClient(Closing):
    """A sidecar as a Session: assigns tasks, waits for them and gives them out. Made by `connect`."""

    def __init__(
        self,
        run_dir: Path,
        stores: Sequence[StoreSpec],
        partitions: int | None,
        token: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        info = read_info(run_dir)
        # Before any call: another protocol may mean other things by the same commands.
        if info["protocol"] != PROTOCOL:
            raise InvalidRequest(f"the sidecar speaks protocol {info['protocol']}, this client {PROTOCOL}: update one")
        self.app: str = info["app"]
        self._token = token if token is not None else info.get("token")
        self._endpoint = endpoint_at(info["http"], tls)
        self._resp = Path(info["resp_socket"])
        self._specs = {spec.name: spec for spec in stores}
        self._tasks: dict[int, SidecarTask] = {}
        self._lock = threading.Lock()
        self._closed = Flag()
        self._beats: threading.Thread | None = None
        self._generation = -1
        shapes = [shape_of(spec) for spec in stores]
        body: dict[str, Any] = {"stores": shapes}
        if partitions is not None:
            body["partitions"] = partitions
        self.ask("PUT", "/v1/stores", body)

    def assign(self, active: Iterable[int] = (), standby: Iterable[int] = (), *, generation: int | None = None) -> None:
        """Make exactly these the tasks of the sidecar. `generation` defaults to the sidecar's plus one."""
        if generation is None:
            generation = int(self.ask("GET", "/v1/assignment")["generation"]) + 1
        tasks: list[dict[str, Any]] = [{"partition": one, "role": "active"} for one in sorted(set(active))]
        tasks += [{"partition": one, "role": "standby"} for one in sorted(set(standby))]
        answer = self.ask("PUT", "/v1/assignment", {"generation": generation, "tasks": tasks})
        self._generation = generation
        # A new generation fences every connection and discards its uncommitted changes.
        self._forget_tasks()
        if answer["lease_ms"] is not None and self._beats is None:
            # At a third of the lease, so that two heartbeats may be lost. A daemon: the lease of a program that ended
            # without `close` must run out.
            self._beats = threading.Thread(
                target=self._beat, args=(answer["lease_ms"] / 3_000,), name="standfast-heartbeat", daemon=True
            )
            self._beats.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until the restore gate is open; NotReady names the tasks that are missing and their progress.

        Raises Fenced if the lease ended meanwhile, which closes the tasks, or another instance took one of them over.
        """
        left_ms = None if timeout_s is None else int(timeout_s * 1_000)
        while True:
            # In pieces, because the server bounds the wait of one request (`limits.wait_max`).
            wait_ms = WAIT_MS if left_ms is None else min(left_ms, WAIT_MS)
            answer = self.ask("GET", f"/v1/ready?wait={wait_ms}")
            if answer["ready"]:
                return
            # Waiting would not end: after a lease's end or a take-over, tasks open only by a new assignment.
            if answer.get("idle"):
                raise Fenced(f"{answer['idle']}, and its tasks are closed: assign them under a larger generation")
            if answer.get("fenced"):
                raise Fenced(few((f"task 0_{number}: {why}" for number, why in answer["fenced"].items()), "; "))
            if left_ms is not None:
                left_ms -= wait_ms
                if left_ms <= 0:
                    raise NotReady(f"the restore gate is shut after {timeout_s} s: {_missing(answer)}")

    @property
    def ready(self) -> bool:
        """Whether the restore gate is open."""
        return bool(self.ask("GET", "/v1/ready")["ready"])

    def task(self, partition: int) -> SidecarTask:
        """The active task of a partition. Raises NotReady while it restores, InvalidRequest if it is not held here."""
        with self._lock:
            task = self._tasks.get(partition)
            if task is None:
                found = self.ask("GET", "/v1/assignment")["tasks"]
                epoch = next((one["epoch"] for one in found if one["partition"] == partition), 0)
                made = SidecarTask(partition, epoch, self._resp, self._specs, self._token)
                try:
                    # Raises the error of the task's state, and makes this connection one that may commit offsets.
                    made.source_offsets()
                except StandfastError:
                    made.close()
                    raise
                task = self._tasks[partition] = made
            return task

    def status(self) -> dict[str, Any]:
        """The status document."""
        return self.ask("GET", "/v1/status")

    def close(self) -> None:
        """Disconnect; the tasks stay assigned until their lease ends or the next assignment. Twice is fine."""
        self._closed.set()  # first, so that no heartbeat renews a lease that the caller has given up
        self._forget_tasks()
        if self._beats is not None:
            self._beats.join()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One call of the HTTP API; returns its document. Raises the error of the answer."""
        if self._closed.is_set():
            raise Closed(f"the client of application {self.app!r} is closed")
        # One connection per call: HTTPConnection takes one thread, and heartbeats come from another.
        connection = self._endpoint.connection(TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            status, document = response.status, json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(
                f"the sidecar at {self._endpoint.where} does not answer: {self._endpoint.failed(error)}"
            ) from error
        finally:
            connection.close()
        if status != 200:
            raise error_in(status, document)
        found: dict[str, Any] = document
        return found

    def _forget_tasks(self) -> None:
        with self._lock:
            tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.close()

    def _beat(self, interval_s: float) -> None:
        while not self._closed.wait(interval_s):
            try:
                self.ask("POST", "/v1/heartbeat", {"generation": self._generation})
            except Closed:
                return
            except Exception as error:  # noqa: BLE001  the next call on a task or of `wait_ready` raises it
                logger.warning("heartbeat to the sidecar failed: %s", error, extra=as_event("heartbeat_failed"))


def _missing(answer: Mapping[str, Any]) -> str:
    return "; ".join(
        f"task 0_{one['partition']}: {one['state']} at {one['position']} of {one['end']}" for one in answer["pending"]
    )
