"""README and the documentation site: sizes, links, names, and a build without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import standfast

README_LINES_MAX = 250
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_readme_can_be_read_to_its_end(repo_root: Path) -> None:
    lines = (repo_root / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES_MAX


def test_no_file_holds_the_lines_of_a_merge_that_was_not_resolved(repo_root: Path, repo_files: list[str]) -> None:
    sides = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert sides.search(b"a\n" + b"<" * 7 + b" HEAD\nb\n") and not sides.search(b" " + b"<" * 7 + b" HEAD")
    assert [name for name in repo_files if sides.search((repo_root / name).read_bytes())] == []


def test_files_that_pages_link_to_are_there(repo_root: Path, repo_files: list[str]) -> None:
    pages = [name for name in repo_files if name.endswith(".md") and not name.startswith("tests/fixtures")]
    links = [
        (page, target)
        for page in pages
        for target in LINK.findall(FENCE.sub("", (repo_root / page).read_text(encoding="utf-8")))
    ]
    assert len(links) > 30
    assert [link for link in links if not (repo_root / link[0]).parent.joinpath(link[1]).exists()] == []


def test_every_public_class_function_and_error_is_on_the_python_page(repo_root: Path) -> None:
    page = (repo_root / "docs/reference/python.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", page, re.MULTILINE))
    callable_names = {name for name in standfast.__all__ if callable(getattr(standfast, name))}
    assert len(callable_names) > 40
    assert callable_names - shown == set()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long
def test_documentation_is_built_without_a_warning(repo_root: Path, tmp_path: Path) -> None:
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "doctrees"]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, repo_root / "docs", tmp_path / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    for page in (repo_root / "docs").rglob("*.md"):
        name = page.relative_to(repo_root / "docs").with_suffix(".html")
        assert "generated" in name.parts or (tmp_path / "html" / name).stat().st_size > 2_000
