"""The compiled parts under the sanitizers of the compiler, with records of any shape: no byte out of place.

The module is built again with AddressSanitizer and UndefinedBehaviorSanitizer, and a child process feeds it records of
random shapes, rules and sizes, and misuses it. A broker is not needed: the client meets one that never answers.
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

spec = importlib.util.spec_from_file_location("standfast.replication.kafka._native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
native.load(loaded()[0])
chance = random.Random(int(sys.argv[2]))


def cell(most, null=0.1):
    return None if chance.random() < null else chance.randbytes(chance.choice([0, 1, 7, 8, 9, 12, 16, most]))


for turn in range(400):
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
        for place, (_, first, last, deletes) in enumerate(fold.sort() if chance.random() < 0.5 else ()):
            found, _ = fold.rows(first, last, True)
            assert found == sorted(set(found)), "rows of a segment ascend"
            assert len(fold.rows(first, last, False)[0]) == last - first - deletes
            if fold.short_keys:
                paths = tuple(sys.argv[3] + str(at) for at in range(chance.randrange(1, 4)))
                files = fold.write(paths, place, True, chance.choice([1, 64, 8_192]), lambda: None)
                assert next(one[2] for one in files if one) == found[0]
                assert sum(one[0] for one in files if one) == len(found)
                files = fold.write(paths, place, False, 8_192, lambda: None)
                assert sum(one[0] for one in files if one) == last - first - deletes
                if files[0]:
                    native.digest_of(paths[0])
        for wrong in (("/dev/full", 0), (sys.argv[3], 10**6), ("/", 0), ("nul\\0", 0)):
            try:
                fold.write((wrong[0], wrong[0]), wrong[1], True, 8_192, len)
            except (OSError, RuntimeError, ValueError, TypeError):
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
            try:
                taken = producer.produce("t", chance.randrange(3), keys, values, stamps, given_headers, start, 5)
                assert start <= taken <= count
                given += taken > start
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


@pytest.fixture(scope="module")
def checked_module(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = repo_root / "replication/kafka/native"
    built = tmp_path_factory.mktemp("native") / "_native.abi3.so"
    include = sysconfig.get_path("include")
    sources = sorted(map(str, folder.glob("*.c")))
    subprocess.run(["gcc", *FLAGS, *CHECKS, f"-I{include}", *sources, "-o", str(built)], check=True)
    return built


def _runtime(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


@pytest.mark.parametrize("seed", range(3))
def test_records_of_any_shape_pass_the_sanitizers(checked_module: Path, tmp_path: Path, seed: int) -> None:
    environment = os.environ | {
        "LD_PRELOAD": f"{_runtime('libasan.so')} {_runtime('libubsan.so')}",
        # Python and librdkafka keep memory until the process ends; another test looks for leaks.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(checked_module), str(seed), str(tmp_path / "file")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (child.returncode, child.stdout.strip()) == (0, "clean"), child.stderr[-4_000:]
