"""Folds, spills and merges in the module of native_faults.h while each call of the machine fails in its turn.

    python native_faults_child.py MODULE FOLDER

A failed step raises, frees its memory and files, and is done again; in the end rows and files are those of a run
without a fault. Nothing else is a result. Prints "clean".
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MASKS = {"memory": 1, "full": 2, "mute": 4, "cut": 8, "close": 16, "thread": 32, "open": 64, "unlink": 128}
SHORT = 256
ERRORS = (MemoryError, OSError)
MOST = 60  # calls of a kind that fail in turn; of more of them a sample


def load(path: str) -> tuple[Any, dict[str, ctypes.c_int]]:
    """The module, and the numbers by which its faults are set."""
    spec = importlib.util.spec_from_file_location("standfast.store._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = ctypes.CDLL(path)
    names = ("fault_mask", "fault_at", "fault_seen", "fault_live")
    return module, {name: ctypes.c_int.in_dll(library, name) for name in names}


class Scene:
    """Two folds' worth of rows, of which the first leaves memory, merged to files: by steps that may fail."""

    def __init__(self, native: Any, folder: Path, *, times: bool, deletes: bool) -> None:
        self.native = native
        self.folder = folder
        self.deletes = deletes
        self.rule = (True, 12, False, 10**9, 60_000) if times else (True,)
        chance = random.Random(1)
        self.parts = [self._part(chance, times, value_bytes) for value_bytes in (900, 300)]

    def _part(self, chance: random.Random, times: bool, value_bytes: int) -> Any:
        count = 400
        keys = [b"key-%04d" % chance.randrange(600) for _ in range(count)]
        if times:
            keys = [key + (chance.randrange(3) * 60_000).to_bytes(8, "big") + bytes(4) for key in keys]
        values = [None if chance.random() < 0.1 else chance.randbytes(value_bytes) for _ in range(count)]
        return self.native.part_of("t", 0, list(range(count)), [1] * count, keys, values)

    def run(self, step: Callable[..., Any]) -> Any:
        """All results; each call goes through `step`, which may do it twice."""
        native, part_of_fold = self.native, iter(self.parts)
        fold = native.Fold(*self.rule)

        def look() -> None:
            pass

        def add() -> None:
            part = next(part_of_fold)
            try:
                fold.add(part, 0, len(part))
            except MemoryError:
                raise Spoilt(fold) from None

        def rows(segment: int) -> Iterator[Any]:
            after = b""
            while after is not None:
                found = step(native.merged_rows, tuple(spills), fold, segment, after or None, 500)
                yield found[:2]
                after = found[2]

        spills: list[Any] = []
        step(add)
        step(fold.sort)
        spills.append(step(native.Spill, fold, str(self.folder / "spill"), -(2**63), look))
        step(fold.clear)
        step(add)
        groups = step(fold.sort)
        found: list[Any] = [groups, spills[0].segments, spills[0].size]
        paths = [self.folder / str(at) for at in range(3)]
        names = tuple(map(str, paths))
        for segment in sorted({one[0] for one in groups}):
            for held in (tuple(spills), ()):
                made = step(native.merge, names, 2, held, fold, segment, self.deletes, 8_192, look)
                files = [path for path, one in zip(paths, made[0], strict=True) if one is not None]
                digests = [step(native.digest_of, str(path)) for path in files]
                found += [made, [path.read_bytes() for path in files], digests]
            found += rows(segment)
        return found


class Spoilt(Exception):
    """Memory ran out in the middle of an `add`: the fold must refuse its rows from then on."""

    def __init__(self, fold: Any) -> None:
        super().__init__()
        for call in (fold.sort, fold.clear):
            try:
                call()
            except RuntimeError as error:
                assert "ran out of memory" in str(error)
            else:
                raise AssertionError("rows of a fold that lost some")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def attack(scene: Scene, faults: dict[str, ctypes.c_int]) -> None:
    """Each call of each kind fails in its turn, alone and with short reads and writes between signals."""
    wanted = scene.run(lambda call, *given: call(*given))
    before = faults["fault_live"].value, descriptors()
    failed: list[str] = []

    def once(call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except ERRORS:
            failed.append("")
            (scene.folder / "spill").unlink(missing_ok=True)
            return call(*given)

    for name, mask in MASKS.items():
        faults["fault_mask"].value, faults["fault_at"].value, faults["fault_seen"].value = mask, 0, 0
        failed.clear()
        assert scene.run(once) == wanted and not failed
        calls = faults["fault_seen"].value
        assert calls, name
        chosen = range(1, calls + 1) if calls <= MOST else random.Random(name).sample(range(1, calls + 1), MOST)
        for at in chosen:
            faults["fault_at"].value, faults["fault_seen"].value = at, 0
            failed.clear()
            try:
                assert scene.run(once) == wanted, f"{name} {at}: other rows"
            except Spoilt:
                failed.append("")
            assert failed or name in ("thread", "memory", "close"), f"{name} {at}: no word"
            assert (faults["fault_live"].value, descriptors()) == before, f"{name} {at}: something is left"
    faults["fault_mask"].value = SHORT
    failed.clear()
    assert scene.run(once) == wanted and not failed, "short reads and writes, and signals"
    faults["fault_mask"].value = 0


def main() -> None:
    native, faults = load(sys.argv[1])
    for times, deletes in ((False, True), (True, False)):
        attack(Scene(native, Path(sys.argv[2]), times=times, deletes=deletes), faults)
    print("clean")


if __name__ == "__main__":
    main()
