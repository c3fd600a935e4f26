"""The cost of the checks of `serde.json`, beside an encode without them: python proof/benchmarks/json_checks.py

    values    a number, a row of a dashboard, a nested order, a list of 1,000 numbers, a document of 20 KB
    times     of the thread: the least of 301 short runs of both in turns, so that a busy machine changes little

Rules of this file: it runs the serde itself, against the same encoder of the standard library without any check.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

from standfast.store import serde
from standfast.store.native_module import compiled

RUNS, NS = 301, 200_000  # of one run, about
ORDER = {
    "id": "a-1009", "at": 1357020000000, "paid": True, "total": 99.5, "note": None, "tags": ["new", "gift"],
    "lines": [{"sku": f"s-{number}", "count": number, "price": 1.25 * number} for number in range(1, 6)],
}  # fmt: skip
VALUES: dict[str, Any] = {
    "a text": "JFK",
    "a number": 404,
    "row": {"airport": "JFK", "delay": 12, "late": True, "rate": 0.25},
    "order": ORDER,
    "1,000 numbers": list(range(1_000)),
    "1,000 counts": {f"code-{number}": number for number in range(1_000)},
    "document": {"orders": [ORDER] * 60},
}


def main() -> None:
    """Measure and print."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
    print(f"checks: {compiled().text if compiled().module is None else 'compiled'}")
    print(f"{'value':15}{'bytes':>8}{'encode ns':>12}{'with checks':>13}{'more':>8}")
    for name, value in VALUES.items():
        plain, checked = least(lambda given: encode(given).encode(), serde.json.serialize, value)
        print(f"{name:15}{len(encode(value)):8,}{plain:12,.0f}{checked:13,.0f}{checked / plain - 1:8.1%}")


def least(one: Callable[[Any], bytes], other: Callable[[Any], bytes], value: Any) -> tuple[float, float]:
    """The least nanoseconds of a call of each."""
    count = max(1, int(NS / min(timed(one, value, 1) for _ in range(20))))
    return tuple(min(column) for column in zip(*((timed(one, value, count), timed(other, value, count))
                                                 for _ in range(RUNS)), strict=True))  # type: ignore[return-value]  # fmt: skip


def timed(call: Callable[[Any], bytes], value: Any, count: int) -> float:
    """Nanoseconds of one of `count` calls."""
    start = thread_time_ns()
    for _ in range(count):
        call(value)
    return (thread_time_ns() - start) / count


if __name__ == "__main__":
    main()
