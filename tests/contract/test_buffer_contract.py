"""The write buffers in Python and in C: random programs have the same rows, sizes, errors and order on both."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store.buffer.twins import compiled_buffer
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.native_module import compiled
from support.buffer_twins import compare


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_random_programs_have_one_outcome_on_both_buffers(seed: int) -> None:
    module = compiled().module
    assert module is not None
    compare([WriteBuffer, compiled_buffer(module)], random.Random(seed))
