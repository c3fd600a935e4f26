"""The repository checks itself, second part: folders and lists that must agree, and text in any file.

Rules of this file: as in `test_tidy.py`: each check is a function from text to problems, and is shown to bite on a
planted violation.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module, metadata
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.groups import costly

NOT_PACKAGES = {"tests", "proof", "examples", "requirements"}
LOCK_FILES = {"package-lock.json", "yarn.lock", "pnpm-lock.yaml", "npm-shrinkwrap.json", "go.sum"}
PINNED = re.compile(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==([^ \\]+)", re.MULTILINE)
PINNED_EXTRAS = re.compile(r"^([a-z0-9._-]+)(?:\[([^\]]*)\])?==", re.MULTILINE)
METRIC_PAGE = "docs/reference/metrics.md"
METRIC_TABLE = re.compile(r"<!-- metrics -->\n(.*?)<!-- /metrics -->", re.DOTALL)
METRIC_ROW = re.compile(r"^\|\s*`([a-zA-Z0-9_:]+)`\s*\|", re.MULTILINE)
NAMED_TEST = re.compile(r"\b(?:test|fix)_\w+\.py\b")
MARKED_FILES = (".py", ".md", ".toml", ".yml", ".yaml", ".cfg", ".sh", "Makefile", ".ci/run", ".ci/nightly")

# Written in halves, so that this file passes its own checks.
_REGISTRIES = ("py" + "pi.", "python" + "hosted", "npm" + "js.", "crates" + ".io", "proxy.go" + "lang")
_REGISTRIES += (
    "repo1.ma" + "ven",
    "repo.ma" + "ven",
    "deb.de" + "bian",
    "--index" + "-url",
    "--extra-index" + "-url",
    "--find" + "-links",
)
HOSTS = re.compile("|".join(re.escape(host) for host in _REGISTRIES), re.IGNORECASE)
MARKS = re.compile(rf"\b(TO{''}DO|FIX{''}ME|X{''}XX|HA{''}CK|Not{''}ImplementedError)\b|\bfor now,? (?:we|it|this)\b")
PLACES = re.compile("/wo" + "rk/|/op" + "t/wheels|/ro" + "ot/")


def check_packages(pyproject: str, files: Iterable[str], links: Mapping[str, str]) -> Iterator[str]:
    """The package list, the package-dir table, the disk and the links for type checkers name the same folders."""
    setuptools = tomllib.loads(pyproject)["tool"]["setuptools"]
    files = set(files)
    inits = (name.removesuffix("/__init__.py") for name in files if re.fullmatch(r"([a-z_]+/)+__init__\.py", name))
    disk = {folder for folder in inits if folder.partition("/")[0] not in NOT_PACKAGES}
    rooms = {folder for folder in disk if "/" not in folder}
    wanted = {
        "standfast" if folder == "standfast" else f"standfast.{folder.replace('/', '.')}": folder for folder in disk
    }
    if set(setuptools["packages"]) != set(wanted):
        differs = sorted(set(setuptools["packages"]) ^ set(wanted))
        yield f"pyproject.toml packages and the folders on disk differ in {differs}: the wheel would lack folders"
    tops = {package: folder for package, folder in wanted.items() if folder in rooms}
    if setuptools["package-dir"] != tops:
        yield f"pyproject.toml package-dir {setuptools['package-dir']} does not fit the folders {tops}"
    for name in sorted(files):
        folder = name.rpartition("/")[0]
        if name.endswith(".py") and folder.partition("/")[0] in rooms and folder not in disk:
            yield f"{folder} holds {name} and no __init__.py: it would be absent from the wheel"
    for folder in sorted(rooms):
        if f"{folder}/py.typed" not in files:
            yield f"{folder}/py.typed is missing: type checkers would ignore the package"
        link = f"../../{folder}"
        if folder != "standfast" and links.get(folder) != link:
            yield f".typing/standfast/{folder} must be a link to {link}, not {links.get(folder)}"


def check_one_title(path: str, text: str) -> Iterator[str]:
    fenced = False
    titles = 0
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        titles += not fenced and line.startswith("# ")
    if titles != 1:
        yield f"{path}: {titles} titles; a page has one line that begins with `# `"


def check_text(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if HOSTS.search(line):
            yield f"{path}:{number}: names a package registry or an index; the user's own settings choose it"
        if PLACES.search(line):
            yield f"{path}:{number}: names a folder of one machine"
        if path.endswith(MARKED_FILES) and MARKS.search(line):
            yield f"{path}:{number}: unfinished work; finish it or leave it out"


def check_named_tests(path: str, text: str, files: Iterable[str]) -> Iterator[str]:
    """A page names only existing test files."""
    there = {file.rpartition("/")[2] for file in files}
    for name in NAMED_TEST.findall(text):
        if name not in there:
            yield f"{path}: names {name}, which is not there: name the file that took its place"


def check_no_lock_file(path: str) -> Iterator[str]:
    name = PurePosixPath(path).name
    if name.endswith(".lock") or name in LOCK_FILES:
        yield f"{path}: a lock file; versions are pinned in requirements/ only"


def check_metric_table(metrics: Iterable[str], page: str) -> Iterator[str]:
    """The table between `<!-- metrics -->` marks of the reference lists exactly the existing metrics."""
    metrics = list(metrics)
    table = METRIC_TABLE.search(page)
    if table is None:
        yield f"{METRIC_PAGE}: no table between <!-- metrics --> and <!-- /metrics -->"
        return
    rows = METRIC_ROW.findall(table.group(1))
    for kind, names in (("ops/observe/metrics_list.py", metrics), (METRIC_PAGE, rows)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield f"{kind} lists twice: {twice}"
    if set(metrics) - set(rows):
        yield f"{METRIC_PAGE} lacks the metrics {sorted(set(metrics) - set(rows))}"
    if set(rows) - set(metrics):
        yield f"{METRIC_PAGE} lists metrics that do not exist: {sorted(set(rows) - set(metrics))}"


@pytest.fixture(scope="module")
@costly()
def texts(repo_root: Path, repo_files: list[str]) -> dict[str, str]:
    binary = (".gz", ".png", ".jpg", ".zip", ".sst", ".bin")
    return {name: (repo_root / name).read_text(encoding="utf-8") for name in repo_files if not name.endswith(binary)}


def test_package_list_is_the_disk(repo_root: Path, repo_files: list[str], texts: dict[str, str]) -> None:
    typing_folder = repo_root / ".typing/standfast"
    links = {link.name: str(link.readlink()) for link in typing_folder.iterdir() if link.is_symlink()}
    assert list(check_packages(texts["pyproject.toml"], repo_files, links)) == []
    assert links["__init__.py"] == "../../standfast/__init__.py"


def test_every_page_has_one_title(texts: dict[str, str]) -> None:
    pages = {path: text for path, text in texts.items() if path.endswith(".md")}
    assert [problem for path, text in pages.items() for problem in check_one_title(path, text)] == []


def test_no_registry_no_machine_and_no_unfinished_work_is_named(texts: dict[str, str]) -> None:
    assert [problem for path, text in texts.items() for problem in check_text(path, text)] == []


def test_every_file_of_tests_that_a_page_names_is_there(texts: dict[str, str], repo_files: list[str]) -> None:
    pages = {path: text for path, text in texts.items() if path.endswith(".md")}
    assert [problem for path, text in pages.items() for problem in check_named_tests(path, text, repo_files)] == []


def test_no_lock_file_is_kept(repo_files: list[str]) -> None:
    assert [problem for path in repo_files for problem in check_no_lock_file(path)] == []


def test_metric_list_is_the_table_of_the_reference(texts: dict[str, str]) -> None:
    metrics = [metric.name for metric in import_module("standfast.ops.observe.metrics_list").METRICS]
    assert list(check_metric_table(metrics, texts[METRIC_PAGE])) == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/index.md",
        "docs/internals/architecture.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
        "Makefile",
        ".ci/run",
        ".ci/nightly",
        "tests/README.md",
        "requirements/core.txt",
        "requirements/spark.txt",
        "requirements/dev.txt",
    ],
)
def test_front_page_is_there(page: str, repo_files: list[str]) -> None:
    assert page in repo_files


def test_pinned_lists_hold_hashes_and_agree(texts: dict[str, str]) -> None:
    names = ("core", "spark", "dev")
    core, spark, dev = (dict(PINNED.findall(texts[f"requirements/{name}.txt"])) for name in names)
    assert core
    assert core.items() < spark.items(), "requirements/spark.txt pins other versions than core.txt; run `make pins`"
    assert spark.items() < dev.items(), "requirements/dev.txt pins other versions than spark.txt; run `make pins`"
    for path in (
        *(f"requirements/{name}.txt" for name in (*names, "mutation")),
        "proof/benchmarks/quix.txt",
        "proof/benchmarks/plots.txt",
    ):
        entries = re.split(r"^(?=[a-z0-9])", texts[path], flags=re.MULTILINE)[1:]
        assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_pins_name_the_extras_that_others_ask_of_them(texts: dict[str, str]) -> None:
    """Without them pip takes the newest version for the extras, and refuses it on its first day: not pinned."""
    found = PINNED_EXTRAS.findall(texts["requirements/dev.txt"])
    pinned = {name: {extra.strip() for extra in extras.split(",") if extra} for name, extras in found}
    asked = [
        (name, one)
        for name, extras in pinned.items()
        for line in _requires(name)
        for one in [Requirement(line)]
        if one.extras and any(one.marker is None or one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
    assert ("pytest-cov", "coverage") in {(name, one.name) for name, one in asked}, "nothing was looked at"
    missing = [f"{name} asks for {one}" for name, one in asked if not one.extras <= pinned[canonicalize_name(one.name)]]
    assert missing == [], "run `make pins`"


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []  # for another platform


GOOD_PYPROJECT = """
[tool.setuptools]
packages = ["standfast", "standfast.store"]
[tool.setuptools.package-dir]
"standfast" = "standfast"
"standfast.store" = "store"
"""
GOOD_FILES = ("standfast/__init__.py", "standfast/py.typed", "store/__init__.py", "store/py.typed", "tests/a.py")


NESTED_PYPROJECT = GOOD_PYPROJECT.replace('"standfast.store"]', '"standfast.store", "standfast.store.inner"]')
INNER = "store/inner/__init__.py"


def test_good_package_list_is_accepted() -> None:
    assert list(check_packages(GOOD_PYPROJECT, GOOD_FILES, {"store": "../../store"})) == []
    assert list(check_packages(NESTED_PYPROJECT, (*GOOD_FILES, INNER), {"store": "../../store"})) == []


@pytest.mark.parametrize(
    ("pyproject", "files", "links"),
    [
        (GOOD_PYPROJECT.replace(', "standfast.store"', ""), GOOD_FILES, {"store": "../../store"}),
        (GOOD_PYPROJECT.replace('= "store"', '= "stores"'), GOOD_FILES, {"store": "../../store"}),
        (GOOD_PYPROJECT, (*GOOD_FILES, "extra/__init__.py", "extra/py.typed"), {"store": "../../store"}),
        (GOOD_PYPROJECT, GOOD_FILES[:3], {"store": "../../store"}),
        (GOOD_PYPROJECT, (*GOOD_FILES, "store/inner/a.py"), {"store": "../../store"}),
        (GOOD_PYPROJECT, (*GOOD_FILES, "store/inner/__init__.py", "store/inner/a.py"), {"store": "../../store"}),
        (NESTED_PYPROJECT, GOOD_FILES, {"store": "../../store"}),
        (NESTED_PYPROJECT, (*GOOD_FILES, "store/inner/deep/a.py", INNER), {"store": "../../store"}),
        (GOOD_PYPROJECT, GOOD_FILES, {"store": "../store"}),
        (GOOD_PYPROJECT, GOOD_FILES, {}),
    ],
)
def test_package_list_that_differs_is_found(pyproject: str, files: tuple[str, ...], links: dict[str, str]) -> None:
    assert list(check_packages(pyproject, files, links))


@pytest.mark.parametrize("text", ["no title\n", "# one\n\n# two\n", "```\n# not a title\n```\n"])
def test_page_without_exactly_one_title_is_found(text: str) -> None:
    assert list(check_one_title("page.md", text))
    assert list(check_one_title("page.md", "# one\n```\n# a comment\n```\n## below\n")) == []


def test_file_of_tests_that_is_not_there_is_found() -> None:
    assert list(check_named_tests("page.md", "run `tests/test_gone.py`", ["tests/test_here.py"]))
    assert list(check_named_tests("page.md", "run `tests/test_here.py`, `test_*.py`", ["tests/test_here.py"])) == []


@pytest.mark.parametrize("host", _REGISTRIES)
def test_registry_in_any_file_is_found(host: str) -> None:
    assert list(check_text("requirements/core.txt", f"# from {host}x\n"))


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "X" + "XX", "Not" + "ImplementedError", "for" + " now it"])
def test_unfinished_work_is_found(mark: str) -> None:
    assert list(check_text("store/a.py", f"x = 1  # {mark}\n"))
    assert list(check_text("Makefile", f"# {mark} later\n"))


def test_folder_of_one_machine_is_found() -> None:
    assert list(check_text("README.md", "see /wo" + "rk/x\n"))


@pytest.mark.parametrize("name", ["uv.lock", "poetry.lock", "web/package-lock.json", "Cargo.lock"])
def test_lock_file_is_found(name: str) -> None:
    assert list(check_no_lock_file(name))


README = "# x\n<!-- metrics -->\n| name | kind |\n|---|---|\n| `a_total` | x |\n| `b` | x |\n<!-- /metrics -->\n"


def test_metric_table_that_agrees_is_accepted() -> None:
    assert list(check_metric_table(["a_total", "b"], README)) == []


@pytest.mark.parametrize(
    ("metrics", "readme"),
    [
        (["a_total"], README),
        (["a_total", "b", "c"], README),
        (["a_total", "b", "b"], README),
        (["a_total", "b"], README.replace("| `b` |", "| `b` | x |\n| `b` |")),
        (["a_total", "b"], "# x\n| `a_total` |\n| `b` |\n"),
        (["a_total", "b"], README.replace("`b`", "`bb`")),
    ],
)
def test_metric_table_that_differs_is_found(metrics: list[str], readme: str) -> None:
    assert list(check_metric_table(metrics, readme))
