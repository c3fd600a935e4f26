"""The simulator's programs: the product and the plain computation agree where nothing fails."""

from collections import Counter

import pytest

import standfast as sf
from simulator.draws import Draws
from simulator.plan import DELETES, PROGRAMS, TABLE
from simulator.programs import BY_RECORD, IN, OUT, Fed, Truth, declare, stores_of


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("program", [*PROGRAMS, TABLE, DELETES])
def test_results_of_a_driver_are_those_of_the_plain_computation(program, changed):
    draws, truth, rows = Draws(5), Truth(deletes=program == DELETES), []
    app = sf.App("world", stores=stores_of(program, changed=changed))
    declare(app, program, lambda *seen: rows.append(seen), lambda: None, changed=changed)
    with sf.testing.Driver(app) as driver:
        for index in range(120):
            stamp = 10_000 + index * 250 - draws.below(6_000, "late", index)
            record = Fed(0, index, f"k{draws.below(6, 'key', index)}", stamp)
            truth.add(record, index)
            driver.pipe(IN, record.key, f"0/{index}", stamp)
        found = Counter((one.key, one.value) for one in driver.read(OUT))
    assert found == truth.results(program)
    assert len(found) >= 5
    if program in BY_RECORD:
        assert rows == [(0, number, truth.before(0, number)) for number in range(120)]
