"""What the demo found: one frozen value, its JSON form, and whether it is good.

Rules of this file: plain data; times in milliseconds as named, JSON names are a contract ("schema").
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from standfast.ops.demo.compare import BoardComparison
from standfast.ops.demo.finals import FinalsComparison

SCHEMA = "standfast.demo/2"


@dataclass(frozen=True, slots=True)
class Fed:
    """The data: rows of the file, what was left out of it, and what was fed."""

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

    On somebody's cluster all names begin with `prefix`, `topics` are those that the demo makes there, and `removed`
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
        """Whether others use it, too."""
        return bool(self.topics)


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The kill and what came after it. Times are counted from the SIGKILL."""

    processed_by_a: int
    committed_by_a: int
    waiting: int
    lease_ms: int
    to_promotion_ms: int
    to_running_ms: int
    to_first_record_ms: int
    tasks: int
    standby_replayed: int
    tail_replayed: int
    gate_waits: int
    gate_wait_ms: int
    processed_by_b: int


@dataclass(frozen=True, slots=True)
class Board:
    """What windows and punctuation did.

    late_windows      updates that either process refused because their window was closed
    late_dropped      rows that either process refused because they were past their store's retention
    segments_expired  by B, as standby and as active
    finals_by_a       final results that were in the log when A was killed
    live_records      what a reader of the live board was given
    handed_over       records that a task of B got from its neighbour, without reading the log
    """

    late_windows: int
    late_dropped: int
    segments_expired: int
    finals_by_a: int
    live_records: int
    handed_over: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The killed process after it came back: changelog records it had missed, and whether its stores are equal."""

    standby_replayed: int
    equal: bool


@dataclass(frozen=True, slots=True)
class Offsets:
    """Committed source offsets against records of the file, by partition."""

    committed: dict[int, int]
    expected: dict[int, int]

    @property
    def equal(self) -> bool:
        """Nothing lost, nothing left over."""
        return self.committed == self.expected


@dataclass(frozen=True, slots=True)
class Verified:
    """Stores against their changelogs: how many (stores times partitions), and how many were not found equal."""

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
    """Where a running process served its metrics, and how many samples one answer had."""

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
    """Everything the card shows. `digests` is of the stores that took over, by store.

    `spark` None: it was left out, and `spark_left_out` says what turns it on.
    """

    fed: Fed
    takeover: TakeOver
    board: Board
    returned: Returned
    comparison: BoardComparison
    finals: FinalsComparison
    offsets: Offsets
    verified: Verified
    cold: ColdRestore
    metrics: Metrics
    duration_ms: int
    kept_in: str | None
    log: LogUsed
    spark: SparkRun | None = None
    spark_left_out: str = ""

    @property
    def digests(self) -> dict[str, str]:
        """Digest by store, as text."""
        return {one.store: one.digest for one in self.comparison.stores}

    @property
    def problems(self) -> list[str]:
        """Every way in which the result is not what it must be; empty if all is well."""
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
            found.append("the stores of A, back as a standby, have other digests than those of B")
        return found

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        head: dict[str, Any] = {"schema": SCHEMA, "ok": not self.problems, "problems": self.problems}
        made: dict[str, Any] = head | asdict(self) | {"digests": self.digests, "left_out": left_out(self)}
        del made["spark_left_out"]
        made["comparison"]["differences"] = self.comparison.differences
        made["comparison"]["stores"] = {one.store: asdict(one) for one in self.comparison.stores}
        made["offsets"]["equal"] = self.offsets.equal
        made["verify"] = made.pop("verified")
        made["cold_restore"] = made.pop("cold") | {"records_per_s": self.cold.records_per_s}
        return made


def left_out(result: DemoResult) -> list[str]:
    """What this run did not show, with what turns it on."""
    left = ["the other eleven months of 2013: --data full"] if result.fed.data == "sample" else []
    if result.log.kind == "embedded":
        left.append("the same on Kafka: --log kafka")
    if result.spark is None:
        left.append(f"all stores rebuilt and verified on Spark: {result.spark_left_out}")
    return left


def removal_line(address: str, prefix: str) -> str:
    """What lists, and with --yes removes, all that a demo with this prefix made."""
    return f"standfast demo --log {quote(address)} --prefix {prefix} --remove"
