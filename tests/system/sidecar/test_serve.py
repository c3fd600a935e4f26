"""The sidecar's process: start order, locks, files and their modes, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from standfast.ops.shared.process_id import identify, is_alive
from support.serve import Sidecars, wait_for

pytestmark = pytest.mark.slow


def test_starts_without_any_assignment_and_ends_with_zero(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    assert sidecar.http is not None
    for path in ("/startupz", "/livez", "/readyz"):
        assert sidecar.http.get(path).status_code == 200
    assert sidecar.stop() == 0
    assert not (sidecar.run_dir / "INFO.json").exists()
    assert not (sidecar.run_dir / "resp.sock").exists()


def test_files_are_for_the_owner_alone(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (sidecar.run_dir, *sidecar.run_dir.iterdir(), sidecar.run_dir.parent)
    }
    assert modes == {"run": 0o700, "resp.sock": 0o600, "INFO.json": 0o600, "LOCK": 0o600, "app": 0o700}
    assert json.loads((sidecar.run_dir / "INFO.json").read_text())["pid"] == sidecar.pid


def test_second_sidecar_on_the_same_directory_exits_73_and_names_the_first(sidecars: Sidecars) -> None:
    first = sidecars.start()
    second = subprocess.run(first.command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 73
    assert f"pid {first.pid}" in second.stderr
    assert first.http is not None and first.http.get("/livez").status_code == 200


def test_state_directory_of_another_process_exits_73(sidecars: Sidecars, tmp_path: Path) -> None:
    first = sidecars.start()
    command = [*first.command, "--set", f"serve.run_dir={tmp_path / 'other'}"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 73
    assert f"pid {first.pid}" in second.stderr


def test_settings_that_are_missing_are_told_at_once_with_78(sidecars: Sidecars) -> None:
    sidecar = sidecars.make()
    command = [*sidecar.command[:5], "--set", "app.name=app"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 78
    assert "app.log is missing" in ended.stderr and "app.state_dir is missing" in ended.stderr


def test_check_starts_nothing(sidecars: Sidecars) -> None:
    sidecar = sidecars.make()
    ended = subprocess.run([*sidecar.command, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "the settings are fine and the log answers\n")
    assert not sidecar.state_dir.exists()


def test_unreachable_broker_exits_69(sidecars: Sidecars) -> None:
    sidecar = sidecars.make(log="kafka://127.0.0.1:1")
    ended = subprocess.run(sidecar.command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 69
    assert "no broker listens" in ended.stderr


def test_after_a_kill_the_next_one_waits_for_the_worker_to_be_gone_and_starts(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    wait_for(sidecar.worker_pids)
    sidecar.assign(1, active=(0,), standby=(1,))
    sidecar.wait_ready()
    workers = [found for pid in sidecar.worker_pids() if (found := identify(pid)) is not None]
    sidecar.kill()
    sidecar.start()
    assert not any(is_alive(worker) for worker in workers)
    sidecar.declare()
    sidecar.assign(1, active=(0, 1))
    sidecar.wait_ready()


def test_worker_that_dies_is_started_again(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    sidecar.assign(1, active=(0,), standby=(1,))
    sidecar.wait_ready()
    (worker,) = sidecar.worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: sidecar.worker_pids() not in ([], [worker]), told=sidecar.told)
    wait_for(lambda: any(one["role"] == "standby" for one in sidecar.call("GET", "/v1/locate")["tasks"]))
    sidecar.assign(2, active=(0, 1))
    sidecar.wait_ready()


@pytest.mark.long
def test_worker_that_hangs_is_killed_and_started_again(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    sidecar.assign(1, standby=(1,))
    # It has a minute until its first line, so it must have come.
    wait_for(lambda: any(one["role"] == "standby" for one in sidecar.call("GET", "/v1/locate")["tasks"]))
    (worker,) = sidecar.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: sidecar.worker_pids() not in ([], [worker]), 30, sidecar.told)
    assert sidecar.http is not None and sidecar.http.get("/livez").status_code == 200


def test_usr1_tells_the_status_and_hup_reads_again_and_neither_ends_it(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    os.kill(sidecar.pid, signal.SIGUSR1)
    wait_for(lambda: '"schema": "standfast.status/1"' in sidecar.told())
    os.kill(sidecar.pid, signal.SIGHUP)
    wait_for(lambda: "reloaded: tokens" in sidecar.told())
    os.kill(sidecar.pid, signal.SIGQUIT)
    wait_for(lambda: "Current thread" in sidecar.told())
    assert sidecar.http is not None and sidecar.http.get("/livez").status_code == 200


def test_drain_closes_tasks_and_makes_unready_and_the_process_waits_for_its_signal(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    sidecar.assign(1, active=(0,))
    sidecar.wait_ready()
    assert sidecar.call("POST", "/v1/drain", {"wait_ms": 1_000}) == {"drained": True}
    assert sidecar.http is not None
    ready = sidecar.http.get("/readyz")
    assert ready.status_code == 503 and "[-]draining" in ready.text
    assert sidecar.http.get("/livez").status_code == 200
    refused = sidecar.call("PUT", "/v1/assignment", {"generation": 2, "tasks": []}, status=503)
    assert refused["reason"] == "DRAINING"
    assert sidecar.stop(signal.SIGINT) == 0


def test_quit_is_another_name_of_drain_where_that_is_set(sidecars: Sidecars) -> None:
    meshed = sidecars.start(http__allow_quit="true")
    meshed.call("GET", "/quitquitquit", status=405)
    assert meshed.call("POST", "/quitquitquit")["drained"] is True
    meshed.call("PUT", "/v1/stores", {"stores": [{"name": "kv", "kind": "keyvalue"}]}, status=503)
    assert meshed.http is not None and meshed.http.get("/readyz").status_code == 503
    assert meshed.stop() == 0


def test_service_manager_is_told_ready_watchdog_and_stopping(sidecars: Sidecars, tmp_path: Path) -> None:
    import socket

    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(20)
        sidecar = sidecars.make()
        sidecar.start({"NOTIFY_SOCKET": str(path)})
        heard = manager.recv(4_096).decode()
        while "READY=1" not in heard or "WATCHDOG=1" not in heard:
            heard += "\n" + manager.recv(4_096).decode()
        assert "STATUS=" in heard
        sidecar.stop()
        while "STOPPING=1" not in heard:
            heard += "\n" + manager.recv(4_096).decode()


def test_stop_keeps_its_deadline_while_control_thread_and_pool_hang(sidecars: Sidecars) -> None:
    made = sidecars.make(serve__drain_timeout="1s")
    hangs = (
        "import asyncio, sys, time\n"
        "from standfast.ops import cli\n"
        "from standfast.ops.sidecar.control import plane as control_plane\n"
        "control_plane.ControlPlane.close_tasks = lambda self: time.sleep(60)\n"
        "drain = control_plane.ControlPlane.drain\n"
        "def pool(self):\n"
        "    self._loop.call_soon_threadsafe(self._loop.run_in_executor, None, time.sleep, 60)\n"
        "    drain(self)\n"
        "control_plane.ControlPlane.drain = pool\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    made.command[2:4] = ["-c", hangs]
    sidecar = made.start()
    began = time.monotonic()
    assert sidecar.stop(timeout_s=15) == 0
    assert time.monotonic() - began < 10
    assert "nothing acknowledged is lost" in sidecar.told()
    assert not (sidecar.run_dir / "INFO.json").exists()
