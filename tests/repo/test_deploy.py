"""The systemd unit and the Kubernetes manifest: they parse, and the names in them exist here.

Rules of this file: no cluster is used. systemd's own tool verifies the unit where it is installed, as it is in CI; a
schema of our own, as small as the manifest, checks the manifest.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType

from standfast.ops.command.command_line import build_parser
from standfast.ops.config.config import load_config
from standfast.ops.shared import exit_codes
from standfast.replication.shapes import Shape, fit
from support.places import ROOT

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "standfast.service"
MANIFEST = DEPLOY / "kubernetes" / "sidecar.yaml"


def settings_of_unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(UNIT.read_text())
    return parsed


def test_unit_is_told_ready_and_watched_and_starts_what_there_is() -> None:
    service = settings_of_unit()["Service"]
    assert service["Type"] == "notify" and int(service["WatchdogSec"]) > 2 * 10
    command = service["ExecStart"].split()
    assert command[:2] == ["/usr/bin/env", "standfast"]
    arguments = build_parser().parse_args(command[2:])
    assert arguments.handler.__name__ == "run_serve"
    assert service["StateDirectoryMode"] == service["RuntimeDirectoryMode"] == "0700"
    never_again = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert {exit_codes.USAGE, exit_codes.HELD, exit_codes.CONFIG} <= never_again
    assert not never_again & {exit_codes.UNAVAILABLE, exit_codes.FENCED, exit_codes.INTERNAL}


def test_systemd_itself_finds_no_fault_in_the_unit() -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        assert not os.environ.get("CI"), "CI must have systemd-analyze (Debian: systemd)"
        return
    done = subprocess.run([tool, "verify", str(UNIT)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


class Exec(Struct):
    command: tuple[str, ...]


class Probe(Shape, frozen=True, kw_only=True):
    exec: Exec
    periodSeconds: Annotated[int, Meta(ge=1)]
    timeoutSeconds: Annotated[int, Meta(ge=1)]
    failureThreshold: Annotated[int, Meta(ge=1)] = 3


class Lifecycle(Shape, frozen=True):
    preStop: dict[str, Any]


class ContainerSecurity(Struct):
    allowPrivilegeEscalation: Any
    readOnlyRootFilesystem: Any
    capabilities: Any


class Resources(Struct):
    requests: Any
    limits: Any


class Mount(Shape, frozen=True):
    name: str
    mountPath: Annotated[str, Meta(pattern="^/")]
    readOnly: bool = False


class Container(Shape, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    image: str
    args: tuple[str, ...]
    restartPolicy: Literal["Always"] = "Always"
    startupProbe: Probe | UnsetType = UNSET
    livenessProbe: Probe | UnsetType = UNSET
    readinessProbe: Probe | UnsetType = UNSET
    lifecycle: Lifecycle | UnsetType = UNSET
    securityContext: ContainerSecurity
    resources: Resources | UnsetType = UNSET
    volumeMounts: tuple[Mount, ...]


class Volume(Struct):
    name: str


class Pod(Shape, frozen=True):
    terminationGracePeriodSeconds: Annotated[int, Meta(ge=21)]
    securityContext: dict[str, Any]
    initContainers: tuple[Container, ...]
    containers: tuple[Container, ...]
    volumes: tuple[Volume, ...]


def pod() -> dict[str, Any]:
    found: dict[str, Any] = documents()[1]["spec"]["template"]["spec"]
    return found


def test_manifest_is_a_config_map_and_a_stateful_set_of_the_known_shape() -> None:
    assert [(one["apiVersion"], one["kind"]) for one in documents()] == [
        ("v1", "ConfigMap"),
        ("apps/v1", "StatefulSet"),
    ]
    fit(pod(), Pod)
    spec = documents()[1]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_sidecar_is_native_and_its_probes_ask_what_there_is() -> None:
    (sidecar,) = pod()["initContainers"]
    assert sidecar["restartPolicy"] == "Always", "an init container that goes on: it starts first and ends last"
    asked = {}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        program, *arguments = sidecar[probe]["exec"]["command"]
        assert program == "standfast"
        parsed = build_parser().parse_args(arguments)
        asked[probe] = (parsed.handler.__name__, parsed.startup, parsed.ready)
    names = {handler for handler, _, _ in asked.values()}
    assert len(names) == 1
    flags = {probe: flags[1:] for probe, flags in asked.items()}
    assert flags == {
        "startupProbe": (True, False),
        "livenessProbe": (False, False),
        "readinessProbe": (False, True),
    }
    program, *arguments = sidecar["lifecycle"]["preStop"]["exec"]["command"]
    assert build_parser().parse_args(arguments).handler.__name__ == "run_drain"


def test_mounts_name_volumes_and_the_settings_fit_the_mounts(tmp_path: Path) -> None:
    spec = documents()[1]["spec"]
    volumes = {one["name"] for one in (*pod()["volumes"],)} | {
        one["metadata"]["name"] for one in spec["volumeClaimTemplates"]
    }
    for container in (*pod()["initContainers"], *pod()["containers"]):
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
    settings = tmp_path / "standfast.toml"
    settings.write_text(documents()[0]["data"]["standfast.toml"])
    config = load_config(settings, {}).config
    (sidecar,) = pod()["initContainers"]
    mounts = {one["mountPath"] for one in sidecar["volumeMounts"]}
    assert config.run_dir is not None
    run_volume = str(config.run_dir.parent)  # root's folder, open to all: a run directory is within it
    assert {str(config.app.state_dir), run_volume} <= mounts
    (app,) = pod()["containers"]
    assert run_volume in {one["mountPath"] for one in app["volumeMounts"]}
    probes = [sidecar[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    for command in (*probes, sidecar["lifecycle"]["preStop"]):
        assert command["exec"]["command"][-2:] == ["--run-dir", str(config.run_dir)]
    assert pod()["terminationGracePeriodSeconds"] * 1_000 > config.serve.drain_timeout_ms


@pytest.mark.slow
def test_commands_of_the_probes_answer_for_a_running_sidecar(sidecars: Any, tmp_path: Path) -> None:
    from standfast.ops.command.command_line import main

    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[tokens]]\nname = "app"\nrole = "write"\ntoken = "a-token-of-the-application"\n')
    tokens.chmod(0o600)
    sidecar = sidecars.make(serve__run_dir=str(tmp_path / "run"), auth__tokens_file=str(tokens))
    sidecar.run_dir = tmp_path / "run"
    sidecar.start()
    where = ["--run-dir", str(tmp_path / "run")]
    for flags in ([], ["--startup"], ["--ready"]):
        assert main(["health", *flags, *where]) == 0
    assert main(["drain", "--wait", "1s", *where]) == 0
    assert main(["health", "--ready", *where]) == 1
    assert main(["health", *where]) == 0
