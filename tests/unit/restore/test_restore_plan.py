"""The restore plan: every row of its table, one offset before, at and after each boundary.

Rules of this file: unless a case says otherwise, the log holds 10..100 of topic "id-1", compacts and deletes by age,
and the position is fresh. `HEADLESS` is the same log, only compacted: its head was removed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TopicPartition
from standfast.restore import plan as reasons
from standfast.restore.plan import (
    FromBeginning,
    LocalPosition,
    LogState,
    Plan,
    Refuse,
    ReinitialisePlan,
    Resume,
    UpToDate,
    plan_changelog,
)
from standfast.store.errors import InternalError

WHERE = TopicPartition("app-store-changelog", 3)
NOW_MS = 1_000_000
COMPACT, DELETE = frozenset({"compact"}), frozenset({"delete"})
LOG = LogState(WHERE, "id-1", 10, 100, COMPACT | DELETE, retention_ms=60_000, delete_retention_ms=10_000)
HEADLESS = replace(LOG, cleanup=COMPACT, retention_ms=-1)
WHOLE = replace(HEADLESS, begin=0)
EMPTY = replace(WHOLE, end=0)
HERE = LocalPosition(50, "id-1", at_ms=NOW_MS, rows=True)


def plan(local: LocalPosition | None, log: LogState, **accepts: bool) -> Plan:
    return plan_changelog(local, log, now_ms=NOW_MS, **accepts)


def at(position: int, **changes: object) -> LocalPosition:
    return replace(HERE, position=position, **changes)


CASES: list[tuple[LocalPosition | None, LogState, Plan]] = [
    (None, LOG, FromBeginning(WHERE, "no-local-state", 10, 100)),
    # a source topic that serves as changelog: reading ends at the committed offset
    (None, replace(LOG, limit=60), FromBeginning(WHERE, "no-local-state", 10, 60)),
    (None, replace(LOG, limit=0), FromBeginning(WHERE, "no-local-state", 10, 10)),
    (None, replace(LOG, limit=101), FromBeginning(WHERE, "no-local-state", 10, 100)),
    # An open transaction from 100 to 120: a restore waits for its processed records; they are not ahead of the log.
    (None, replace(LOG, limit=110, written=120), FromBeginning(WHERE, "no-local-state", 10, 110)),
    (None, replace(LOG, limit=130, written=120), FromBeginning(WHERE, "no-local-state", 10, 120)),
    (at(100), replace(LOG, limit=110, written=120), Resume(WHERE, "resume", 100, 110)),
    (at(110), replace(LOG, limit=110, written=120), UpToDate(WHERE, "up-to-date", 110, 110)),
    (at(121), replace(LOG, limit=110, written=120), ReinitialisePlan(WHERE, "position-ahead", 10, 110)),
    (at(59), replace(LOG, limit=60), Resume(WHERE, "resume", 59, 60)),
    (at(60), replace(LOG, limit=60), UpToDate(WHERE, "up-to-date", 60, 60)),
    (at(61), replace(LOG, limit=60), UpToDate(WHERE, "up-to-date", 61, 61)),
    (at(100), replace(LOG, limit=0), UpToDate(WHERE, "up-to-date", 100, 100)),
    (at(101), replace(LOG, limit=60), ReinitialisePlan(WHERE, "position-ahead", 10, 60)),
    (at(9), replace(LOG, limit=60), ReinitialisePlan(WHERE, "truncated", 10, 60)),
    (at(9), replace(LOG, limit=5), ReinitialisePlan(WHERE, "truncated", 10, 10)),
    (None, EMPTY, FromBeginning(WHERE, "no-local-state", 0, 0)),
    (None, replace(LOG, begin=100), FromBeginning(WHERE, "no-local-state", 100, 100)),
    (at(9), LOG, ReinitialisePlan(WHERE, "truncated", 10, 100)),
    (at(0, rows=False), LOG, ReinitialisePlan(WHERE, "truncated", 10, 100)),
    # the offset at the position was the marker of the task's own last transaction
    (at(8, marker=True), LOG, ReinitialisePlan(WHERE, "truncated", 10, 100)),
    (at(9, marker=True), LOG, Resume(WHERE, "resume", 10, 100)),
    (at(99, marker=True), replace(LOG, begin=100), Resume(WHERE, "resume", 100, 100)),
    (at(99, marker=True, at_ms=0), LOG, Resume(WHERE, "resume", 99, 100)),
    (at(98, marker=True, at_ms=0), LOG, ReinitialisePlan(WHERE, "tombstones-expired", 10, 100)),
    (at(10), LOG, Resume(WHERE, "resume", 10, 100)),
    (at(99), LOG, Resume(WHERE, "resume", 99, 100)),
    (at(100), LOG, UpToDate(WHERE, "up-to-date", 100, 100)),
    (at(101), LOG, ReinitialisePlan(WHERE, "position-ahead", 10, 100)),
    (at(0), EMPTY, UpToDate(WHERE, "up-to-date", 0, 0)),
    (at(100), replace(LOG, begin=100), UpToDate(WHERE, "up-to-date", 100, 100)),
    (at(50, topic_id="id-0"), LOG, ReinitialisePlan(WHERE, "topic-recreated", 10, 100)),
    (at(100, topic_id="id-0"), LOG, ReinitialisePlan(WHERE, "topic-recreated", 10, 100)),
    (at(50, topic_id=""), LOG, Resume(WHERE, "resume", 50, 100)),
    (at(50), replace(LOG, topic_id=""), Resume(WHERE, "resume", 50, 100)),
    (at(50), replace(LOG, diverged_at=49), ReinitialisePlan(WHERE, "diverged", 10, 100)),
    (at(50), replace(LOG, diverged_at=50), Resume(WHERE, "resume", 50, 100)),
    (at(50), replace(LOG, diverged_at=51), Resume(WHERE, "resume", 50, 100)),
    (at(100), replace(LOG, diverged_at=99), ReinitialisePlan(WHERE, "diverged", 10, 100)),
    (at(50, at_ms=0), LOG, ReinitialisePlan(WHERE, "tombstones-expired", 10, 100)),
    (at(50, at_ms=10**12), LOG, ReinitialisePlan(WHERE, "time-ahead", 10, 100)),
    (at(50, lost="corrupt"), LOG, ReinitialisePlan(WHERE, "corrupt", 10, 100)),
]


@pytest.mark.parametrize(("local", "log", "expected"), CASES)
def test_plan_follows_position_and_bounds(local: LocalPosition | None, log: LogState, expected: Plan) -> None:
    assert plan(local, log) == expected


@pytest.mark.parametrize(("local", "log", "expected"), [one for one in CASES if one[1].begin > 0])
def test_every_restore_from_the_beginning_of_an_only_compacted_log_without_its_head_is_refused_until_accepted(
    local: LocalPosition | None, log: LogState, expected: Plan
) -> None:
    headless = replace(log, cleanup=COMPACT, retention_ms=-1, limit=None)
    found = plan(local, headless)
    accepted = plan(local, headless, accept_missing_history=True)
    whole = plan(local, replace(headless, begin=0))
    assert isinstance(expected, FromBeginning | ReinitialisePlan) or log.limit is not None or found == expected
    if not isinstance(accepted, FromBeginning | ReinitialisePlan):
        assert found == accepted == plan(local, replace(log, limit=None))  # it has read the removed records
        return
    assert isinstance(found, Refuse)
    assert (found.reason, found.end) == ("history-missing", headless.end)
    assert found.position == (0 if local is None else local.position)
    assert "below offset" in found.what
    assert "would be incomplete" in found.what
    assert ("last copy" in found.what) is (local is not None and local.rows)
    assert "snapshot" in found.fix
    assert "accept_missing_history" in found.fix
    assert accepted.position == headless.begin
    assert not isinstance(whole, Refuse)


@pytest.mark.parametrize(
    "local", [None, at(50, at_ms=0), at(50, topic_id="id-0"), at(101), at(50, topic_id=""), at(9, rows=False)]
)
def test_source_topic_that_began_above_zero_is_its_owners_decision(local: LocalPosition | None) -> None:
    assert not isinstance(plan(local, replace(HEADLESS, limit=60, diverged_at=40)), Refuse)
    assert not isinstance(plan(local, replace(HEADLESS, limit=0)), Refuse)


def test_rows_that_a_removed_head_may_have_the_last_copy_of_are_refused_for_a_source_topic_too() -> None:
    log = replace(HEADLESS, limit=60)
    for local in (at(9), at(50, lost="corrupt")):
        assert isinstance(plan(local, log), Refuse)
        assert isinstance(plan(local, log, accept_missing_history=True), ReinitialisePlan)


@pytest.mark.parametrize("local", [None, at(50, rows=False)])
def test_removal_of_every_record_of_an_only_compacted_log_is_refused_without_rows_here(
    local: LocalPosition | None,
) -> None:
    log = replace(HEADLESS, begin=100)
    assert plan(local, log).reason == "history-missing"
    # Either consent allows an empty store beside an empty log.
    for accepts in ({"accept_missing_history": True}, {"accept_empty_log": True}):
        assert isinstance(plan(local, log, **accepts), FromBeginning | ReinitialisePlan)
    assert isinstance(plan(local, replace(log, end=101), accept_empty_log=True), Refuse)


@pytest.mark.parametrize(
    ("age_ms", "kind"),
    [
        (0, Resume),
        (8_999, Resume),
        (9_000, Resume),
        (9_001, ReinitialisePlan),
        (-1_000, Resume),
        (10**9, ReinitialisePlan),
    ],
)
def test_position_older_than_ninety_percent_of_delete_retention_may_have_missed_deletes(
    age_ms: int, kind: type[Plan]
) -> None:
    found = plan(at(50, at_ms=NOW_MS - age_ms), LOG)
    assert type(found) is kind
    assert found.reason == ("resume" if kind is Resume else "tombstones-expired")
    assert found.position == (50 if kind is Resume else 10)


@pytest.mark.parametrize("ahead_ms", [1_001, 5_000, 10**9])
def test_position_stamped_ahead_of_the_clock_by_more_than_the_margin_has_no_known_age(ahead_ms: int) -> None:
    found = plan(at(50, at_ms=NOW_MS + ahead_ms), LOG)
    assert found == ReinitialisePlan(WHERE, "time-ahead", 10, 100)


@pytest.mark.parametrize(
    ("local", "log"),
    [
        (at(100, at_ms=10**12), LOG),  # no write since, so no deletion
        (at(50, at_ms=10**12), replace(LOG, cleanup=DELETE, retention_ms=60_000)),
        (at(50, at_ms=10**12), replace(LOG, delete_retention_ms=-1)),
        (at(100, at_ms=0), LOG),  # no write since, so no deletion
        (at(50, at_ms=0), replace(LOG, cleanup=DELETE, retention_ms=60_000)),
        (at(50, at_ms=0), replace(LOG, delete_retention_ms=-1)),
    ],
)
def test_old_position_is_good_where_no_tombstone_can_have_expired(local: LocalPosition, log: LogState) -> None:
    assert isinstance(plan(local, log), Resume | UpToDate)


def test_tombstones_expire_on_a_compacted_and_deleted_log_too() -> None:
    log = replace(LOG, cleanup=COMPACT | DELETE, retention_ms=60_000)
    assert plan(at(50, at_ms=NOW_MS - 9_001), log).reason == reasons.TOMBSTONES_EXPIRED


EMPTIED = [
    pytest.param(at(50, topic_id="id-0"), EMPTY, "topic-recreated", id="made anew"),
    pytest.param(at(0, topic_id="id-0"), EMPTY, "topic-recreated", id="made anew at position 0"),
    pytest.param(at(50), EMPTY, "position-ahead", id="emptied"),
    pytest.param(at(50), replace(LOG, begin=100), "truncated", id="all deleted before it was read"),
    pytest.param(at(50), replace(HEADLESS, begin=100), "truncated", id="all removed before it was read"),
    pytest.param(
        at(50), replace(LOG, begin=100, cleanup=DELETE, retention_ms=1), "truncated", id="all deleted by retention"
    ),
    pytest.param(at(100), replace(LOG, begin=100, diverged_at=60), "diverged", id="diverged and emptied"),
]


@pytest.mark.parametrize(("local", "log", "lost"), EMPTIED)
def test_empty_log_beside_local_rows_is_refused(local: LocalPosition, log: LogState, lost: str) -> None:
    refused = plan(local, log)
    assert isinstance(refused, Refuse)
    assert (refused.reason, refused.position, refused.end) == ("log-empty", local.position, log.end)
    assert refused.where == "app-store-changelog-3"
    assert refused.records_max == 0
    assert "last copy" in refused.message
    assert "accept_empty_log" in refused.message
    assert str(local.position) in refused.what


@pytest.mark.parametrize(("local", "log", "lost"), EMPTIED)
def test_accepted_empty_log_reinitialises_with_the_reason(local: LocalPosition, log: LogState, lost: str) -> None:
    accepted = plan(local, log, accept_empty_log=True)
    assert accepted == ReinitialisePlan(WHERE, lost, log.begin, log.end)


@pytest.mark.parametrize(("local", "log", "lost"), EMPTIED)
def test_empty_log_beside_no_rows_loses_nothing(local: LocalPosition, log: LogState, lost: str) -> None:
    if log.begin and log.cleanup == COMPACT:  # its records were removed by hand: see the test of that
        return
    assert plan(replace(local, rows=False), log) == ReinitialisePlan(WHERE, lost, log.begin, log.end)


KEPT_FOR_EVER = replace(LOG, cleanup=DELETE, retention_ms=-1)


@pytest.mark.parametrize("local", [None, at(9), at(0, rows=False)])
def test_missing_head_of_a_log_that_nothing_shortens_is_refused(local: LocalPosition | None) -> None:
    refused = plan(local, KEPT_FOR_EVER)
    assert isinstance(refused, Refuse)
    assert refused.reason == "history-missing"
    assert refused.position == (0 if local is None else local.position)
    assert "below offset 10" in refused.message
    assert "accept_missing_history" in refused.fix
    assert isinstance(plan(local, KEPT_FOR_EVER, accept_missing_history=True), FromBeginning | ReinitialisePlan)


@pytest.mark.parametrize(
    ("local", "log"),
    [
        (None, replace(KEPT_FOR_EVER, begin=0)),
        (None, replace(KEPT_FOR_EVER, retention_ms=1_000)),
        (None, replace(KEPT_FOR_EVER, cleanup=COMPACT, begin=0)),
        (at(9), replace(KEPT_FOR_EVER, retention_ms=1_000)),
        (at(9), replace(KEPT_FOR_EVER, cleanup=COMPACT | DELETE)),
        (at(10), KEPT_FOR_EVER),  # all removed records were read here
    ],
)
def test_missing_head_that_is_explained_is_no_reason_to_refuse(local: LocalPosition | None, log: LogState) -> None:
    assert not isinstance(plan(local, log), Refuse)


@pytest.mark.parametrize(
    ("local", "log"),
    [
        (at(9), HEADLESS),
        (at(0), HEADLESS),
        (at(8, marker=True), HEADLESS),
        (at(9), replace(HEADLESS, limit=60)),
        (at(9), replace(HEADLESS, diverged_at=5)),
        (at(9), replace(HEADLESS, retention_ms=1_000)),  # a topic that is only compacted ignores it
    ],
)
def test_compacted_log_that_lost_its_head_beside_rows_that_have_not_seen_it_is_refused_until_accepted(
    local: LocalPosition, log: LogState
) -> None:
    refused = plan(local, log)
    assert isinstance(refused, Refuse)
    assert (refused.reason, refused.position, refused.end) == ("history-missing", local.position, 100)
    assert "last copy" in refused.message
    assert "below offset 10" in refused.what
    assert "accept_missing_history" in refused.fix
    assert isinstance(plan(local, log, accept_empty_log=True), Refuse)
    assert isinstance(plan(local, log, accept_missing_history=True), ReinitialisePlan)
    log = replace(log, diverged_at=None)
    assert not isinstance(plan(replace(local, position=10), log), Refuse)  # all removed records were read here


def test_begin_of_a_recreated_topic_says_nothing_about_the_rows_here() -> None:
    source = replace(HEADLESS, limit=60)
    assert plan(at(9, topic_id="id-0"), source) == ReinitialisePlan(WHERE, "topic-recreated", 10, 60)


@pytest.mark.parametrize(
    ("local", "log", "kept"),
    [
        (at(50, topic_id="id-0"), WHOLE, True),
        (at(101), WHOLE, True),
        (at(50), replace(WHOLE, diverged_at=49), True),
        (at(50, topic_id="id-0", rows=False), WHOLE, False),
        (at(50, at_ms=0), WHOLE, False),  # the log has all of its rows
        (at(50, lost="corrupt"), WHOLE, False),
        (at(9), LOG, False),  # removed by age
        (at(50, at_ms=0), HEADLESS, True),
        (at(9), HEADLESS, True),
        (at(50), EMPTY, True),
        (at(50, lost="corrupt"), HEADLESS, True),
    ],
)
def test_rows_that_may_be_nowhere_else_are_kept(local: LocalPosition, log: LogState, kept: bool) -> None:
    found = plan(local, log, accept_empty_log=True, accept_missing_history=True)
    assert isinstance(found, ReinitialisePlan)
    assert found.keep is kept
    refused = plan(local, log)
    assert found.accepted == (refused.what if isinstance(refused, Refuse) else "")


def test_accepting_one_loss_does_not_accept_the_other() -> None:
    assert isinstance(plan(at(9), KEPT_FOR_EVER, accept_empty_log=True), Refuse)
    assert isinstance(plan(at(50), EMPTY, accept_missing_history=True), Refuse)


@pytest.mark.parametrize(
    ("local", "log"),
    [(None, replace(LOG, begin=101)), (None, replace(LOG, begin=-1)), (at(-1), LOG)],
)
def test_bounds_that_cannot_be_are_our_bug(local: LocalPosition | None, log: LogState) -> None:
    with pytest.raises(InternalError, match=r"are negative or out of order|is negative"):
        plan(local, log)


def test_records_max_is_what_lies_between_position_and_end() -> None:
    assert plan(at(40), LOG).records_max == 60


POLICIES = st.sampled_from([COMPACT, DELETE, COMPACT | DELETE])


@given(
    local=st.none()
    | st.builds(
        LocalPosition,
        st.integers(0, 30),
        st.sampled_from(["", "id-0", "id-1"]),
        at_ms=st.integers(0, NOW_MS),
        rows=st.booleans(),
    ),
    begin=st.integers(0, 20),
    size=st.integers(0, 10),
    cleanup=POLICIES,
    retention_ms=st.sampled_from([-1, 1_000]),
    delete_retention_ms=st.sampled_from([-1, 10_000]),
    diverged_at=st.none() | st.integers(0, 30),
)
def test_every_plan_stays_within_the_log_and_no_rows_are_lost_to_an_empty_one(
    local: LocalPosition | None,
    begin: int,
    size: int,
    cleanup: frozenset[str],
    retention_ms: int,
    delete_retention_ms: int,
    diverged_at: int | None,
) -> None:
    log = LogState(WHERE, "id-1", begin, begin + size, cleanup, retention_ms, delete_retention_ms, diverged_at)
    found = plan(local, log)
    assert found.end == log.end
    # A store that would be built from a log without its head never opens by itself.
    if isinstance(found, FromBeginning | ReinitialisePlan):
        assert begin == 0 or cleanup != COMPACT
    if isinstance(found, Refuse):
        assert found.reason in (reasons.LOG_EMPTY, reasons.HISTORY_MISSING)
        return
    assert log.begin <= found.position <= log.end
    assert (local is None) is isinstance(found, FromBeginning)
    if isinstance(found, Resume | UpToDate):
        assert local is not None
        assert found.position == local.position
        assert local.topic_id in ("", "id-1")
        assert (found.position == log.end) is isinstance(found, UpToDate)
    else:
        assert found.position == log.begin
    assert not (isinstance(found, ReinitialisePlan) and size == 0 and local is not None and local.rows)
