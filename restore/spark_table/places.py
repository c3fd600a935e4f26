"""Where stores lie that Spark reads as tables: from an address to the places of tasks, and which of them have a store.

    /var/lib/delays          state directory: the application in it (by `app` if there are several)
    /var/lib/delays/board    all tasks of an application
    .../board/0_3            one task
    a folder with a manifest (rebuilt, snapshot, written by Spark), or the same of all these in object storage

Rules of this file: reads only. A directory whose owner runs is refused: its files would change under Spark's tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from standfast.replication.offsets import TaskId
from standfast.restore.files.manifest import FILE_NAME
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import Place, manifest_of, manifest_places, remote_places, stores_in
from standfast.store.errors import Held, InvalidRequest, UnknownStore
from standfast.store.task.state_dir import MARKER


class Stored(NamedTuple):
    """A store as the places hold it."""

    name: str
    definition: Mapping[str, Any]
    places: tuple[Place, ...]


def places_at(address: str, app: str | None) -> list[Place]:
    """Tasks at an address. Raises InvalidRequest if there are none, Held if their owner runs."""
    folder = Folder(address)
    if folder.read(FILE_NAME) is not None:
        return manifest_places(address)
    if folder.local is None:
        return remote_places(address, app)
    root = folder.local
    if not root.is_dir():
        raise InvalidRequest(f"{root} does not exist: name a state directory, or a folder with a manifest")
    marked = _marker(root)
    if marked is not None and marked.get("task"):
        found = [_place(root)]
    else:
        path = root if marked is not None else _application(root, app)
        found = [_place(one) for one in path.iterdir() if not one.name.startswith(".") and (one / MARKER).is_file()]
    if not found:
        raise InvalidRequest(f"{root} holds no task: no partition was ever assigned here, or all stores are in memory")
    for place in found:
        _refuse_owned(Path(place.address).parent)
    return sorted(found, key=lambda place: place.task)


def find_store(address: str, app: str | None, name: str | None) -> Stored:
    """One store and where it is; the name may be left out where there is only one. Raises UnknownStore."""
    places = places_at(address, app)
    if places[0].kind == "manifest":
        manifest = manifest_of(Folder(address))
        if name not in (None, manifest.store):
            raise UnknownStore(f"{address} has no store {name!r}: it has {manifest.store}")
        return Stored(manifest.store, manifest.definition, tuple(places))
    found: dict[str, tuple[Mapping[str, Any], set[int]]] = {}
    for group in {place.task.group: place for place in reversed(places)}.values():  # all of a group have the same
        for store, at_rest in stores_in(group).items():
            found.setdefault(store, (at_rest.definition, set()))[1].add(group.task.group)
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name is None or name not in found:
        known = ", ".join(sorted(found)) or "none"
        what = f"has no store {name!r}: it has" if name is not None else "has several stores, name one of storeName:"
        raise UnknownStore(f"{address} {what} {known}")
    definition, groups = found[name]
    if definition.get("engine") == "memory":
        raise InvalidRequest(f"store {name!r} is kept in memory: it leaves nothing in files; read its changelog")
    return Stored(name, definition, tuple(place for place in places if place.task.group in groups))


def chosen(places: Sequence[Place], partitions: Sequence[int] | None) -> list[Place]:
    """The places of these partitions. Raises InvalidRequest for one that there is not."""
    held = {place.task.partition for place in places}
    missing = [number for number in partitions or () if number not in held]
    if missing:
        raise InvalidRequest(
            f"there are partitions {', '.join(map(str, sorted(held)))}, not {', '.join(map(str, missing))}"
        )
    return [place for place in places if partitions is None or place.task.partition in partitions]


def _application(root: Path, app: str | None) -> Path:
    names = sorted(one.name for one in root.iterdir() if (one / MARKER).is_file() and not one.name.startswith("."))
    if app is None and len(names) == 1:
        app = names[0]
    if app is None or app not in names:
        have = ", ".join(names) or "none"
        what = f"no application {app!r}" if app is not None else "not one application alone"
        raise InvalidRequest(f'{root} holds {what}: it has {have}; name one with option("app", ...)')
    return root / app


def _place(path: Path) -> Place:
    marked = _marker(path) or {}
    return Place(str(marked.get("app", "")), TaskId.parse(path.name), str(path))


def _marker(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path / MARKER} is not readable ({error}): restore it") from error
    return found


def _refuse_owned(path: Path) -> None:
    try:
        words = (path / "LOCK").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return
    if len(words) != 2 or words[0] != "pid" or not words[1].isdigit():
        return
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return
    except PermissionError:
        pass
    raise Held(
        f"{path} is owned by pid {words[1]}, which is running: its files would change under Spark's tasks; stop it, "
        "or read a checkpoint, a rebuilt folder or the changelog"
    )
