"""The objects of this process that keep a RocksDB directory locked: for the message of a test that met its own lock.

A handle on RocksDB has no place in the collector's lists, so each object that refers to one is named: a frame by its
function and line, and whether an exception keeps it.

Rules of this file: it looks and changes nothing.
"""

from __future__ import annotations

import gc
from types import FrameType, TracebackType
from typing import Any

import rocksdict

HANDLES = (rocksdict.Rdict, rocksdict.RdictIter, rocksdict.ColumnFamily, rocksdict.Snapshot)


def holders() -> str:
    """One line for each object that refers to a handle."""
    gc.collect()
    found = []
    for one in gc.get_objects():
        if one is not found and any(isinstance(held, HANDLES) for held in gc.get_referents(one)):
            kept_by = sorted({_name(by) for by in gc.get_referrers(one) if not isinstance(by, FrameType | list)})
            found.append(f"{_name(one)}, kept by {', '.join(kept_by) or 'frames alone'}")
    kept = [f"{_name(one.tb_frame)}, kept by an exception" for one in gc.get_objects() if _keeps(one)]
    return "\n".join([*found, *kept])


def _keeps(one: Any) -> bool:
    if not isinstance(one, TracebackType):
        return False
    values = one.tb_frame.f_locals.values()
    return any(isinstance(value, HANDLES) for value in values)


def _name(one: Any) -> str:
    if isinstance(one, FrameType):
        return f"frame {one.f_code.co_filename}:{one.f_lineno} {one.f_code.co_qualname}"
    return type(one).__qualname__
