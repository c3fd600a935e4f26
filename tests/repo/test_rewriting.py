"""The share of rewritten assertions that a process writes is what pytest reads at the collection."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, get_cache_dir

from support import rewriting

COUNT = 4  # processes


class Process:
    """A session of pytest in one of COUNT processes."""

    def __init__(self, config: pytest.Config, folder: Path, number: int) -> None:
        self.config = self
        self.args, self.stash = [str(folder)], config.stash
        self.workerinput = {"workerid": f"gw{number}", "workercount": COUNT}
        self._real = config

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_processes_rewrite_each_file_once_for_all_of_them(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    paths = [tmp_path / f"test_{number}.py" for number in range(10)]
    for path in paths:
        path.write_text(f"def test(): assert {path.stem!r} == 'a'\n")
    (tmp_path / "helper.py").write_text("assert True\n")
    for number in range(COUNT):
        before = rewritten(tmp_path)
        rewriting.pytest_collection(Process(request.config, tmp_path, number))  # type: ignore[arg-type]
        assert len(rewritten(tmp_path)) - len(before) in (2, 3)  # its share
    assert {path.name for path in rewritten(tmp_path)} == {path.stem + PYC_TAIL for path in paths}
    for path in paths:
        code = _read_pyc(path, get_cache_dir(path) / (path.stem + PYC_TAIL))
        assert code is not None and "@pytest_ar" in code.co_names


def rewritten(folder: Path) -> list[Path]:
    return list((folder / "__pycache__").glob("*")) if (folder / "__pycache__").exists() else []
