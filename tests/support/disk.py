"""A real small file system for tests of full disks: a tmpfs of its own, which only root can mount.

    small_disk(48) -> Path      a mount of 48 MiB; fill(path, left) leaves so many bytes free
    read_only                   a folder in which nothing can be written
    read_only_over(folder)      a block in which no file of the folder can be opened for writing, or removed

Rules of this file: a fixture unmounts its file systems, whatever files a test left open there. Without the right to
mount, a test is skipped with that reason, and with CI set it fails: no substitute stands in for a full file system.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.missing import missing

PIECE = bytes(64 << 10)
MS_RDONLY, MNT_DETACH = 1, 2


def free_bytes(path: Path) -> int:
    """Bytes that may still be written there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def fill(path: Path, left_bytes: int = 0) -> Path:
    """Write a file until only so many bytes are free; returns the file, to be removed."""
    filler = path / "filler"
    with filler.open("ab", buffering=0) as file:
        while (room := free_bytes(path) - left_bytes) > 0:
            try:
                if not file.write(PIECE[:room]):
                    break
            except OSError:  # another process took the last page
                break
    return filler


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many MiB."""
    mounted: list[Path] = []

    def mount(mebibytes: int) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "standfast-test", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            missing(f"a small file system must be mounted, which needs root: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def read_only_over(folder: Path) -> Iterator[None]:
    """Mount the folder over itself, read-only: one with files that are open for writing would refuse to become so."""
    done = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"a folder must be mounted read-only, which needs root: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that is mounted read-only; where mounting is impossible, a folder of mode 0500."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", MS_RDONLY, None) == 0
    if not mounted:
        if os.geteuid() == 0:
            missing("a read-only file system must be mounted: root may write into every other folder")
        folder.chmod(0o500)
    yield folder
    if mounted:
        libc.umount2(os.fsencode(folder), MNT_DETACH)
