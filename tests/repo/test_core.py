"""The repository checks itself: the core stands alone, and every other closet belongs to one product.

    core       state of a task, its log, its restore, the session and the loop
    products   native, instances, snapshots, spark, sidecar, operate: around the core, which imports none of them

Rules of this file: as in `test_tidy.py`. *Core* is no folder: it is the table CORE. Imports inside functions, for type
checkers and by name (`import_module`, programs of child processes) count like all others. LEAKS only falls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from repo.test_tidy import Source, imports, named, our_path, plant
from repo.test_tidy_folders import ALIASES

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

CORE = (
    *(
        "store",
        "store/base",
        "store/buffer",
        "store/process",
        "store/rocks",
        "store/schema",
        "store/task",
        "store/types",
    ),
    *("replication", "replication/embedded", "replication/kafka", "replication/tail", "replication/topics"),
    *("restore", "restore/files", "restore/replay"),
    *("stream", "stream/app", "stream/deaths", "stream/dsl", "stream/runtime", "stream/session", "stream/task"),
    *("stream/tasks", "stream/topology"),
)
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "native": ("store/native",),
    "instances": ("replication/lease", "replication/placement", "stream/workers"),
    "snapshots": ("restore/snapshot", "stream/snapshots"),
    "spark": ("restore/spark", "restore/spark_table", "ops/cli/spark"),
    "sidecar": (
        *("ops/client", "ops/sidecar", "ops/sidecar/control", "ops/sidecar/engine", "ops/sidecar/resp"),
        "ops/sidecar/worker",
    ),
    "operate": (
        *("restore/forecast", "restore/report", "restore/verify", "stream/tracing", "ops", "ops/bench", "ops/cli"),
        *("ops/cli/log", "ops/cli/process", "ops/cli/state", "ops/command", "ops/config", "ops/demo", "ops/doctor"),
        *("ops/http", "ops/observe", "ops/page", "ops/security", "ops/shared", "ops/tools"),
    ),
}
# Files of the core that import closets outside of it, and which files there. Nothing may be added.
LEAKS: Mapping[str, tuple[str, ...]] = {
    "stream/app/app.py": (
        "stream/tracing/otel.py",
        "stream/workers/command.py",
        "stream/workers/counts.py",
        "stream/workers/supervisor.py",
        "stream/workers/wishes.py",
        "stream/workers/worker.py",
    ),
    "stream/app/worker.py": ("stream/workers/counts.py", "stream/workers/session.py"),
    "stream/runtime/holds.py": ("replication/placement/checkpoint.py", "stream/snapshots/parts.py"),
    "stream/session/composition.py": ("replication/placement/topic.py",),
    "stream/session/peers.py": ("replication/placement/group_standbys.py",),
    "stream/session/instance.py": (
        "replication/placement/model.py",
        "replication/placement/topic.py",
        "stream/snapshots/keeper.py",
        "stream/snapshots/parts.py",
    ),
    "stream/session/lease.py": ("replication/lease/process.py", "replication/lease/renewal.py"),
    "stream/session/managed.py": (
        "replication/placement/busy_lead.py",
        "replication/placement/checkpoint.py",
        "replication/placement/model.py",
        "replication/placement/no_room.py",
        "replication/placement/place.py",
        "replication/placement/program_choice.py",
        "replication/placement/records.py",
        "replication/placement/seen.py",
        "replication/placement/start_wait.py",
        "replication/placement/topic.py",
        "stream/snapshots/coordinator.py",
    ),
    "stream/session/host.py": (
        "stream/snapshots/care.py",
        "stream/snapshots/keeper.py",
        "stream/snapshots/parts.py",
    ),
    "stream/task/opener.py": ("stream/snapshots/beginning.py",),
    "stream/task/settings.py": ("restore/snapshot/policy.py",),
    "stream/task/statistics.py": ("replication/placement/seen.py",),
    "stream/tasks/attempts.py": ("stream/snapshots/beginning.py",),
}


def product_of(path: str) -> str | None:
    """The product that a file belongs to; None for the core."""
    folder = path.rpartition("/")[0]
    return next((name for name, closets in PRODUCTS.items() if folder in closets), None)


def leaks_of(sources: Iterable[Source]) -> set[tuple[str, str]]:
    """(file of the core, file that it imports) for each import out of the core."""
    product = [source for source in sources if source.room is not None]
    paths = frozenset(source.path for source in product)
    return {
        (source.path, target)
        for source in product
        if product_of(source.path) is None and source.path not in ALIASES
        for _, module, name in (*imports(source), *named(source))
        for target in [our_path(module, name, paths)]
        if target in paths and product_of(target) is not None
    }


def check_leaks(found: set[tuple[str, str]], listed: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    known = {(path, target) for path, targets in listed.items() for target in targets}
    for path, target in sorted(found - known):
        yield f"{path} imports {target}, of {product_of(target)}: the core imports no product"
    for path, target in sorted(known - found):
        yield f"{path} does not import {target} any more: take it out of LEAKS"


def check_closets(files: Iterable[str]) -> Iterator[str]:
    """Every folder of the product is in one list, and every listed folder is there."""
    files = set(files)
    listed = [*CORE, *(closet for closets in PRODUCTS.values() for closet in closets)]
    yield from (f"{one} is in two lists" for one in sorted({one for one in listed if listed.count(one) > 1}))
    folders = {path.rpartition("/")[0] for path in files if Source(path, "").room is not None and path.endswith(".py")}
    yield from (f"{one} is in no list: name its product, or CORE" for one in sorted(folders - set(listed)))
    held = {path.rpartition("/")[0] for path in files}
    yield from (f"{one} is not there: take it out of its list" for one in sorted(set(listed) - held))


def test_core_imports_no_product_beyond_the_listed_leaks(sources: list[Source]) -> None:
    problems = list(check_leaks(leaks_of(sources), LEAKS))
    assert not problems, "\n" + "\n".join(problems)


def test_every_closet_belongs_to_the_core_or_to_one_product(repo_files: list[str]) -> None:
    assert list(check_closets(repo_files)) == []


def test_page_of_the_architecture_has_the_same_table(repo_root: Path) -> None:
    page = (repo_root / "docs/internals/architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (`[^|]*`) \|", page, re.MULTILINE))
    shown = {name: folders.replace("`", "").split(", ") for name, folders in rows.items()}
    assert shown == {name: sorted(closets) for name, closets in {"core": CORE, **PRODUCTS}.items()}


@pytest.mark.parametrize(
    "text",
    [
        "from standfast.ops.http.server import OpsServer",
        "def f():\n    import standfast.ops.http.server",
        "if TYPE_CHECKING:\n    from standfast.ops.http import server",
        "import_module('standfast.ops.http.server')",
        "SERVER = 'standfast.ops.http.server:OpsServer'",
    ],
)
def test_leak_is_found_once_and_one_that_is_gone_too(text: str) -> None:
    (server,) = plant("ops/http/server.py", "")
    found = leaks_of([*plant("stream/a.py", text), server])
    assert found == {("stream/a.py", "ops/http/server.py")}
    assert len(list(check_leaks(found, {}))) == 1
    assert list(check_leaks(found, {"stream/a.py": ("ops/http/server.py",)})) == []
    assert len(list(check_leaks(set(), {"stream/a.py": ("ops/http/server.py",)}))) == 1


def test_closet_without_a_product_and_one_that_is_gone_are_found() -> None:
    files = [f"{one}/a.py" for one in (*CORE, *(closet for closets in PRODUCTS.values() for closet in closets))]
    assert list(check_closets(files)) == []
    assert len(list(check_closets([*files, "stream/unheard/a.py"]))) == 1
    assert len(list(check_closets(files[1:]))) == 1
