"""An application that fills a small disk soon: it counts records by key, and keeps two pages of text for each."""

from __future__ import annotations

import standfast as sf
from support.placement import INT, JSON, TEXT

MIB = 20  # a disk on which a few tasks of it have room
COUNT, PAD = sf.KeyValueStore("count", TEXT, INT), sf.KeyValueStore("pad", TEXT, TEXT)
STORED = {"stores": [COUNT, PAD], "cache_max_bytes": 0, "memory_bytes": 4 << 20}


class Step(sf.Processor):
    """Counts records by key; each takes two pages of the disk, so that no write fits into what is left of a page."""

    def init(self, context: sf.Context) -> None:
        self.context, self.count, self.pad = context, context.store(COUNT), context.store(PAD)

    def process(self, record: sf.Record) -> None:
        count = (self.count.get(record.key) or 0) + 1
        self.count.put(record.key, count)
        self.pad.put(record.key, "x" * 8_000)
        self.context.forward(sf.Record(record.key, count, record.timestamp))


def padded(app: sf.App) -> None:
    app.stream("in", key=TEXT, value=JSON).process(Step, "count", "pad", key=TEXT, value=JSON).to("out")
