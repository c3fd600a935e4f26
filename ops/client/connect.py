"""The Python client of a sidecar: the face of a Session, with the stores in the process beside.

    client = connect("./state/board/run", stores=[KeyValueStore("aircraft", serde.string, serde.json)], partitions=2)
    client.assign(active=[0]); client.wait_ready(30)
    task = client.task(0); task.store("aircraft").put(...); task.commit(source_offsets={("flights", 0): 4712})

Rules of this file: no dependency but the standard library; control over HTTP, data over RESP. A thread of its own
renews the lease. What the session of the door lost is told as Fenced: take the task anew, read its source offsets.
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
from standfast.ops.client.door import TlsFiles, door_at
from standfast.ops.shared.control_stores import shape_of
from standfast.ops.shared.serve_files import read_info
from standfast.store.arguments import is_whole, list_problems, path_problems, refuse
from standfast.store.clock import SystemClock
from standfast.store.closing import Closing
from standfast.store.errors import (
    Closed,
    CommitUnknown,
    Fenced,
    InvalidRequest,
    NotReady,
    StandfastError,
    Unavailable,
    UnknownStore,
)
from standfast.store.log import logger
from standfast.store.specs import StoreSpec

TIMEOUT_S = 120.0
WAIT_MS = 20_000
PROTOCOL = 1
Offsets = Mapping[tuple[str, int], int]


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

    Where its HTTP door has TLS: `ca` are the authorities of its certificate (left out: the machine's), `server_name` is
    the name in it if that is not the host of the address; `certificate` and `key` are ours, where it asks for one.
    Raises Unavailable if none runs there, InvalidRequest for stores that differ from what is declared, BadConfig for
    files that cannot be used.
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


class SidecarTask:
    """One active task, over a connection of its own. Used by one thread at a time, as an embedded one is."""

    def __init__(
        self, partition: int, epoch: int, path: Path, stores: Mapping[str, StoreSpec], token: str | None
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        hello: list[list[bytes | str | int]] = [["SELECT", partition]]
        if token is not None:
            hello.insert(0, ["AUTH", token])
        self._wire = Wire(path, hello)
        self._stores = {name: remote_store(spec, self._wire) for name, spec in stores.items()}
        self._sequence = SystemClock().wall_ms()  # above those of a client before this one in the same epoch

    def store(self, name: str) -> Any:
        """A store, with the methods of the embedded class of its kind."""
        try:
            return self._stores[name]
        except KeyError:
            known = ", ".join(sorted(self._stores)) or "none"
            raise UnknownStore(f"task 0_{self.partition} has no store {name!r}: it declares {known}") from None

    def source_offsets(self) -> dict[tuple[str, int], int]:
        """Where the application must read on: begin there, since what is uncommitted is discarded."""
        flat = self._wire.call("SF.OFFSETS")
        return {(topic.decode(), int(number)): int(at) for topic, number, at in zip(*[iter(flat)] * 3, strict=True)}

    def set_time(self, stream_time_ms: int) -> int:
        """Tell the timestamp of the record in hand: that of writes which name none, and the task's stream time."""
        return int(self._wire.call("SF.TIME", stream_time_ms))

    def commit(
        self,
        source_offsets: Offsets | None = None,
        *,
        checkpoint: bool = False,
        member: tuple[int, str] | None = None,
    ) -> None:
        """Make everything since the last commit durable, with the source offsets, as one cut.

        Its number and epoch make it repeatable: if the connection breaks before the answer it is asked for once more,
        which commits nothing that the first did not. CommitUnknown if that does not tell either, or the sidecar does
        not know itself: ask `source_offsets` before anything is sent again. DiskFull: nothing was committed, and what
        is uncommitted stays. `member` (generation, member id) is the consumer that read the
        records: the log refuses its offsets when it is that no more. Raises Fenced then, and where writes before it
        were lost.
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
            try:
                self._wire.call(*arguments)
            except StandfastError as error:
                raise CommitUnknown(
                    f"task 0_{self.partition}: the connection ended before the answer to this commit, and the second "
                    f"question was refused ({type(error).__name__}), so it may have happened or not: ask "
                    f"source_offsets() before anything is sent again ({lost})"
                ) from error

    def close(self) -> None:
        """Let go of the connection: what is uncommitted is discarded."""
        self._wire.close()


class SidecarClient(Closing):
    """See the head of this file."""

    def __init__(
        self,
        run_dir: Path,
        stores: Sequence[StoreSpec],
        partitions: int | None,
        token: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        info = read_info(run_dir)
        if info["protocol"] != PROTOCOL:
            raise InvalidRequest(f"the sidecar speaks protocol {info['protocol']}, this client {PROTOCOL}: update one")
        self.app: str = info["app"]
        self._token = token if token is not None else info.get("token")
        self._door = door_at(info["http"], tls)
        self._resp = Path(info["resp_socket"])
        self._specs = {spec.name: spec for spec in stores}
        self._tasks: dict[int, SidecarTask] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._beats: threading.Thread | None = None
        self._generation = -1
        shapes = [shape_of(spec) for spec in stores]
        body: dict[str, Any] = {"stores": shapes}
        if partitions is not None:
            body["partitions"] = partitions
        self.ask("PUT", "/v1/stores", body)

    def assign(self, active: Iterable[int] = (), standby: Iterable[int] = (), *, generation: int | None = None) -> None:
        """Make exactly these the tasks of the sidecar. Without a generation the next one is taken."""
        if generation is None:
            generation = int(self.ask("GET", "/v1/assignment")["generation"]) + 1
        tasks: list[dict[str, Any]] = [{"partition": one, "role": "active"} for one in sorted(set(active))]
        tasks += [{"partition": one, "role": "standby"} for one in sorted(set(standby))]
        answer = self.ask("PUT", "/v1/assignment", {"generation": generation, "tasks": tasks})
        self._generation = generation
        self._forget_tasks()
        if answer["lease_ms"] is not None and self._beats is None:
            self._beats = threading.Thread(
                target=self._beat, args=(answer["lease_ms"] / 3_000,), name="standfast-heartbeat", daemon=True
            )
            self._beats.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until the restore gate is open; NotReady says who is missing and how far it is.

        Fenced if the lease ended meanwhile, which closes the tasks, or another instance took one of them over.
        """
        left_ms = None if timeout_s is None else int(timeout_s * 1_000)
        while True:
            wait_ms = WAIT_MS if left_ms is None else min(left_ms, WAIT_MS)
            answer = self.ask("GET", f"/v1/ready?wait={wait_ms}")
            if answer["ready"]:
                return
            if answer.get("idle"):
                raise Fenced(f"{answer['idle']}, and its tasks are closed: assign them under a larger generation")
            if answer.get("fenced"):
                raise Fenced("; ".join(f"task 0_{number}: {why}" for number, why in answer["fenced"].items()))
            if left_ms is not None:
                left_ms -= wait_ms
                if left_ms <= 0:
                    raise NotReady(f"the restore gate is shut after {timeout_s} s: {_missing(answer)}")

    @property
    def ready(self) -> bool:
        """Whether the restore gate is open."""
        return bool(self.ask("GET", "/v1/ready")["ready"])

    def task(self, partition: int) -> SidecarTask:
        """The active task of a partition. Raises NotReady while it restores, InvalidRequest if it is not held."""
        with self._lock:
            task = self._tasks.get(partition)
            if task is None:
                found = self.ask("GET", "/v1/assignment")["tasks"]
                epoch = next((one["epoch"] for one in found if one["partition"] == partition), 0)
                made = SidecarTask(partition, epoch, self._resp, self._specs, self._token)
                try:
                    made.source_offsets()  # raises what the task's state calls for
                except StandfastError:
                    made.close()
                    raise
                task = self._tasks[partition] = made
            return task

    def status(self) -> dict[str, Any]:
        """The status document."""
        return self.ask("GET", "/v1/status")

    def close(self) -> None:
        """Let go; the tasks stay assigned until their lease ends or somebody assigns anew. Twice is fine."""
        self._closed.set()
        self._forget_tasks()
        if self._beats is not None:
            self._beats.join()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One call of the control door; its document. Raises the error that it answers with."""
        if self._closed.is_set():
            raise Closed(f"the client of application {self.app!r} is closed")
        connection = self._door.connection(TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            status, document = response.status, json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(
                f"the sidecar at {self._door.where} does not answer: {self._door.failed(error)}"
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
            except Exception as error:  # noqa: BLE001  told by the next call that matters
                logger.warning("heartbeat to the sidecar failed: %s", error)


def _missing(answer: Mapping[str, Any]) -> str:
    return "; ".join(
        f"task 0_{one['partition']}: {one['state']} at {one['position']} of {one['end']}" for one in answer["pending"]
    )
