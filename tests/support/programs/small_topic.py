"""An application whose output topic takes small batches: python small_topic.py APP LOG STATE_DIR GUARANTEE IN OUT."""

from __future__ import annotations

import sys
from typing import Any

import standfast as sf

name, log, state_dir, guarantee, source, out = sys.argv[1:]
given: Any = guarantee
app = sf.App(name, log=log, state_dir=state_dir, guarantee=given, commit_interval_ms=100)
app.stream(source, key=sf.serde.string, value=sf.serde.json).to(out)
app.run()
