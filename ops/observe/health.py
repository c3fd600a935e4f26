"""Health of an instance: the answers of /startupz, /livez and /readyz; a sidecar's, from one set of facts.

    startupz   configuration valid, locks held, sockets bound        clients may call; never waits for log or restore
    livez      loop and worker were heard within 10 s, control thread within 5 min, no fatal error    asks no one else
    readyz     no active task restoring, failed, corrupt or taken over; lease not over; not draining; disk above its
               floor; the log takes commits       the application may process

A standby's lag counts as degraded and never makes the sidecar unready. Without an assignment it is ready.

    [+]restored ok
    [-]restored: 3 tasks, 41 %, 38 s

Rules of this file: pure; facts in, checks out. Text for people and probes, JSON for clients that accept it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from standfast.ops.observe.verdict import duration

HEARTBEAT_MS_MAX = 10_000
CONTROL_MS_MAX = 300_000  # opening many tasks over a slow log is one job
SCHEMA = "standfast.health/1"


@dataclass(frozen=True, slots=True)
class RestoringHealth:
    """An active task that is still restoring. `fraction` of its records done; `seconds_left` None: unknown."""

    partition: int
    state: str
    reason: str = ""
    position: int = 0
    end: int = 0
    remaining: int = 0
    fraction: float = 0.0
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """The facts that health is judged by. Ages in milliseconds."""

    locked: bool = True
    bound: bool = True
    loop_age_ms: int = 0
    worker_age_ms: int | None = None  # None: there is no worker
    control_age_ms: int = 0  # since the last round of the control thread
    fatal: str = ""
    draining: bool = False
    idle: str = ""  # the generation and age of a lease's end, if that closed tasks
    pending: Sequence[RestoringHealth] = ()
    failed: Sequence[str] = ()
    taken_over: Sequence[str] = ()  # tasks that another instance took
    disk_free_bytes: int | None = None
    disk_floor_bytes: int = 0
    disk_full: str = ""  # reason for which writes are refused and restores wait
    standbys_behind: Sequence[str] = ()
    log_error: str = ""
    log_trouble: str = ""  # reason for which the log cannot be written or read now, with the process that holds it


@dataclass(frozen=True, slots=True)
class Check:
    """One line of an answer. `degraded`: worth a look, but no reason to take the instance out of service."""

    name: str
    ok: bool
    text: str = ""
    degraded: bool = False
    lines: tuple[str, ...] = ()  # reasons that the JSON lists one by one

    def line(self) -> str:
        """The check in the form of the Kubernetes API server and etcd."""
        sign = "[-]" if not self.ok else "[!]" if self.degraded else "[+]"
        if self.ok and not self.degraded:
            return f"{sign}{self.name} ok"
        return f"{sign}{self.name}: {self.text}"


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to one of the three questions."""

    what: str
    checks: tuple[Check, ...]
    excluded: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether all checks pass, apart from excluded ones."""
        return all(check.ok for check in self.checks if check.name not in self.excluded)

    def text(self, *, verbose: bool) -> str:
        """One line per check (only failed and degraded ones unless `verbose`), then the verdict."""
        lines = [
            f"[+]{check.name} excluded: ok" if check.name in self.excluded else check.line()
            for check in self.checks
            if verbose or not check.ok or check.degraded
        ]
        lines.append(f"{self.what} check {'passed' if self.ok else 'failed'}")
        return "\n".join(lines) + "\n"  # the last line is the verdict, as etcd and the Kubernetes API server write it

    def document(self) -> dict[str, Any]:
        """The answer as JSON."""
        bad = [check for check in self.checks if not check.ok and check.name not in self.excluded]
        return {
            "schema": SCHEMA,
            "check": self.what,
            "ok": self.ok,
            "reasons": [line for check in bad for line in check.lines or (f"{check.name}: {check.text}",)],
            "degraded": [f"{check.name}: {check.text}" for check in self.checks if check.degraded],
            "checks": [
                {"name": check.name, "ok": check.ok, "text": check.text, "excluded": check.name in self.excluded}
                for check in self.checks
            ],
        }


def startup(facts: HealthFacts, exclude: Iterable[str] = ()) -> Health:
    """Whether clients may call the instance."""
    # Kubernetes starts the application only after this probe of a native sidecar, and the application is the one that
    # assigns tasks: waiting here for the log or a restore would be a deadlock.
    checks = (
        Check("config", ok=True),
        Check("locks", facts.locked, "the locks of run and state directory are not held yet"),
        Check("sockets", facts.bound, "the sockets are not bound yet"),
    )
    return Health("startup", checks, tuple(exclude))


def live(facts: HealthFacts, exclude: Iterable[str] = ()) -> Health:
    """Whether the instance makes progress; if not, it must be started again."""
    # Neither log nor disk is asked: a restart would mend neither, and a stale mount would hold the event loop up.
    worker_ms = facts.worker_age_ms
    checks = (
        Check(
            "loop",
            facts.loop_age_ms < HEARTBEAT_MS_MAX,
            f"the last heartbeat of the event loop was {_ago(facts.loop_age_ms)}",
        ),
        Check(
            "worker",
            worker_ms is None or worker_ms < HEARTBEAT_MS_MAX,
            f"the last heartbeat of the standby worker was {_ago(worker_ms)}",
        ),
        Check(
            "control",
            facts.control_age_ms < CONTROL_MS_MAX,
            f"the last round of the control thread was {_ago(facts.control_age_ms)}",
        ),
        Check("fatal", not facts.fatal, facts.fatal),
    )
    return Health("live", checks, tuple(exclude))


def ready(facts: HealthFacts, exclude: Iterable[str] = ()) -> Health:
    """Whether the application may process."""
    free, floor = facts.disk_free_bytes, facts.disk_floor_bytes
    # Ready without the tasks that another instance took would have the application process nothing, in good health.
    wrong = [*facts.failed, *facts.taken_over]
    checks = (
        Check("restored", not facts.pending, _restored_text(facts.pending)),
        Check("tasks", not wrong, "; ".join(wrong[:5])),
        Check("fatal", not facts.fatal, facts.fatal),
        Check("lease", not facts.idle, f"IDLE: {facts.idle}"),
        Check("draining", not facts.draining, "the sidecar is stopping"),
        Check(
            "disk",
            not facts.disk_full and (free is None or free >= floor),
            facts.disk_full or f"{free} bytes are free, the floor is {floor}",
        ),
        # Degraded only: an instance whose standby lags can process, and taking it out of service would help none.
        Check("standbys", True, "; ".join(facts.standbys_behind[:5]), degraded=bool(facts.standbys_behind)),
        Check("log", not facts.log_trouble, facts.log_trouble or facts.log_error, degraded=_log_degraded(facts)),
    )
    return Health("ready", checks, tuple(exclude))


def of_session(what: str, wrong: Sequence[str], exclude: Iterable[str] = ()) -> Health:
    """Health of a session in its own process; each line of `wrong` is a reason against it."""
    check = Check("session", not wrong, "; ".join(wrong[:5]), lines=tuple(wrong))
    return Health(what, (check,), tuple(exclude))


def _ago(age_ms: int | None) -> str:
    return "unknown" if age_ms is None else f"{duration(age_ms / 1_000)} ago"


def _log_degraded(facts: HealthFacts) -> bool:
    return bool(facts.log_error) and not facts.log_trouble


def _restored_text(pending: Sequence[RestoringHealth]) -> str:
    """`3 tasks, 41 %, 38 s`; the time of the slowest, left out while one is not known."""
    if not pending:
        return ""
    # Weighted by records, so that a small task that is nearly done does not hide a large one.
    total = sum(one.remaining / (1 - one.fraction) if one.fraction < 1 else 0 for one in pending)
    left = sum(one.remaining for one in pending)
    parts = [f"{len(pending)} task{'s' if len(pending) > 1 else ''}"]
    if total > 0:
        parts.append(f"{100 * (1 - left / total):.0f} %")
    times = [one.seconds_left for one in pending]
    if all(one is not None for one in times):
        parts.append(f"{max(one for one in times if one is not None):.0f} s")
    return ", ".join(parts)
