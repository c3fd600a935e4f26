"""The result of the demo: one frozen value, its JSON form, and whether it is good.

Rules of this file: plain data; times in milliseconds as named, JSON names are a contract ("schema").
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from standfast.ops.demo.compare import BoardComparison, FinalsComparison

SCHEMA = "standfast.demo/3"


@dataclass(frozen=True, slots=True)
class Fed:
    """The data: rows of the file, those skipped, and those fed."""

    data: str
    source: str
    rows: int
    cancelled: int
    without_aircraft: int
    records: int
    out_of_order: int
    partitions: int
    lead_max: int
    grace_ms: int
    retention_ms: int
    guarantee: str = "exactly_once"


@dataclass(frozen=True, slots=True)
class LogUsed:
    """The log. `kind` is embedded or kafka; a broker that the demo started has its version, pid and time to start.

    On a shared cluster all names begin with `prefix`, `topics` are those that the demo makes there, and `removed`
    says whether they were deleted at the end.
    """

    kind: str
    address: str
    prefix: str = ""
    kafka: str | None = None
    pid: int | None = None
    started_ms: int | None = None
    topics: tuple[str, ...] = ()
    removed: bool = False

    @property
    def shared(self) -> bool:
        """Whether the cluster is shared with other applications."""
        return bool(self.topics)


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """The tasks that C took by warm hand-overs, and the time from its start to the last of them.

    `longest_pause_ms`: of one task, from its close at the old owner to its start at C.
    """

    tasks: int
    took_ms: int
    longest_pause_ms: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The kill of A and the take-over of its tasks. Flights are those of all processes; times count from the SIGKILL.

    to_restoring_ms     until the first of these tasks was opened: the lease had run out, and a leader had decided
    to_running_ms       until the last of them ran
    to_first_record_ms  until one of them processed its first flight
    standby_replayed    changes that standbys had replayed before the kill
    tail_replayed       changes that these tasks had to read behind the gate
    """

    tasks: int
    processed: int
    committed: int
    waiting: int
    lease_ms: int
    to_restoring_ms: int
    to_running_ms: int
    to_first_record_ms: int
    standby_replayed: int
    tail_replayed: int
    gate_waits: int
    gate_wait_ms: int


@dataclass(frozen=True, slots=True)
class Board:
    """Effects of windows and punctuation.

    late_windows      updates that a process refused because their window was closed
    late_dropped      rows that a process refused because they were past their store's retention
    segments_expired  by B, as standby and as active, since it opened each task last
    finals_before     final results that were in the log when A was killed
    live_records      records that a reader of the live board got
    handed_over       records that a task of B got from its neighbour, without reading the log
    """

    late_windows: int
    late_dropped: int
    segments_expired: int
    finals_before: int
    live_records: int
    handed_over: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The killed process after it came back: changelog records it had missed, tasks that it got, and whether its
    stores are equal."""

    standby_replayed: int
    tasks: int
    equal: bool


@dataclass(frozen=True, slots=True)
class Offsets:
    """Committed source offsets against records of the file, by partition."""

    committed: dict[int, int]
    expected: dict[int, int]

    @property
    def equal(self) -> bool:
        """Whether no record is lost and none is left over."""
        return self.committed == self.expected


@dataclass(frozen=True, slots=True)
class Verified:
    """Stores against their changelogs: number of them (stores times partitions), and of those not found equal."""

    stores: int
    rows: int
    mismatches: int
    unequal: int


@dataclass(frozen=True, slots=True)
class ColdRestore:
    """The same state restored into an empty directory."""

    records: int
    duration_ms: int
    equal: bool

    @property
    def records_per_s(self) -> int:
        """Changelog records replayed a second, opening included."""
        return round(self.records * 1_000 / max(self.duration_ms, 1))


@dataclass(frozen=True, slots=True)
class Metrics:
    """Address of a running process's metrics, and the number of samples of one answer."""

    address: str
    samples: int


@dataclass(frozen=True, slots=True)
class SparkRun:
    """One run of Spark over all stores of B: changelogs inspected, stores rebuilt from them and verified.

    `same_digest` of `rebuilt` partitions of stores have the digest of the live rows. `started_ms` until Spark was
    there, `elapsed_ms` from then on.
    """

    verdict: str
    version: str
    stores: int
    records: int
    rows: int
    differences: int
    rebuilt: int
    same_digest: int
    rebuilt_rows: int
    rebuilt_bytes: int
    started_ms: int
    elapsed_ms: int
    report: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All contents of the card. `digests` is of the stores of B, by store; `processed` are flights by process, those
    that A had not committed when it was killed twice.

    `spark` None: it was skipped, and `spark_left_out` says how to turn it on.
    """

    fed: Fed
    scale_out: ScaleOut
    takeover: TakeOver
    processed: dict[str, int]
    board: Board
    returned: Returned
    comparison: BoardComparison
    finals: FinalsComparison
    offsets: Offsets
    verified: Verified
    cold: ColdRestore
    metrics: Metrics
    duration_ms: int
    log: LogUsed
    kept_in: str | None = None
    spark: SparkRun | None = None
    spark_left_out: str = ""

    @property
    def digests(self) -> dict[str, str]:
        """Digest by store, as text."""
        return {one.store: one.digest for one in self.comparison.stores}

    @property
    def problems(self) -> list[str]:
        """Every deviation of the result from the expected one; empty if all is well."""
        found = [example for one in self.comparison.stores for example in one.examples]
        if self.comparison.differences:
            found.append(f"{self.comparison.differences} differences to the plain computation")
        found += self.finals.examples
        if self.finals.differences:
            found.append(
                f"{self.finals.differences} final results are not given once, in order and with the right values"
            )
        if self.board.late_windows or self.board.late_dropped:
            found.append(f"{self.board.late_windows + self.board.late_dropped} updates came too late for their window")
        if not self.offsets.equal:
            found.append(f"committed offsets {self.offsets.committed} are not the records fed {self.offsets.expected}")
        if self.verified.unequal or self.verified.mismatches:
            found.append(
                f"{self.verified.mismatches} rows differ between stores and changelogs; "
                f"{self.verified.unequal} of {self.verified.stores} stores were not found equal"
            )
        if not self.cold.equal:
            found.append("the cold restore has other digests than the live stores")
        if self.spark is not None and self.spark.verdict != "equal":
            found.append(f"the run of Spark ended {self.spark.verdict}: {self.spark.differences} rows differ")
        if self.spark is not None and self.spark.same_digest != self.spark.rebuilt:
            found.append("rows that Spark rebuilt have other digests than the live stores")
        if not self.returned.equal:
            found.append("the stores of A, which came back, have other digests than those of B")
        return found

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        head: dict[str, Any] = {"schema": SCHEMA, "ok": not self.problems, "problems": self.problems}
        made: dict[str, Any] = head | asdict(self) | {"digests": self.digests, "left_out": left_out(self)}
        # The document's names are a contract; those of the fields are free to change.
        del made["spark_left_out"]
        made["comparison"]["differences"] = self.comparison.differences
        made["comparison"]["stores"] = {one.store: asdict(one) for one in self.comparison.stores}
        made["offsets"]["equal"] = self.offsets.equal
        made["verify"] = made.pop("verified")
        made["cold_restore"] = made.pop("cold") | {"records_per_s": self.cold.records_per_s}
        return made


def left_out(result: DemoResult) -> list[str]:
    """Steps that this run skipped, each with the option that turns it on."""
    left = ["the other eleven months of 2013: --data full"] if result.fed.data == "sample" else []
    if result.log.kind == "embedded":
        left.append("the same on Kafka: --log kafka")
    if result.spark is None:
        left.append(f"all stores rebuilt and verified on Spark: {result.spark_left_out}")
    return left


def removal_line(address: str, prefix: str) -> str:
    """The command that lists, and with --yes removes, all topics of a demo with this prefix."""
    return f"standfast demo --log {quote(address)} --prefix {prefix} --remove"
