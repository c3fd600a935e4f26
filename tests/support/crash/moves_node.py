"""A sidecar that is killed and restarted, its assignments, and the check that it opens them in time.

    CrashedNode     start, kill, stop; control calls: a status outside REFUSED is a problem, as is no reply
                    from a live server
    Watch           from an assignment on: every active partition answers within OPEN_S of its own time

Rules of this file: used by the thread of `crash_moves.Moves`, and by its timers; problems go to `Known`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.crash.moves_load import ANSWER_S, Broken, Known, Refusal, Wire
from support.crash.moves_model import STORES
from support.crash.time_had import Beats, Patience
from support.serve import Sidecar

PARTITIONS = 4
OPEN_S = 5.0  # from an assignment, a kill of a worker or the start of a server to an open partition
STUCK_S = 90.0  # by the clock, on any machine
LEASE_MS = 8_000
REFUSED = (409, 429, 503)  # of control calls; any other status but 200 is a fault


@dataclass
class Plan:
    """Roles by partition: the active sidecar, and whether the other one stands by."""

    owner: dict[int, str | None]
    standby: dict[int, str | None]

    def of(self, name: str) -> tuple[list[int], list[int]]:
        """Active partitions and standbys of a sidecar."""
        active = [one for one, owner in self.owner.items() if owner == name]
        return active, [one for one, standby in self.standby.items() if standby == name]


class CrashedNode:
    """One sidecar, its lease, and its kills."""

    def __init__(self, sidecar: Sidecar, name: str, known: Known) -> None:
        self.sidecar = sidecar
        self.name = name
        self.known = known
        self.deaths = 0
        self.up = False
        self.generation = 0
        self.beating = True
        self.plan: Plan | None = None
        self._lock = threading.Lock()

    @property
    def resp(self) -> Path:
        return Path(self.sidecar.info["resp_socket"])

    @property
    def http(self) -> str:
        return str(self.sidecar.info["http"])

    def start(self) -> None:
        """Start it, and declare the stores."""
        self.sidecar.start(timeout_s=STUCK_S)
        self.up = True
        self.ask("PUT", "/v1/stores", {"partitions": PARTITIONS, "stores": STORES})

    def kill(self) -> bool:
        """SIGKILL the server; false if it was dead."""
        with self._lock:
            if not self.up:
                return False
            self.deaths += 1
            self.up = False
            self.sidecar.kill()
            return True

    def stop(self) -> None:
        """SIGTERM, and wait for a clean end."""
        with self._lock:
            self.deaths += 1
            self.up = False
        assert self.sidecar.stop(timeout_s=60) == 0, self.sidecar.told()

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return [one["pid"] for one in self.ask("GET", "/v1/status")["workers"] if one["pid"] is not None]

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """One control call. Raises Refusal for a documented refusal, OSError while the server is dead."""
        deaths = self.deaths
        where = urlsplit(self.http)
        connection = HTTPConnection(str(where.hostname), where.port, timeout=ANSWER_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode()
        except (OSError, HTTPException) as error:
            if self.up and self.deaths == deaths:
                self.known.problem(f"{self.name} lives, and {method} {path} failed: {type(error).__name__}: {error}")
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
        if status == 200:
            return json.loads(text) if text.startswith("{") else {}
        if status not in REFUSED or path == "/livez":
            self.known.problem(f"{self.name}: {method} {path} was answered {status} {text}")
        raise self.known.refused(f"control {path.partition('?')[0]}", str(status), text, frozenset(map(str, REFUSED)))

    def assign(self, plan: Plan, lease_ms: int = LEASE_MS) -> None:
        """Assign its part of a plan under the next generation; retried while it is refused."""
        self.plan = plan
        active, standby = plan.of(self.name)
        tasks = [{"partition": one, "role": "active"} for one in active]
        tasks += [{"partition": one, "role": "standby"} for one in standby]
        self.generation += 1
        body = {"generation": self.generation, "tasks": tasks, "lease_ms": lease_ms}
        end_s = time.monotonic() + STUCK_S
        while True:
            try:
                self.ask("PUT", "/v1/assignment", body)
                return
            except Refusal:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.02)

    def beat(self) -> None:
        """Renew the lease."""
        if self.up and self.beating and self.generation:
            with contextlib.suppress(ConnectionError, Refusal):
                self.ask("POST", "/v1/heartbeat", {"generation": self.generation})


class Watch(threading.Thread):
    """Looks at one sidecar from its assignment on, until every active partition is open, or it is killed."""

    def __init__(self, node: CrashedNode, beats: Beats) -> None:
        super().__init__(name=f"watch {node.name}", daemon=True)
        self._node = node
        self._beats = beats
        self._deaths = node.deaths
        self.lapsed = 0
        self.ended = ""
        self.took_s = (0.0, 0.0)  # by the clock, and of the processes' own time
        self.disturbed()

    def disturbed(self) -> None:
        """Start the time now: an assignment came, or a worker was killed. Raises ConnectionError if it is dead."""
        pids = [self._node.sidecar.pid, *self._node.workers()]
        self.patience = Patience(self._beats)
        self.patience.look(pids)

    def run(self) -> None:
        while not self.ended and not self._node.known.problems:
            try:
                self.ended = "open" if self._is_open(self.patience) else ""
            except Refusal:
                pass  # it closed between two looks
            except Broken:
                assert self._node.deaths > self._deaths
                self.ended = "killed"
                return
            self._judge(self.patience)

    def _judge(self, patience: Patience) -> None:
        self.took_s = patience.raw_s, patience.spent_s
        if patience.spent_s > OPEN_S or patience.raw_s > STUCK_S:
            node, found, self.ended = self._node, self.ended, "late"
            self._node.known.problem(
                f"{node.name} is {found or 'not open'} after {patience.raw_s:.1f} s, of which it had "
                f"{patience.spent_s:.1f}: {node.ask('GET', '/v1/ready')}\n{node.sidecar.told()}"
            )

    def _is_open(self, patience: Patience) -> bool:
        node = self._node
        patience.look([node.sidecar.pid, *node.workers()])
        ready = node.ask("GET", "/v1/ready?wait=50")
        assert node.plan is not None
        if ready["idle"] and node.beating:  # the machine kept us from renewing it
            self.lapsed += 1
            node.assign(node.plan)
            self.disturbed()
        if not ready["ready"]:
            return False
        active, _ = node.plan.of(node.name)
        found = [one["partition"] for one in ready["tasks"] if one["role"] == "active"]
        if found != active:
            node.known.problem(f"{node.name} has {found}, and not {active}: {ready}\n{node.sidecar.told()}")
        for partition in active:
            with contextlib.closing(Wire(node.known, "look", node, partition)) as wire:
                wire("SF.COUNT", "kv")
        return True
