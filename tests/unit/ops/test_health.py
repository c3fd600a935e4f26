"""Health of a sidecar: each endpoint judges by its own facts and never by those of others."""

from __future__ import annotations

from standfast.ops.observe.health import HealthFacts, RestoringHealth, live, ready, startup

BEHIND = RestoringHealth(0, "restoring", "cold", 41, 100, 59, 0.41, 38.0)


def test_startup_depends_on_neither_restore_nor_log() -> None:
    facts = HealthFacts(pending=[BEHIND], failed=["task 0_1"], log_error="no answer", fatal="broken")
    assert startup(facts).ok
    assert not startup(HealthFacts(bound=False)).ok


def test_live_depends_on_heartbeats_and_fatal_errors_alone() -> None:
    assert live(HealthFacts(pending=[BEHIND], disk_free_bytes=0, disk_floor_bytes=1, draining=True)).ok
    assert not live(HealthFacts(loop_age_ms=10_000)).ok
    assert not live(HealthFacts(worker_age_ms=10_000)).ok
    assert live(HealthFacts(worker_age_ms=None)).ok
    assert live(HealthFacts(control_age_ms=299_999)).ok, "opening many tasks over a slow log takes its time"
    assert not live(HealthFacts(control_age_ms=300_000)).ok
    assert not live(HealthFacts(fatal="background work stopped")).ok


def test_ready_says_how_many_tasks_how_far_and_how_long() -> None:
    health = ready(HealthFacts(pending=[BEHIND]))
    assert not health.ok
    assert "[-]restored: 1 task, 41 %, 38 s" in health.text(verbose=False)
    assert health.document()["reasons"] == ["restored: 1 task, 41 %, 38 s"]


def test_ready_without_an_assignment() -> None:
    health = ready(HealthFacts())
    assert health.ok
    assert health.text(verbose=False) == "ready check passed\n"
    assert "[+]restored ok" in health.text(verbose=True)


def test_lag_of_a_standby_degrades_and_never_makes_unready() -> None:
    health = ready(HealthFacts(standbys_behind=["0_1: 40,000 records"]))
    assert health.ok
    assert health.document()["degraded"] == ["standbys: 0_1: 40,000 records"]


def test_draining_failed_tasks_and_a_full_disk_make_unready() -> None:
    assert not ready(HealthFacts(draining=True)).ok
    assert not ready(HealthFacts(failed=["task 0_0 failed: Corruption"])).ok
    assert not ready(HealthFacts(disk_free_bytes=9, disk_floor_bytes=10)).ok


def test_lease_that_ended_makes_unready_and_says_when() -> None:
    health = ready(HealthFacts(idle="lease of generation 7 ended 12 s ago"))
    assert not health.ok
    assert "[-]lease: IDLE: lease of generation 7 ended 12 s ago" in health.text(verbose=False)
    assert live(HealthFacts(idle="lease of generation 7 ended 12 s ago")).ok


def test_excluded_check_counts_no_more() -> None:
    health = ready(HealthFacts(pending=[BEHIND]), exclude=["restored"])
    assert health.ok
    assert "restored excluded" in health.text(verbose=True)
