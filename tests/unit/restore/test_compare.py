"""The merge of a verify against a plain model: dictionaries for the rows, and the table of verdicts as text.

Rules of this file: `expected` is the changelog's side, `actual` the store's. Both shells that feed the merge are
compared with each other in `tests/property/test_verify_model.py`.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.restore import compare
from standfast.restore.compare import (
    FOUND_OVERHEAD_BYTES,
    ComparisonOutcome,
    Tally,
    UnequalRow,
    merged,
    named,
    row_side,
)
from standfast.restore.digest import LogicalRow, digest_rows
from standfast.restore.verdict import LogFacts, conclude, is_beyond, judge
from standfast.store.errors import InternalError

EXPECTED: list[LogicalRow] = [(b"a", 1, b"1"), (b"b", 2, b"2"), (b"c", 3, b"3"), (b"d", 4, b"4")]
ACTUAL: list[LogicalRow] = [(b"a", 1, b"1"), (b"c", 3, b"x"), (b"d", 5, b"4"), (b"e", 5, b"5")]
WHOLE = LogFacts(0, compacted=False)

# The first matching line decides; a dot matches any value.
VERDICTS = """
kind      below  later  begin>0  compacted  expired  versioned  last   verdict
extra     no     .      yes      .          .        .          .      lost
extra     .      .      yes      yes        .        yes        .      lost
extra     .      .      .        yes        .        yes        .      indeterminate
extra     no     .      .        .          yes      .          .      indeterminate
extra     no     yes    .        yes        .        .          .      indeterminate
extra     no     .      .        .          .        .          .      extra
missing   .      .      .        yes        .        yes        .      indeterminate
.         .      yes    .        .          .        .          no     again
extra     .      .      .        .          .        no         .      stale
.         .      .      .        .          .        .          .      (kind)
"""
TABLE = [line.split() for line in VERDICTS.strip().splitlines()[1:]]


def said(kind: str, *facts: bool) -> str:
    """The table's verdict: below, later, begin>0, compacted, expired, versioned, last."""
    words = [kind, *("yes" if one else "no" for one in facts)]
    *_, verdict = next(line for line in TABLE if all(a in (".", b) for a, b in zip(line, words, strict=False)))
    return kind if verdict == "(kind)" else verdict


def outcome_of(
    expected: list[LogicalRow],
    actual: list[LogicalRow],
    *,
    versioned: bool = False,
    facts: LogFacts = WHOLE,
    **how: Any,
) -> ComparisonOutcome:
    """The merge of two sorted sides without a key that has a later record."""
    tally = Tally(WHOLE, versioned=versioned, last=True, **how)
    for _, one, other in tally.differing(named(expected, versioned), named(actual, versioned)):
        tally.differs(one, other, below=one is not None, later=False)
    return tally.outcome()


def test_every_verdict_on_a_row_is_that_of_the_table() -> None:
    seen = set()
    for kind in ("missing", "extra", "different"):
        for below, later, begins, compacted, expired, versioned, last in itertools.product((False, True), repeat=7):
            facts = LogFacts(7 if begins else 0, compacted, expired)
            verdict = judge(kind, facts, below=below, later=later, versioned=versioned, last=last)  # type: ignore[arg-type]
            assert verdict == said(kind, below, later, begins, compacted, expired, versioned, last)
            assert is_beyond(verdict, below=below, later=later) == (verdict == "extra" and later and not below)
            seen.add(verdict)
    assert seen == {"missing", "extra", "different", "stale", "indeterminate", "lost", "again"}


@pytest.mark.parametrize(
    ("wrong", "unsure", "lost", "matched", "beyond", "known", "verdict"),
    [
        (0, 0, 0, 0, 0, True, ("equal", "")),
        (0, 0, 0, 3, 0, True, ("equal", "")),
        (0, 2, 0, 3, 0, True, ("equal", "compacted-in-part")),
        (0, 2, 0, 0, 0, True, ("inconclusive", "compacted")),
        (0, 2, 1, 3, 0, True, ("inconclusive", "log-truncated")),
        (1, 0, 0, 3, 0, True, ("different", "")),
        (1, 2, 1, 3, 0, True, ("different", "log-truncated")),
        (2, 2, 0, 3, 1, True, ("different", "beyond-position")),
        (2, 2, 0, 0, 1, True, ("different", "compacted")),
        (1, 0, 0, 3, 0, False, ("inconclusive", "serdes-unknown")),
        (0, 0, 0, 3, 0, False, ("equal", "")),
    ],
)
def test_verdict_on_a_store_follows_from_its_numbers_of_rows(
    wrong: int, unsure: int, lost: int, matched: int, beyond: int, known: bool, verdict: tuple[str, str]
) -> None:
    assert conclude(wrong, unsure, lost, matched, beyond=beyond, serdes_known=known) == verdict


def test_each_kind_of_difference_is_counted_and_shown_in_order() -> None:
    found = outcome_of(EXPECTED, ACTUAL)
    assert (found.matched, found.counts) == (1, {"missing": 1, "different": 2, "extra": 1})
    assert found.found == [
        UnequalRow("missing", b"b", row_side((b"b", 2, b"2"), 0), None),
        UnequalRow("different", b"c", row_side((b"c", 3, b"3"), 0), row_side((b"c", 3, b"x"), 0)),
        UnequalRow("different", b"d", row_side((b"d", 4, b"4"), 0), row_side((b"d", 5, b"4"), 0)),
        UnequalRow("extra", b"e", None, row_side((b"e", 5, b"5"), 0)),
    ]


@pytest.mark.parametrize("rows", [[], EXPECTED])
def test_equal_sets_are_equal(rows: list[LogicalRow]) -> None:
    found = outcome_of(rows, list(rows))
    assert found == ComparisonOutcome(len(rows), {}, [], digest_rows(rows), digest_rows(rows))


@pytest.mark.parametrize(("limit", "kept"), [(0, 0), (3, 3), (4, 4), (5, 4)])
def test_only_the_first_differences_are_kept_but_all_are_counted(limit: int, kept: int) -> None:
    found = outcome_of(EXPECTED, ACTUAL, differences_max=limit)
    assert (len(found.found), sum(found.counts.values())) == (kept, 4)
    assert found.found == outcome_of(EXPECTED, ACTUAL).found[:limit]


def test_bytes_of_kept_differences_are_bounded_and_those_of_values_count() -> None:
    rows = [(b"k%d" % number, 1, b"v" * 100) for number in range(9)]
    size = FOUND_OVERHEAD_BYTES + 2
    assert len(outcome_of(rows, [], found_bytes=3 * size).found) == 3
    assert len(outcome_of(rows, [], found_bytes=3 * size + 1).found) == 4
    kept = outcome_of(rows, [], found_bytes=3 * (size + 10), value_max=10).found
    assert [one.log.value for one in kept if one.log is not None] == [b"v" * 10] * 3
    assert len(outcome_of(rows, [], found_bytes=3 * (size + 100) + 1, value_max=None).found) == 4
    pairs = outcome_of(rows, [(key, 2, value) for key, _, value in rows], found_bytes=2 * size + 400, value_max=None)
    assert len(pairs.found) == 2


def test_versions_of_a_key_are_rows_of_their_own() -> None:
    found = outcome_of([(b"a", 1, b"1"), (b"a", 2, b"2")], [(b"a", 1, b"1"), (b"a", 3, b"2")], versioned=True)
    assert (found.matched, found.counts) == (1, {"missing": 1, "extra": 1})


@pytest.mark.parametrize("side", ["expected", "actual"])
@pytest.mark.parametrize(("versioned", "says"), [(False, "key 64 twice"), (True, r"key 64 \(timestamp 4\) twice")])
def test_row_twice_on_one_side_is_our_bug(side: str, versioned: bool, says: str) -> None:
    rows = {"expected": EXPECTED, "actual": EXPECTED, side: [*EXPECTED, EXPECTED[-1]]}
    with pytest.raises(InternalError, match=f"{side} rows hold {says}"):
        outcome_of(rows["expected"], rows["actual"], versioned=versioned)


def test_rows_out_of_order_are_our_bug() -> None:
    with pytest.raises(InternalError, match="expected rows are not sorted at key 63"):
        outcome_of(EXPECTED[::-1], EXPECTED)
    with pytest.raises(InternalError, match="actual rows are not sorted at key 63"):
        outcome_of(EXPECTED, EXPECTED[::-1])


Side = dict[tuple[bytes, int], bytes]
KEYS = [b"", b"a", b"aa", b"b", b"\xff"]
ROWS = st.dictionaries(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), st.sampled_from([b"x", b"y", b""]))
SOME = st.sets(st.sampled_from(KEYS))


@given(ROWS, ROWS)
def test_merge_gives_every_name_once_in_order_with_the_rows_of_both_sides(left: Side, right: Side) -> None:
    assert list(merged(sorted(left.items()), sorted(right.items()))) == [
        (name, left.get(name), right.get(name)) for name in sorted({*left, *right})
    ]


@given(ROWS, ROWS, SOME, SOME, st.booleans(), st.booleans(), st.integers(0, 1), st.booleans(), st.booleans())
def test_tally_equals_a_comparison_of_dictionaries(
    left: Side,
    right: Side,
    below: set[bytes],
    later: set[bytes],
    versioned: bool,
    last: bool,
    begin: int,
    compacted: bool,
    expired: bool,
) -> None:
    def rows(side: Side) -> dict[Any, LogicalRow]:
        return {(name if versioned else name[0]): (*name, value) for name, value in sorted(side.items())}

    def side(of: dict[Any, LogicalRow], name: Any) -> Any:
        return row_side(of.get(name), 0)

    one, other = rows(left), rows(right)
    equal = [row for name, row in one.items() if other.get(name) == row]
    wrong: list[tuple[str, Any]] = []
    counts: dict[str, int] = {}
    beyond = 0
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            kind = "missing" if name not in other else "extra" if name not in one else "different"
            key = name[0] if versioned else name
            verdict = said(kind, key in below, key in later, bool(begin), compacted, expired, versioned, last)
            counts[verdict] = counts.get(verdict, 0) + 1
            beyond += verdict == "extra" and key in later and key not in below
            if verdict not in ("lost", "indeterminate"):
                wrong.append((verdict, name))

    facts = LogFacts(begin, compacted, expired)
    tally = Tally(facts, versioned=versioned, last=last, differences_max=1_000)
    for _, log, store in tally.differing(named(one.values(), versioned), named(other.values(), versioned)):
        key = (log or store or EXPECTED[0])[0]
        tally.differs(log, store, below=key in below, later=key in later, offset=5)
    assert tally.outcome() == ComparisonOutcome(
        len(equal),
        counts,  # type: ignore[arg-type]
        [
            UnequalRow(verdict, name[0] if versioned else name, side(one, name), side(other, name), 5)  # type: ignore[arg-type]
            for verdict, name in wrong
        ],
        digest_rows([*equal, *(one[name] for _, name in wrong if name in one)]),
        digest_rows([*equal, *(other[name] for _, name in wrong if name in other)]),
        beyond,
    )


def test_rows_that_are_equal_are_digested_in_pieces_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def digest(rows: list[LogicalRow]) -> Any:
        sizes.append(len(rows))
        return digest_rows(rows)

    monkeypatch.setattr(compare, "digest_rows", digest)
    rows = [(b"%06d" % number, 1, b"v") for number in range(2 * compare.DIGEST_ROWS + 3)]
    found = outcome_of(rows, rows)
    assert (found.matched, found.log_digest, max(sizes)) == (len(rows), digest_rows(rows), compare.DIGEST_ROWS)
