"""Worker processes of one instance, on the embedded log: killed, stopped, poisoned, and the supervisor itself killed.

    test ── records ──> log <── supervisor (support/crash/managed_child.py) ── worker 1, worker 2
                         │ counts of each key: 1..n, once and in order

Rules of this file: exactly once. Moments come from the processes' lines and from the output, not from waits.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from standfast.ops.cli.process.placement import look
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.stream.deaths.deaths import DEATHS_MAX
from standfast.stream.workers.process import process_facts
from support.crash.managed_cluster import PATIENCE_S, TASKS, Cluster, held_by
from support.processes import has_ended
from support.serve import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.crash]
NAME = "a"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with closing(make(tmp_path)) as made:
        yield made


def make(root: Path, **settings: object) -> Cluster:
    return Cluster(root, f"sqlite:///{root}/log?synchronous=normal", "managed", 7, **{"workers": 2, **settings})


def process_some(cluster: Cluster) -> None:
    """Start, and process records of every task."""
    cluster.start(NAME)
    cluster.feed(300)
    cluster.await_results()


def end(cluster: Cluster) -> None:
    """End the instance as a service manager does, and check everything that it leaves."""
    workers = cluster.workers(NAME)
    process = cluster.processes.pop(NAME)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0, cluster.said(NAME)
    assert all(map(has_ended, workers.values()))
    assert cluster.results() == cluster.expected()


def shown_workers(cluster: Cluster) -> dict[int | None, set[int]]:
    """The partitions of the tasks by the worker that has them, as `standfast placement` reads them from the log."""
    found: dict[int | None, set[int]] = {}
    with closing(open_log(cluster.address)) as log:
        for one in look(log, cluster.app).tasks:
            found.setdefault(one.worker, set()).add(one.task.partition)
    return found


def epochs(cluster: Cluster) -> dict[int, int]:
    """The number of openings of each task so far, as the log knows it."""
    with closing(sqlite3.connect(f"file:{cluster.root}/log?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT transactional_id, epoch FROM writers").fetchall()
    return {int(name.rpartition("-")[2]): epoch for name, epoch in rows if name.startswith(f"{cluster.app}-0-")}


def test_workers_share_the_tasks_evenly_and_each_uses_a_core_of_its_own(cluster: Cluster) -> None:
    process_some(cluster)
    first, second = cluster.workers(NAME).values()
    assert len(held_by(first)) == len(held_by(second)) == TASKS // 2
    assert held_by(first) | held_by(second) == set(range(TASKS))
    assert shown_workers(cluster) == {1: held_by(first), 2: held_by(second)}
    before = [process_facts(pid).cpu_ms for pid in (first, second)]
    for _ in range(20):
        cluster.feed(200)
    cluster.await_results()
    used = [process_facts(pid).cpu_ms - one for pid, one in zip((first, second), before, strict=True)]
    assert min(used) > 0, "a worker processed nothing"
    end(cluster)


def test_killed_worker_costs_only_its_own_tasks_which_are_opened_under_a_new_epoch(cluster: Cluster) -> None:
    process_some(cluster)
    before = epochs(cluster)
    workers = cluster.workers(NAME)
    lost, kept = held_by(workers[1]), held_by(workers[2])
    os.kill(workers[1], signal.SIGKILL)
    cluster.feed(100, sorted(kept))
    cluster.await_results()  # while the other worker starts again, or before
    cluster.feed(100)
    cluster.await_results()
    after = epochs(cluster)
    assert {task for task in after if after[task] != before[task]} == lost
    assert all(after[task] == before[task] + 1 for task in lost)
    again = cluster.workers(NAME)
    assert again[1] != workers[1]
    assert again[2] == workers[2]
    assert held_by(again[1]) == lost
    assert shown_workers(cluster) == {1: lost, 2: kept}, "the replacement of a worker has its number"
    end(cluster)


def test_stopped_worker_is_killed_within_the_lease_and_its_tasks_go_on(cluster: Cluster) -> None:
    process_some(cluster)
    worker = cluster.workers(NAME)[1]
    os.kill(worker, signal.SIGSTOP)
    cluster.feed(200)
    cluster.await_results()
    assert has_ended(worker)
    assert "is stopped, and was silent for" in cluster.said(NAME)
    end(cluster)


def test_workers_end_with_a_killed_supervisor_and_the_next_run_continues_at_once(cluster: Cluster) -> None:
    process_some(cluster)
    workers = cluster.workers(NAME)
    cluster.feed(300)
    cluster.end(NAME, signal.SIGKILL)
    cluster.start(NAME)  # its directory may still be locked by workers that are ending
    cluster.feed(100)
    cluster.await_results()
    assert all(map(has_ended, workers.values()))
    end(cluster)


def test_signal_to_all_processes_at_once_ends_the_instance_cleanly(cluster: Cluster) -> None:
    process_some(cluster)
    cluster.feed(200)
    for pid in cluster.workers(NAME).values():
        os.kill(pid, signal.SIGTERM)
    process = cluster.processes.pop(NAME)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0, cluster.said(NAME)
    assert "its tasks wait for a new process" not in cluster.said(NAME)
    cluster.start(NAME)
    cluster.await_results()
    wait_for(lambda: cluster.runs(NAME), PATIENCE_S)
    end(cluster)


def test_record_that_kills_its_worker_again_and_again_costs_its_own_task_and_no_other_worker(tmp_path: Path) -> None:
    with closing(make(tmp_path, poison="k0", restart="twice")) as cluster:
        cluster.start(NAME)
        cluster.feed(100, range(1, TASKS))
        cluster.await_results()
        workers = cluster.workers(NAME)
        (hit,) = [number for number, pid in workers.items() if 0 in held_by(pid)]
        feed_one(cluster, "k0", 0)
        wait_for(lambda: "task 0_0 is given up, the others go on" in cluster.said(NAME), PATIENCE_S)
        said = (tmp_path / f"{NAME}.err").read_text()  # all of it: each end comes with last lines
        assert f"worker {hit} ended (signal 9; record {cluster.app}-in-0 at offset 0 (task 0_0) was in hand" in said
        assert said.count("the poison was met") == DEATHS_MAX
        assert f"standfast deaths --app {cluster.app} --log ADDRESS --forget 0_0" in said
        others = {number: pid for number, pid in cluster.workers(NAME).items() if number != hit}
        assert others == {number: pid for number, pid in workers.items() if number != hit}
        cluster.feed(100, range(1, TASKS))
        cluster.await_results()  # those of the worker that died, too
        end(cluster)


def feed_one(cluster: Cluster, key: str, partition: int) -> None:
    at = TopicPartition(f"{cluster.app}-in", partition)
    with closing(open_log(cluster.address)) as log, closing(log.producer()) as producer:
        producer.append({at: [Outgoing(key.encode(), b"x", int(time.time() * 1_000))]})


def test_task_that_is_given_up_in_a_worker_ends_the_run_with_its_error_after_all_others_committed(
    tmp_path: Path,
) -> None:
    with closing(make(tmp_path, raises="k0", restart="never")) as cluster:
        cluster.start(NAME)
        cluster.feed(200, range(1, TASKS))
        cluster.await_results()
        feed_one(cluster, "k0", 0)
        process = cluster.processes.pop(NAME)
        assert process.wait(PATIENCE_S) == 1
        said = cluster.said(NAME)
        assert "WorkerFailed: worker" in said
        assert "ValueError: no k0 here" in said
        assert "task 0_0 is given up" in said
        assert cluster.results() == cluster.expected()


def test_partitions_that_a_source_gets_while_it_runs_are_tasks_of_the_workers_soon(tmp_path: Path) -> None:
    with closing(make(tmp_path, discovery_ms=200)) as cluster:
        process_some(cluster)
        with closing(open_log(cluster.address)) as log:
            log.admin.add_partitions(f"{cluster.app}-in", TASKS + 2)
        for partition in (TASKS, TASKS + 1):
            cluster.fed[f"new{partition}"] += 1
            feed_one(cluster, f"new{partition}", partition)
        cluster.await_results()
        assert [len(held_by(pid)) for pid in cluster.workers(NAME).values()] == [TASKS // 2 + 1] * 2
        end(cluster)


PROGRAM = """
import sys
import standfast as sf
if len(sys.argv) > 1 and sys.argv[1] == "--exit-in-worker":
    import os
    if "STANDFAST_WORKER" in os.environ:
        sys.exit("this machine has no licence")
app = sf.App("one", log=f"sqlite:///{sys.path[0]}/log", state_dir=f"{sys.path[0]}/state", create_topics=True,
             placement="managed", restart=sf.FixedDelay(1, 50), stores=[])
app.stream("in", key=sf.serde.string, value=sf.serde.string).to("out")
if __name__ == "__main__":
    try:
        app.run(workers=2)
    except SystemExit:
        if "--again" not in sys.argv:
            raise
        app.run(workers=2)
    print("the program goes on")
"""


STEERED = """
import os
import sys
import threading
import time
import standfast as sf
app = sf.App("steered", log=f"sqlite:///{sys.path[0]}/log", state_dir=f"{sys.path[0]}/state", commit_interval_ms=20)

def steer(key, value):
    if value == "pause":
        app.pause()
        threading.Thread(target=resume).start()
    if value == "stop":
        app.stop()
    return True

def resume():
    path = f"{sys.path[0]}/resume"
    while not os.path.exists(path):
        time.sleep(0.05)
    app.resume()

app.stream("in", key=sf.serde.string, value=sf.serde.string).filter(steer).to("out")
if __name__ == "__main__":
    app.run(workers=2)
"""


def test_pause_resume_and_stop_in_a_processor_are_those_of_the_whole_instance(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STEERED)
    with (
        closing(open_log(f"sqlite:///{tmp_path}/log")) as log,
        closing(log.producer()) as producer,
        closing(log.reader()) as reader,
    ):
        for topic in ("in", "out"):
            log.admin.create_topic(topic, 2, TopicPolicy())
        out = [TopicPartition("out", partition) for partition in (0, 1)]

        def feed(partition: int, value: str) -> None:
            stamp = int(time.time() * 1_000)
            producer.append({TopicPartition("in", partition): [Outgoing(b"k%d" % partition, value.encode(), stamp)]})

        def written(count: int) -> bool:
            return sum(bounds.end for bounds in reader.bounds(out).values()) == count

        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stdout=said, stderr=said)
        try:
            for partition in (0, 1):
                feed(partition, "first")
            wait_for(lambda: written(2), PATIENCE_S)
            feed(0, "pause")
            wait_for(lambda: written(3), PATIENCE_S)  # its record is processed whole
            time.sleep(1)  # the supervisor, and the other worker, hear of it
            feed(1, "while paused")
            time.sleep(1)
            assert written(3)
            (tmp_path / "resume").touch()
            wait_for(lambda: written(4), PATIENCE_S)
            feed(1, "stop")
            assert process.wait(PATIENCE_S) == 0
            assert written(5)
        finally:
            process.kill()
            process.wait()
        assert "application steered ended" in (tmp_path / "said").read_text()


def started(*command: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize("how", ["-c", "standard input"])
def test_program_that_cannot_be_run_again_is_refused_with_the_command_that_can(how: str, tmp_path: Path) -> None:
    ended = started("-c", PROGRAM, cwd=tmp_path) if how == "-c" else started("-", cwd=tmp_path, text=PROGRAM)
    assert ended.returncode == 1
    assert "BadConfig: workers run the program again" in ended.stderr
    assert "standfast run MODULE:APP --workers N" in ended.stderr
    assert not (tmp_path / "state").exists()


def test_worker_that_cannot_start_ends_the_run_with_its_exit_code_and_last_lines(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = started("-m", "program", "--exit-in-worker", cwd=tmp_path)
    assert ended.returncode == 1
    assert re.search(r"WorkerFailed: worker [12] ended \(exit code 1\)", ended.stderr)
    assert "this machine has no licence" in ended.stderr.rpartition("its last lines:")[2]
    assert "the program goes on" not in ended.stdout


@pytest.mark.parametrize(
    "how", [*(pytest.param(one, marks=pytest.mark.long) for one in ("module", "path")), "standfast run"]
)
def test_program_started_by_module_or_path_runs_again_in_each_worker_and_goes_on_in_the_supervisor_alone(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    runs_it = ["-m", "standfast", "run", "program:app", "--workers", "2"]
    command = {"module": ["-m", "program"], "path": ["program.py"], "standfast run": runs_it}[how]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([sys.executable, "-u", *command], cwd=tmp_path, stdout=said, stderr=said)
    try:
        wait_for(lambda: (tmp_path / "said").read_text().count("of instance") == 2, PATIENCE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "said").read_text().count("the program goes on") == (how != "standfast run")


def test_worker_that_catches_its_exit_and_runs_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-u", "program.py", "--again"], cwd=tmp_path, stdout=said, stderr=said
        )
    try:
        wait_for(lambda: (tmp_path / "said").read_text().count("of instance") == 2, PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 1
    finally:
        process.kill()
        process.wait()
    said_all = (tmp_path / "said").read_text()
    assert "this process was a worker and is to end; run() does not return in a worker" in said_all
    assert "the program goes on" not in said_all
