"""The compiled parts under the sanitizers of the compiler, with records of any shape: no byte out of place.

The module is built again with AddressSanitizer and UndefinedBehaviorSanitizer, and a child process feeds it records of
random shapes, rules and sizes, and misuses it. A broker is not needed: the client meets one that never answers.
A second build lets memory, disk, threads and Python objects fail, call by call.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

FLAGS = ["-O1", "-g", "-std=gnu11", "-fPIC", "-shared", "-fno-omit-frame-pointer"]
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SCRIPT = """
import importlib.util, random, socket, sys
import confluent_kafka
from standfast.replication.kafka.native_library import loaded

spec = importlib.util.spec_from_file_location("standfast.store._native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
native.load(loaded()[0])
chance = random.Random(int(sys.argv[2]))


def cell(most, null=0.1):
    return None if chance.random() < null else chance.randbytes(chance.choice([0, 1, 7, 8, 9, 12, 16, most]))


def no_word():
    return None


for turn in range(400):
    spills = []
    suffix = chance.choice([0, 0, 12, 16])
    numbered = suffix == 12 and chance.random() < 0.5
    fold = native.Fold(chance.random() < 0.5, suffix, numbered, 120_000, 60_000, chance.choice([-1, 0, 10**6]))
    for _ in range(chance.randrange(1, 5)):
        count = chance.randrange(0, 300)
        longest = chance.choice([40, 40, 40, 130, 223, 260])
        keys = [cell(longest) for _ in range(count)]
        if suffix and chance.random() < 0.9:
            tails = [chance.randrange(10**6).to_bytes(8, "big") + bytes(suffix - 8) for _ in range(count)]
            keys = [None if key is None else key + tail for key, tail in zip(keys, tails)]
        values = [cell(chance.choice([3, 3, 100_000]), 0.2) for _ in range(count)]
        if chance.random() < 0.5:  # rows that a file compresses
            values = [value and value[:3] * chance.randrange(1, 900) for value in values]
        stamps = [chance.randrange(-1, 2**62) for _ in range(count)]
        part = native.part_of("t", 0, list(range(count)), stamps, keys, values)
        start = chance.randrange(count + 1)
        stop = chance.randrange(start, count + 1)
        assert part.columns(start, stop)[2:4] == (keys[start:stop], values[start:stop])
        part.find(chance.randrange(-5, 400)), part.payload(start, stop)
        bad, _, _ = fold.add(part, start, stop)
        del part
        for segment, first, last, deletes in fold.sort() if chance.random() < 0.5 else ():
            found, rows, _ = native.merged_rows((), fold, segment, None, last - first)
            assert found == sorted(set(found)) and len(found) == last - first, "rows of a segment ascend"
            assert rows.count(None) == deletes
            if fold.short_keys:
                paths = tuple(sys.argv[3] + str(at) for at in range(chance.randrange(1, 4)))
                block = chance.choice([1, 64, 8_192])
                files, _ = native.merge(paths, len(paths), (), fold, segment, True, block, lambda: None)
                assert next(one[2] for one in files if one) == found[0]
                assert sum(one[0] for one in files if one) == len(found)
                files, dropped = native.merge(paths, 1, (), fold, segment, False, 8_192, lambda: None)
                assert (sum(one[0] for one in files if one), dropped) == (last - first - deletes, deletes)
                if files[0]:
                    native.digest_of(paths[0])
        if chance.random() < 0.5:  # rows leave memory, all of them or those of later segments
            fold.sort()
            spills = [*spills[-5:], native.Spill(fold, sys.argv[3] + "-spill", chance.choice([-(2**63), 3]), no_word)]
            fold.clear()
        groups = {segment: last - first for segment, first, last, _ in fold.sort()}
        for segment in {*groups, *(one[0] for spill in spills for one in spill.segments)}:
            found, rows, after = native.merged_rows(tuple(spills), fold, segment, None, 10**6)
            assert after is None and found == sorted(set(found)), "of a key one row"
            most = chance.randrange(1, 50)
            again, place, begun = [], None, False
            while place is not None or not begun:
                some, _, place = native.merged_rows(tuple(spills), fold, segment, place, most)
                again, begun = again + some, True
            assert again == found
            if fold.short_keys and all(spill.short_keys for spill in spills):
                paths = tuple(sys.argv[3] + str(at) for at in range(chance.randrange(1, 6)))
                for deletes in (True, False):
                    threads = chance.randrange(1, 4)
                    files, dropped = native.merge(paths, threads, tuple(spills), fold, segment, deletes, 8_192, no_word)
                    assert sum(one[0] for one in files if one) == len(found) - dropped
                    assert dropped == (0 if deletes else rows.count(None))
        for wrong in (("/dev/full", 0), ("/", 0), ("nul\\0", 0), (sys.argv[3], 10**6)):
            try:
                native.merge((wrong[0], wrong[0]), 2, tuple(spills), fold, wrong[1], True, 8_192, no_word)
            except (OSError, RuntimeError, ValueError):
                pass
            else:
                raise AssertionError(wrong)
        for wrong in ("/dev/full", "/no/such/folder", "nul\\0"):
            try:
                native.Spill(fold, wrong, 0, no_word)
            except (OSError, ValueError):
                pass
            else:
                raise AssertionError(wrong)
        if chance.random() < 0.2:
            fold.clear()

with socket.create_server(("127.0.0.1", 0)) as silent:
    for _ in range(5):
        client = native.Client([("bootstrap.servers", "127.0.0.1:%d" % silent.getsockname()[1]), ("group.id", "g")])
        client.assign([("t", 0, 0), ("t", 1, 5)])
        client.consume(100, 50)
        client.pause([("t", 0, 0)]), client.resume([("t", 0, 0)]), client.unassign([("t", 1, 0)])
        client.end("t", 0)
        for settings in ([("no.such", "1")], [("group.id",)], [("group.id", 1)]):
            try:
                native.Client(settings)
            except (native.Error, IndexError, TypeError):
                pass
            else:
                raise AssertionError(settings)
        if chance.random() < 0.5:
            client.close()
        del client
    # Records that no broker answers for: some fill the queue, some are over the limit, some are dropped on the way.
    for turn in range(30):
        settings = {
            "bootstrap.servers": "127.0.0.1:%d" % silent.getsockname()[1],
            "queue.buffering.max.messages": "200",
            "message.max.bytes": "50000",
            "message.timeout.ms": chance.choice(["1", "1000"]),
        }
        if chance.random() < 0.3:
            settings["transactional.id"] = "t"
        producer = native.Producer(list(settings.items()))
        given = 0
        for _ in range(chance.randrange(1, 6)):
            count = chance.randrange(0, 150)
            keys = tuple(cell(40) for _ in range(count))
            values = tuple(cell(chance.choice([3, 3, 60_000]), 0.2) for _ in range(count))
            names = ["", "a", "\u00e4" * 20]
            headers = tuple(
                chance.choice([None, (), [(chance.choice(names), cell(30)) for _ in range(chance.randrange(4))]])
                for _ in range(count)
            )
            stamps = tuple(chance.randrange(1, 2**62) for _ in range(count))
            given_headers = headers if chance.random() < 0.5 else None
            start = chance.randrange(count + 1)
            assert native.columns_of(list(zip(keys, values, stamps)), 1, 2**62) == (keys, values, stamps)
            given_stamps, short = stamps, False
            if chance.random() < 0.4:  # rows of a store: each has its timestamp before its value
                given_stamps = None
                values = tuple(stamp.to_bytes(8, "big") + (value or b"") for stamp, value in zip(stamps, values))
                short = start < count and chance.random() < 0.3
                if short:
                    values = values[:-1] + (chance.choice([None, b"", b"7 bytes"]),)
                assert native.headed(keys, values, 1, 2**62) == (None not in keys and not short)
            try:
                partition = chance.randrange(3)
                taken = producer.produce("t", partition, keys, values, given_stamps, given_headers, start, 5)
                assert start <= taken <= count and not short
                given += taken > start
            except ValueError as error:
                assert short and "too short" in str(error)
            except native.Error as error:
                assert error.args[0] in (10, -172), error  # too large; no transaction
        producer.poll(0), producer.said(), len(producer)
        if chance.random() < 0.5:
            producer.purge()
            assert producer.flush(1_000) == 0
            assert all(one[0] == 0 for one in producer.delivered())
        for bad in (([b"k"], (b"v",), (1,), None), ((b"k",), (5,), (1,), None), ((b"k",), (b"v",), (1,), ((5,),))):
            try:
                producer.produce("t", 0, *bad, 0, 0)
            except TypeError:
                pass
            else:
                raise AssertionError(bad)
        for call in (producer.begin, lambda: producer.commit(1), lambda: producer.init_transactions(1)):
            try:
                call()
            except native.Error as error:
                assert len(error.args) == 5
        try:
            producer.offsets([("t", 0, 5, "text"), ("t", 1, 5, "")], b"CGMDv2:nonsense", 1)
        except native.Error:
            pass
        if chance.random() < 0.5:
            producer.close()
        del producer
print("clean")
"""


# Columns whose methods run code of Python in the middle of a call: a fresh cell that nothing holds, a length that is a
# lie, a number whose conversion empties the lists.
SUBCLASSES = """
import gc, importlib.util, socket, sys
import confluent_kafka
from standfast.replication.kafka.native_library import loaded

spec = importlib.util.spec_from_file_location("standfast.store._native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
native.load(loaded()[0])
COUNT, LARGE = 50, 5_000


class Fresh:
    def __getitem__(self, at):
        if isinstance(self, list):
            self.clear()
        return bytes([at % 250]) * LARGE

    def __len__(self):
        return COUNT

    def __iter__(self):
        return iter(())


class FreshList(Fresh, list):
    pass


class FreshTuple(Fresh, tuple):
    pass


class Long(list):
    def __len__(self):
        return 2**62


class Number:
    "It changes the lists while it is asked for."

    def __index__(self):
        for one in others:
            one[:] = how(one)
        return 7


class Numbers(list):
    def __getitem__(self, at):
        return Number().__index__()


class Trap:
    "In a cycle that the next collection ends."

    def __init__(self, rows):
        self.rows, self.own = rows, self

    def __del__(self):
        self.rows.clear()


def cells(kind=list):
    return kind(bytes([at]) * LARGE for at in range(COUNT))


def refused(call, *given):
    try:
        call(*given)
    except TypeError:
        return
    raise AssertionError(given)


stamps = [1] * COUNT
for kind in (FreshList, FreshTuple):
    for keys, values in ((cells(kind), cells()), (cells(), cells(kind)), (cells(kind), cells(kind))):
        refused(native.part_of, "t", 0, range(COUNT), stamps, keys, values)

for how in (lambda one: [], lambda one: one[:3], lambda one: [b"x" * 9_000] * COUNT, lambda one: (one + one)[:200],
            lambda one: [None] * COUNT, lambda one: ["text"] * COUNT):
    for numbers in ([Number() for _ in range(COUNT)], [Number()] + [1] * (COUNT - 1), Numbers(stamps)):
        for side in (0, 1):
            others = [cells(), cells()]
            given = [numbers, stamps] if side == 0 else [stamps, numbers]
            try:
                part = native.part_of("t", 0, *given, *others)
            except (ValueError, TypeError, IndexError):
                continue
            found = part.columns(0, len(part))
            assert [found[2], found[3]] == others, "the cells of one moment"

for rows in ([(b"k", b"v", 1)] * COUNT, []):
    for threshold in range(1, 6):
        held = list(rows)
        gc.collect()
        Trap(held)
        before = gc.get_threshold()
        gc.set_threshold(threshold)
        try:
            found = native.columns_of(held, 1, 2**62)
        except IndexError:
            found = None
        gc.set_threshold(*before)
        assert found in (None, ((b"k",) * COUNT, (b"v",) * COUNT, (1,) * COUNT), ((), (), ()))
assert native.columns_of(FreshList(rows), 1, 2**62) is None

with socket.create_server(("127.0.0.1", 0)) as silent:
    address = "127.0.0.1:%d" % silent.getsockname()[1]
    producer = native.Producer([("bootstrap.servers", address), ("message.timeout.ms", "1")])
    whole = [cells(tuple), cells(tuple), (1,) * COUNT, None]
    for at in range(4):
        columns = list(whole)
        columns[at] = FreshTuple([1] * COUNT) if at == 2 else cells(FreshTuple)
        refused(producer.produce, "t", 0, *columns, 0, 0)
    for headers in (Long([("h", b"v")]), FreshList(), FreshTuple(), "text", {"h": b"v"}):
        refused(producer.produce, "t", 0, (b"k",), (b"v",), (1,), (headers,), 0, 0)
    refused(producer.offsets, Long([("t", 0, 5)]), b"group", 1)
    producer.purge()
    producer.close()
    client = native.Client([("bootstrap.servers", address), ("group.id", "g")])
    for given in (Long([("t", 0, 0)]), FreshList(), FreshTuple(), {}, "text"):
        for call in (client.assign, client.unassign, client.pause, client.resume):
            refused(call, given)
    client.close()
print("clean")
"""


FAULTS = "tests/support/programs/native_faults.h"


def build(repo_root: Path, folder: Path, *more: str) -> Path:
    """The module under the sanitizers."""
    built = folder / "_native.abi3.so"
    sources = sorted(map(str, (repo_root / "store/native").glob("*.c")))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["gcc", *FLAGS, *CHECKS, *more, include, *sources, "-o", str(built)], check=True)
    return built


@pytest.fixture(scope="module")
def failing_module(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing")
    return build(repo_root, folder, "-D_GNU_SOURCE=", "-include", str(repo_root / FAULTS))


@pytest.fixture(scope="module")
def checked_module(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(repo_root, tmp_path_factory.mktemp("native"))


def _runtime(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def checked(*command: str) -> None:
    """Run a program of Python under the sanitizers, which prints "clean"."""
    environment = os.environ | {
        "LD_PRELOAD": f"{_runtime('libasan.so')} {_runtime('libubsan.so')}",
        # Python and librdkafka keep memory until the process ends; another test looks for leaks.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    child = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (child.returncode, child.stdout.strip()) == (0, "clean"), child.stderr[-4_000:]


@pytest.mark.parametrize("seed", range(3))
def test_records_of_any_shape_pass_the_sanitizers(checked_module: Path, tmp_path: Path, seed: int) -> None:
    checked("-c", SCRIPT, str(checked_module), str(seed), str(tmp_path / "file"))


def test_column_of_a_subclass_is_refused_and_numbers_that_change_the_lists_give_the_cells_of_one_moment(
    checked_module: Path,
) -> None:
    checked("-c", SUBCLASSES, str(checked_module))


def test_call_of_the_machine_that_fails_is_an_error_that_loses_no_row_and_no_memory(
    failing_module: Path, repo_root: Path, tmp_path: Path
) -> None:
    checked(str(repo_root / "tests/support/native_faults_child.py"), str(failing_module), str(tmp_path))


@pytest.mark.parametrize("seed", range(2))
def test_programs_have_one_outcome_on_both_buffers_and_lose_no_reference(
    failing_module: Path, repo_root: Path, seed: int
) -> None:
    checked(str(repo_root / "tests/support/native_buffers_child.py"), str(failing_module), str(seed))


def test_big_endian_machine_gets_no_module_with_wrong_numbers(repo_root: Path) -> None:
    source = repo_root / "store/native/merge.c"
    include = f"-I{sysconfig.get_path('include')}"
    other = "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"
    compiled = subprocess.run(
        ["gcc", "-w", "-std=gnu11", "-fsyntax-only", include, other, str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode != 0 and "this module is for little-endian machines" in compiled.stderr
